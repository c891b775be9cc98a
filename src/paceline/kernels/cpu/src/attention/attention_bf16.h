// Attention of bfloat16 where the machine multiplies pairs: queries share what is turned round for them.
//
// Places are numbered along a node's path: committed slots, then its ancestors by depth. Values are added in pairs of
// places (0, 1), (2, 3) and so on, one of which may be the last committed slot and the first of a branch.
#pragma once

#include "attention/attention.h"
#include "attention/attention_parts_bf16.h"

#if defined(__AVX512BF16__)
namespace paceline {

constexpr int AT_ONCE = SIDE * SIDES;  // places that few queries go through at once, of all heads one after another
constexpr int TOGETHER = 24;           // queries of a head whose scores exist at once
constexpr int PIECES = 4;              // of work for each thread, at least, where they cannot share out the heads
constexpr long SCORES = 1024 * 1024;   // most scores that exist at once, unless those of one head are more

template <>
class Attention<bf16> {
   public:
    // Nodes in a piece of work, for which keys and values are turned round once: all, where threads share out the heads.
    static int nodes_of_piece(const Model &model, int nodes, int threads) {
        if (model.num_kv_heads % threads == 0) return nodes;
        const int fewest = std::max<int>(1, QUERIES * model.num_kv_heads / model.num_heads);
        return std::max<int>(fewest, nodes * model.num_kv_heads / (PIECES * threads));
    }

    Attention(const Model &model, const Call &call)
        : model_(model), call_(call), size_(model.head_dim), padded_(size_ + size_ % 2), words_(padded_ / 2),
          vectors_((size_ + SIDE - 1) / SIDE), group_(model.num_heads / model.num_kv_heads) {}

    // Nodes first to last (exclusive) of one row over key-value heads begin to end.
    void operator()(int layer, int begin, int end, const Node *nodes, int count, const bf16 *heads, long heads_step,
                    bf16 *out, long out_step) {
        const int row = nodes[0].row, most = std::max(1, TOGETHER / group_);
        slots_ = slots_of<bf16>(model_, call_, layer, row, 0);
        length_ = call_.length[row];
        shared_ = call_.chain ? length_ + call_.start + nodes[count - 1].node + 1 : length_;
        all_ = count > most;
        const long scores = std::min(most, count) * group_ * (shared_ + count + 4l * SIDE);
        const int step = all_ ? 1 : std::max(1l, SCORES / scores);
        for (head_ = begin; head_ < end; head_ += step) {
            num_heads_ = std::min(step, end - head_);
            if (all_) turn_all();
            for (int i = 0; i < count; i += most) {
                take(nodes + i, std::min(most, count - i), heads + i * heads_step, heads_step);
                score_shared();
                weigh_all();
                mix_shared();
                give(out + i * out_step, out_step);
            }
        }
    }

   private:
    const Model &model_;
    const Call &call_;
    const int size_, padded_, words_, vectors_, group_;
    Slots<bf16> slots_{};
    int length_ = 0;                // places that all nodes of the row share
    int shared_ = 0;                // places that stand one after another, for some nodes at least
    bool all_ = false;              // they are turned round before, all of them
    int head_ = 0, num_heads_ = 0;  // that are worked on at once
    int num_ = 0;                   // queries of each
    long ld_ = 0;
    std::vector<__m512i> keys_, values_, own_;
    std::vector<float> &scores_ = memory(), totals_;
    std::vector<__m512> sums_;
    std::vector<bf16> queries_, rows_;
    std::vector<int> places_, paths_, ends_;  // of each node: places, slots of its own, and where they end

    // A thread's scores, kept between calls: what is new would be mapped page by page every time.
    static std::vector<float> &memory() {
        static thread_local std::vector<float> kept;
        return kept;
    }

    const bf16 *keys(int h) const { return slots_.keys + (head_ + h) * size_; }
    const bf16 *values(int h) const { return slots_.values + (head_ + h) * size_; }
    int num_nodes() const { return places_.size(); }

    // Places that stand one after another and that some of a head's queries before end attend to.
    int reach(int end) const { return call_.chain ? places_[(end - 1) / group_] : length_; }

    static __m512i *room(std::vector<__m512i> &memory, long size) {
        if ((long)memory.size() < size) memory.resize(size);
        return memory.data();
    }

