// Attention of bfloat16 where the machine multiplies pairs: many queries share what is turned round for them.
//
// Places are numbered along a node's path: committed slots, then its ancestors by depth. Values are added in pairs of
// places (0, 1), (2, 3) and so on, one of which may be the last committed slot and the first of a branch.
#pragma once

#include "attention.h"
#include "pairs.h"

#if defined(__AVX512BF16__)
namespace paceline {

constexpr int BLOCK = 256;     // places whose keys or values are turned round at once
constexpr int TOGETHER = 24;   // queries whose scores exist at once: what they attend to may be long

// Blocks of keys or values in the order in which they are multiplied: the last one, or all where they are used again.
class Blocks {
   public:
    void begin(bool keep) { keep_ = keep, known_ = 0; }
    template <class Fill>
    const __m512i *get(int block, long size, Fill &&fill) {
        const long at = keep_ ? block * size : 0;
        if (keep_ && block < known_) return &memory_[at];
        if ((long)memory_.size() < at + size) memory_.resize(at + size);
        fill(&memory_[at]);
        known_ = block + 1;
        return &memory_[at];
    }

   private:
    std::vector<__m512i> memory_;
    bool keep_ = false;
    int known_ = 0;
};

template <>
class Attention<bf16> {
   public:
    static constexpr int most_queries = 128;  // of a piece: keys and values are turned round once for all

    Attention(const Model &model, const Call &call)
        : model_(model), call_(call), size_(model.head_dim), padded_(size_ + size_ % 2), words_(padded_ / 2),
          vectors_((size_ + SIDE - 1) / SIDE), group_(model.num_heads / model.num_kv_heads) {}

    // Nodes first to last (exclusive) of one row over one key-value head.
    void operator()(int layer, int head, const Node *nodes, int count, const bf16 *heads, long heads_step, bf16 *out,
                    long out_step) {
        const int row = nodes[0].row, most = std::max(1, TOGETHER / group_);
        slots_ = slots_of<bf16>(model_, call_, layer, row, head);
        length_ = call_.length[row];
        shared_ = call_.chain ? length_ + call_.start + nodes[count - 1].node + 1 : length_;
        keys_.begin(count > most), values_.begin(count > most);
        for (int i = 0; i < count; i += most) {
            const int num = std::min(most, count - i);
            take(head, nodes + i, num, heads + i * heads_step, heads_step);
            score_shared(num * group_);
            for (int j = 0; j < num; j++) score_own(j);
            weigh_all(num * group_);
            std::fill(sums_.begin(), sums_.begin() + num * group_ * vectors_, __m512{});
            mix_shared(num * group_);
            for (int j = 0; j < num; j++) mix_own(j);
            give(num * group_, head, out + i * out_step, out_step);
        }
    }

   private:
    const Model &model_;
    const Call &call_;
    const int size_, padded_, words_, vectors_, group_;
    Slots<bf16> slots_{};
    int length_ = 0;  // places that all nodes of the row share
    int shared_ = 0;  // places that stand one after another, for some nodes at least
    long ld_ = 0;
    Blocks keys_, values_, own_;
    std::vector<float> scores_, totals_;
    std::vector<__m512> sums_;
    std::vector<bf16> queries_;
    std::vector<int> places_, paths_, ends_;  // of each node: places, slots of its own, and where they end

    int own(int node) const { return call_.chain ? 0 : ends_[node + 1] - ends_[node]; }

    // Places of the shared ones that some of the queries before end attend to.
    int reach(int end) const { return call_.chain ? places_[(end - 1) / group_] : length_; }

    // Queries side by side, and the paths of their nodes.
    void take(int head, const Node *nodes, int count, const bf16 *heads, long heads_step) {
        const int row = nodes[0].row, from = call_.start, num = count * group_;
        queries_.resize(num * padded_), totals_.resize(num), sums_.resize(num * vectors_);
        places_.clear(), paths_.clear(), ends_.assign(1, 0);
        int longest = 0;
        for (int i = 0; i < count; i++) {
            for (int g = 0; g < group_; g++) {
                bf16 *query = &queries_[(i * group_ + g) * padded_];
                const bf16 *from = heads + i * heads_step + model_.query + (head * group_ + g) * model_.query_step;
                std::memcpy(query, from, size_ * sizeof(bf16));
                if (padded_ > size_) query[size_] = {};
            }
            const int last = from + nodes[i].node;
            if (!call_.chain) {
                const uint8_t *mine = call_.ancestors + row * call_.ancestors_row_step + nodes[i].node * call_.ancestors_step;
                for (int j = 0; j <= last; j++)
                    if (mine[j]) paths_.push_back(length_ + j);
                ends_.push_back(paths_.size());
            }
            places_.push_back(length_ + (call_.chain ? last + 1 : own(i)));
            longest = std::max(longest, places_.back());
        }
        ld_ = ((longest + 2 * SIDE - 1) / (2 * SIDE) + 1) * (2 * SIDE) + SIDE;  // odd in lines: not all in one set of a cache
        if ((long)scores_.size() < num * ld_) scores_.resize(num * ld_);
    }

