// The 16-bit floats, bfloat16 and float16: conversions to float and back, to nearest with ties to even.
//
// Every set rounds alike but for denormals of bfloat16, which AVX512-BF16's instruction flushes to zero.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "isa/instruction_set.h"

namespace paceline {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class T>
constexpr bool is_half = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

using Floats = float __attribute__((vector_size(VECTOR_BYTES)));
using Ints = int32_t __attribute__((vector_size(VECTOR_BYTES)));
using Words = uint32_t __attribute__((vector_size(VECTOR_BYTES)));
using Halves = uint16_t __attribute__((vector_size(VECTOR_BYTES / 2)));

using FourFloats = float __attribute__((vector_size(16)));
using FourWords = uint32_t __attribute__((vector_size(16)));
using FourHalves = uint16_t __attribute__((vector_size(8)));

// bfloat16 is the upper half of a float.
template <class W, class F>
inline W round_to_bf16(F v) {  // the upper halves of the words; NaN stays NaN
    const W bits = (W)v, near = bits + 0x7fff + ((bits >> 16) & 1);
    return v == v ? near : bits | 0x400000;
}

// float16 by integer operations, for processors without an instruction for it. They do not depend on how denormal
// floats are treated.
template <class F, class W>
inline F f16_to_float(W h) {
    const W sign = (h & 0x8000) << 16, rest = (h & 0x7fff) << 13;
    const F denormal = (F)(rest + 0x38800000) - 6.103515625e-05f;  // 2**-14
    const W shift = rest < W{} + 0xf800000 ? W{} + 0x38000000 : W{} + 0x70000000;  // of infinity and NaN
    const W wide = rest < W{} + 0x800000 ? (W)denormal : rest + shift;
    return (F)(sign | wide);
}
template <class W, class F>
inline W float_to_f16(F v) {
    const W bits = (W)v, sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
    const W denormal = (W)((F)rest + 0.5f) - 0x3f000000;
    const W normal = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
    const W nan = ((rest >> 13) & 0x3ff) | 0x7e00;
    const W large = rest > W{} + 0x7f800000 ? nan : W{} + 0x7c00;
    return sign | (rest >= W{} + 0x47800000 ? large : rest < W{} + 0x38800000 ? denormal : normal);
}

template <class T>
inline Floats widen_vector(Halves h) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, f16>) return (Floats)_mm512_cvtph_ps((__m256i)h);
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined(__AVX2__) && defined(__F16C__)
    if constexpr (std::is_same_v<T, f16>) return (Floats)_mm256_cvtph_ps((__m128i)h);
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, f16>) return (Floats)vcvt_f32_f16((float16x4_t)h);
    return (Floats)vshll_n_u16((uint16x4_t)h, 16);
#else
    const Words wide = __builtin_convertvector(h, Words);
    if constexpr (std::is_same_v<T, f16>) return f16_to_float<Floats>(wide);
    return (Floats)(wide << 16);
#endif
}

template <class T>
inline Halves narrow_vector(Floats v) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, f16>)
        return (Halves)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#if defined(__AVX512BF16__)
    return (Halves)_mm512_cvtneps_pbh((__m512)v);
#else
    return (Halves)_mm512_cvtepi32_epi16((__m512i)(round_to_bf16<Words>(v) >> 16));
#endif
#elif defined(__AVX2__) && defined(__F16C__)
    if constexpr (std::is_same_v<T, f16>)
        return (Halves)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i words = (__m256i)(round_to_bf16<Words>(v) >> 16);
    return (Halves)_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, f16>) return (Halves)vcvt_f16_f32((float32x4_t)v);
    return (Halves)vshrn_n_u32((uint32x4_t)round_to_bf16<Words>(v), 16);
#else
    if constexpr (std::is_same_v<T, f16>) return __builtin_convertvector(float_to_f16<Words>(v), Halves);
    return __builtin_convertvector(round_to_bf16<Words>(v) >> 16, Halves);
#endif
}

// Four elements in 16 bytes.
template <class T>
inline FourFloats widen_half_vector(FourHalves h) {
    if constexpr (std::is_same_v<T, bf16>) {
        return (FourFloats)(__builtin_convertvector(h, FourWords) << 16);
    } else {
#if defined(__F16C__)
        return (FourFloats)_mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)h));
#elif defined(__aarch64__)
        return (FourFloats)vcvt_f32_f16((float16x4_t)h);
#else
        return f16_to_float<FourFloats>(__builtin_convertvector(h, FourWords));
#endif
    }
}
template <class T>
inline FourHalves narrow_half_vector(FourFloats v) {
    if constexpr (std::is_same_v<T, bf16>) {
        return __builtin_convertvector(round_to_bf16<FourWords>(v) >> 16, FourHalves);
    } else {
#if defined(__F16C__)
        const __m128i h = _mm_cvtps_ph((__m128)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return (FourHalves)_mm_cvtsi128_si64(h);
#elif defined(__aarch64__)
        return (FourHalves)vcvt_f16_f32((float32x4_t)v);
#else
        return __builtin_convertvector(float_to_f16<FourWords>(v), FourHalves);
#endif
    }
}

inline float widen(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline float widen(f16 x) { return widen_half_vector<f16>(FourHalves{x.bits})[0]; }
inline float widen(float x) { return x; }
inline double widen(double x) { return x; }

inline bf16 narrow_to(float x, bf16) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return {uint16_t((bits >> 16) | 0x40)};
    return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline f16 narrow_to(float x, f16) { return {narrow_half_vector<f16>(FourFloats{x})[0]}; }

}  // namespace paceline
