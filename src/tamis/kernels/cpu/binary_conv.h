// A convolution of ±1 inputs with ±1 weights, from numbers or packed bits to numbers or packed bits. The layouts are
// described in tamis/kernels/binary.py, the arithmetic in binary.h.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "binary.h"

namespace tamis {

struct BinaryShape {
    std::size_t outputs, channels;  // of all groups
    std::size_t height, width, kernel_height, kernel_width, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
    std::size_t groups;
};

// What a call reads and writes. Lengths are numbers of entries, and are compared with what the shape asks for.
template <typename Entry>
struct Part {
    Entry* entries = nullptr;
    std::size_t length = 0;
};

struct BinaryCall {
    std::size_t batch;
    Part<const float> x;  // numbers with thresholds and flips, or bits
    Part<const float> thresholds;
    Part<const std::uint8_t> flips;
    Part<const std::uint64_t> bits;
    Part<const std::uint64_t> weights;
    Part<const float> alpha, full, beta, gamma;  // alpha; full; alpha, beta (pixels); alpha, beta (rows), gamma (columns)
    Part<float> out;                             // numbers, or bits with thresholds and flips
    Part<std::uint64_t> out_bits;
    Part<const float> out_thresholds;
    Part<const std::uint8_t> out_flips;
    std::size_t out_groups;
    Part<const float> bias, slope, shift, added;  // what follows, as in Epilogue of binary.h: with numbers out only
    bool one_rounding, relu;
};

// All that depends on the shape alone. Throws std::invalid_argument where it cannot be run.
class BinaryPlan {
public:
    explicit BinaryPlan(const BinaryShape& shape);

    // Throws std::invalid_argument unless all lengths are right.
    void run(const BinaryCall& call, const BinaryKernel& kernel, std::size_t threads) const;

private:
    struct Frame;
    struct Range {
        std::size_t first, last;
    };

    void check(const BinaryCall& call) const;
    void unpack_ones(const std::uint64_t* words, std::uint32_t* ones) const;
    void fill_borders(const std::uint64_t* weights, float* borders) const;
    void fill_patches(const BinaryKernel& kernel, const std::uint64_t* planes, std::size_t first, std::size_t last,
                      std::uint64_t* patches, std::size_t stride) const;
    void fill_threes(const BinaryKernel& kernel, const std::uint64_t* planes, std::size_t first, std::size_t last,
                     std::uint64_t* patches, std::size_t stride) const;
    Range rows_under(std::size_t first, std::size_t last) const;
    void pack_rows(const Frame& frame, const float* image, std::size_t first, std::size_t last,
                   std::uint64_t* planes) const;
    void run_pixels(const Frame& frame, std::size_t image, std::size_t last_image, std::size_t first,
                    std::size_t last) const;
    void run_images(const Frame& frame, std::size_t first, std::size_t last, std::size_t first_channel,
                    std::size_t last_channel) const;
    void join_marks(const Frame& frame, const std::uint16_t* marks, std::size_t stride, std::size_t image,
                    std::size_t pixel, std::size_t pixels, std::size_t first, std::size_t last) const;
    BinaryBlock block_of(const Frame& frame, std::size_t group, std::size_t image, std::size_t pixel) const;

    BinaryShape shape_;
    std::size_t each_, of_group_, words_, taps_, rows_, octs_, oct_words_;  // rows_: of patches, a multiple of 3
    std::size_t taps_in_word_;  // whose counts of ones share a word
    std::size_t out_height_, out_width_, plane_, in_plane_, image_words_;
    // Pixels with the same taps inside the image are of one class.
    struct BorderClass {
        std::size_t valid;                 // products that count
        std::vector<std::size_t> outside;  // the other taps
    };
    std::vector<BorderClass> border_classes_;
    std::vector<std::uint32_t> classes_;  // of every pixel, and sixteen more
    std::size_t border_stride_;
};

// Bits of numbers (batch, channels, plane), as words (batch, groups, words, plane).
void binary_pack(const Part<const float>& x, std::size_t batch, std::size_t channels, std::size_t plane, std::size_t groups,
                 const Part<const float>& thresholds, const Part<const std::uint8_t>& flips,
                 const Part<std::uint64_t>& bits, const BinaryKernel& kernel, std::size_t threads);

// The kernels that this processor can run, the fastest first.
std::vector<const BinaryKernel*> binary_kernels();

}  // namespace tamis
