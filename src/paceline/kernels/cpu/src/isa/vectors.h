// SIMD types and helpers: vectors as wide as the instruction set's, so that the kernels are written once.
//
// Sums are accumulated in float (double for double). The horizontal sum of a vector is one fixed tree of additions, so
// a result does not depend on how many rows or columns are computed together. It depends on the instruction set.
#pragma once

#include <cmath>

#include "isa/half.h"

namespace paceline {

using Doubles = double __attribute__((vector_size(VECTOR_BYTES)));

template <class T>
struct Of {
    using Acc = float;
    using Vec = Floats;
    using Four = float __attribute__((vector_size(16)));
};
template <>
struct Of<double> {
    using Acc = double;
    using Vec = Doubles;
    using Four = double __attribute__((vector_size(32)));
};
template <class T>
using Acc = typename Of<T>::Acc;
template <class T>
using Vec = typename Of<T>::Vec;
template <class T>
constexpr int lanes = sizeof(Vec<T>) / sizeof(Acc<T>);

// x in the model's precision.
template <class T>
inline T narrow(Acc<T> x) {
    if constexpr (is_half<T>) {
        return narrow_to(x, T{});
    } else {
        return x;
    }
}

// x rounded to the model's precision.
template <class T>
inline Acc<T> rounded(Acc<T> x) {
    return widen(narrow<T>(x));
}

inline Floats load(const float *p) {
    Floats v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline Doubles load(const double *p) {
    Doubles v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline Floats load(const bf16 *p) {
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return widen_vector<bf16>(h);
}
inline Floats load(const f16 *p) {
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return widen_vector<f16>(h);
}

#if defined(__AVX512F__)
// The mask of the first count lanes.
template <class T>
inline auto first_lanes(int count) {
    return std::conditional_t<lanes<T> == 16, __mmask16, __mmask8>((1u << count) - 1);
}
#endif

// The first count elements, fewer than a vector, and zeros.
template <class T>
inline Vec<T> load_some(const T *p, int count) {
#if defined(__AVX512F__)  // through memory, a load would wait for the stores that it reads
    if constexpr (is_half<T>)
        return widen_vector<T>((Halves)_mm256_maskz_loadu_epi16(first_lanes<T>(count), p));
    else if constexpr (std::is_same_v<T, float>)
        return (Floats)_mm512_maskz_loadu_ps(first_lanes<T>(count), p);
    else
        return (Doubles)_mm512_maskz_loadu_pd(first_lanes<T>(count), p);
#else
    T padded[lanes<T>] = {};
    std::memcpy(padded, p, count * sizeof(T));
    return load(padded);
#endif
}

inline void store(float *p, Floats v) { std::memcpy(p, &v, sizeof v); }
inline void store(double *p, Doubles v) { std::memcpy(p, &v, sizeof v); }

// The first count elements of v.
template <class T>
inline void store_partial(T *p, Vec<T> v, int count) {
#if defined(__AVX512F__)
    if (count < lanes<T>) {
        if constexpr (is_half<T>)
            _mm256_mask_storeu_epi16(p, first_lanes<T>(count), (__m256i)narrow_vector<T>(v));
        else if constexpr (std::is_same_v<T, float>)
            _mm512_mask_storeu_ps(p, first_lanes<T>(count), (__m512)v);
        else
            _mm512_mask_storeu_pd(p, first_lanes<T>(count), (__m512d)v);
        return;
    }
#endif
    if constexpr (is_half<T>) {
        const Halves h = narrow_vector<T>(v);
        std::memcpy(p, &h, count == lanes<T> ? sizeof h : count * sizeof(T));
    } else {
        std::memcpy(p, &v, count == lanes<T> ? sizeof v : count * sizeof(T));
    }
}

// v rounded to the model's precision.
template <class T>
inline Vec<T> round_vector(Vec<T> v) {
#if !defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>) return (Floats)(round_to_bf16<Words>(v) & 0xffff0000);
#endif
    if constexpr (is_half<T>)
        return widen_vector<T>(narrow_vector<T>(v));
    else
        return v;
}

template <class V>
inline V splat(decltype(V{}[0] + 0) x) {
    return x - V{};  // not a sum with zeros, which changes -0 and so would be computed
}

// a b + c, rounded once on every set but the x86 baseline. Written out wherever it is wanted: the build has no
// contraction (compile.py), so that every tile and every compiler rounds the same sums alike.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
    return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (Doubles)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}
template <class V>
inline V multiply_add(V a, V b, decltype(V{}[0] + 0) c) {
    return multiply_add(a, b, splat<V>(c));
}
template <class V>
inline V multiply_add(V a, decltype(V{}[0] + 0) b, V c) {
    return multiply_add(a, splat<V>(b), c);
}
template <class V>
inline V multiply_add(V a, decltype(V{}[0] + 0) b, decltype(V{}[0] + 0) c) {
    return multiply_add(a, splat<V>(b), splat<V>(c));
}

// Four elements at once, for the outputs of a GEMM.
template <class T>
using Four = typename Of<T>::Four;

template <class T>
inline Four<T> widen_four(const T *p) {
    if constexpr (is_half<T>) {
        FourHalves h;
        std::memcpy(&h, p, sizeof h);
        return widen_half_vector<T>(h);
    } else {
        Four<T> v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
}
template <class T>
inline void narrow_four(T *p, Four<T> v) {
    if constexpr (is_half<T>) {
        const FourHalves h = narrow_half_vector<T>(v);
        std::memcpy(p, &h, sizeof h);
    } else {
        std::memcpy(p, &v, sizeof v);
    }
}
template <class T>
inline Four<T> rounded_four(Four<T> v) {
    T narrow[4];
    narrow_four<T>(narrow, v);
    return widen_four<T>(narrow);
}

// Horizontal sums of four vectors: of floats (l0 + l2) + (l1 + l3) within each 16 bytes, then these by halves.
inline void sums(const Floats (&a)[4], float *out) {
#if defined(__AVX512F__)
    __m512 v0 = (__m512)a[0], v1 = (__m512)a[1], v2 = (__m512)a[2], v3 = (__m512)a[3];
    __m512 t0 = _mm512_add_ps(_mm512_unpacklo_ps(v0, v1), _mm512_unpackhi_ps(v0, v1));
    __m512 t1 = _mm512_add_ps(_mm512_unpacklo_ps(v2, v3), _mm512_unpackhi_ps(v2, v3));
    __m512 u = _mm512_add_ps(_mm512_shuffle_ps(t0, t1, 0x44), _mm512_shuffle_ps(t0, t1, 0xee));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(u), _mm512_extractf32x8_ps(u, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
#elif defined(__AVX2__)
    __m256 v0 = (__m256)a[0], v1 = (__m256)a[1], v2 = (__m256)a[2], v3 = (__m256)a[3];
    __m256 t0 = _mm256_add_ps(_mm256_unpacklo_ps(v0, v1), _mm256_unpackhi_ps(v0, v1));
    __m256 t1 = _mm256_add_ps(_mm256_unpacklo_ps(v2, v3), _mm256_unpackhi_ps(v2, v3));
    __m256 u = _mm256_add_ps(_mm256_shuffle_ps(t0, t1, 0x44), _mm256_shuffle_ps(t0, t1, 0xee));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1)));
#elif defined(__aarch64__)
    const float32x4_t pairs = vpaddq_f32(vpaddq_f32((float32x4_t)a[0], (float32x4_t)a[1]),
                                         vpaddq_f32((float32x4_t)a[2], (float32x4_t)a[3]));
    vst1q_f32(out, pairs);
#else
    for (int i = 0; i < 4; i++) {
        float quarter[lanes<float> / 4];
        for (int j = 0; j < lanes<float> / 4; j++)
            quarter[j] = (a[i][4 * j] + a[i][4 * j + 2]) + (a[i][4 * j + 1] + a[i][4 * j + 3]);
        for (int size = lanes<float> / 8; size; size /= 2)
            for (int j = 0; j < size; j++) quarter[j] += quarter[j + size];
        out[i] = quarter[0];
    }
#endif
}
inline void sums(const Doubles (&a)[4], double *out) {
    for (int i = 0; i < 4; i++) {
        double part[lanes<double>];
        for (int j = 0; j < lanes<double>; j++) part[j] = a[i][j];
        for (int size = lanes<double> / 2; size; size /= 2)
            for (int j = 0; j < size; j++) part[j] += part[j + size];
        out[i] = part[0];
    }
}
template <class V>
inline auto sum(V a) {
    V four[4] = {a, V{}, V{}, V{}};
    decltype(V{}[0] + 0) out[4];
    sums(four, out);
    return out[0];
}

// exp(x) to about one unit in the last place; 0 below -87.3, infinite above 88.4.
inline Floats exponential(Floats x) {
    Floats bounded = x < -87.3f ? splat<Floats>(-87.3f) : x;
    bounded = bounded > 88.7f ? splat<Floats>(88.7f) : bounded;
    const Floats half = bounded < 0.0f ? splat<Floats>(-0.5f) : splat<Floats>(0.5f);
    Ints n = __builtin_convertvector(multiply_add(bounded, 1.44269504f, half), Ints);
    Floats f = __builtin_convertvector(n, Floats);
    Floats r = multiply_add(f, -0.693359375f, bounded);
    r = multiply_add(f, 2.12194440e-4f, r);
    Floats p = multiply_add(r, 1.9875691500e-4f, 1.3981999507e-3f);
    p = multiply_add(p, r, 8.3334519073e-3f);
    p = multiply_add(p, r, 4.1665795894e-2f);
    p = multiply_add(p, r, 1.6666665459e-1f);
    p = multiply_add(p, r, 5.0000001201e-1f);
    p = multiply_add(p * r, r, r) + 1.0f;
    Floats scaled = p * (Floats)((n + 127) << 23);
    return x < -87.3f ? Floats{} : scaled;
}
// 2^x with an error of 3e-6 of it, far below the rounding of results in 16 bits. Without AVX-512 it is no less than 2^-126,
// and infinite above 127.5.
inline Floats power_of_two(Floats x) {
#if defined(__AVX512F__)
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    x = x < -126.0f ? splat<Floats>(-126.0f) : x;
    x = x > 128.0f ? splat<Floats>(128.0f) : x;
    const Floats shifted = x + 12582912.0f;  // 1.5 * 2^23: the last bits are the whole number
    const Floats whole = shifted - 12582912.0f;
#endif
    const Floats rest = x - whole;
    Floats p = multiply_add(rest, 0.009566114284f, 0.05591752753f);
    p = multiply_add(p, rest, 0.24024842679f);
    p = multiply_add(p, rest, 0.69312185049f);
    p = multiply_add(p, rest, 0.99999922514f);
#if defined(__AVX512F__)
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return p * (Floats)(((Ints)shifted + 127) << 23);
#endif
}
inline Doubles exponential(Doubles x) {
    for (int i = 0; i < lanes<double>; i++) x[i] = std::exp(x[i]);
    return x;
}

}  // namespace paceline
