// The kernel's functions of vectors, one by one (test_functions.py); counts are whole vectors.
#include "elementwise.h"
#include "export.h"

using namespace paceline;

template <class T, class F>
void map(const T *x, T *y, int64_t count, F function) {
    for (int64_t i = 0; i < count; i += lanes<T>) store_partial<T>(y + i, function(load(x + i)), lanes<T>);
}

PACELINE_API void paceline_exponential(const float *x, float *y, int64_t count) {
    map(x, y, count, [](Floats v) { return exponential(v); });
}
PACELINE_API void paceline_power_of_two(const float *x, float *y, int64_t count) {
    map(x, y, count, [](Floats v) { return power_of_two(v); });
}
PACELINE_API void paceline_silu_float32(const float *x, float *y, int64_t count) { map(x, y, count, silu<float>); }
PACELINE_API void paceline_silu_bfloat16(const bf16 *x, bf16 *y, int64_t count) { map(x, y, count, silu<bf16>); }
PACELINE_API void paceline_silu_float16(const f16 *x, f16 *y, int64_t count) { map(x, y, count, silu<f16>); }
