// GEMM for a few rows of x with a row-major matrix, as checkpoints store it, without packing.
//
// y[m][n] = sum over k of w[n][k] x[m][k]. Every sum runs over k in the same order whatever the tile, so results are
// batch-invariant: a token scored alone and in a draft has bitwise the same logits.
//
// With up to nine rows, w is streamed once, in tiles that fill the registers, with prefetching. With more, a block of w
// stays in the L2 cache while tiles of x reuse it, and each tile prefetches its share of the
// next block.
#pragma once

#include <algorithm>

#include "isa/vectors.h"

namespace paceline {

constexpr bool FEW_REGISTERS = NUM_REGISTERS == 16;
template <class T>
constexpr int max_tile_rows = sizeof(Acc<T>) == 8 ? 4 : FEW_REGISTERS ? 6 : 9;  // of x; double is a reference only
constexpr int COLUMN_BLOCK = 24;     // rows of w that share one block of x; threads split w at multiples of it
constexpr long L1_ROW_BYTES = 2048;  // of a row of x, so that a tile's rows fit the L1 cache
constexpr long UNPACKED_L2_BYTES = 256 * 1024;       // of w, kept in L2 while several tiles of x read them
constexpr long UNPACKED_PREFETCH_BYTES = 64 * 1024;  // prefetch distance

// Rows of w in a tile with m rows of x: 27 sums and their operands fill 32 registers, 12 sums fill 16. The fastest as
// measured, and a divisor of COLUMN_BLOCK.
constexpr int tile_width(int m) {
    if (!FEW_REGISTERS) return m == 1 || m == 3 ? 8 : 3;
    return m == 1 ? 8 : m <= 3 ? 4 : m == 4 ? 3 : 2;
}
constexpr int MAX_GROUPS = COLUMN_BLOCK / 2;

inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }  // into the L2 cache

// Multiply-add on vectors: of elements of w with those of x, which is of type X. PARTS vectors of w are read from the
// same size elements.
template <class T>
struct Step {
    using X = T;
    using Operand = Vec<T>;
    static constexpr int size = lanes<T>, PARTS = 1;
    static Operand get(const T *p, int) { return load(p); }
    static Operand some(const T *p, int count, int) { return load_some(p, count); }
    static Operand get_x(const X *p, int) { return load(p); }
    static Operand some_x(const X *p, int count, int) { return load_some(p, count); }
    static Vec<T> add(Vec<T> sum, Operand a, Operand b) { return multiply_add(a, b, sum); }
};
#if defined(__AVX512BF16__)
template <>
struct Step<bf16> {
    using X = bf16;
    using Operand = __m512bh;
    static constexpr int size = 32, PARTS = 1;
    static Operand get(const bf16 *p, int) { return (Operand)_mm512_loadu_si512(p); }
    static Operand some(const bf16 *p, int count, int) {
        return (Operand)_mm512_maskz_loadu_epi16((1u << count) - 1, p);
    }
    static Operand get_x(const bf16 *p, int) { return get(p, 0); }
    static Operand some_x(const bf16 *p, int count, int) { return some(p, count, 0); }
    static Floats add(Floats sum, Operand a, Operand b) { return (Floats)_mm512_dpbf16_ps((__m512)sum, a, b); }
};
#else
// The even elements of a vector of w are shifted to float32, the odd ones masked. x is widened once per call, even
// elements before odd ones, and filled up with zeros.
template <>
struct Step<bf16> {
    using X = float;
    using Operand = Floats;
    static constexpr int size = 2 * lanes<float>, PARTS = 2;
    static Operand get(const bf16 *p, int part) {
        Words pairs;
        std::memcpy(&pairs, p, sizeof pairs);
        return (Floats)(part ? pairs & 0xffff0000u : pairs << 16);
    }
    static Operand some(const bf16 *p, int count, int part) {
        bf16 padded[size] = {};
        std::memcpy(padded, p, count * sizeof(bf16));
        return get(padded, part);
    }
    static Operand get_x(const float *p, int part) { return load(p + part * lanes<float>); }
    static Operand some_x(const float *p, int, int part) { return get_x(p, part); }
    static Floats add(Floats sum, Operand a, Operand b) { return multiply_add(a, b, sum); }
};
#endif
template <>
struct Step<f16> {
    using X = float;
    using Operand = Floats;
    static constexpr int size = lanes<float>, PARTS = 1;
    static Operand get(const f16 *p, int) { return load(p); }
    static Operand some(const f16 *p, int count, int) { return load_some(p, count); }
    static Operand get_x(const float *p, int) { return load(p); }
    static Operand some_x(const float *p, int, int) { return load(p); }
    static Floats add(Floats sum, Operand a, Operand b) { return multiply_add(a, b, sum); }
};

