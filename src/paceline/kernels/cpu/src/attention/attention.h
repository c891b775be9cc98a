// Heads of a tree's nodes over a cache of slots: turning, writing, attending.
//
// A node's weights stand in the order of its positions: committed slots, then its ancestors by depth. Sums over them
// run in that order, so that a node attends alike, bit for bit, as a root, in a chain or on a branch.
// This is the way for every precision and machine; attention_bf16.h has a faster one for pairs of bfloat16.
#pragma once

#include <algorithm>
#include <vector>

#include "elementwise.h"
#include "attention/scores.h"

namespace paceline {

// Valid nodes, those of one row side by side.
struct Node {
    int row, node;
};

template <class T>
struct Slots {
    T *keys, *values;  // of one layer, row and key-value head
    long step;
};

template <class T>
inline Slots<T> slots_of(const Model &model, const Call &call, int layer, int row, int head) {
    const long stored = call.row_index ? call.row_index[row] : row;
    const long at = layer * call.layer_step + stored * call.row_step + head * model.head_dim;
    return {(T *)call.keys + at, (T *)call.values + at, call.slot_step};
}

// x turned by the angles of a position, in the half-split layout; the numbers beyond turned stay.
template <class T>
inline void turn(const T *x, T *y, const Acc<T> *cos, const Acc<T> *sin, int turned, int size, bool wide) {
    auto round = [&](Acc<T> v) { return wide ? v : rounded<T>(v); };
    const int half = turned / 2;
    for (int e = 0; e < half; e++) {
        const Acc<T> a = widen(x[e]), b = widen(x[e + half]);
        y[e] = narrow<T>(round(a * cos[e]) + round(-b * sin[e]));
        y[e + half] = narrow<T>(round(b * cos[e + half]) + round(a * sin[e + half]));
    }
    for (int e = turned; e < size; e++) y[e] = x[e];
}

// Turns a node's queries in place, and its keys on their way into the cache; values go there as they are.
template <class T>
inline void turn_and_write(const Model &model, const Call &call, const Operation &op, int layer, Node at, T *heads) {
    const int size = model.head_dim, turned = op.inner;
    const int64_t length = call.length[at.row];
    const int64_t position = std::min(length + call.depth[at.row * call.depth_step + at.node], model.max_positions - 1);
    const long angle = std::min(position, call.table - 1) * call.turned;
    const Acc<T> *cos = (const Acc<T> *)call.cos + angle, *sin = (const Acc<T> *)call.sin + angle;
    for (int h = 0; h < model.num_heads; h++) {
        T *q = heads + model.query + h * model.query_step;
        if (turned) turn(q, q, cos, sin, turned, size, model.wide_table);
        if (op.factor != 1)
            for (int e = 0; e < size; e++) q[e] = narrow<T>(widen(q[e]) * Acc<T>(op.factor));
    }
    const long slot = std::min(length + call.start + at.node, call.capacity - 1);
    for (int h = 0; h < model.num_kv_heads; h++) {
        auto slots = slots_of<T>(model, call, layer, at.row, h);
        const T *k = heads + model.key + h * model.key_step;
        turn(k, slots.keys + slot * slots.step, cos, sin, turned, size, model.wide_table);
        std::memcpy(slots.values + slot * slots.step, heads + model.value + h * model.value_step, size * sizeof(T));
    }
}

constexpr int SLOTS_AHEAD = 64;  // between what is mixed and what is asked of memory

// acc[m] += weights[m][s] * values of slot s, over the slots that at(s) names.
template <class T, int M, int W, class At>
inline void mix_tile(const Acc<T> *weights, long ldw, int begin, int end, const T *values, long step, int e, int size,
                     Vec<T> (&acc)[M][W], At &&at) {
    for (int s = begin; s < end; s++) {
        const T *row = values + at(s) * step + e;
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) want_later(row + SLOTS_AHEAD * step + w * lanes<T>);
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) {
            Vec<T> v = load_piece(row + w * lanes<T>, std::min(lanes<T>, size - e - w * lanes<T>));
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) acc[m][w] += v * weights[m * ldw + s];
        }
    }
}

constexpr int MIXED = 4;     // queries, and vectors of a head, in one tile of the sums over values
constexpr int QUERIES = 12;  // of one head, in a piece of work

template <class T>
class Attention {
   public:
    // Nodes in a piece of work.
    static int nodes_of_piece(const Model &model, int, int) {
        return std::max<int>(1, QUERIES * model.num_kv_heads / model.num_heads);
    }

    Attention(const Model &model, const Call &call) : model(model), call(call) {}

    // Nodes first to last (exclusive) of one row over key-value heads begin to end.
    void operator()(int layer, int begin, int end, const Node *nodes, int count, const T *heads, long heads_step, T *out,
                    long out_step) {
        for (int head = begin; head < end; head++) attend(layer, head, nodes, count, heads, heads_step, out, out_step);
    }

   private:
    const Model &model;
    const Call &call;
    std::vector<Acc<T>> scores;
    std::vector<T> queries;
    std::vector<int> path;