    // Rows of the slots that at(j) names, j below count, side by side; up to num the last one again.
    template <class At>
    const bf16 *copied(const bf16 *from, int count, int num, At &&at) {
        rows_.resize(num * size_);
        for (int j = 0; j < num; j++)
            std::memcpy(&rows_[j * size_], from + at(std::min(j, count - 1)) * slots_.step, size_ * sizeof(bf16));
        return rows_.data();
    }

    // Asks memory for the stretch after this one.
    void want_next(const bf16 *from, int first, int end) {
        const int last = std::min(first + 2 * AT_ONCE, end);
        for (int j = first + AT_ONCE; j < last; j++)
            for (int e = 0; e < size_; e += 32) want_later(from + j * slots_.step + e);
    }

    // The keys of a stretch that begins at place first, of which all places from end on are left out.
    const __m512i *turn_stretch(int h, int first, int end, __m512i *to) {
        want_next(keys(h), first, end);
        const bf16 *from = keys(h) + first * slots_.step;
        const int count = std::min(AT_ONCE, end - first), whole = count / SIDE * SIDE;
        for (int j = 0; j < whole; j += SIDE)
            turn_keys(from + j * slots_.step, slots_.step, size_, to + j / SIDE * words_);
        if (whole < count)
            turn_keys(copied(from + whole * slots_.step, count - whole, SIDE, Straight{}), size_, size_,
                      to + whole / SIDE * words_);
        return to;
    }

    // Its values in the same way.
    const __m512i *pair_stretch(int h, int first, int end, __m512i *to) {
        want_next(values(h), first, end);
        pair_values(values(h) + first * slots_.step, slots_.step, std::min(AT_ONCE, end - first), size_, to);
        return to;
    }

    void turn_all() {
        room(keys_, (shared_ + SIDE - 1) / SIDE * words_), room(values_, (shared_ + 1) / 2 * vectors_);
        for (int first = 0; first < shared_; first += AT_ONCE) {
            turn_stretch(0, first, shared_, &keys_[first / SIDE * words_]);
            pair_stretch(0, first, shared_, &values_[first / 2 * vectors_]);
        }
    }

    // Queries side by side, head by head, and the paths of their nodes.
    void take(const Node *nodes, int count, const bf16 *heads, long heads_step) {
        num_ = count * group_;
        const int num = num_ * num_heads_;
        queries_.resize(num * padded_), totals_.resize(num), sums_.assign(num * vectors_, __m512{});
        places_.clear(), paths_.clear(), ends_.assign(1, 0);
        for (int i = 0; i < count; i++) places_.push_back(length_ + follow(nodes[i]));
        for (int m = 0; m < num; m++) {
            const int head = (head_ + m / num_) * group_ + m % group_;
            const bf16 *from = heads + m % num_ / group_ * heads_step + model_.query + head * model_.query_step;
            std::memcpy(&queries_[m * padded_], from, size_ * sizeof(bf16));
            if (padded_ > size_) queries_[m * padded_ + size_] = {};
        }
        const int longest = *std::max_element(places_.begin(), places_.end());
        ld_ = (longest + 4 * SIDE) / (2 * SIDE) * (2 * SIDE) + SIDE;  // odd in lines: not all in one set of a cache
        if ((long)scores_.size() < num * ld_) scores_.resize(num * ld_);
    }

    // How many places a node has beyond the committed ones; lists them where they are not one after another.
    int follow(Node node) {
        const int last = call_.start + node.node, before = paths_.size();
        if (call_.chain) return last + 1;
        const uint8_t *mine = call_.ancestors + node.row * call_.ancestors_row_step + node.node * call_.ancestors_step;
        for (int j = 0; j <= last; j++)
            if (mine[j]) paths_.push_back(length_ + j);
        ends_.push_back(paths_.size());
        return paths_.size() - before;
    }

    // Scores of queries from m on, num of them, with count keys, the first of which is at place at.
    void score_with(const __m512i *turned, int count, int m, int num, int at) {
        for (int j = 0; j < count; j += AT_ONCE, turned += SIDES * words_)
            known<SCORED>(num, [&](auto rows) {
                known<SIDES>(std::min(SIDES, (count - j + SIDE - 1) / SIDE), [&](auto sides) {
                    score_tile<rows.value, sides.value>(turned, words_, &queries_[m * padded_], padded_,
                                                        &scores_[m * ld_ + at + j], ld_);
                });
            });
    }