// A row of x as Step<T> reads it, where that is float32.
template <class T>
inline void widen_for_step(const T *x, int k, float *out) {
    using S = Step<T>;
    for (int i = 0; i < k; i += S::size)
        for (int part = 0; part < S::PARTS; part++)
            store(out + i + part * lanes<float>, i + S::size <= k ? S::get(x + i, part) : S::some(x + i, k - i, part));
}

// Vectors of a tile's sums, carried from one block of x to the next; padded to a multiple of four.
template <class T, int N, int M>
struct Sums {
    static constexpr int count = (M * N + 3) / 4 * 4;
    Vec<T> of[count];
};

// Adds one block, count elements of N rows of w and M rows of x, to sums; after the last one out[m * N + n] has them.
// Prefetches the same elements of the N rows at far.
template <class T, int N, int M>
[[gnu::noinline]] void tile(const T *w, long ldw, const typename Step<T>::X *x, long ldx, int count, const T *far,
                            Sums<T, N, M> &sums, bool first, bool last, Acc<T> *out) {
    using S = Step<T>;
    Vec<T> acc[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[m][n] = first ? Vec<T>{} : sums.of[m * N + n];
    int i = 0;
    auto add = [&](auto &&get, auto &&get_x) {
#pragma GCC unroll 2
        for (int part = 0; part < S::PARTS; part++) {
            typename S::Operand wide[N];
            if (part) asm volatile("" : "+r"(w));  // read again rather than kept: the sums fill the registers
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) wide[n] = get(w + n * ldw + i, part);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
                const auto row = get_x(x + m * ldx + i, part);
#pragma GCC unroll 8
                for (int n = 0; n < N; n++) acc[m][n] = S::add(acc[m][n], wide[n], row);
            }
        }
    };
    for (; i + S::size <= count; i += S::size) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) prefetch(far + n * ldw + i);
        add(S::get, S::get_x);
    }
    if (i < count)
        add([&](const T *p, int part) { return S::some(p, count - i, part); },
            [&](const typename S::X *p, int part) { return S::some_x(p, count - i, part); });
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sums.of[m * N + n] = acc[m][n];
    if (!last) return;
    for (int at = 0; at < M * N; at += 4) {
        Vec<T> four[4];
        for (int j = 0; j < 4; j++) four[j] = at + j < M * N ? sums.of[at + j] : Vec<T>{};
        Acc<T> done[4];
        paceline::sums(four, done);
        for (int j = 0; j < 4 && at + j < M * N; j++) out[at + j] = done[j];
    }
}

// A number of adjacent elements, known at compile time.
template <int N>
using Count = std::integral_constant<int, N>;

