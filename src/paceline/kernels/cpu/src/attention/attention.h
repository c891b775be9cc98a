// Attention over a slot cache for the nodes of a token tree: softmax(QK^T)V, keys and values packed in tiles that
// queries share.
//
// Positions are numbered along a node's path: committed slots, then its ancestors by depth. Sums run in that order, so
// a node's output is bitwise the same whether it is a root, part of a chain or on a branch. Values are added in steps
// of one position, or of two (0, 1), (2, 3), ...; such a pair may consist of the last committed slot and the first node
// of a branch.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/rotary.h"
#include "attention/tiles_bf16.h"

namespace paceline {

constexpr int KV_TILE = 64;                // positions per K/V tile when there are few queries
constexpr int QUERY_BLOCK = 24;            // queries of a head whose scores are in memory at once
constexpr int QUERIES_PER_TASK = 12;       // of one head, at least,
constexpr int TASKS_PER_THREAD = 4;        // and tasks, where heads cannot be divided evenly among the threads
constexpr long MAX_SCORES = 1024 * 1024;   // most scores in memory at once, unless one head alone has more

template <class T>
class Attention {
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
          padded_((size_ + STEP - 1) / STEP * STEP),
          words_(padded_ / STEP),
          vectors_((size_ + KEYS - 1) / KEYS),
          group_(model.num_heads / model.num_kv_heads) {}

