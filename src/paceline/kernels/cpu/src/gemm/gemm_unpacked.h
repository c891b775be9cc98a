// Products of a few rows with a matrix whose rows lie one after another, as checkpoints hold them: nothing is packed.
//
// y[m][n] = sum over k of w[n][k] x[m][k]. Every sum runs over k in the same order whatever the tile, so that a row's
// result does not depend on the rows beside it: a token scored alone and in a draft has the same logits, bit for bit.
//
// With up to nine rows w passes once, in tiles that fill the registers, and what comes next is asked of memory
// while they compute. With more, a piece of w stays near while tiles of x take turns, each asking for its share of the
// next piece: reading and computing overlap there too.
#pragma once

#include <algorithm>

#include "isa/vectors.h"

namespace paceline {

template <class T>
constexpr int most_rows = sizeof(Acc<T>) == 8 ? 4 : 9;  // of x in a tile; double precision is for comparing
constexpr int COLUMNS = 24;          // rows of w that take turns with one block of x; a thread's share begins at one
constexpr long NEARBY = 2048;        // bytes of a row of x, so that a tile's stay in the first-level cache
constexpr long PASS = 256 * 1024;   // bytes of w that stay in the second while several tiles of x read them
constexpr long AHEAD = 64 * 1024;    // bytes between what is read and what is asked of memory

// Rows of w in a tile with m rows of x: with 9 of them 27 sums and their operands fill 32 registers. What is measured to
// read fastest, and a divisor of COLUMNS.
constexpr int wide_of(int m) { return m == 1 || m == 3 ? 8 : 3; }
constexpr int MOST_GROUPS = COLUMNS / wide_of(2);

inline void want_later(const void *p) { __builtin_prefetch(p, 0, 2); }  // soon, in the second-level cache

// How numbers are multiplied: a vector at a time, or pairs of bfloat16 where the machine can.
template <class T>
struct Step {
    using Operand = Vec<T>;
    static constexpr int size = lanes<T>;
    static Operand get(const T *p) { return load(p); }
    static Operand some(const T *p, int count) { return load_some(p, count); }
    static Vec<T> add(Vec<T> sum, Operand a, Operand b) { return sum + a * b; }
};
#if defined(__AVX512BF16__)
template <>
struct Step<bf16> {
    using Operand = __m512bh;
    static constexpr int size = 32;
    static Operand get(const bf16 *p) { return (Operand)_mm512_loadu_si512(p); }
    static Operand some(const bf16 *p, int count) { return (Operand)_mm512_maskz_loadu_epi16((1u << count) - 1, p); }
    static Floats add(Floats sum, Operand a, Operand b) { return (Floats)_mm512_dpbf16_ps((__m512)sum, a, b); }
};
#endif

// Vectors of a tile's sums, carried from one block of x to the next; enough for sums of four at a time.
template <class T, int N, int M>
struct Sums {
    static constexpr int count = (M * N + 3) / 4 * 4;
    Vec<T> of[count];
};

// Adds one block, count numbers of N rows of w and M rows of x, to sums; after the last one out[m * N + n] has them.
// On the way it asks for as many of the N rows at far.
template <class T, int N, int M>
[[gnu::noinline]] void tile(const T *w, long ldw, const T *x, long ldx, int count, const T *far, Sums<T, N, M> &sums,
                            bool first, bool last, Acc<T> *out) {
    using S = Step<T>;
    Vec<T> acc[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[m][n] = first ? Vec<T>{} : sums.of[m * N + n];
    int i = 0;
    auto add = [&](auto &&get) {
        typename S::Operand wide[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) wide[n] = get(w + n * ldw + i);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const auto row = get(x + m * ldx + i);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[m][n] = S::add(acc[m][n], wide[n], row);
        }
    };
    for (; i + S::size <= count; i += S::size) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) want_later(far + n * ldw + i);
        add([](const T *p) { return S::get(p); });
    }
    if (i < count) add([&](const T *p) { return S::some(p, count - i); });
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

