// Attention over a slot cache for the nodes of a token tree: rotary embedding, the write to the cache, softmax(QK^T)V.
//
// Softmax weights are ordered by position: committed slots, then the node's ancestors by depth. Sums run in that order,
// so a node's output is bitwise the same whether it is a root, part of a chain or on a branch. This is the generic
// version, for every precision and CPU; attention_bf16.h is the faster one for AVX512-BF16.
#pragma once

#include <algorithm>
#include <vector>

#include "elementwise.h"
#include "attention/scores.h"

namespace paceline {

// A valid node; nodes of one row are adjacent.
struct Node {
    int row, node;
};

template <class T>
struct KVSlots {
    T *keys, *values;  // of one layer, row and key-value head
    long step;
};

template <class T>
inline KVSlots<T> kv_slots(const Model &model, const Call &call, int layer, int row, int head) {
    const long stored = call.row_index ? call.row_index[row] : row;
    const long at = layer * call.layer_step + stored * call.row_step + head * model.head_dim;
    return {(T *)call.keys + at, (T *)call.values + at, call.slot_step};
}

// Rotary embedding of x at one position, in the half-split layout; elements from rotary_dim on are copied.
template <class T>
inline void rotate(const T *x, T *y, const Acc<T> *cos, const Acc<T> *sin, int rotary_dim, int size, bool wide) {
    auto round = [&](Acc<T> v) { return wide ? v : rounded<T>(v); };
    const int half = rotary_dim / 2;
    for (int e = 0; e < half; e++) {
        const Acc<T> a = widen(x[e]), b = widen(x[e + half]);
        y[e] = narrow<T>(round(a * cos[e]) + round(-b * sin[e]));
        y[e + half] = narrow<T>(round(b * cos[e + half]) + round(a * sin[e + half]));
    }
    for (int e = rotary_dim; e < size; e++) y[e] = x[e];
}

// Rotates a node's queries in place and its keys while writing them to the cache; values are written unchanged.
template <class T>
inline void rotate_and_store(const Model &model, const Call &call, const Operation &op, int layer, Node at, T *heads) {
    const int size = model.head_dim, rotary_dim = op.inner;
    const int64_t length = call.length[at.row];
    const int64_t position = std::min(length + call.depth[at.row * call.depth_step + at.node], model.max_positions - 1);
    const long angle = std::min(position, call.table - 1) * call.rotary_dim;
    const Acc<T> *cos = (const Acc<T> *)call.cos + angle, *sin = (const Acc<T> *)call.sin + angle;
    for (int h = 0; h < model.num_heads; h++) {
        T *q = heads + model.query + h * model.query_step;
        if (rotary_dim) rotate(q, q, cos, sin, rotary_dim, size, model.float32_rotary);
        if (op.factor != 1)
            for (int e = 0; e < size; e++) q[e] = narrow<T>(widen(q[e]) * Acc<T>(op.factor));
    }
    const long slot = std::min(length + call.start + at.node, call.capacity - 1);
    for (int h = 0; h < model.num_kv_heads; h++) {
        auto slots = kv_slots<T>(model, call, layer, at.row, h);
        const T *k = heads + model.key + h * model.key_step;
        rotate(k, slots.keys + slot * slots.step, cos, sin, rotary_dim, size, model.float32_rotary);
        std::memcpy(slots.values + slot * slots.step, heads + model.value + h * model.value_step, size * sizeof(T));
    }
}

constexpr int PREFETCH_SLOTS = 64;  // prefetch distance for values

// acc[m] += weights[m][s] * value of slot at(s), for s from begin to end.
template <class T, int M, int W, class At>
inline void accumulate_tile(const Acc<T> *weights, long ldw, int begin, int end, const T *values, long step, int e,
                            int size, Vec<T> (&acc)[M][W], At &&at) {
    for (int s = begin; s < end; s++) {
        const T *row = values + at(s) * step + e;
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) prefetch(row + PREFETCH_SLOTS * step + w * lanes<T>);
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) {
            Vec<T> v = load_partial(row + w * lanes<T>, std::min(lanes<T>, size - e - w * lanes<T>));
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) acc[m][w] += v * weights[m * ldw + s];
        }
    }
}

constexpr int VALUE_TILE = 4;         // queries, and vectors of a head, in one tile of the weighted sum of values
constexpr int QUERIES_PER_TASK = 12;  // of one head, per task