    void score_with(const __m512i *turned, int count, int m, int num, long at) {
        for (int j = 0; j < count; j += SIDE * SIDES)
            known<SCORED>(num, [&](auto rows) {
                known<SIDES>(std::min(SIDES, (count - j + SIDE - 1) / SIDE), [&](auto sides) {
                    score_tile<rows.value, sides.value>(turned + j / SIDE * words_, words_, &queries_[m * padded_], padded_,
                                                        &scores_[m * ld_ + at + j], ld_);
                });
            });
    }

    void score_shared(int num) {
        for (int first = 0; first < reach(num); first += BLOCK) {
            const __m512i *turned = keys_.get(first / BLOCK, BLOCK / SIDE * words_, [&](__m512i *to) {
                for (int j = first; j < std::min(first + BLOCK, shared_); j += SIDE, to += words_)
                    turn_keys(slots_.keys, slots_.step, j, shared_, Straight{}, size_, to);
            });
            for (int m = 0; m < num; m += SCORED) {
                const int rows = std::min(SCORED, num - m);
                score_with(turned, std::min(BLOCK, reach(m + rows) - first), m, rows, first);
            }
        }
    }

    void score_own(int node) {
        const int count = own(node), *path = paths_.data() + ends_[node];
        for (int j = 0; j < count; j += SIDE) {
            const __m512i *turned = own_.get(0, words_, [&](__m512i *to) {
                turn_keys(slots_.keys, slots_.step, j, count, [&](int t) { return path[t]; }, size_, to);
            });
            for (int g = 0; g < group_; g += SCORED)
                score_with(turned, std::min(SIDE, count - j), node * group_ + g, std::min(SCORED, group_ - g), length_ + j);
        }
    }

    void weigh_all(int num) {
        for (int m = 0; m < num; m++) {
            const int end = call_.chain ? reach(std::min(num, m + MOST_MIXED)) : 0;  // of every tile that m is in
            const int places = places_[m / group_];
            totals_[m] = weigh(&scores_[m * ld_], places, std::max(places, end), model_.scale);
        }
    }

    // Adds pairs of places to the sums of queries from begin to end, count(last) of them to a tile up to last; their
    // weights begin at pair number at.
    template <class Count>
    void mix_with(const __m512i *paired, int at, int begin, int end, Count &&count) {
        for (int v = 0; v < vectors_; v += VECTORS)
            known<VECTORS>(std::min(VECTORS, vectors_ - v), [&](auto wide) {
                constexpr int W = wide.value;
                for (int m = begin; m < end; m += mixed<W>) {
                    const int rows = std::min(mixed<W>, end - m), pairs = count(m + rows);
                    if (pairs <= 0) continue;
                    known<mixed<W>>(rows, [&](auto high) {
                        mix_tile<high.value, W>((const int *)&scores_[m * ld_] + at, ld_, pairs, paired + v, vectors_,
                                                &sums_[m * vectors_ + v]);
                    });
                }
            });
    }

    void mix_shared(int num) {
        auto pairs = [&](int end) { return call_.chain ? (reach(end) + 1) / 2 : length_ / 2; };
        for (int first = 0; first < 2 * pairs(num); first += BLOCK) {
            const __m512i *paired = values_.get(first / BLOCK, BLOCK / 2 * vectors_, [&](__m512i *to) {
                pair_values(slots_.values, slots_.step, first, first + BLOCK, shared_, Straight{}, size_, to);
            });
            mix_with(paired, first / 2, 0, num, [&](int end) { return std::min(BLOCK / 2, pairs(end) - first / 2); });
        }
    }

    void mix_own(int node) {
        if (call_.chain) return;
        const int first = length_ / 2 * 2, count = places_[node], *path = paths_.data() + ends_[node];
        const int pairs = (count - first + 1) / 2;
        const __m512i *paired = own_.get(0, pairs * vectors_, [&](__m512i *to) {
            auto at = [&](int place) { return place < length_ ? place : path[place - length_]; };
            pair_values(slots_.values, slots_.step, first, count, count, at, size_, to);
        });
        mix_with(paired, first / 2, node * group_, (node + 1) * group_, [&](int) { return pairs; });
    }

    void give(int num, int head, bf16 *out, long out_step) {
        for (int m = 0; m < num; m++) {
            bf16 *y = out + m / group_ * out_step + (head * group_ + m % group_) * size_;
            for (int v = 0; v < vectors_; v++)
                store_piece(y + v * SIDE, (Floats)sums_[m * vectors_ + v] / totals_[m], std::min(SIDE, size_ - v * SIDE));
        }
    }
};

}  // namespace paceline
#endif