// How many numbers stand side by side, known to the compiler.
template <int N>
using Count = std::integral_constant<int, N>;

// Up to COLUMNS rows of w, in groups of N, with M rows of x: sums of one row of x stand side by side, COLUMNS apart.
// far says, group by group, which rows of all come into the cache meanwhile.
template <class T, int N, int M>
[[gnu::noinline]] void turn(const T *all, long ldw, int n, int groups, const T *x, long ldx, int k, const long *far,
                            Acc<T> *rows) {
    Sums<T, N, M> sums[COLUMNS / N];
    Acc<T> out[M * N];
    const long bytes = k * (long)sizeof(T);
    const int blocks = std::max<long>(1, (bytes + NEARBY / 2) / NEARBY), block = ((k + blocks - 1) / blocks + 63) / 64 * 64;
    for (int at = 0; at < k; at += block)
        for (int g = 0; g < groups; g++) {
            const bool last = at + block >= k;
            tile<T, N, M>(all + (n + g * N) * ldw + at, ldw, x + at, ldx, std::min(block, k - at),
                          all + far[g] * ldw + at, sums[g], at == 0, last, out);
            if (!last) continue;
            for (int m = 0; m < M; m++)
                for (int j = 0; j < N; j++) rows[m * COLUMNS + g * N + j] = out[m * N + j];
        }
}

template <class T>
using Turn = void (*)(const T *, long, int, int, const T *, long, int, const long *, Acc<T> *);

// The turn for m rows of x, 1 to most_rows.
template <class T, int M = 1>
Turn<T> turn_of(int m) {
    if constexpr (M < most_rows<T>)
        return m == M ? turn<T, wide_of(M), M> : turn_of<T, M + 1>(m);
    else
        return turn<T, wide_of(M), M>;
}

// Hands every y[m][n], n from begin to end, to put(m, n, Count<N>, sums): N of one row side by side.
template <class T, class Put>
inline void multiply(const T *w, long ldw, int begin, int end, const T *x, long ldx, int rows, int k, Put &&put) {
    Acc<T> sums[most_rows<T> * COLUMNS];
    long far[MOST_GROUPS];
    const long ahead = std::clamp<long>(AHEAD / (k * (long)sizeof(T)), 32, 256);
    const int tiles = (rows + most_rows<T> - 1) / most_rows<T>;
    const long fitting = std::max<long>(1, PASS / (COLUMNS * k * (long)sizeof(T))) * COLUMNS;
    const int piece = tiles == 1 ? end - begin : std::min<long>(fitting, end - begin);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int t = 0, m = 0; t < tiles; t++) {
            const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
            const long share = last + (long)t * (last - first) / tiles;
            const int wide = wide_of(size);
            const Turn<T> take = turn_of<T>(size);
            for (int n = first; n < last; n += COLUMNS) {
                const int count = std::min(COLUMNS, last - n), groups = count / wide;
                for (int g = 0; g < groups; g++) {
                    const int row = n + g * wide, turn = (row - first) / wide;
                    far[g] = tiles == 1 ? row + ahead : turn % tiles ? row : share + (row - first) / tiles;
                }
                if (groups) take(w, ldw, n, groups, x + m * ldx, ldx, k, far, sums);
                for (long left = groups * wide; left < count; left++) {
                    far[0] = n + left;
                    for (int j = 0; j < size; j++)
                        turn<T, 1, 1>(w, ldw, n + left, 1, x + (m + j) * ldx, ldx, k, far, sums + j * COLUMNS + left);
                }
                for (int j = 0; j < size; j++) {
                    const Acc<T> *row = sums + j * COLUMNS;
                    int c = 0;
                    for (; c + 4 <= count; c += 4) put(m + j, n + c, Count<4>{}, row + c);
                    for (; c < count; c++) put(m + j, n + c, Count<1>{}, row + c);
                }
            }
            m += size;
        }
    }
}

}  // namespace paceline
