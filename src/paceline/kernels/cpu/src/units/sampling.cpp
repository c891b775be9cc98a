// The C ABI of sampling: logits processors, samples, warped scores, log-probabilities and noise.
#include "export.h"
#include "sampling/logits_processors.h"
#include "sampling/logprobs.h"
#include "sampling/philox.h"
#include "sampling/sampling.h"

using namespace paceline;

#define PACELINE_EXPORT_SAMPLING(T, name)                                                                            \
    PACELINE_API void paceline_sample_##name(const SamplingOptions *o, const LogitsBatch *c) { sample_all<T>(*o, *c); } \
    PACELINE_API void paceline_argmax_##name(const LogitsBatch *c) { argmax_all<T>(*c); }                            \
    PACELINE_API void paceline_warp_##name(const SamplingOptions *o, const LogitsBatch *c) { warp_all<T>(*o, *c); }  \
    PACELINE_API void paceline_process_##name(const LogitsProcessors *p, const Paths *paths, const LogitsBatch *c) { \
        process_all<T>(*p, *paths, *c);                                                                              \
    }                                                                                                                \
    PACELINE_API void paceline_logprobs_##name(const SamplingOptions *o, const LogitsBatch *c,                       \
                                               const LogprobQuery *l) {                                              \
        logprobs_all<T>(o, *c, *l);                                                                                  \
    }                                                                                                                \
    PACELINE_API void paceline_find_not_finite_##name(const LogitsBatch *c, const LogprobQuery *l, int64_t mark,     \
                                                      int64_t *failed) {                                             \
        find_not_finite<T>(*c, *l, mark, failed);                                                                    \
    }
PACELINE_EXPORT_SAMPLING(float, float32)
PACELINE_EXPORT_SAMPLING(double, float64)
PACELINE_EXPORT_SAMPLING(bf16, bfloat16)
PACELINE_EXPORT_SAMPLING(f16, float16)

#define PACELINE_EXPORT_NOISE(A, name)                                                                            \
    PACELINE_API void paceline_uniforms_##name(int64_t keys, int64_t count, const int64_t *const *fields,         \
                                               int64_t tag, A *out, int64_t threads) {                            \
        uniforms(keys, count, fields, tag, out, threads);                                                         \
    }                                                                                                             \
    PACELINE_API void paceline_exponential_race_##name(int64_t keys, int64_t count, const int64_t *const *fields, \
                                                       int64_t tag, const A *scores, int64_t *out,                \
                                                       int64_t threads) {                                         \
        exponential_race_all(keys, count, fields, tag, scores, out, threads);                                     \
    }
PACELINE_EXPORT_NOISE(float, float32)
PACELINE_EXPORT_NOISE(double, float64)

PACELINE_API void paceline_philox_words(int64_t keys, int64_t count, const int64_t *const *fields, int64_t tag,
                                        int64_t *out, int64_t threads) {
    philox_words(keys, count, fields, tag, out, threads);
}
