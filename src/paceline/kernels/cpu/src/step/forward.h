// One forward of a decoder over a tree per row: embeddings, the operations of its layers, the head.
//
// Nodes that are not valid take no part: the valid ones stand side by side, as if the others were not there. Where some
// have passed the first layers before, the others go through these first, alone. Threads go through the operations
// together and share out rows, columns or heads of each (thread_pool.h).
#pragma once

#include "step/program.h"

#include "attention/attention.h"
#include "gemm/linear.h"
#include "attention/attention_bf16.h"

namespace paceline {

constexpr int CHUNK = 512;         // nodes whose buffers exist at once
constexpr int NUMBERS = 256;       // of a row, the same for activations
constexpr int ROWS = 4;            // that a thread takes at once of what is little work

template <class T>
class Forward {
   public:
    Forward(const Model &model, const Call &call) : model_(model), call_(call) {
        for (int b = 0; b < call.rows; b++)
            for (int i = 0; i < call.nodes; i++)
                if (call.valid[b * call.valid_step + i]) nodes_.push_back({b, i});
        for (Node at : nodes_)
            if (!ready(at)) behind_.push_back(at);
        const long chunk = std::min<long>(CHUNK, nodes_.size());
        for (int i = 0; i < NUM_BUFFERS; i++) {
            auto &memory = memory_[i];
            const long size = (i == STREAM ? (long)nodes_.size() : chunk) * step(i);
            if ((long)memory.size() < size) memory.resize(size);
        }
        choose_heads();
    }

    void run() {
        Team::of_process().run(call_.threads, [&](Walk &walk) { go(walk); });
    }

   private:
    // Kept between calls: growing is rare, and clearing what will be overwritten costs.
    static inline std::vector<T> memory_[NUM_BUFFERS];

    const Model &model_;
    const Call &call_;
    std::vector<Node> nodes_;
    std::vector<Node> behind_;   // those that begin with the first layer
    std::vector<int> heads_;     // nodes that get logits
    std::vector<long> outputs_;  // and the rows of logits they go to

    // Numbers from row to row: not a power of two, which would put one column of all rows in the same few places of a cache.
    long step(int64_t which) const {
        const long width = model_.width[which], line = 64 / sizeof(T);
        return width % (8 * line) == 0 ? width + line : width;
    }
    T *buffer(int64_t which, long row) { return memory_[which].data() + row * step(which); }

    bool ready(Node at) const { return call_.ready && call_.ready[at.row * call_.ready_step + at.node]; }

    void choose_heads() {
        if (call_.logits_for == LOGITS_NONE) return;
        for (int i = 0; i < (int)nodes_.size(); i++) {
            const bool last = i + 1 == (int)nodes_.size() || nodes_[i + 1].row != nodes_[i].row;
            if (call_.logits_for == LOGITS_LAST && !last) continue;
            heads_.push_back(i);
            outputs_.push_back(call_.logits_for == LOGITS_LAST ? nodes_[i].row : nodes_[i].row * call_.nodes + nodes_[i].node);
        }
    }

    void go(Walk &walk) {
        Attention<T> attention(model_, call_);
        walk.once([&] { clear(); });
        walk.share(behind_.size(), ROWS, [&](int begin, int end) {
            for (int i = begin; i < end; i++) embed(i);
        });
        const int joined = call_.ready ? call_.resumed_layer : 0;
        for (int at = 0; at < joined; at++) pass(call_.layers[at], behind_, attention, walk);
        if (call_.ready) walk.once([&] { join(); });
        tap(joined, walk);
        for (int at = joined; at < call_.num_layers; at++) {
            pass(call_.layers[at], nodes_, attention, walk);
            tap(at + 1, walk);
        }
        for (int first = 0; first < (int)heads_.size(); first += CHUNK) head(first, walk);
    }

    void pass(int layer, const std::vector<Node> &nodes, Attention<T> &attention, Walk &walk) {
        for (int first = 0; first < (int)nodes.size(); first += CHUNK) {
            const int size = std::min<int>(CHUNK, nodes.size() - first);
            for (int64_t i = model_.layers[layer]; i < model_.layers[layer + 1]; i++)
                operate(model_.operations[i], layer, &nodes[first], first, size, attention, walk);
        }
    }

    // Puts who was behind in its place among all, the last first: nobody's place lies before where it stands.
    void join() {
        const T *given = (const T *)call_.resumed;
        for (long i = nodes_.size(), left = behind_.size(); i-- > 0;) {
            const Node at = nodes_[i];
            const T *from = ready(at) ? given + at.row * call_.resumed_row_step + at.node * call_.resumed_step
                                      : buffer(STREAM, --left);
            if (from != buffer(STREAM, i)) std::memcpy(buffer(STREAM, i), from, model_.hidden * sizeof(T));
        }
    }

    // What belongs to no node is zero, not whatever memory held.
    void clear() {
        const long rows = call_.rows * call_.nodes, per_row = call_.logits_for == LOGITS_LAST ? 1 : call_.nodes;
        if (call_.logits_for != LOGITS_NONE && (long)heads_.size() < call_.rows * per_row) {
            std::vector<bool> filled(call_.rows * per_row);
            for (long row : outputs_) filled[row] = true;
            for (long row = 0; row < call_.rows * per_row; row++)
                if (!filled[row]) std::memset((T *)call_.logits + row * model_.vocab, 0, model_.vocab * sizeof(T));
        }
        for (int t = 0; t < call_.num_taps; t++)
            if ((long)nodes_.size() < rows) std::memset(call_.hidden[t], 0, rows * model_.hidden * sizeof(T));
    }

