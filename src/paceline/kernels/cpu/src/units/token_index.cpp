// The C ABI of indices of token sequences, which drafters keep on the host.
#include "export.h"
#include "host/suffix_draft.h"

using namespace paceline;

PACELINE_API TokenIndex *paceline_new_token_index() { return new TokenIndex; }
PACELINE_API void paceline_free_token_index(TokenIndex *index) { delete index; }
PACELINE_API void paceline_index_append(TokenIndex *index, const int64_t *tokens, int64_t count) {
    index->append(tokens, count);
}
PACELINE_API void paceline_index_end_sequence(TokenIndex *index) { index->end_sequence(); }
PACELINE_API void paceline_index_clear(TokenIndex *index) { index->clear(); }
PACELINE_API void paceline_index_keep(TokenIndex *index, int64_t limit, int64_t sequences) {
    index->keep(limit, sequences);
}
PACELINE_API int64_t paceline_index_size(const TokenIndex *index) { return index->size(); }
PACELINE_API int64_t paceline_index_bytes(const TokenIndex *index) { return index->bytes(); }
PACELINE_API int64_t paceline_index_find(const TokenIndex *index, const int64_t *context, int64_t count,
                                         int64_t min_match, int64_t max_match, int64_t limit, int64_t skip_end,
                                         int64_t *positions, int64_t *lengths) {
    Occurrence found[MAX_OCCURRENCES];
    int32_t last[MAX_DRAFT];
    count = std::min({count, max_match, MAX_DRAFT});
    for (int64_t i = 0; i < count; i++) last[i] = (int32_t)context[i];
    const int64_t num =
        index->find(last, count, min_match, max_match, std::min(limit, MAX_OCCURRENCES), skip_end != 0, found);
    for (int64_t i = 0; i < num; i++) positions[i] = found[i].position, lengths[i] = found[i].length;
    return num;
}
PACELINE_API void paceline_suffix_draft(const SuffixRows *rows, const SuffixOptions *options) {
    draft_rows(*rows, *options);
}
