// Products of a few rows with a matrix of small integers and the scales that make numbers of them.
//
// The integers become numbers of the model's precision in registers, exactly, and are multiplied as those are (dots.h).
// Every sum runs over k in the same order whatever the tile, so that a row's result does not depend on the rows beside
// it. Rows of w are filled up with zeros to whole blocks.
#pragma once

#include <functional>
#include <vector>

#include "dots.h"

namespace paceline {

constexpr int PANEL = 48;         // rows of x that are laid out at once
constexpr int TILES_AHEAD = 8;    // between what is read and what is asked of memory
constexpr long PIECE = 64 * 1024;  // bytes of decoded w that stay near while several tiles of x read them

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

// Four bits per weight: of a block the word i of 16 bits holds weights i, 32 + i, 64 + i and 96 + i, each plus 8. Every
// half of a block has its scale, by which its weights are multiplied, and rounded, before they multiply x.
struct Nibbles {
    static constexpr int BLOCK = 128;
    static constexpr long BLOCK_BYTES = 64;
    const uint8_t *data;
    const uint32_t *scales;  // two bfloat16 per block
    long stride, blocks;     // bytes from row to row, and blocks

    const char *row(int n) const { return (const char *)(data + n * stride); }
    Nibbles from(int n) const { return {data + n * stride, scales + n * blocks, stride, blocks}; }
    template <class A>
    void scale(int, int, A *) const {}
};

// How a tile reads rows of w: parts of STEP weights, and how a part is multiplied. This one is for any machine.
template <class T, class W>
struct WideRows;
template <class T>
struct WideRows<T, Bytes> {
    static constexpr int BLOCK = Bytes::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    using Part = Vec<T>;
    Bytes w;
    static constexpr bool LIES = false;
    static constexpr int MOST = 2;  // rows of x in one tile
    explicit WideRows(const Bytes &bytes) : w(bytes) {}
    WideRows from(int n) const { return WideRows(w.from(n)); }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        using Narrow = std::conditional_t<STEP == 16, Sixteen, Eight>;
        for (int p = 0; p < PARTS; p++) {
            Narrow bytes;
            std::memcpy(&bytes, w.data + n * w.stride + block * BLOCK + p * STEP, sizeof bytes);
            out[p] = __builtin_convertvector(bytes, Part);
        }
    }
    static inline Part part(const T *x) { return load(x); }
    static inline Vec<T> add(Vec<T> sum, Part w, Part x) { return sum + w * x; }
    static inline void arrange(const T *x, T *out) { std::memcpy(out, x, BLOCK * sizeof(T)); }
};
template <class T>
struct WideRows<T, Nibbles> {
    static constexpr int BLOCK = Nibbles::BLOCK, STEP = lanes<T>, PARTS = BLOCK / STEP;
    using Part = Vec<T>;
    Nibbles w;
    static constexpr bool LIES = false;
    static constexpr int MOST = 2;  // rows of x in one tile
    explicit WideRows(const Nibbles &nibbles) : w(nibbles) {}
    WideRows from(int n) const { return WideRows(w.from(n)); }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        const uint32_t pair = w.scales[n * w.blocks + block];
        for (int p = 0; p < PARTS; p++) {
            const int at = p * STEP, quarter = at / 32;
            const Acc<T> scale = widen(bf16{uint16_t(quarter < 2 ? pair : pair >> 16)});
            uint16_t words[STEP];
            std::memcpy(words, w.data + n * w.stride + block * 64 + at % 32 * 2, sizeof words);
            for (int j = 0; j < STEP; j++) out[p][j] = rounded<T>((int(words[j] >> (4 * quarter) & 15) - 8) * scale);
        }
    }
    static inline Part part(const T *x) { return load(x); }
    static inline Vec<T> add(Vec<T> sum, Part w, Part x) { return sum + w * x; }
    static inline void arrange(const T *x, T *out) { std::memcpy(out, x, BLOCK * sizeof(T)); }
};
template <class T, class W>
struct RowsOf {
    using type = WideRows<T, W>;
};

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define PACELINE_LOOKUPS
inline Floats add_pairs(Floats sum, __m512bh w, __m512bh x) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, w, x);
}

// The two bytes of a bfloat16 for every magnitude below 128.
struct Magnitudes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};
    constexpr Magnitudes() {
        for (int i = 1; i < 128; i++) {
            int exponent = 0;
            while (i >> (exponent + 1)) exponent++;
            const unsigned bits = ((127 + exponent) << 7) | ((i << (7 - exponent)) & 0x7f);
            low[i] = bits & 0xff;
            high[i] = bits >> 8;
        }
    }
};
inline constexpr Magnitudes MAGNITUDES;

