// Prompt lookup: drafts the tokens that followed an earlier occurrence of a sequence's last tokens.
// core/prompt_lookup.py is the reference.
#pragma once

#include <algorithm>
#include <cstdint>

#include "batch.h"

namespace paceline {

struct NgramOptions {
    int64_t max_ngram, min_ngram;  // tokens that match
    bool first;                    // of equally long matches; else the latest
    bool wrap;                     // a copy that reaches the end goes on with its beginning; else it ends
    bool crop;                     // drafts end before a stop token
};

// Where the longest match of the last tokens of sequence[0 .. end] ends, -1 without any.
inline int64_t find_ngram(const int64_t *sequence, int64_t end, const NgramOptions &options) {
    const int64_t max_ngram = options.max_ngram;
    int64_t longest = options.min_ngram - 1, found = -1;
    const auto visit = [&](int64_t at) {
        if (sequence[at] != sequence[end] || sequence[at - longest] != sequence[end - longest]) return;
        int64_t matched = 1;
        while (matched < max_ngram && matched <= at && sequence[at - matched] == sequence[end - matched]) matched++;
        if (matched > longest) longest = matched, found = at;
    };
    // What is visited later must match longer, and nothing can once max_ngram tokens match.
    if (options.first)
        for (int64_t at = longest; at < end && longest < max_ngram; at++) visit(at);
    else
        for (int64_t at = end - 1; at >= longest && longest < max_ngram; at--) visit(at);
    return found;
}

inline bool is_stop(const Sequences &t, int64_t row, int64_t token) {
    const int64_t *stop = t.stop + row * t.stops, *end = stop + t.stops;
    while (stop < end && *stop >= 0 && *stop != token) stop++;  // negative ones fill the rest
    return stop < end && *stop == token;
}

// tokens and valid [rows, depth + 1] of chains of copies; tokens that are not drafted are 0.
inline void ngram_chain(const Sequences &t, int64_t depth, const NgramOptions &options, int64_t *tokens,
                        uint8_t *valid) {
    for (int64_t row = 0; row < t.rows; row++, tokens += depth + 1, valid += depth + 1) {
        const int64_t end = t.length[row] - 1, *sequence = t.tokens + row * t.width;
        int64_t room = t.active[row] ? std::min(depth, draft_room(t, row)) : 0;
        const int64_t at = room > 0 ? find_ngram(sequence, end, options) : -1;
        if (at < 0) room = 0;
        if (!options.wrap) room = std::min(room, end - at);
        tokens[0] = sequence[end], valid[0] = t.active[row];
        for (int64_t i = 0, from = at; i < depth; i++) {
            from = from == end ? at + 1 : from + 1;  // a copy that reaches the end goes on with its beginning
            if (options.crop && i < room && is_stop(t, row, sequence[from])) room = i;
            tokens[1 + i] = i < room ? sequence[from] : 0;
            valid[1 + i] = i < room;
        }
    }
}

}  // namespace paceline
