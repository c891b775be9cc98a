// The C ABI of what has no precision: workspaces, and a step's begin and end.
#include "export.h"
#include "step/batch.h"
#include "step/prompt_lookup.h"
#include "step/state_queue.h"
#include "step/workspace.h"

using namespace paceline;

PACELINE_API Workspace *paceline_new_workspace() { return new Workspace; }
PACELINE_API void paceline_free_workspace(Workspace *workspace) { delete workspace; }
PACELINE_API int64_t paceline_activation_bytes(const Workspace *workspace) { return workspace->activation_bytes(); }

PACELINE_API void paceline_begin_chain(const Sequences *batch, int64_t depth, int64_t longest, int64_t *tokens,
                                       uint8_t *valid) {
    begin_chain(*batch, depth, longest, tokens, valid);
}
PACELINE_API void paceline_ngram_chain(const Sequences *batch, int32_t depth, int32_t max_ngram, int32_t min_ngram,
                                       int32_t first, int32_t wrap, int32_t crop, int64_t *tokens, uint8_t *valid) {
    ngram_chain(*batch, depth, {max_ngram, min_ngram, first != 0, wrap != 0, crop != 0}, tokens, valid);
}
PACELINE_API void paceline_match(const Matched *matched) { match(*matched); }
PACELINE_API void paceline_extend(const Sequences *batch, const Decision *decision) { extend(*batch, *decision); }
PACELINE_API void paceline_record(const Counters *counters, const Decision *decision) { record(*counters, *decision); }
PACELINE_API void paceline_queue_states(const StateQueue *queue) { queue_states(*queue); }
PACELINE_API void paceline_keep_last(const LastStates *states) { keep_last(*states); }
