// Log-probabilities of the tokens of a step: core/logprobs.py's look_up, for the rows that request them.
#pragma once

#include "sampling/sampling.h"

namespace paceline {

// The decided tokens and the outputs: per row, depth positions with top most likely tokens each.
struct LogprobQuery {
    int64_t depth, top, width;  // width of a row of sequences
    const int64_t *num_top;       // per row: number of most likely tokens; negative: no log-probabilities
    const int64_t *num;         // tokens decided, the last ones of the sequence
    const int64_t *length, *tokens, *path;
    int64_t path_step;
    void *own, *best;  // [rows, depth] and [rows, depth, top]
    int64_t *best_tokens;

    int64_t node(int64_t row, int64_t at) const {  // whose logits the token at this index was chosen from
        return at ? std::max<int64_t>(path[row * path_step + at - 1], 0) : 0;
    }
};

// Log-probabilities under the buffers's scores: those below least are excluded, or those that are not in the list.
template <class A>
void token_logprobs(int64_t token, int64_t num_top, int64_t size, A least, const int64_t *listed,
                    SortBuffers<A> &buffers, A &own, A *best, int64_t *best_tokens) {
    const bool few = listed || (least > NEG_INF<A> && is_sparse(size, least, buffers));
    int64_t count = listed ? *listed : few ? gather(size, least, buffers) : 0;
    const A highest = few ? max_of(buffers.values.data(), count) : max_of(buffers.scores.data(), size);
    const A total = few ? exp_weights(count, buffers.values.data(), highest, buffers)
                        : sum_weights(size, highest, least, buffers);
    const A norm = std::log(total);
    const auto value = [&](A score) { return (score - highest) - norm; };
    own = buffers.scores[token] >= least ? value(buffers.scores[token]) : NEG_INF<A>;
    if (listed && std::find(buffers.tokens.begin(), buffers.tokens.begin() + count, token) ==
                      buffers.tokens.begin() + count)
        own = NEG_INF<A>;
    if (num_top <= 0) return;
    if (!few)
        count = gather(size, std::max(least, top_k_lower_bound(size, std::min(num_top, size), buffers)), buffers);
    std::vector<std::pair<A, int32_t>> order(count);
    for (int64_t i = 0; i < count; i++) order[i] = {-buffers.values[i], buffers.tokens[i]};
    const int64_t found = std::min(num_top, count);
    std::partial_sort(order.begin(), order.begin() + found, order.end());
    for (int64_t i = 0; i < found; i++) best[i] = value(-order[i].first), best_tokens[i] = order[i].second;
}

// Marks the rows that took a token after which a logit is NaN or infinite, or all are -inf.
template <class T>
void find_not_finite(const LogitsBatch &c, const LogprobQuery &l, int64_t mark, int64_t *failed) {
    for (int64_t row = 0; row < c.rows; row++)
        for (int64_t at = 0; at < l.num[row]; at++) {
            const T *logits = (const T *)c.logits + row * c.row_step + l.node(row, at) * c.step;
            if (!std::isfinite(max_of(logits, c.size))) failed[row] = mark;
        }
}

// Under the rows' sampling distributions, or under the raw logits without options.
template <class T>
void logprobs_all(const SamplingOptions *o, const LogitsBatch &c, const LogprobQuery &l) {
    using A = Acc<T>;
    const int64_t entries = c.rows * l.depth;
    parallel_for(entries * c.size > PARALLEL_THRESHOLD ? c.threads : 1, entries, [&](int64_t begin, int64_t end) {
        static thread_local SortBuffers<A> buffers;
        for (int64_t entry = begin; entry < end; entry++) {
            const int64_t row = entry / l.depth, at = entry % l.depth;
            if (l.num_top[row] < 0 || at >= l.num[row]) continue;
            const int64_t token = l.tokens[row * l.width + l.length[row] - l.num[row] + at];
            const T *logits = (const T *)c.logits + row * c.row_step + l.node(row, at) * c.step;
            A &own = ((A *)l.own)[entry], *best = (A *)l.best + entry * l.top;
            int64_t *best_tokens = l.best_tokens + entry * l.top;
            const SamplingParams params =
                o ? params_of(*o, row, 0) : SamplingParams{1, 1, 0, 1, 0, 0, 0, MIN_P_LAST, {}};
            if (params.temperature == 0) {
                const int64_t certain = argmax(logits, c.size);
                own = token == certain ? A(0) : NEG_INF<A>;
                if (l.num_top[row] > 0) best[0] = 0, best_tokens[0] = certain;
                continue;
            }
            apply_temperature(logits, c.size, A(params.temperature), buffers);
            const A highest = max_of(buffers.scores.data(), c.size);
            if (!std::isfinite(highest)) {
                own = std::numeric_limits<A>::quiet_NaN();
                continue;
            }
            const A least = filter_threshold(params, c.size, highest, buffers);
            int64_t count = 0;
            if (params.is_typical()) count = filtered_tokens(params, c.size, highest, least, buffers);
            token_logprobs(token, l.num_top[row], c.size, least, params.is_typical() ? &count : nullptr, buffers, own,
                           best, best_tokens);
        }
    });
}

}  // namespace paceline