    // The same for all queries of a head, as far as they reach.
    void score_head(const __m512i *turned, int h, int first, int count) {
        for (int m = 0; m < num_; m += SCORED) {
            const int rows = std::min(SCORED, num_ - m);
            score_with(turned, std::min(count, reach(m + rows) - first), h * num_ + m, rows, first);
        }
    }

    void score_shared() {
        const int longest = reach(num_);
        if (all_) score_head(keys_.data(), 0, 0, longest);
        for (int first = 0; first < longest && !all_; first += AT_ONCE)
            for (int h = 0; h < num_heads_; h++)
                score_head(turn_stretch(h, first, longest, room(keys_, SIDES * words_)), h, first, AT_ONCE);
        if (call_.chain) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) score_own(h, node);
    }

    void score_own(int h, int node) {
        const int count = places_[node] - length_, *path = paths_.data() + ends_[node];
        for (int j = 0; j < count; j += SIDE) {
            const int some = std::min(SIDE, count - j);
            turn_keys(copied(keys(h), some, SIDE, [&](int i) { return path[j + i]; }), size_, size_, room(own_, words_));
            for (int g = 0; g < group_; g += SCORED)
                score_with(own_.data(), some, h * num_ + node * group_ + g, std::min(SCORED, group_ - g), length_ + j);
        }
    }

    void weigh_all() {
        for (int m = 0; m < num_ * num_heads_; m++) {
            const int places = places_[m % num_ / group_];
            const int end = call_.chain ? reach(std::min(num_, m % num_ + MOST_MIXED)) : 0;  // of every tile that m is in
            totals_[m] = weigh(&scores_[m * ld_], places, std::max(places, end), model_.scale);
        }
    }

    // Adds pairs of places to the sums of a head's queries from begin to end, count(last) of them to a tile up to last;
    // their weights begin at pair number at.
    template <class Count>
    void mix_with(const __m512i *paired, int at, int h, int begin, int end, Count &&count) {
        for (int v = 0; v < vectors_; v += VECTORS)
            known<VECTORS>(std::min(VECTORS, vectors_ - v), [&](auto wide) {
                constexpr int W = wide.value;
                for (int m = begin; m < end; m += mixed<W>) {
                    const int rows = std::min(mixed<W>, end - m), pairs = count(m + rows), query = h * num_ + m;
                    if (pairs <= 0) continue;
                    known<mixed<W>>(rows, [&](auto high) {
                        mix_tile<high.value, W>((const int *)&scores_[query * ld_] + at, ld_, pairs, paired + v, vectors_,
                                                &sums_[query * vectors_ + v]);
                    });
                }
            });
    }

    void mix_shared() {
        auto pairs = [&](int end) { return call_.chain ? (reach(end) + 1) / 2 : length_ / 2; };
        const int longest = reach(num_), end = 2 * pairs(num_);
        if (all_) mix_with(values_.data(), 0, 0, 0, num_, pairs);
        for (int first = 0; first < end && !all_; first += AT_ONCE)
            for (int h = 0; h < num_heads_; h++)
                mix_with(pair_stretch(h, first, longest, room(values_, AT_ONCE / 2 * vectors_)), first / 2, h, 0, num_,
                         [&](int last) { return std::min(AT_ONCE / 2, pairs(last) - first / 2); });
        if (call_.chain) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) mix_own(h, node);
    }

    // Pairs of a node's own places, the first of which may begin with the last committed slot.
    void mix_own(int h, int node) {
        const int first = length_ / 2 * 2, count = places_[node] - first, pairs = (count + 1) / 2;
        const int *path = paths_.data() + ends_[node], shared = length_ - first;
        const auto at = [&](int j) { return j < shared ? first + j : path[j - shared]; };
        __m512i *paired = room(own_, pairs * vectors_);
        pair_values(copied(values(h), count, count, at), size_, count, size_, paired);
        mix_with(paired, first / 2, h, node * group_, (node + 1) * group_, [&](int) { return pairs; });
    }

    void give(bf16 *out, long out_step) {
        for (int m = 0; m < num_ * num_heads_; m++) {
            const int head = (head_ + m / num_) * group_ + m % group_;
            bf16 *y = out + m % num_ / group_ * out_step + head * size_;
            for (int v = 0; v < vectors_; v++)
                store_piece(y + v * SIDE, (Floats)sums_[m * vectors_ + v] / totals_[m], std::min(SIDE, size_ - v * SIDE));
        }
    }
};

}  // namespace paceline
#endif
