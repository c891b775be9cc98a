// Exponential-race (Gumbel-max) sampling: argmax of score - log(-log1p(-u)), with u keyed by noise key and token id.
//
// A bound from the bits of u rules out most tokens without computing a logarithm. The others' times come from one
// function on one vector, so a sampled token does not depend on which tokens were evaluated together.
#pragma once

#include <limits>

#include "sampling/philox.h"
#include "isa/vectors.h"

namespace paceline {

constexpr int BLOCK = 4 * COUNTERS;          // words of one round of counters
constexpr float MAX_NEGATIVE_LOG_TIME = 23;  // log times are at least -23, since u >= 2**-33
constexpr float LN2 = 0.693147181f;

struct NoiseKey {
    uint64_t seed;
    uint32_t position, step, tag;
};

template <class A>
constexpr A NEG_INF = -std::numeric_limits<A>::infinity();

// Mask of the lanes where a >= b.
inline uint32_t lanes_at_least(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
#elif defined(__aarch64__)
    return vaddvq_u32((uint32x4_t)(a >= b) & uint32x4_t{1, 2, 4, 8});
#else
    uint32_t mask = 0;
    for (int i = 0; i < lanes<float>; i++) mask |= uint32_t(a[i] >= b[i]) << i;
    return mask;
#endif
}
inline uint32_t lanes_at_least(Doubles a, Doubles b) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GE_OQ);
#elif defined(__AVX2__)
    return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)a, (__m256d)b, _CMP_GE_OQ));
#else
    uint32_t mask = 0;
    for (int i = 0; i < lanes<double>; i++) mask |= uint32_t(a[i] >= b[i]) << i;
    return mask;
#endif
}

template <class V>
inline V max_lanes(V a, V b) {
    return a > b ? a : b;
}

// Natural logarithm of positive normal numbers, to about one unit in the last place.
inline Floats logarithm(Floats x) {
    Ints bits = (Ints)x, exponent = (bits >> 23) - 126;
    Floats m = (Floats)((bits & 0x7fffff) | 0x3f000000);  // in [1/2, 1)
    const auto low = m < 0.707106781f;
    exponent += (Ints)low;  // -1 where true
    m = (low ? m + m : m) - 1.0f;
    const Floats e = __builtin_convertvector(exponent, Floats), z = m * m;
    Floats p = multiply_add(m, 7.0376836292e-2f, -1.1514610310e-1f);
    p = multiply_add(p, m, 1.1676998740e-1f);
    p = multiply_add(p, m, -1.2420140846e-1f);
    p = multiply_add(p, m, 1.4249322787e-1f);
    p = multiply_add(p, m, -1.6668057665e-1f);
    p = multiply_add(p, m, 2.0000714765e-1f);
    p = multiply_add(p, m, -2.4999993993e-1f);
    p = multiply_add(p, m, 3.3333331174e-1f);
    p = multiply_add(p * m, z, multiply_add(e, -2.12194440e-4f, -0.5f * z));
    return multiply_add(e, 0.693359375f, m + p);
}

// log(-log1p(-u)). Not inlined, so that every call rounds in the same way.
__attribute__((noinline)) inline void log_times(const Floats &u, Floats &time) {
    const Floats w = 1.0f - u;
    const Floats tail = (1.0f - w) - u;  // the rounding error of 1 - u
    time = logarithm(-(logarithm(w) + tail / w));
}
__attribute__((noinline)) inline void log_times(const Doubles &u, Doubles &time) {
    for (int i = 0; i < lanes<double>; i++) time[i] = std::log(-std::log1p(-u[i]));
}

// A lower bound of log(u), and so of the log time: the bits of a float grow as its logarithm does, and never faster.
inline Floats log_time_lower_bound(Floats u) {
    return __builtin_convertvector((Ints)u, Floats) * (LN2 / 8388608) - 127 * LN2;
}
inline Doubles log_time_lower_bound(Doubles) { return splat<Doubles>(-MAX_NEGATIVE_LOG_TIME); }

// As to_uniform in philox.h.
inline Floats to_uniforms(const uint32_t *words, Floats) {
    Words w;
    std::memcpy(&w, words, sizeof w);
    const Floats u = (__builtin_convertvector(w, Floats) + 0.5f) * (1.0f / 4294967296),
                 most = splat<Floats>(1 - 1.0f / 16777216);
    return u < most ? u : most;
}
inline Doubles to_uniforms(const uint32_t *words, Doubles u) {
    for (int i = 0; i < lanes<double>; i++) u[i] = to_uniform<double>(words[i]);
    return u;
}

