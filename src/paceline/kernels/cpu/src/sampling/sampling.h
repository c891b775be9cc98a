// Sampling from logits: temperature, top-k, top-p, min-p, typical, epsilon and eta filters, then the exponential race.
//
// Every filter but typical_p keeps the scores above a threshold, so together they are one threshold. It is searched
// among the largest scores only, and noise is generated for those only. kernels/cpu/structs.py mirrors the structs.
#pragma once

#include "sampling/top_k_top_p.h"

namespace paceline {

constexpr double TOP_P_WINDOWS[] = {8, 11, 16,
                                    1e300};  // below the largest score: where candidates of top_p are searched

constexpr double TYPICAL_WINDOWS[] = {0.5, 2, 8,
                                      1e300};  // from the entropy: where candidates of typical_p are searched

// The rows' sampling options (core/sampling.py's SamplingState).
struct SamplingOptions {
    const double *temperature, *top_p, *min_p, *typical_p, *epsilon, *eta;
    const int64_t *top_k, *order, *seed;
};

enum Order : int64_t { MIN_P_LAST, MIN_P_FIRST };  // of top-k, top-p and min-p: transformers' and vLLM's

// Logits of some nodes per row, with strides in elements, and the contiguous output.
struct LogitsBatch {
    int64_t rows, nodes, size, threads;
    const void *logits;
    int64_t row_step, step;
    const int64_t *position;
    int64_t position_row_step, position_step;
    const int64_t *offset;  // of each row, added to its positions; null: 0
    void *out;
    const uint8_t *wanted;  // which nodes; null: all
    int64_t wanted_row_step, wanted_step;
    bool wants(int64_t row, int64_t node) const {
        return !wanted || wanted[row * wanted_row_step + node * wanted_step];
    }
};

// The sampling parameters and noise key of one token. Temperature 0 is greedy.
struct SamplingParams {
    double temperature, top_p, min_p, typical_p, epsilon, eta;
    int64_t top_k, order;
    NoiseKey key;

