// Products of bfloat16 with matrices of small integers in panels: 32 rows side by side, as in panels.h.
//
// The integers become bfloat16 in registers, exactly, once for up to twelve rows of x, and are multiplied as those are.
// With many more rows a piece of the matrix is decoded once, into the second-level cache. Every sum runs over the pairs
// in the same order, whatever is computed beside it. models/cpu/panels.py lays matrices out so.
#pragma once

#include <functional>

#include "integers.h"
#include "panels.h"

namespace paceline {

// Whether integers are laid in panels as numbers are: where this machine looks up bytes.
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define PACELINE_LOOKUPS
constexpr int packed_rows = panel_rows;
#else
constexpr int packed_rows = 0;
#endif

#if defined(PACELINE_LOOKUPS)
constexpr int DECODED_FROM = 3000;        // tiles of x for which a piece of w is decoded once
constexpr int PANELS_AT_ONCE = 2;            // panels that share a tile of so few rows of x: more sums at once
constexpr int LEAST_ROWS = 2;            // rows of x in one pass over a panel, however long the rows are

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

// What was decoded from one of those before.
template <class D>
struct PanelDecoded {
    static constexpr int STEP = 1, ROW_BYTES = 4, GROUP = D::GROUP;
    static constexpr bool FOURS = D::FOURS;
    struct Raw {
        const char *at;
    };
    template <bool WHOLE>
    inline Raw read(const char *at, int) const {
        return {at};
    }
    inline void part(Raw &raw, int, __m512bh (&out)[2]) const {
        for (int v = 0; v < 2; v++) out[v] = (__m512bh)_mm512_load_si512(raw.at + 64 * v);
    }
};

// What a tile asks of memory on its way: so many bytes of each panel at every step, from at on.
struct Ask {
    const char *at;
    long step, panel;
};

// Scales of 16 rows of a panel, of which some may be missing.
inline __m512 scales_of(const bf16 *p, __mmask16 some) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p)), 16));
}

// Adds some pairs of N panels, which lie so many bytes apart, times M rows of x to sums[n * M + m], which begin with the
// first. Scales are those of the groups, the panels' so many numbers apart.
template <class D, int M, int N = 1, bool WHOLE = true>
[[gnu::noinline]] void packed_tile(const char *w, long panel, int wide, const bf16 *scales, long scale_panel, const bf16 *x,
                                   long ldx, int pairs, Ask ask, float (*sums)[PANEL_ROWS], bool first) {
    constexpr bool GROUPED = D::GROUP > 0;
    const D decode;
    const int step = (WHOLE ? PANEL_ROWS : wide) * D::ROW_BYTES;
    const int *rows[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) rows[m] = (const int *)(x + m * ldx);
    for (int at = 0; at < pairs;) {
        const int until = GROUPED ? std::min(pairs, at + D::GROUP) : pairs;
        __m512 acc[N][M][2];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++)
#pragma GCC unroll 16
            for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++)
                    acc[n][m][v] = GROUPED || first ? _mm512_setzero_ps() : _mm512_loadu_ps(sums[n * M + m] + v * PAIRS);
        for (; at < until; at += D::STEP, w += step, ask.at += ask.step) {
            typename D::Raw raw[N];
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                raw[n] = decode.template read<WHOLE>(w + n * panel, wide);
                __builtin_prefetch(ask.at + n * ask.panel, 0, M <= FEW_ROWS ? 3 : 2);
                if (D::STEP > 1) __builtin_prefetch(ask.at + n * ask.panel + 64, 0, M <= FEW_ROWS ? 3 : 2);
            }
#pragma GCC unroll 4
            for (int p = 0; p < D::STEP; p++) {
                __m512bh part[N][2];
#pragma GCC unroll 2
                for (int n = 0; n < N; n++) decode.part(raw[n], p, part[n]);
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) {
                    const __m512bh pair = (__m512bh)_mm512_set1_epi32(rows[m][at + p]);
#pragma GCC unroll 2
                    for (int n = 0; n < N; n++)
#pragma GCC unroll 2
                        for (int v = 0; v < 2; v++) acc[n][m][v] = _mm512_dpbf16_ps(acc[n][m][v], part[n][v], pair);
                }
            }
        }
        const Some some(wide);
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            __m512 scale[2];
            if constexpr (GROUPED)
                for (int v = 0; v < 2; v++) scale[v] = scales_of(scales + n * scale_panel + v * PAIRS, some.of[v]);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) {
                    float *sum = sums[n * M + m] + v * PAIRS;
                    if constexpr (GROUPED)
                        acc[n][m][v] = _mm512_fmadd_ps(acc[n][m][v], scale[v], first ? _mm512_setzero_ps() : _mm512_loadu_ps(sum));
                    _mm512_storeu_ps(sum, acc[n][m][v]);
                }
        }
        first = false;
        scales += wide;
    }
}

