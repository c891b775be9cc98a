// Log-probabilities of what a step decided: core/logprobs.py's look_up, for the rows that ask and the tokens there are.
#pragma once

#include "sampling/sampling.h"

namespace paceline {

// Where the decided tokens stand, and where their figures go: rows of depth places, each with top likeliest tokens.
struct Lookups {
    int64_t depth, top, width;  // width of a row of texts
    const int64_t *asked;       // of each row: how many of the likeliest tokens; below 0, nothing at all
    const int64_t *num;         // tokens decided, the last ones of the text
    const int64_t *length, *tokens, *path;
    int64_t path_step;
    void *own, *best;           // [rows, depth] and [rows, depth, top]
    int64_t *best_tokens;
};

// What the desk's scores are as a law: those below least excluded, or where there is a list, those that it does not have.
template <class A>
void look_up(int64_t token, int64_t asked, int64_t size, A least, const int64_t *listed, Desk<A> &desk, A &own, A *best,
             int64_t *best_tokens) {
    const bool few = listed || (least > NEVER<A> && are_few(size, least, desk));
    int64_t count = listed ? *listed : few ? gather(size, least, desk) : 0;
    const A highest = few ? highest_of(desk.values.data(), count) : highest_of(desk.scores.data(), size);
    const A total = few ? weigh(count, desk.values.data(), highest, desk) : mass(size, highest, least, desk);
    const A norm = std::log(total);
    const auto value = [&](A score) { return (score - highest) - norm; };
    own = desk.scores[token] >= least ? value(desk.scores[token]) : NEVER<A>;
    if (listed && std::find(desk.tokens.begin(), desk.tokens.begin() + count, token) == desk.tokens.begin() + count)
        own = NEVER<A>;
    if (asked <= 0) return;
    if (!few) count = gather(size, std::max(least, reached_by(size, std::min(asked, size), desk)), desk);
    std::vector<std::pair<A, int32_t>> order(count);
    for (int64_t i = 0; i < count; i++) order[i] = {-desk.values[i], desk.tokens[i]};
    const int64_t found = std::min(asked, count);
    std::partial_sort(order.begin(), order.begin() + found, order.end());
    for (int64_t i = 0; i < found; i++) best[i] = value(-order[i].first), best_tokens[i] = order[i].second;
}

// Under the rows' laws, or under that of the logits themselves where there are no options.
template <class T>
void look_up_all(const Options *o, const Choices &c, const Lookups &l) {
    using A = Acc<T>;
    const int64_t entries = c.rows * l.depth;
    share(entries * c.size > WORTH ? c.threads : 1, entries, [&](int64_t begin, int64_t end) {
        static thread_local Desk<A> desk;
        for (int64_t entry = begin; entry < end; entry++) {
            const int64_t row = entry / l.depth, at = entry % l.depth;
            if (l.asked[row] < 0 || at >= l.num[row]) continue;
            const int64_t node = at ? std::max<int64_t>(l.path[row * l.path_step + at - 1], 0) : 0;
            const int64_t token = l.tokens[row * l.width + l.length[row] - l.num[row] + at];
            const T *logits = (const T *)c.logits + row * c.row_step + node * c.step;
            A &own = ((A *)l.own)[entry], *best = (A *)l.best + entry * l.top;
            int64_t *best_tokens = l.best_tokens + entry * l.top;
            const Law law = o ? law_of(*o, row, 0) : Law{1, 1, 0, 1, 0, 0, 0, MIN_P_LAST, {}};
            if (law.temperature == 0) {
                const int64_t certain = likeliest(logits, c.size);
                own = token == certain ? A(0) : NEVER<A>;
                if (l.asked[row] > 0) best[0] = 0, best_tokens[0] = certain;
                continue;
            }
            divide(logits, c.size, A(law.temperature), desk);
            const A highest = highest_of(desk.scores.data(), c.size);
            if (!std::isfinite(highest)) {
                own = std::numeric_limits<A>::quiet_NaN();
                continue;
            }
            const A least = kept_from(law, c.size, highest, desk);
            int64_t count = 0;
            if (law.lists()) count = list_kept(law, c.size, highest, least, desk);
            look_up(token, l.asked[row], c.size, least, law.lists() ? &count : nullptr, desk, own, best, best_tokens);
        }
    });
}

}  // namespace paceline

#define PACELINE_EXPORT_LOOK_UP(T, name)                                                                   \
    extern "C" void paceline_look_up_##name(const paceline::Options *o, const paceline::Choices *c,        \
                                            const paceline::Lookups *l) {                                  \
        paceline::look_up_all<T>(o, *c, *l);                                                               \
    }
PACELINE_EXPORT_LOOK_UP(float, float32)
PACELINE_EXPORT_LOOK_UP(double, float64)
PACELINE_EXPORT_LOOK_UP(paceline::bf16, bfloat16)
