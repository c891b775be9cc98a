// How a token is chosen from logits: core/sampling.py's warp, and the race of core/noise.py among what it keeps.
//
// Every filter but one keeps the scores from some boundary up, so all of them together are one boundary. It is looked for
// among the largest scores only, and so are words of noise made. kernels/cpu/structs.py has the same structures.
#pragma once

#include "sampling/top_k_top_p.h"

namespace paceline {

constexpr double FALLS[] = {8, 11, 16, 1e300};  // below the largest score: where candidates of top-p are looked for

constexpr double DISTANCES[] = {0.5, 2, 8, 1e300};  // from the expected surprise: where candidates of typical_p are looked for

// The rows' options (core/sampling.py's SamplingState).
struct Options {
    const double *temperature, *top_p, *min_p, *typical_p, *epsilon, *eta;
    const int64_t *top_k, *order, *seed;
};

enum Order : int64_t { MIN_P_LAST, MIN_P_FIRST };  // of top-k, top-p and min-p: transformers' and vLLM's

// Logits of some nodes per row, with steps in numbers, and where what comes of them goes, without gaps.
struct Choices {
    int64_t rows, nodes, size, threads;
    const void *logits;
    int64_t row_step, step;
    const int64_t *position;
    int64_t position_row_step, position_step;
    void *out;
};

// How one token is chosen. Temperature 0 is greedy.
struct Law {
    double temperature, top_p, min_p, typical_p, epsilon, eta;
    int64_t top_k, order;
    RaceKey key;

