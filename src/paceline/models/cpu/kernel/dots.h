// Products of a few rows with a matrix whose rows lie one after another, as checkpoints hold them: nothing is packed.
//
// y[m][n] = sum over k of w[n][k] x[m][k]. Every sum runs over k in the same order whatever the tile, so that a row's
// result does not depend on the rows beside it: a token scored alone and in a draft has the same logits, bit for bit.
#pragma once

#include "scalar.h"

namespace paceline {

constexpr int MOST_ROWS = 6;  // of x in one tile: with 4 rows of w, 24 sums and their operands fill the registers

// One tile of N (4 or 8) rows of w and M rows of x; out[m * N + n].
template <class T, int N, int M>
inline void tile(const T *w, long ldw, const T *x, long ldx, int k, Acc<T> *out) {
    using V = Vec<T>;
    V acc[M][N] = {};
    int i = 0;
    auto add = [&](auto &&get) {
        V wide[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) wide[n] = get(w + n * ldw + i);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            V row = get(x + m * ldx + i);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[m][n] += wide[n] * row;
        }
    };
    for (; i + lanes<T> <= k; i += lanes<T>) add([](const T *p) { return load(p); });
    if (i < k) add([&](const T *p) { return load_some(p, k - i); });
    for (int m = 0; m < M; m++) {
        if constexpr (N == 1) {
            out[m] = sum(acc[m][0]);
        } else {
            for (int n = 0; n < N; n += 4) {
                V four[4] = {acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3]};
                sums(four, out + m * N + n);
            }
        }
    }
}

#if defined(__AVX512BF16__)
// The same for bfloat16 where the machine multiplies pairs of it.
template <int N, int M>
inline void tile_pairs(const bf16 *w, long ldw, const bf16 *x, long ldx, int k, float *out) {
    __m512 acc[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[m][n] = _mm512_setzero_ps();
    int i = 0;
    auto add = [&](auto &&get) {
        __m512bh wide[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) wide[n] = get(w + n * ldw + i);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            __m512bh row = get(x + m * ldx + i);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[m][n] = _mm512_dpbf16_ps(acc[m][n], wide[n], row);
        }
    };
    for (; i + 32 <= k; i += 32) add([](const bf16 *p) { return (__m512bh)_mm512_loadu_si512(p); });
    if (i < k) {
        __mmask32 some = (1u << (k - i)) - 1;
        add([&](const bf16 *p) { return (__m512bh)_mm512_maskz_loadu_epi16(some, p); });
    }
    for (int m = 0; m < M; m++) {
        if constexpr (N == 1) {
            out[m] = sum((Floats)acc[m][0]);
        } else {
            for (int n = 0; n < N; n += 4) {
                Floats four[4] = {(Floats)acc[m][n], (Floats)acc[m][n + 1], (Floats)acc[m][n + 2], (Floats)acc[m][n + 3]};
                sums(four, out + m * N + n);
            }
        }
    }
}
template <>
inline void tile<bf16, 1, 1>(const bf16 *w, long ldw, const bf16 *x, long ldx, int k, float *out) {
    tile_pairs<1, 1>(w, ldw, x, ldx, k, out);
}
#define PACELINE_PAIRS(N, M)                                                                                   \
    template <>                                                                                                \
    inline void tile<bf16, N, M>(const bf16 *w, long ldw, const bf16 *x, long ldx, int k, float *out) {        \
        tile_pairs<N, M>(w, ldw, x, ldx, k, out);                                                              \
    }
PACELINE_PAIRS(1, 2)
PACELINE_PAIRS(1, 3)
PACELINE_PAIRS(1, 4)
PACELINE_PAIRS(1, 5)
PACELINE_PAIRS(1, 6)
PACELINE_PAIRS(4, 1)
PACELINE_PAIRS(4, 2)
PACELINE_PAIRS(4, 3)
PACELINE_PAIRS(4, 4)
PACELINE_PAIRS(4, 5)
PACELINE_PAIRS(4, 6)
PACELINE_PAIRS(8, 1)
#undef PACELINE_PAIRS
#endif

// A tile of m rows of x, 1 to MOST_ROWS.
template <class T, int N>
inline void tile_of(int m, const T *w, long ldw, const T *x, long ldx, int k, Acc<T> *out) {
    switch (m) {
        case 1: return tile<T, N, 1>(w, ldw, x, ldx, k, out);
        case 2: return tile<T, N, 2>(w, ldw, x, ldx, k, out);
        case 3: return tile<T, N, 3>(w, ldw, x, ldx, k, out);
        case 4: return tile<T, N, 4>(w, ldw, x, ldx, k, out);
        case 5: return tile<T, N, 5>(w, ldw, x, ldx, k, out);
        default: return tile<T, N, 6>(w, ldw, x, ldx, k, out);
    }
}

// Hands every y[m][n], n from begin to end, to put(m, n, N, sums): N of one row side by side.
template <class T, class Put>
inline void multiply(const T *w, long ldw, int begin, int end, const T *x, long ldx, int rows, int k, Put &&put) {
    Acc<T> out[MOST_ROWS * 8];
    if (rows == 1) {
        int n = begin;
        for (; n + 8 <= end; n += 8) {
            tile<T, 8, 1>(w + n * ldw, ldw, x, ldx, k, out);
            put(0, n, 8, out);
        }
        for (; n < end; n++) {
            tile<T, 1, 1>(w + n * ldw, ldw, x, ldx, k, out);
            put(0, n, 1, out);
        }
        return;
    }
    // Rows of x that stay in the second-level cache while all of w passes.
    const int most = std::max<long>(MOST_ROWS, 256 * 1024 / (k * (long)sizeof(T)) / MOST_ROWS * MOST_ROWS);
    for (int first = 0; first < rows; first += most) {
        const int count = std::min(most, rows - first), tiles = (count + MOST_ROWS - 1) / MOST_ROWS;
        auto sweep = [&](int n, auto width) {
            constexpr int N = decltype(width)::value;
            for (int t = 0, m = first; t < tiles; t++) {
                const int size = (first + count - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
                tile_of<T, N>(size, w + n * ldw, ldw, x + m * ldx, ldx, k, out);
                for (int j = 0; j < size; j++) put(m + j, n, N, out + j * N);
                m += size;
            }
        };
        int n = begin;
        for (; n + 4 <= end; n += 4) sweep(n, std::integral_constant<int, 4>{});
        for (; n < end; n++) sweep(n, std::integral_constant<int, 1>{});
    }
}

}  // namespace paceline
