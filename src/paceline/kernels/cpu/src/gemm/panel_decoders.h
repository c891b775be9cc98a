// How a tile of gemm_panels.h reads packed weights: a decoder per weight format, from a panel to float32 vectors.
//
// A panel holds PANEL_ROWS rows of w, so that a vector of float32 holds one weight of each of several rows.
#pragma once

#include "gemm/quantized_blocks.h"

namespace paceline::panels {

// Vectors of float32 across a panel. NEON has as many registers as AVX-512, but a broadcast costs it an instruction.
#if defined(__aarch64__)
constexpr int VECTORS = 4;
#else
constexpr int VECTORS = 2;
#endif
constexpr int LANES = lanes<float>;
constexpr int PANEL_ROWS = VECTORS * LANES;
constexpr int X_BLOCK = 512;           // elements of a row of x that are adjacent in widened form,
constexpr int X_STEP = X_BLOCK + 16;   // from row to row: the sums of groups lie behind, and lines map to other sets

// Masks as memory operands: sixteen registers have no room for them.
struct Masks {
    alignas(64) uint32_t odd[LANES] = {}, nibble[7][LANES] = {};
    constexpr Masks() {
        for (int i = 0; i < LANES; i++) {
            odd[i] = 0xffff0000u;
            for (int j = 0; j < 7; j++) nibble[j][i] = 0xfu << 4 * j;
        }
    }
};
inline constexpr Masks MASKS;

inline Words load_words(const void *p) {
    Words w;
    std::memcpy(&w, p, sizeof w);
    return w;
}

// STEP weights of each row are read together, BYTES of a panel, and multiplied in PARTS. get() is part j of these, for
// the rows of vector v, which is multiplied by x[element(j)]. GROUP weights share a scale; 0 if only whole rows have one.
struct Bf16Decoder {
    static constexpr int STEP = 2, PARTS = 2, GROUP = 0;
    static constexpr long BYTES = PANEL_ROWS * 4;
    static constexpr int element(int j) { return j; }
    static Floats get(const char *at, int v, int j, const Masks *masks) {
        const Words pair = load_words(at + v * VECTOR_BYTES);
        return (Floats)(j ? pair & load_words(masks->odd) : pair << 16);
    }
};

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Pairs of bf16 by ARM's instruction for them; x[i] is the pair of elements i and i + 1 as it is in memory.
struct Bf16PairDecoder {
    static constexpr int STEP = 2, PARTS = 1, GROUP = 0;
    static constexpr long BYTES = PANEL_ROWS * 4;
    static constexpr int element(int) { return 0; }
    static Floats get(const char *at, int v, int, const Masks *) { return (Floats)load_words(at + v * VECTOR_BYTES); }
};
template <class D>
constexpr bool takes_pairs = std::is_same_v<D, Bf16PairDecoder>;
#else
template <class D>
constexpr bool takes_pairs = false;
#endif

// w x + sum, of parts of weights and of x.
template <class D>
inline Floats multiply_part(Floats w, Floats x, Floats sum) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    if constexpr (takes_pairs<D>)
        return (Floats)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)(float32x4_t)w, (bfloat16x8_t)(float32x4_t)x);
#endif
    return multiply_add(w, x, sum);
}

struct FloatDecoder {
    static constexpr int STEP = 1, PARTS = 1, GROUP = 0;
    static constexpr long BYTES = PANEL_ROWS * 4;
    static constexpr int element(int j) { return j; }
    static Floats get(const char *at, int v, int, const Masks *) { return (Floats)load_words(at + v * VECTOR_BYTES); }
};

struct F16Decoder {
    static constexpr int STEP = 1, PARTS = 1, GROUP = 0;
    static constexpr long BYTES = PANEL_ROWS * 2;
    static constexpr int element(int j) { return j; }
    static Floats get(const char *at, int v, int, const Masks *) { return load((const f16 *)at + v * LANES); }
};

// Rows of int8 are filled up to whole blocks.
struct Int8Decoder {
    static constexpr int STEP = 4, PARTS = 4, GROUP = 0;
    static constexpr long BYTES = PANEL_ROWS * 4;
    static constexpr int element(int j) { return j; }
    static Floats get(const char *at, int v, int j, const Masks *) {
        at += j * PANEL_ROWS;
        const char *own = at + v * LANES;
#if defined(__AVX512F__)
        return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)own)));
