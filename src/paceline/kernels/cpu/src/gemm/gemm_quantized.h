// Products with a matrix of small integers, row by row, and the scales that make numbers of them: for any precision and any
// machine. Where bfloat16 is multiplied pair by pair the integers lie in panels instead (gemm_quantized_bf16.h).
//
// The integers become floats in registers, exactly, and are multiplied as those are (gemm_unpacked.h).
// Every sum runs over k in the same order whatever the tile, so that a row's result does not depend on the rows beside
// it. Rows of w are filled up with zeros to whole blocks.
#pragma once

#include <functional>
#include <vector>

#include "gemm/quantized_blocks.h"

namespace paceline {

constexpr int PANEL = 48;          // rows of x that are filled up with zeros at once
constexpr int TILES_AHEAD = 8;     // between what is read and what is asked of memory
constexpr long PIECE = 64 * 1024;  // bytes of widened w that stay near while several tiles of x read them

// Rows of N parts side by side times M rows of x.
template <class R, int N, int M, class T>
inline void add_parts(Vec<T> (&acc)[M][N], const Vec<T> (&w)[N], const T *x, long ldx) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        const Vec<T> row = load(x + m * ldx);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[m][n] = acc[m][n] + w[n] * row;
    }
}

// N rows of w from first on and M rows of x; out[m * N + n]. On the way it asks for N rows at far.
template <class T, int N, int M, class R>
[[gnu::noinline]] void small_tile(const R &rows, int first, const T *x, long ldx, int blocks, const char *far, long stride,
                                  long step, Acc<T> *out) {
    using Part = Vec<T>;
    const R r = rows.from(first);
    Vec<T> acc[M][N] = {};
    alignas(64) Part near[R::PARTS][N];
    for (int block = 0; block < blocks; block++) {
        if (far) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) want_later(far + n * stride);
            far += step;
        }
        const T *here = x + block * R::BLOCK;
        if constexpr (M == 1) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
#pragma GCC unroll 8
                for (int p = 0; p < R::PARTS; p++) acc[0][n] += own[p] * load(here + p * R::STEP);
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
                for (int p = 0; p < R::PARTS; p++) near[p][n] = own[p];
            }
            const Part(*lies)[N] = near;
            asm volatile("" : "+r"(lies) : : "memory");  // in memory from here on: sums fill the registers
#pragma GCC unroll 8
            for (int p = 0; p < R::PARTS; p++) add_parts<R, N, M, T>(acc, lies[p], here + p * R::STEP, ldx);
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

// A tile of m rows of x, at most R::MOST.
template <class T, class R, int M = 1>
inline void four_by(int m, const R &rows, int first, const T *x, long ldx, int blocks, const char *far, long stride,
                    long step, Acc<T> *out) {
    if constexpr (M < R::MOST)
        if (m > M) return four_by<T, R, M + 1>(m, rows, first, x, ldx, blocks, far, stride, step, out);
    small_tile<T, 4, M>(rows, first, x, ldx, blocks, far, stride, step, out);
}

// Memory for numbers, aligned as vectors are, kept by each thread from one product to the next.
template <class T>
class Room {
   public:
    T *of(long count) {
        if ((long)memory_.size() < count + 64) memory_.resize(count + 64);
        return (T *)(((uintptr_t)memory_.data() + 63) & ~uintptr_t(63));
    }

   private:
    std::vector<T> memory_;
};

// Takes the sums of row m for count columns from n on, scaled.
template <class T>
using Give = std::function<void(int m, int n, int count, const Acc<T> *sums)>;

// One product: w is Bytes or another such, rows at most PANEL, k numbers each.
template <class T, class W>
class SmallProduct {
   public:
    using R = WideRows<T, W>;
    SmallProduct(const W &w, const T *x, long ldx, int rows, int k, const Give<T> &put)
        : w_(w), reads_(w), put_(put), rows_(rows), blocks_((k + R::BLOCK - 1) / R::BLOCK), width_(blocks_ * R::BLOCK) {
        static thread_local Room<T> room;
        x_ = room.of((long)rows * width_);
        for (int m = 0; m < rows; m++) {
            std::memcpy(x_ + m * width_, x + m * ldx, k * sizeof(T));
            std::memset(x_ + m * width_ + k, 0, (width_ - k) * sizeof(T));
        }
    }

    void run(int begin, int end) {
        const int whole = (end - begin) / 4 * 4;
        if (rows_ == 1) {
            for (; begin + 8 <= end; begin += 8) {
                small_tile<T, 8, 1>(reads_, begin, x_, width_, blocks_, w_.row(begin + 8 * TILES_AHEAD), w_.stride, W::BLOCK_BYTES, out_);
                give<8>(0, 1, begin);
            }
        } else if (rows_ <= R::MOST) {
            for (const int last = begin + whole; begin < last; begin += 4) {
                four_by(rows_, reads_, begin, x_, width_, blocks_, w_.row(begin + 4 * TILES_AHEAD), w_.stride, W::BLOCK_BYTES, out_);
                give<4>(0, rows_, begin);
            }
        } else {
            many(begin, begin + whole);
            begin += whole;
        }
        for (; begin < end; begin++)
            for (int m = 0; m < rows_; m++) {
                small_tile<T, 1, 1>(reads_, begin, x_ + m * width_, width_, blocks_, nullptr, 0, 0, out_);
                give<1>(m, 1, begin);
            }
    }

   private:
    W w_;
    R reads_;
    const Give<T> &put_;
    int rows_, blocks_;
    long width_;
    T *x_;
    Acc<T> out_[R::MOST * 8];

    template <int N>
    void give(int m, int count, int n) {
        for (int j = 0; j < count; j++) {
            w_.scale(n, N, out_ + j * N);
            put_(m + j, n, N, out_ + j * N);
        }
    }

    // Several tiles of x: pieces of w stay near while they take turns; the last tile asks for the next piece.
    void many(int begin, int end) {
        const int piece = std::max<long>(1, PIECE / (4 * width_ * (long)sizeof(T))) * 4;
        const int tiles = (rows_ + R::MOST - 1) / R::MOST;
        for (int first = begin; first < end; first += piece)
            for (int t = 0, m = 0; t < tiles; t++) {
                const int size = (rows_ - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
                for (int n = first; n < std::min(end, first + piece); n += 4) {
                    const char *far = t + 1 == tiles ? w_.row(n + piece) : nullptr;
                    four_by(size, reads_, n, x_ + m * width_, width_, blocks_, far, w_.stride, W::BLOCK_BYTES, out_);
                    give<4>(m, size, n);
                }
                m += size;
            }
    }
};

// y = w x for columns begin to end; put as in gemm_unpacked.h. All of this is compiled once for all that is done with the sums.
template <class T, class W, class Put>
inline void multiply_small(const W &w, int begin, int end, const T *x, long ldx, int rows, int k, Put &&put) {
    int top = 0;
    const Give<T> give = [&](int m, int n, int count, const Acc<T> *sums) {
        if (count == 8) return put(top + m, n, Count<8>{}, sums);
        if (count == 4) return put(top + m, n, Count<4>{}, sums);
        put(top + m, n, Count<1>{}, sums);
    };
    for (; top < rows; top += PANEL)
        SmallProduct<T, W>(w, x + top * ldx, ldx, std::min(PANEL, rows - top), k, give).run(begin, end);
}

}  // namespace paceline
