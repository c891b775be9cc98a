// The race of core/noise.py: argmax of score - log(-log1p(-u)), where a runner's u depends on its key and index alone.
//
// Most runners lose whatever their exact time is, which a bound tells from the bits of u. The others' times come from
// one function over one vector, so that a token does not depend on which runners were looked at together.
#pragma once

#include <limits>

#include "sampling/philox.h"
#include "isa/vectors.h"

namespace paceline {

constexpr int BLOCK = 4 * LANES;       // numbers that one round of counters makes
constexpr float LATEST = 23;           // no time is below -23: u is at least 2**-33
constexpr float LN2 = 0.693147181f;

struct RaceKey {
    uint64_t seed;
    uint32_t position, step, tag;
};

template <class A>
constexpr A NEVER = -std::numeric_limits<A>::infinity();

// Which lanes of a are at least as large as those of b.
inline uint32_t reaching(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#else
    uint32_t lanes = 0;
    for (int i = 0; i < 16; i++) lanes |= uint32_t(a[i] >= b[i]) << i;
    return lanes;
#endif
}
inline uint32_t reaching(Doubles a, Doubles b) {
    uint32_t lanes = 0;
    for (int i = 0; i < 8; i++) lanes |= uint32_t(a[i] >= b[i]) << i;
    return lanes;
}

template <class V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

// The natural logarithm of positive normal numbers to about one unit in the last place.
inline Floats logarithm(Floats x) {
    Ints bits = (Ints)x, exponent = (bits >> 23) - 126;
    Floats m = (Floats)((bits & 0x7fffff) | 0x3f000000);  // in [1/2, 1)
    const auto low = m < 0.707106781f;
    exponent += (Ints)low;  // -1 where true
    m = (low ? m + m : m) - 1.0f;
    const Floats e = __builtin_convertvector(exponent, Floats), z = m * m;
    Floats p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * z + e * -2.12194440e-4f - 0.5f * z;
    return (m + p) + e * 0.693359375f;
}

// log(-log1p(-u)). Not inlined: every call is then rounded in the same way.
__attribute__((noinline)) inline void times(const Floats &u, Floats &time) {
    const Floats w = 1.0f - u;
    const Floats tail = (1.0f - w) - u;  // what rounding took from 1 - u
    time = logarithm(-(logarithm(w) + tail / w));
}
__attribute__((noinline)) inline void times(const Doubles &u, Doubles &time) {
    for (int i = 0; i < lanes<double>; i++) time[i] = std::log(-std::log1p(-u[i]));
}

// Numbers below log(u) and so below the time: the bits of a float grow as its logarithm does, and never faster.
inline Floats early(Floats u) { return __builtin_convertvector((Ints)u, Floats) * (LN2 / 8388608) - 127 * LN2; }
inline Doubles early(Doubles) { return splat<Doubles>(-LATEST); }

// As number() in philox.h.
inline Floats numbers(const uint32_t *words, Floats) {
    Words w;
    std::memcpy(&w, words, sizeof w);
    const Floats u = (__builtin_convertvector(w, Floats) + 0.5f) * (1.0f / 4294967296), most = splat<Floats>(1 - 1.0f / 16777216);
    return u < most ? u : most;
}
inline Doubles numbers(const uint32_t *words, Doubles u) {
    for (int i = 0; i < lanes<double>; i++) u[i] = number<double>(words[i]);
    return u;
}

// Who leads; of equals the one of the lowest index.
template <class A>
class Leader {
   public:
    int64_t token() const { return std::max<int64_t>(token_, 0); }

    // False if runners of at most this score have lost.
    bool may_lead(A score) const { return score + A(LATEST) >= bar_; }

    // lanes<A> runners with their words; name(i) is the index of the i-th.
    template <class Name>
    void enter(Vec<A> score, const uint32_t *words, Name &&name) {
        const Vec<A> u = numbers(words, Vec<A>{});
        uint32_t left = reaching(score - early(u), splat<Vec<A>>(bar_));
        if (!left) return;
        Vec<A> time;
        times(u, time);
        for (; left; left &= left - 1) {
            const int i = __builtin_ctz(left);
            const A value = score[i] - time[i];
            const int64_t token = name(i);
            if (value > best_ || (value == best_ && token < token_)) {
                best_ = value, token_ = token;
                bar_ = value - (A(1e-4) + std::abs(value) * A(1e-6));  // more than rounding can be
            }
        }
    }

   private:
    A best_ = NEVER<A>, bar_ = std::numeric_limits<A>::lowest();
    int64_t token_ = -1;
};

// BLOCK runners that stand side by side, the first at a multiple of BLOCK; scores below least do not run.
template <class A>
void run_block(const RaceKey &key, const A *scores, int64_t first, A least, Leader<A> &leader) {
    constexpr int N = lanes<A>;
    Vec<A> score[BLOCK / N], highest;
    for (int i = 0; i < BLOCK / N; i++) {
        const Vec<A> given = load(scores + first + i * N);
        score[i] = given >= least ? given : splat<Vec<A>>(NEVER<A>);
        highest = i ? larger(highest, score[i]) : score[i];
    }
    bool any = false;
    for (int i = 0; i < N; i++) any |= leader.may_lead(highest[i]);
    if (!any) return;
    uint32_t c[4][LANES], words[BLOCK];
    for (int i = 0; i < LANES; i++) c[0][i] = first / 4 + i, c[1][i] = key.position, c[2][i] = key.step, c[3][i] = key.tag;
    scramble(c, key.seed);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) words[4 * i + j] = c[j][i];
    for (int i = 0; i < BLOCK / N; i++)
        leader.enter(score[i], words + i * N, [&](int lane) { return first + i * N + lane; });
}

// The winner among size scores, padded with -inf to whole blocks, of those that are at least least. ahead is the index
// of one that is likely to lead: what can no longer beat it is passed over.
template <class A>
int64_t race(const RaceKey &key, const A *scores, int64_t size, A least, int64_t ahead) {
    Leader<A> leader;
    run_block(key, scores, ahead / BLOCK * BLOCK, least, leader);
    for (int64_t first = 0; first < size; first += BLOCK) run_block(key, scores, first, least, leader);
    return leader.token();
}

// The winner among count runners with these indices; room for a vector more is read.
template <class A>
int64_t race_of(const RaceKey &key, const A *scores, const int32_t *tokens, int64_t count) {
    constexpr int N = lanes<A>;
    Leader<A> leader;
    for (int64_t first = 0; first < count; first += LANES) {
        uint32_t c[4][LANES], words[LANES];
        A score[LANES];
        for (int i = 0; i < LANES; i++) {
            const bool there = first + i < count;
            c[0][i] = there ? tokens[first + i] / 4 : 0, c[1][i] = key.position, c[2][i] = key.step, c[3][i] = key.tag;
            score[i] = there ? scores[first + i] : NEVER<A>;
        }
        scramble(c, key.seed);
        for (int i = 0; i < LANES; i++) words[i] = c[first + i < count ? tokens[first + i] % 4 : 0][i];
        for (int i = 0; i < LANES; i += N)
            leader.enter(load(score + i), words + i, [&](int lane) { return tokens[first + i + lane]; });
    }
    return leader.token();
}

}  // namespace paceline