    // The token's row of the table, which may lie in panels (gemm_bf16.h).
    void look_up(long token, T *x) {
        const T *table = (const T *)model_.embedding;
        if (!model_.panel_rows) return (void)std::memcpy(x, table + token * model_.hidden, model_.hidden * sizeof(T));
        const long lane = token % model_.panel_rows, wide = std::min(model_.panel_rows, model_.vocab - (token - lane));
        const T *from = table + (token - lane) * model_.hidden + 2 * lane;
        for (long h = 0; h < model_.hidden; h += 2, from += 2 * wide) std::memcpy(x + h, from, 2 * sizeof(T));
    }

    void embed(int i) {
        const Node at = behind_[i];
        const long token = call_.tokens[at.row * call_.tokens_step + at.node];
        T *x = buffer(STREAM, i);
        look_up(token, x);
        if (model_.embedding_factor != 1)
            for (int h = 0; h < model_.hidden; h++) x[h] = narrow<T>(widen(x[h]) * Acc<T>(model_.embedding_factor));
        if (!model_.position) return;
        const int64_t place = call_.length[at.row] + call_.depth[at.row * call_.depth_step + at.node];
        const T *added = (const T *)model_.position + std::min(place, model_.max_positions - 1) * model_.hidden;
        for (int h = 0; h < model_.hidden; h++) x[h] = narrow<T>(widen(x[h]) + widen(added[h]));
    }

    void tap(int64_t depth, Walk &walk) {
        for (int t = 0; t < call_.num_taps; t++) {
            if (call_.taps[t] != depth) continue;
            walk.share(nodes_.size(), ROWS, [&](int begin, int end) {
                for (int i = begin; i < end; i++)
                    std::memcpy((T *)call_.hidden[t] + (nodes_[i].row * call_.nodes + nodes_[i].node) * model_.hidden,
                                buffer(STREAM, i), model_.hidden * sizeof(T));
            });
        }
    }

    // Row of a buffer for node number i of the chunk that begins at first.
    long row_of(int64_t which, int first, int i) { return which == STREAM ? first + i : i; }

    void operate(const Operation &op, int layer, const Node *nodes, int first, int size, Attention<T> &attention,
                 Walk &walk) {
        auto each = [&](auto &&with) {
            walk.share(size, ROWS, [&](int begin, int end) {
                for (int i = begin; i < end; i++)
                    with(i, buffer(op.source, row_of(op.source, first, i)), buffer(op.target, row_of(op.target, first, i)));
            });
        };
        switch (op.kind) {
            case NORM:
                return each([&](int, const T *x, T *y) {
                    for (int h = 0; h < op.count; h++) norm(op, x + op.offset + h * op.inner, y + op.offset + h * op.inner);
                });
            case ADD: return each([&](int, const T *x, T *y) { add(op, x, y); });
            case TURN: return each([&](int i, const T *, T *y) { turn_and_write(model_, call_, op, layer, nodes[i], y); });
            case GATE:
            case ACTIVATE:
                return walk.share(op.inner, NUMBERS, [&](int begin, int end) {
                    for (int i = 0; i < size; i++) activate(op, buffer(op.source, i), buffer(op.target, i), begin, end);
                });
            case ATTEND: return attend(layer, nodes, size, attention, walk);
            default: {
                const T *x = buffer(op.source, row_of(op.source, first, 0));
                T *y = buffer(op.target, row_of(op.target, first, 0));
                return linear(op, x, step(op.source), size, walk,
                              [&](int m) { return y + m * step(op.target); }, Acc<T>(1));
            }
        }
    }

    void attend(int layer, const Node *nodes, int size, Attention<T> &attention, Walk &walk) {
        const int most = Attention<T>::nodes_of_piece(model_, size, call_.threads);
        static thread_local std::vector<int> pieces;  // where those of one row begin, and the end
        pieces.assign(1, 0);
        for (int i = 1; i < size; i++)
            if (i - pieces.back() == most || nodes[i].row != nodes[i - 1].row) pieces.push_back(i);
        const int heads = model_.num_kv_heads, count = pieces.size();
        pieces.push_back(size);
        walk.share((long)count * heads, 1, [&](int begin, int end) {
            for (int i = begin, next; i < end; i = next) {
                const int piece = i / heads, head = i % heads, from = pieces[piece];
                next = std::min(end, i - head + heads);
                attention(layer, head, head + next - i, nodes + from, pieces[piece + 1] - from,
                          buffer(HEADS, from), step(HEADS), buffer(ATTENDED, from), step(ATTENDED));
            }
        });
    }

    void head(int first, Walk &walk) {
        const int size = std::min<int>(CHUNK, heads_.size() - first);
        walk.share(size, ROWS, [&](int begin, int end) {
            for (int i = begin; i < end; i++)
                norm(model_.norm, (const T *)buffer(STREAM, heads_[first + i]), buffer(NORMED, i));
        });
        linear(model_.head, (const T *)buffer(NORMED, 0), step(NORMED), size, walk,
               [&](int m) { return (T *)call_.logits + outputs_[first + m] * model_.vocab; }, Acc<T>(model_.divisor));
    }
};

}  // namespace paceline
