// Matrices of small integers, and how a tile reads rows of them: as numbers of the model's precision, in registers.
#pragma once

#include "dots.h"

namespace paceline {

// One signed byte per weight, and one scale per row, which multiplies its sums.
struct Bytes {
    static constexpr int BLOCK = 64;        // weights that are decoded together,
    static constexpr long BLOCK_BYTES = 64;  // and the bytes that they take
    const int8_t *data;
    const float *scales;
    long stride;  // bytes from row to row

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Bytes from(int n) const { return {data + n * stride, scales + n, stride}; }
    template <class A>
    void scale(int n, int count, A *sums) const {
        for (int j = 0; j < count; j++) sums[j] *= scales[n + j];
    }
};

using Sixteen = int8_t __attribute__((vector_size(16)));
using Eight = int8_t __attribute__((vector_size(8)));

// Four bits per weight: of a block the word i of 16 bits holds weights i, 32 + i, 64 + i and 96 + i, each plus 8. Every
// half of a block has its scale, by which its weights are multiplied, and rounded, before they multiply x.
struct Nibbles {
    static constexpr int BLOCK = 128;
    static constexpr long BLOCK_BYTES = 64;
    const uint8_t *data;
    const uint32_t *scales;  // two bfloat16 per block
    long stride, blocks;     // bytes from row to row, and blocks

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Nibbles from(int n) const { return {data + n * stride, scales + n * blocks, stride, blocks}; }
    template <class A>
    void scale(int, int, A *) const {}
};

// How a tile reads rows of w: parts of STEP weights, and how a part is multiplied. This one is for any machine.
template <class T, class W>
struct WideRows;
template <class T>
struct WideRows<T, Bytes> {
    static constexpr int BLOCK = Bytes::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    using Part = Vec<T>;
    Bytes w;
    static constexpr bool LIES = false;
    static constexpr int MOST = 2;  // rows of x in one tile
    explicit WideRows(const Bytes &bytes) : w(bytes) {}
    WideRows from(int n) const { return WideRows(w.from(n)); }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        using Narrow = std::conditional_t<STEP == 16, Sixteen, Eight>;
        for (int p = 0; p < PARTS; p++) {
            Narrow bytes;
            std::memcpy(&bytes, w.data + n * w.stride + block * BLOCK + p * STEP, sizeof bytes);
            out[p] = __builtin_convertvector(bytes, Part);
        }
    }
    static inline Part part(const T *x) { return load(x); }
    static inline Vec<T> add(Vec<T> sum, Part w, Part x) { return sum + w * x; }
    static inline void arrange(const T *x, T *out) { std::memcpy(out, x, BLOCK * sizeof(T)); }
};
template <class T>
struct WideRows<T, Nibbles> {
    static constexpr int BLOCK = Nibbles::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    using Part = Vec<T>;
    Nibbles w;
    static constexpr bool LIES = false;
    static constexpr int MOST = 2;  // rows of x in one tile
    explicit WideRows(const Nibbles &nibbles) : w(nibbles) {}
    WideRows from(int n) const { return WideRows(w.from(n)); }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        const uint32_t pair = w.scales[n * w.blocks + block];
        for (int p = 0; p < PARTS; p++) {
            const int at = p * STEP, quarter = at / 32;
            const Acc<T> scale = widen(bf16{uint16_t(quarter < 2 ? pair : pair >> 16)});
            uint16_t words[STEP];
            std::memcpy(words, w.data + n * w.stride + block * 64 + at % 32 * 2, sizeof words);
            for (int j = 0; j < STEP; j++) out[p][j] = rounded<T>((int(words[j] >> (4 * quarter) & 15) - 8) * scale);
        }
    }
    static inline Part part(const T *x) { return load(x); }
    static inline Vec<T> add(Vec<T> sum, Part w, Part x) { return sum + w * x; }
    static inline void arrange(const T *x, T *out) { std::memcpy(out, x, BLOCK * sizeof(T)); }
};
template <class T, class W>
struct RowsOf {
    using type = WideRows<T, W>;
};

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define PACELINE_LOOKUPS
inline Floats add_pairs(Floats sum, __m512bh w, __m512bh x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, w, x);
}

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

// Bytes above -128 to pairs of bfloat16, looked up: in each quarter of 16 first the former eight, then the latter.
struct PairedBytes {
    static constexpr int BLOCK = Bytes::BLOCK, STEP = 32, PARTS = 2;
    using Part = __m512bh;
    Bytes w;
    __m512i low[2], high[2], sign;

