// Tiles of attention (tiles.h) for bf16 with AVX512-BF16: products of pairs.
//
// A vector holds sixteen keys, word by word, or the values of two positions, interleaved. Scores are summed over the
// words of a head and values over pairs of positions, always in order.
#pragma once

#include "attention/tiles.h"

#if defined(__AVX512BF16__)
namespace paceline {

constexpr int KEYS_PER_VECTOR = 16;  // keys, or float32 elements, per vector

// The first count elements, at most one vector, and zeros.
inline __m128i load_eight(const bf16 *p, int count) {
    return count >= 8 ? _mm_loadu_si128((const __m128i *)p) : _mm_maskz_loadu_epi16((1u << count) - 1, p);
}
inline __m256i load_sixteen(const bf16 *p, int count) {
    return count >= 16 ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16((1u << count) - 1, p);
}

// Transposes four words of sixteen rows: out[i] has word i of each row.
inline void transpose_words(const bf16 *rows, long step, int count, __m512i *out) {
    __m512i r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {  // rows i, i + 4, i + 8 and i + 12 in the quarters
        r[i] = _mm512_castsi128_si512(load_eight(rows + i * step, count));
        r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x00f0, load_eight(rows + (i + 4) * step, count));
        r[i] = _mm512_mask_broadcast_i32x4(r[i], 0x0f00, load_eight(rows + (i + 8) * step, count));
        r[i] = _mm512_mask_broadcast_i32x4(r[i], 0xf000, load_eight(rows + (i + 12) * step, count));
    }
    const __m512i low = _mm512_unpacklo_epi32(r[0], r[1]), high = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i low2 = _mm512_unpacklo_epi32(r[2], r[3]), high2 = _mm512_unpackhi_epi32(r[2], r[3]);
    out[0] = _mm512_unpacklo_epi64(low, low2), out[1] = _mm512_unpackhi_epi64(low, low2);
    out[2] = _mm512_unpacklo_epi64(high, high2), out[3] = _mm512_unpackhi_epi64(high, high2);
}

// Transposes sixteen keys, step elements apart: transposed[i] has word i of each key.
inline void transpose_keys(const bf16 *keys, long step, int size, __m512i *transposed) {
    int e = 0;
    for (; e + 8 <= size; e += 8) transpose_words(keys + e, step, 8, transposed + e / 2);
    if (e == size) return;
    __m512i last[4];
    transpose_words(keys + e, step, size - e, last);
    for (int i = e / 2; 2 * i < size; i++) transposed[i] = last[i - e / 2];
}

// Interleaves the values of count positions, step elements apart, in pairs. An odd last one is paired
// with zeros.
inline void interleave_values(const bf16 *values, long step, int count, int size, __m512i *interleaved) {
    alignas(64) static constexpr auto order = [] {
        struct {
            int16_t of[32];
        } turns{};
        for (int i = 0; i < 32; i++) turns.of[i] = i / 2 + i % 2 * 16;
        return turns;
    }();
    const __m512i turns = _mm512_load_si512(order.of);
    auto put = [&](__m256i a, __m256i b) {
        *interleaved++ = _mm512_permutexvar_epi16(turns, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
    };
    const int whole = size / KEYS_PER_VECTOR * KEYS_PER_VECTOR, left = size - whole;
    for (int j = 0; j + 1 < count; j += 2, values += 2 * step) {
        for (int e = 0; e < whole; e += KEYS_PER_VECTOR)
            put(load_sixteen(values + e, KEYS_PER_VECTOR), load_sixteen(values + step + e, KEYS_PER_VECTOR));
        if (left) put(load_sixteen(values + whole, left), load_sixteen(values + step + whole, left));
    }
    if (count % 2)
        for (int e = 0; e < size; e += KEYS_PER_VECTOR) put(load_sixteen(values + e, size - e), __m256i{});
}

// scores[m * ld + j] = (query m, key j), for M queries, padded elements apart, and G vectors of sixteen keys.
template <int M, int G>
[[gnu::noinline]] void score_pairs(const __m512i *transposed, int words, const bf16 *queries, int padded, float *scores,
                                   long ld) {
    __m512 sums[M][G];
    const int *pairs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        pairs[m] = (const int *)(queries + m * padded);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sums[m][g] = _mm512_setzero_ps();
    }
    for (int i = 0; i < words; i++) {
        __m512bh keys[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) keys[g] = (__m512bh)transposed[g * words + i];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const __m512bh query = (__m512bh)_mm512_set1_epi32(pairs[m][i]);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) sums[m][g] = _mm512_dpbf16_ps(sums[m][g], keys[g], query);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) _mm512_storeu_ps(scores + m * ld + g * KEYS_PER_VECTOR, sums[m][g]);
}

