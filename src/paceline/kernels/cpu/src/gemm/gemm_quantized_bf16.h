// GEMM for bf16 activations with int8 or int4 weights packed in panels of 32 rows, as in gemm_bf16.h.
//
// Integers are converted to bf16 in registers, exactly, once for up to twelve rows of x.
// With more rows a block of w stays in the L2 cache, as integers, while tiles of x reuse it; the conversion runs on
// other ports than the products. Every sum runs over the pairs in the same order, so results are batch-invariant.
// models/cpu/packed_weights.py packs the weights.
#pragma once

#include <functional>

#include "gemm/quantized_blocks.h"
#include "gemm/gemm_bf16.h"

namespace paceline {

// Quantized weights are packed where the CPU has byte lookups (AVX512-VBMI).
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define PACELINE_BYTE_LOOKUP
constexpr int quantized_panel_rows = panel_rows;
#else
constexpr int quantized_panel_rows = 0;
#endif

#if defined(PACELINE_BYTE_LOOKUP)
// The two bytes of the bf16 value of every magnitude below 128.
struct Bf16Bytes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};
    constexpr Bf16Bytes() {
        for (int i = 1; i < 128; i++) {
            int exponent = 0;
            while (i >> (exponent + 1)) exponent++;
            const unsigned bits = ((127 + exponent) << 7) | ((i << (7 - exponent)) & 0x7f);
            low[i] = bits & 0xff;
            high[i] = bits >> 8;
        }
    }
};
inline constexpr Bf16Bytes BF16_BYTES;

// A decoder of panels: STEP pairs of all rows at once, ROW_BYTES of each; part() returns them one by one in two
// vectors. GROUP pairs share a scale; 0 if only whole rows have one.

// int8 above -128, by lookup. Vector 0 has the even groups of four rows of a panel, vector 1 the odd ones.
struct Int8PanelDecoder {
    static constexpr int STEP = 1, ROW_BYTES = 2, GROUP = 0;
    static constexpr bool ROW_ORDER = true;
    struct Raw {
        __m512i bytes;
    };
    __m512i low[2], high[2], sign;
    Int8PanelDecoder() : sign(_mm512_set1_epi8((char)0x80)) {
        for (int i = 0; i < 2; i++) {
            low[i] = _mm512_load_si512(BF16_BYTES.low + 64 * i);
            high[i] = _mm512_load_si512(BF16_BYTES.high + 64 * i);
        }
    }
    template <bool WHOLE>
    inline Raw read(const char *at, int wide) const {
        return {WHOLE ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi8(~0ull >> (64 - 2 * wide), at)};
    }
    inline void part(Raw &raw, int, __m512bh (&out)[2]) const {
        __m512i negated = _mm512_sub_epi8(_mm512_setzero_si512(), raw.bytes);
        asm("" : "+v"(negated));  // else it becomes an absolute value, which takes a port of the products
        const __m512i size = _mm512_max_epi8(raw.bytes, negated);
        const __m512i lower = _mm512_permutex2var_epi8(low[0], size, low[1]);
        const __m512i unsigned_ = _mm512_permutex2var_epi8(high[0], size, high[1]);
        const __m512i upper = _mm512_ternarylogic_epi32(unsigned_, raw.bytes, sign, 0xf8);  // | (bytes & sign)
        out[0] = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
        out[1] = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
    }
};

// int4: of eight weights of a row the pairs 0 to 3 are in the nibbles of two 16-bit words, low to high.
struct Int4PanelDecoder {
    static constexpr int STEP = 4, ROW_BYTES = 4, GROUP = Int4Matrix::BLOCK / 2;
    static constexpr bool ROW_ORDER = false;
    struct Raw {
        __m512i words[2];
    };
    __m512i table;  // twice, so that the fifth bit of an index, which belongs to the next nibble, does not matter
    Int4PanelDecoder() {
        const __m512 steps = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        table = _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(steps));
    }
    template <bool WHOLE>
    inline Raw read(const char *at, int wide) const {
        const LaneMask some(wide);
        Raw raw;
        for (int v = 0; v < 2; v++)
            raw.words[v] = WHOLE ? _mm512_loadu_si512(at + 64 * v) : _mm512_maskz_loadu_epi32(some.of[v], at + 64 * v);
        return raw;
    }
    inline void part(Raw &raw, int p, __m512bh (&out)[2]) const {
        for (int v = 0; v < 2; v++) {
            if (p) raw.words[v] = _mm512_srli_epi16(raw.words[v], 4);
            out[v] = (__m512bh)_mm512_permutexvar_epi16(raw.words[v], table);
        }
    }
};

