// Top-k/top-p threshold search without a sort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sampling/exponential_race.h"

namespace paceline {

constexpr int BUCKETS = 256;
constexpr int SORT_SIZE = 48;      // up to so many values are sorted
constexpr int SPARSE_FACTOR = 16;  // a list pays if it is so many times shorter than the vocabulary
constexpr int SEGMENT = 512;       // scores of which each lane's maximum is taken

// Buffers of one sampling call, kept per thread between calls.
template <class A>
struct SortBuffers {
    std::vector<A> scores, values, weights;  // scores are padded with -inf to whole blocks
    std::vector<int32_t> tokens;
    void reserve(int64_t size) {
        const int64_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;
        if ((int64_t)scores.size() >= padded) return;
        scores.resize(padded), values.resize(padded + BLOCK), weights.resize(padded + BLOCK),
            tokens.resize(padded + BLOCK);
    }
};

// The largest of count values, or NaN if one of them is NaN.
template <class T>
Acc<T> max_of(const T *p, int64_t count) {
    constexpr int N = lanes<T>;
    Vec<T> most = splat<Vec<T>>(NEG_INF<Acc<T>>);
    decltype(most != most) odd{};
    int64_t i = 0;
    for (; i + N <= count; i += N) {
        const Vec<T> x = load(p + i);
        most = max_lanes(x, most), odd |= x != x;
    }
    Acc<T> highest = NEG_INF<Acc<T>>;
    bool strange = false;
    for (int j = 0; j < N; j++) highest = std::max(highest, most[j]), strange |= odd[j] != 0;
    for (int64_t j = strange ? 0 : i; j < count; j++) {
        const Acc<T> x = widen(p[j]);
        if (x != x) return x;
        highest = std::max(highest, x);
    }
    return highest;
}

// The index of the first of count values that equals highest, or is NaN if highest is.
template <class T>
int64_t index_of(const T *p, int64_t count, Acc<T> highest) {
    constexpr int N = lanes<T>;
    int64_t i = 0;
    if (highest == highest)
        while (i + N <= count && !lanes_at_least(load(p + i), splat<Vec<T>>(highest))) i += N;
    for (; i < count; i++) {
        const Acc<T> x = widen(p[i]);
        if (x == highest || (x != x && highest != highest)) return i;
    }
    return 0;
}

// Gathers the buffers's scores that are at least least and whose worth is at least from, in order, into values and
// tokens; returns their number.
template <class A, class Worth>
int64_t gather(int64_t size, A least, SortBuffers<A> &buffers, Worth &&worth, A from) {
    constexpr int N = lanes<A>;
    const A *scores = buffers.scores.data();
    const Vec<A> bar = splat<Vec<A>>(std::max(least, std::numeric_limits<A>::lowest())), other = splat<Vec<A>>(from);
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += N) {
        const Vec<A> score = load(scores + i);
        for (uint32_t left = lanes_at_least(score, bar) & lanes_at_least(worth(score), other); left; left &= left - 1) {
            const int64_t token = i + __builtin_ctz(left);
            buffers.values[count] = scores[token], buffers.tokens[count++] = token;
        }
    }
    return count;
}
template <class A>
int64_t gather(int64_t size, A least, SortBuffers<A> &buffers) {
    return gather(size, least, buffers, [](Vec<A> score) { return score; }, NEG_INF<A>);
}

// Whether the scores that are at least least are so few that a list of them is faster than a pass over all.
template <class A>
bool is_sparse(int64_t size, A least, const SortBuffers<A> &buffers) {
    constexpr int N = lanes<A>;
    const Vec<A> from = splat<Vec<A>>(least);
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += N) count += __builtin_popcount(lanes_at_least(load(&buffers.scores[i]), from));
    return SPARSE_FACTOR * count < size;
}

