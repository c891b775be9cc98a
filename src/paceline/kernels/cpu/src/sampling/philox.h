// Philox4x32-10 (Salmon et al., SC'11), the counter-based RNG of core/noise.py: 128-bit counters, 64-bit keys.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "thread_pool.h"

namespace paceline {

constexpr int COUNTERS = 16;                 // processed at once, for vectorisation
constexpr int PARALLEL_THRESHOLD = 1 << 15;  // words from which on several threads are used

// Ten rounds over COUNTERS counters of four words each.
#if defined(__AVX512F__)
inline void philox_rounds(uint32_t (&c)[4][COUNTERS], uint64_t seed) {
    __m512i w[4][2];  // a word in the low half of each element; the high half is ignored
    for (int j = 0; j < 4; j++)
        for (int h = 0; h < 2; h++) w[j][h] = _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)&c[j][8 * h]));
    uint32_t k0 = seed, k1 = seed >> 32;
    for (int round = 0; round < 10; round++) {
        for (int h = 0; h < 2; h++) {
            const __m512i a = _mm512_mul_epu32(w[0][h], _mm512_set1_epi64(0xD2511F53u));
            const __m512i b = _mm512_mul_epu32(w[2][h], _mm512_set1_epi64(0xCD9E8D57u));
            w[0][h] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(b, 32), w[1][h]), _mm512_set1_epi64(k0));
            w[2][h] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(a, 32), w[3][h]), _mm512_set1_epi64(k1));
            w[1][h] = b, w[3][h] = a;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < 4; j++)
        for (int h = 0; h < 2; h++) _mm256_storeu_si256((__m256i *)&c[j][8 * h], _mm512_cvtepi64_epi32(w[j][h]));
}
#else
inline void philox_rounds(uint32_t (&c)[4][COUNTERS], uint64_t seed) {
    uint32_t k0 = seed, k1 = seed >> 32;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < COUNTERS; i++) {
            const uint64_t a = uint64_t(0xD2511F53u) * c[0][i], b = uint64_t(0xCD9E8D57u) * c[2][i];
            c[0][i] = uint32_t(b >> 32) ^ c[1][i] ^ k0, c[1][i] = b;
            c[2][i] = uint32_t(a >> 32) ^ c[3][i] ^ k1, c[3][i] = a;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}
#endif

// Calls put(index, word) for each of the count words of a key, in counter order.
template <class Put>
void philox(uint64_t seed, uint32_t position, uint32_t step, uint32_t tag, int64_t count, Put put) {
    for (int64_t first = 0; first < count; first += 4 * COUNTERS) {
        uint32_t c[4][COUNTERS];
        for (int i = 0; i < COUNTERS; i++) c[0][i] = first / 4 + i, c[1][i] = position, c[2][i] = step, c[3][i] = tag;
        philox_rounds(c, seed);
        const int64_t left = count - first;
        if (left >= 4 * COUNTERS) {
            for (int i = 0; i < COUNTERS; i++) {
                put(first + 4 * i, c[0][i]), put(first + 4 * i + 1, c[1][i]);
                put(first + 4 * i + 2, c[2][i]), put(first + 4 * i + 3, c[3][i]);
            }
        } else {
            for (int64_t j = 0; j < left; j++) put(first + j, c[j % 4][j / 4]);
        }
    }
}

// count words for every key; fields are int64, one per key.
inline void philox_words(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag, int64_t *out,
                         int64_t threads) {
    parallel_for(keys * count > PARALLEL_THRESHOLD ? threads : 1, keys, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; k++)
            philox(fields[0][k], fields[1][k], fields[2][k], uint32_t(tag | fields[3][k]), count,
                   [row = out + k * count](int64_t at, uint32_t word) { row[at] = word; });
    });
}

// A word as a uniform: (word + 1/2) / 2**32, rounded as torch rounds it, at most 1 - 2**-24.
template <class T>
T to_uniform(uint32_t word) {
    return std::min((T(word) + T(0.5)) * (T(1) / 4294967296), T(1) - T(1) / 16777216);
}

// count uniforms for every key.
template <class T>
void uniforms(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag, T *out, int64_t threads) {
    parallel_for(keys * count > PARALLEL_THRESHOLD ? threads : 1, keys, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; k++)
            philox(fields[0][k], fields[1][k], fields[2][k], uint32_t(tag | fields[3][k]), count,
                   [row = out + k * count](int64_t at, uint32_t word) { row[at] = to_uniform<T>(word); });
    });
}

}  // namespace paceline
