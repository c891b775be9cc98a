// Products of bfloat16 with matrices of small integers in panels: 32 rows side by side, as in gemm_bf16.h.
//
// The integers become bfloat16 in registers, exactly, once for up to twelve rows of x, and are multiplied as those are.
// With more rows a piece of the matrix stays near, as integers, while tiles of x take turns: what decodes runs beside the
// products, in other pipes. Every sum runs over the pairs in the same order, whatever is computed beside it.
// models/cpu/packed_weights.py lays matrices out so.
#pragma once

#include <functional>

#include "gemm/quantized_blocks.h"
#include "gemm/gemm_bf16.h"

namespace paceline {

// Whether integers are laid in panels as numbers are: where this machine looks up bytes.
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define PACELINE_LOOKUPS
constexpr int quantized_panel_rows = panel_rows;
#else
constexpr int quantized_panel_rows = 0;
#endif

#if defined(PACELINE_LOOKUPS)
// The two bytes of a bfloat16 for every magnitude below 128.
struct Magnitudes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};
    constexpr Magnitudes() {
        for (int i = 1; i < 128; i++) {
            int exponent = 0;
            while (i >> (exponent + 1)) exponent++;
            const unsigned bits = ((127 + exponent) << 7) | ((i << (7 - exponent)) & 0x7f);
            low[i] = bits & 0xff;
            high[i] = bits >> 8;
        }
    }
};
inline constexpr Magnitudes MAGNITUDES;

// How a tile reads a panel: STEP pairs of all rows at once, ROW_BYTES of each, which part() hands out one by one in two
// vectors. GROUP pairs share a scale; 0 where only whole rows have one.

// Bytes above -128, looked up. Of four rows each: vector 0 has the even fours of a panel, vector 1 the odd ones.
struct PanelBytes {
    static constexpr int STEP = 1, ROW_BYTES = 2, GROUP = 0;
    static constexpr bool FOURS = true;
    struct Raw {
        __m512i bytes;
    };
    __m512i low[2], high[2], sign;
    PanelBytes() : sign(_mm512_set1_epi8((char)0x80)) {
        for (int i = 0; i < 2; i++) {
            low[i] = _mm512_load_si512(MAGNITUDES.low + 64 * i);
            high[i] = _mm512_load_si512(MAGNITUDES.high + 64 * i);
        }
    }
    template <bool WHOLE>
    inline Raw read(const char *at, int wide) const {
        return {WHOLE ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi8(~0ull >> (64 - 2 * wide), at)};
    }
    inline void part(Raw &raw, int, __m512bh (&out)[2]) const {
        __m512i negated = _mm512_sub_epi8(_mm512_setzero_si512(), raw.bytes);
        asm("" : "+v"(negated));  // else it becomes an absolute value, which takes the place of products in the pipes
        const __m512i size = _mm512_max_epi8(raw.bytes, negated);
        const __m512i lower = _mm512_permutex2var_epi8(low[0], size, low[1]);
        const __m512i unsigned_ = _mm512_permutex2var_epi8(high[0], size, high[1]);
        const __m512i upper = _mm512_ternarylogic_epi32(unsigned_, raw.bytes, sign, 0xf8);  // | (bytes & sign)
        out[0] = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
        out[1] = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
    }
};

// Four bits: of eight numbers of a row the pairs 0 to 3 lie in the nibbles of two 16-bit words, from the low ends on.
struct PanelNibbles {
    static constexpr int STEP = 4, ROW_BYTES = 4, GROUP = Nibbles::BLOCK / 2;
    static constexpr bool FOURS = false;
    struct Raw {
        __m512i words[2];
    };
    __m512i table;  // twice, so that the fifth bit of an index, which belongs to the nibble after it, does not matter
    PanelNibbles() {
        const __m512 steps = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        table = _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(steps));
    }
    template <bool WHOLE>
    inline Raw read(const char *at, int wide) const {
        const Some some(wide);
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

// Scales of 16 rows of a panel, of which some may be missing.
inline __m512 scales_of(const bf16 *p, __mmask16 some) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p)), 16));
}

// A matrix of integers in panels; the last one may be narrower.
struct Packed {
    const char *data;
    const void *scales;   // float32, one per row, or bfloat16 per group and row of a panel
    long stride, groups;  // bytes and scales of a row
    int outer, k;         // k fills whole steps
    const char *panel(int n) const { return data + n * stride; }
    int wide(int n) const { return std::min(PANEL_ROWS, outer - n); }
    const bf16 *scales_from(int n, int group) const { return (const bf16 *)scales + n * groups + (long)group * wide(n); }
};

