// Scores of some queries with the keys of one head: how much each attends to each slot.
//
// A score is summed over the numbers of a head in one order, whatever is scored with it. For pairs of bfloat16 sixteen
// keys stand side by side in a vector, word by word, so that no sum runs across one; what turns them round is shared by
// all queries.
#pragma once

#include "dots.h"

namespace paceline {

// Slots one after another.
struct Straight {
    int operator()(int j) const { return j; }
};

// scores[m * ld + j] = scale * (query m, key of slot at(j)), for j below count. Queries stand padded apart, filled up
// with zeros.
template <class T, class At>
inline void score(const T *keys, long step, int count, At &&at, const T *queries, int padded, int num, int size,
                  Acc<T> scale, Acc<T> *scores, long ld) {
    const auto put = [&](int first) {
        return [=](int m, int n, auto width, const Acc<T> *sums) {
            for (int j = 0; j < width; j++) scores[m * ld + first + n + j] = sums[j] * scale;
        };
    };
    if constexpr (std::is_same_v<At, Straight>) return multiply(keys, step, 0, count, queries, padded, num, size, put(0));
    for (int j = 0; j < count; j++) multiply(keys + at(j) * step, step, 0, 1, queries, padded, num, size, put(j));
}

#if defined(__AVX512BF16__)
constexpr int SIDE = 16;        // keys side by side
constexpr int WORDS = 64;       // pairs of a head's numbers that are turned round at once
constexpr int MOST_SIDES = 4;   // sixteens of keys at once, where queries are too few to keep the machine busy
constexpr int MOST_QUERIES = 8;
constexpr int KEYS_AHEAD = 64;  // between what is scored and what is asked of memory

// Sixteen vectors of sixteen words, rows to columns.
inline void turn_round(__m512i (&r)[SIDE]) {
    __m512i t[SIDE];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Adds words pairs of M queries and of G times sixteen keys that were turned round to sums.
template <int M, int G>
inline void add_words(const __m512i (*turned)[WORDS], int words, const bf16 *queries, int padded,
                      __m512 (*kept)[MOST_QUERIES]) {
    __m512 sums[G][M];
    const int *pairs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        pairs[m] = (const int *)(queries + m * padded);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sums[g][m] = kept[g][m];
    }
    for (int i = 0; i < words; i++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const __m512bh query = (__m512bh)_mm512_set1_epi32(pairs[m][i]);
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) sums[g][m] = _mm512_dpbf16_ps(sums[g][m], (__m512bh)turned[g][i], query);
        }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) kept[g][m] = sums[g][m];
}

template <int G, int M = 1>
inline void add_words_of(int m, const __m512i (*turned)[WORDS], int words, const bf16 *queries, int padded,
                         __m512 (*kept)[MOST_QUERIES]) {
    if constexpr (M < MOST_QUERIES / G)
        if (m > M) return add_words_of<G, M + 1>(m, turned, words, queries, padded, kept);
    add_words<M, G>(turned, words, queries, padded, kept);
}

// Scores of G times sixteen keys from j on with m queries, at most MOST_QUERIES / G.
template <int G, class At>
inline void score_sides(const bf16 *keys, long step, int j, int count, At &&at, const bf16 *queries, int padded, int num,
                        int size, float scale, float *scores, long ld) {
    __m512i turned[G][WORDS];
    const int tiles = (num * G + MOST_QUERIES - 1) / MOST_QUERIES, most = (num + tiles - 1) / tiles;
    for (int from = 0; from < size; from += 2 * WORDS) {
        const int words = std::min(WORDS, (size - from + 1) / 2);
        for (int g = 0; g < G; g++)
            for (int first = 0; first < words; first += SIDE) {
                const int left = std::min(2 * SIDE, size - from - 2 * first);
                const __mmask32 some = left == 32 ? ~0u : (1u << left) - 1;
                __m512i rows[SIDE];
#pragma GCC unroll 16
                for (int r = 0; r < SIDE; r++) {
                    const int key = j + g * SIDE + r;
                    const bf16 *row = keys + at(std::min(key, count - 1)) * step + from + 2 * first;
                    rows[r] = _mm512_maskz_loadu_epi16(some, row);
                    if (key + KEYS_AHEAD < count) want_later(keys + at(key + KEYS_AHEAD) * step + from + 2 * first);
                }
                turn_round(rows);
#pragma GCC unroll 16
                for (int r = 0; r < SIDE; r++) turned[g][first + r] = rows[r];
            }
        for (int m = 0; m < num; m += most) {
            const int these = std::min(most, num - m);
            __m512 kept[G][MOST_QUERIES];
            for (int g = 0; g < G; g++)
                for (int q = 0; q < these; q++) {
                    const int first = j + g * SIDE;
                    const __mmask16 there = first + SIDE <= count ? 0xffff : first < count ? (1u << (count - first)) - 1 : 0;
                    kept[g][q] = from ? _mm512_maskz_loadu_ps(there, scores + (m + q) * ld + first) : _mm512_setzero_ps();
                }
            add_words_of<G>(these, turned, words, queries + m * padded + from, padded, kept);
            const bool last = from + 2 * WORDS >= size;
            for (int g = 0; g < G; g++)
                for (int q = 0; q < these; q++) {
                    const int first = j + g * SIDE;
                    const __mmask16 there = first + SIDE <= count ? 0xffff : first < count ? (1u << (count - first)) - 1 : 0;
                    const __m512 sum = last ? _mm512_mul_ps(kept[g][q], _mm512_set1_ps(scale)) : kept[g][q];
                    _mm512_mask_storeu_ps(scores + (m + q) * ld + first, there, sum);
                }
        }
    }
}

template <class At>
inline void score(const bf16 *keys, long step, int count, At &&at, const bf16 *queries, int padded, int num, int size,
                  float scale, float *scores, long ld) {
    int j = 0;
    auto sides = [&](auto g) {
        constexpr int G = decltype(g)::value;
        for (; j + (G - 1) * SIDE < count; j += G * SIDE)
            score_sides<G>(keys, step, j, count, at, queries, padded, num, size, scale, scores, ld);
    };
    if (num <= 2) sides(Count<4>{});
    if (num <= 4) sides(Count<2>{});
    sides(Count<1>{});
}
#endif

}  // namespace paceline
