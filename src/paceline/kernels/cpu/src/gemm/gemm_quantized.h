// GEMM with int8 or int4 weights, row by row, and their scales: for any precision and CPU.
// On AVX512-BF16 the quantized weights are packed in panels instead (gemm_quantized_bf16.h).
//
// Integers are converted to floats in registers, exactly, and multiplied as in gemm_unpacked.h.
// Every sum runs over k in the same order whatever the tile, so results are batch-invariant.
// Rows of w are zero-padded to whole blocks.
#pragma once

#include <functional>
#include <vector>

#include "gemm/quantized_blocks.h"

namespace paceline {

constexpr int MAX_GEMM_ROWS = 48;             // rows of x that are zero-padded at once
constexpr int PREFETCH_TILES = 8;             // prefetch distance
constexpr long WIDENED_L2_BYTES = 64 * 1024;  // of converted w, kept in the cache while several tiles of x read them

// Multiplies N rows of w by M rows of x, one part each.
template <class R, int N, int M, class T>
inline void add_parts(Vec<T> (&acc)[M][N], const Vec<T> (&w)[N], const T *x, long ldx) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        const Vec<T> row = load(x + m * ldx);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[m][n] = multiply_add(w[n], row, acc[m][n]);
    }
}

// N rows of w, from first on, and M rows of x: out[m * N + n]. Prefetches N rows at far.
template <class T, int N, int M, class R>
[[gnu::noinline]] void quantized_tile(const R &rows, int first, const T *x, long ldx, int blocks, const char *far,
                                      long stride, long step, Acc<T> *out) {
    using Part = Vec<T>;
    const R r = rows.from(first);
    Vec<T> acc[M][N] = {};
    alignas(64) Part local[R::PARTS][N];
    for (int block = 0; block < blocks; block++) {
        if (far) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) prefetch(far + n * stride);
            far += step;
        }
        const T *here = x + block * R::BLOCK;
        if constexpr (M == 1) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
#pragma GCC unroll 8
                for (int p = 0; p < R::PARTS; p++)
                    acc[0][n] = multiply_add(own[p], load(here + p * R::STEP), acc[0][n]);
            }
        } else if constexpr (N * (M + R::PARTS) <= 24) {
            Part parts[R::PARTS][N];
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
                for (int p = 0; p < R::PARTS; p++) parts[p][n] = own[p];
            }
            for (int p = 0; p < R::PARTS; p++) add_parts<R, N, M, T>(acc, parts[p], here + p * R::STEP, ldx);
        } else {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
#pragma GCC unroll 8
                for (int p = 0; p < R::PARTS; p++) local[p][n] = own[p];
            }
            const Part(*stored)[N] = local;
            asm volatile("" : "+r"(stored) : : "memory");  // keep it in memory: the sums fill the registers
#pragma GCC unroll 8
            for (int p = 0; p < R::PARTS; p++) add_parts<R, N, M, T>(acc, stored[p], here + p * R::STEP, ldx);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        if constexpr (N == 1) {
            out[m] = sum(acc[m][0]);
        } else {
#pragma GCC unroll 8
            for (int n = 0; n < N; n += 4) {
                Vec<T> four[4] = {acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3]};
                sums(four, out + m * N + n);
            }
        }
    }
}

// A tile of m rows of x, at most R::MAX_ROWS.
template <class T, class R, int M = 1>
inline void quantized_tile_for(int m, const R &rows, int first, const T *x, long ldx, int blocks, const char *far,
                               long stride, long step, Acc<T> *out) {
    if constexpr (M < R::MAX_ROWS)
        if (m > M) return quantized_tile_for<T, R, M + 1>(m, rows, first, x, ldx, blocks, far, stride, step, out);
    quantized_tile<T, 4, M>(rows, first, x, ldx, blocks, far, stride, step, out);
}

// A 64-byte aligned buffer that each thread keeps between calls.
template <class T>
class AlignedBuffer {
   public:
    T *of(long count) {
        if ((long)memory_.size() < count + 64) memory_.resize(count + 64);
        return (T *)(((uintptr_t)memory_.data() + 63) & ~uintptr_t(63));
    }

   private:
    std::vector<T> memory_;
};

// Receives the scaled sums of row m for count columns from n on.
template <class T>
using Emit = std::function<void(int m, int n, int count, const Acc<T> *sums)>;

