// Tokens that a model picks and reads by itself, one after the other, in all rows: a draft.
//
// Two models may read them: a stem, the first layers of the target, and a head that goes on from its hidden states. The
// stem's cache has the root as its first scratch slot, the head's has committed it. models/cpu/layout.py has the same
// structure.
#pragma once

#include "forward.h"
#include "processing.h"
#include "sampling.h"

namespace paceline {

struct Chain {
    int64_t depth;          // tokens of a row
    int64_t vocab;          // of them that may be picked, those with the smallest ids
    int64_t greedy;         // the likeliest, however rows sample
    const void *logits;     // [rows, vocab] after the root
    int64_t logits_step;
    const int64_t *length;  // of the text: where the first token comes to stand
    const uint8_t *valid;   // [rows, depth + 1]: the root, and what may be drafted
    int64_t *tokens;        // [rows, depth + 1]: the root is there; what is drafted is written
    const Model *stem;      // null: there is none
    const Call *stem_call;  // for one node per row, as the model's own
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

// The stem's forward of one depth; afterwards call begins with what the head reads.
template <class T>
void read_by_stem(const Chain &chain, int64_t depth, Call &call) {
    static std::vector<T> memory;
    const int64_t size = chain.stem->hidden;
    memory.resize(call.rows * size);
    Call below = one_depth(*chain.stem_call, chain, depth, &depth);
    void *const hidden = memory.data();
    below.taps = &below.num_layers, below.hidden = &hidden, below.num_taps = 1;
    Forward<T>(*chain.stem, below).run();
    for (int64_t row = 0; row < call.rows; row++) {
        if (!call.valid[row * call.valid_step]) continue;
        T *x = memory.data() + row * size;
        std::memcpy((T *)chain.hidden + (row * (chain.depth + 1) + depth) * size, x, size * sizeof(T));
        if (!chain.added) continue;
        const T *added = (const T *)chain.added + row * chain.added_row_step + depth * chain.added_step;
        for (int64_t h = 0; h < size; h++) x[h] = narrow<T>(widen(x[h]) + widen(added[h]));
    }
    call.ready = call.valid, call.ready_step = call.valid_step;
    call.resumed = memory.data(), call.resumed_row_step = size;
}

// call is for one node per row; what it reads of the tree is set here, depth by depth. processors may be null.
template <class T>
void run_ahead(const Model &model, const Call &call, const Options &options, const Processors *processors,
               const Chain &chain) {
    static std::vector<T> memory;
    static std::vector<Acc<T>> processed;
    static std::vector<int64_t> chosen, position;
    memory.resize(call.rows * model.vocab), chosen.resize(call.rows), position.resize(call.rows);
    const int64_t width = chain.depth + 1;
    Choices choices = {call.rows, 1, chain.vocab, call.threads, chain.logits, chain.logits_step, 0};
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
        next.logits = memory.data();
        if (chain.stem) read_by_stem<T>(chain, depth, next);
        Forward<T>(model, next).run();
        choices.logits = memory.data(), choices.row_step = model.vocab;
    }
}

}  // namespace paceline
