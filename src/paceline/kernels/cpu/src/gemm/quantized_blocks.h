// Matrices of small integers, and how a tile reads rows of them: as numbers of the model's precision, in registers.
#pragma once

#include "gemm/gemm_unpacked.h"

namespace paceline {

// One signed byte per weight, and one scale per row, which multiplies its sums.
struct Bytes {
    static constexpr int BLOCK = 64;        // weights that are decoded together,
    static constexpr long BLOCK_BYTES = 64;  // and the bytes that they take
    const int8_t *data;
    const float *scales;
    long stride;  // bytes from row to row

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Bytes from(int n) const { return {data + n * stride, scales + n, stride}; }
    template <class A>
    void scale(int n, int count, A *sums) const {
        for (int j = 0; j < count; j++) sums[j] *= scales[n + j];
    }
};

using Sixteen = int8_t __attribute__((vector_size(16)));
using Eight = int8_t __attribute__((vector_size(8)));

// Four bits per weight, each plus 8, in 32-bit words of eight: of word i / 8 weight i takes the nibble i % 8 / 2 of the low
// half where it is even, of the high half where it is odd. Every block has its scale.
struct Nibbles {
    static constexpr int BLOCK = 64;
    static constexpr long BLOCK_BYTES = 32;
    const uint8_t *data;
    const bf16 *scales;   // one per block
    long stride, blocks;  // bytes from row to row, and blocks

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Nibbles from(int n) const { return {data + n * stride, scales + n * blocks, stride, blocks}; }
    template <class A>
    void scale(int, int, A *) const {}
};

// How a tile reads rows of w: parts of STEP weights, as vectors of what sums are taken in. For any machine.
template <class T, class W>
struct WideRows;
template <class T>
struct WideRows<T, Bytes> {
    static constexpr int BLOCK = Bytes::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    Bytes w;
    static constexpr int MOST = 2;  // rows of x in one tile
    explicit WideRows(const Bytes &bytes) : w(bytes) {}
    WideRows from(int n) const { return WideRows(w.from(n)); }
    inline void get(int n, int block, Vec<T> (&out)[PARTS]) const {
        using Narrow = std::conditional_t<STEP == 16, Sixteen, Eight>;
        for (int p = 0; p < PARTS; p++) {
            Narrow bytes;
            std::memcpy(&bytes, w.data + n * w.stride + block * BLOCK + p * STEP, sizeof bytes);
            out[p] = __builtin_convertvector(bytes, Vec<T>);
        }
    }
};
template <class T>
struct WideRows<T, Nibbles> {
    static constexpr int BLOCK = Nibbles::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    static constexpr long BLOCK_BYTES = Nibbles::BLOCK_BYTES;
    Nibbles w;
    static constexpr int MOST = 2;  // rows of x in one tile
    explicit WideRows(const Nibbles &nibbles) : w(nibbles) {}
    WideRows from(int n) const { return WideRows(w.from(n)); }
    inline void get(int n, int block, Vec<T> (&out)[PARTS]) const {
        const Acc<T> scale = widen(w.scales[n * w.blocks + block]);
        for (int p = 0; p < PARTS; p++) {
            uint32_t words[STEP / 8];
            std::memcpy(words, w.data + n * w.stride + block * BLOCK_BYTES + p * STEP / 2, sizeof words);
            for (int j = 0; j < STEP; j++) out[p][j] = (int(words[j / 8] >> (j % 2 * 16 + j % 8 / 2 * 4) & 15) - 8) * scale;
        }
    }
};

}  // namespace paceline
