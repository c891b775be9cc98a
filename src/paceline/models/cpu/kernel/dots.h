// Products of a few rows with a matrix whose rows lie one after another, as checkpoints hold them: nothing is packed.
//
// y[m][n] = sum over k of w[n][k] x[m][k]. Every sum runs over k in the same order whatever the tile, so that a row's
// result does not depend on the rows beside it: a token scored alone and in a draft has the same logits, bit for bit.
#pragma once

#include <algorithm>

#include "scalar.h"

namespace paceline {

constexpr int MOST_ROWS = 6;  // of x in one tile: with 4 rows of w, 24 sums and their operands fill the registers
constexpr int AHEAD = 8;      // tiles between what is read and what is asked of memory
constexpr long PASS = 128 * 1024;  // bytes of w that stay in the second-level cache while several tiles of x read them

inline void want(const void *p) { __builtin_prefetch(p, 0, 3); }        // soon: in the first-level cache
inline void want_later(const void *p) { __builtin_prefetch(p, 0, 2); }  // in the second

// The memory after the rows of a tile, and that at far, line by line as the tile proceeds.
template <int N>
struct Ahead {
    const char *near, *far;
    inline void step() {
        if constexpr (N > 1) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                want(near + n * 64);
                want_later(far + n * 64);
            }
            near += N * 64;
            far += N * 64;
        }
    }
};

// One tile of N (1, 4 or 8) rows of w and M rows of x; out[m * N + n]. On the way it asks for the rows after these, and
// for the N rows at far: a row is short, and the machine's own foresight starts anew with each.
template <class T, int N, int M>
[[gnu::noinline]] void tile(const T *w, long ldw, const T *x, long ldx, int k, const T *far, Acc<T> *out) {
    using V = Vec<T>;
    V acc[M][N] = {};
    Ahead<N> ahead{(const char *)(w + N * ldw), (const char *)far};
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
    for (; i + lanes<T> <= k; i += lanes<T>) {
        ahead.step();
        add([](const T *p) { return load(p); });
    }
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
[[gnu::noinline]] void tile_pairs(const bf16 *w, long ldw, const bf16 *x, long ldx, int k, const bf16 *far, float *out) {
    __m512 acc[M][N];
    Ahead<N> ahead{(const char *)(w + N * ldw), (const char *)far};
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
    for (; i + 32 <= k; i += 32) {
        ahead.step();
        add([](const bf16 *p) { return (__m512bh)_mm512_loadu_si512(p); });
    }
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
#define PACELINE_PAIRS(N, M)                                                                                   \
    template <>                                                                                                \
    inline void tile<bf16, N, M>(const bf16 *w, long ldw, const bf16 *x, long ldx, int k, const bf16 *far, \
                                   float *out) {                                                               \
        tile_pairs<N, M>(w, ldw, x, ldx, k, far, out);                                                         \
    }
PACELINE_PAIRS(1, 1)
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
inline void tile_of(int m, const T *w, long ldw, const T *x, long ldx, int k, const T *far, Acc<T> *out) {
    switch (m) {
        case 1: return tile<T, N, 1>(w, ldw, x, ldx, k, far, out);
        case 2: return tile<T, N, 2>(w, ldw, x, ldx, k, far, out);
        case 3: return tile<T, N, 3>(w, ldw, x, ldx, k, far, out);
        case 4: return tile<T, N, 4>(w, ldw, x, ldx, k, far, out);
        case 5: return tile<T, N, 5>(w, ldw, x, ldx, k, far, out);
        default: return tile<T, N, 6>(w, ldw, x, ldx, k, far, out);
    }
}

// How many numbers stand side by side, known to the compiler.
template <int N>
using Count = std::integral_constant<int, N>;

// Hands every y[m][n], n from begin to end, to put(m, n, Count<N>, sums): N of one row side by side.
template <class T, class Put>
inline void multiply(const T *w, long ldw, int begin, int end, const T *x, long ldx, int rows, int k, Put &&put) {
    Acc<T> out[MOST_ROWS * 8];
    auto one_by_one = [&](int n, int m, int size) {
        for (; n < end; n++) {
            tile_of<T, 1>(size, w + n * ldw, ldw, x + m * ldx, ldx, k, w, out);
            for (int j = 0; j < size; j++) put(m + j, n, Count<1>{}, out + j);
        }
    };
    if (rows == 1) {
        int n = begin;
        for (; n + 8 <= end; n += 8) {
            tile<T, 8, 1>(w + n * ldw, ldw, x, ldx, k, w + (n + 8 * AHEAD) * ldw, out);
            put(0, n, Count<8>{}, out);
        }
        return one_by_one(n, 0, 1);
    }
    const int tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    // With one tile all of w passes once. With more, a piece of it stays near while the tiles of x take turns, and the
    // last of them asks for the next piece.
    const int whole = (end - begin) / 4 * 4, fitting = std::max<long>(1, PASS / (4 * k * (long)sizeof(T))) * 4;
    const int piece = tiles == 1 ? whole : fitting, distance = tiles == 1 ? 4 * AHEAD : piece;
    for (int first = begin; first < begin + whole; first += piece) {
        const int last = std::min(begin + whole, first + piece);
        for (int t = 0, m = 0; t < tiles; t++) {
            const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
            for (int n = first; n < last; n += 4) {
                const T *far = w + (t + 1 == tiles ? n + distance : n) * ldw;
                tile_of<T, 4>(size, w + n * ldw, ldw, x + m * ldx, ldx, k, far, out);
                for (int j = 0; j < size; j++) put(m + j, n, Count<4>{}, out + j * 4);
            }
            m += size;
        }
    }
    for (int t = 0, m = 0; t < tiles; t++) {
        const int size = (rows - m + tiles - t - 1) / (tiles - t);
        one_by_one(begin + whole, m, size);
        m += size;
    }
}

}  // namespace paceline
