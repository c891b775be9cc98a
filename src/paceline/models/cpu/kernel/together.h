// Attention of bfloat16 where the machine multiplies pairs: queries share what is turned round for them.
//
// Places are numbered along a node's path: committed slots, then its ancestors by depth. Values are added in pairs of
// places (0, 1), (2, 3) and so on, one of which may be the last committed slot and the first of a branch.
#pragma once

#include "attention.h"
#include "pairs.h"

#if defined(__AVX512BF16__)
namespace paceline {

constexpr int BLOCK = SIDE * SIDES;  // places that few queries go through at once, of all heads one after another
constexpr int TOGETHER = 24;         // queries of a head whose scores exist at once
constexpr long SCORES = 1024 * 1024; // most scores that exist at once, unless those of one head are more

template <>
class Attention<bf16> {
   public:
    static constexpr int most_queries = 128;  // of a piece: all its keys and values are turned round once

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
    std::vector<float> scores_, totals_;
    std::vector<__m512> sums_;
    std::vector<bf16> queries_;
    std::vector<int> places_, paths_, ends_;  // of each node: places, slots of its own, and where they end

    const bf16 *keys(int h) const { return slots_.keys + (head_ + h) * size_; }
    const bf16 *values(int h) const { return slots_.values + (head_ + h) * size_; }
    int num_nodes() const { return places_.size(); }

    // Places that stand one after another and that some of a head's queries before end attend to.
    int reach(int end) const { return call_.chain ? places_[(end - 1) / group_] : length_; }

    // The slots of a node's own places.
    auto own(int node) const {
        return [path = paths_.data() + ends_[node]](int j) { return path[j]; };
    }

    static __m512i *room(std::vector<__m512i> &memory, long size) {
        if ((long)memory.size() < size) memory.resize(size);
        return memory.data();
    }

    void turn_all() {
        __m512i *to = room(keys_, (shared_ + SIDE - 1) / SIDE * words_);
        for (int j = 0; j < shared_; j += SIDE, to += words_)
            turn_keys(keys(0), slots_.step, j, shared_, Straight{}, size_, to);
        to = room(values_, (shared_ + 1) / 2 * vectors_);
        pair_values(values(0), slots_.step, 0, shared_, shared_, Straight{}, size_, to);
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
        for (int j = 0; j < count; j += BLOCK, turned += SIDES * words_)
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
        for (int first = 0; first < longest && !all_; first += BLOCK)
            for (int h = 0; h < num_heads_; h++) {
                __m512i *turned = room(keys_, SIDES * words_);
                for (int j = 0; j < BLOCK && first + j < longest; j += SIDE)
                    turn_keys(keys(h), slots_.step, first + j, longest, Straight{}, size_, turned + j / SIDE * words_);
                score_head(turned, h, first, BLOCK);
            }
        if (call_.chain) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) score_own(h, node);
    }

    void score_own(int h, int node) {
        const int count = places_[node] - length_;
        for (int j = 0; j < count; j += SIDE) {
            turn_keys(keys(h), slots_.step, j, count, own(node), size_, room(own_, words_));
            for (int g = 0; g < group_; g += SCORED)
                score_with(own_.data(), std::min(SIDE, count - j), h * num_ + node * group_ + g, std::min(SCORED, group_ - g),
                           length_ + j);
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
        for (int first = 0; first < end && !all_; first += BLOCK)
            for (int h = 0; h < num_heads_; h++) {
                __m512i *paired = room(values_, BLOCK / 2 * vectors_);
                pair_values(values(h), slots_.step, first, first + BLOCK, longest, Straight{}, size_, paired);
                mix_with(paired, first / 2, h, 0, num_,
                         [&](int last) { return std::min(BLOCK / 2, pairs(last) - first / 2); });
            }
        if (call_.chain) return;
        for (int h = 0; h < num_heads_; h++)
            for (int node = 0; node < num_nodes(); node++) mix_own(h, node);
    }

    // Pairs of a node's own places, the first of which may begin with the last committed slot.
    void mix_own(int h, int node) {
        const int first = length_ / 2 * 2, count = places_[node], pairs = (count - first + 1) / 2;
        const auto at = [&, beyond = own(node)](int place) { return place < length_ ? place : beyond(place - length_); };
        __m512i *paired = room(own_, pairs * vectors_);
        pair_values(values(h), slots_.step, first, count, count, at, size_, paired);
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