using PackedTile = void (*)(const char *, long, int, const bf16 *, long, const bf16 *, long, int, Ask, float (*)[PANEL_ROWS], bool);

// The tile for m rows of x, 1 to Most, and N panels.
template <class D, int N, int Most, int M = 1>
PackedTile packed_tile_of(int m) {
    if constexpr (M < Most)
        return m == M ? packed_tile<D, M, N> : packed_tile_of<D, N, Most, M + 1>(m);
    else
        return packed_tile<D, M, N>;
}

// A matrix of integers in panels; the last one may be narrower.
struct Packed {
    const char *data;
    const void *scales;      // float32, one per row, or bfloat16 per group and row of a panel
    long stride, groups;     // bytes and scales of a row
    int outer, k;            // k fills whole steps
    const char *panel(int n) const { return data + n * stride; }
    int wide(int n) const { return std::min(PANEL_ROWS, outer - n); }
    const bf16 *scales_from(int n, int group) const { return (const bf16 *)scales + n * groups + (long)group * wide(n); }
};

// Takes the sums of size rows of x, from m on, with a panel of wide rows, the first of which is n.
using GivePanel = std::function<void(float (*sums)[PANEL_ROWS], int m, int size, int n, int wide)>;

// Decodes a panel into 32 rows side by side, those that are missing zero.
template <class D>
inline void decode_panel(const char *w, int wide, int pairs, bf16 *out) {
    const D decode;
    for (int i = 0; i < pairs; i += D::STEP, w += wide * D::ROW_BYTES) {
        typename D::Raw raw = decode.template read<false>(w, wide);
#pragma GCC unroll 4
        for (int p = 0; p < D::STEP; p++, out += 2 * PANEL_ROWS) {
            __m512bh part[2];
            decode.part(raw, p, part);
            for (int v = 0; v < 2; v++) _mm512_store_si512(out + v * 2 * PAIRS, (__m512i)part[v]);
        }
    }
}

template <class D>
class PackedProduct {
   public:
    PackedProduct(const Packed &w, const bf16 *x, long ldx, int rows, const GivePanel &give)
        : w_(w), x_(x), ldx_(ldx), rows_(rows), tiles_((rows + TILE_ROWS - 1) / TILE_ROWS), pairs_(w.k / 2), give_(give) {
        const int blocks = rows <= LEAST_ROWS ? 1 : (pairs_ + BLOCK_PAIRS - 1) / BLOCK_PAIRS, unit = std::max(D::GROUP, D::STEP);
        block_ = ((pairs_ + blocks - 1) / blocks + unit - 1) / unit * unit;
    }

    void run(int begin, int end) {
        const bool decoded = tiles_ >= DECODED_FROM;
        const long bytes = decoded ? 2l * PANEL_ROWS * w_.k : PANEL_ROWS * w_.stride;
        const int piece = (block_ < pairs_ ? 1 : std::max<long>(PANELS_AT_ONCE, STAYING / bytes)) * PANEL_ROWS;
        for (int first = begin; first < end; first += piece) {
            const int last = std::min(end, first + piece);
            if (!decoded) {
                turns<D>(w_.panel(first), PANEL_ROWS * w_.stride, first, last, piece);
                continue;
            }
            static thread_local Room<bf16> room;
            bf16 *near = room.of(piece * (long)w_.k);
            for (int n = first; n < last; n += PANEL_ROWS)
                decode_panel<D>(w_.panel(n), w_.wide(n), pairs_, near + (long)(n - first) * w_.k);
            turns<PanelDecoded<D>>((const char *)near, bytes, first, last, piece);
        }
    }

