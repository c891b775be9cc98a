// Products with matrices of bfloat16 whose rows stand in panels: 32 rows side by side, pair of numbers by pair.
//
// y[m][n] = sum over k of w[n][k] x[m][k], each y in a lane of its own, so that no sum runs across a vector. Every sum
// runs over the pairs in the same order, whatever is computed beside it. With up to twelve rows of x w passes once, and
// what comes next is asked of memory meanwhile. With more, a piece of w stays near while tiles of x take turns.
// models/cpu/packed_weights.py lays matrices out so; those of models that somebody else holds stay as they are (gemm_unpacked.h).
#pragma once

#include <algorithm>
#include <vector>

#include "gemm/gemm_unpacked.h"

namespace paceline {

// Rows of a matrix of bfloat16 that stand side by side; 0 where this machine has no use for panels.
#if defined(__AVX512BF16__)
constexpr int panel_rows = 32;
#else
constexpr int panel_rows = 0;
#endif

#if defined(__AVX512BF16__)
constexpr int PANEL_ROWS = panel_rows;
constexpr int PAIRS = PANEL_ROWS / 2;  // of a vector
constexpr int TILE_ROWS = 12;         // of x: 24 sums, two vectors of w and one of x in 32 registers
constexpr int BLOCK_PAIRS = 2048;     // at once, so that a panel's and some rows of x stay in the second-level cache
constexpr long STAYING = 256 * 1024;  // bytes of w that stay there while several tiles of x read them
constexpr long FAR = 6144;            // bytes between what is read and what is asked of memory,
constexpr long SOON = 1024;           // and of the second-level cache
constexpr int FEW_ROWS = 4;                // rows of x for which memory had better fill the first-level cache,
constexpr long NEARER = 4096;         // and so many bytes ahead

// Lanes of the two vectors of a panel that has fewer than 32 rows.
struct Some {
    __mmask16 of[2];
    explicit Some(int wide)
        : of{__mmask16(wide >= PAIRS ? 0xffff : (1 << wide) - 1), __mmask16(wide > PAIRS ? (1 << (wide - PAIRS)) - 1 : 0)} {}
};

// Adds some pairs of a panel of wide rows times M rows of x to sums, which begin with the first. On the way it asks for
// what lies far bytes on: into the first-level cache where so few rows compute that reading binds.
template <int M, bool WHOLE = true>
[[gnu::noinline]] void panel_tile(const bf16 *w, int wide, const bf16 *x, long ldx, int pairs, long far,
                                  float (*sums)[PANEL_ROWS], bool first) {
    const Some some(wide);
    const int step = WHOLE ? 2 * PANEL_ROWS : 2 * wide;
    const int *rows[M];
    __m512 acc[M][2];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        rows[m] = (const int *)(x + m * ldx);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) acc[m][v] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums[m] + v * PAIRS);
    }
    for (int i = 0; i < pairs; i++, w += step) {
        __m512bh part[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const bf16 *at = w + v * 2 * PAIRS;
            part[v] = (__m512bh)(WHOLE ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi32(some.of[v], at));
            __builtin_prefetch((const char *)at + far, 0, M <= FEW_ROWS ? 3 : 2);
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(rows[m][i]);
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) acc[m][v] = _mm512_dpbf16_ps(acc[m][v], part[v], pair);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) _mm512_storeu_ps(sums[m] + v * PAIRS, acc[m][v]);
}

using PanelTile = void (*)(const bf16 *, int, const bf16 *, long, int, long, float (*)[PANEL_ROWS], bool);

// The tile for m rows of x, 1 to TILE_ROWS.
template <int M = 1>
PanelTile panel_tile_of(int m) {
    if constexpr (M < TILE_ROWS)
        return m == M ? panel_tile<M> : panel_tile_of<M + 1>(m);
    else
        return panel_tile<M>;
}

// A matrix in panels; the last one may be narrower.
struct Panels {
    const bf16 *w;
    int outer, k;  // k is even
    const bf16 *panel(int n) const { return w + (long)n * k; }
    int wide(int n) const { return std::min(PANEL_ROWS, outer - n); }
};

// Hands the sums of size rows of x, from m on, with a panel of wide rows, the first of which is n, to put.
template <class Put>
inline void give_panel(float (*sums)[PANEL_ROWS], int m, int size, int n, int wide, Put &&put) {
    for (int j = 0; j < size; j++) {
        int c = 0;
        for (; c + PAIRS <= wide; c += PAIRS) put(m + j, n + c, Count<PAIRS>{}, sums[j] + c);
        for (; c + 4 <= wide; c += 4) put(m + j, n + c, Count<4>{}, sums[j] + c);
        for (; c < wide; c++) put(m + j, n + c, Count<1>{}, sums[j] + c);
    }
}

// As multiply in gemm_unpacked.h, from begin to end, which begin panels or end the matrix.
template <class Put>
inline void multiply_panels(const Panels &w, int begin, int end, const bf16 *x, long ldx, int rows, Put &&put) {
    static thread_local std::vector<float> carried;
    alignas(64) float near[TILE_ROWS][PANEL_ROWS];
    const int pairs = w.k / 2, blocks = (pairs + BLOCK_PAIRS - 1) / BLOCK_PAIRS, block = (pairs + blocks - 1) / blocks;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const long bytes = PANEL_ROWS * w.k * (long)sizeof(bf16);
    const int piece = (blocks > 1 ? 1 : std::max<long>(1, STAYING / bytes)) * PANEL_ROWS;
    if (blocks > 1) carried.resize((long)rows * PANEL_ROWS);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int at = 0; at < pairs; at += block)
            for (int t = 0, m = 0; t < tiles; t++) {
                const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
                const PanelTile take = panel_tile_of(size);
                // The last of several tiles asks for the next piece.
                const long soon = t + 1 < tiles ? SOON : piece / PANEL_ROWS * bytes;
                const long far = tiles > 1 ? soon : size <= FEW_ROWS ? NEARER : FAR;
                for (int n = first; n < last; n += PANEL_ROWS) {
                    const int wide = w.wide(n), these = std::min(block, pairs - at);
                    const bf16 *from = w.panel(n) + (long)at * 2 * wide, *with = x + m * ldx + 2 * at;
                    auto sums = blocks > 1 ? (float(*)[PANEL_ROWS])&carried[(long)m * PANEL_ROWS] : near;
                    if (wide == PANEL_ROWS)
                        take(from, wide, with, ldx, these, far, sums, at == 0);
                    else
                        for (int j = 0; j < size; j++)
                            panel_tile<1, false>(from, wide, with + j * ldx, ldx, these, far, sums + j, at == 0);
                    if (at + block >= pairs) give_panel(sums, m, size, n, wide, put);
                }
                m += size;
            }
    }
}
#endif

}  // namespace paceline