// The best token so far; of equals the one with the lowest id.
template <class A>
class BestSoFar {
   public:
    int64_t token() const { return std::max<int64_t>(token_, 0); }

    // False if tokens with at most this score cannot win any more.
    bool can_win(A score) const { return score + A(MAX_NEGATIVE_LOG_TIME) >= bar_; }

    // lanes<A> tokens with their random words; name(i) is the id of the i-th.
    template <class Name>
    void add(Vec<A> score, const uint32_t *words, Name &&name) {
        const Vec<A> u = to_uniforms(words, Vec<A>{});
        uint32_t left = lanes_at_least(score - log_time_lower_bound(u), splat<Vec<A>>(bar_));
        if (!left) return;
        Vec<A> time;
        log_times(u, time);
        for (; left; left &= left - 1) {
            const int i = __builtin_ctz(left);
            const A value = score[i] - time[i];
            const int64_t token = name(i);
            if (value > best_ || (value == best_ && token < token_)) {
                best_ = value, token_ = token;
                bar_ = value - (A(1e-4) + std::abs(value) * A(1e-6));  // more than the rounding error
            }
        }
    }

   private:
    A best_ = NEG_INF<A>, bar_ = std::numeric_limits<A>::lowest();
    int64_t token_ = -1;
};

// BLOCK adjacent tokens, the first a multiple of BLOCK; scores below least are excluded.
template <class A>
void race_block(const NoiseKey &key, const A *scores, int64_t first, A least, BestSoFar<A> &best) {
    constexpr int N = lanes<A>;
    Vec<A> score[BLOCK / N], highest;
    for (int i = 0; i < BLOCK / N; i++) {
        const Vec<A> given = load(scores + first + i * N);
        score[i] = given >= least ? given : splat<Vec<A>>(NEG_INF<A>);
        highest = i ? max_lanes(highest, score[i]) : score[i];
    }
    bool any = false;
    for (int i = 0; i < N; i++) any |= best.can_win(highest[i]);
    if (!any) return;
    uint32_t c[4][COUNTERS], words[BLOCK];
    for (int i = 0; i < COUNTERS; i++)
        c[0][i] = first / 4 + i, c[1][i] = key.position, c[2][i] = key.step, c[3][i] = key.tag;
    philox_rounds(c, key.seed);
    for (int i = 0; i < COUNTERS; i++)
        for (int j = 0; j < 4; j++) words[4 * i + j] = c[j][i];
    for (int i = 0; i < BLOCK / N; i++)
        best.add(score[i], words + i * N, [&](int lane) { return first + i * N + lane; });
}

// The winner among size scores, padded with -inf to whole blocks, of those that are at least least. likely is a token
// that probably wins: it is tried first, so that most others can be skipped.
template <class A>
int64_t exponential_race(const NoiseKey &key, const A *scores, int64_t size, A least, int64_t likely) {
    BestSoFar<A> best;
    race_block(key, scores, likely / BLOCK * BLOCK, least, best);
    for (int64_t first = 0; first < size; first += BLOCK) race_block(key, scores, first, least, best);
    return best.token();
}

// The winner among count tokens with these ids; the arrays must have room for one more vector.
template <class A>
int64_t exponential_race_over(const NoiseKey &key, const A *scores, const int32_t *tokens, int64_t count) {
    constexpr int N = lanes<A>;
    BestSoFar<A> best;
    for (int64_t first = 0; first < count; first += COUNTERS) {
        uint32_t c[4][COUNTERS], words[COUNTERS];
        A score[COUNTERS];
        for (int i = 0; i < COUNTERS; i++) {
            const bool there = first + i < count;
            c[0][i] = there ? tokens[first + i] / 4 : 0, c[1][i] = key.position, c[2][i] = key.step, c[3][i] = key.tag;
            score[i] = there ? scores[first + i] : NEG_INF<A>;
        }
        philox_rounds(c, key.seed);
        for (int i = 0; i < COUNTERS; i++) words[i] = c[first + i < count ? tokens[first + i] % 4 : 0][i];
        for (int i = 0; i < COUNTERS; i += N)
            best.add(load(score + i), words + i, [&](int lane) { return tokens[first + i + lane]; });
    }
    return best.token();
}

}  // namespace paceline
