// A linear layer with weights of any format, its columns divided among the threads.
#pragma once

#include "elementwise.h"
#include "gemm/gemm_quantized_bf16.h"
#include "gemm/gemm_bf16.h"
#include "gemm/gemm_quantized.h"
#include "thread_pool.h"

namespace paceline {

// row(m) = w x for every row m of x; row(m) points to the output.
template <class T, class Row>
void linear(const Operation &op, const T *x, long ldx, int rows, Worker &worker, Row &&row, Acc<T> divisor) {
    auto emit = [&](int m, int n, auto count, const Acc<T> *sums) {
        write_outputs<T, decltype(count)::value>(op, row(m), n, sums, divisor);
    };
    worker.parallel_for(op.outer, op.variant >= PACKED ? panel_rows : COLUMN_BLOCK, [&](int begin, int end) {
        if (op.variant == INT8) {
            const Int8Matrix w{(const int8_t *)op.weight, (const float *)op.scales, op.count};
            return gemm_quantized<T>(w, begin, end, x, ldx, rows, op.inner, emit);
        }
        if (op.variant == INT4) {
            const Int4Matrix w{(const uint8_t *)op.weight, (const bf16 *)op.scales, op.count,
                               op.count / Int4Matrix::BLOCK_BYTES};
            return gemm_quantized<T>(w, begin, end, x, ldx, rows, op.inner, emit);
        }
#if defined(__AVX512BF16__)
        if constexpr (std::is_same_v<T, bf16>)
            if (op.variant == PACKED) {
                const PackedMatrix w{(const bf16 *)op.weight, (int)op.outer, (int)op.inner};
                return gemm_bf16(w, begin, end, x, ldx, rows, emit);
            }
#endif
#if defined(PACELINE_BYTE_LOOKUP)
        if constexpr (std::is_same_v<T, bf16>)
            if (op.variant > PACKED) {
                const long groups = op.count / Int4Matrix::BLOCK_BYTES;
                const PackedQuantizedMatrix w{(const char *)op.weight, op.scales,    op.count, groups,
                                              (int)op.outer,           (int)op.inner};
                if (op.variant == PACKED_INT8)
                    return gemm_quantized_bf16<Int8PanelDecoder>(w, begin, end, x, ldx, rows, emit);
                return gemm_quantized_bf16<Int4PanelDecoder>(w, begin, end, x, ldx, rows, emit);
            }
#endif
        gemm_unpacked((const T *)op.weight, op.inner, begin, end, x, ldx, rows, op.inner, emit);
    });
}

}  // namespace paceline