// Replaces the scores of count positions by unnormalised softmax weights in bf16, with zeros up to end at least.
// Returns the sum of the rounded weights, so that the normalised ones add up to one.
inline float softmax_row(float *scores, int count, int end, float scale) {
    constexpr int step = 2 * KEYS_PER_VECTOR;
    const int whole = count / step * step;
    auto some = [&](int i) {
        return (__mmask16)(i + KEYS_PER_VECTOR <= count ? 0xffff : i < count ? (1u << (count - i)) - 1 : 0);
    };
    __m512 top = _mm512_set1_ps(-INFINITY), other = top;
    for (int i = 0; i < whole; i += step) {
        top = _mm512_max_ps(top, _mm512_loadu_ps(scores + i));
        other = _mm512_max_ps(other, _mm512_loadu_ps(scores + i + KEYS_PER_VECTOR));
    }
    for (int i = whole; i < count; i += KEYS_PER_VECTOR)
        top = _mm512_mask_max_ps(top, some(i), top, _mm512_loadu_ps(scores + i));
    const __m512 factor = _mm512_set1_ps(scale * 1.44269504f);
    const __m512 most = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(top, other))), factor);
    const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 total = _mm512_setzero_ps();
    auto weights = [&](int i) {
        return (__m512)power_of_two((Floats)_mm512_fmsub_ps(_mm512_loadu_ps(scores + i), factor, most));
    };
    auto add = [&](int i, __m512 first, __m512 second) {
        const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
        total = _mm512_dpbf16_ps(total, both, one);
        _mm512_storeu_si512((bf16 *)scores + i, (__m512i)both);
    };
    for (int i = 0; i < whole; i += step) add(i, weights(i), weights(i + KEYS_PER_VECTOR));
    for (int i = whole; i < end; i += step)
        add(i, _mm512_maskz_mov_ps(some(i), weights(i)),
            _mm512_maskz_mov_ps(some(i + KEYS_PER_VECTOR), weights(i + KEYS_PER_VECTOR)));
    return sum((Floats)total);
}

// sums[m * lds + w] += weights of query m times vector w of the values, over count pairs.
template <int M, int W>
[[gnu::noinline]] void value_pairs(const int *weights, long ld, int count, const __m512i *interleaved, int vectors,
                                   Floats *sums) {
    __m512 acc[M][W];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) acc[m][w] = (__m512)sums[m * vectors + w];
    for (int i = 0; i < count; i++, interleaved += vectors) {
        __m512bh values[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) values[w] = (__m512bh)interleaved[w];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const __m512bh weight = (__m512bh)_mm512_set1_epi32(weights[m * ld + i]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) acc[m][w] = _mm512_dpbf16_ps(acc[m][w], values[w], weight);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) sums[m * vectors + w] = (Floats)acc[m][w];
}

template <>
struct Tiles<bf16> {
    using Packed = __m512i;
    using Query = bf16;
    using Weight = int;  // of two positions
    static constexpr int KEYS = KEYS_PER_VECTOR, STEP = 2;
    static constexpr int SCORE_ROWS = 6;  // 24 sums and their operands fill 32 registers
    template <int M>
    static constexpr int key_vectors = 4;
    static constexpr int MAX_VALUE_ROWS = 8, MAX_VALUE_VECTORS = 4;
    static constexpr int value_vectors(int) { return 4; }
    template <int W>
    static constexpr int value_rows = W == 4 ? 6 : 8;

    static void load_query(const bf16 *from, int size, bf16 *to) {
        std::memcpy(to, from, size * sizeof(bf16));
        if (size % 2) to[size] = {};
    }
    static void transpose_keys(const bf16 *keys, long step, int size, __m512i *transposed) {
        paceline::transpose_keys(keys, step, size, transposed);
    }
    static void pack_values(const bf16 *values, long step, int count, int size, __m512i *packed) {
        interleave_values(values, step, count, size, packed);
    }
    template <int M, int G>
    static void score(const __m512i *keys, int words, const bf16 *queries, int padded, float *scores, long ld) {
        score_pairs<M, G>(keys, words, queries, padded, scores, ld);
    }
    template <int M, int W>
    static void accumulate(const int *weights, long ld, int count, const __m512i *values, int vectors, Floats *sums) {
        value_pairs<M, W>(weights, ld, count, values, vectors, sums);
    }
    static float softmax(float *scores, int count, int end, float scale) {
        return softmax_row(scores, count, end, scale);
    }
};

}  // namespace paceline
#endif
