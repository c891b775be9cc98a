// GEMM for bf16 with AVX512-BF16, on weights packed in panels: 32 rows interleaved pair by pair.
//
// y[m][n] = sum over k of w[n][k] x[m][k], with each y in its own lane, so no sum runs across a vector. Every sum runs
// over the pairs in the same order, so results are batch-invariant. With up to twelve rows of x, w is streamed once
// with prefetching. With more, a block of w stays in the L2 cache while tiles of x reuse it.
// models/cpu/packed_weights.py packs the weights; models whose weights are shared use gemm_unpacked.h.
#pragma once

#include <algorithm>
#include <vector>

#include "gemm/gemm_unpacked.h"

namespace paceline {

// Rows of a panel of bf16 weights; 0 if this CPU does not use packed weights.
#if defined(__AVX512BF16__)
constexpr int panel_rows = 32;
#else
constexpr int panel_rows = 0;
#endif

#if defined(__AVX512BF16__)
constexpr int PANEL_ROWS = panel_rows;
constexpr int PAIRS_PER_VECTOR = PANEL_ROWS / 2;  // of bf16 elements
constexpr int TILE_ROWS = 12;                     // of x: 24 sums, two vectors of w and one of x in 32 registers
constexpr int BLOCK_PAIRS = 2048;               // per pass, so that a panel's block and some rows of x fit the L2 cache
constexpr long L2_BYTES = 256 * 1024;           // of w, kept there while several tiles of x read them
constexpr long PREFETCH_BYTES = 6144;           // prefetch distance from memory,
constexpr long PREFETCH_BYTES_L2 = 1024;        // and within the L2 cache
constexpr int FEW_ROWS = 4;                     // up to so many rows of x prefetch into the L1 cache instead,
constexpr long PREFETCH_BYTES_FEW_ROWS = 4096;  // at this distance

// Lane masks of the two vectors of a panel with fewer than 32 rows.
struct LaneMask {
    __mmask16 of[2];
    explicit LaneMask(int wide)
        : of{__mmask16(wide >= PAIRS_PER_VECTOR ? 0xffff : (1 << wide) - 1),
             __mmask16(wide > PAIRS_PER_VECTOR ? (1 << (wide - PAIRS_PER_VECTOR)) - 1 : 0)} {}
};

// Multiplies some pairs of a panel, wide rows, by M rows of x and adds to sums; first starts them at zero. Prefetches
// far bytes on, into L1 where so few rows make it memory-bound.
template <int M, bool WHOLE = true>
[[gnu::noinline]] void panel_tile(const bf16 *w, int wide, const bf16 *x, long ldx, int pairs, long far,
                                  float (*sums)[PANEL_ROWS], bool first) {
    const LaneMask some(wide);
    const int step = WHOLE ? 2 * PANEL_ROWS : 2 * wide;
    const int *rows[M];
    __m512 acc[M][2];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        rows[m] = (const int *)(x + m * ldx);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++)
            acc[m][v] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums[m] + v * PAIRS_PER_VECTOR);
    }
    for (int i = 0; i < pairs; i++, w += step) {
        __m512bh part[2];
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const bf16 *at = w + v * 2 * PAIRS_PER_VECTOR;
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
        for (int v = 0; v < 2; v++) _mm512_storeu_ps(sums[m] + v * PAIRS_PER_VECTOR, acc[m][v]);
}

using PanelTile = void (*)(const bf16 *, int, const bf16 *, long, int, long, float (*)[PANEL_ROWS], bool);

// The tile function for m rows of x, 1 to TILE_ROWS.
template <int M = 1>
PanelTile panel_tile_for(int m) {
    if constexpr (M < TILE_ROWS)
        return m == M ? panel_tile<M> : panel_tile_for<M + 1>(m);
    else
        return panel_tile<M>;
}

// A packed matrix; the last panel may be narrower.
struct PackedMatrix {
    const bf16 *w;
    int outer, k;  // k is even
    const bf16 *panel(int n) const { return w + (long)n * k; }
    int wide(int n) const { return std::min(PANEL_ROWS, outer - n); }
};

// Emits the sums of rows m .. m + size - 1 of x with the panel of wide rows that starts at row n of w.
template <class Put>
inline void emit_panel(float (*sums)[PANEL_ROWS], int m, int size, int n, int wide, const Put &put) {
    const Put emit = put;  // its own, so that the compiler knows that no output is written into it
    for (int j = 0; j < size; j++) {
        int c = 0;
        for (; c + PAIRS_PER_VECTOR <= wide; c += PAIRS_PER_VECTOR)
            emit(m + j, n + c, Count<PAIRS_PER_VECTOR>{}, sums[j] + c);
        for (; c + 4 <= wide; c += 4) emit(m + j, n + c, Count<4>{}, sums[j] + c);
        for (; c < wide; c++) emit(m + j, n + c, Count<1>{}, sums[j] + c);
    }
}

// As gemm_unpacked, for rows begin to end of w, which are panel boundaries or the end of the matrix.
template <class Put>
inline void gemm_bf16(const PackedMatrix &w, int begin, int end, const bf16 *x, long ldx, int rows, Put &&emit) {
    static thread_local std::vector<float> carried;
    alignas(64) float local[TILE_ROWS][PANEL_ROWS];
    const int pairs = w.k / 2, blocks = (pairs + BLOCK_PAIRS - 1) / BLOCK_PAIRS, block = (pairs + blocks - 1) / blocks;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const long bytes = PANEL_ROWS * w.k * (long)sizeof(bf16);
    const int piece = (blocks > 1 ? 1 : std::max<long>(1, L2_BYTES / bytes)) * PANEL_ROWS;
    if (blocks > 1) carried.resize((long)rows * PANEL_ROWS);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int at = 0; at < pairs; at += block)
            for (int t = 0, m = 0; t < tiles; t++) {
                const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost equal size
                const PanelTile run_tile = panel_tile_for(size);
                // The last of several tiles prefetches the next block.
                const long soon = t + 1 < tiles ? PREFETCH_BYTES_L2 : piece / PANEL_ROWS * bytes;
                const long far = tiles > 1 ? soon : size <= FEW_ROWS ? PREFETCH_BYTES_FEW_ROWS : PREFETCH_BYTES;
                for (int n = first; n < last; n += PANEL_ROWS) {
                    const int wide = w.wide(n), these = std::min(block, pairs - at);
                    const bf16 *from = w.panel(n) + (long)at * 2 * wide, *with = x + m * ldx + 2 * at;
                    auto sums = blocks > 1 ? (float (*)[PANEL_ROWS]) & carried[(long)m * PANEL_ROWS] : local;
                    if (wide == PANEL_ROWS)
                        run_tile(from, wide, with, ldx, these, far, sums, at == 0);
                    else
                        for (int j = 0; j < size; j++)
                            panel_tile<1, false>(from, wide, with + j * ldx, ldx, these, far, sums + j, at == 0);
                    if (at + block >= pairs) emit_panel(sums, m, size, n, wide, emit);
                }
                m += size;
            }
    }
}
#endif

}  // namespace paceline