// Scales of 16 rows of a panel, masked.
inline __m512 scales_of(const bf16 *p, __mmask16 some) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p)), 16));
}

// A packed matrix of integers; the last panel may be narrower.
struct PackedQuantizedMatrix {
    const char *data;
    const void *scales;   // float32, one per row, or bf16, per group and row of a panel
    long stride, groups;  // bytes and scales of a row
    int outer, k;         // k is a multiple of the step
    const char *panel(int n) const { return data + n * stride; }
    int wide(int n) const { return std::min(PANEL_ROWS, outer - n); }
    const bf16 *scales_from(int n, int group) const {
        return (const bf16 *)scales + n * groups + (long)group * wide(n);
    }
};

// Multiplies some pairs of a panel, wide rows, by M rows of x and adds to sums; first starts them at zero. scales are
// those of the groups. Prefetches far bytes on.
template <class D, int M, bool WHOLE = true>
[[gnu::noinline]] void quantized_panel_tile(const char *from, int wide, const bf16 *scales, const bf16 *x, long ldx,
                                            int pairs, long far, float (*sums)[PANEL_ROWS], bool first) {
    constexpr bool GROUPED = D::GROUP > 0;
    const D decode;
    const LaneMask some(wide);
    const int step = (WHOLE ? PANEL_ROWS : wide) * D::ROW_BYTES;
    const int *rows[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) rows[m] = (const int *)(x + m * ldx);
    for (int at = 0; at < pairs; first = false, scales += wide) {
        const int until = GROUPED ? std::min(pairs, at + D::GROUP) : pairs;
        __m512 acc[M][2];
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++)
                acc[m][v] = GROUPED || first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums[m] + v * PAIRS_PER_VECTOR);
        for (; at < until; at += D::STEP, from += step) {
            typename D::Raw raw = decode.template read<WHOLE>(from, wide);
#pragma GCC unroll 2
            for (int line = 0; line < D::ROW_BYTES * PANEL_ROWS; line += 64)
                __builtin_prefetch(from + far + line, 0, M <= FEW_ROWS ? 3 : 2);
#pragma GCC unroll 4
            for (int p = 0; p < D::STEP; p++) {
                __m512bh part[2];
                decode.part(raw, p, part);
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) {
                    const __m512bh pair = (__m512bh)_mm512_set1_epi32(rows[m][at + p]);
#pragma GCC unroll 2
                    for (int v = 0; v < 2; v++) acc[m][v] = _mm512_dpbf16_ps(acc[m][v], part[v], pair);
                }
            }
        }
        __m512 scale[2];
        if constexpr (GROUPED)
            for (int v = 0; v < 2; v++) scale[v] = scales_of(scales + v * PAIRS_PER_VECTOR, some.of[v]);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                float *sum = sums[m] + v * PAIRS_PER_VECTOR;
                if constexpr (GROUPED)
                    acc[m][v] =
                        _mm512_fmadd_ps(acc[m][v], scale[v], first ? _mm512_setzero_ps() : _mm512_loadu_ps(sum));
                _mm512_storeu_ps(sum, acc[m][v]);
            }
    }
}

using QuantizedPanelTile = void (*)(const char *, int, const bf16 *, const bf16 *, long, int, long,
                                    float (*)[PANEL_ROWS], bool);

// The tile function for m rows of x, 1 to TILE_ROWS.
template <class D, int M = 1>
QuantizedPanelTile quantized_panel_tile_for(int m) {
    if constexpr (M < TILE_ROWS)
        if (m > M) return quantized_panel_tile_for<D, M + 1>(m);
    return quantized_panel_tile<D, M>;
}

// Receives the sums of rows m .. m + size - 1 of x with the panel of wide rows that starts at row n of w.
using EmitPanel = std::function<void(float (*sums)[PANEL_ROWS], int m, int size, int n, int wide)>;

