// One forward of a decoder over a token tree per row: embeddings, the operations of its layers, the LM head.
//
// Invalid nodes are left out: the valid ones are packed together. Where some nodes are ready (core/tree.Resume), the
// others first run the first layers alone. All threads run the same operations and divide the rows, columns or heads of
// each (thread_pool.h).
#pragma once

#include "step/workspace.h"
#include "step/program.h"

#include "attention/attention.h"
#include "gemm/linear.h"

namespace paceline {

constexpr int CHUNK = 512;             // nodes whose activations are in memory at once
constexpr int ACTIVATION_CHUNK = 256;  // elements of a row per task, the same for activations
constexpr int ROW_CHUNK = 4;           // rows per task for cheap operations

template <class T>
class Forward {
   public:
    Forward(StepMemory<T> &memory, const Model &model, const Call &call)
        : memory_(memory), buffers_(memory.activations), model_(model), call_(call) {
        for (int b = 0; b < call.rows; b++)
            for (int i = 0; i < call.nodes; i++)
                if (call.valid[b * call.valid_step + i]) nodes_.push_back({b, i});
        for (Node at : nodes_)
            if (!ready(at)) unready_.push_back(at);
        const long chunk = std::min<long>(CHUNK, nodes_.size());
        for (int i = 0; i < NUM_BUFFERS; i++) {
            auto &buffer = buffers_[i];
            if (i == PAIR && !call.pair && model.input != PAIR) continue;
            const long size = (whole(i) ? (long)nodes_.size() : chunk) * step(i);
            if ((long)buffer.size() < size) buffer.resize(size);
        }
        select_kept();
        const auto *taps = call.taps, *end = taps + call.num_taps;
        const bool all_tapped = std::find(taps, end, call.num_layers) != end && !(call.last_states && !logits());
        narrows_ = kept_.size() < nodes_.size() && !all_tapped;
    }

    void run() {
        ThreadPool::instance().run(call_.threads, [&](Worker &worker) { run_worker(worker); });
        memory_.free_large();
    }

   private:
    StepMemory<T> &memory_;
    std::vector<T> *const buffers_;
    const Model &model_;
    const Call &call_;
    std::vector<Node> nodes_;
    std::vector<Node> unready_;     // nodes that start with the first layer
    std::vector<int> kept_;         // nodes that get logits; where none does, those whose last states are read
    std::vector<Node> kept_nodes_;
    std::vector<long> logit_rows_;  // and their rows of logits
    bool narrows_;                  // in the last layer only these go on after keys and values are stored

    // Elements from row to row: not a power of two, which would map a column of all rows to the same cache sets.
    long step(int64_t which) const {
        const long width = model_.width[which], line = 64 / sizeof(T);
        return width % (8 * line) == 0 ? width + line : width;
    }
    T *buffer(int64_t which, long row) { return buffers_[which].data() + row * step(which); }

    bool ready(Node at) const { return call_.ready && call_.ready[at.row * call_.ready_step + at.node]; }

    bool logits() const { return call_.logits_for != LOGITS_NONE; }

    void select_kept() {
        const int size = nodes_.size();
        const int most = call_.logits_for == LOGITS_ALL ? size : logits() ? 1 : call_.last_states;
        for (int i = 0; i < size; i++) {
            if (i < size - most && nodes_[i + most].row == nodes_[i].row) continue;  // the row has as many after it
            if (call_.wanted && !call_.wanted[nodes_[i].row * call_.wanted_step + nodes_[i].node]) continue;
            kept_.push_back(i), kept_nodes_.push_back(nodes_[i]);
            logit_rows_.push_back(call_.logits_for == LOGITS_LAST ? nodes_[i].row
                                                                  : nodes_[i].row * call_.nodes + nodes_[i].node);
        }
    }

