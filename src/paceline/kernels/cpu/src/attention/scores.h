// QK^T scores of some queries of one head against the keys of given slots, for every precision.
//
// A score is summed over the elements of a head in one fixed order, so it is batch-invariant.
#pragma once

#include "gemm/gemm_unpacked.h"

namespace paceline {

// Consecutive slots.
struct Contiguous {
    int operator()(int j) const { return j; }
};

// scores[m * ld + j] = scale * (query m, key of slot at(j)), for j < count. Queries are padded elements apart and
// zero-padded.
template <class T, class At>
inline void score(const T *keys, long step, int count, At &&at, const T *queries, int padded, int num, int size,
                  Acc<T> scale, Acc<T> *scores, long ld) {
    const auto emit = [&](int first) {
        return [=](int m, int n, auto width, const Acc<T> *sums) {
            for (int j = 0; j < width; j++) scores[m * ld + first + n + j] = sums[j] * scale;
        };
    };
    if constexpr (std::is_same_v<At, Contiguous>)
        return gemm_unpacked(keys, step, 0, count, queries, padded, num, size, emit(0));
    for (int j = 0; j < count; j++) gemm_unpacked(keys + at(j) * step, step, 0, 1, queries, padded, num, size, emit(j));
}

}  // namespace paceline
