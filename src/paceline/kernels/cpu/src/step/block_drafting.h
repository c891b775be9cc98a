// Fused drafting by a block head (draft_heads/block.py): the keys and values of the pending states, then one forward of
// the slots of a block, which gives the logits of all depths. A Markov head adds to them depth by depth.
#pragma once

#include "gemm/linear.h"
#include "step/forward.h"
#include "step/fused_draft.h"

namespace paceline {

// Writes keys and values of the pending states behind those of the cache, and its new lengths to lengths.
template <class T>
void read_states(StepMemory<T> &memory, const Model &model, const FusedDraft &draft, const Call &call,
                 int64_t *lengths) {
    const BlockInput &block = *draft.block;
    const int64_t inner = block.product.inner, size = block.product.outer, width = block.keys_values.outer;
    std::vector<Node> nodes;
    for (int row = 0; row < call.rows; row++) {
        lengths[row] = call.length[row] + draft.count[row];
        for (int i = 0; i < draft.count[row]; i++) nodes.push_back({row, i});
    }
    const int count = nodes.size();
    if (!count) return;
    auto &states = memory.queued, &projected = memory.projected, &keys_values = memory.keys_values;
    states.resize(count * inner), projected.resize(count * size), keys_values.resize(count * width);
    T *const queued = states.data(), *const features = projected.data(), *const made = keys_values.data();
    const auto store = [&](int i) {
        const Node at = nodes[i];
        const int64_t slot = call.length[at.row] + at.node, position = std::min(slot, model.max_positions - 1);
        const int64_t angle = std::min(position, call.table - 1) * call.rotary_dim;
        T *key = made + i * width;
        for (int layer = 0; layer < call.num_layers; layer++, key += model.num_kv_heads * model.head_dim)
            for (int head = 0; head < model.num_kv_heads; head++, key += model.head_dim) {
                auto slots = kv_slots<T>(model, call, call.layers[layer], at.row, head);
                if (block.key_norms) norm(block.key_norms[layer], key, key);
                rotate(key, slots.keys + slot * slots.step, (const Acc<T> *)call.cos + angle,
                       (const Acc<T> *)call.sin + angle, call.rotary_dim, model.head_dim, model.float32_rotary);
                std::memcpy(slots.values + slot * slots.step, key + model.num_kv_heads * model.head_dim,
                            model.head_dim * sizeof(T));
            }
    };
    ThreadPool::instance().run(call.threads, [&](Worker &worker) {
        const auto each = [&](auto &&with) {
            worker.parallel_for(count, ROW_CHUNK, [&](int begin, int end) {
                for (int i = begin; i < end; i++) with(i);
            });
        };
        each([&](int i) {
            const int64_t from = nodes[i].row * draft.states_row_step + nodes[i].node * draft.states_step;
            std::memcpy(queued + i * inner, (const T *)draft.states + from, inner * sizeof(T));
        });
        linear<T>(block.product, queued, inner, count, worker, {features, size, nullptr}, Acc<T>(1));
        each([&](int i) { norm(block.norm, features + i * size, features + i * size); });
        linear<T>(block.keys_values, features, size, count, worker, {made, width, nullptr}, Acc<T>(1));
        each(store);
    });
}

// Reads the pending states of every row and a block after them. Writes the logits of the slots that draft [rows, slots,
// vocab] to call.logits, what the LM head reads of them to call.outputs, the new cache lengths to lengths, and what
// call.taps ask for.
template <class T>
void read_block(StepMemory<T> &memory, const Model &model, const FusedDraft &draft, Call call, int64_t *lengths) {
    const BlockInput &block = *draft.block;
    const int64_t slots = block.slots, width = draft.depth + 1;
    read_states<T>(memory, model, draft, call, lengths);
    auto &tokens = memory.tokens, &depth = memory.depth;
    auto &valid = memory.valid, &ready = memory.ready, &wanted = memory.wanted;
    tokens.assign(call.rows * slots, 0), depth.resize(slots);
    valid.assign(call.rows * slots, 0), ready.assign(call.rows * slots, 1), wanted.assign(call.rows * slots, 0);
    for (int64_t slot = 0; slot < slots; slot++) depth[slot] = slot;
    for (int64_t row = 0, first = 0; row < call.rows; row++, first += slots) {
        const uint8_t *drafts = draft.valid + row * width + 1;
        if (!drafts[0]) continue;
        std::fill_n(valid.data() + first, slots, 1), ready[first] = 0;
        std::copy_n(drafts, draft.depth, wanted.data() + first + block.first_slot);
        tokens[first] = std::min(draft.tokens[row * width], model.tokens - 1);
    }
    const std::vector<uint8_t> seen(slots, 1);  // every slot sees every other
    call.nodes = slots, call.start = 0, call.chain = 0, call.logits_for = LOGITS_ALL, call.length = lengths;
    call.tokens = tokens.data(), call.valid = valid.data(), call.tokens_step = call.valid_step = slots;
    call.depth = depth.data(), call.depth_step = 0;
    call.ancestors = seen.data(), call.ancestors_row_step = call.ancestors_step = 0;
    call.ready = ready.data(), call.ready_step = slots, call.wanted = wanted.data(), call.wanted_step = slots;
    call.resumed = block.mask, call.resumed_row_step = call.resumed_step = call.resumed_layer = 0;
    Forward<T>(memory, model, call).run();
}

// Adds to the logits of the tokens at this depth, from 1, what follows from the tokens before them. The log odds [rows]
// that the head gives their acceptance; null: it gives none.
template <class T>
const float *follow_token(StepMemory<T> &memory, const Model &model, const FusedDraft &draft, const Call &call,
                          int64_t depth) {
    const BlockInput &block = *draft.block;
    if (!block.before && !block.confidence.weight) return nullptr;
    const int64_t rank = block.before ? block.after.inner : 0, size = model.hidden, width = draft.depth + 1;
    const T *weight = (const T *)block.confidence.weight;
    std::vector<long> places;  // rows of logits
    memory.projected.resize(call.rows * rank), memory.odds.resize(call.rows);
    for (int64_t row = 0; row < call.rows; row++) {
        if (!draft.valid[row * width + depth]) continue;
        T *before = memory.projected.data() + places.size() * rank;
        const int64_t token = draft.tokens[row * width + depth - 1];
        if (rank) std::memcpy(before, (const T *)block.before + token * rank, rank * sizeof(T));
        places.push_back(row * block.slots + block.first_slot + depth - 1);
        if (!weight) continue;
        const T *state = (const T *)call.outputs + places.back() * size;
        Acc<T> odds = widen(*(const T *)block.confidence.bias);
        for (int64_t at = 0; at < block.confidence.inner; at++)
            odds += widen(weight[at]) * widen(at < size ? state[at] : before[at - size]);
        memory.odds[row] = widen(narrow<T>(odds));
    }
    if (rank && !places.empty())
        ThreadPool::instance().run(call.threads, [&](Worker &worker) {
            linear<T>(block.after, memory.projected.data(), rank, places.size(), worker,
                      {(T *)call.logits, model.vocab, places.data()}, Acc<T>(1));
        });
    return weight ? memory.odds.data() : nullptr;
}

}  // namespace paceline