    void run_worker(Worker &worker) {
        Attention<T> attention(model_, call_);
        worker.single([&] { clear(); });
        if (call_.pair)
            read_pairs(attention, worker);
        else
            worker.parallel_for(unready_.size(), ROW_CHUNK, [&](int begin, int end) {
                for (int i = begin; i < end; i++) embed(i);
            });
        const int joined = call_.ready ? call_.resumed_layer : 0;
        for (int at = 0; at < joined; at++) run_layer(call_.layers[at], unready_, attention, worker);
        if (call_.ready) worker.single([&] { merge_resumed(); });
        tap(joined, worker);
        for (int at = joined; at < call_.num_layers; at++) {
            run_layer(call_.layers[at], nodes_, attention, worker, narrows_ && at + 1 == call_.num_layers);
            tap(at + 1, worker);
        }
        for (int first = 0; logits() && first < (int)kept_.size(); first += CHUNK) run_lm_head(first, worker);
    }

    // The operation after the one that stores keys and values; the first one of a layer without any.
    int64_t after_storing(int layer) const {
        for (int64_t i = model_.layers[layer + 1]; i-- > model_.layers[layer];)
            if (model_.operations[i].kind == ROTATE) return i + 1;
        return model_.layers[layer];
    }

    // If it narrows, nodes that are not kept do no more than store keys and values.
    void run_layer(int layer, const std::vector<Node> &nodes, Attention<T> &attention, Worker &worker,
                   bool narrows = false) {
        const int64_t begin = model_.layers[layer], end = model_.layers[layer + 1];
        const int64_t stored = narrows ? after_storing(layer) : end;
        auto run = [&](int64_t from, int64_t to, const Node *nodes, int first, int size) {
            for (int64_t i = from; i < to; i++)
                run_operation(model_.operations[i], layer, nodes, first, size, attention, worker);
        };
        for (int first = 0, size, done = 0; first < (int)nodes.size(); first += size) {
            size = chunk_of(nodes, first);
            run(begin, stored, &nodes[first], first, size);
            int until = done;  // kept nodes up to this chunk's end
            while (narrows && until < (int)kept_.size() && kept_[until] < first + size) until++;
            if (until == done) continue;
            worker.single([&] { keep(done, until, first); });
            run(stored, end, &kept_nodes_[done], done, until - done);
            done = until;
        }
    }

    // Moves the streams of these kept nodes to their index among all, and their queries to the chunk's beginning.
    // Nothing else of a node is read after its keys are stored: a head with layers outputs no PAIR.
    void keep(int begin, int end, int first) {
        for (int i = begin; i < end; i++) {
            const int at = kept_[i];
            if (at != i) std::memcpy(buffer(STREAM, i), buffer(STREAM, at), model_.hidden * sizeof(T));
            if (at - first != i - begin)
                std::memcpy(buffer(HEADS, i - begin), buffer(HEADS, at - first), model_.width[HEADS] * sizeof(T));
        }
    }

    // Nodes of the chunk that starts at first: of trees whole rows, because a node may see later ones of its row.
    int chunk_of(const std::vector<Node> &nodes, int first) const {
        const int left = nodes.size() - first, most = std::min<int>(CHUNK, left);
        int size = most;
        if (!call_.chain && most < left)
            while (size && nodes[first + size].row == nodes[first + size - 1].row) size--;
        return size ? size : most;
    }

    // Moves the unready nodes to their index among all, last first, so that none is overwritten.
    void merge_resumed() {
        const T *given = (const T *)call_.resumed;
        const int64_t input = call_.resumed_layer ? STREAM : model_.input, width = model_.width[input];
        for (long i = nodes_.size(), left = unready_.size(); i-- > 0;) {
            const Node at = nodes_[i];
            const T *from = ready(at) ? given + at.row * call_.resumed_row_step + at.node * call_.resumed_step
                                      : buffer(input, --left);
            if (from != buffer(input, i)) std::memcpy(buffer(input, i), from, width * sizeof(T));
        }
    }

