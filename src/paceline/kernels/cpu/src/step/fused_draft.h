// The arguments of fused drafting. kernels/cpu/structs.py mirrors the struct.
#pragma once

#include "step/early_stop.h"
#include "step/program.h"

namespace paceline {

struct FusedDraft {
    int64_t depth;            // draft tokens of a row
    int64_t vocab;            // only ids below it are drafted
    int64_t greedy;           // argmax, whatever the rows' sampling options
    int64_t max_count;        // most pending inputs of a row before the root; of pairs with it
    const int64_t *count;     // per row; negative, or 0 of pairs: it reads nothing, and of pairs drafts nothing
    const int64_t *sequence;  // [rows, .] the tokens of each row
    int64_t sequence_step;
    void *states;  // hidden states instead of tokens; with shared layers the root's is written after them
    int64_t states_row_step, states_step;
    const Operation *input_projection;  // norm and linear layer for states of another model; null: none
    const int64_t *length;              // of the sequence: the position of the first draft token
    uint8_t *valid;  // [rows, depth + 1]: the root, and which nodes to draft; those after an early end are cleared
    int64_t *tokens;                    // [rows, depth + 1]: the root is set; draft tokens are written
    const Model *shared_layers;         // null: none
    const Call *shared_layers_call;     // for one node per row, as the model's own
    void *hidden;       // [rows, depth + 1, hidden] after the shared layers, written for tokens that are read
    const void *added;  // added to it before the draft head reads it; may be null
    int64_t added_row_step, added_step;
    EarlyStop early_stop;
    const int64_t *target_ids;  // of the model's logits, -1: none; null: the same ids
    const DepthModel *depth_models;  // [depth] the root's first, which is the model and its pairs; null: one for all depths
    const BlockInput *block;         // all depths are read at once, after the states; null: one after the other
};

}  // namespace paceline