    void attend(int layer, int head, const Node *nodes, int count, const T *heads, long heads_step, T *out, long out_step) {
        const int size = model.head_dim, group = model.num_heads / model.num_kv_heads, num = count * group;
        const int row = nodes[0].row, length = call.length[row], from = call.start;
        const auto slots = slots_of<T>(model, call, layer, row, head);
        const int longest = length + from + nodes[count - 1].node + 1;
        const long ld = (longest + lanes<T> - 1) / lanes<T> * lanes<T>;
        if ((long)scores.size() < num * ld) scores.resize(num * ld);
        const int padded = size + size % 2;
        if ((long)queries.size() < num * padded) queries.resize(num * padded);
        for (int i = 0; i < count; i++)
            for (int g = 0; g < group; g++) {
                T *query = &queries[(i * group + g) * padded];
                std::memcpy(query, heads + i * heads_step + model.query + (head * group + g) * model.query_step,
                            size * sizeof(T));
                if (padded > size) query[size] = T{};
            }
        const int shared = call.chain ? longest : length;
        const Acc<T> scale = model.scale;
        score(slots.keys, slots.step, shared, Straight{}, queries.data(), padded, num, size, scale, scores.data(), ld);
        if (call.chain) {
            for (int i = 0; i < count; i++)
                for (int g = 0; g < group; g++) soften(&scores[(i * group + g) * ld], length + from + nodes[i].node + 1, ld);
            for (int m = 0; m < num; m += MIXED)
                mix(m, std::min(MIXED, num - m), ld, slots, longest, 0, group, head, out, out_step);
            return;
        }
        for (int i = 0; i < count; i++) {
            const uint8_t *mine = call.ancestors + row * call.ancestors_row_step + nodes[i].node * call.ancestors_step;
            path.clear();
            for (int j = 0; j <= from + nodes[i].node; j++)
                if (mine[j]) path.push_back(length + j);
            score(slots.keys, slots.step, path.size(), [&](int t) { return path[t]; }, &queries[i * group * padded], padded,
                  group, size, scale, &scores[i * group * ld + length], ld);
            for (int g = 0; g < group; g++) soften(&scores[(i * group + g) * ld], length + path.size(), ld);
            for (int g = 0; g < group; g += MIXED)
                mix(i * group + g, std::min(MIXED, group - g), ld, slots, length, path.size(), group, head, out, out_step);
        }
    }

    // The softmax of the first count scores; zeros after them.
    void soften(Acc<T> *s, int count, long ld) {
        using V = Vec<T>;
        std::fill(s + count, s + ld, -INFINITY);
        V top = splat<V>(-INFINITY), total{};
        for (int i = 0; i < count; i += lanes<T>) {
            V v = load(s + i);
            top = v > top ? v : top;
        }
        Acc<T> most = top[0];
        for (int j = 1; j < lanes<T>; j++) most = std::max(most, (Acc<T>)top[j]);
        for (int i = 0; i < ld; i += lanes<T>) {
            V v = i < count ? exponential(load(s + i) - most) : V{};
            total += v;
            store(s + i, v);
        }
        const Acc<T> all = sum(total);
        for (int i = 0; i < count; i += lanes<T>) store(s + i, load(s + i) / all);
    }

    void mix(int m, int num, long ld, Slots<T> slots, int shared, int own, int group, int head, T *out, long out_step) {
        switch (num) {
            case 1: return mix_rows<1>(m, ld, slots, shared, own, group, head, out, out_step);
            case 2: return mix_rows<2>(m, ld, slots, shared, own, group, head, out, out_step);
            case 3: return mix_rows<3>(m, ld, slots, shared, own, group, head, out, out_step);
            default: return mix_rows<4>(m, ld, slots, shared, own, group, head, out, out_step);
        }
    }

    template <int M>
    void mix_rows(int m, long ld, Slots<T> slots, int shared, int own, int group, int head, T *out, long out_step) {
        const int size = model.head_dim;
        for (int e = 0; e < size; e += MIXED * lanes<T>) {
            const int width = std::min(MIXED, (size - e + lanes<T> - 1) / lanes<T>);
            auto run = [&](auto known) {
                constexpr int W = decltype(known)::value;
                Vec<T> acc[M][W] = {};
                const Acc<T> *weights = &scores[m * ld];
                mix_tile<T>(weights, ld, 0, shared, slots.values, slots.step, e, size, acc, [](int s) { return (long)s; });
                if (own)
                    mix_tile<T>(weights, ld, shared, shared + own, slots.values, slots.step, e, size, acc,
                                [&](int s) { return (long)path[s - shared]; });
                for (int j = 0; j < M; j++) {
                    T *y = out + (m + j) / group * out_step + (head * group + (m + j) % group) * size + e;
                    for (int w = 0; w < W; w++)
                        store_piece(y + w * lanes<T>, acc[j][w], std::min(lanes<T>, size - e - w * lanes<T>));
                }
            };
            switch (width) {
                case 1: run(std::integral_constant<int, 1>{}); break;
                case 2: run(std::integral_constant<int, 2>{}); break;
                case 3: run(std::integral_constant<int, 3>{}); break;
                default: run(std::integral_constant<int, 4>{});
            }
        }
    }
};

}  // namespace paceline