   private:
    Packed w_;
    const bf16 *x_;
    long ldx_;
    int rows_, tiles_, pairs_, block_;
    const GivePanel &give_;

    // All tiles of x with rows first to last of w, whose panels lie from data on, so many bytes apart.
    template <class E>
    void turns(const char *data, long panel, int first, int last, int piece) {
        static thread_local Room<float> carried;
        constexpr bool raw = std::is_same_v<D, E>;
        alignas(64) float near[TILE_ROWS][PANEL_ROWS];
        float(*const far_sums)[PANEL_ROWS] = block_ < pairs_ ? (float(*)[PANEL_ROWS])carried.of((long)rows_ * PANEL_ROWS) : near;
        for (int at = 0; at < pairs_; at += block_)
            for (int t = 0, m = 0; t < tiles_; t++) {
                const int size = (rows_ - m + tiles_ - t - 1) / (tiles_ - t);  // tiles of almost one size
                const int these = std::min(block_, pairs_ - at);
                const bf16 *with = x_ + m * ldx_ + 2 * at;
                auto sums = far_sums == near ? near : far_sums + m;
                for (int n = first, wide; n < last; n += wide) {
                    wide = std::min(PANEL_ROWS, last - n);
                    const char *from = data + (n - first) / PANEL_ROWS * panel + (long)at / E::STEP * E::ROW_BYTES * (raw ? wide : PANEL_ROWS);
                    const bf16 *scales = E::GROUP ? w_.scales_from(n, at / std::max(1, E::GROUP)) : nullptr;
                    const Ask ask = asked<E>(from, n, at, size, piece, t);
                    const bool begins = at == 0;
                    if (raw && wide < PANEL_ROWS) {
                        for (int j = 0; j < size; j++)
                            packed_tile<E, 1, 1, !raw>(from, panel, wide, scales, 0, with + j * ldx_, ldx_, these, ask, sums + j, begins);
                    } else if (raw && size <= LEAST_ROWS && n + PANELS_AT_ONCE * PANEL_ROWS <= last && block_ >= pairs_) {
                        packed_tile_of<D, PANELS_AT_ONCE, LEAST_ROWS>(size)(from, panel, wide, scales, w_.groups * PANEL_ROWS, with, ldx_, these, ask, sums, begins);
                        for (int j = 0; j < PANELS_AT_ONCE; j++) give_(sums + j * size, m, size, n + j * PANEL_ROWS, wide);
                        wide *= PANELS_AT_ONCE;
                        continue;
                    } else {
                        packed_tile_of<E, 1, TILE_ROWS>(size)(from, panel, wide, scales, 0, with, ldx_, these, ask, sums, begins);
                    }
                    if (at + block_ >= pairs_) give_(sums, m, size, n, w_.wide(n));
                }
                m += size;
            }
    }

    // The last of several tiles asks for the next piece, a single one for what it reads next.
    template <class E>
    Ask asked(const char *from, int n, int at, int size, int piece, int t) const {
        constexpr long step = E::STEP * (long)D::ROW_BYTES * PANEL_ROWS / D::STEP;
        if (!std::is_same_v<D, E>) return {w_.panel(n + piece) + (long)at / D::STEP * D::ROW_BYTES * PANEL_ROWS, t + 1 < tiles_ ? 0 : step, 0};
        const long far = tiles_ == 1 ? (size <= FEW_ROWS ? NEARER : FAR) : t + 1 < tiles_ ? SOON : piece * w_.stride;
        return {from + far, step, PANEL_ROWS * w_.stride};
    }
};

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

// As multiply in dots.h, from begin to end, which begin panels or end the matrix.
template <class D, class Put>
inline void multiply_packed(const Packed &w, int begin, int end, const bf16 *x, long ldx, int rows, Put &&put) {
    const GivePanel give = [&](float (*sums)[PANEL_ROWS], int m, int size, int n, int wide) {
        if constexpr (D::FOURS)
            for (int j = 0; j < size; j++) scale_rows(sums[j], (const float *)w.scales + n, wide);
        give_panel(sums, m, size, n, wide, put);
    };
    PackedProduct<D>(w, x, ldx, rows, give).run(begin, end);
}
#endif

}  // namespace paceline
