// Logits processors, applied before temperature and filters: core/processing.py's apply, per node with its own path.
//
// One pass over all logits adds the bias; penalties and bans change few of them. Every value is rounded where the torch
// operations round it. kernels/cpu/structs.py mirrors the structs.
#pragma once

#include "sampling/sampling.h"

namespace paceline {

// The rows' processors (core/processing.py's ProcessingState); null, or a count of 0, if no row uses one.
struct LogitsProcessors {
    int64_t vocab;  // size of a row of bias; rows of counts and prompted have one more
    int64_t width;  // of a row of sequences
    const int64_t *tokens, *length;
    const float *bias;
    const int32_t *counts;
    const uint8_t *prompted;
    const double *repetition, *frequency, *presence;
    int64_t num_sequences, num_before;
    const int64_t *before, *last;
    const float *value;
    int64_t num_late;
    const int64_t *late, *late_until;
    const int64_t *ngram;
};

// The draft tokens between each row's sequence and the next token, for every node of a chain or a tree.
struct Paths {
    int64_t depth;  // most tokens of a node's path
    int64_t grows;  // node n has the first n tokens
    const int64_t *tokens;
    int64_t row_step, step;  // from row to row, from node to node
    const int64_t *levels;   // trees only: depths of the nodes with these tokens
    const uint8_t *ancestors;
    int64_t levels_step, ancestors_row_step, ancestors_step;
};

// A product that is rounded before anything is added to it (no FMA).
template <class A>
__attribute__((noinline)) A multiplied(A x, A y) {
    return x * y;
}

inline Floats load_bias(const float *p, Floats) { return load(p); }
inline Doubles load_bias(const float *p, Doubles) {
    float __attribute__((vector_size(VECTOR_BYTES / 2))) half;
    std::memcpy(&half, p, sizeof half);
    return __builtin_convertvector(half, Doubles);
}

template <class T>
void add_bias(const T *logits, const float *bias, int64_t size, Acc<T> *out) {
    constexpr int N = lanes<T>;
    int64_t i = 0;
    if (bias)
        for (; i + N <= size; i += N) store(out + i, load(logits + i) + load_bias(bias + i, Vec<T>{}));
    else
        for (; i + N <= size; i += N) store(out + i, load(logits + i));
    for (; i < size; i++) out[i] = bias ? widen(logits[i]) + bias[i] : widen(logits[i]);
}

// Processes nodes row by row; one per thread.
class ProcessorRunner {
   public:
    void begin(const LogitsProcessors &p, const Paths &paths) { p_ = &p, paths_ = &paths, row_ = -1; }

    template <class T>
    void operator()(int64_t row, int64_t node, const T *logits, int64_t size, Acc<T> *out) {
        if (row != row_) begin_row(row);
        collect_path(node);
        add_bias(logits, p_->bias ? p_->bias + row * p_->vocab : nullptr, size, out);
        add_sequences(size, out);
        if (p_->counts) penalise(size, out);
        if (p_->ngram && p_->ngram[row] > 0) ban_repeats(p_->ngram[row], size, out);
        ban_late(size, out);
        int64_t i = 0;
        while (i < size && !(out[i] > NEG_INF<Acc<T>>)) i++;
        if (i == size) out[0] = 0;
    }

   private:
    const LogitsProcessors *p_ = nullptr;
    const Paths *paths_ = nullptr;
    int64_t row_ = -1, length_ = 0, end_ = 0;
    const int64_t *sequence_ = nullptr;
    std::vector<int64_t> path_, tail_;
    std::vector<int32_t> unique_tokens_;  // the distinct tokens of the row's sequence
    std::vector<uint32_t> marks_;         // mark_ for tokens that are among them
    uint32_t mark_ = 0;

    void begin_row(int64_t row) {
        row_ = row, length_ = p_->length[row], sequence_ = p_->tokens + row * p_->width;
        unique_tokens_.clear();
        if (!p_->counts || (p_->repetition[row] == 1 && p_->frequency[row] == 0 && p_->presence[row] == 0)) return;
        if ((int64_t)marks_.size() < p_->vocab || ++mark_ == 0) marks_.assign(p_->vocab, 0), mark_ = 1;
        for (int64_t i = 0; i < length_; i++) {
            const int64_t token = sequence_[i];
            if (token < 0 || token >= p_->vocab || marks_[token] == mark_) continue;
            marks_[token] = mark_, unique_tokens_.push_back(token);
        }
    }

