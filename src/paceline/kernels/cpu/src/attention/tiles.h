// Tiles of attention in vectors of float or double: QK^T scores, the softmax, and the weighted sum of values.
//
// A vector holds one element of as many keys as it has lanes, or elements of one position's value, so no sum runs
// across a vector; widening and transposing are shared by all queries. Scores are summed over the elements of a head
// and values over positions, always in order, so a query's result is batch-invariant. tiles_bf16.h is the version for
// AVX512-BF16.
#pragma once

#include "elementwise.h"

namespace paceline {

// Calls with(n as a constant) for a runtime n from 1 to Most.
template <int Most, int N = 1, class With>
inline void with_constant(int n, With &&with) {
    if constexpr (N < Most)
        if (n > N) return with_constant<Most, N + 1>(n, with);
    with(std::integral_constant<int, N>{});
}

// A vector of 16-byte quarters.
inline Floats join(const FourFloats *quarters) {
#if defined(__AVX512F__)
    __m512 v = _mm512_castps128_ps512((__m128)quarters[0]);
    v = _mm512_mask_broadcast_f32x4(v, 0x00f0, (__m128)quarters[1]);
    v = _mm512_mask_broadcast_f32x4(v, 0x0f00, (__m128)quarters[2]);
    return (Floats)_mm512_mask_broadcast_f32x4(v, 0xf000, (__m128)quarters[3]);
#elif defined(__AVX2__)
    return (Floats)_mm256_set_m128((__m128)quarters[1], (__m128)quarters[0]);
#else
    return (Floats)quarters[0];
#endif
}

// Transposes the four by four elements in every 16 bytes of four vectors.
inline void transpose_quarters(Floats (&r)[4]) {
#if defined(__AVX512F__)
    const __m512 a = _mm512_unpacklo_ps((__m512)r[0], (__m512)r[1]), b = _mm512_unpackhi_ps((__m512)r[0], (__m512)r[1]);
    const __m512 c = _mm512_unpacklo_ps((__m512)r[2], (__m512)r[3]), d = _mm512_unpackhi_ps((__m512)r[2], (__m512)r[3]);
    r[0] = (Floats)_mm512_unpacklo_pd((__m512d)a, (__m512d)c);
    r[1] = (Floats)_mm512_unpackhi_pd((__m512d)a, (__m512d)c);
    r[2] = (Floats)_mm512_unpacklo_pd((__m512d)b, (__m512d)d);
    r[3] = (Floats)_mm512_unpackhi_pd((__m512d)b, (__m512d)d);
#elif defined(__AVX2__)
    const __m256 a = _mm256_unpacklo_ps((__m256)r[0], (__m256)r[1]), b = _mm256_unpackhi_ps((__m256)r[0], (__m256)r[1]);
    const __m256 c = _mm256_unpacklo_ps((__m256)r[2], (__m256)r[3]), d = _mm256_unpackhi_ps((__m256)r[2], (__m256)r[3]);
    r[0] = (Floats)_mm256_unpacklo_pd((__m256d)a, (__m256d)c);
    r[1] = (Floats)_mm256_unpackhi_pd((__m256d)a, (__m256d)c);
    r[2] = (Floats)_mm256_unpacklo_pd((__m256d)b, (__m256d)d);
    r[3] = (Floats)_mm256_unpackhi_pd((__m256d)b, (__m256d)d);
#elif defined(__aarch64__)
    const float64x2_t a = (float64x2_t)vzip1q_f32((float32x4_t)r[0], (float32x4_t)r[1]);
    const float64x2_t b = (float64x2_t)vzip2q_f32((float32x4_t)r[0], (float32x4_t)r[1]);
    const float64x2_t c = (float64x2_t)vzip1q_f32((float32x4_t)r[2], (float32x4_t)r[3]);
    const float64x2_t d = (float64x2_t)vzip2q_f32((float32x4_t)r[2], (float32x4_t)r[3]);
    r[0] = (Floats)vzip1q_f64(a, c);
    r[1] = (Floats)vzip2q_f64(a, c);
    r[2] = (Floats)vzip1q_f64(b, d);
    r[3] = (Floats)vzip2q_f64(b, d);
#else
    Floats t[4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) t[i][j] = r[j][i];
    for (int i = 0; i < 4; i++) r[i] = t[i];
#endif
}

// scores[m * ld + j] = (query m, key j), for M queries, size elements apart, and G vectors of keys.
template <class A, int M, int G>
[[gnu::noinline]] void score_tile(const Vec<A> *keys, int size, const A *queries, A *scores, long ld) {
    Vec<A> sums[M][G];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sums[m][g] = Vec<A>{};
    for (int i = 0; i < size; i++) {
        Vec<A> key[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) key[g] = keys[g * size + i];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const Vec<A> query = splat<Vec<A>>(queries[m * size + i]);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) sums[m][g] = multiply_add(key[g], query, sums[m][g]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) store(scores + m * ld + g * lanes<A>, sums[m][g]);
}

// sums[m * vectors + w] += weight of query m times vector w of the values, over count positions.
template <class A, int M, int W>
[[gnu::noinline]] void value_tile(const A *weights, long ld, int count, const Vec<A> *values, int vectors,
                                  Vec<A> *sums) {
    Vec<A> acc[M][W];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) acc[m][w] = sums[m * vectors + w];
    for (int i = 0; i < count; i++, values += vectors) {
        Vec<A> value[W];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) value[w] = values[w];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const Vec<A> weight = splat<Vec<A>>(weights[m * ld + i]);
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) acc[m][w] = multiply_add(value[w], weight, acc[m][w]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) sums[m * vectors + w] = acc[m][w];
}