// One product: w is Int8Matrix or Int4Matrix, rows at most MAX_GEMM_ROWS, k elements each.
template <class T, class W>
class QuantizedGemm {
   public:
    using R = RowDecoder<T, W>;
    QuantizedGemm(const W &w, const T *x, long ldx, int rows, int k, const Emit<T> &emit)
        : w_(w),
          reads_(w),
          emit_(emit),
          rows_(rows),
          blocks_((k + R::BLOCK - 1) / R::BLOCK),
          width_(blocks_ * R::BLOCK) {
        static thread_local AlignedBuffer<T> buffer;
        x_ = buffer.of((long)rows * width_);
        for (int m = 0; m < rows; m++) {
            std::memcpy(x_ + m * width_, x + m * ldx, k * sizeof(T));
            std::memset(x_ + m * width_ + k, 0, (width_ - k) * sizeof(T));
        }
    }

    void run(int begin, int end) {
        const int whole = (end - begin) / 4 * 4;
        if (rows_ == 1) {
            for (; begin + 8 <= end; begin += 8) {
                quantized_tile<T, 8, 1>(reads_, begin, x_, width_, blocks_, w_.row(begin + 8 * PREFETCH_TILES),
                                        w_.stride, W::BLOCK_BYTES, out_);
                emit_scaled<8>(0, 1, begin);
            }
        } else if (rows_ <= R::MAX_ROWS) {
            for (const int last = begin + whole; begin < last; begin += 4) {
                quantized_tile_for(rows_, reads_, begin, x_, width_, blocks_, w_.row(begin + 4 * PREFETCH_TILES),
                                   w_.stride, W::BLOCK_BYTES, out_);
                emit_scaled<4>(0, rows_, begin);
            }
        } else {
            run_many_rows(begin, begin + whole);
            begin += whole;
        }
        for (; begin < end; begin++)
            for (int m = 0; m < rows_; m++) {
                quantized_tile<T, 1, 1>(reads_, begin, x_ + m * width_, width_, blocks_, nullptr, 0, 0, out_);
                emit_scaled<1>(m, 1, begin);
            }
    }

   private:
    W w_;
    R reads_;
    const Emit<T> &emit_;
    int rows_, blocks_;
    long width_;
    T *x_;
    Acc<T> out_[R::MAX_ROWS * 8];

    template <int N>
    void emit_scaled(int m, int count, int n) {
        for (int j = 0; j < count; j++) {
            w_.scale(n, N, out_ + j * N);
            emit_(m + j, n, N, out_ + j * N);
        }
    }

    // Several tiles of x: each block of w stays in the cache while they reuse it; the last tile prefetches the next
    // block.
    void run_many_rows(int begin, int end) {
        const int piece = std::max<long>(1, WIDENED_L2_BYTES / (4 * width_ * (long)sizeof(T))) * 4;
        const int tiles = (rows_ + R::MAX_ROWS - 1) / R::MAX_ROWS;
        for (int first = begin; first < end; first += piece)
            for (int t = 0, m = 0; t < tiles; t++) {
                const int size = (rows_ - m + tiles - t - 1) / (tiles - t);  // tiles of almost equal size
                for (int n = first; n < std::min(end, first + piece); n += 4) {
                    const char *far = t + 1 == tiles ? w_.row(n + piece) : nullptr;
                    quantized_tile_for(size, reads_, n, x_ + m * width_, width_, blocks_, far, w_.stride,
                                       W::BLOCK_BYTES, out_);
                    emit_scaled<4>(m, size, n);
                }
                m += size;
            }
    }
};

// y = w x for columns begin to end; emit as in gemm_unpacked.h, behind a std::function so that this is compiled once.
template <class T, class W, class Put>
inline void gemm_quantized(const W &w, int begin, int end, const T *x, long ldx, int rows, int k, Put &&emit) {
    int top = 0;
    const Emit<T> emit_scaled = [&](int m, int n, int count, const Acc<T> *sums) {
        if (count == 8) return emit(top + m, n, Count<8>{}, sums);
        if (count == 4) return emit(top + m, n, Count<4>{}, sums);
        emit(top + m, n, Count<1>{}, sums);
    };
    for (; top < rows; top += MAX_GEMM_ROWS)
        QuantizedGemm<T, W>(w, x + top * ldx, ldx, std::min(MAX_GEMM_ROWS, rows - top), k, emit_scaled).run(begin, end);
}

}  // namespace paceline
