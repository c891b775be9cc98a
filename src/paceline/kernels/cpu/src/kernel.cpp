// What the other side can call: forwards, drafts, products, choices, noise, and a step's beginning and end.
#include <mutex>

#include "step/fused_drafting.h"
#include "step/batch.h"
#include "step/forward.h"
#include "sampling/logprobs.h"
#include "sampling/philox.h"

namespace paceline {

inline std::mutex one;  // the buffers serve one call at a time

template <class T>
void forward(const Model *model, const Call *call) {
    std::lock_guard<std::mutex> held(one);
    Forward<T>(*model, *call).run();
}

template <class T>
void ahead(const Model *model, const Call *call, const Options *options, const Processors *processors,
           const Chain *chain) {
    std::lock_guard<std::mutex> held(one);
    draft_fused<T>(*model, *call, *options, processors, *chain);
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
extern "C" void paceline_begin_chain(const paceline::Texts *texts, int64_t depth, int64_t longest, int64_t *tokens,
                                     uint8_t *valid) {
    paceline::begin_chain(*texts, depth, longest, tokens, valid);
}
extern "C" void paceline_extend(const paceline::Texts *texts, const paceline::Decision *decision) {
    paceline::extend(*texts, *decision);
}
extern "C" void paceline_record(const paceline::Counters *counters, const paceline::Decision *decision) {
    paceline::record(*counters, *decision);
}