// Bytes above -128 to pairs of bfloat16, looked up: in each quarter of 16 first the former eight, then the latter.
struct PairedBytes {
    static constexpr int BLOCK = Bytes::BLOCK, STEP = 32, PARTS = 2;
    using Part = __m512bh;
    Bytes w;
    __m512i low[2], high[2], sign;

    explicit PairedBytes(const Bytes &bytes) : w(bytes), sign(_mm512_set1_epi8((char)0x80)) {
        for (int i = 0; i < 2; i++) {
            low[i] = _mm512_load_si512(MAGNITUDES.low + 64 * i);
            high[i] = _mm512_load_si512(MAGNITUDES.high + 64 * i);
        }
    }
    static constexpr bool LIES = false;
    static constexpr int MOST = 6;
    PairedBytes from(int n) const {
        PairedBytes later = *this;
        later.w = w.from(n);
        return later;
    }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        const __m512i bytes = _mm512_loadu_si512(w.data + n * w.stride + block * BLOCK), size = _mm512_abs_epi8(bytes);
        const __m512i lower = _mm512_permutex2var_epi8(low[0], size, low[1]);
        const __m512i unsigned_ = _mm512_permutex2var_epi8(high[0], size, high[1]);
        const __m512i upper = _mm512_ternarylogic_epi32(unsigned_, bytes, sign, 0xf8);  // | (bytes & sign)
        out[0] = (__m512bh)_mm512_unpacklo_epi8(lower, upper);
        out[1] = (__m512bh)_mm512_unpackhi_epi8(lower, upper);
    }
    static inline Part part(const bf16 *x) { return (Part)_mm512_loadu_si512(x); }
    static inline Floats add(Floats sum, Part w, Part x) { return add_pairs(sum, w, x); }
    // A block of x in the order of the weights.
    static inline void arrange(const bf16 *x, bf16 *out) {
        const __m512i first = _mm512_loadu_si512(x), second = _mm512_loadu_si512(x + 32);
        _mm512_storeu_si512(out, _mm512_shuffle_i64x2(first, second, 0x88));
        _mm512_storeu_si512(out + 32, _mm512_shuffle_i64x2(first, second, 0xdd));
    }
};
template <>
struct RowsOf<bf16, Bytes> {
    using type = PairedBytes;
};

// Nibbles to pairs of bfloat16: the 16 weights that a group can have stand in a table, twice, so that the fifth bit of an
// index, which belongs to the nibble after it, does not matter.
struct PairedNibbles {
    static constexpr int BLOCK = Nibbles::BLOCK, STEP = 32, PARTS = 4;
    using Part = __m512bh;
    Nibbles w;
    __m512 steps;
    static constexpr bool LIES = false;
    static constexpr int MOST = 6;
    explicit PairedNibbles(const Nibbles &nibbles)
        : w(nibbles), steps(_mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)) {}
    PairedNibbles from(int n) const {
        PairedNibbles later = *this;
        later.w = w.from(n);
        return later;
    }
    inline __m512i table(__m512i scale) const {
        return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(steps, _mm512_castsi512_ps(scale))));
    }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
        const __m512i pair = _mm512_set1_epi32(w.scales[n * w.blocks + block]);
        const __m512i first = table(_mm512_slli_epi32(pair, 16));
        const __m512i second = table(_mm512_and_si512(pair, _mm512_set1_epi32(0xffff0000)));
        const __m512i words = _mm512_loadu_si512(w.data + n * w.stride + block * 64);
        out[0] = (__m512bh)_mm512_permutexvar_epi16(words, first);
        out[1] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), first);
        out[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), second);
        out[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), second);
    }
    static inline Part part(const bf16 *x) { return (Part)_mm512_loadu_si512(x); }
    static inline Floats add(Floats sum, Part w, Part x) { return add_pairs(sum, w, x); }
    static inline void arrange(const bf16 *x, bf16 *out) { std::memcpy(out, x, BLOCK * sizeof(bf16)); }
};
template <>
struct RowsOf<bf16, Nibbles> {
    using type = PairedNibbles;
};

