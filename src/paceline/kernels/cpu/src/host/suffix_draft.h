// Drafts from the occurrences of a sequence's last tokens, likeliest continuations first, as SuffixDecoding
// (2411.04975). core/token_index.py is the reference.
#pragma once

#include "token_index.h"

namespace paceline {

constexpr int64_t MAX_DRAFT = 256;  // tokens

struct SuffixOptions {
    int64_t min_match, max_match;  // tokens
    int64_t branches;              // 0: chains
    int64_t max_depth;             // of a draft and the matching tokens that its length is of; 0: no limit
    double factor, offset;         // a draft has at most factor times the matched tokens, plus offset
    double min_prob;               // of a token, given the sequence
};

// Tokens that are drafted at most from occurrences of which shortest to longest tokens may count.
inline int64_t most_tokens(const SuffixOptions &options, int64_t shortest, int64_t longest) {
    const auto beside = [&](int64_t size) { return (int64_t)(options.factor * size + options.offset + 1e-9); };
    if (!options.max_depth) return std::min(beside(longest), MAX_DRAFT);
    int64_t most = 0;
    for (int64_t size = std::max(shortest, options.min_match); size <= longest; size++)
        most = std::max(most, std::min(beside(size), options.max_depth - size));
    return std::min(most, MAX_DRAFT);
}

struct SuffixDraft {
    int64_t count = 0, match = 0;
    double score = 0;  // expected accepted tokens, by the counts
    int64_t tokens[MAX_DRAFT], parents[MAX_DRAFT];  // parents: among the drafted tokens, -1 for the root
    double probs[MAX_DRAFT];
};

// A token that may be drafted, and the occurrences that it follows.
struct Candidate {
    int64_t parent, depth;
    int32_t token;
    double prob;
    int num;
    uint8_t members[MAX_OCCURRENCES];
};

// The likeliest continuations of those occurrences that match at least threshold tokens; most tokens at most.
inline void draft_from(const TokenIndex &index, const Occurrence *found, int64_t num, int64_t threshold, int64_t most,
                       const SuffixOptions &options, std::vector<Candidate> &open, SuffixDraft &draft) {
    draft.count = 0, draft.score = 0, draft.match = threshold;
    open.clear();
    const auto expand = [&](int64_t parent, int64_t depth, double prob, const uint8_t *members, int count) {
        const size_t begin = open.size();
        for (int i = 0; i < count; i++) {
            const int32_t token = index.following(found[members[i]], depth);
            if (token == SEPARATOR) continue;
            size_t at = begin;
            while (at < open.size() && open[at].token != token) at++;
            if (at == open.size()) open.push_back({parent, depth, token, 0, 0, {}});
            open[at].members[open[at].num++] = members[i];
        }
        for (size_t at = begin; at < open.size(); at++) open[at].prob = prob * open[at].num / count;
    };
    uint8_t members[MAX_OCCURRENCES];
    int count = 0;
    for (int64_t i = 0; i < num; i++)
        if (found[i].length >= threshold) members[count++] = (uint8_t)i;
    if (most > 0) expand(-1, 0, 1.0, members, count);
    while (draft.count < most && !open.empty()) {
        size_t best = 0;  // the first of equally likely ones, which is the latest
        for (size_t at = 1; at < open.size(); at++)
            if (open[at].prob > open[best].prob + 1e-12) best = at;
        const Candidate chosen = open[best];
        if (chosen.prob < options.min_prob) break;
        if (options.branches)
            open.erase(open.begin() + best);
        else
            open.clear();
        const int64_t node = draft.count++;
        draft.tokens[node] = chosen.token, draft.parents[node] = chosen.parent, draft.probs[node] = chosen.prob;
        draft.score += chosen.prob;
        expand(node, chosen.depth + 1, chosen.prob, chosen.members, chosen.num);
    }
}

// The draft with the highest score of all lengths of match; of equal scores the longest match. own: the context is
// the end of the index.
inline void best_draft(const TokenIndex &index, const int32_t *context, int64_t count, bool own, int64_t most,
                       const SuffixOptions &options, SuffixDraft &best) {
    static thread_local std::vector<Candidate> open;
    static thread_local SuffixDraft draft;
    Occurrence found[MAX_OCCURRENCES];
    const int64_t num =
        index.find(context, count, options.min_match, options.max_match, MAX_OCCURRENCES, own, found);
    int64_t threshold = 0;
    for (int64_t i = 0; i < num; i++) threshold = std::max(threshold, found[i].length);
    best.count = 0, best.score = 0, best.match = 0;
    while (threshold > 0) {
        int64_t next = 0;
        for (int64_t i = 0; i < num; i++)
            if (found[i].length < threshold) next = std::max(next, found[i].length);
        const int64_t room = std::min(most, most_tokens(options, next + 1, threshold));
        if ((double)room > best.score + 1e-9) {  // else it cannot promise more: no token is more than certain
            draft_from(index, found, num, threshold, room, options, open, draft);
            if (draft.score > best.score + 1e-9) best = draft;
        }
        threshold = next;
    }
}

// For every row: append added tokens to its own index, then draft from it or from the store beside it, if any,
// whichever promises more.
struct SuffixRows {
    int64_t rows, width;            // width: of the outputs
    TokenIndex **own, **store;      // store: null where a row has none
    const int64_t *added, *num_added, *room;
    int64_t *tokens, *parents;      // [rows, width]
    double *probs;                  // [rows, width]
    int64_t *count, *match;         // [rows]
};

inline void draft_rows(const SuffixRows &rows, const SuffixOptions &options) {
    static thread_local SuffixDraft own, shared;
    const int64_t *added = rows.added;
    for (int64_t row = 0; row < rows.rows; row++) {
        TokenIndex &index = *rows.own[row];
        index.append(added, rows.num_added[row]);
        added += rows.num_added[row];
        const int64_t count = std::min((int64_t)index.tokens.size(), options.max_match);
        const int32_t *context = index.tokens.data() + index.tokens.size() - count;
        const int64_t most = std::min(rows.room[row], rows.width);
        best_draft(index, context, count, true, most, options, own);
        const SuffixDraft *draft = &own;
        if (rows.store[row]) {
            best_draft(*rows.store[row], context, count, false, most, options, shared);
            if (shared.score > own.score + 1e-9) draft = &shared;
        }
        rows.count[row] = draft->count, rows.match[row] = draft->match;
        std::copy_n(draft->tokens, draft->count, rows.tokens + row * rows.width);
        std::copy_n(draft->parents, draft->count, rows.parents + row * rows.width);
        std::copy_n(draft->probs, draft->count, rows.probs + row * rows.width);
    }
}

}  // namespace paceline