#elif defined(__AVX2__)
        return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)own)));
#elif defined(__SSE2__)
        int32_t four;
        std::memcpy(&four, own, sizeof four);
        const __m128i bytes = _mm_cvtsi32_si128(four), pairs = _mm_unpacklo_epi8(bytes, bytes);
        return (Floats)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(pairs, pairs), 24));
#elif defined(__aarch64__)
        const int8x16_t all = vld1q_s8((const int8_t *)at);  // of which the compiler converts each half once
        const int16x8_t half = vmovl_s8(v < 2 ? vget_low_s8(all) : vget_high_s8(all));
        return (Floats)vcvtq_f32_s32(vmovl_s16(v % 2 ? vget_high_s16(half) : vget_low_s16(half)));
#else
        FloatBytes bytes;
        std::memcpy(&bytes, own, sizeof bytes);
        return __builtin_convertvector(bytes, Floats);
#endif
    }
};

// int4: a word has eight weights of one row, each plus 8. Nibble j is read in place, as 16^j times its value, and x is
// divided by 16^j; the last one is shifted down. Sums of a group start at -8 times the sum of x, which lies behind x.
struct Int4Decoder {
    static constexpr int STEP = 8, PARTS = 8, GROUP = Int4Matrix::BLOCK;
    static constexpr long BYTES = PANEL_ROWS * 4;
    static constexpr int element(int j) { return j < 4 ? 2 * j : 2 * (j - 4) + 1; }
    static constexpr int nibble(int element) { return element % 2 * 4 + element / 2; }
    static Floats get(const char *at, int v, int j, const Masks *masks) {
        const Words word = load_words(at + v * VECTOR_BYTES);
        return __builtin_convertvector((Ints)(j == 7 ? word >> 28 : word & load_words(masks->nibble[j])), Floats);
    }
};

// The decoder of a model's own precision; void: its weights are not packed.
template <class T>
struct PlainDecoder {
    using type = void;
};
template <>
struct PlainDecoder<bf16> {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    using type = Bf16PairDecoder;
#else
    using type = Bf16Decoder;
#endif
};
template <>
struct PlainDecoder<f16> {
    using type = F16Decoder;
};
template <>
struct PlainDecoder<float> {
    using type = FloatDecoder;
};

// Factors of x for the elements of a word of int4.
struct NibbleFactors {
    alignas(64) float of[64] = {};
    constexpr NibbleFactors() {
        for (int i = 0; i < 64; i++) {
            of[i] = 1;
            for (int j = Int4Decoder::nibble(i % 8) % 7; j > 0; j--) of[i] /= 16;
        }
    }
};
inline constexpr NibbleFactors NIBBLE_FACTORS;

// Floats of rows of x in widened form.
inline long widened_size(int rows, int k) { return (long)(k + X_BLOCK - 1) / X_BLOCK * rows * X_STEP; }

// Row m of rows rows of x as float32: out[block][row][X_STEP], filled up with zeros to whole blocks of integers.
template <class D, class T>
void widen_row(const T *x, int k, int m, int rows, float *out) {
    out += (long)m * X_STEP;
    for (int at = 0; at < k; at += X_BLOCK, out += (long)rows * X_STEP) {
        const int count = std::min(X_BLOCK, k - at), whole = (count + 63) / 64 * 64;
        int i = 0;
        if constexpr (takes_pairs<D>) {
            for (; i + 2 <= count; i += 2) std::memcpy(out + i, x + at + i, 2 * sizeof(T));
            continue;
        }
        for (; i + LANES <= count; i += LANES) store(out + i, load(x + at + i));
        for (; i < whole; i++) out[i] = i < count ? widen(x[at + i]) : 0.0f;
        if constexpr (D::GROUP > 0)
            for (int group = 0; group < whole / D::GROUP; group++) {
                float *own = out + group * D::GROUP;
                Floats total{};
                for (int j = 0; j < D::GROUP; j += LANES) {
                    const Floats v = load(own + j);
                    total += v;
                    store(own + j, v * load(NIBBLE_FACTORS.of + j));
                }
                out[X_BLOCK + group] = -8 * sum(total);
            }
    }
}

}  // namespace paceline::panels