    // Whether what is kept is no more than a list of tokens: the largest scores may not be among them.
    bool lists() const { return typical_p < 1; }
};

inline Law law_of(const Options &o, int64_t row, int64_t position) {
    return {o.temperature[row], o.top_p[row], o.min_p[row], o.typical_p[row], o.epsilon[row], o.eta[row],
            o.top_k[row], o.order[row], {uint64_t(o.seed[row]), uint32_t(position), 0, 0}};
}

// Logits by temperature.
template <class T>
void divide(const T *logits, int64_t size, Acc<T> temperature, Desk<Acc<T>> &desk) {
    constexpr int N = lanes<T>;
    desk.make_room(size);
    Acc<T> *scores = desk.scores.data();
    int64_t i = 0;
    if (temperature == 1)
        for (; i + N <= size; i += N) store(scores + i, load(logits + i));
    else
        for (; i + N <= size; i += N) store(scores + i, load(logits + i) / temperature);
    for (; i < size; i++) scores[i] = widen(logits[i]) / temperature;
    for (; i % BLOCK; i++) scores[i] = NEVER<Acc<T>>;
}

// The boundary of epsilon and eta, of scores padded with -inf, none of them above highest and all of them above least.
template <class A>
A cut_from(const Law &law, const A *scores, int64_t size, A highest, A least) {
    const auto cut = [&](double bound) { return std::max(least, std::min(highest, A(highest + std::log(bound)))); };
    if (law.epsilon > 0) least = cut(law.epsilon * spread_of(scores, size, highest, least).total);
    if (law.eta > 0) {
        const Spread spread = spread_of(scores, size, highest, least);
        least = cut(std::min(law.eta, std::sqrt(law.eta) * std::exp(-spread.entropy())) * spread.total);
    }
    return least;
}

// The boundary of all filters before typical_p, or of all where it is off: what is at least this large is kept. highest is
// finite.
template <class A>
A kept_from(const Law &law, int64_t size, A highest, Desk<A> &desk) {
    const A floor = law.min_p > 0 ? highest + std::log(A(law.min_p)) : NEVER<A>;
    A least = law.order == MIN_P_FIRST ? floor : NEVER<A>;
    if (law.top_k > 0 && law.top_k < size) {
        const int64_t count = gather(size, std::max(least, reached_by(size, law.top_k, desk)), desk);
        std::fill_n(desk.weights.begin(), count, A(1));
        least = std::max(least, boundary(desk.values.data(), desk.weights.data(), count, law.top_k));
    }
    if (law.top_p < 1) {
        const bool few = least > NEVER<A> && are_few(size, least, desk);
        const int64_t known = few ? gather(size, least, desk) : 0;
        const double whole = few ? weigh(known, desk.values.data(), highest, desk) : mass(size, highest, least, desk);
        const double goal = A(law.top_p) * whole;
        for (double fall : FALLS) {
            const A from = std::max(least, highest - A(std::min<double>(fall, std::numeric_limits<A>::max())));
            const int64_t count = gather(size, from, desk);
            if (weigh(count, desk.values.data(), highest, desk) < goal && fall != FALLS[3]) continue;
            least = std::max(least, boundary(desk.values.data(), desk.weights.data(), count, goal));
            break;
        }
    }
    least = std::max(least, floor);
    return law.lists() ? least : cut_from(law, desk.scores.data(), size, highest, least);
}

// Puts the desk's scores whose surprise is nearest to the expected one, as many as goal reaches with, of those that are at
// least least, in order, into values and tokens; how many they are.
template <class A>
int64_t list_typical(double goal, int64_t size, A highest, A least, Desk<A> &desk) {
    const Spread spread = spread_of(desk.scores.data(), size, highest, least);
    const A norm = std::log(A(spread.total)), entropy = spread.entropy();
    const auto nearness = [&](auto score) {
        const auto apart = (score - highest) - norm + entropy;
        return apart > 0 ? -apart : apart;
    };
    goal = A(goal) * spread.total;
    for (double far : DISTANCES) {
        const A from = -A(std::min<double>(far, std::numeric_limits<A>::max()));
        int64_t count = gather(size, least, desk, nearness, from);
        for (int64_t i = 0; i < count; i++) desk.weights[i] = desk.scores[desk.tokens[i]];
        if (weigh(count, desk.weights.data(), highest, desk) < goal && far != DISTANCES[3]) continue;
        for (int64_t i = 0; i < count; i++) desk.values[i] = nearness(desk.values[i]);
        return gather(size, least, desk, nearness, boundary(desk.values.data(), desk.weights.data(), count, goal));
    }
    return 0;
}

// Puts what all filters keep of the desk's scores, in order, into values and tokens; how many they are.
template <class A>
int64_t list_kept(const Law &law, int64_t size, A highest, A least, Desk<A> &desk) {
    const int64_t count = list_typical(law.typical_p, size, highest, least, desk);
    A *values = desk.values.data();
    std::fill_n(values + count, BLOCK - count % BLOCK, NEVER<A>);
    const A from = cut_from(law, values, count, highest_of(values, count), NEVER<A>);
    int64_t left = 0;
    for (int64_t i = 0; i < count; i++)
        if (values[i] >= from) values[left] = values[i], desk.tokens[left++] = desk.tokens[i];
    return left;
}

// The first of the largest logits.
template <class T>
int64_t likeliest(const T *logits, int64_t size) {
    return first_of(logits, size, highest_of(logits, size));
}

// The token that the law's noise chooses.
template <class T>
int64_t pick(const Law &law, const T *logits, int64_t size, Desk<Acc<T>> &desk) {
    using A = Acc<T>;
    if (law.temperature == 0) return likeliest(logits, size);
    divide(logits, size, A(law.temperature), desk);
    const A *scores = desk.scores.data(), highest = highest_of(scores, size);
    const int64_t ahead = first_of(scores, size, highest);
    if (!std::isfinite(highest)) return ahead;  // as in a race: what is no number or infinite wins
    const A least = kept_from(law, size, highest, desk);
    if (law.lists()) {
        const int64_t count = list_kept(law, size, highest, least, desk);
        return race_of(law.key, desk.values.data(), desk.tokens.data(), count);
    }
    if (least > NEVER<A>) {
        const int64_t count = gather(size, least, desk);
        if (count == 1) return ahead;
        if (4 * count < size) return race_of(law.key, desk.values.data(), desk.tokens.data(), count);
    }
    return race(law.key, scores, size, least, ahead);
}

// Scores whose exponentials are the law up to a factor; -inf where it is 0.
template <class T>
void warp(const Law &law, const T *logits, int64_t size, Acc<T> *out, Desk<Acc<T>> &desk) {
    using A = Acc<T>;
    if (law.temperature == 0) {
        std::fill_n(out, size, NEVER<A>);
        out[likeliest(logits, size)] = 0;
        return;
    }
    divide(logits, size, A(law.temperature), desk);
    const A *scores = desk.scores.data(), highest = highest_of(scores, size);
    const A least = std::isfinite(highest) ? kept_from(law, size, highest, desk) : NEVER<A>;
    if (law.lists() && std::isfinite(highest)) {
        const int64_t count = list_kept(law, size, highest, least, desk);
        std::fill_n(out, size, NEVER<A>);
        for (int64_t i = 0; i < count; i++) out[desk.tokens[i]] = desk.values[i];
        return;
    }
    for (int64_t i = 0; i < size; i++) out[i] = scores[i] < least ? NEVER<A> : scores[i];
}

// Calls with(law, logits, entry, desk) for every node of every row.
template <class T, class With>
void each_choice(const Options &o, const Choices &c, With with) {
    const int64_t entries = c.rows * c.nodes;
    share(entries * c.size > WORTH ? c.threads : 1, entries, [&](int64_t begin, int64_t end) {
        for (int64_t entry = begin; entry < end; entry++) {
            static thread_local Desk<Acc<T>> desk;
            const int64_t row = entry / c.nodes, node = entry % c.nodes;
            const int64_t position = c.position[row * c.position_row_step + node * c.position_step];
            with(law_of(o, row, position), (const T *)c.logits + row * c.row_step + node * c.step, entry, desk);
        }
    });
}

template <class T>
void pick_all(const Options &o, const Choices &c) {
    each_choice<T>(o, c, [&](const Law &law, const T *logits, int64_t entry, Desk<Acc<T>> &desk) {
        ((int64_t *)c.out)[entry] = pick(law, logits, c.size, desk);
    });
}
template <class T>
void likeliest_of_all(const Options &o, const Choices &c) {
    each_choice<T>(o, c, [&](const Law &, const T *logits, int64_t entry, Desk<Acc<T>> &) {
        ((int64_t *)c.out)[entry] = likeliest(logits, c.size);
    });
}
template <class T>
void warp_all(const Options &o, const Choices &c) {
    each_choice<T>(o, c, [&](const Law &law, const T *logits, int64_t entry, Desk<Acc<T>> &desk) {
        warp(law, logits, c.size, (Acc<T> *)c.out + entry * c.size, desk);
    });
}

// The winner of a race of count scores for every key; fields are int64, one per key.
template <class A>
void choose_all(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag, const A *scores, int64_t *out,
                int64_t threads) {
    share(keys * count > WORTH ? threads : 1, keys, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; k++) {
            static thread_local Desk<A> desk;
            divide(scores + k * count, count, A(1), desk);
            const A highest = highest_of(desk.scores.data(), count);
            const int64_t ahead = first_of(desk.scores.data(), count, highest);
            const uint32_t stream = uint32_t(tag | fields[3][k]);
            const RaceKey key{uint64_t(fields[0][k]), uint32_t(fields[1][k]), uint32_t(fields[2][k]), stream};
            out[k] = std::isfinite(highest) ? race(key, desk.scores.data(), count, NEVER<A>, ahead) : ahead;
        }
    });
}

}  // namespace paceline

#define PACELINE_EXPORT_CHOICES(T, name)                                                                \
    extern "C" void paceline_pick_##name(const paceline::Options *o, const paceline::Choices *c) {      \
        paceline::pick_all<T>(*o, *c);                                                                  \
    }                                                                                                   \
    extern "C" void paceline_likeliest_##name(const paceline::Options *o, const paceline::Choices *c) { \
        paceline::likeliest_of_all<T>(*o, *c);                                                          \
    }                                                                                                   \
    extern "C" void paceline_warp_##name(const paceline::Options *o, const paceline::Choices *c) {      \
        paceline::warp_all<T>(*o, *c);                                                                  \
    }
PACELINE_EXPORT_CHOICES(float, float32)
PACELINE_EXPORT_CHOICES(double, float64)
PACELINE_EXPORT_CHOICES(paceline::bf16, bfloat16)

#define PACELINE_EXPORT_RACES(A, name)                                                                             \
    extern "C" void paceline_choose_##name(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag, \
                                           const A *scores, int64_t *out, int64_t threads) {                       \
        paceline::choose_all(keys, count, fields, tag, scores, out, threads);                                      \
    }
PACELINE_EXPORT_RACES(float, float32)
PACELINE_EXPORT_RACES(double, float64)
