// The begin and end of a step: core/batch.py's begin_chain, match and extend, core/stats.py's record.
// kernels/cpu/step_structs.py mirrors it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline {

struct RowView {  // int64 or bool values, with a stride per row
    const void *data;
    int64_t step;
    int64_t integer(int64_t row, int64_t at) const { return ((const int64_t *)data)[row * step + at]; }
    bool flag(int64_t row, int64_t at) const { return ((const uint8_t *)data)[row * step + at]; }
};

struct Sequences {
    int64_t rows, width, stops, max_depth, head, vocab;
    int64_t *tokens, *length, *limit, *steps, *num_draft, *planned, *notes, *stop, *finish, *report;
    uint8_t *active;
    int32_t *counts;  // [rows, vocab + 1] occurrences of each token in the new sequence; may be null
};

struct Decision {
    int64_t nodes, depth, no_draft_reason;
    RowView tokens, parents, levels, valid, origin, path;
    const int64_t *committed, *next;
    int64_t *num;  // output: committed, clipped
};

struct Matched {
    int64_t rows, nodes, depth;
    RowView tokens, parents, levels, valid, picks;
    int64_t *path, *committed, *next;  // outputs
};

struct Counters {
    int64_t rows, max_depth;
    int64_t *steps, *emitted, *drafted, *accepted;
};

enum Finish { RUNNING, STOP, LENGTH };
enum NoDraft { DRAFTED, OFF, CAPPED, LIMIT, DECLINED = 6 };

// Draft tokens that a row may have; none where not above 0.
inline int64_t draft_room(const Sequences &t, int64_t row) {
    return std::min({t.num_draft[row], t.planned[row], t.limit[row] - t.length[row] - 1});
}

// tokens and valid [rows, depth + 1] of a chain to be drafted; longest is the length up to which a sequence is drafted
// for.
inline void begin_chain(const Sequences &t, int64_t depth, int64_t longest, int64_t *tokens, uint8_t *valid) {
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t length = t.length[row];
        const int64_t max_draft = std::min(draft_room(t, row), longest - length + 1);
        for (int64_t at = 0; at <= depth; at++, tokens++, valid++) {
            *tokens = at ? 0 : t.tokens[row * t.width + length - 1];
            *valid = t.active[row] && (at == 0 || at <= max_draft);
        }
    }
}

// Node n is reached if every node on its path is valid and is what the target picked after its parent. The deepest of
// them, the first of equally deep ones, ends the path.
inline void match(const Matched &t) {
    static thread_local std::vector<uint8_t> reached;
    reached.resize(t.nodes);
    for (int64_t row = 0; row < t.rows; row++) {
        int64_t leaf = 0;
        reached[0] = true;
        for (int64_t n = 1; n < t.nodes; n++) {
            const int64_t parent = std::max<int64_t>(t.parents.integer(row, n), 0);
            reached[n] = t.valid.flag(row, n) && reached[parent] &&
                         t.tokens.integer(row, n) == t.picks.integer(row, parent);
            if (reached[n] && t.levels.integer(row, n) > t.levels.integer(row, leaf)) leaf = n;
        }
        const int64_t length = t.levels.integer(row, leaf);
        t.committed[row] = length + 1;
        t.next[row] = t.picks.integer(row, leaf);
        int64_t *path = t.path + row * t.depth;
        std::fill(path, path + t.depth, -1);
        for (int64_t n = leaf; n > 0; n = t.parents.integer(row, n)) path[t.levels.integer(row, n) - 1] = n;
    }
}

inline void extend(const Sequences &t, const Decision &d) {
    for (int64_t row = 0; row < t.rows; row++) {
        const int64_t committed = d.committed[row], accepted = committed - 1, length = t.length[row],
                      limit = t.limit[row];
        const int64_t *stop = t.stop + row * t.stops;
        const auto node = [&](int64_t at) {  // of the token at this index, the root where none was drafted
            return at < d.depth ? std::max<int64_t>(d.path.integer(row, at), 0) : 0;
        };
        const auto emitted = [&](int64_t at) { return at == accepted ? d.next[row] : d.tokens.integer(row, node(at)); };
        int64_t until = committed;
        bool stops = false;
        for (int64_t at = 0; at <= d.depth && at < committed && !stops; at++) {
            stops = std::find(stop, stop + t.stops, emitted(at)) != stop + t.stops;
            if (stops) until = at + 1;
        }
        const bool active = t.active[row];
        const int64_t num = active ? std::min(until, limit - length) : 0;
        const bool stopped = stops && until <= num, full = length + num >= limit;
        int64_t drafted = -1;
        for (int64_t n = 0; n < d.nodes; n++) drafted += d.valid.flag(row, n);
        int64_t no_draft_reason = d.nodes == 1 ? d.no_draft_reason : limit - length <= 1 ? LIMIT : d.no_draft_reason;
        if (d.nodes > 1 && t.notes[row]) no_draft_reason = DECLINED;  // the chain ended before its first token
        if (d.nodes > 1 && t.planned[row] == 0) no_draft_reason = OFF;
        if (d.nodes > 1 && t.num_draft[row] == 0) no_draft_reason = CAPPED;
        if (drafted > 0) no_draft_reason = DRAFTED;
        const int64_t leaf = accepted > 0 ? d.path.integer(row, accepted - 1) : 0;
        bool children = false;
        for (int64_t n = 0; n < d.nodes; n++) children |= d.valid.flag(row, n) && d.parents.integer(row, n) == leaf;

        for (int64_t at = 0; at < num; at++) t.tokens[row * t.width + length + at] = emitted(at);
        for (int64_t at = 0; t.counts && at < num; at++)
            if (emitted(at) >= 0 && emitted(at) < t.vocab) t.counts[row * (t.vocab + 1) + emitted(at)]++;
        t.length[row] += num;
        t.steps[row] += 1;  // of idle rows too: no noise key is used twice
        if (active) t.finish[row] = stopped ? STOP : full ? LENGTH : RUNNING;
        t.active[row] = active && t.finish[row] == RUNNING;
        d.num[row] = num;

        int64_t *report = t.report + row * (t.head + 2 * (t.max_depth + 1));
        const int64_t head[] = {num, std::min(accepted, num), drafted, t.finish[row], !children, no_draft_reason,
                                t.notes[row]};
        t.notes[row] = 0;
        std::copy(head, head + t.head, report);
        for (int64_t at = 0; at <= d.depth; at++) {
            report[t.head + at] = emitted(at);
            report[t.head + t.max_depth + 1 + at] = d.origin.integer(row, node(at));
        }
    }
}

inline void record(const Counters &c, const Decision &d) {
    for (int64_t row = 0; row < c.rows; row++) {
        const int64_t num = d.committed[row];
        c.steps[row] += num > 0;
        c.emitted[row] += num;
        for (int64_t at = 0; at < d.depth; at++) {
            bool drafted = false;
            for (int64_t n = 0; n < d.nodes; n++) drafted |= d.valid.flag(row, n) && d.levels.integer(row, n) == at + 1;
            c.drafted[row * c.max_depth + at] += drafted;
            c.accepted[row * c.max_depth + at] += d.path.integer(row, at) >= 0 && at < num;
        }
    }
}

}  // namespace paceline
