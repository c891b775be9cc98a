// What the other side can call: forwards, drafts, products, choices, noise, and a step's end.
#include <mutex>

#include "ending.h"
#include "forward.h"
#include "logprobs.h"
#include "noise.h"
#include "processing.h"
#include "sampling.h"

namespace paceline {

inline std::mutex one;  // the buffers serve one call at a time

template <class T>
void forward(const Model *model, const Call *call) {
    std::lock_guard<std::mutex> held(one);
    Forward<T>(*model, *call).run();
}

// The next token of every row, from processed logits.
template <class T>
void choose_next(const Options &options, const Choices &choices, bool greedy) {
    greedy ? likeliest_of_all<T>(options, choices) : pick_all<T>(options, choices);
}

// call is for one node per row; what it reads of the tree is set here, depth by depth. processors may be null.
template <class T>
void ahead(const Model *model, const Call *call, const Options *options, const Processors *processors,
           const Chain *chain) {
    static std::vector<T> memory;
    static std::vector<Acc<T>> processed;
    static std::vector<int64_t> chosen, position;
    std::lock_guard<std::mutex> held(one);
    memory.resize(call->rows * model->vocab), chosen.resize(call->rows), position.resize(call->rows);
    const int64_t width = chain->depth + 1;
    Choices choices = {call->rows, 1, chain->vocab, call->threads, chain->logits, chain->logits_step, 0};
    choices.position = position.data(), choices.position_row_step = 1, choices.out = chosen.data();
    for (int64_t depth = 1; depth < width; depth++) {
        for (int64_t row = 0; row < call->rows; row++) position[row] = chain->length[row] + depth - 1;
        if (processors) {
            processed.resize(call->rows * chain->vocab);
            Choices raw = choices;
            raw.out = processed.data();
            process_all<T>(*processors, {depth - 1, false, chain->tokens + 1, width, 0}, raw);
            Choices given = choices;
            given.logits = processed.data(), given.row_step = chain->vocab;
            choose_next<Acc<T>>(*options, given, chain->greedy);
        } else {
            choose_next<T>(*options, choices, chain->greedy);
        }
        for (int64_t row = 0; row < call->rows; row++)
            if (chain->valid[row * width + depth]) chain->tokens[row * width + depth] = chosen[row];
        if (depth == chain->depth) return;
        Call next = *call;
        const int64_t beyond = depth - 1;
        next.start = beyond;
        next.tokens = chain->tokens + depth;
        next.valid = chain->valid + depth;
        next.tokens_step = next.valid_step = width;
        next.depth = &beyond;
        next.depth_step = 0;
        next.logits = memory.data();
        Forward<T>(*model, next).run();
        choices.logits = memory.data(), choices.row_step = model->vocab;
    }
}

// y = x w^T, shared out among threads as in a forward.
template <class T>
void product(const Operation *op, const void *x, void *y, int64_t rows, int64_t threads) {
    Team::of_process().run(threads, [&](Walk &walk) {
        linear<T>(*op, (const T *)x, op->inner, rows, walk, [&](int m) { return (T *)y + m * op->outer; }, Acc<T>(1));
    });
}

}  // namespace paceline

#define PACELINE_EXPORT(T, name)                                                                         \
    extern "C" void paceline_forward_##name(const paceline::Model *model, const paceline::Call *call) {  \
        paceline::forward<T>(model, call);                                                               \
    }                                                                                                    \
    extern "C" void paceline_ahead_##name(const paceline::Model *model, const paceline::Call *call,      \
                                          const paceline::Options *options,                              \
                                          const paceline::Processors *processors,                        \
                                          const paceline::Chain *chain) {                                \
        paceline::ahead<T>(model, call, options, processors, chain);                                     \
    }                                                                                                    \
    extern "C" void paceline_product_##name(const paceline::Operation *op, const void *x, void *y,       \
                                            int64_t rows, int64_t threads) {                             \
        paceline::product<T>(op, x, y, rows, threads);                                                   \
    }
PACELINE_EXPORT(float, float32)
PACELINE_EXPORT(double, float64)
PACELINE_EXPORT(paceline::bf16, bfloat16)

extern "C" int64_t paceline_panel_rows() { return paceline::panel_rows; }
extern "C" int64_t paceline_packed_rows() { return paceline::packed_rows; }

extern "C" void paceline_words(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag, int64_t *out,
                               int64_t threads) {
    paceline::words(keys, count, fields, tag, out, threads);
}
extern "C" void paceline_uniforms_float32(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag,
                                          float *out, int64_t threads) {
    paceline::uniforms(keys, count, fields, tag, out, threads);
}
extern "C" void paceline_uniforms_float64(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag,
                                          double *out, int64_t threads) {
    paceline::uniforms(keys, count, fields, tag, out, threads);
}
extern "C" void paceline_extend(const paceline::Texts *texts, const paceline::Decision *decision) {
    paceline::extend(*texts, *decision);
}
extern "C" void paceline_record(const paceline::Counters *counters, const paceline::Decision *decision) {
    paceline::record(*counters, *decision);
}
