// Attention for bf16 with AVX512-BF16 dot products: queries share the transposed K and V tiles.
//
// Positions are numbered along a node's path: committed slots, then its ancestors by depth. Values are added in pairs
// of positions (0, 1), (2, 3), ...; a pair may consist of the last committed slot and the first node of a branch.
#pragma once

#include "attention/attention.h"
#include "attention/attention_tiles_bf16.h"

#if defined(__AVX512BF16__)
namespace paceline {

constexpr int KV_TILE = KEYS_PER_VECTOR * KEY_VECTORS;  // positions per K/V tile when there are few queries
constexpr int QUERY_BLOCK = 24;                         // queries of a head whose scores are in memory at once
constexpr int TASKS_PER_THREAD = 4;       // at least, where heads cannot be divided evenly among the threads
constexpr long MAX_SCORES = 1024 * 1024;  // most scores in memory at once, unless one head alone has more

template <>
class Attention<bf16> {
   public:
    // Nodes per task; keys and values are transposed once per task. All nodes if heads divide evenly among the threads.
    static int nodes_per_task(const Model &model, int nodes, int threads) {
        if (model.num_kv_heads % threads == 0) return nodes;
        const int fewest = std::max<int>(1, QUERIES_PER_TASK * model.num_kv_heads / model.num_heads);
        return std::max<int>(fewest, nodes * model.num_kv_heads / (TASKS_PER_THREAD * threads));
    }

    Attention(const Model &model, const Call &call)
        : model_(model),
          call_(call),
          size_(model.head_dim),
          padded_(size_ + size_ % 2),
          words_(padded_ / 2),
          vectors_((size_ + KEYS_PER_VECTOR - 1) / KEYS_PER_VECTOR),
          group_(model.num_heads / model.num_kv_heads) {}

    // Attention of count nodes of one row, for key-value heads begin to end (exclusive).
    void operator()(int layer, int begin, int end, const Node *nodes, int count, const bf16 *heads, long heads_step,
                    bf16 *out, long out_step) {
        const int row = nodes[0].row, most = std::max(1, QUERY_BLOCK / group_);
        slots_ = kv_slots<bf16>(model_, call_, layer, row, 0);
        length_ = call_.length[row];
        shared_ = call_.chain ? length_ + call_.start + nodes[count - 1].node + 1 : length_;
        packed_all_ = count > most;
        const long scores = std::min(most, count) * group_ * (shared_ + count + 4l * KEYS_PER_VECTOR);
        const int step = packed_all_ ? 1 : std::max(1l, MAX_SCORES / scores);
        for (head_ = begin; head_ < end; head_ += step) {
            num_heads_ = std::min(step, end - head_);
            if (packed_all_) pack_keys_and_values();
            for (int i = 0; i < count; i += most) {
                load_queries(nodes + i, std::min(most, count - i), heads + i * heads_step, heads_step);
                score_prefix();
                softmax_all();
                accumulate_prefix();
                store_output(out + i * out_step, out_step);
            }
        }
    }

   private:
    const Model &model_;
    const Call &call_;
    const int size_, padded_, words_, vectors_, group_;
    KVSlots<bf16> slots_{};
    int length_ = 0;                // committed slots, visible to all nodes of the row
    int shared_ = 0;                // consecutive positions that some node sees
    bool packed_all_ = false;       // K and V of all shared positions are transposed up front
    int head_ = 0, num_heads_ = 0;  // processed together
    int num_ = 0;                   // queries per head
    long ld_ = 0;
    std::vector<__m512i> keys_, values_, path_buffer_;
    std::vector<float> &scores_ = score_buffer(), totals_;
    std::vector<__m512> sums_;
    std::vector<bf16> queries_, rows_;
    std::vector<int> num_visible_, paths_,
        path_offsets_;  // per node: positions it sees; slots of its ancestors, and their offsets

    // A thread's scores, kept between calls: new memory would be page-faulted in every time.
    static std::vector<float> &score_buffer() {
        static thread_local std::vector<float> buffer;
        return buffer;
    }

    const bf16 *keys(int h) const { return slots_.keys + (head_ + h) * size_; }
    const bf16 *values(int h) const { return slots_.values + (head_ + h) * size_; }
    int num_nodes() const { return num_visible_.size(); }

    // Consecutive positions that some query of a head before end attends to.
    int visible_end(int end) const { return call_.chain ? num_visible_[(end - 1) / group_] : length_; }

    static __m512i *ensure_size(std::vector<__m512i> &score_buffer, long size) {
        if ((long)score_buffer.size() < size) score_buffer.resize(size);
        return score_buffer.data();
    }

    // Copies the rows of slots at(0) .. at(count - 1) into one buffer; rows up to num repeat the last one.
    template <class At>
    const bf16 *gather_rows(const bf16 *from, int count, int num, At &&at) {
        rows_.resize(num * size_);
        for (int j = 0; j < num; j++)
            std::memcpy(&rows_[j * size_], from + at(std::min(j, count - 1)) * slots_.step, size_ * sizeof(bf16));
        return rows_.data();
    }