    // With typical_p the kept tokens are a list, not all above a threshold: the most likely may be excluded.
    bool is_typical() const { return typical_p < 1; }
};

inline SamplingParams params_of(const SamplingOptions &o, int64_t row, int64_t position) {
    return {o.temperature[row], o.top_p[row],   o.min_p[row],
            o.typical_p[row],   o.epsilon[row], o.eta[row],
            o.top_k[row],       o.order[row],   {uint64_t(o.seed[row]), uint32_t(position), 0, 0}};
}

// Logits divided by the temperature.
template <class T>
void apply_temperature(const T *logits, int64_t size, Acc<T> temperature, SortBuffers<Acc<T>> &buffers) {
    constexpr int N = lanes<T>;
    buffers.reserve(size);
    Acc<T> *scores = buffers.scores.data();
    int64_t i = 0;
    if (temperature == 1)
        for (; i + N <= size; i += N) store(scores + i, load(logits + i));
    else
        for (; i + N <= size; i += N) store(scores + i, load(logits + i) / temperature);
    for (; i < size; i++) scores[i] = widen(logits[i]) / temperature;
    for (; i % BLOCK; i++) scores[i] = NEG_INF<Acc<T>>;
}

// The threshold of epsilon and eta, for scores padded with -inf, none above highest; at least least.
template <class A>
A epsilon_eta_threshold(const SamplingParams &params, const A *scores, int64_t size, A highest, A least) {
    const auto cut = [&](double bound) { return std::max(least, std::min(highest, A(highest + std::log(bound)))); };
    if (params.epsilon > 0) least = cut(params.epsilon * weight_sums(scores, size, highest, least).total);
    if (params.eta > 0) {
        const WeightSums spread = weight_sums(scores, size, highest, least);
        least = cut(std::min(params.eta, std::sqrt(params.eta) * std::exp(-spread.entropy())) * spread.total);
    }
    return least;
}

// The threshold of all filters before typical_p, or of all filters without it: scores that are at least this are kept.
// highest is finite.
template <class A>
A filter_threshold(const SamplingParams &params, int64_t size, A highest, SortBuffers<A> &buffers) {
    const A floor = params.min_p > 0 ? highest + std::log(A(params.min_p)) : NEG_INF<A>;
    A least = params.order == MIN_P_FIRST ? floor : NEG_INF<A>;
    if (params.top_k > 0 && params.top_k < size) {
        const int64_t count =
            gather(size, std::max(least, top_k_lower_bound(size, params.top_k, buffers)), buffers);
        std::fill_n(buffers.weights.begin(), count, A(1));
        least =
            std::max(least, weight_threshold(buffers.values.data(), buffers.weights.data(), count, params.top_k));
    }
    if (params.top_p < 1) {
        const bool few = least > NEG_INF<A> && is_sparse(size, least, buffers);
        const int64_t num_kept = few ? gather(size, least, buffers) : 0;
        const double whole = few ? exp_weights(num_kept, buffers.values.data(), highest, buffers)
                                 : sum_weights(size, highest, least, buffers);
        const double goal = A(params.top_p) * whole;
        for (double fall : TOP_P_WINDOWS) {
            const A from = std::max(least, highest - A(std::min<double>(fall, std::numeric_limits<A>::max())));
            const int64_t count = gather(size, from, buffers);
            if (exp_weights(count, buffers.values.data(), highest, buffers) < goal && fall != TOP_P_WINDOWS[3])
                continue;
            least = std::max(least, weight_threshold(buffers.values.data(), buffers.weights.data(), count, goal));
            break;
        }
    }
    least = std::max(least, floor);
    return params.is_typical() ? least : epsilon_eta_threshold(params, buffers.scores.data(), size, highest, least);
}

// typical_p: gathers the scores whose surprisal is nearest to the entropy until their weights reach goal, of those at
// least least, in order, into values and tokens; returns their number.
template <class A>
int64_t typical_tokens(double goal, int64_t size, A highest, A least, SortBuffers<A> &buffers) {
    const WeightSums spread = weight_sums(buffers.scores.data(), size, highest, least);
    const A norm = std::log(A(spread.total)), entropy = spread.entropy();
    const auto nearness = [&](auto score) {
        const auto apart = (score - highest) - norm + entropy;
        return apart > 0 ? -apart : apart;
    };
    goal = A(goal) * spread.total;
    for (double far : TYPICAL_WINDOWS) {
        const A from = -A(std::min<double>(far, std::numeric_limits<A>::max()));
        int64_t count = gather(size, least, buffers, nearness, from);
        for (int64_t i = 0; i < count; i++) buffers.weights[i] = buffers.scores[buffers.tokens[i]];
        if (exp_weights(count, buffers.weights.data(), highest, buffers) < goal && far != TYPICAL_WINDOWS[3])
            continue;
        for (int64_t i = 0; i < count; i++) buffers.values[i] = nearness(buffers.values[i]);
        return gather(size, least, buffers, nearness,
                      weight_threshold(buffers.values.data(), buffers.weights.data(), count, goal));
    }
    return 0;
}

// Gathers the scores that all filters keep, in order, into values and tokens; returns their number.
template <class A>
int64_t filtered_tokens(const SamplingParams &params, int64_t size, A highest, A least, SortBuffers<A> &buffers) {
    const int64_t count = typical_tokens(params.typical_p, size, highest, least, buffers);
    A *values = buffers.values.data();
    std::fill_n(values + count, BLOCK - count % BLOCK, NEG_INF<A>);
    const A from = epsilon_eta_threshold(params, values, count, max_of(values, count), NEG_INF<A>);
    int64_t left = 0;
    for (int64_t i = 0; i < count; i++)
        if (values[i] >= from) values[left] = values[i], buffers.tokens[left++] = buffers.tokens[i];
    return left;
}

// The first of the largest logits.
template <class T>
int64_t argmax(const T *logits, int64_t size) {
    return index_of(logits, size, max_of(logits, size));
}

// The token that the exponential race with the row's noise key samples.
template <class T>
int64_t sample(const SamplingParams &params, const T *logits, int64_t size, SortBuffers<Acc<T>> &buffers) {
    using A = Acc<T>;
    if (params.temperature == 0) return argmax(logits, size);
    apply_temperature(logits, size, A(params.temperature), buffers);
    const A *scores = buffers.scores.data(), highest = max_of(scores, size);
    const int64_t likely = index_of(scores, size, highest);
    if (!std::isfinite(highest)) return likely;  // as in the plain race: NaN or infinity wins
    const A least = filter_threshold(params, size, highest, buffers);
    if (params.is_typical()) {
        const int64_t count = filtered_tokens(params, size, highest, least, buffers);
        return exponential_race_over(params.key, buffers.values.data(), buffers.tokens.data(), count);
    }
    if (least > NEG_INF<A>) {
        const int64_t count = gather(size, least, buffers);
        if (count == 1) return likely;
        if (4 * count < size)
            return exponential_race_over(params.key, buffers.values.data(), buffers.tokens.data(), count);
    }
    return exponential_race(params.key, scores, size, least, likely);
}

// Scores whose softmax is the sampling distribution; -inf where it is 0.
template <class T>
void warp(const SamplingParams &params, const T *logits, int64_t size, Acc<T> *out, SortBuffers<Acc<T>> &buffers) {
    using A = Acc<T>;
    if (params.temperature == 0) {
        std::fill_n(out, size, NEG_INF<A>);
        out[argmax(logits, size)] = 0;
        return;
    }
    apply_temperature(logits, size, A(params.temperature), buffers);
    const A *scores = buffers.scores.data(), highest = max_of(scores, size);
    const A least = std::isfinite(highest) ? filter_threshold(params, size, highest, buffers) : NEG_INF<A>;
    if (params.is_typical() && std::isfinite(highest)) {
        const int64_t count = filtered_tokens(params, size, highest, least, buffers);
        std::fill_n(out, size, NEG_INF<A>);
        for (int64_t i = 0; i < count; i++) out[buffers.tokens[i]] = buffers.values[i];
        return;
    }
    for (int64_t i = 0; i < size; i++) out[i] = scores[i] < least ? NEG_INF<A> : scores[i];
}

// Calls visit(row, position, logits, entry, buffers) for every node of every row.
template <class T, class With>
void for_each_node(const LogitsBatch &c, With visit) {
    const int64_t entries = c.rows * c.nodes;
    parallel_for(entries * c.size > PARALLEL_THRESHOLD ? c.threads : 1, entries, [&](int64_t begin, int64_t end) {
        for (int64_t entry = begin; entry < end; entry++) {
            static thread_local SortBuffers<Acc<T>> buffers;
            const int64_t row = entry / c.nodes, node = entry % c.nodes;
            if (!c.wants(row, node)) {  // only of tokens
                ((int64_t *)c.out)[entry] = 0;
                continue;
            }
            const int64_t position =
                c.position[row * c.position_row_step + node * c.position_step] + (c.offset ? c.offset[row] : 0);
            visit(row, position, (const T *)c.logits + row * c.row_step + node * c.step, entry, buffers);
        }
    });
}

template <class T>
void sample_all(const SamplingOptions &o, const LogitsBatch &c) {
    for_each_node<T>(c, [&](int64_t row, int64_t position, const T *logits, int64_t entry, auto &buffers) {
        ((int64_t *)c.out)[entry] = sample(params_of(o, row, position), logits, c.size, buffers);
    });
}
template <class T>
void argmax_all(const LogitsBatch &c) {
    for_each_node<T>(c, [&](int64_t, int64_t, const T *logits, int64_t entry, auto &) {
        ((int64_t *)c.out)[entry] = argmax(logits, c.size);
    });
}
template <class T>
void warp_all(const SamplingOptions &o, const LogitsBatch &c) {
    for_each_node<T>(c, [&](int64_t row, int64_t position, const T *logits, int64_t entry, auto &buffers) {
        warp(params_of(o, row, position), logits, c.size, (Acc<T> *)c.out + entry * c.size, buffers);
    });
}

// The exponential race over count scores for every key; fields are int64, one per key.
template <class A>
void exponential_race_all(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag, const A *scores,
                          int64_t *out, int64_t threads) {
    parallel_for(keys * count > PARALLEL_THRESHOLD ? threads : 1, keys, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; k++) {
            static thread_local SortBuffers<A> buffers;
            apply_temperature(scores + k * count, count, A(1), buffers);
            const A highest = max_of(buffers.scores.data(), count);
            const int64_t likely = index_of(buffers.scores.data(), count, highest);
            const uint32_t stream = uint32_t(tag | fields[3][k]);
            const NoiseKey key{uint64_t(fields[0][k]), uint32_t(fields[1][k]), uint32_t(fields[2][k]), stream};
            out[k] = std::isfinite(highest) ? exponential_race(key, buffers.scores.data(), count, NEG_INF<A>, likely)
                                            : likely;
        }
    });
}

}  // namespace paceline