// Rows that were decoded before.
template <class R>
struct Decoded {
    static constexpr int BLOCK = R::BLOCK, STEP = R::STEP, PARTS = R::PARTS;
    using Part = typename R::Part;
    const bf16 *data;
    long stride;  // numbers
    static constexpr bool LIES = true;
    static constexpr int MOST = 6;
    Decoded from(int n) const { return {data + n * stride, stride}; }
    inline void get(int n, int block, Part (&out)[PARTS]) const {
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) out[p] = (Part)_mm512_loadu_si512(data + n * stride + block * BLOCK + p * STEP);
    }
    static inline Part part(const bf16 *x) { return (Part)_mm512_loadu_si512(x); }
    static inline Floats add(Floats sum, Part w, Part x) { return add_pairs(sum, w, x); }
};
#endif

// Rows of N parts side by side times M rows of x.
template <class R, int N, int M, class T>
inline void add_parts(Vec<T> (&acc)[M][N], const typename R::Part (&w)[N], const T *x, long ldx) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        const typename R::Part row = R::part(x + m * ldx);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) acc[m][n] = R::add(acc[m][n], w[n], row);
    }
}

// N rows of w from first on and M rows of x that were arranged; out[m * N + n]. On the way it asks for N rows at far.
template <class T, int N, int M, class R>
[[gnu::noinline]] void small_tile(const R &rows, int first, const T *x, long ldx, int blocks, const char *far, long stride,
                                  long step, Acc<T> *out) {
    using Part = typename R::Part;
    const R r = rows.from(first);
    Vec<T> acc[M][N] = {};
    alignas(64) Part near[R::PARTS][N];
    for (int block = 0; block < blocks; block++) {
        if (far) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) want_later(far + n * stride);
            far += step;
        }
        const T *here = x + block * R::BLOCK;
        if constexpr (M == 1) {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
#pragma GCC unroll 8
                for (int p = 0; p < R::PARTS; p++) acc[0][n] = R::add(acc[0][n], own[p], R::part(here + p * R::STEP));
            }
        } else if constexpr (N * (M + R::PARTS) <= 24 || R::LIES) {
            Part parts[R::PARTS][N];
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
                for (int p = 0; p < R::PARTS; p++) parts[p][n] = own[p];
            }
            for (int p = 0; p < R::PARTS; p++) add_parts<R, N, M, T>(acc, parts[p], here + p * R::STEP, ldx);
        } else {
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) {
                Part own[R::PARTS];
                r.get(n, block, own);
#pragma GCC unroll 8
                for (int p = 0; p < R::PARTS; p++) near[p][n] = own[p];
            }
            const Part(*lies)[N] = near;
            asm volatile("" : "+r"(lies) : : "memory");  // in memory from here on: sums fill the registers
#pragma GCC unroll 8
            for (int p = 0; p < R::PARTS; p++) add_parts<R, N, M, T>(acc, lies[p], here + p * R::STEP, ldx);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        if constexpr (N == 1) {
            out[m] = sum(acc[m][0]);
        } else {
#pragma GCC unroll 8
            for (int n = 0; n < N; n += 4) {
                Vec<T> four[4] = {acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3]};
                sums(four, out + m * N + n);
            }
        }
    }
}

// A tile of m rows of x, at most R::MOST.
template <class T, class R, int M = 1>
inline void four_by(int m, const R &rows, int first, const T *x, long ldx, int blocks, const char *far, long stride,
                    long step, Acc<T> *out) {
    if constexpr (M < R::MOST)
        if (m > M) return four_by<T, R, M + 1>(m, rows, first, x, ldx, blocks, far, stride, step, out);
    small_tile<T, 4, M>(rows, first, x, ldx, blocks, far, stride, step, out);
}

// Memory for numbers, aligned as vectors are, kept by each thread from one product to the next.
template <class T>
class Room {
   public:
    T *of(long count) {
        if ((long)memory_.size() < count + 64) memory_.resize(count + 64);
        return (T *)(((uintptr_t)memory_.data() + 63) & ~uintptr_t(63));
    }

   private:
    std::vector<T> memory_;
};

// Takes the sums of row m for count columns from n on, scaled.
template <class T>
using Give = std::function<void(int m, int n, int count, const Acc<T> *sums)>;

// One product: w is Bytes or another such, rows at most PANEL, k numbers each.
template <class T, class W>
class SmallProduct {
   public:
    using R = typename RowsOf<T, W>::type;
    SmallProduct(const W &w, const T *x, long ldx, int rows, int k, const Give<T> &put)
        : w_(w), reads_(w), put_(put), rows_(rows), blocks_((k + R::BLOCK - 1) / R::BLOCK), width_(blocks_ * R::BLOCK) {
        static thread_local Room<T> room;
        x_ = room.of((long)rows * width_);
        for (int m = 0; m < rows; m++) arrange(x + m * ldx, k, x_ + m * width_);
    }