// All rows of x times w, from begin to end. Compiled once, whatever is done with the sums.
template <class D>
void gemm_quantized_panels(const PackedQuantizedMatrix &w, int begin, int end, const bf16 *x, long ldx, int rows,
                           const EmitPanel &emit_sums) {
    static thread_local std::vector<float> carried;
    alignas(64) float local[TILE_ROWS][PANEL_ROWS];
    constexpr int unit = std::max(D::GROUP, D::STEP);
    const int pairs = w.k / 2, blocks = (pairs + BLOCK_PAIRS - 1) / BLOCK_PAIRS;
    const int block = ((pairs + blocks - 1) / blocks + unit - 1) / unit * unit;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const long bytes = PANEL_ROWS * w.stride;
    const int piece = (blocks > 1 ? 1 : std::max<long>(1, L2_BYTES / bytes)) * PANEL_ROWS;
    if (blocks > 1) carried.resize((long)rows * PANEL_ROWS);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int at = 0; at < pairs; at += block)
            for (int t = 0, m = 0; t < tiles; t++) {
                const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost equal size
                const int these = std::min(block, pairs - at);
                const QuantizedPanelTile run_tile = quantized_panel_tile_for<D>(size);
                // The last of several tiles prefetches the next block.
                const long soon = t + 1 < tiles ? PREFETCH_BYTES_L2 : piece / PANEL_ROWS * bytes;
                const long far = tiles > 1 ? soon : size <= FEW_ROWS ? PREFETCH_BYTES_FEW_ROWS : PREFETCH_BYTES;
                const bf16 *with = x + m * ldx + 2 * at;
                auto sums = blocks > 1 ? (float (*)[PANEL_ROWS]) & carried[(long)m * PANEL_ROWS] : local;
                for (int n = first; n < last; n += PANEL_ROWS) {
                    const int wide = w.wide(n);
                    const char *from = w.panel(n) + (long)at / D::STEP * D::ROW_BYTES * wide;
                    const bf16 *scales = D::GROUP ? w.scales_from(n, 2 * at / Int4Matrix::BLOCK) : nullptr;
                    if (wide == PANEL_ROWS)
                        run_tile(from, wide, scales, with, ldx, these, far, sums, at == 0);
                    else
                        for (int j = 0; j < size; j++)
                            quantized_panel_tile<D, 1, false>(from, wide, scales, with + j * ldx, ldx, these, far,
                                                              sums + j, at == 0);
                    if (at + block >= pairs) emit_sums(sums, m, size, n, wide);
                }
                m += size;
            }
    }
}

// Sums in row order, times the rows' scales.
inline void reorder_and_scale(float *sums, const float *scales, int wide) {
    alignas(64) static constexpr int ROW_ORDER[2][16] = {
        {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23},
        {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
    const LaneMask some(wide);
    const __m512 even = _mm512_loadu_ps(sums), odd = _mm512_loadu_ps(sums + PAIRS_PER_VECTOR);
    for (int v = 0; v < 2; v++) {
        const __m512 ordered = _mm512_permutex2var_ps(even, _mm512_load_si512(ROW_ORDER[v]), odd);
        _mm512_storeu_ps(sums + v * PAIRS_PER_VECTOR,
                         _mm512_mul_ps(ordered, _mm512_maskz_loadu_ps(some.of[v], scales + v * PAIRS_PER_VECTOR)));
    }
}

// As gemm_unpacked, for rows begin to end of w, which are panel boundaries or the end of the matrix.
template <class D, class Put>
inline void gemm_quantized_bf16(const PackedQuantizedMatrix &w, int begin, int end, const bf16 *x, long ldx, int rows,
                                Put &&emit) {
    const EmitPanel emit_sums = [&](float (*sums)[PANEL_ROWS], int m, int size, int n, int wide) {
        if constexpr (D::ROW_ORDER)
            for (int j = 0; j < size; j++) reorder_and_scale(sums[j], (const float *)w.scales + n, wide);
        emit_panel(sums, m, size, n, wide, emit);
    };
    gemm_quantized_panels<D>(w, begin, end, x, ldx, rows, emit_sums);
}
#endif

}  // namespace paceline
