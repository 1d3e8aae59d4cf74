// Convolutions of ±1 inputs with ±1 weights: bits that differ are found by xor and counted by popcount.
//
// What is convolved is laid out as two matrices of 64-bit words with the same rows, each row one tap of the kernel and 64
// input channels: patches (rows, pixels) and weights (rows, output channels). For each pixel and output channel,
//
//     count = Σ_rows popcount(patch ^ weight)        sum of ±1 products = valid − 2 count
//
// Rows come in threes (a, b, c) that are stored as (a, b, a ^ b ^ c). With x, y the differing bits of the first two and
// s = x ^ y ^ z those of the last, which one xor of the stored rows gives, the carry m = (x & y) | ((x | y) & ~s) of adding
// x + y + z is one instruction more where there are ternary ones, and three popcounts become two:
//
//     popcount(x) + popcount(y) + popcount(z) = popcount(s) + 2 popcount(m)
//
// Zeros around the input are bits 0, so weights that are 1 there count as differing although they should not count at all.
// How many those are depends on the output channel and on which taps lie outside, and is given for each class of pixels.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

// Numbers that will be needed next: `length` bytes of each of so many channels.
struct Ahead {
    const char* start;
    std::size_t channels, step, length;
};

// What follows in a network, each step rounded: value + bias, · slope + shift (in one rounding, or in two), + added, and
// no less than 0. Null where there is no such step; a slope comes with a shift.
struct Epilogue {
    const float *bias, *slope, *shift;  // of channels
    bool one_rounding;
    const float* added;  // as `out` lies
    bool relu;
};

// Patches of a number of pixels, the output channels [first, last) of one group, and what becomes of the counts. The
// pixels lie side by side in one image or, where an image is one pixel, in different ones.
struct BinaryBlock {
    const std::uint64_t* patches;  // (rows, pixels), `stride` words from row to row, a multiple of 8; 64-byte aligned
    std::size_t stride, rows, pixels;
    const std::uint64_t* weights;  // eight channels side by side: oct i at weights + i oct_words, (rows, 8)
    std::size_t oct_words, first, last;  // first is a multiple of 8

    const float* borders;  // valid + 2 (weights that are 1 outside), (channels, classes)
    std::size_t border_stride;
    const std::uint32_t* classes;  // of the pixels, and as many more as fill 16; where plane is 1 there is only one
    bool few_classes;              // 16 at most, and border_stride is 16

    // value = (border − 2 count) · scale, with scale = full[c, p], or (alpha[c] · beta[p]) · gamma[p] as far as given
    const float *alpha, *full, *beta, *gamma;
    std::size_t plane;  // pixels of an image, which is the step between channels of `full` and of `out`
    Epilogue after;         // not with marks
    bool followed;       // whether it has any step

    float* out;                // value of channel c and pixel p at out + c plane + p; at out + p image where plane is 1
    std::size_t image;   // all output channels, of all groups
    bool past_cache;     // whether `out` is written past the cache where it is aligned
    std::uint16_t* marks;  // instead of `out`, where not null: whether value ≥ threshold, channel c and pixel p in bit
    std::size_t marks_stride;  // p % 16 of marks[c marks_stride + p / 16]; all 0 yet
    const float* thresholds;

    Ahead ahead;           // may be fetched meanwhile
    std::int32_t* counts;  // room for 32 channels of the pixels, and of as many more as fill 16; 64-byte aligned
};

struct BinaryKernel {
    const char* name;
    // The bits (x ≥ threshold) of up to 64 channels, `step` numbers apart, of pixels side by side, xor flips.
    void (*pack)(const float* x, std::size_t step, std::size_t channels, std::size_t pixels, const float* thresholds,
                 std::uint64_t flips, std::uint64_t* words);
    // The words of up to 64 channels from their marks, xor flips.
    void (*join)(const std::uint16_t* marks, std::size_t stride, std::size_t channels, std::size_t pixels,
                 std::uint64_t flips, std::uint64_t* words);
    void (*copy)(const std::uint64_t* from, std::uint64_t* to, std::size_t count);
    // The third of three rows, xor the first two.
    void (*mix)(const std::uint64_t* first, const std::uint64_t* second, std::uint64_t* third, std::size_t count);
    // Three rows of patches at once, mixed: of the words of a row of the image, those that are first, second and third from
    // `start` on, which may be below 0; 0 for those outside the row. Null where the three above do it.
    void (*three)(const std::uint64_t* row, std::ptrdiff_t start, std::size_t width, std::size_t count, std::uint64_t* to,
                  std::size_t stride);
    void (*by_pixels)(const BinaryBlock&);    // pixels side by side in registers; they are of one image
    void (*by_channels)(const BinaryBlock&);  // channels side by side in registers
};

// Each in a file of its own, compiled for its instruction set; null where the compiler has none of that name.
const BinaryKernel* binary_avx512();
const BinaryKernel* binary_avx2();
const BinaryKernel* binary_popcnt();
const BinaryKernel* binary_neon();
const BinaryKernel* binary_plain();

}  // namespace tamis