    // Attention of count nodes of one row, for key-value heads begin to end (exclusive): to their own sequence, or to the
    // row's source.
    void operator()(const Operation &op, int layer, int begin, int end, const Node *nodes, int count, const T *heads,
                    long heads_step, T *out, long out_step) {
        const int row = nodes[0].row, most = std::max(1, QUERY_BLOCK / group_);
        source_ = op.kind == ATTEND_SOURCE;
        chain_ = source_ || call_.chain;
        scale_ = source_ ? model_.scale * op.factor : model_.scale;
        slots_ = source_ ? source_slots<T>(call_, layer, row) : kv_slots<T>(model_, call_, layer, row, 0);
        length_ = source_ ? source_length(call_, row) : call_.length[row];
        shared_ = call_.chain && !source_ ? length_ + call_.start + nodes[count - 1].node + 1 : length_;
        packed_all_ = count > most;
        const long scores = std::min(most, count) * group_ * (shared_ + count + 4l * LINE);
        const int step = packed_all_ ? 1 : std::max(1l, MAX_SCORES / scores);
        for (head_ = begin; head_ < end; head_ += step) {
            num_heads_ = std::min(step, end - head_);
            if (packed_all_) pack_keys_and_values();
            for (int h = 0; h < num_heads_ && !packed_all_; h++)  // the first tiles: weights have displaced them
                prefetch_next(keys(h), -KV_TILE, shared_), prefetch_next(values(h), -KV_TILE, shared_);
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
    using Packed = typename Tiles<T>::Packed;
    static constexpr int KEYS = Tiles<T>::KEYS, STEP = Tiles<T>::STEP;
    static constexpr int LINE = 64 / sizeof(Acc<T>);  // scores in a cache line

    const Model &model_;
    const Call &call_;
    const int size_, padded_, words_, vectors_, group_;
    KVSlots<T> slots_{};
    bool source_ = false;           // to the row's source, all of which every node sees
    bool chain_ = false;            // nodes see consecutive positions
    Acc<T> scale_ = 1;              // of the scores
    int length_ = 0;                // committed slots, or states of the source, visible to all nodes of the row
    int shared_ = 0;                // consecutive positions that some node sees
    bool packed_all_ = false;       // K and V of all shared positions are transposed up front
    int head_ = 0, num_heads_ = 0;  // processed together
    int num_ = 0;                   // queries per head
    long ld_ = 0;
    std::vector<Packed> keys_, values_, path_buffer_;
    std::vector<Acc<T>> &scores_ = score_buffer(), totals_;
    std::vector<Vec<T>> sums_;
    std::vector<typename Tiles<T>::Query> queries_;
    std::vector<T> rows_;
    std::vector<int> num_visible_, paths_,
        path_offsets_;  // per node: positions it sees; slots of its ancestors, and their offsets

    // A thread's scores, kept between calls: new memory would be page-faulted in every time.
    static std::vector<Acc<T>> &score_buffer() {
        static thread_local std::vector<Acc<T>> buffer;
        return buffer;
    }

    const T *keys(int h) const { return slots_.keys + (head_ + h) * size_; }
    const T *values(int h) const { return slots_.values + (head_ + h) * size_; }
    int num_nodes() const { return num_visible_.size(); }

    // Consecutive positions that some query of a head before end attends to.
    int visible_end(int end) const { return chain_ ? num_visible_[(end - 1) / group_] : length_; }

    static Packed *ensure_size(std::vector<Packed> &score_buffer, long size) {
        if ((long)score_buffer.size() < size) score_buffer.resize(size);
        return score_buffer.data();
    }

    // Copies the rows of slots at(0) .. at(count - 1) into one buffer; rows up to num repeat the last one.
    template <class At>
    const T *gather_rows(const T *from, int count, int num, At &&at) {
        rows_.resize(num * size_);
        for (int j = 0; j < num; j++)
            std::memcpy(&rows_[j * size_], from + at(std::min(j, count - 1)) * slots_.step, size_ * sizeof(T));
        return rows_.data();
    }

    // Prefetches the next tile.
    void prefetch_next(const T *from, int first, int end) {
        const int last = std::min(first + 2 * KV_TILE, end);
        for (int j = first + KV_TILE; j < last; j++)
            for (int e = 0; e < size_; e += 64 / (int)sizeof(T)) __builtin_prefetch(from + j * slots_.step + e, 0, 2);
    }

    // The transposed keys of the tile at position first; positions from end on are left out.
    const Packed *transpose_key_tile(int h, int first, int end, Packed *to) {
        prefetch_next(keys(h), first, end);
        const T *from = keys(h) + first * slots_.step;
        const int count = std::min(KV_TILE, end - first), whole = count / KEYS * KEYS;
        for (int j = 0; j < whole; j += KEYS)
            Tiles<T>::transpose_keys(from + j * slots_.step, slots_.step, size_, to + j / KEYS * words_);
        if (whole < count)
            Tiles<T>::transpose_keys(
                gather_rows(from + whole * slots_.step, count - whole, KEYS, [](int i) { return i; }), size_, size_,
                to + whole / KEYS * words_);
        return to;
    }

    // The packed values of the tile, likewise.
    const Packed *pack_value_tile(int h, int first, int end, Packed *to) {
        prefetch_next(values(h), first, end);
        Tiles<T>::pack_values(values(h) + first * slots_.step, slots_.step, std::min(KV_TILE, end - first), size_, to);
        return to;
    }

    void pack_keys_and_values() {
        ensure_size(keys_, (shared_ + KEYS - 1) / KEYS * words_),
            ensure_size(values_, (shared_ + STEP - 1) / STEP * vectors_);
        for (int first = 0; first < shared_; first += KV_TILE) {
            transpose_key_tile(0, first, shared_, &keys_[first / KEYS * words_]);
            pack_value_tile(0, first, shared_, &values_[first / STEP * vectors_]);
        }
    }

    // Copies queries head by head and collects the paths of their nodes.
    void load_queries(const Node *nodes, int count, const T *heads, long heads_step) {
        num_ = count * group_;
        const int num = num_ * num_heads_;
        queries_.resize(num * padded_), totals_.resize(num), sums_.assign(num * vectors_, Vec<T>{});
        num_visible_.clear(), paths_.clear(), path_offsets_.assign(1, 0);
        for (int i = 0; i < count; i++) num_visible_.push_back(length_ + collect_path(nodes[i]));
        for (int m = 0; m < num; m++) {
            const int head = (head_ + m / num_) * group_ + m % group_;
            const T *from = heads + m % num_ / group_ * heads_step + model_.query + head * model_.query_step;
            Tiles<T>::load_query(from, size_, &queries_[m * padded_]);
        }
        const int longest = *std::max_element(num_visible_.begin(), num_visible_.end());
        // An odd number of cache lines, against set conflicts.
        ld_ = (longest + 4 * LINE) / (2 * LINE) * (2 * LINE) + LINE;
        if ((long)scores_.size() < num * ld_) scores_.resize(num * ld_);
    }

    // Number of positions a node sees beyond the committed ones; lists them if they are not consecutive.
    int collect_path(Node node) {
        const int last = call_.start + node.node, before = paths_.size();
        if (source_) return 0;
        if (chain_) return last + 1;
        const uint8_t *mine = call_.ancestors + node.row * call_.ancestors_row_step + node.node * call_.ancestors_step;
        for (int j = 0; j < call_.start + call_.nodes; j++)  // later nodes too, in blocks that see all of themselves
            if (mine[j]) paths_.push_back(length_ + j);
        path_offsets_.push_back(paths_.size());
        return paths_.size() - before;
    }

    // Scores of queries m .. m + num - 1 with count keys, the first of which is at position at.
    void score_tiles(const Packed *transposed, int count, int m, int num, int at) {
        with_constant<Tiles<T>::SCORE_ROWS>(num, [&](auto rows) {
            constexpr int M = rows.value, WIDEST = Tiles<T>::template key_vectors<M>;
            for (int j = 0; j < count; j += WIDEST * KEYS, transposed += WIDEST * words_)
                with_constant<WIDEST>(std::min(WIDEST, (count - j + KEYS - 1) / KEYS), [&](auto wide) {
                    Tiles<T>::template score<M, wide.value>(transposed, words_, &queries_[m * padded_], padded_,
                                                            &scores_[m * ld_ + at + j], ld_);
                });
        });
    }

    // The same for all queries of a head, as far as each sees.
    void score_head(const Packed *transposed, int h, int first, int count) {
        for (int m = 0; m < num_; m += Tiles<T>::SCORE_ROWS) {
            const int rows = std::min(Tiles<T>::SCORE_ROWS, num_ - m);
            score_tiles(transposed, std::min(count, visible_end(m + rows) - first), h * num_ + m, rows, first);
        }
    }

    void score_prefix() {
        const int longest = visible_end(num_);
        if (packed_all_) score_head(keys_.data(), 0, 0, longest);
        for (int first = 0; first < longest && !packed_all_; first += KV_TILE)
            for (int h = 0; h < num_heads_; h++)
                score_head(transpose_key_tile(h, first, longest, ensure_size(keys_, KV_TILE / KEYS * words_)), h, first,
                           KV_TILE);
        if (chain_) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) score_ancestors(h, node);
    }

    void score_ancestors(int h, int node) {
        const int count = num_visible_[node] - length_, *path = paths_.data() + path_offsets_[node];
        for (int j = 0; j < count; j += KEYS) {
            const int some = std::min(KEYS, count - j);
            Tiles<T>::transpose_keys(gather_rows(keys(h), some, KEYS, [&](int i) { return path[j + i]; }), size_,
                           size_, ensure_size(path_buffer_, words_));
            for (int g = 0; g < group_; g += Tiles<T>::SCORE_ROWS)
                score_tiles(path_buffer_.data(), some, h * num_ + node * group_ + g,
                            std::min(Tiles<T>::SCORE_ROWS, group_ - g), length_ + j);
        }
    }

    // Adds what the distances of the positions that a query sees give, its own being the last.
    void add_relative(int m, int places) {
        const T *bias = (const T *)model_.relative + (head_ + m / num_) * group_ + m % group_;
        const int64_t last = model_.num_distances - 1;
        const auto at = [&](int64_t distance) {
            return Acc<T>(widen(bias[model_.buckets[distance] * model_.num_heads])) / scale_;
        };
        Acc<T> *scores = &scores_[m * ld_];
        const int far = std::max<int64_t>(places - last, 0);  // positions that are at least as far as the last distance
        const Acc<T> furthest = at(last);
        for (int i = 0; i < far; i++) scores[i] += furthest;
        for (int i = far; i < places; i++) scores[i] += at(places - 1 - i);
    }

    void softmax_all() {
        for (int m = 0; m < num_ * num_heads_; m++) {
            const int places = num_visible_[m % num_ / group_];
            const int end = chain_ ? visible_end(std::min(num_, m % num_ + Tiles<T>::MAX_VALUE_ROWS))
                                        : 0;  // of every tile that contains m
            if (model_.relative && !source_) add_relative(m, places);
            totals_[m] = Tiles<T>::softmax(&scores_[m * ld_], places, std::max(places, end), scale_);
        }
    }

    // Adds steps of positions to the sums of a head's queries begin to end; count(last) is the number of steps for a
    // tile of queries that ends at last, and at is the index of the first weight.
    template <class Count>
    void accumulate_tiles(const Packed *packed, int at, int h, int begin, int end, Count &&count) {
        const int most = Tiles<T>::value_vectors(end - begin);
        for (int v = 0; v < vectors_; v += most)
            with_constant<Tiles<T>::MAX_VALUE_VECTORS>(std::min(most, vectors_ - v), [&](auto wide) {
                constexpr int W = wide.value, HIGHEST = Tiles<T>::template value_rows<W>;
                for (int m = begin; m < end; m += HIGHEST) {
                    const int rows = std::min(HIGHEST, end - m), steps = count(m + rows), query = h * num_ + m;
                    if (steps <= 0) continue;
                    const auto *weights = (const typename Tiles<T>::Weight *)&scores_[query * ld_] + at;
                    with_constant<HIGHEST>(rows, [&](auto high) {
                        Tiles<T>::template accumulate<high.value, W>(weights, ld_, steps, packed + v, vectors_,
                                                                     &sums_[query * vectors_ + v]);
                    });
                }
            });
    }

    void accumulate_prefix() {
        auto steps = [&](int end) { return chain_ ? (visible_end(end) + STEP - 1) / STEP : length_ / STEP; };
        const int longest = visible_end(num_), end = STEP * steps(num_);
        if (packed_all_) accumulate_tiles(values_.data(), 0, 0, 0, num_, steps);
        for (int first = 0; first < end && !packed_all_; first += KV_TILE)
            for (int h = 0; h < num_heads_; h++)
                accumulate_tiles(
                    pack_value_tile(h, first, longest, ensure_size(values_, KV_TILE / STEP * vectors_)), first / STEP,
                    h, 0, num_, [&](int last) { return std::min(KV_TILE / STEP, steps(last) - first / STEP); });
        if (chain_) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) accumulate_ancestors(h, node);
    }

    // Steps of a node's ancestors; the first may start with the last committed slot.
    void accumulate_ancestors(int h, int node) {
        const int first = length_ / STEP * STEP, count = num_visible_[node] - first, steps = (count + STEP - 1) / STEP;
        const int *path = paths_.data() + path_offsets_[node], shared = length_ - first;
        const auto at = [&](int j) { return j < shared ? first + j : path[j - shared]; };
        Packed *packed = ensure_size(path_buffer_, steps * vectors_);
        Tiles<T>::pack_values(gather_rows(values(h), count, count, at), size_, count, size_, packed);
        accumulate_tiles(packed, first / STEP, h, node * group_, (node + 1) * group_, [&](int) { return steps; });
    }

    void store_output(T *out, long out_step) {
        for (int m = 0; m < num_ * num_heads_; m++) {
            const int head = (head_ + m / num_) * group_ + m % group_;
            T *y = out + m % num_ / group_ * out_step + head * size_;
            for (int v = 0; v < vectors_; v++)
                store_partial(y + v * KEYS, sums_[m * vectors_ + v] / totals_[m],
                              std::min(KEYS, size_ - v * KEYS));
        }
    }
};

}  // namespace paceline
