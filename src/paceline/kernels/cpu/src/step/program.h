// What the other side hands over: a model as a list of operations, and one forward of it. The field order is an ABI:
// program.py mirrors it. Every field takes eight bytes.
#pragma once

#include <cstdint>

namespace paceline {

enum Kind : int64_t { NORM, LINEAR, LINEAR_ADD, GATE, ACTIVATE, ADD, TURN, ATTEND };
enum NormVariant : int64_t { RMS, RMS_LATE, RMS_OFFSET, LAYER };
enum Weights : int64_t { FLOATS, INT8, INT4, PANELS, PANELS_INT8, PANELS_INT4 };
enum Activation : int64_t { SILU, GELU, GELU_TANH, RELU };
enum Buffer : int64_t { STREAM, NORMED, HEADS, ATTENDED, INNER, GATED, ASIDE, NUM_BUFFERS };
enum LogitsFor : int64_t { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

// One operation on every row of a buffer. The variant is one of a norm, of an activation or of a matrix's weights.
struct Operation {
    int64_t kind, variant;
    int64_t source, target;  // buffers
    int64_t inner, outer;    // numbers read and written per row, or per head
    int64_t count, offset;   // heads of a norm, and where in the row the first begins
    double eps, factor;
    const void *weight, *bias, *scales;  // of integers: count bytes from row to row
};

struct Model {
    int64_t hidden, vocab, num_heads, num_kv_heads, head_dim, max_positions;
    int64_t query, query_step, key, key_step, value, value_step;  // where heads begin in a row of HEADS, and how far apart
    int64_t wide_table;                                           // turns without rounding in between
    int64_t panel_rows;                                           // of the embeddings; 0 where they lie row by row
    int64_t width[NUM_BUFFERS];
    double scale;             // of the scores
    double embedding_factor;  // 1: none
    double divisor;           // of the logits; 1: none
    const void *embedding, *position;
    const Operation *operations;
    const int64_t *layers;  // where each layer's operations begin, and the last one's end
    Operation norm, head;
};

struct Call {
    int64_t rows, nodes, start, chain, threads, logits_for;
    const int64_t *tokens, *depth;
    const uint8_t *valid, *ancestors;
    int64_t tokens_step, depth_step, valid_step, ancestors_row_step, ancestors_step;
    const int64_t *length, *row_index;  // row_index may be null: row b lies in row b
    void *keys, *values;
    int64_t layer_step, row_step, slot_step, capacity;
    const void *cos, *sin;  // [table, turned]
    int64_t table, turned;
    const int64_t *layers;
    int64_t num_layers;
    const int64_t *taps;
    void *const *hidden;  // [rows, nodes, hidden] each
    int64_t num_taps;
    void *logits;  // [rows, nodes or 1, vocab]
    const uint8_t *ready;  // nodes that begin after the layers before resumed_layer, with hidden states; null: none
    int64_t ready_step;
    const void *resumed;
    int64_t resumed_row_step, resumed_step, resumed_layer;
};

}  // namespace paceline
