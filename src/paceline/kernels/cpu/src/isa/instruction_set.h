// What the instruction set of this build has: the width of its vectors and the number of its vector registers.
//
// The sources are compiled once per set, each to a library of its own (compile.py): nothing is decided at run time.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace paceline {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, NUM_REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32, NUM_REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int VECTOR_BYTES = 16, NUM_REGISTERS = 32;
#else
constexpr int VECTOR_BYTES = 16, NUM_REGISTERS = 16;
#endif

}  // namespace paceline
