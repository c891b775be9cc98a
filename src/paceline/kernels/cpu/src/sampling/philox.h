// Philox4x32-10 (Salmon et al., SC'11), the counter-based RNG of core/noise.py: 128-bit counters, 64-bit keys.
#pragma once

#include <algorithm>
#include <cstdint>

#include "isa/instruction_set.h"
#include "thread_pool.h"

namespace paceline {

constexpr int COUNTERS = 16;                 // processed at once, for vectorisation
constexpr int PARALLEL_THRESHOLD = 1 << 15;  // words from which on several threads are used

// Multiplications of the low halves of 64-bit elements, with what comes before and after.
#if defined(__AVX512F__)
struct Products {
    using Vector = uint64_t __attribute__((vector_size(64)));
    static constexpr int size = 8;
    static Vector load(const uint32_t *p) {
        return (Vector)_mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)p));
    }
    static void store(uint32_t *p, Vector v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi64_epi32((__m512i)v)); }
    static Vector multiply(Vector v, uint32_t by) {
        return (Vector)_mm512_mul_epu32((__m512i)v, _mm512_set1_epi64(by));
    }
};
#elif defined(__AVX2__)
struct Products {
    using Vector = uint64_t __attribute__((vector_size(32)));
    static constexpr int size = 4;
    static Vector load(const uint32_t *p) { return (Vector)_mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)p)); }
    static void store(uint32_t *p, Vector v) {
        const __m128 low = _mm_castsi128_ps(_mm256_castsi256_si128((__m256i)v));
        const __m128 high = _mm_castsi128_ps(_mm256_extracti128_si256((__m256i)v, 1));
        _mm_storeu_ps((float *)p, _mm_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
    }
    static Vector multiply(Vector v, uint32_t by) {
        return (Vector)_mm256_mul_epu32((__m256i)v, _mm256_set1_epi64x(by));
    }
};
#elif defined(__aarch64__)
struct Products {
    using Vector = uint64x2_t;
    static constexpr int size = 2;
    static Vector load(const uint32_t *p) { return vmovl_u32(vld1_u32(p)); }
    static void store(uint32_t *p, Vector v) { vst1_u32(p, vmovn_u64(v)); }
    static Vector multiply(Vector v, uint32_t by) { return vmull_n_u32(vmovn_u64(v), by); }
};
#else
struct Products {
    using Vector = uint64_t;
    static constexpr int size = 1;
    static Vector load(const uint32_t *p) { return *p; }
    static void store(uint32_t *p, Vector v) { *p = v; }
    static Vector multiply(Vector v, uint32_t by) { return uint64_t(uint32_t(v)) * by; }
};
#endif

// Ten rounds over COUNTERS counters of four words each.
inline void philox_rounds(uint32_t (&c)[4][COUNTERS], uint64_t seed) {
    constexpr int AT_ONCE = 4 * Products::size < COUNTERS ? 4 : COUNTERS / Products::size;  // vectors of each word
    for (int at = 0; at < COUNTERS; at += AT_ONCE * Products::size) {
        typename Products::Vector w[4][AT_ONCE];  // a word in the low half of each element; the high half is ignored
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
            for (int h = 0; h < AT_ONCE; h++) w[j][h] = Products::load(&c[j][at + h * Products::size]);
        uint64_t k0 = uint32_t(seed), k1 = seed >> 32;
        for (int round = 0; round < 10; round++) {
#pragma GCC unroll 4
            for (int h = 0; h < AT_ONCE; h++) {
                const auto a = Products::multiply(w[0][h], 0xD2511F53u), b = Products::multiply(w[2][h], 0xCD9E8D57u);
                w[0][h] = (b >> 32) ^ w[1][h] ^ k0, w[2][h] = (a >> 32) ^ w[3][h] ^ k1;
                w[1][h] = b, w[3][h] = a;
            }
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
            for (int h = 0; h < AT_ONCE; h++) Products::store(&c[j][at + h * Products::size], w[j][h]);
    }
}

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
