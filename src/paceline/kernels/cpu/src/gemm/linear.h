// A linear layer with weights of any format, its columns divided among the threads.
#pragma once

#include "elementwise.h"
#include "gemm/gemm_quantized.h"
#include "gemm/packing.h"
#include "thread_pool.h"

namespace paceline {

namespace panels {  // products of integers do not depend on a model's precision: units/panels.cpp has them for all
extern template void gemm_panels<Int8Decoder>(const Matrix &, int, int, const float *, int, const EmitSums &);
extern template void gemm_panels<Int4Decoder>(const Matrix &, int, int, const float *, int, const EmitSums &);
}  // namespace panels

// Of x: each thread widens so many rows for itself, more are widened once for all; and bytes widened at once.
constexpr int OWN_ROWS = 16;
constexpr long WIDENED_BYTES = 2048 * 1024;

// Rows of x, of k elements, that are widened at once: a multiple of those of a tile.
inline int rows_at_once(int k, int tile) {
    return std::clamp<long>(WIDENED_BYTES / sizeof(float) / k, 4 * tile, 32 * tile) / tile * tile;
}

// rows of x in widened form, of which widen(m, out) writes one; size floats. All threads of worker get there.
template <class Widen>
const float *widened(Worker &worker, int rows, long size, Widen &&widen) {
    static thread_local AlignedBuffer<float> own;
    if (rows > OWN_ROWS)
        if (float *shared = worker.shared(size)) {
            worker.parallel_for(rows, 4, [&](int begin, int end) {
                for (int m = begin; m < end; m++) widen(m, shared);
            });
            return shared;
        }
    float *out = own.of(size);
    for (int m = 0; m < rows; m++) widen(m, out);
    return out;
}

// As linear, with packed weights that D decodes.
template <class D, class T, class Put>
void linear_panels(const Operation &op, const panels::Matrix &w, const T *x, long ldx, int rows, Worker &worker,
                   Put &&emit) {
    constexpr int LANES = panels::LANES;
    const int most = rows_at_once(w.k, panels::TILE_ROWS);
    for (int top = 0; top < rows; top += most) {
        const int size = std::min(most, rows - top);
        const float *wide = widened(worker, size, panels::widened_size(size, w.k), [&](int m, float *out) {
            panels::widen_row<D>(x + (top + m) * ldx, w.k, m, size, out);
        });
        auto emit_sums = [&](int m, int n, int count, float *sums) {
            if (std::is_same_v<D, panels::Int8Decoder>)
                for (int j = 0; j < count; j++) sums[j] *= ((const float *)op.scales)[n + j];
            int c = 0;
            for (; c + LANES <= count; c += LANES) emit(top + m, n + c, Count<LANES>{}, sums + c);
            for (; c + 4 <= count; c += 4) emit(top + m, n + c, Count<4>{}, sums + c);
            for (; c < count; c++) emit(top + m, n + c, Count<1>{}, sums + c);
        };
        const panels::EmitSums emit_panel = std::ref(emit_sums);
        worker.parallel_for(op.outer, panels::PANEL_ROWS, [&](int begin, int end) {
            panels::gemm_panels<D>(w, begin, end, wide, size, emit_panel);
        });
    }
}

// As linear, with weights as checkpoints store them.
template <class T, class Put>
void linear_unpacked(const Operation &op, const T *x, long ldx, int rows, Worker &worker, Put &&emit) {
    const T *w = (const T *)op.weight;
    const int k = op.inner;
    auto multiply = [&](const auto *x, long ldx, int top, int rows) {
        auto emit_below = [&](int m, int n, auto count, const Acc<T> *sums) { emit(top + m, n, count, sums); };
        worker.parallel_for(op.outer, COLUMN_BLOCK, [&](int begin, int end) {
            gemm_unpacked(w, k, begin, end, x, ldx, rows, k, emit_below);
        });
    };
    if constexpr (std::is_same_v<typename Step<T>::X, T>) {
        multiply(x, ldx, 0, rows);
    } else {
        const long step = (k + 63) / 64 * 64 + 16;  // lines of different rows map to different sets
        const int most = rows_at_once(k, max_tile_rows<T>);
        for (int top = 0; top < rows; top += most) {
            const int size = std::min(most, rows - top);
            const float *wide = widened(worker, size, size * step, [&](int m, float *out) {
                widen_for_step(x + (top + m) * ldx, k, out + m * step);
            });
            multiply(wide, step, top, size);
        }
    }
}

// The rows of an output: all in order, step elements apart, or those of index.
template <class T>
struct OutputRows {
    T *first;
    long step;
    const long *index;
    T *at(int m) const { return first + (index ? index[m] : m) * step; }
};

// out.at(m) = w x for every row m of x.
template <class T>
void linear(const Operation &op, const T *x, long ldx, int rows, Worker &worker, const OutputRows<T> &out,
            Acc<T> divisor) {
    auto emit = [writer = OutputWriter<T>(op, divisor), out](int m, int n, auto count, const Acc<T> *sums) {
        writer.template write<decltype(count)::value>(out.at(m), n, sums);
    };
    using Plain = typename panels::PlainDecoder<T>::type;
    if constexpr (!std::is_void_v<Plain>)
        if (op.variant >= PACKED && !multiplies_pairs<T>(op.variant)) {
            const int inner = op.inner, outer = op.outer;
            const char *data = (const char *)op.weight;
            if (op.variant == PACKED_INT8)
                return linear_panels<panels::Int8Decoder>(op, {data, op.scales, op.count, 0, outer, inner}, x, ldx,
                                                          rows, worker, emit);
            if (op.variant == PACKED_INT4)
                return linear_panels<panels::Int4Decoder>(
                    op, {data, op.scales, op.count, op.count / Int4Matrix::BLOCK_BYTES, outer, inner}, x, ldx, rows,
                    worker, emit);
            return linear_panels<Plain>(op, {data, nullptr, op.inner * (long)sizeof(T), 0, outer, inner}, x, ldx, rows,
                                        worker, emit);
        }
    if (op.variant == FLOATS) return linear_unpacked<T>(op, x, ldx, rows, worker, emit);
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
    });
}

}  // namespace paceline
