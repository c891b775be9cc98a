// One forward of a decoder over a tree per row: embeddings, the operations of its layers, the head.
//
// Nodes that are not valid take no part: the valid ones stand side by side, as if the others were not there. All threads
// walk the operations together and share out rows, columns or heads of each.
#pragma once

#include "program.h"

#include <atomic>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "attention.h"
#include "together.h"
#include "quantised.h"

namespace paceline {

constexpr int CHUNK = 512;         // nodes whose buffers exist at once
constexpr int SPINS = 20000;       // before a waiting thread lets others run
constexpr int NUMBERS = 256;       // of a row, the same for activations

class Barrier {
   public:
    void start(int threads) { threads_ = threads; }
    void wait() {
        if (threads_ == 1) return;
        const int turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; spins++)
            if (spins > SPINS) std::this_thread::yield();
    }

   private:
    int threads_ = 1;
    std::atomic<int> arrived_{0}, turn_{0};
};

#if defined(_OPENMP)
inline int team_size() { return omp_get_num_threads(); }
inline int team_rank() { return omp_get_thread_num(); }
#else
inline int team_size() { return 1; }
inline int team_rank() { return 0; }
#endif

// A thread's share of count things, in multiples of step.
struct Share {
    int begin, end;
    Share(int count, int step, int thread, int threads) {
        const long blocks = (count + step - 1) / step;
        begin = std::min<long>(count, blocks * thread / threads * step);
        end = std::min<long>(count, blocks * (thread + 1) / threads * step);
    }
};

template <class T>
class Forward {
   public:
    Forward(const Model &model, const Call &call) : model_(model), call_(call) {
        for (int b = 0; b < call.rows; b++)
            for (int i = 0; i < call.nodes; i++)
                if (call.valid[b * call.valid_step + i]) nodes_.push_back({b, i});
        const long chunk = std::min<long>(CHUNK, nodes_.size());
        for (int i = 0; i < NUM_BUFFERS; i++) {
            auto &memory = memory_[i];
            const long size = (i == STREAM ? (long)nodes_.size() : chunk) * model.width[i];
            if ((long)memory.size() < size) memory.resize(size);
        }
        choose_heads();
    }

    void run() {
#pragma omp parallel num_threads(call_.threads)
        {
#pragma omp single
            {
                threads_ = team_size();  // the system may give fewer than asked
                barrier_.start(threads_);
            }
            walk(team_rank());
        }
    }

   private:
    // Kept between calls: growing is rare, and clearing what will be overwritten costs.
    static inline std::vector<T> memory_[NUM_BUFFERS];

    const Model &model_;
    const Call &call_;
    Barrier barrier_;
    int threads_ = 1;
    std::vector<Node> nodes_;
    std::vector<int> heads_;     // nodes that get logits
    std::vector<long> outputs_;  // and the rows of logits they go to

    T *buffer(int64_t which, long row) { return memory_[which].data() + row * model_.width[which]; }

    void choose_heads() {
        if (call_.head == HEAD_NONE) return;
        for (int i = 0; i < (int)nodes_.size(); i++) {
            const bool last = i + 1 == (int)nodes_.size() || nodes_[i + 1].row != nodes_[i].row;
            if (call_.head == HEAD_LAST && !last) continue;
            heads_.push_back(i);
            outputs_.push_back(call_.head == HEAD_LAST ? nodes_[i].row : nodes_[i].row * call_.nodes + nodes_[i].node);
        }
    }

    void walk(int thread) {
        const int count = nodes_.size();
        Attention<T> attention(model_, call_);
        clear(thread);
        Share mine(count, 1, thread, threads_);
        for (int i = mine.begin; i < mine.end; i++) embed(i);
        barrier_.wait();
        tap(0, thread);
        for (int at = 0; at < call_.num_layers; at++) {
            const int layer = call_.layers[at];
            for (int first = 0; first < count; first += CHUNK) {
                const int size = std::min(CHUNK, count - first);
                for (int64_t i = model_.layers[layer]; i < model_.layers[layer + 1]; i++) {
                    operate(model_.operations[i], layer, first, size, attention, thread);
                    barrier_.wait();
                }
            }
            tap(at + 1, thread);
        }
        for (int first = 0; first < (int)heads_.size(); first += CHUNK) head(first, thread);
    }

    // What belongs to no node is zero, not whatever memory held.
    void clear(int thread) {
        if (thread != 0) return;
        const long rows = call_.rows * call_.nodes, per_row = call_.head == HEAD_LAST ? 1 : call_.nodes;
        if (call_.head != HEAD_NONE && (long)heads_.size() < call_.rows * per_row) {
            std::vector<bool> filled(call_.rows * per_row);
            for (long row : outputs_) filled[row] = true;
            for (long row = 0; row < call_.rows * per_row; row++)
                if (!filled[row]) std::memset((T *)call_.logits + row * model_.vocab, 0, model_.vocab * sizeof(T));
        }
        for (int t = 0; t < call_.num_taps; t++)
            if ((long)nodes_.size() < rows) std::memset(call_.hidden[t], 0, rows * model_.hidden * sizeof(T));
    }