// Up to COLUMN_BLOCK rows of w, in groups of N, with M rows of x: rows[m * COLUMN_BLOCK + n].
// far[g] is the row of w that group g prefetches.
template <class T, int N, int M>
[[gnu::noinline]] void column_block(const T *all, long ldw, int n, int groups, const typename Step<T>::X *x, long ldx,
                                    int k, const long *far, Acc<T> *rows) {
    Sums<T, N, M> sums[COLUMN_BLOCK / N];
    Acc<T> out[M * N];
    const long bytes = k * (long)sizeof(*x);
    const int blocks = std::max<long>(1, (bytes + L1_ROW_BYTES / 2) / L1_ROW_BYTES),
              block = ((k + blocks - 1) / blocks + 63) / 64 * 64;
    for (int at = 0; at < k; at += block)
        for (int g = 0; g < groups; g++) {
            const bool last = at + block >= k;
            tile<T, N, M>(all + (n + g * N) * ldw + at, ldw, x + at, ldx, std::min(block, k - at),
                          all + far[g] * ldw + at, sums[g], at == 0, last, out);
            if (!last) continue;
            for (int m = 0; m < M; m++)
                for (int j = 0; j < N; j++) rows[m * COLUMN_BLOCK + g * N + j] = out[m * N + j];
        }
}

template <class T>
using ColumnBlock = void (*)(const T *, long, int, int, const typename Step<T>::X *, long, int, const long *, Acc<T> *);

// The column block function for m rows of x, 1 to max_tile_rows.
template <class T, int M = 1>
ColumnBlock<T> column_block_for(int m) {
    if constexpr (M < max_tile_rows<T>)
        return m == M ? column_block<T, tile_width(M), M> : column_block_for<T, M + 1>(m);
    else
        return column_block<T, tile_width(M), M>;
}

// Emits every y[m][n], n from begin to end, as emit(m, n, Count<N>, sums): N adjacent ones of one row.
template <class T, class Put>
inline void gemm_unpacked(const T *w, long ldw, int begin, int end, const typename Step<T>::X *x, long ldx, int rows,
                          int k, Put &&emit) {
    Acc<T> sums[max_tile_rows<T> * COLUMN_BLOCK];
    long far[MAX_GROUPS];
    const long ahead = std::clamp<long>(UNPACKED_PREFETCH_BYTES / (k * (long)sizeof(T)), 32, 256);
    const int tiles = (rows + max_tile_rows<T> - 1) / max_tile_rows<T>;
    const long fitting = std::max<long>(1, UNPACKED_L2_BYTES / (COLUMN_BLOCK * k * (long)sizeof(T))) * COLUMN_BLOCK;
    const int piece = tiles == 1 ? end - begin : std::min<long>(fitting, end - begin);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int t = 0, m = 0; t < tiles; t++) {
            const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost equal size
            const long share = last + (long)t * (last - first) / tiles;
            const int wide = tile_width(size);
            const ColumnBlock<T> run_block = column_block_for<T>(size);
            for (int n = first; n < last; n += COLUMN_BLOCK) {
                const int count = std::min(COLUMN_BLOCK, last - n), groups = count / wide;
                for (int g = 0; g < groups; g++) {
                    const int row = n + g * wide, column_block = (row - first) / wide;
                    far[g] = tiles == 1 ? row + ahead : column_block % tiles ? row : share + (row - first) / tiles;
                }
                if (groups) run_block(w, ldw, n, groups, x + m * ldx, ldx, k, far, sums);
                for (long left = groups * wide; left < count; left++) {
                    far[0] = n + left;
                    for (int j = 0; j < size; j++)
                        column_block<T, 1, 1>(w, ldw, n + left, 1, x + (m + j) * ldx, ldx, k, far,
                                              sums + j * COLUMN_BLOCK + left);
                }
                for (int j = 0; j < size; j++) {
                    const Acc<T> *row = sums + j * COLUMN_BLOCK;
                    int c = 0;
                    for (; c + 4 <= count; c += 4) emit(m + j, n + c, Count<4>{}, row + c);
                    for (; c < count; c++) emit(m + j, n + c, Count<1>{}, row + c);
                }
            }
            m += size;
        }
    }
}

}  // namespace paceline
