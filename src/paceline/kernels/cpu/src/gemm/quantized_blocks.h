// Int8 and int4 weight matrices, and how a tile decodes rows of them to the model's precision in registers.
#pragma once

#include "gemm/gemm_unpacked.h"

namespace paceline {

// int8 weights with one scale per row, which multiplies its sums.
struct Int8Matrix {
    static constexpr int BLOCK = 64;         // weights that are decoded together,
    static constexpr long BLOCK_BYTES = 64;  // and their bytes
    const int8_t *data;
    const float *scales;
    long stride;  // bytes from row to row

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Int8Matrix from(int n) const { return {data + n * stride, scales + n, stride}; }
    template <class A>
    void scale(int n, int count, A *sums) const {
        for (int j = 0; j < count; j++) sums[j] *= scales[n + j];
    }
};

// As many int8 weights as a vector of the accumulator type has elements.
using FloatBytes = int8_t __attribute__((vector_size(VECTOR_BYTES / 4)));
using DoubleBytes = int8_t __attribute__((vector_size(VECTOR_BYTES / 8)));

// int4 weights, each plus 8, in 32-bit words of eight: of word i / 8 weight i takes the nibble i % 8 / 2 of the low
// half if it is even, of the high half if it is odd. Every block has a scale.
struct Int4Matrix {
    static constexpr int BLOCK = 64;
    static constexpr long BLOCK_BYTES = 32;
    const uint8_t *data;
    const bf16 *scales;   // one per block
    long stride, blocks;  // bytes from row to row, and blocks

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Int4Matrix from(int n) const { return {data + n * stride, scales + n * blocks, stride, blocks}; }
    template <class A>
    void scale(int, int, A *) const {}
};

// Decodes rows of w: parts of STEP weights, as vectors of the accumulator type. For any CPU.
template <class T, class W>
struct RowDecoder;
template <class T>
struct RowDecoder<T, Int8Matrix> {
    static constexpr int BLOCK = Int8Matrix::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    Int8Matrix w;
    static constexpr int MAX_ROWS = 2;  // of x in one tile
    explicit RowDecoder(const Int8Matrix &bytes) : w(bytes) {}
    RowDecoder from(int n) const { return RowDecoder(w.from(n)); }
    inline void get(int n, int block, Vec<T> (&out)[PARTS]) const {
        using Narrow = std::conditional_t<sizeof(Acc<T>) == 4, FloatBytes, DoubleBytes>;
        for (int p = 0; p < PARTS; p++) {
            Narrow bytes;
            std::memcpy(&bytes, w.data + n * w.stride + block * BLOCK + p * STEP, sizeof bytes);
            out[p] = __builtin_convertvector(bytes, Vec<T>);
        }
    }
};
template <class T>
struct RowDecoder<T, Int4Matrix> {
    static constexpr int BLOCK = Int4Matrix::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    static constexpr long BLOCK_BYTES = Int4Matrix::BLOCK_BYTES;
    Int4Matrix w;
    static constexpr int MAX_ROWS = 2;  // of x in one tile
    explicit RowDecoder(const Int4Matrix &nibbles) : w(nibbles) {}
    RowDecoder from(int n) const { return RowDecoder(w.from(n)); }
    inline void get(int n, int block, Vec<T> (&out)[PARTS]) const {
        const Acc<T> scale = widen(w.scales[n * w.blocks + block]);
        uint32_t words[BLOCK / 8];
        std::memcpy(words, w.data + n * w.stride + block * BLOCK_BYTES, sizeof words);
        for (int p = 0; p < PARTS; p++)
            for (int j = 0; j < STEP; j++) {
                const int i = p * STEP + j;
                out[p][j] = (int(words[i / 8] >> (i % 2 * 16 + i % 8 / 2 * 4) & 15) - 8) * scale;
            }
    }
};

}  // namespace paceline
