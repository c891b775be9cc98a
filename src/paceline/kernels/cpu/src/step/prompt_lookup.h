// Prompt lookup: drafts the tokens that followed an earlier occurrence of a sequence's last tokens.
// core/prompt_lookup.py is the reference.
#pragma once

#include <algorithm>
#include <cstdint>

#include "batch.h"

namespace paceline {

// Where the longest match of the last tokens of sequence[0 .. end] ends, of max_ngram down to min_ngram tokens: the
// latest of equally long ones, -1 without any.
inline int64_t find_ngram(const int64_t *sequence, int64_t end, int64_t max_ngram, int64_t min_ngram) {
    int64_t longest = min_ngram - 1, found = -1;
    // From the end, so that an earlier match must be longer, and none can be once max_ngram tokens match.
    for (int64_t at = end - 1; at >= longest && longest < max_ngram; at--) {
        if (sequence[at] != sequence[end] || sequence[at - longest] != sequence[end - longest]) continue;
        int64_t matched = 1;
        while (matched < max_ngram && matched <= at && sequence[at - matched] == sequence[end - matched]) matched++;
        if (matched > longest) longest = matched, found = at;
    }
    return found;
}

// tokens and valid [rows, depth + 1] of chains of copies; tokens that are not drafted are 0.
inline void ngram_chain(const Sequences &t, int64_t depth, int64_t max_ngram, int64_t min_ngram, int64_t *tokens,
                        uint8_t *valid) {
    for (int64_t row = 0; row < t.rows; row++, tokens += depth + 1, valid += depth + 1) {
        const int64_t end = t.length[row] - 1, *sequence = t.tokens + row * t.width;
        int64_t room = t.active[row] ? std::min(depth, draft_room(t, row)) : 0;
        const int64_t at = room > 0 ? find_ngram(sequence, end, max_ngram, min_ngram) : -1;
        if (at < 0) room = 0;
        tokens[0] = sequence[end], valid[0] = t.active[row];
        for (int64_t i = 0, from = at; i < depth; i++) {
            from = from == end ? at + 1 : from + 1;  // a copy that reaches the end goes on with its beginning
            tokens[1 + i] = i < room ? sequence[from] : 0;
            valid[1 + i] = i < room;
        }
    }
}

}  // namespace paceline
