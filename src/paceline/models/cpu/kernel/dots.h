// Products of a few rows with a matrix whose rows lie one after another, as checkpoints hold them: nothing is packed.
//
// y[m][n] = sum over k of w[n][k] x[m][k]. Every sum runs over k in the same order whatever the tile, so that a row's
// result does not depend on the rows beside it: a token scored alone and in a draft has the same logits, bit for bit.
//
// With up to MOST_ROWS rows w passes once, in tiles that fill the registers, and what comes next is asked of memory
// while they compute. With more, a piece of w stays near while tiles of x take turns, each asking for its share of the
// next piece: reading and computing overlap there too.
#pragma once

#include <algorithm>

#include "scalar.h"

namespace paceline {

constexpr int WIDE = 3;              // rows of w in a tile: with 9 of x, 27 sums and their operands fill 32 registers
constexpr int MOST_ROWS = 9;         // of x in a tile
constexpr int GROUPS = 8;            // tiles of w that take turns with one block of x
constexpr int COLUMNS = WIDE * GROUPS;  // a thread's share of a product begins at a multiple of it
constexpr long NEARBY = 2048;        // bytes of a row of x, so that a tile's stay in the first-level cache
constexpr long PIECE = 256 * 1024;   // bytes of w that stay in the second while several tiles of x read them
constexpr int AHEAD = 32;            // rows of w between what is read and what is asked of memory

inline void want(const void *p) { __builtin_prefetch(p, 0, 2); }  // soon, in the second-level cache

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
// On the way it asks for as many bytes at far.
template <class T, int N, int M>
[[gnu::noinline]] void tile(const T *w, long ldw, const T *x, long ldx, int count, const char *far, Sums<T, N, M> &sums,
                            bool first, bool last, Acc<T> *out) {
    using S = Step<T>;
    Vec<T> acc[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) acc[m][n] = first ? Vec<T>{} : sums.of[m * N + n];
    int i = 0;
    auto add = [&](auto &&get) {
        typename S::Operand wide[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) wide[n] = get(w + n * ldw + i);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            const auto row = get(x + m * ldx + i);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) acc[m][n] = S::add(acc[m][n], wide[n], row);
        }
    };
    for (; i + S::size <= count; i += S::size, far += N * S::size * sizeof(T)) {
#pragma GCC unroll 4
        for (int line = 0; line < int(N * S::size * sizeof(T)); line += 64) want(far + line);
        add([](const T *p) { return S::get(p); });
    }
    if (i < count) add([&](const T *p) { return S::some(p, count - i); });
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
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

// M rows of x with the rows first to last of w, N at a time, as many as there are; returns where it stopped. far(n)
// says what comes into the cache during the tile at n.
template <class T, int N, int M, class Far, class Put>
inline int strip(const T *w, long ldw, int first, int last, const T *x, long ldx, int k, Far &&far, Put &&put) {
    Sums<T, N, M> sums[GROUPS];
    Acc<T> out[M * N], rows[M][N * GROUPS];
    const long bytes = k * (long)sizeof(T);
    const int blocks = std::max<long>(1, (bytes + NEARBY / 2) / NEARBY),
              block = ((k + blocks - 1) / blocks + 63) / 64 * 64;
    int n = first;
    while (n + N <= last) {
        const int turns = std::min(GROUPS, (last - n) / N), count = turns * N;
        for (int at = 0; at < k; at += block)
            for (int g = 0; g < turns; g++) {
                const int row = n + g * N;
                tile<T, N, M>(w + row * ldw + at, ldw, x + at, ldx, std::min(block, k - at),
                              (const char *)(w + far(row) * ldw + at * N), sums[g], at == 0, at + block >= k, out);
                if (at + block < k) continue;
                for (int m = 0; m < M; m++)
                    for (int j = 0; j < N; j++) rows[m][g * N + j] = out[m * N + j];
            }
        for (int m = 0; m < M; m++) {
            int j = 0;
            for (; j + 4 <= count; j += 4) put(m, n + j, Count<4>{}, rows[m] + j);
            for (; j < count; j++) put(m, n + j, Count<1>{}, rows[m] + j);
        }
        n += count;
    }
    return n;
}

// The same for m rows of x, 1 to MOST_ROWS, with all rows of w.
template <class T, class Far, class Put>
inline void strips(int m, const T *w, long ldw, int first, int last, const T *x, long ldx, int k, Far &&far, Put &&put) {
    auto wide = [&](auto rows) {
        return strip<T, WIDE, decltype(rows)::value>(w, ldw, first, last, x, ldx, k, far, put);
    };
    int n = first;
    switch (m) {
        case 1: n = wide(Count<1>{}); break;
        case 2: n = wide(Count<2>{}); break;
        case 3: n = wide(Count<3>{}); break;
        case 4: n = wide(Count<4>{}); break;
        case 5: n = wide(Count<5>{}); break;
        case 6: n = wide(Count<6>{}); break;
        case 7: n = wide(Count<7>{}); break;
        case 8: n = wide(Count<8>{}); break;
        default: n = wide(Count<9>{});
    }
    for (int j = 0; n < last && j < m; j++)
        strip<T, 1, 1>(w, ldw, n, last, x + j * ldx, ldx, k, [](int row) { return row; },
                       [&](int, int at, auto count, const Acc<T> *sums) { put(j, at, count, sums); });
}

// Hands every y[m][n], n from begin to end, to put(m, n, Count<N>, sums): N of one row side by side.
template <class T, class Put>
inline void multiply(const T *w, long ldw, int begin, int end, const T *x, long ldx, int rows, int k, Put &&put) {
    const int tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const long fitting = std::max<long>(1, PIECE / (COLUMNS * k * (long)sizeof(T))) * COLUMNS;
    const int piece = tiles == 1 ? end - begin : std::min<long>(fitting, end - begin);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int t = 0, m = 0; t < tiles; t++) {
            const int size = (rows - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
            const long share = last + (long)t * (last - first) / tiles;
            strips(
                size, w, ldw, first, last, x + m * ldx, ldx, k,
                [&](int n) -> long {
                    if (tiles == 1) return n + AHEAD;
                    return (n - first) / WIDE % tiles ? n : share + (n - first) / tiles;
                },
                [&](int row, int n, auto count, const Acc<T> *sums) { put(m + row, n, count, sums); });
            m += size;
        }
    }
}

}  // namespace paceline
