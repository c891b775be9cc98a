// Ends chains while they are drafted, where the drafter's own distributions promise too little: core/early_stop.py.
// kernels/cpu/structs.py mirrors the struct.
#pragma once

#include <cmath>

#include "sampling/sampling.h"

namespace paceline {

constexpr int LEVELS = 15, LEVEL_BITS = 4, MOST_NOTED = 15;

struct EarlyStop {
    const float *least;       // per row: the chance to be accepted below which its chain ends
    const float *acceptance;  // per row by level, LEVELS + 1; the first is not used
    int64_t *notes;           // per row: the levels of its draft; null: no chain ends early
};

// How peaked the softmax of logits is, from 1 to LEVELS.
template <class T>
int64_t level_of(const T *logits, int64_t size) {
    using A = Acc<T>;
    constexpr int N = lanes<T>;
    const A highest = max_of(logits, size);
    Vec<T> one{}, other{};
    int64_t i = 0;
    for (; i + 2 * N <= size; i += 2 * N) {
        one += exponential(load(logits + i) - highest);
        other += exponential(load(logits + i + N) - highest);
    }
    double rest = double(sum(one + other)) - 1;  // of the odds against the likeliest
    for (; i < size; i++) rest += std::exp(double(widen(logits[i]) - highest));
    if (!(rest > 0)) return rest <= 0 ? LEVELS : 1;
    return std::clamp<int64_t>(int64_t(std::floor(8 - 2 * std::log2(rest))), 1, LEVELS);
}

// The level of a chance whose log odds are given.
inline int64_t level_of_odds(float odds) {
    return std::clamp<int64_t>(int64_t(std::floor(8 + 2 / std::log(2.0) * odds)), 1, LEVELS);
}

// Clears valid [rows, depth + 1] from the token at this index (from 0) on in rows whose chance of it is too small.
// chance [rows] is that of the token above, and becomes that of this one. odds [rows] are what the drafter itself says of
// it; null: its level is that of the logits.
template <class T>
void end_chains(const EarlyStop &stop, const LogitsBatch &choices, const float *odds, int64_t index, int64_t depth,
                uint8_t *valid, std::vector<float> &chance) {
    if (index == 0) chance.assign(choices.rows, 1.0f);
    const bool several = choices.rows * choices.size > PARALLEL_THRESHOLD;
    parallel_for(several ? choices.threads : 1, choices.rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            uint8_t *goes_on = valid + row * (depth + 1) + 1 + index;
            if (!*goes_on) continue;
            const int64_t level = odds ? level_of_odds(odds[row])
                                       : level_of((const T *)choices.logits + row * choices.row_step, choices.size);
            if (index < MOST_NOTED) stop.notes[row] |= level << (LEVEL_BITS * index);
            chance[row] *= stop.acceptance[row * (LEVELS + 1) + level];
            if (chance[row] < stop.least[row]) std::fill(goes_on, goes_on + depth - index, 0);
        }
    });
}

}  // namespace paceline