    void collect_path(int64_t node) {
        const int64_t *tokens = paths_->tokens + row_ * paths_->row_step;
        if (paths_->ancestors) {
            const uint8_t *mine = paths_->ancestors + row_ * paths_->ancestors_row_step + node * paths_->ancestors_step;
            const int64_t *levels = paths_->levels + row_ * paths_->levels_step;
            path_.assign(paths_->depth, -1);
            for (int64_t m = 1; m <= node; m++)
                if (mine[m] && levels[m] > 0 && levels[m] <= paths_->depth) path_[levels[m] - 1] = tokens[m];
        } else {
            tokens += node * paths_->step;
            path_.assign(tokens, tokens + (paths_->grows ? std::min(node, paths_->depth) : paths_->depth));
        }
        end_ = length_;
        for (int64_t token : path_) end_ += token >= 0;
    }

    // The token at a position; -1 below 0.
    int64_t at(int64_t place) const {
        return place < 0 ? -1 : place < length_ ? sequence_[place] : path_[place - length_];
    }

    template <class A>
    void add_sequences(int64_t size, A *out) const {
        for (int64_t s = row_ * p_->num_sequences; s < (row_ + 1) * p_->num_sequences; s++) {
            if (p_->last[s] < 0 || p_->last[s] >= size) continue;
            const int64_t *wanted = p_->before + s * p_->num_before;
            int64_t i = p_->num_before;
            while (i > 0 && (wanted[i - 1] < 0 || wanted[i - 1] == at(end_ - p_->num_before + i - 1))) i--;
            if (i == 0) out[p_->last[s]] += A(p_->value[s]);
        }
    }

    template <class A>
    A penalised(A score, int64_t token, int64_t more) const {
        const int32_t count = p_->counts[row_ * (p_->vocab + 1) + token] + more;
        const A repetition = p_->repetition[row_], frequency = p_->frequency[row_], presence = p_->presence[row_];
        if (repetition != 1 && (count > 0 || p_->prompted[row_ * (p_->vocab + 1) + token]))
            score = score < 0 ? multiplied(score, repetition) : score / repetition;
        if (frequency != 0) score = score - multiplied(frequency, A(count));
        return count > 0 ? score - presence : score;
    }

    template <class A>
    void penalise(int64_t size, A *out) const {
        if (p_->repetition[row_] == 1 && p_->frequency[row_] == 0 && p_->presence[row_] == 0) return;
        const auto first = [&](size_t i) {
            return std::find(path_.begin(), path_.begin() + i, path_[i]) == path_.begin() + i;
        };
        const auto there = [&](int64_t token) { return token >= 0 && token < size; };
        std::vector<std::pair<int64_t, A>> own;  // tokens of the path and their penalised scores
        for (size_t i = 0; i < path_.size(); i++)
            if (there(path_[i]) && first(i))
                own.emplace_back(path_[i],
                                 penalised(out[path_[i]], path_[i], std::count(path_.begin(), path_.end(), path_[i])));
        for (int64_t token : unique_tokens_)
            if (token < size) out[token] = penalised(out[token], token, 0);
        for (const auto &[token, score] : own) out[token] = score;
    }

    // Bans tokens that would repeat an n-gram of the sequence (no_repeat_ngram_size).
    template <class A>
    void ban_repeats(int64_t count, int64_t size, A *out) {
        if (end_ + 1 < count) return;
        tail_.clear();
        for (int64_t back = count - 1; back > 0; back--) tail_.push_back(at(end_ - back));
        const auto ban = [&](int64_t token) {
            if (token >= 0 && token < size) out[token] = NEG_INF<A>;
        };
        const int64_t before = count - 1;
        int64_t place = before;
        for (; place < length_; place++)
            if (before == 0 || (sequence_[place - 1] == tail_[before - 1] &&
                                std::equal(tail_.begin(), tail_.end(), sequence_ + place - before)))
                ban(sequence_[place]);
        for (; place < end_; place++) {
            int64_t i = 0;
            while (i < before && tail_[i] == at(place - before + i)) i++;
            if (i == before) ban(at(place));
        }
    }

    template <class A>
    void ban_late(int64_t size, A *out) const {
        for (int64_t e = row_ * p_->num_late; e < (row_ + 1) * p_->num_late; e++)
            if (p_->late[e] >= 0 && p_->late[e] < size && end_ < p_->late_until[e]) out[p_->late[e]] = NEG_INF<A>;
    }
};

// Processed logits of every node of every row, contiguous.
template <class T>
void process_all(const LogitsProcessors &p, const Paths &paths, const LogitsBatch &c) {
    const int64_t entries = c.rows * c.nodes;
    parallel_for(entries * c.size > PARALLEL_THRESHOLD ? c.threads : 1, entries, [&](int64_t begin, int64_t end) {
        static thread_local ProcessorRunner process;
        process.begin(p, paths);
        for (int64_t entry = begin; entry < end; entry++) {
            const int64_t row = entry / c.nodes, node = entry % c.nodes;
            process(row, node, (const T *)c.logits + row * c.row_step + node * c.step, c.size,
                    (Acc<T> *)c.out + entry * c.size);
        }
    });
}

}  // namespace paceline
