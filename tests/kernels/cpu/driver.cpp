// What the package does at load, without Python, for processors that are emulated (test_libraries.py):
// driver FEATURES_LIBRARY prints the processor's features; driver FEATURES_LIBRARY LIBRARY a product of the kernel.
#include <dlfcn.h>

#include <cstdio>

#include "step/program.h"

template <class F>
F function(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found = handle ? dlsym(handle, name) : nullptr;
    if (!found) fprintf(stderr, "%s\n", dlerror());
    return (F)found;
}

int main(int count, char **words) {
    char names[512];
    const auto features = function<void (*)(char *, int64_t)>(words[1], "paceline_cpu_features");
    if (!features) return 2;
    features(names, sizeof names);
    printf("%s\n", names);
    fflush(stdout);
    if (count < 3) return 0;
    const auto linear = function<void (*)(const paceline::Operation *, const void *, void *, int64_t, int64_t)>(
        words[2], "paceline_linear_float32");
    if (!linear) return 2;
    constexpr int ROWS = 3, IN = 40, OUT = 21;
    float x[ROWS * IN], w[OUT * IN], y[ROWS * OUT];
    for (int i = 0; i < ROWS * IN; i++) x[i] = i % 7 - 3;
    for (int i = 0; i < OUT * IN; i++) w[i] = i % 5 - 2;
    paceline::Operation product{};
    product.kind = paceline::LINEAR, product.variant = paceline::FLOATS;
    product.inner = IN, product.outer = OUT, product.count = IN, product.weight = w;
    linear(&product, x, y, ROWS, 2);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < OUT; column++) {
            float sum = 0;  // of integers: exact in any order
            for (int i = 0; i < IN; i++) sum += x[row * IN + i] * w[column * IN + i];
            if (sum != y[row * OUT + column]) return 3;
        }
    printf("equal\n");
}
