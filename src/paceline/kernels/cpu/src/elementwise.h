// RMSNorm, LayerNorm, activations and additions, row by row, rounded where the eager model rounds. In place is allowed.
#pragma once

#include "step/program.h"
#include "isa/vectors.h"

namespace paceline {

// Calls with(i, count) for each vector; the last one may be partial. count is a constant for all others.
template <class T, class With>
inline void for_each_vector(int size, With &&with) {
    int i = 0;
    for (; i + lanes<T> <= size; i += lanes<T>) with(i, std::integral_constant<int, lanes<T>>{});
    if (i < size) with(i, size - i);
}

template <class T>
inline Vec<T> load_partial(const T *p, int count) {
    return count == lanes<T> ? load(p) : load_some(p, count);
}

template <class T>
inline void norm(const Operation &op, const T *x, T *y) {
    using A = Acc<T>;
    using V = Vec<T>;
    const int size = op.inner;
    if (op.variant == COPY) return (void)std::memmove(y, x, size * sizeof(T));
    const T *weight = (const T *)op.weight, *bias = (const T *)op.bias;
    V total{}, squares{};
    A mean = 0;
    if (op.variant == LAYER) {
        for_each_vector<T>(size, [&](int i, auto count) { total += load_partial(x + i, count); });
        mean = sum(total) / size;
    }
    for_each_vector<T>(size, [&](int i, auto count) {
        V v = load_partial(x + i, count) - mean;
        if (count < lanes<T>)
            for (int j = count; j < lanes<T>; j++) v[j] = 0;
        squares = multiply_add(v, v, squares);
    });
    const A scale = A(1) / std::sqrt(sum(squares) / size + A(op.eps));
    for_each_vector<T>(size, [&](int i, auto count) {
        V v = (load_partial(x + i, count) - mean) * scale;
        if (weight) {
            const V w = load_partial(weight + i, count);
            if (op.variant == RMS) v = round_vector<T>(v) * w;
            if (op.variant == RMS_LATE) v = v * w;
            if (op.variant == RMS_OFFSET) v = v * (w + A(1));
            if (op.variant == LAYER) v = bias ? v * w + load_partial(bias + i, count) : v * w;
            if (op.variant == RMS && bias) v = round_vector<T>(v) + load_partial(bias + i, count);
        }
        if (op.factor != 1) v = round_vector<T>(v) * A(op.factor);
        store_partial(y + i, v, count);
    });
}

// erf to 1.5e-7 (Abramowitz and Stegun 7.1.26) in float32.
inline Floats error_function(Floats x) {
    Floats z = x < 0.0f ? -x : x, t = 1.0f / multiply_add(z, 0.3275911f, 1.0f);
    Floats p = multiply_add(t, 1.061405429f, -1.453152027f);
    p = multiply_add(p, t, 1.421413741f);
    p = multiply_add(p, t, -0.284496736f);
    p = multiply_add(p, t, 0.254829592f) * t;
    Floats y = multiply_add(-p, exponential(-z * z), 1.0f);
    return x < 0.0f ? -y : y;
}
inline Doubles error_function(Doubles x) {
    for (int i = 0; i < lanes<double>; i++) x[i] = std::erf(x[i]);
    return x;
}
inline Floats hyperbolic_tangent(Floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }
inline Doubles hyperbolic_tangent(Doubles x) {
    for (int i = 0; i < lanes<double>; i++) x[i] = std::tanh(x[i]);
    return x;
}

// x times the logistic function of x, for results that are rounded to T.
template <class T>
inline Vec<T> silu(Vec<T> x) {
    if constexpr (is_half<T>)
        return x / (power_of_two(x * -1.44269504f) + 1.0f);
    else
        return x / (exponential(-x) + Acc<T>(1));
}

template <class T>
inline Vec<T> activation(int64_t which, Vec<T> x) {
    using A = Acc<T>;
    switch (which) {
        case SILU: return silu<T>(x);
        case GELU: return x * A(0.5) * (error_function(x * A(0.70710678118654752)) + A(1));
        case GELU_TANH:
            return x * A(0.5) * (hyperbolic_tangent((x + x * x * x * A(0.044715)) * A(0.79788456080286536)) + A(1));
        default: return x > A(0) ? x : Vec<T>{};
    }
}

// y = act(x); times the other half of x, op.inner elements on, if gated.
template <class T>
inline void activate(const Operation &op, const T *x, T *y, int begin, int end) {
    const int64_t which = op.variant, other = op.inner;
    const bool gated = op.kind == GATE;
    for_each_vector<T>(end - begin, [&](int i, auto count) {
        Vec<T> v = activation<T>(which, load_partial(x + begin + i, count));
        if (gated) v = round_vector<T>(v) * load_partial(x + other + begin + i, count);
        store_partial(y + begin + i, v, count);
    });
}

template <class T>
inline void add(const Operation &op, const T *x, T *y) {
    for_each_vector<T>(op.inner, [&](int i, auto count) {
        Vec<T> v = load_partial(x + i, count);
        if (op.factor != 1) v = round_vector<T>(v * Acc<T>(op.factor));
        store_partial(y + i, load_partial(y + i, count) + v, count);
    });
}

// How a linear layer writes its outputs y = W x + bias from sums: a copy of what the operation says, which the compiler
// keeps in registers while y is written.
template <class T>
class OutputWriter {
   public:
    OutputWriter(const Operation &op, Acc<T> divisor)
        : bias_((const T *)op.bias), adds_(op.kind == LINEAR_ADD), factor_(op.factor), divisor_(divisor) {}

    // Writes N outputs from index n on; adds to y for LINEAR_ADD.
    template <int N>
    void write(T *y, int n, const Acc<T> *sums) const {
        if constexpr (N == 1) {
            Acc<T> four[4] = {*sums};
            T last[4] = {y[n]}, added[4] = {bias_ ? bias_[n] : narrow<T>(0)};
            OutputWriter one = *this;
            one.bias_ = bias_ ? added : nullptr;
            one.write<4>(last, 0, four);
            y[n] = last[0];
        } else if constexpr (N % lanes<T> == 0) {
            for (int j = 0; j < N; j += lanes<T>) {
                Vec<T> v = load(sums + j);
                if (bias_) v += load(bias_ + n + j);
                if (adds_) {
                    v = round_vector<T>(v);
                    if (factor_ != 1) v = round_vector<T>(v * factor_);
                    v += load(y + n + j);
                } else if (divisor_ != 1) {
                    v = round_vector<T>(v) / divisor_;
                }
                store_partial(y + n + j, v, lanes<T>);
            }
        } else {
            for (int j = 0; j < N; j += 4) {
                Four<T> v;
                std::memcpy(&v, sums + j, sizeof v);
                if (bias_) v += widen_four(bias_ + n + j);
                if (adds_) {
                    v = rounded_four<T>(v);
                    if (factor_ != 1) v = rounded_four<T>(v * factor_);
                    v += widen_four(y + n + j);
                } else if (divisor_ != 1) {
                    v = rounded_four<T>(v) / divisor_;
                }
                narrow_four(y + n + j, v);
            }
        }
    }

   private:
    const T *bias_;
    bool adds_;
    Acc<T> factor_, divisor_;
};

}  // namespace paceline