    void run(int begin, int end) {
        const int whole = (end - begin) / 4 * 4;
        if (rows_ == 1) {
            for (; begin + 8 <= end; begin += 8) {
                small_tile<T, 8, 1>(reads_, begin, x_, width_, blocks_, w_.row(begin + 8 * TILES_AHEAD), w_.stride, W::BLOCK_BYTES, out_);
                give<8>(0, 1, begin);
            }
        } else if (rows_ <= R::MOST) {
            for (const int last = begin + whole; begin < last; begin += 4) {
                four_by(rows_, reads_, begin, x_, width_, blocks_, w_.row(begin + 4 * TILES_AHEAD), w_.stride, W::BLOCK_BYTES, out_);
                give<4>(0, rows_, begin);
            }
        } else {
            many(begin, begin + whole);
            begin += whole;
        }
        for (; begin < end; begin++)
            for (int m = 0; m < rows_; m++) {
                small_tile<T, 1, 1>(reads_, begin, x_ + m * width_, width_, blocks_, nullptr, 0, 0, out_);
                give<1>(m, 1, begin);
            }
    }

   private:
    W w_;
    R reads_;
    const Give<T> &put_;
    int rows_, blocks_;
    long width_;
    T *x_;
    Acc<T> out_[R::MOST * 8];

    static void arrange(const T *x, int k, T *out) {
        int i = 0;
        for (; i + R::BLOCK <= k; i += R::BLOCK) R::arrange(x + i, out + i);
        if (i == k) return;
        T last[R::BLOCK] = {};
        std::memcpy(last, x + i, (k - i) * sizeof(T));
        R::arrange(last, out + i);
    }

    template <int N>
    void give(int m, int count, int n) {
        for (int j = 0; j < count; j++) {
            w_.scale(n, N, out_ + j * N);
            put_(m + j, n, N, out_ + j * N);
        }
    }

    // Several tiles of x: pieces of w stay near while they take turns, decoded once where that is more than a widening.
    void many(int begin, int end) {
        const int piece = std::max<long>(1, PIECE / (4 * width_ * (long)sizeof(T))) * 4;
        for (int first = begin; first < end; first += piece) {
            const int last = std::min(end, first + piece);
#if defined(PACELINE_LOOKUPS)
            if constexpr (std::is_same_v<T, bf16>) {
                static thread_local Room<bf16> room;
                bf16 *near = room.of((long)piece * width_);
                for (int n = first; n < last; n++) decode(n, near + (n - first) * width_);
                turns(Decoded<R>{near, width_}, first, last, first, piece);
                continue;
            }
#endif
            turns(reads_, first, last, 0, piece);
        }
    }

    // All tiles of x with rows first to last of w, which are numbered from origin on; the last tile asks for the next piece.
    template <class Rows>
    void turns(const Rows &rows, int first, int last, int origin, int piece) {
        const int tiles = (rows_ + R::MOST - 1) / R::MOST;
        for (int t = 0, m = 0; t < tiles; t++) {
            const int size = (rows_ - m + tiles - t - 1) / (tiles - t);  // tiles of almost one size
            for (int n = first; n < last; n += 4) {
                const char *far = t + 1 == tiles ? w_.row(n + piece) : nullptr;
                four_by(size, rows, n - origin, x_ + m * width_, width_, blocks_, far, w_.stride, W::BLOCK_BYTES, out_);
                give<4>(m, size, n);
            }
            m += size;
        }
    }

#if defined(PACELINE_LOOKUPS)
    void decode(int n, bf16 *out) const {
        for (int block = 0; block < blocks_; block++) {
            typename R::Part parts[R::PARTS];
            reads_.get(n, block, parts);
            for (int p = 0; p < R::PARTS; p++) _mm512_store_si512(out + block * R::BLOCK + p * R::STEP, (__m512i)parts[p]);
        }
    }
#endif
};

// y = w x for columns begin to end; put as in dots.h. All of this is compiled once for all that is done with the sums.
template <class T, class W, class Put>
inline void multiply_small(const W &w, int begin, int end, const T *x, long ldx, int rows, int k, Put &&put) {
    int top = 0;
    const Give<T> give = [&](int m, int n, int count, const Acc<T> *sums) {
        if (count == 8) return put(top + m, n, Count<8>{}, sums);
        if (count == 4) return put(top + m, n, Count<4>{}, sums);
        put(top + m, n, Count<1>{}, sums);
    };
    for (; top < rows; top += PANEL)
        SmallProduct<T, W>(w, x + top * ldx, ldx, std::min(PANEL, rows - top), k, give).run(begin, end);
}

}  // namespace paceline