// The largest value such that the weights of all values at least as large reach goal; -inf if there is none.
// Overwrites values and weights.
template <class A>
A weight_threshold(A *values, A *weights, int64_t count, double goal) {
    while (count > SORT_SIZE) {
        const auto [least, most] = std::minmax_element(values, values + count);
        const A low = *least, scale = (BUCKETS - 1) / (*most - low);
        if (!(scale > 0) || std::isinf(scale)) break;  // all equal, or too far apart for buckets
        double sum_weights[BUCKETS] = {};
        const auto bucket = [&](A value) { return int((value - low) * scale); };
        for (int64_t i = 0; i < count; i++) sum_weights[bucket(values[i])] += weights[i];
        int found = BUCKETS - 1;
        while (found >= 0 && sum_weights[found] < goal) goal -= sum_weights[found--];
        if (found < 0) return NEG_INF<A>;
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++)
            if (bucket(values[i]) == found) values[kept] = values[i], weights[kept++] = weights[i];
        if (kept == count) break;
        count = kept;
    }
    std::vector<std::pair<A, A>> order(count);
    for (int64_t i = 0; i < count; i++) order[i] = {values[i], weights[i]};
    std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
    double reached = 0;
    for (const auto &[value, weight] : order) {
        reached += weight;
        if (reached >= goal) return value;
    }
    return NEG_INF<A>;
}

// The weights exp(score - highest) of some scores and their sum; scores may be the weights buffer.
template <class A>
double exp_weights(int64_t count, const A *scores, A highest, SortBuffers<A> &buffers) {
    constexpr int N = lanes<A>;
    for (int64_t i = 0; i < count; i += N) store(&buffers.weights[i], exponential(load(scores + i) - highest));
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += buffers.weights[i];
    return total;
}

// Sums over scores: of their weights, and of weight times distance from the largest score.
struct WeightSums {
    double total, fall;
    double entropy() const { return std::log(total) + fall / total; }
};

template <class A>
WeightSums weight_sums(const A *scores, int64_t size, A highest, A least) {
    constexpr int N = lanes<A>;
    least = std::max(least, std::numeric_limits<A>::lowest());
    WeightSums all{};
    for (int64_t i = 0; i < size; i += BLOCK) {
        Vec<A> total{}, fall{};
        for (int j = 0; j < BLOCK; j += N) {
            const Vec<A> score = load(scores + i + j), below = score >= least ? highest - score : Vec<A>{};
            const Vec<A> weight = score >= least ? exponential(-below) : Vec<A>{};
            total += weight, fall += weight > A(0) ? weight * below : Vec<A>{};
        }
        all.total += sum(total), all.fall += sum(fall);
    }
    return all;
}

// The sum of the weights of all scores that are at least least.
template <class A>
double sum_weights(int64_t size, A highest, A least, const SortBuffers<A> &buffers) {
    constexpr int N = lanes<A>;
    double total = 0;
    for (int64_t i = 0; i < size; i += BLOCK) {
        Vec<A> part{};
        for (int j = 0; j < BLOCK; j += N) {
            const Vec<A> x = load(&buffers.scores[i + j]);
            part += x >= least ? exponential(x - highest) : Vec<A>{};
        }
        total += sum(part);
    }
    return total;
}

// A lower bound of the count-th largest score: the maxima of disjoint sets.
template <class A>
A top_k_lower_bound(int64_t size, int64_t count, SortBuffers<A> &buffers) {
    constexpr int N = lanes<A>;
    const int64_t sets = size / SEGMENT * N;
    if (2 * count > sets) return NEG_INF<A>;
    for (int64_t i = 0; i < size / SEGMENT; i++) {
        Vec<A> most = load(&buffers.scores[i * SEGMENT]);
        for (int j = N; j < SEGMENT; j += N) most = max_lanes(load(&buffers.scores[i * SEGMENT + j]), most);
        store(&buffers.values[i * N], most);
    }
    const auto values = buffers.values.begin();
    std::nth_element(values, values + count - 1, values + sets, std::greater<A>());
    return values[count - 1];
}

}  // namespace paceline
