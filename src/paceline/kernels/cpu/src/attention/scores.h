// Scores of some queries with the keys of one head: how much each attends to each slot.
//
// A score is summed over the numbers of a head in one order, whatever is scored with it.
#pragma once

#include "gemm/gemm_unpacked.h"

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

}  // namespace paceline