template <class T>
class Attention {
   public:
    // Nodes per task.
    static int nodes_per_task(const Model &model, int, int) {
        return std::max<int>(1, QUERIES_PER_TASK * model.num_kv_heads / model.num_heads);
    }

    Attention(const Model &model, const Call &call) : model(model), call(call) {}

    // Attention of count nodes of one row, for key-value heads begin to end (exclusive).
    void operator()(int layer, int begin, int end, const Node *nodes, int count, const T *heads, long heads_step,
                    T *out, long out_step) {
        for (int head = begin; head < end; head++) attend(layer, head, nodes, count, heads, heads_step, out, out_step);
    }

   private:
    const Model &model;
    const Call &call;
    std::vector<Acc<T>> scores;
    std::vector<T> queries;
    std::vector<int> path;

    void attend(int layer, int head, const Node *nodes, int count, const T *heads, long heads_step, T *out,
                long out_step) {
        const int size = model.head_dim, group = model.num_heads / model.num_kv_heads, num = count * group;
        const int row = nodes[0].row, length = call.length[row], from = call.start;
        const auto slots = kv_slots<T>(model, call, layer, row, head);
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
        score(slots.keys, slots.step, shared, Contiguous{}, queries.data(), padded, num, size, scale, scores.data(),
              ld);
        if (call.chain) {
            for (int i = 0; i < count; i++)
                for (int g = 0; g < group; g++)
                    softmax(&scores[(i * group + g) * ld], length + from + nodes[i].node + 1, ld);
            for (int m = 0; m < num; m += VALUE_TILE)
                accumulate(m, std::min(VALUE_TILE, num - m), ld, slots, longest, 0, group, head, out, out_step);
            return;
        }
        for (int i = 0; i < count; i++) {
            const uint8_t *mine = call.ancestors + row * call.ancestors_row_step + nodes[i].node * call.ancestors_step;
            path.clear();
            for (int j = 0; j <= from + nodes[i].node; j++)
                if (mine[j]) path.push_back(length + j);
            score(
                slots.keys, slots.step, path.size(), [&](int t) { return path[t]; }, &queries[i * group * padded],
                padded, group, size, scale, &scores[i * group * ld + length], ld);
            for (int g = 0; g < group; g++) softmax(&scores[(i * group + g) * ld], length + path.size(), ld);
            for (int g = 0; g < group; g += VALUE_TILE)
                accumulate(i * group + g, std::min(VALUE_TILE, group - g), ld, slots, length, path.size(), group, head,
                           out, out_step);
        }
    }

    // Softmax of the first count scores; zeros after them.
    void softmax(Acc<T> *s, int count, long ld) {
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

    void accumulate(int m, int num, long ld, KVSlots<T> slots, int shared, int own, int group, int head, T *out,
                    long out_step) {
        switch (num) {
            case 1: return accumulate_rows<1>(m, ld, slots, shared, own, group, head, out, out_step);
            case 2: return accumulate_rows<2>(m, ld, slots, shared, own, group, head, out, out_step);
            case 3: return accumulate_rows<3>(m, ld, slots, shared, own, group, head, out, out_step);
            default: return accumulate_rows<4>(m, ld, slots, shared, own, group, head, out, out_step);
        }
    }

    template <int M>
    void accumulate_rows(int m, long ld, KVSlots<T> slots, int shared, int own, int group, int head, T *out,
                         long out_step) {
        const int size = model.head_dim;
        for (int e = 0; e < size; e += VALUE_TILE * lanes<T>) {
            const int width = std::min(VALUE_TILE, (size - e + lanes<T> - 1) / lanes<T>);
            auto run = [&](auto constant_width) {
                constexpr int W = decltype(constant_width)::value;
                Vec<T> acc[M][W] = {};
                const Acc<T> *weights = &scores[m * ld];
                accumulate_tile<T>(weights, ld, 0, shared, slots.values, slots.step, e, size, acc,
                                   [](int s) { return (long)s; });
                if (own)
                    accumulate_tile<T>(weights, ld, shared, shared + own, slots.values, slots.step, e, size, acc,
                                       [&](int s) { return (long)path[s - shared]; });
                for (int j = 0; j < M; j++) {
                    T *y = out + (m + j) / group * out_step + (head * group + (m + j) % group) * size + e;
                    for (int w = 0; w < W; w++)
                        store_partial(y + w * lanes<T>, acc[j][w], std::min(lanes<T>, size - e - w * lanes<T>));
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
