// A product with a matrix of any kind.
#pragma once

#include "elementwise.h"
#include "gemm/gemm_quantized_bf16.h"
#include "gemm/gemm_bf16.h"
#include "gemm/gemm_quantized.h"
#include "thread_pool.h"

namespace paceline {

// row(m) = w x for every row m of x, the columns shared out; row gives where it goes.
template <class T, class Row>
void linear(const Operation &op, const T *x, long ldx, int rows, Walk &walk, Row &&row, Acc<T> divisor) {
    auto give = [&](int m, int n, auto count, const Acc<T> *sums) {
        put<T, decltype(count)::value>(op, row(m), n, sums, divisor);
    };
    walk.share(op.outer, op.variant >= PANELS ? panel_rows : COLUMNS, [&](int begin, int end) {
        if (op.variant == INT8) {
            const Bytes w{(const int8_t *)op.weight, (const float *)op.scales, op.count};
            return multiply_small<T>(w, begin, end, x, ldx, rows, op.inner, give);
        }
        if (op.variant == INT4) {
            const Nibbles w{(const uint8_t *)op.weight, (const bf16 *)op.scales, op.count, op.count / Nibbles::BLOCK_BYTES};
            return multiply_small<T>(w, begin, end, x, ldx, rows, op.inner, give);
        }
#if defined(__AVX512BF16__)
        if constexpr (std::is_same_v<T, bf16>)
            if (op.variant == PANELS) {
                const Panels w{(const bf16 *)op.weight, (int)op.outer, (int)op.inner};
                return multiply_panels(w, begin, end, x, ldx, rows, give);
            }
#endif
#if defined(PACELINE_LOOKUPS)
        if constexpr (std::is_same_v<T, bf16>)
            if (op.variant > PANELS) {
                const long groups = op.count / Nibbles::BLOCK_BYTES;
                const Packed w{(const char *)op.weight, op.scales, op.count, groups, (int)op.outer, (int)op.inner};
                if (op.variant == PANELS_INT8) return multiply_packed<PanelBytes>(w, begin, end, x, ldx, rows, give);
                return multiply_packed<PanelNibbles>(w, begin, end, x, ldx, rows, give);
            }
#endif
        multiply((const T *)op.weight, op.inner, begin, end, x, ldx, rows, op.inner, give);
    });
}

}  // namespace paceline