// The types and functions of Attention<T>; vectors of keys and values hold KEYS of float or double.
template <class T>
struct Tiles {
    using Packed = Vec<T>;  // a vector of keys or values
    using Query = Acc<T>;
    using Weight = Acc<T>;
    static constexpr int KEYS = lanes<T>;
    static constexpr int STEP = 1;  // elements per vector of keys, and positions per vector of values
    // Vectors of keys, and queries, in a score tile: their sums and operands fill the registers.
    static constexpr int SCORE_ROWS = 6;
    template <int M>
    static constexpr int key_vectors = NUM_REGISTERS == 32 || M < 3 ? 4 : 2;
    // Vectors of a head, and queries, in a value tile.
    static constexpr int MAX_VALUE_ROWS = 8, MAX_VALUE_VECTORS = 4;
    static constexpr int value_vectors(int rows) { return NUM_REGISTERS == 32 || rows < 3 ? 4 : 2; }
    template <int W>
    static constexpr int value_rows = NUM_REGISTERS == 32 ? (W == 4 ? 6 : 8)
                                      : W == 1            ? 8
                                      : W == 2            ? 6
                                      : W == 3            ? 3
                                                          : 2;

    static void load_query(const T *from, int size, Query *to) {
        for_each_vector<T>(size, [&](int i, auto count) {
            store_partial<Acc<T>>(to + i, load_partial(from + i, count), count);
        });
    }

    // Transposes KEYS keys, step elements apart: transposed[i] has element i of each key.
    static void transpose_keys(const T *keys, long step, int size, Packed *transposed) {
        int e = 0;
        if constexpr (std::is_same_v<T, bf16>)
            for (; e + 8 <= size; e += 8) transpose_pairs(keys + e, step, transposed + e);
        if constexpr (!std::is_same_v<T, double>)
            for (; e + 4 <= size; e += 4) transpose_four(keys + e, step, transposed + e);
        for (; e < size; e++)
            for (int j = 0; j < KEYS; j++) transposed[e][j] = widen(keys[j * step + e]);
    }

    // The values of count positions, step elements apart.
    static void pack_values(const T *values, long step, int count, int size, Packed *packed) {
        for (int j = 0; j < count; j++, values += step)
            for_each_vector<T>(size, [&](int e, auto count) { *packed++ = load_partial(values + e, count); });
    }

    template <int M, int G>
    static void score(const Packed *keys, int words, const Query *queries, int, Acc<T> *scores, long ld) {
        score_tile<Acc<T>, M, G>(keys, words, queries, scores, ld);
    }
    template <int M, int W>
    static void accumulate(const Weight *weights, long ld, int count, const Packed *values, int vectors, Packed *sums) {
        value_tile<Acc<T>, M, W>(weights, ld, count, values, vectors, sums);
    }

    // Replaces the scores of count positions by unnormalised softmax weights, with zeros up to end at least. Returns
    // the sum of the weights.
    static Acc<T> softmax(Acc<T> *scores, int count, int end, Acc<T> scale) {
        Vec<T> top = splat<Vec<T>>(-INFINITY), total{};
        const int whole = count / KEYS * KEYS;
        std::fill(scores + count, scores + whole + KEYS, Acc<T>(-INFINITY));
        for (int i = 0; i < count; i += KEYS) {
            const Vec<T> v = load(scores + i);
            top = v > top ? v : top;
        }
        Acc<T> most = top[0];
        for (int j = 1; j < KEYS; j++) most = std::max<Acc<T>>(most, top[j]);
        for (int i = 0; i < count; i += KEYS) {
            const Vec<T> weights = exponential((load(scores + i) - most) * scale);
            total += weights;
            store(scores + i, weights);
        }
        for (int i = whole + (count > whole ? KEYS : 0); i < end; i += KEYS) store(scores + i, Vec<T>{});
        return sum(total);
    }

   private:
    // Four elements of each key.
    static void transpose_four(const T *keys, long step, Packed *transposed) {
        Floats r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {  // keys i, i + 4, ... in the quarters
            FourFloats quarters[KEYS / 4];
#pragma GCC unroll 4
            for (int j = 0; j < KEYS / 4; j++) quarters[j] = widen_four(keys + (i + 4 * j) * step);
            r[i] = join(quarters);
        }
        transpose_quarters(r);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) transposed[i] = r[i];
    }
    // Eight elements of each key, as pairs.
    static void transpose_pairs(const T *keys, long step, Packed *transposed) {
        Floats r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            FourFloats quarters[KEYS / 4];
#pragma GCC unroll 4
            for (int j = 0; j < KEYS / 4; j++) std::memcpy(&quarters[j], keys + (i + 4 * j) * step, 16);
            r[i] = join(quarters);
        }
        transpose_quarters(r);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            transposed[2 * i] = (Floats)((Words)r[i] << 16);
            transposed[2 * i + 1] = (Floats)((Words)r[i] & 0xffff0000);
        }
    }
};

}  // namespace paceline