    void embed(int i) {
        const Node at = nodes_[i];
        const long token = call_.tokens[at.row * call_.tokens_step + at.node];
        const T *row = (const T *)model_.embedding + token * model_.hidden;
        T *x = buffer(STREAM, i);
        std::memcpy(x, row, model_.hidden * sizeof(T));
        if (model_.embedding_factor != 1)
            for (int h = 0; h < model_.hidden; h++) x[h] = narrow<T>(widen(x[h]) * Acc<T>(model_.embedding_factor));
        if (!model_.position) return;
        const int64_t place = call_.length[at.row] + call_.depth[at.row * call_.depth_step + at.node];
        const T *added = (const T *)model_.position + std::min(place, model_.max_positions - 1) * model_.hidden;
        for (int h = 0; h < model_.hidden; h++) x[h] = narrow<T>(widen(x[h]) + widen(added[h]));
    }

    void tap(int64_t depth, int thread) {
        for (int t = 0; t < call_.num_taps; t++) {
            if (call_.taps[t] != depth) continue;
            if (thread == 0)
                for (int i = 0; i < (int)nodes_.size(); i++)
                    std::memcpy((T *)call_.hidden[t] + (nodes_[i].row * call_.nodes + nodes_[i].node) * model_.hidden,
                                buffer(STREAM, i), model_.hidden * sizeof(T));
            barrier_.wait();
        }
    }

    // Row of a buffer for node number i of the chunk that begins at first.
    long row_of(int64_t which, int first, int i) { return which == STREAM ? first + i : i; }

    void operate(const Operation &op, int layer, int first, int size, Attention<T> &attention, int thread) {
        const Share rows(size, 1, thread, threads_);
        auto each = [&](auto &&with) {
            for (int i = rows.begin; i < rows.end; i++)
                with(i, buffer(op.source, row_of(op.source, first, i)), buffer(op.target, row_of(op.target, first, i)));
        };
        switch (op.kind) {
            case NORM:
                return each([&](int, const T *x, T *y) {
                    for (int h = 0; h < op.count; h++) norm(op, x + op.offset + h * op.inner, y + op.offset + h * op.inner);
                });
            case ADD: return each([&](int, const T *x, T *y) { add(op, x, y); });
            case TURN: return each([&](int i, const T *, T *y) { turn_and_write(model_, call_, op, layer, nodes_[first + i], y); });
            case GATE:
            case ACTIVATE: {
                const Share numbers(op.inner, NUMBERS, thread, threads_);
                for (int i = 0; i < size; i++)
                    activate(op, buffer(op.source, i), buffer(op.target, i), numbers.begin, numbers.end);
                return;
            }
            case ATTEND: return attend(layer, first, size, attention, thread);
            default: {
                const T *x = buffer(op.source, row_of(op.source, first, 0));
                T *y = buffer(op.target, row_of(op.target, first, 0));
                return linear(op, x, model_.width[op.source], size, thread,
                              [&](int m) { return y + m * model_.width[op.target]; }, Acc<T>(1));
            }
        }
    }

    template <class Row>
    void linear(const Operation &op, const T *x, long ldx, int rows, int thread, Row &&row, Acc<T> divisor) {
        const Share columns(op.outer, COLUMNS, thread, threads_);
        auto give = [&](int m, int n, auto count, const Acc<T> *sums) {
            put<T, decltype(count)::value>(op, row(m), n, sums, divisor);
        };
        if (op.variant == INT8) {
            const Bytes w{(const int8_t *)op.weight, (const float *)op.scales, op.count};
            return multiply_small<T>(w, columns.begin, columns.end, x, ldx, rows, op.inner, give);
        }
        if (op.variant == INT4) {
            const Nibbles w{(const uint8_t *)op.weight, (const uint32_t *)op.scales, op.count, op.count / Nibbles::BLOCK_BYTES};
            return multiply_small<T>(w, columns.begin, columns.end, x, ldx, rows, op.inner, give);
        }
        multiply((const T *)op.weight, op.inner, columns.begin, columns.end, x, ldx, rows, op.inner, give);
    }

    void attend(int layer, int first, int size, Attention<T> &attention, int thread) {
        const int most = Attention<T>::nodes_of_piece(model_, size, threads_);
        int piece = 0;
        for (int begin = 0, end; begin < size; begin = end) {
            const int row = nodes_[first + begin].row;
            for (end = begin; end < size && nodes_[first + end].row == row && end - begin < most;) end++;
            const Share heads(model_.num_kv_heads, 1, (thread + piece++) % threads_, threads_);
            attention(layer, heads.begin, heads.end, &nodes_[first + begin], end - begin, buffer(HEADS, begin),
                      model_.width[HEADS], buffer(ATTENDED, begin), model_.width[ATTENDED]);
        }
    }

    void head(int first, int thread) {
        const int size = std::min<int>(CHUNK, heads_.size() - first);
        const Share rows(size, 1, thread, threads_);
        for (int i = rows.begin; i < rows.end; i++)
            norm(model_.norm, (const T *)buffer(STREAM, heads_[first + i]), buffer(NORMED, i));
        barrier_.wait();
        linear(model_.head, buffer(NORMED, 0), model_.width[NORMED], size, thread,
               [&](int m) { return (T *)call_.logits + outputs_[first + m] * model_.vocab; }, Acc<T>(model_.divisor));
        barrier_.wait();
    }
};

}  // namespace paceline
