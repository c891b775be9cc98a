// Tokens that a model picks and reads by itself, one after the other, in all rows: a draft.
//
// First the model reads what a row's cache lacks up to its root. Two models may read: a stem, the first layers of the
// target, reads the root and what is drafted, and the model, a head, goes on from its hidden states. The stem's cache has
// the root as its first scratch slot; the model's has it behind what the model had yet to read. kernels/cpu/structs.py has
// the same structure.
#pragma once

#include "step/forward.h"
#include "sampling/logits_processors.h"
#include "sampling/sampling.h"

namespace paceline {

struct Chain {
    int64_t depth;          // tokens of a row
    int64_t vocab;          // of them that may be picked, those with the smallest ids
    int64_t greedy;         // the likeliest, however rows sample
    int64_t most;           // nodes of a row that it has yet to read before the root
    const int64_t *count;   // so many each row has; below 0: it reads nothing
    const int64_t *text;    // [rows, .] whose tokens these are
    int64_t text_step;
    void *states;           // or the states that they are; one more, the root's, is written where there is a stem
    int64_t states_row_step, states_step;
    const Operation *enter; // a norm and a matrix that make these of another model's states; null: none
    const int64_t *length;  // of the text: where the first token comes to stand
    const uint8_t *valid;   // [rows, depth + 1]: the root, and what may be drafted
    int64_t *tokens;        // [rows, depth + 1]: the root is there; what is drafted is written
    const Model *shared_layers; // null: there is none
    const Call *shared_layers_call;  // for one node per row, as the model's own
    void *hidden;           // [rows, depth + 1, hidden] after the stem's layers, where a token is read
    const void *added;      // to them before the head reads them; may be null
    int64_t added_row_step, added_step;
};

// The next token of every row, from processed logits.
template <class T>
void choose_next(const Options &options, const Choices &choices, bool greedy) {
    greedy ? likeliest_of_all<T>(options, choices) : pick_all<T>(options, choices);
}

// call for the tokens of one depth, which are node number *node of each row.
inline Call one_depth(const Call &call, const Chain &chain, int64_t depth, const int64_t *node) {
    Call next = call;
    next.start = *node;
    next.tokens = chain.tokens + depth;
    next.valid = chain.valid + depth;
    next.tokens_step = next.valid_step = chain.depth + 1;
    next.depth = node;
    next.depth_step = 0;
    return next;
}

// The stem's forward of one depth: what the head reads of it, by rows.
template <class T>
const T *read_shared_layers(const Chain &chain, int64_t depth) {
    static std::vector<T> memory;
    const int64_t rows = chain.shared_layers_call->rows, size = chain.shared_layers->hidden, width = chain.depth + 1;
    memory.resize(rows * size);
    Call call = one_depth(*chain.shared_layers_call, chain, depth, &depth);
    void *const hidden = memory.data();
    call.taps = &call.num_layers, call.hidden = &hidden, call.num_taps = 1;
    Forward<T>(*chain.shared_layers, call).run();
    for (int64_t row = 0; row < rows; row++) {
        if (!chain.valid[row * width + depth]) continue;
        T *x = memory.data() + row * size;
        std::memcpy((T *)chain.hidden + (row * width + depth) * size, x, size * sizeof(T));
        if (!chain.added) continue;
        const T *added = (const T *)chain.added + row * chain.added_row_step + depth * chain.added_step;
        for (int64_t h = 0; h < size; h++) x[h] = narrow<T>(widen(x[h]) + widen(added[h]));
    }
    return memory.data();
}

// The states that rows have yet to read, and where the next row's and the next one lie.
template <class T>
struct States {
    T *first;
    int64_t row_step, step;
};

template <class T>
States<T> enter(const Chain &chain, const Call &call) {
    const States<T> given = {(T *)chain.states, chain.states_row_step, chain.states_step};
    if (!chain.enter) return given;
    static std::vector<T> normed, entered;
    const Operation &norms = chain.enter[0], &product = chain.enter[1];
    const int64_t count = call.rows * chain.most;
    normed.resize(count * product.inner), entered.resize(count * product.outer);
    for (int64_t at = 0; at < count; at++)
        norm(norms, given.first + at / chain.most * given.row_step + at % chain.most * given.step,
             normed.data() + at * product.inner);
    Team::of_process().run(call.threads, [&](Walk &walk) {
        linear<T>(product, (const T *)normed.data(), product.inner, count, walk,
                  [&](int m) { return entered.data() + m * product.outer; }, Acc<T>(1));
    });
    return {entered.data(), chain.most * product.outer, product.outer};
}

// Reads every row up to its root. Logits go to call.logits, and to lengths where the rows' caches end then.
template <class T>
void read_root(const Model &model, const Chain &chain, Call call, int64_t *lengths) {
    static std::vector<int64_t> tokens, depth;
    static std::vector<uint8_t> valid, ready;
    const int64_t rows = call.rows, nodes = chain.most + 1, width = chain.depth + 1;
    tokens.assign(rows * nodes, 0), valid.assign(rows * nodes, 0), ready.assign(rows * nodes, 0), depth.resize(nodes);
    for (int64_t node = 0; node < nodes; node++) depth[node] = node;
    const T *root = chain.shared_layers ? read_shared_layers<T>(chain, 0) : nullptr;
    const States<T> states = chain.states ? enter<T>(chain, call) : States<T>{};
    for (int64_t row = 0; row < rows; row++) {
        const int64_t last = chain.valid[row * width] ? std::clamp<int64_t>(chain.count[row], -1, chain.most) : -1;
        lengths[row] = call.length[row] + last + 1;
        for (int64_t node = 0, at = row * nodes; node <= last; node++, at++) {
            const bool state = chain.states && (node < last || root);
            valid[at] = 1, ready[at] = state;
            if (state) continue;
            const int64_t token = node == last ? chain.tokens[row * width]
                                               : chain.text[row * chain.text_step + chain.length[row] - 1 - last + node];
            tokens[at] = std::min(token, model.vocab - 1);  // the text's vocabulary may be padded
        }
        if (root && last >= 0)
            std::memcpy(states.first + row * states.row_step + last * states.step, root + row * model.hidden,
                        model.hidden * sizeof(T));
    }
    call.nodes = nodes, call.start = 0, call.logits_for = LOGITS_LAST, call.depth = depth.data(), call.depth_step = 0;
    call.tokens = tokens.data(), call.valid = valid.data(), call.tokens_step = call.valid_step = nodes;
    if (chain.states) {
        call.ready = ready.data(), call.ready_step = nodes;
        call.resumed = states.first, call.resumed_row_step = states.row_step, call.resumed_step = states.step;
    }
    Forward<T>(model, call).run();
}

// call is for one node per row; what is read of the tree is set here, depth by depth. processors may be null.
template <class T>
void draft_fused(const Model &model, Call call, const Options &options, const Processors *processors,
               const Chain &chain) {
    static std::vector<T> memory;
    static std::vector<Acc<T>> processed;
    static std::vector<int64_t> chosen, position, lengths;
    memory.resize(call.rows * model.vocab);
    for (auto *numbers : {&chosen, &position, &lengths}) numbers->resize(call.rows);
    const int64_t width = chain.depth + 1;
    call.logits = memory.data();
    read_root<T>(model, chain, call, lengths.data());
    call.length = lengths.data();
    Choices choices = {call.rows, 1, chain.vocab, call.threads, memory.data(), model.vocab, 0};
    choices.position = position.data(), choices.position_row_step = 1, choices.out = chosen.data();
    for (int64_t depth = 1; depth < width; depth++) {
        for (int64_t row = 0; row < call.rows; row++) position[row] = chain.length[row] + depth - 1;
        if (processors) {
            processed.resize(call.rows * chain.vocab);
            Choices raw = choices;
            raw.out = processed.data();
            process_all<T>(*processors, {depth - 1, false, chain.tokens + 1, width, 0}, raw);
            Choices given = choices;
            given.logits = processed.data(), given.row_step = chain.vocab;
            choose_next<Acc<T>>(options, given, chain.greedy);
        } else {
            choose_next<T>(options, choices, chain.greedy);
        }
        for (int64_t row = 0; row < call.rows; row++)
            if (chain.valid[row * width + depth]) chain.tokens[row * width + depth] = chosen[row];
        if (depth == chain.depth) return;
        const int64_t beyond = depth - 1;
        Call next = one_depth(call, chain, depth, &beyond);
        if (chain.shared_layers) {
            next.resumed = read_shared_layers<T>(chain, depth), next.resumed_row_step = model.hidden;
            next.ready = next.valid, next.ready_step = next.valid_step;
        }
        Forward<T>(model, next).run();
    }
}

}  // namespace paceline
