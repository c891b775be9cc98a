// Which weights are packed in panels on this instruction set, and in which panels.
#pragma once

#include "gemm/gemm_panels.h"
#include "gemm/gemm_quantized_bf16.h"
#include "step/program.h"

namespace paceline {

// Whether gemm_bf16.h and gemm_quantized_bf16.h multiply weights of this format.
template <class T>
constexpr bool multiplies_pairs(int64_t format) {
#if defined(__AVX512BF16__)
    if (std::is_same_v<T, bf16>) return format == PACKED || quantized_panel_rows > 0;
#endif
    return false;
}

// Rows of a panel of weights of this format in a model of precision T; 0 if such weights are not packed.
template <class T>
constexpr int panel_rows_of(int64_t format) {
    if (multiplies_pairs<T>(format)) return panel_rows;
    if (std::is_void_v<typename panels::PlainDecoder<T>::type>) return 0;
    return panels::PANEL_ROWS;
}

// Adjacent elements of a row that stay together in a panel: pairs of bf16, and of int8 where pairs are multiplied, and
// the four bytes of eight int4 weights.
template <class T>
constexpr int panel_unit_of(int64_t format) {
    if (format == PACKED_INT4) return 4;
    if (format == PACKED_INT8) return multiplies_pairs<T>(format) ? 2 : 1;
    return std::is_same_v<T, bf16> ? 2 : 1;
}

}  // namespace paceline