    // Prefetches the next tile.
    void prefetch_next(const bf16 *from, int first, int end) {
        const int last = std::min(first + 2 * KV_TILE, end);
        for (int j = first + KV_TILE; j < last; j++)
            for (int e = 0; e < size_; e += 32) prefetch(from + j * slots_.step + e);
    }

    // The transposed keys of the tile at position first; positions from end on are left out.
    const __m512i *transpose_key_tile(int h, int first, int end, __m512i *to) {
        prefetch_next(keys(h), first, end);
        const bf16 *from = keys(h) + first * slots_.step;
        const int count = std::min(KV_TILE, end - first), whole = count / KEYS_PER_VECTOR * KEYS_PER_VECTOR;
        for (int j = 0; j < whole; j += KEYS_PER_VECTOR)
            transpose_keys(from + j * slots_.step, slots_.step, size_, to + j / KEYS_PER_VECTOR * words_);
        if (whole < count)
            transpose_keys(gather_rows(from + whole * slots_.step, count - whole, KEYS_PER_VECTOR, Contiguous{}), size_,
                           size_, to + whole / KEYS_PER_VECTOR * words_);
        return to;
    }

    // The interleaved values of the tile, likewise.
    const __m512i *interleave_value_tile(int h, int first, int end, __m512i *to) {
        prefetch_next(values(h), first, end);
        interleave_values(values(h) + first * slots_.step, slots_.step, std::min(KV_TILE, end - first), size_, to);
        return to;
    }

    void pack_keys_and_values() {
        ensure_size(keys_, (shared_ + KEYS_PER_VECTOR - 1) / KEYS_PER_VECTOR * words_),
            ensure_size(values_, (shared_ + 1) / 2 * vectors_);
        for (int first = 0; first < shared_; first += KV_TILE) {
            transpose_key_tile(0, first, shared_, &keys_[first / KEYS_PER_VECTOR * words_]);
            interleave_value_tile(0, first, shared_, &values_[first / 2 * vectors_]);
        }
    }

    // Copies queries head by head and collects the paths of their nodes.
    void load_queries(const Node *nodes, int count, const bf16 *heads, long heads_step) {
        num_ = count * group_;
        const int num = num_ * num_heads_;
        queries_.resize(num * padded_), totals_.resize(num), sums_.assign(num * vectors_, __m512{});
        num_visible_.clear(), paths_.clear(), path_offsets_.assign(1, 0);
        for (int i = 0; i < count; i++) num_visible_.push_back(length_ + collect_path(nodes[i]));
        for (int m = 0; m < num; m++) {
            const int head = (head_ + m / num_) * group_ + m % group_;
            const bf16 *from = heads + m % num_ / group_ * heads_step + model_.query + head * model_.query_step;
            std::memcpy(&queries_[m * padded_], from, size_ * sizeof(bf16));
            if (padded_ > size_) queries_[m * padded_ + size_] = {};
        }
        const int longest = *std::max_element(num_visible_.begin(), num_visible_.end());
        ld_ = (longest + 4 * KEYS_PER_VECTOR) / (2 * KEYS_PER_VECTOR) * (2 * KEYS_PER_VECTOR) +
              KEYS_PER_VECTOR;  // an odd number of cache lines, against set conflicts
        if ((long)scores_.size() < num * ld_) scores_.resize(num * ld_);
    }

    // Number of positions a node sees beyond the committed ones; lists them if they are not consecutive.
    int collect_path(Node node) {
        const int last = call_.start + node.node, before = paths_.size();
        if (call_.chain) return last + 1;
        const uint8_t *mine = call_.ancestors + node.row * call_.ancestors_row_step + node.node * call_.ancestors_step;
        for (int j = 0; j <= last; j++)
            if (mine[j]) paths_.push_back(length_ + j);
        path_offsets_.push_back(paths_.size());
        return paths_.size() - before;
    }

    // Scores of queries m .. m + num - 1 with count keys, the first of which is at position at.
    void score_tiles(const __m512i *transposed, int count, int m, int num, int at) {
        for (int j = 0; j < count; j += KV_TILE, transposed += KEY_VECTORS * words_)
            with_constant<SCORE_ROWS>(num, [&](auto rows) {
                with_constant<KEY_VECTORS>(
                    std::min(KEY_VECTORS, (count - j + KEYS_PER_VECTOR - 1) / KEYS_PER_VECTOR), [&](auto sides) {
                        score_tile<rows.value, sides.value>(transposed, words_, &queries_[m * padded_], padded_,
                                                            &scores_[m * ld_ + at + j], ld_);
                    });
            });
    }

    // The same for all queries of a head, as far as each sees.
    void score_head(const __m512i *transposed, int h, int first, int count) {
        for (int m = 0; m < num_; m += SCORE_ROWS) {
            const int rows = std::min(SCORE_ROWS, num_ - m);
            score_tiles(transposed, std::min(count, visible_end(m + rows) - first), h * num_ + m, rows, first);
        }
    }