// Adds some pairs of a panel of wide rows, from there on, times M rows of x to sums, which begin with the first; scales are
// those of the groups. On the way it asks for what lies far bytes on.
template <class D, int M, bool WHOLE = true>
[[gnu::noinline]] void packed_tile(const char *from, int wide, const bf16 *scales, const bf16 *x, long ldx, int pairs, long far,
                                   float (*sums)[PANEL_ROWS], bool first) {
    constexpr bool GROUPED = D::GROUP > 0;
    const D decode;
    const Some some(wide);
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
                acc[m][v] = GROUPED || first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums[m] + v * PAIRS);
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
            for (int v = 0; v < 2; v++) scale[v] = scales_of(scales + v * PAIRS, some.of[v]);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                float *sum = sums[m] + v * PAIRS;
                if constexpr (GROUPED)
                    acc[m][v] = _mm512_fmadd_ps(acc[m][v], scale[v], first ? _mm512_setzero_ps() : _mm512_loadu_ps(sum));
                _mm512_storeu_ps(sum, acc[m][v]);
            }
    }
}

using PackedTile = void (*)(const char *, int, const bf16 *, const bf16 *, long, int, long, float (*)[PANEL_ROWS], bool);

// The tile for m rows of x, 1 to TILE_ROWS.
template <class D, int M = 1>
PackedTile packed_tile_of(int m) {
    if constexpr (M < TILE_ROWS)
        if (m > M) return packed_tile_of<D, M + 1>(m);
    return packed_tile<D, M>;
}

// Takes the sums of size rows of x, from m on, with a panel of wide rows, the first of which is n.
using GivePanel = std::function<void(float (*sums)[PANEL_ROWS], int m, int size, int n, int wide)>;

// All rows of x times w, from begin to end. Compiled once for all that is done with the sums.
template <class D>
void packed_product(const Packed &w, int begin, int end, const bf16 *x, long ldx, int rows, const GivePanel &give) {
    static thread_local std::vector<float> carried;
    alignas(64) float near[TILE_ROWS][PANEL_ROWS];
    constexpr int unit = std::max(D::GROUP, D::STEP);
    const int pairs = w.k / 2, blocks = (pairs + BLOCK_PAIRS - 1) / BLOCK_PAIRS;
    const int block = ((pairs + blocks - 1) / blocks + unit - 1) / unit * unit;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const long bytes = PANEL_ROWS * w.stride;
    const int piece = (blocks > 1 ? 1 : std::max<long>(1, STAYING / bytes)) * PANEL_ROWS;
    if (blocks > 1) carried.resize((long)rows * PANEL_ROWS);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int at = 0; at < pairs; at += block)
            for (int t = 0, m = 0; t < tiles; t++) {
                const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
                const int these = std::min(block, pairs - at);
                const PackedTile take = packed_tile_of<D>(size);
                // The last of several tiles asks for the next piece.
                const long soon = t + 1 < tiles ? SOON : piece / PANEL_ROWS * bytes;
                const long far = tiles > 1 ? soon : size <= FEW_ROWS ? NEARER : FAR;
                const bf16 *with = x + m * ldx + 2 * at;
                auto sums = blocks > 1 ? (float(*)[PANEL_ROWS])&carried[(long)m * PANEL_ROWS] : near;
                for (int n = first; n < last; n += PANEL_ROWS) {
                    const int wide = w.wide(n);
                    const char *from = w.panel(n) + (long)at / D::STEP * D::ROW_BYTES * wide;
                    const bf16 *scales = D::GROUP ? w.scales_from(n, 2 * at / Nibbles::BLOCK) : nullptr;
                    if (wide == PANEL_ROWS)
                        take(from, wide, scales, with, ldx, these, far, sums, at == 0);
                    else
                        for (int j = 0; j < size; j++)
                            packed_tile<D, 1, false>(from, wide, scales, with + j * ldx, ldx, these, far, sums + j, at == 0);
                    if (at + block >= pairs) give(sums, m, size, n, wide);
                }
                m += size;
            }
    }
}

// Sums in the order of their rows, times the rows' scales.
inline void scale_rows(float *sums, const float *scales, int wide) {
    alignas(64) static constexpr int FOURS[2][16] = {{0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23},
                                                     {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31}};
    const Some some(wide);
    const __m512 even = _mm512_loadu_ps(sums), odd = _mm512_loadu_ps(sums + PAIRS);
    for (int v = 0; v < 2; v++) {
        const __m512 ordered = _mm512_permutex2var_ps(even, _mm512_load_si512(FOURS[v]), odd);
        _mm512_storeu_ps(sums + v * PAIRS, _mm512_mul_ps(ordered, _mm512_maskz_loadu_ps(some.of[v], scales + v * PAIRS)));
    }
}

// As multiply in gemm_unpacked.h, from begin to end, which begin panels or end the matrix.
template <class D, class Put>
inline void multiply_packed(const Packed &w, int begin, int end, const bf16 *x, long ldx, int rows, Put &&put) {
    const GivePanel give = [&](float (*sums)[PANEL_ROWS], int m, int size, int n, int wide) {
        if constexpr (D::FOURS)
            for (int j = 0; j < size; j++) scale_rows(sums[j], (const float *)w.scales + n, wide);
        give_panel(sums, m, size, n, wide, put);
    };
    packed_product<D>(w, begin, end, x, ldx, rows, give);
}
#endif

}  // namespace paceline
