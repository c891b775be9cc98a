// The C ABI of the kernel library: forward, fused drafting, linear layers, sampling, noise, and a step's begin and end.
#include <mutex>

#include "step/fused_drafting.h"
#include "step/batch.h"
#include "step/forward.h"
#include "sampling/logprobs.h"
#include "sampling/philox.h"

namespace paceline {

template <class T>
void forward(Workspace *workspace, const Model *model, const Call *call) {
    std::lock_guard<std::mutex> lock(workspace->mutex);
    Forward<T>(workspace->memory<T>(), *model, *call).run();
}

template <class T>
void draft_fused(Workspace *workspace, const Model *model, const Call *call, const SamplingOptions *options,
                 const LogitsProcessors *processors, const FusedDraft *draft) {
    std::lock_guard<std::mutex> lock(workspace->mutex);
    draft_fused<T>(workspace->memory<T>(), *model, *call, *options, processors, *draft);
}

// y = x w^T, divided among threads as in a forward.
template <class T>
void linear_rows(const Operation *op, const void *x, void *y, int64_t rows, int64_t threads) {
    ThreadPool::instance().run(threads, [&](Worker &worker) {
        linear<T>(*op, (const T *)x, op->inner, rows, worker, [&](int m) { return (T *)y + m * op->outer; }, Acc<T>(1));
    });
}

}  // namespace paceline

#define PACELINE_EXPORT(T, name)                                                                                \
    extern "C" void paceline_forward_##name(paceline::Workspace *workspace, const paceline::Model *model,           \
                                            const paceline::Call *call) {                                       \
        paceline::forward<T>(workspace, model, call);                                                             \
    }                                                                                                           \
    extern "C" void paceline_draft_fused_##name(                                                                \
        paceline::Workspace *workspace, const paceline::Model *model, const paceline::Call *call,                   \
        const paceline::SamplingOptions *options, const paceline::LogitsProcessors *processors,                 \
        const paceline::FusedDraft *draft) {                                                                    \
        paceline::draft_fused<T>(workspace, model, call, options, processors, draft);                             \
    }                                                                                                           \
    extern "C" void paceline_linear_##name(const paceline::Operation *op, const void *x, void *y, int64_t rows, \
                                           int64_t threads) {                                                   \
        paceline::linear_rows<T>(op, x, y, rows, threads);                                                      \
    }                                                                                                           \
    extern "C" int64_t paceline_panel_rows_##name(int64_t format) { return paceline::panel_rows_of<T>(format); } \
    extern "C" int64_t paceline_panel_unit_##name(int64_t format) { return paceline::panel_unit_of<T>(format); }
PACELINE_EXPORT(float, float32)
PACELINE_EXPORT(double, float64)
PACELINE_EXPORT(paceline::bf16, bfloat16)
PACELINE_EXPORT(paceline::f16, float16)

extern "C" paceline::Workspace *paceline_new_workspace() { return new paceline::Workspace; }
extern "C" void paceline_free_workspace(paceline::Workspace *workspace) { delete workspace; }
extern "C" int64_t paceline_activation_bytes(const paceline::Workspace *workspace) {
    return workspace->activation_bytes();
}

extern "C" void paceline_philox_words(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag,
                                      int64_t *out, int64_t threads) {
    paceline::philox_words(keys, count, fields, tag, out, threads);
}
extern "C" void paceline_uniforms_float32(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag,
                                          float *out, int64_t threads) {
    paceline::uniforms(keys, count, fields, tag, out, threads);
}
extern "C" void paceline_uniforms_float64(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag,
                                          double *out, int64_t threads) {
    paceline::uniforms(keys, count, fields, tag, out, threads);
}
extern "C" void paceline_begin_chain(const paceline::Sequences *texts, int64_t depth, int64_t longest, int64_t *tokens,
                                     uint8_t *valid) {
    paceline::begin_chain(*texts, depth, longest, tokens, valid);
}
extern "C" void paceline_extend(const paceline::Sequences *texts, const paceline::Decision *decision) {
    paceline::extend(*texts, *decision);
}
extern "C" void paceline_record(const paceline::Counters *counters, const paceline::Decision *decision) {
    paceline::record(*counters, *decision);
}
