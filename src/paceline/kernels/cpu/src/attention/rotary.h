// Rotary embedding, and the write of keys and values to the slot cache.
#pragma once

#include <algorithm>

#include "elementwise.h"

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

template <class T>
inline KVSlots<T> source_slots(const Call &call, int layer, int row) {
    const long stored = call.row_index ? call.row_index[row] : row;
    const long at = layer * call.source_layer_step + stored * call.source_row_step;
    return {(T *)call.source_keys + at, (T *)call.source_values + at, call.source_slot_step};
}

// How many states a row's source has; a row without any, which nobody reads, sees one.
inline int source_length(const Call &call, int row) {
    const int64_t stored = call.row_index ? call.row_index[row] : row;
    return std::max<int64_t>(call.source_length[stored], 1);
}

// Rotary embedding of x at one position, in the half-split layout; elements from rotary_dim on are copied.
template <class T>
inline void rotate(const T *x, T *y, const Acc<T> *cos, const Acc<T> *sin, int rotary_dim, int size, bool wide) {
    const auto round = [&](Vec<T> v) { return wide ? v : round_vector<T>(v); };
    const int half = rotary_dim / 2;
    for_each_vector<T>(half, [&](int e, auto count) {
        const Vec<T> a = load_partial(x + e, count), b = load_partial(x + e + half, count);
        const auto turned = [&](Vec<T> own, Vec<T> other, int at) {
            const Vec<T> first = own * load_partial<Acc<T>>(cos + at, count);
            const Vec<T> second = other * load_partial<Acc<T>>(sin + at, count);
            store_partial(y + at, round(first) + round(second), count);
        };
        turned(a, -b, e), turned(b, a, e + half);
    });
    if (x != y) std::memcpy(y + rotary_dim, x + rotary_dim, (size - rotary_dim) * sizeof(T));
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
            for_each_vector<T>(size, [&](int e, auto count) {
                store_partial(q + e, load_partial(q + e, count) * Acc<T>(op.factor), count);
            });
    }
    const long slot = std::min(length + call.start + at.node, call.capacity - 1);
    for (int h = 0; h < model.num_kv_heads; h++) {
        auto slots = kv_slots<T>(model, call, layer, at.row, h);
        const T *k = heads + model.key + h * model.key_step;
        rotate(k, slots.keys + slot * slots.step, cos, sin, rotary_dim, size, model.float32_rotary);
        std::memcpy(slots.values + slot * slots.step, heads + model.value + h * model.value_step, size * sizeof(T));
    }
}

}  // namespace paceline
