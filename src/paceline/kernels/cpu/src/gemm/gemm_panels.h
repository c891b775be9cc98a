// GEMM with weights packed in panels, of any format, for every instruction set: float32 products of widened weights.
//
// y[m][n] = sum over k of w[n][k] x[m][k], with each y in a lane of its own, as one chain of multiply-adds over k in
// the same order whatever the tile, so results are batch-invariant. x is widened to float32 once per call and broadcast
// element by element. With as many rows of x as a tile has, w is streamed once with prefetching; one or two rows, and
// three in some formats, take several panels at once, else each addition would wait for the last. With more rows, a
// block of w stays in the L2 cache while tiles of x reuse it. models/cpu/packed_weights.py packs the weights.
// gemm_bf16.h and gemm_quantized_bf16.h replace this in bf16 models where the processor multiplies pairs of bf16.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "gemm/panel_decoders.h"

namespace paceline::panels {

// Rows of x in a tile: the sums, a vector of w per vector of the panel and one of x fill the registers.
constexpr int TILE_ROWS = NUM_REGISTERS == 16 ? 6 : 24 / VECTORS;
// With sixteen registers, seven or eight rows take a panel one vector at a time: two tiles would widen w twice.
constexpr int MAX_TILE_ROWS = NUM_REGISTERS == 16 ? 8 : TILE_ROWS;
constexpr int tile_vectors(int m) { return m > TILE_ROWS ? 1 : VECTORS; }
// With sixteen registers, three rows of weights that are widened in parts are faster with one panel at once.
template <class D>
constexpr int tile_panels(int m) {
    if (m > 2) return m == 3 && VECTORS == 2 && (NUM_REGISTERS == 32 || D::PARTS == 1) ? 2 : 1;
    return (m == 1 ? 8 : 4) / VECTORS;
}
// Rows of the next tile, of left ones. Three alone are too few to hide the latency of additions.
constexpr int tile_rows(int left) {
    if (left <= MAX_TILE_ROWS) return left;
    return left == TILE_ROWS + 3 && TILE_ROWS == 6 ? 5 : TILE_ROWS;
}
constexpr long PIECE_BYTES = 96 * 1024;  // of w, kept in the L2 cache while several tiles of x read them
constexpr int OUTPUT_PANELS = 16;        // whose outputs are written together, where one tile of x reads each once
constexpr long PREFETCH_FAR = 4096;      // prefetch distance from memory, all panels of a tile together,
constexpr long PREFETCH_NEAR = 1024;     // and within the L2 cache

// A packed matrix; the last panel may be narrower.
struct Matrix {
    const char *data;
    const void *scales;   // of integers: float32, one per row, or bf16, per group and row of a panel
    long stride, groups;  // bytes and scales of a row
    int outer, k;
    int wide(int n) const { return std::min(PANEL_ROWS, outer - n); }
};

// Part of P panels, full ones: PANEL_ROWS * stride bytes and PANEL_ROWS * groups scales apart.
struct Part {
    const char *data;
    const bf16 *scales;
    long stride, groups;
};

// Whether a tile for m rows leaves too few registers to hold packed weights too: they are read again instead.
constexpr bool few_registers(int m) { return NUM_REGISTERS == 16 || (VECTORS == 4 && m > 2); }

// Keeps the compiler from holding what p points to in registers.
template <class P>
inline void reload(P &p) {
    asm volatile("" : "+r"(p));
}

// Multiplies count elements of V vectors of P panels, from vector begin on, by M rows of x and adds to sums, which are
// step apart; first starts them at zero. x_step is from block to block of x. Prefetches far bytes on, if any.
template <class D, int M, int P, int V>
[[gnu::noinline]] void vector_tile(const Part &part, int begin, const float *x, long x_step, int count, long far,
                                   float *sums, long step, bool first) {
    const char *w = part.data;
    const bf16 *scales = part.scales;
    const long panel_bytes = PANEL_ROWS * part.stride, size = (long)count / D::STEP * D::BYTES;
    const Masks *masks = &MASKS;
    if (V == VECTORS) begin = 0;  // for the compiler: a decoder may depend on it
    const char *const last = w + size - D::BYTES;
    Floats acc[M][P * V];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 16
        for (int v = 0; v < P * V; v++)
            acc[m][v] = D::GROUP || first ? Floats{} : load(sums + m * step + v * LANES);
    for (int at = 0; at < count; at += X_BLOCK, x += x_step) {
        const int until = std::min(X_BLOCK, count - at);
        for (int i = 0; i < until;) {
            if constexpr (D::GROUP > 0) {
#pragma GCC unroll 16
                for (int m = 0; m < M; m++)
#pragma GCC unroll 16
                    for (int v = 0; v < P * V; v++)
                        acc[m][v] = x[m * X_STEP + X_BLOCK + i / D::GROUP] - Floats{};
            }
            for (const int stop = D::GROUP ? i + D::GROUP : until; i < stop; i += D::STEP, w += D::BYTES) {
#pragma GCC unroll 4
                for (int p = 0; p < P; p++)
#pragma GCC unroll 4
                    for (int line = 0; line < D::BYTES; line += 64)
                        __builtin_prefetch(w + far + p * panel_bytes + line, 0, 3);
                if (P > 1 && w + far == last) far += P * panel_bytes - size;  // the next panels follow
#pragma GCC unroll 8
                for (int j = 0; j < D::PARTS; j++) {
                    const char *from = w;
                    if (D::PARTS > 1 && few_registers(M)) reload(from), reload(masks);
#pragma GCC unroll 4
                    for (int p = 0; p < P; p++) {
                        Floats wide[V];
#pragma GCC unroll 4
                        for (int v = 0; v < V; v++) wide[v] = D::get(from + p * panel_bytes, begin + v, j, masks);
#pragma GCC unroll 16
                        for (int m = 0; m < M; m++) {
                            const Floats same = x[m * X_STEP + i + D::element(j)] - Floats{};  // broadcast
#pragma GCC unroll 4
                            for (int v = 0; v < V; v++) {
                                Floats &sum = acc[m][p * V + v];
                                sum = multiply_part<D>(wide[v], same, sum);
                            }
                        }
                    }
                }
            }
            if constexpr (D::GROUP > 0) {
#pragma GCC unroll 4
                for (int p = 0; p < P; p++)
#pragma GCC unroll 4
                    for (int v = 0; v < V; v++) {
                        const Floats scale = load(scales + p * PANEL_ROWS * part.groups + (begin + v) * LANES);
#pragma GCC unroll 16
                        for (int m = 0; m < M; m++) {
                            float *sum = sums + m * step + (p * V + v) * LANES;
                            store(sum, multiply_add(scale, acc[m][p * V + v], first ? Floats{} : load(sum)));
                        }
                    }
                first = false;
                scales += PANEL_ROWS;
            }
        }
    }
    if constexpr (D::GROUP == 0) {
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 16
            for (int v = 0; v < P * V; v++) store(sums + m * step + v * LANES, acc[m][v]);
    }
}

// The same of all vectors of P panels.
template <class D, int M, int P>
void panel_tile(const Part &part, const float *x, long x_step, int count, long far, float *sums, long step,
                bool first) {
    constexpr int V = tile_vectors(M);
    for (int v = 0; v < VECTORS; v += V)  // one vector at a time finds the others in the L1 cache
        vector_tile<D, M, P, V>(part, v, x, x_step, count, far, sums + v * LANES, step, first);
}

using Tile = void (*)(const Part &, const float *, long, int, long, float *, long, bool);

// The tile for m rows of x, 1 to MAX_TILE_ROWS, and one panel or, if several, tile_panels(m).
template <class D, int M = 1>
Tile panel_tile_for(int m, bool several) {
    if constexpr (M < MAX_TILE_ROWS)
        if (m > M) return panel_tile_for<D, M + 1>(m, several);
    return several ? panel_tile<D, M, tile_panels<D>(M)> : panel_tile<D, M, 1>;
}

// Receives the sums of row m for wide rows of w from n on: those of a piece of w at once.
using EmitSums = std::function<void(int m, int n, int wide, float *sums)>;

// The part of a narrow panel that begins at element at, filled up to a full one in data and scales.
template <class D>
Part fill_up(const Matrix &w, int n, int at, int count, std::vector<char> &data, std::vector<bf16> &scales) {
    const int wide = w.wide(n);
    // The decoders read BYTES per STEP elements: pieces of every row, of as many bytes as stay together.
    const long steps = (count + D::STEP - 1) / D::STEP;
    constexpr bool by_element = std::is_same_v<D, Int8Decoder>;
    const long pieces = by_element ? steps * D::STEP : steps, size = by_element ? 1 : D::BYTES / PANEL_ROWS;
    const long first = by_element ? at : at / D::STEP;
    data.assign(pieces * size * PANEL_ROWS, 0);
    const char *from = w.data + n * w.stride + first * size * wide;
    for (long i = 0; i < pieces; i++) std::memcpy(&data[i * size * PANEL_ROWS], from + i * size * wide, size * wide);
    if constexpr (D::GROUP > 0) {
        const long groups = (count + D::GROUP - 1) / D::GROUP;
        scales.assign(groups * PANEL_ROWS, bf16{0});
        const bf16 *own = (const bf16 *)w.scales + n * w.groups + at / D::GROUP * wide;
        for (long i = 0; i < groups; i++) std::memcpy(&scales[i * PANEL_ROWS], own + i * wide, wide * sizeof(bf16));
    }
    return {data.data(), scales.data(), 0, 0};
}

// The part of panels from row n on that begins at element at.
template <class D>
Part part_of(const Matrix &w, int n, int at) {
    const char *data = w.data + n * w.stride + (long)at / D::STEP * D::BYTES;
    if (!D::GROUP) return {data, nullptr, w.stride, 0};
    return {data, (const bf16 *)w.scales + n * w.groups + (long)at / std::max(D::GROUP, 1) * PANEL_ROWS, w.stride,
            w.groups};
}

// Rows begin to end of w, which are panel boundaries or the end of the matrix, times rows of x in widened form.
template <class D>
void gemm_panels(const Matrix &w, int begin, int end, const float *x, int rows, const EmitSums &emit) {
    static thread_local std::vector<float> carried;
    static thread_local std::vector<char> data;
    static thread_local std::vector<bf16> scales;
    const int unit = std::max(D::GROUP, D::STEP), count = (w.k + unit - 1) / unit * unit;
    const bool several = rows > MAX_TILE_ROWS, whole = rows <= TILE_ROWS;
    const int block = whole ? count : X_BLOCK;
    const long x_step = (long)rows * X_STEP, block_bytes = (long)block / D::STEP * D::BYTES;
    const int alone = count <= block ? OUTPUT_PANELS : tile_panels<D>(rows);  // panels of a piece that one tile reads
    const int piece = (several ? std::max<long>(2, PIECE_BYTES / block_bytes) : alone) * PANEL_ROWS;
    carried.resize((long)rows * piece);
    for (int first = begin; first < end; first += piece) {
        const int last = std::min(end, first + piece);
        for (int at = 0; at < count; at += block) {
            const int these = std::min(block, count - at);
            Part narrow{};
            for (int m = 0, size; m < rows; m += size) {
                size = tile_rows(rows - m);
                // The last of several tiles prefetches the next block.
                const long far = !several          ? PREFETCH_FAR / tile_panels<D>(size)
                                 : m + size < rows ? PREFETCH_NEAR
                                                   : block_bytes;
                float *sums = &carried[(long)m * piece];
                for (int n = first, next; n < last; n = next) {
                    next = n + tile_panels<D>(size) * PANEL_ROWS;
                    const bool full = next <= last && w.wide(next - PANEL_ROWS) == PANEL_ROWS;
                    if (!full) next = n + PANEL_ROWS;
                    if (w.wide(n) < PANEL_ROWS && !narrow.data) narrow = fill_up<D>(w, n, at, these, data, scales);
                    const Part part = w.wide(n) < PANEL_ROWS ? narrow : part_of<D>(w, n, at);
                    panel_tile_for<D>(size, full)(part, x + at / X_BLOCK * x_step + m * X_STEP, x_step, these, far,
                                                     sums + n - first, piece, at == 0);
                }
                if (at + block < count) continue;
                for (int j = 0; j < size; j++)
                    emit(m + j, first, std::min(last, w.outer) - first, sums + (long)j * piece);
            }
        }
    }
}

}  // namespace paceline::panels