    explicit PairedBytes(const Bytes &bytes) : w(bytes), sign(_mm512_set1_epi8((char)0x80)) {
        for (int i = 0; i < 2; i++) {
            low[i] = _mm512_load_si512(MAGNITUDES.low + 64 * i);
            high[i] = _mm512_load_si512(MAGNITUDES.high + 64 * i);
        }
    }
    static constexpr bool LIES = false;
    static constexpr int MOST = 6;
    PairedBytes from(int n) const {
        PairedBytes later = *this;
        later.w = w.from(n);
        return later;
    }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        const __m512i bytes = _mm512_loadu_si512(w.data + n * w.stride + block * BLOCK), size = _mm512_abs_epi8(bytes);
        const __m512i lower = _mm512_permutex2var_epi8(low[0], size, low[1]);
        const __m512i unsigned_ = _mm512_permutex2var_epi8(high[0], size, high[1]);
        const __m512i upper = _mm512_ternarylogic_epi32(unsigned_, bytes, sign, 0xf8);  // | (bytes & sign)
        out[0] = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
        out[1] = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
    }
    static inline Part part(const bf16 *x) { return (Part)_mm512_loadu_si512(x); }
    static inline Floats add(Floats sum, Part w, Part x) { return add_pairs(sum, w, x); }
    // A block of x in the order of the weights.
    static inline void arrange(const bf16 *x, bf16 *out) {
        const __m512i first = _mm512_loadu_si512(x), second = _mm512_loadu_si512(x + 32);
        _mm512_storeu_si512(out, _mm512_shuffle_i64x2(first, second, 0x88));
        _mm512_storeu_si512(out + 32, _mm512_shuffle_i64x2(first, second, 0xdd));
    }
};
template <>
struct RowsOf<bf16, Bytes> {
    using type = PairedBytes;
};

// Nibbles to pairs of bfloat16: the 16 weights that a group can have stand in a table, twice, so that the fifth bit of an
// index, which belongs to the nibble after it, does not matter.
struct PairedNibbles {
    static constexpr int BLOCK = Nibbles::BLOCK, STEP = 32, PARTS = 4;
    using Part = __m512bh;
    Nibbles w;
    __m512 steps;
    static constexpr bool LIES = false;
    static constexpr int MOST = 6;
    explicit PairedNibbles(const Nibbles &nibbles)
        : w(nibbles), steps(_mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)) {}
    PairedNibbles from(int n) const {
        PairedNibbles later = *this;
        later.w = w.from(n);
        return later;
    }
    inline __m512i table(__m512i scale) const {
        return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(steps, _mm512_castsi512_ps(scale))));
    }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        const __m512i pair = _mm512_set1_epi32(w.scales[n * w.blocks + block]);
        const __m512i first = table(_mm512_slli_epi32(pair, 16));
        const __m512i second = table(_mm512_and_si512(pair, _mm512_set1_epi32(0xffff0000)));
        const __m512i words = _mm512_loadu_si512(w.data + n * w.stride + block * 64);
        out[0] = (__m512bh)_mm512_permutexvar_epi16(words, first);
        out[1] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), first);
        out[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), second);
        out[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), second);
    }
    static inline Part part(const bf16 *x) { return (Part)_mm512_loadu_si512(x); }
    static inline Floats add(Floats sum, Part w, Part x) { return add_pairs(sum, w, x); }
    static inline void arrange(const bf16 *x, bf16 *out) { std::memcpy(out, x, BLOCK * sizeof(bf16)); }
};
template <>
struct RowsOf<bf16, Nibbles> {
    using type = PairedNibbles;
};

// Rows that were decoded before.
template <class R>
struct Decoded {
    static constexpr int BLOCK = R::BLOCK, STEP = R::STEP, PARTS = R::PARTS;
    using Part = typename R::Part;
    const bf16 *data;
    long stride;  // numbers
    static constexpr bool LIES = true;
    static constexpr int MOST = 6;
    Decoded from(int n) const { return {data + n * stride, stride}; }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) out[p] = (Part)_mm512_loadu_si512(data + n * stride + block * BLOCK + p * STEP);
    }
    static inline Part part(const bf16 *x) { return (Part)_mm512_loadu_si512(x); }
    static inline Floats add(Floats sum, Part w, Part x) { return add_pairs(sum, w, x); }
};
#endif

}  // namespace paceline