    // Zeros the outputs of invalid nodes.
    void clear() {
        const long rows = call_.rows * call_.nodes, per_row = call_.logits_for == LOGITS_LAST ? 1 : call_.nodes;
        if (logits() && !call_.wanted && (long)kept_.size() < call_.rows * per_row) {
            std::vector<bool> filled(call_.rows * per_row);
            for (long row : logit_rows_) filled[row] = true;
            for (long row = 0; row < call_.rows * per_row; row++)
                if (!filled[row]) std::memset((T *)call_.logits + row * model_.vocab, 0, model_.vocab * sizeof(T));
        }
        for (int t = 0; t < call_.num_taps; t++)
            if ((long)nodes_.size() < rows) std::memset(call_.hidden[t], 0, rows * model_.hidden * sizeof(T));
    }

    // The embedding of a token; the table may be packed in panels (gemm/packing.h).
    void copy_embedding(long token, T *x) {
        constexpr int unit = panel_unit_of<T>(PACKED);
        const T *table = (const T *)model_.embedding;
        if (!model_.panel_rows) return (void)std::memcpy(x, table + token * model_.hidden, model_.hidden * sizeof(T));
        const long lane = token % model_.panel_rows, wide = std::min(model_.panel_rows, model_.tokens - (token - lane));
        const T *from = table + (token - lane) * model_.hidden + unit * lane;
        for (long h = 0; h < model_.hidden; h += unit, from += unit * wide) std::memcpy(x + h, from, unit * sizeof(T));
    }

    void embed(int i) {
        const Node at = unready_[i];
        const long token = call_.tokens[at.row * call_.tokens_step + at.node];
        T *x = buffer(STREAM, i);
        copy_embedding(token, x);
        if (model_.embedding_factor != 1)
            for (int h = 0; h < model_.hidden; h++) x[h] = narrow<T>(widen(x[h]) * Acc<T>(model_.embedding_factor));
        if (!model_.position) return;
        const int64_t place = call_.length[at.row] + call_.depth[at.row * call_.depth_step + at.node];
        const T *added = (const T *)model_.position + std::min(place, model_.max_positions - 1) * model_.hidden;
        for (int h = 0; h < model_.hidden; h++) x[h] = narrow<T>(widen(x[h]) + widen(added[h]));
    }

    // The first layer's input, of each node's token and feature.
    void read_pairs(Attention<T> &attention, Worker &worker) {
        const PairInput &pair = *call_.pair;
        worker.parallel_for(nodes_.size(), ROW_CHUNK, [&](int begin, int end) {
            for (int i = begin; i < end; i++) {
                const Node at = nodes_[i];
                const T *given = (const T *)call_.resumed + at.row * call_.resumed_row_step + at.node * call_.resumed_step;
                std::memcpy(buffer(PAIR, i) + pair.feature, given, pair.feature_size * sizeof(T));
                if (pair.embedding < 0) continue;
                T *embedded = buffer(PAIR, i) + pair.embedding;
                if (pair.zero_first && call_.length[at.row] + call_.depth[at.row * call_.depth_step + at.node] == 0)
                    std::memset(embedded, 0, model_.hidden * sizeof(T));
                else
                    copy_embedding(call_.tokens[at.row * call_.tokens_step + at.node], embedded);
            }
        });
        for (int first = 0; first < (int)nodes_.size(); first += CHUNK)
            for (int64_t i = 0; i < pair.num_operations; i++)
                run_operation(pair.operations[i], 0, &nodes_[first], first,
                              std::min<int>(CHUNK, nodes_.size() - first), attention, worker);
    }

    void tap(int64_t depth, Worker &worker) {
        for (int t = 0; t < call_.num_taps; t++) {
            if (call_.taps[t] != depth) continue;
            const auto &nodes = narrowed() && depth == call_.num_layers ? kept_nodes_ : nodes_;
            worker.parallel_for(nodes.size(), ROW_CHUNK, [&](int begin, int end) {
                for (int i = begin; i < end; i++)
                    std::memcpy((T *)call_.hidden[t] + (nodes[i].row * call_.nodes + nodes[i].node) * model_.hidden,
                                buffer(STREAM, i), model_.hidden * sizeof(T));
            });
        }
    }

    // Row of a buffer for node i of the chunk that starts at first.
    long row_of(int64_t which, int first, int i) { return whole(which) ? first + i : i; }

