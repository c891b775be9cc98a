// The C ABI of forward, fused drafting, blocks and linear layers, for one precision per translation unit.
#pragma once

#include <mutex>

#include "export.h"
#include "step/forward.h"
#include "step/fused_drafting.h"

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

// The first forward of a block's draft alone.
template <class T>
void read_block(Workspace *workspace, const Model *model, const Call *call, const FusedDraft *draft) {
    std::lock_guard<std::mutex> lock(workspace->mutex);
    StepMemory<T> &memory = workspace->memory<T>();
    memory.lengths.resize(call->rows);
    read_block<T>(memory, *model, *draft, *call, memory.lengths.data());
}

// y = x w^T, divided among threads as in a forward.
template <class T>
void linear_rows(const Operation *op, const void *x, void *y, int64_t rows, int64_t threads) {
    ThreadPool::instance().run(threads, [&](Worker &worker) {
        linear<T>(*op, (const T *)x, op->inner, rows, worker, {(T *)y, op->outer, nullptr}, Acc<T>(1));
    });
}

}  // namespace paceline

#define PACELINE_EXPORT_FORWARD(T, name)                                                                             \
    PACELINE_API void paceline_forward_##name(paceline::Workspace *workspace, const paceline::Model *model,          \
                                              const paceline::Call *call) {                                          \
        paceline::forward<T>(workspace, model, call);                                                                \
    }                                                                                                                \
    PACELINE_API void paceline_draft_fused_##name(                                                                   \
        paceline::Workspace *workspace, const paceline::Model *model, const paceline::Call *call,                    \
        const paceline::SamplingOptions *options, const paceline::LogitsProcessors *processors,                      \
        const paceline::FusedDraft *draft) {                                                                         \
        paceline::draft_fused<T>(workspace, model, call, options, processors, draft);                                \
    }                                                                                                                \
    PACELINE_API void paceline_read_block_##name(paceline::Workspace *workspace, const paceline::Model *model,       \
                                                 const paceline::Call *call, const paceline::FusedDraft *draft) {    \
        paceline::read_block<T>(workspace, model, call, draft);                                                      \
    }                                                                                                                \
    PACELINE_API void paceline_linear_##name(const paceline::Operation *op, const void *x, void *y, int64_t rows,    \
                                             int64_t threads) {                                                      \
        paceline::linear_rows<T>(op, x, y, rows, threads);                                                           \
    }                                                                                                                \
    PACELINE_API int64_t paceline_panel_rows_##name(int64_t format) { return paceline::panel_rows_of<T>(format); }   \
    PACELINE_API int64_t paceline_panel_unit_##name(int64_t format) { return paceline::panel_unit_of<T>(format); }
