// Fused drafting: a model drafts a chain for all rows in one call, sampling each token and reading it before the next.
//
// First the model reads each row's pending inputs up to its root. With shared layers, the first layers of the target
// read the root and each draft token, and the draft head continues from their hidden states. In their cache the root is
// the first scratch slot; in the draft head's cache it follows the pending inputs. A head over pairs reads its pending
// features each with the token after it, the root last, then each draft token with what came out before it. So does a
// head without layers, which may be another one at each depth. A block is read in one forward (block_drafting.h).
#pragma once

#include "sampling/logits_processors.h"
#include "sampling/sampling.h"
#include "step/block_drafting.h"
#include "step/early_stop.h"
#include "step/forward.h"
#include "step/fused_draft.h"

namespace paceline {

// Samples the next token of every row that goes on, from processed logits; false if none does. With odds [rows] chains
// end by these, not by the logits.
template <class T>
bool sample_next(const SamplingOptions &options, const LogitsBatch &choices, const FusedDraft &draft, int64_t depth,
                 const float *odds, std::vector<float> &chance) {
    if (draft.early_stop.notes)
        end_chains<T>(draft.early_stop, choices, odds, depth - 1, draft.depth, draft.valid, chance);
    bool any = false;
    for (int64_t row = 0; row < choices.rows; row++) any |= draft.valid[row * (draft.depth + 1) + depth];
    if (any) draft.greedy ? argmax_all<T>(choices) : sample_all<T>(options, choices);
    return any;
}

// The call for the tokens of one depth, which are node *node of each row.
inline Call call_at_depth(const Call &call, const FusedDraft &draft, int64_t depth, const int64_t *node) {
    Call next = call;
    next.start = *node;
    next.tokens = draft.tokens + depth;
    next.valid = draft.valid + depth;
    next.tokens_step = next.valid_step = draft.depth + 1;
    next.depth = node;
    next.depth_step = 0;
    return next;
}

// The forward of the shared layers at one depth: the draft head's input, by rows.
template <class T>
const T *read_shared_layers(StepMemory<T> &memory, const FusedDraft &draft, int64_t depth) {
    const int64_t rows = draft.shared_layers_call->rows, size = draft.shared_layers->hidden, width = draft.depth + 1;
    memory.shared.resize(rows * size);
    Call call = call_at_depth(*draft.shared_layers_call, draft, depth, &depth);
    void *const hidden = memory.shared.data();
    call.taps = &call.num_layers, call.hidden = &hidden, call.num_taps = 1;
    Forward<T>(memory, *draft.shared_layers, call).run();
    for (int64_t row = 0; row < rows; row++) {
        if (!draft.valid[row * width + depth]) continue;
        T *x = memory.shared.data() + row * size;
        std::memcpy((T *)draft.hidden + (row * width + depth) * size, x, size * sizeof(T));
        if (!draft.added) continue;
        const T *added = (const T *)draft.added + row * draft.added_row_step + depth * draft.added_step;
        for (int64_t h = 0; h < size; h++) x[h] = narrow<T>(widen(x[h]) + widen(added[h]));
    }
    return memory.shared.data();
}

// The pending hidden states, with strides per row and state.
template <class T>
struct States {
    T *first;
    int64_t row_step, step;
};

template <class T>
States<T> project_inputs(StepMemory<T> &memory, const FusedDraft &draft, const Call &call) {
    const States<T> given = {(T *)draft.states, draft.states_row_step, draft.states_step};
    if (!draft.input_projection) return given;
    std::vector<T> &normed = memory.normed, &projected = memory.projected;
    const Operation &norms = draft.input_projection[0], &product = draft.input_projection[1];
    const int64_t count = call.rows * draft.max_count;
    normed.resize(count * product.inner), projected.resize(count * product.outer);
    for (int64_t at = 0; at < count; at++)
        norm(norms, given.first + at / draft.max_count * given.row_step + at % draft.max_count * given.step,
             normed.data() + at * product.inner);
    ThreadPool::instance().run(call.threads, [&](Worker &worker) {
        linear<T>(product, normed.data(), product.inner, count, worker, {projected.data(), product.outer, nullptr},
                  Acc<T>(1));
    });
    return {projected.data(), draft.max_count * product.outer, product.outer};
}

// Reads the pending inputs and the root of every row. Writes logits to call.logits, and the new cache lengths to
// lengths.
template <class T>
void read_pending(StepMemory<T> &memory, const Model &model, const FusedDraft &draft, Call call, int64_t *lengths) {
    auto &tokens = memory.tokens, &depth = memory.depth;
    auto &valid = memory.valid, &ready = memory.ready;
    const bool pairs = call.pair;
    const int64_t rows = call.rows, nodes = draft.max_count + !pairs, width = draft.depth + 1;
    const int64_t known = pairs || draft.target_ids ? model.tokens : model.vocab;  // the sequence's may be padded
    tokens.assign(rows * nodes, 0), valid.assign(rows * nodes, 0), ready.assign(rows * nodes, 0), depth.resize(nodes);
    for (int64_t node = 0; node < nodes; node++) depth[node] = node;
    const T *root = draft.shared_layers ? read_shared_layers<T>(memory, draft, 0) : nullptr;
    const States<T> states = draft.states ? project_inputs<T>(memory, draft, call) : States<T>{};
    for (int64_t row = 0; row < rows; row++) {
        const int64_t last = draft.valid[row * width] ? std::clamp<int64_t>(draft.count[row] - pairs, -1, nodes - 1) : -1;
        lengths[row] = call.length[row] + last + 1;
        if (pairs && last < 0) std::memset(draft.valid + row * width + 1, 0, draft.depth);  // nothing to continue from
        for (int64_t node = 0, at = row * nodes; node <= last; node++, at++) {
            const bool state = draft.states && !pairs && (node < last || root);
            valid[at] = 1, ready[at] = state;
            if (state) continue;
            const int64_t token = node == last
                                      ? draft.tokens[row * width]
                                      : draft.sequence[row * draft.sequence_step + draft.length[row] - 1 - last + node];
            tokens[at] = std::min(token, known - 1);
        }
        if (root && last >= 0)
            std::memcpy(states.first + row * states.row_step + last * states.step, root + row * model.hidden,
                        model.hidden * sizeof(T));
    }
    call.nodes = nodes, call.start = 0, call.logits_for = LOGITS_LAST, call.depth = depth.data(), call.depth_step = 0;
    call.tokens = tokens.data(), call.valid = valid.data(), call.tokens_step = call.valid_step = nodes;
    if (draft.states) {
        if (!pairs) call.ready = ready.data(), call.ready_step = nodes;
        call.resumed = states.first, call.resumed_row_step = states.row_step, call.resumed_step = states.step;
    }
    Forward<T>(memory, model, call).run();
}

// The logits of the drafted ids: of each row's own, or at the target's ids and -inf elsewhere.
template <class T>
void map_logits(StepMemory<T> &memory, const Model &model, const FusedDraft &draft, LogitsBatch &choices) {
    if (!draft.target_ids) return;
    const T *logits = (const T *)choices.logits;
    for (int64_t row = 0; row < choices.rows; row++)
        for (int64_t i = 0; i < model.vocab; i++) {
            const int64_t id = draft.target_ids[i];
            if (id >= 0 && id < draft.vocab) memory.mapped[row * draft.vocab + id] = logits[row * choices.row_step + i];
        }
    choices.logits = memory.mapped.data(), choices.row_step = draft.vocab;
}

// call is for one node per row; its tree is set here, depth by depth. processors may be null.
template <class T>
void draft_fused(StepMemory<T> &memory, const Model &model, Call call, const SamplingOptions &options,
                 const LogitsProcessors *processors, const FusedDraft &draft) {
    auto &processed = memory.processed;
    auto &chosen = memory.chosen, &position = memory.position, &lengths = memory.lengths;
    const int64_t each = draft.block ? draft.block->slots : 1;  // logits of a row at once
    memory.logits.resize(call.rows * each * model.vocab);
    for (auto *to_uniforms : {&chosen, &position, &lengths}) to_uniforms->resize(call.rows);
    const int64_t width = draft.depth + 1;
    call.logits = memory.logits.data();
    if (call.pair) {
        int64_t most = call.pair->output_size;
        for (int64_t depth = 0; draft.depth_models && depth < draft.depth; depth++)
            most = std::max(most, draft.depth_models[depth].pair.output_size);
        memory.outputs.resize(call.rows * most), call.outputs = memory.outputs.data();
    }
    if (draft.target_ids) memory.mapped.assign(call.rows * draft.vocab, narrow<T>(NEG_INF<Acc<T>>));
    if (draft.block && draft.block->confidence.weight)
        memory.outputs.resize(call.rows * each * model.hidden), call.outputs = memory.outputs.data();
    if (draft.block)
        read_block<T>(memory, model, draft, call, lengths.data());
    else
        read_pending<T>(memory, model, draft, call, lengths.data());
    call.length = lengths.data();
    LogitsBatch choices = {call.rows, 1, draft.vocab, call.threads};
    choices.position = position.data(), choices.position_row_step = 1, choices.out = chosen.data();
    choices.wanted_row_step = width;
    bool any;
    for (int64_t depth = 1; depth < width; depth++) {
        for (int64_t row = 0; row < call.rows; row++) position[row] = draft.length[row] + depth - 1;
        choices.wanted = draft.valid + depth;
        const int64_t slot = draft.block ? draft.block->first_slot + depth - 1 : 0;
        choices.logits = memory.logits.data() + slot * model.vocab, choices.row_step = each * model.vocab;
        const float *odds = draft.block ? follow_token<T>(memory, model, draft, call, depth) : nullptr;
        map_logits<T>(memory, model, draft, choices);
        if (processors) {
            processed.resize(call.rows * draft.vocab);
            LogitsBatch raw = choices;
            raw.out = processed.data(), raw.wanted = nullptr;
            process_all<T>(*processors, {depth - 1, false, draft.tokens + 1, width, 0}, raw);
            LogitsBatch given = choices;
            given.logits = processed.data(), given.row_step = draft.vocab;
            any = sample_next<Acc<T>>(options, given, draft, depth, odds, memory.chance);
        } else {
            any = sample_next<T>(options, choices, draft, depth, odds, memory.chance);
        }
        if (!any) return;
        for (int64_t row = 0; row < call.rows; row++)
            if (draft.valid[row * width + depth]) draft.tokens[row * width + depth] = chosen[row];
        if (depth == draft.depth) return;
        if (draft.block) continue;
        const int64_t beyond = depth - 1;
        Call next = call_at_depth(call, draft, depth, &beyond);
        if (draft.shared_layers) {
            next.resumed = read_shared_layers<T>(memory, draft, depth), next.resumed_row_step = model.hidden;
            next.ready = next.valid, next.ready_step = next.valid_step;
        }
        if (call.pair) {
            next.resumed = call.outputs, next.resumed_row_step = call.pair->output_size;  // read before they are written
            if (draft.depth_models) next.pair = call.pair = &draft.depth_models[depth].pair;
        }
        Forward<T>(memory, draft.depth_models ? draft.depth_models[depth].model : model, next).run();
    }
}

}  // namespace paceline