    // Whether a buffer has all nodes, not those of a chunk alone.
    static bool whole(int64_t which) { return which == STREAM || which == PAIR; }

    void run_operation(const Operation &op, int layer, const Node *nodes, int first, int size, Attention<T> &attention,
                       Worker &worker) {
        auto each = [&](auto &&with) {
            worker.parallel_for(size, ROW_CHUNK, [&](int begin, int end) {
                for (int i = begin; i < end; i++)
                    with(i, buffer(op.source, row_of(op.source, first, i)),
                         buffer(op.target, row_of(op.target, first, i)));
            });
        };
        switch (op.kind) {
            case NORM:
                return each([&](int, const T *x, T *y) {
                    for (int h = 0; h < op.count; h++)
                        norm(op, x + op.offset + h * op.inner, y + op.outer + h * op.inner);
                });
            case ADD: return each([&](int, const T *x, T *y) { add(op, x + op.offset, y); });
            case ROTATE:
                return each([&](int i, const T *, T *y) { rotate_and_store(model_, call_, op, layer, nodes[i], y); });
            case GATE:
            case ACTIVATE:
                return worker.parallel_for(op.inner, ACTIVATION_CHUNK, [&](int begin, int end) {
                    for (int i = 0; i < size; i++)
                        activate(op, buffer(op.source, row_of(op.source, first, i)),
                                 buffer(op.target, row_of(op.target, first, i)), begin, end);
                });
            case ATTEND:
            case ATTEND_SOURCE: return attend(op, layer, nodes, size, attention, worker);
            default: {
                const T *x = buffer(op.source, row_of(op.source, first, 0));
                T *y = buffer(op.target, row_of(op.target, first, 0));
                return linear<T>(op, x, step(op.source), size, worker, {y, step(op.target), nullptr}, Acc<T>(1));
            }
        }
    }

    void attend(const Operation &op, int layer, const Node *nodes, int size, Attention<T> &attention, Worker &worker) {
        const int most = Attention<T>::nodes_per_task(model_, size, call_.threads);
        static thread_local std::vector<int> tasks;  // where those of one row begin, and the end
        tasks.assign(1, 0);
        for (int i = 1; i < size; i++)
            if (i - tasks.back() == most || nodes[i].row != nodes[i - 1].row) tasks.push_back(i);
        const int heads = model_.num_kv_heads, count = tasks.size();
        tasks.push_back(size);
        worker.parallel_for((long)count * heads, 1, [&](int begin, int end) {
            for (int i = begin, next; i < end; i = next) {
                const int task = i / heads, head = i % heads, from = tasks[task];
                next = std::min(end, i - head + heads);
                attention(op, layer, head, head + next - i, nodes + from, tasks[task + 1] - from, buffer(HEADS, from),
                          step(HEADS), buffer(ATTENDED, from), step(ATTENDED));
            }
        });
    }

    // Whether a layer has narrowed.
    bool narrowed() const { return narrows_ && call_.num_layers > (call_.ready ? call_.resumed_layer : 0); }

    void run_lm_head(int first, Worker &worker) {
        const int size = std::min<int>(CHUNK, kept_.size() - first);
        worker.parallel_for(size, ROW_CHUNK, [&](int begin, int end) {
            for (int i = begin; i < end; i++) {
                const int at = narrowed() ? first + i : kept_[first + i];
                norm(model_.norm, buffer(STREAM, at), buffer(NORMED, i));
                if (!call_.outputs) continue;
                const int64_t output = call_.pair ? call_.pair->output : NORMED;
                const int64_t size = call_.pair ? call_.pair->output_size : model_.hidden;
                std::memcpy((T *)call_.outputs + logit_rows_[first + i] * size, buffer(output, whole(output) ? at : i),
                            size * sizeof(T));
            }
        });
        const OutputRows<T> logits{(T *)call_.logits, model_.vocab, &logit_rows_[first]};
        linear<T>(model_.head, buffer(NORMED, 0), step(NORMED), size, worker, logits, Acc<T>(model_.divisor));
    }
};

}  // namespace paceline
