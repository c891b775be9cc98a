// Where the largest of many scores end: the boundary from which a count or a share of the weight is kept, without a sort.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "sampling/exponential_race.h"

namespace paceline {

constexpr int BUCKETS = 256;
constexpr int FEW = 48;         // numbers that are sorted
constexpr int FEWER = 16;       // times as many scores as are on a list that is worth its making
constexpr int STRETCH = 512;    // scores of which each lane's largest is taken

// What choices work with, one at a time; kept between them, since growing and clearing cost.
template <class A>
struct Desk {
    std::vector<A> scores, values, weights;  // scores are padded with -inf to whole blocks
    std::vector<int32_t> tokens;
    void make_room(int64_t size) {
        const int64_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;
        if ((int64_t)scores.size() >= padded) return;
        scores.resize(padded), values.resize(padded + BLOCK), weights.resize(padded + BLOCK), tokens.resize(padded + BLOCK);
    }
};

// The largest of count numbers, or NaN where one of them is none.
template <class T>
Acc<T> highest_of(const T *p, int64_t count) {
    constexpr int N = lanes<T>;
    Vec<T> most = splat<Vec<T>>(NEVER<Acc<T>>);
    decltype(most != most) odd{};
    int64_t i = 0;
    for (; i + N <= count; i += N) {
        const Vec<T> x = load(p + i);
        most = larger(x, most), odd |= x != x;
    }
    Acc<T> highest = NEVER<Acc<T>>;
    bool strange = false;
    for (int j = 0; j < N; j++) highest = std::max(highest, most[j]), strange |= odd[j] != 0;
    for (int64_t j = strange ? 0 : i; j < count; j++) {
        const Acc<T> x = widen(p[j]);
        if (x != x) return x;
        highest = std::max(highest, x);
    }
    return highest;
}

// The first of count numbers that is highest, or that is none if highest is none.
template <class T>
int64_t first_of(const T *p, int64_t count, Acc<T> highest) {
    constexpr int N = lanes<T>;
    int64_t i = 0;
    if (highest == highest)
        while (i + N <= count && !reaching(load(p + i), splat<Vec<T>>(highest))) i += N;
    for (; i < count; i++) {
        const Acc<T> x = widen(p[i]);
        if (x == highest || (x != x && highest != highest)) return i;
    }
    return 0;
}

// Puts those of the desk's scores that are at least least, and for which worth is at least from, in order, into values and
// tokens; how many they are.
template <class A, class Worth>
int64_t gather(int64_t size, A least, Desk<A> &desk, Worth &&worth, A from) {
    constexpr int N = lanes<A>;
    const A *scores = desk.scores.data();
    const Vec<A> bar = splat<Vec<A>>(std::max(least, std::numeric_limits<A>::lowest())), other = splat<Vec<A>>(from);
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += N) {
        const Vec<A> score = load(scores + i);
        for (uint32_t left = reaching(score, bar) & reaching(worth(score), other); left; left &= left - 1) {
            const int64_t token = i + __builtin_ctz(left);
            desk.values[count] = scores[token], desk.tokens[count++] = token;
        }
    }
    return count;
}
template <class A>
int64_t gather(int64_t size, A least, Desk<A> &desk) {
    return gather(size, least, desk, [](Vec<A> score) { return score; }, NEVER<A>);
}

// Whether going through a list of the desk's scores that are at least least is faster than going through all.
template <class A>
bool are_few(int64_t size, A least, const Desk<A> &desk) {
    constexpr int N = lanes<A>;
    const Vec<A> from = splat<Vec<A>>(least);
    int64_t count = 0;
    for (int64_t i = 0; i < size; i += N) count += __builtin_popcount(reaching(load(&desk.scores[i]), from));
    return FEWER * count < size;
}

// The largest value for which the weights of those at least as large reach goal; -inf if all of them do not.
// What values and weights hold afterwards means nothing.
template <class A>
A boundary(A *values, A *weights, int64_t count, double goal) {
    while (count > FEW) {
        const auto [least, most] = std::minmax_element(values, values + count);
        const A low = *least, scale = (BUCKETS - 1) / (*most - low);
        if (!(scale > 0) || std::isinf(scale)) break;  // all the same, or too far apart to be numbered
        double mass[BUCKETS] = {};
        const auto bucket = [&](A value) { return int((value - low) * scale); };
        for (int64_t i = 0; i < count; i++) mass[bucket(values[i])] += weights[i];
        int found = BUCKETS - 1;
        while (found >= 0 && mass[found] < goal) goal -= mass[found--];
        if (found < 0) return NEVER<A>;
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++)
            if (bucket(values[i]) == found) values[kept] = values[i], weights[kept++] = weights[i];
        if (kept == count) break;
        count = kept;
    }
    std::vector<std::pair<A, A>> order(count);
    for (int64_t i = 0; i < count; i++) order[i] = {values[i], weights[i]};
    std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
    double reached = 0;
    for (const auto &[value, weight] : order) {
        reached += weight;
        if (reached >= goal) return value;
    }
    return NEVER<A>;
}

// The weights of some scores, which may stand where the weights go, and their sum.
template <class A>
double weigh(int64_t count, const A *scores, A highest, Desk<A> &desk) {
    constexpr int N = lanes<A>;
    for (int64_t i = 0; i < count; i += N) store(&desk.weights[i], exponential(load(scores + i) - highest));
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += desk.weights[i];
    return total;
}

// Sums over scores that are weighed: of their weights, and of these times how far each is below the largest score.
struct Spread {
    double total, fall;
    double entropy() const { return std::log(total) + fall / total; }
};

template <class A>
Spread spread_of(const A *scores, int64_t size, A highest, A least) {
    constexpr int N = lanes<A>;
    least = std::max(least, std::numeric_limits<A>::lowest());
    Spread all{};
    for (int64_t i = 0; i < size; i += BLOCK) {
        Vec<A> total{}, fall{};
        for (int j = 0; j < BLOCK; j += N) {
            const Vec<A> score = load(scores + i + j), below = score >= least ? highest - score : Vec<A>{};
            const Vec<A> weight = score >= least ? exponential(-below) : Vec<A>{};
            total += weight, fall += weight > A(0) ? weight * below : Vec<A>{};
        }
        all.total += sum(total), all.fall += sum(fall);
    }
    return all;
}

// The weight of all scores that are at least least.
template <class A>
double mass(int64_t size, A highest, A least, const Desk<A> &desk) {
    constexpr int N = lanes<A>;
    double total = 0;
    for (int64_t i = 0; i < size; i += BLOCK) {
        Vec<A> part{};
        for (int j = 0; j < BLOCK; j += N) {
            const Vec<A> x = load(&desk.scores[i + j]);
            part += x >= least ? exponential(x - highest) : Vec<A>{};
        }
        total += sum(part);
    }
    return total;
}

// A number that at least count scores reach: the largest of distinct sets of them do.
template <class A>
A reached_by(int64_t size, int64_t count, Desk<A> &desk) {
    constexpr int N = lanes<A>;
    const int64_t sets = size / STRETCH * N;
    if (2 * count > sets) return NEVER<A>;
    for (int64_t i = 0; i < size / STRETCH; i++) {
        Vec<A> most = load(&desk.scores[i * STRETCH]);
        for (int j = N; j < STRETCH; j += N) most = larger(load(&desk.scores[i * STRETCH + j]), most);
        store(&desk.values[i * N], most);
    }
    const auto values = desk.values.begin();
    std::nth_element(values, values + count - 1, values + sets, std::greater<A>());
    return values[count - 1];
}

}  // namespace paceline