    void score_prefix() {
        const int longest = visible_end(num_);
        if (packed_all_) score_head(keys_.data(), 0, 0, longest);
        for (int first = 0; first < longest && !packed_all_; first += KV_TILE)
            for (int h = 0; h < num_heads_; h++)
                score_head(transpose_key_tile(h, first, longest, ensure_size(keys_, KEY_VECTORS * words_)), h, first,
                           KV_TILE);
        if (call_.chain) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) score_ancestors(h, node);
    }

    void score_ancestors(int h, int node) {
        const int count = num_visible_[node] - length_, *path = paths_.data() + path_offsets_[node];
        for (int j = 0; j < count; j += KEYS_PER_VECTOR) {
            const int some = std::min(KEYS_PER_VECTOR, count - j);
            transpose_keys(gather_rows(keys(h), some, KEYS_PER_VECTOR, [&](int i) { return path[j + i]; }), size_,
                           size_, ensure_size(path_buffer_, words_));
            for (int g = 0; g < group_; g += SCORE_ROWS)
                score_tiles(path_buffer_.data(), some, h * num_ + node * group_ + g, std::min(SCORE_ROWS, group_ - g),
                            length_ + j);
        }
    }

    void softmax_all() {
        for (int m = 0; m < num_ * num_heads_; m++) {
            const int places = num_visible_[m % num_ / group_];
            const int end = call_.chain ? visible_end(std::min(num_, m % num_ + MAX_VALUE_ROWS))
                                        : 0;  // of every tile that contains m
            totals_[m] = softmax_row(&scores_[m * ld_], places, std::max(places, end), model_.scale);
        }
    }

    // Adds pairs of positions to the sums of a head's queries begin to end; count(last) is the number of pairs for a
    // tile of queries that ends at last, and at is the index of the first pair of weights.
    template <class Count>
    void accumulate_tiles(const __m512i *interleaved, int at, int h, int begin, int end, Count &&count) {
        for (int v = 0; v < vectors_; v += VALUE_VECTORS)
            with_constant<VALUE_VECTORS>(std::min(VALUE_VECTORS, vectors_ - v), [&](auto wide) {
                constexpr int W = wide.value;
                for (int m = begin; m < end; m += value_rows<W>) {
                    const int rows = std::min(value_rows<W>, end - m), pairs = count(m + rows), query = h * num_ + m;
                    if (pairs <= 0) continue;
                    with_constant<value_rows<W>>(rows, [&](auto high) {
                        accumulate_tile<high.value, W>((const int *)&scores_[query * ld_] + at, ld_, pairs,
                                                       interleaved + v, vectors_, &sums_[query * vectors_ + v]);
                    });
                }
            });
    }

    void accumulate_prefix() {
        auto pairs = [&](int end) { return call_.chain ? (visible_end(end) + 1) / 2 : length_ / 2; };
        const int longest = visible_end(num_), end = 2 * pairs(num_);
        if (packed_all_) accumulate_tiles(values_.data(), 0, 0, 0, num_, pairs);
        for (int first = 0; first < end && !packed_all_; first += KV_TILE)
            for (int h = 0; h < num_heads_; h++)
                accumulate_tiles(interleave_value_tile(h, first, longest, ensure_size(values_, KV_TILE / 2 * vectors_)),
                                 first / 2, h, 0, num_,
                                 [&](int last) { return std::min(KV_TILE / 2, pairs(last) - first / 2); });
        if (call_.chain) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) accumulate_ancestors(h, node);
    }

    // Pairs of a node's ancestors; the first pair may start with the last committed slot.
    void accumulate_ancestors(int h, int node) {
        const int first = length_ / 2 * 2, count = num_visible_[node] - first, pairs = (count + 1) / 2;
        const int *path = paths_.data() + path_offsets_[node], shared = length_ - first;
        const auto at = [&](int j) { return j < shared ? first + j : path[j - shared]; };
        __m512i *interleaved = ensure_size(path_buffer_, pairs * vectors_);
        interleave_values(gather_rows(values(h), count, count, at), size_, count, size_, interleaved);
        accumulate_tiles(interleaved, first / 2, h, node * group_, (node + 1) * group_, [&](int) { return pairs; });
    }

    void store_output(bf16 *out, long out_step) {
        for (int m = 0; m < num_ * num_heads_; m++) {
            const int head = (head_ + m / num_) * group_ + m % group_;
            bf16 *y = out + m % num_ / group_ * out_step + head * size_;
            for (int v = 0; v < vectors_; v++)
                store_partial(y + v * KEYS_PER_VECTOR, (Floats)sums_[m * vectors_ + v] / totals_[m],
                              std::min(KEYS_PER_VECTOR, size_ - v * KEYS_PER_VECTOR));
        }
    }
};

}  // namespace paceline
#endif
