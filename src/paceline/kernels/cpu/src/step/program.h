// The model as a list of operations, and the arguments of one forward. The field order is an ABI:
// kernels/cpu/structs.py mirrors it. Every field takes eight bytes.
#pragma once

#include <cstdint>

namespace paceline {

enum Kind : int64_t { NORM, LINEAR, LINEAR_ADD, GATE, ACTIVATE, ADD, ROTATE, ATTEND, ATTEND_SOURCE };
enum NormVariant : int64_t { RMS, RMS_LATE, RMS_OFFSET, LAYER, COPY };
enum WeightFormat : int64_t { FLOATS, INT8, INT4, PACKED, PACKED_INT8, PACKED_INT4 };
enum Activation : int64_t { SILU, GELU, GELU_TANH, RELU };
enum Buffer : int64_t { STREAM, NORMED, HEADS, ATTENDED, INNER, GATED, ATTENTION_OUT, PAIR, NUM_BUFFERS };
enum LogitsFor : int64_t { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

// One operation on every row of a buffer. variant is a NormVariant, an Activation or a WeightFormat.
struct Operation {
    int64_t kind, variant;
    int64_t source, target;  // buffers
    int64_t inner, outer;    // inputs and outputs per row, or per head; outer of a norm: offset of the first output
    int64_t count, offset;   // heads of a norm; offset of the first input in a row, of norms and additions
    double eps, factor;      // factor of what is added, of a norm's output, or of a source's scores; 1: none
    const void *weight, *bias, *scales;  // of quantized weights: count bytes from row to row
};

struct Model {
    int64_t hidden, vocab, tokens, num_heads, num_kv_heads, head_dim, max_positions;
    int64_t query, query_step, key, key_step, value,
        value_step;          // offset of the first head in a row of HEADS, and stride
    int64_t float32_rotary;  // rotates in float32, without rounding in between
    int64_t panel_rows;      // of the embeddings; 0 if they are not packed
    int64_t input;           // buffer that the first layer reads: STREAM or PAIR
    int64_t width[NUM_BUFFERS];
    double scale;             // of the attention scores
    double embedding_factor;  // 1: none
    double divisor;           // of the logits; 1: none
    const void *embedding, *position;
    const void *relative;    // [buckets, num_heads] added to the scores; null: nothing
    const int64_t *buckets;  // of each distance below num_distances; further ones are in the last one's
    int64_t num_distances;
    const Operation *operations;
    const int64_t *layers;  // index of each layer's first operation, and the end
    Operation norm, head;
};

// How a head over pairs reads a token and a feature: the token's embedding, of the model's width, and the feature lie at
// these offsets of PAIR, and the operations make the first layer's input of them. The next token's feature are the first
// elements of a buffer: STREAM or NORMED, before or after the model's norm, or PAIR.
struct PairInput {
    const Operation *operations;
    int64_t num_operations;
    int64_t embedding, feature;  // embedding of -1: the token is not read
    int64_t feature_size;
    int64_t zero_first;  // the embedding of position 0 is zero
    int64_t output, output_size;
};

// One depth of a draft by a head that has weights of its own for each, and no layers: its embedding and LM head, and the
// operations between them.
struct DepthModel {
    Model model;
    PairInput pair;
};

// How a head drafts blocks: the keys and values of all layers that it makes of the target's states, the slots of a block,
// the first of which is the root, and what is added to the logits of a slot by the token before it.
struct BlockInput {
    int64_t slots, first_slot;  // first_slot predicts the first draft token
    Operation product, norm, keys_values;
    const Operation *key_norms;  // of each layer; null: none
    const void *mask;            // what slots after the first read, of the model's width
    const void *before;          // [target's vocabulary, after.inner]; null: nothing is added
    Operation after;             // added to the logits
    Operation confidence;        // of the slot's normed state and then, if there is room, what is before; no weight: none
};

struct Call {
    int64_t rows, nodes, start, chain, threads, logits_for;
    const int64_t *tokens, *depth;
    const uint8_t *valid, *ancestors;
    int64_t tokens_step, depth_step, valid_step, ancestors_row_step, ancestors_step;
    const int64_t *length, *row_index;  // row_index may be null: row b is stored in row b
    void *keys, *values;
    int64_t layer_step, row_step, slot_step, capacity;
    const void *source_keys, *source_values;  // of an encoder's states; null: no encoder
    int64_t source_layer_step, source_row_step, source_slot_step;
    const int64_t *source_length;
    const void *cos, *sin;  // [table, rotary_dim]
    int64_t table, rotary_dim;
    const int64_t *layers;
    int64_t num_layers;
    const int64_t *taps;
    void *const *hidden;  // [rows, nodes, hidden] each
    int64_t num_taps;
    void *logits;          // [rows, nodes or 1, vocab]
    const uint8_t *ready;  // nodes that start at resumed_layer from given hidden states; null: none
    int64_t ready_step;
    const void *resumed;
    int64_t resumed_row_step, resumed_step, resumed_layer;
    const PairInput *pair;  // every node has a token, and its feature in resumed; null: no pairs
    // Of nodes with logits, in the rows of these: the features of the tokens after them [., output_size], or without pairs
    // what the LM head reads [., hidden]. May be null.
    void *outputs;
    const uint8_t *wanted;  // nodes that get logits, of those that logits_for says; the rows of others are not cleared.
    int64_t wanted_step;    // null: all of them
    int64_t last_states;    // where none gets logits: nodes of a row, its last ones, whose taps after the last layer are read;
                            // 0: all of them
};

}  // namespace paceline
