// Binary layers one word at a time, for files that say how the bits of a word are counted (`ones`) and include this one.
// All of it is local to the file: each is compiled for another processor.

#pragma once

#include <math.h>

#include "binary.h"

namespace tamis {
namespace {

float followed(const Epilogue& after, std::size_t channel, std::size_t place, float value) {
    if (after.bias != nullptr) value += after.bias[channel];
    if (after.slope != nullptr) {
        const float slope = after.slope[channel], shift = after.shift[channel];
        value = after.one_rounding ? fmaf(value, slope, shift) : value * slope + shift;
    }
    if (after.added != nullptr) value += after.added[place];
    return after.relu && value < 0.0f ? 0.0f : value;  // what is not a number stays
}

// What becomes of one count.
void finish(const BinaryBlock& block, std::size_t channel, std::size_t pixel, std::int32_t count) {
    const std::size_t at = block.plane == 1 ? 0 : pixel;  // pixels of different images share what belongs to their place
    const float border = block.borders[channel * block.border_stride + (block.plane == 1 ? 0 : block.classes[at])];
    const float sum = border - 2.0f * static_cast<float>(count);
    float scale;
    if (block.full != nullptr) {
        scale = block.full[channel * block.plane + at];
    } else {
        scale = block.alpha[channel];
        if (block.beta != nullptr) scale *= block.beta[at];
        if (block.gamma != nullptr) scale *= block.gamma[at];
    }
    const float value = sum * scale;
    if (block.marks == nullptr) {
        const std::size_t place = block.plane == 1 ? pixel * block.image + channel : channel * block.plane + pixel;
        block.out[place] = block.followed ? followed(block.after, channel, place, value) : value;
        return;
    }
    std::uint16_t& marks = block.marks[channel * block.marks_stride + pixel / 16];
    marks = static_cast<std::uint16_t>(marks | (value >= block.thresholds[channel] ? 1u << pixel % 16 : 0u));
}

void join(const std::uint16_t* marks, std::size_t stride, std::size_t channels, std::size_t pixels, std::uint64_t flips,
          std::uint64_t* words) {
    for (std::size_t p = 0; p < pixels; ++p) words[p] = flips;
    for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t p = 0; p < pixels; ++p)
            words[p] ^= static_cast<std::uint64_t>(marks[c * stride + p / 16] >> p % 16 & 1) << c;
}

void copy(const std::uint64_t* from, std::uint64_t* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

void mix(const std::uint64_t* first, const std::uint64_t* second, std::uint64_t* third, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) third[i] ^= first[i] ^ second[i];
}

// Two channels and two pixels: each word that is read is used twice.
[[maybe_unused]] void multiply(const BinaryBlock& block) {
    for (std::size_t channel = block.first; channel < block.last; channel += 2) {
        const std::uint64_t* const weights = block.weights + channel / 8 * block.oct_words + channel % 8;
        for (std::size_t pixel = 0; pixel < block.pixels; pixel += 2) {
            const std::uint64_t* const patches = block.patches + pixel;
            std::int32_t counts[2][2] = {};
            for (std::size_t row = 0; row < block.rows; row += 3) {
                const std::uint64_t *const a = patches + row * block.stride, *const w = weights + row * 8;
                for (int c = 0; c < 2; ++c)
                    for (int p = 0; p < 2; ++p) {
                        const std::uint64_t x = w[c] ^ a[p], y = w[8 + c] ^ a[block.stride + p];
                        const std::uint64_t sum = w[16 + c] ^ a[2 * block.stride + p];
                        counts[c][p] += ones(sum) + 2 * ones((x & y) | ((x | y) & ~sum));
                    }
            }
            for (std::size_t c = 0; c < 2 && channel + c < block.last; ++c)
                for (std::size_t p = 0; p < 2 && pixel + p < block.pixels; ++p)
                    finish(block, channel + c, pixel + p, counts[c][p]);
        }
    }
}

void pack(const float* x, std::size_t step, std::size_t channels, std::size_t pixels, const float* thresholds,
          std::uint64_t flips, std::uint64_t* words) {
    for (std::size_t p = 0; p < pixels; ++p) words[p] = flips;
    for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t p = 0; p < pixels; ++p)
            words[p] ^= static_cast<std::uint64_t>(x[c * step + p] >= thresholds[c]) << c;
}

}  // namespace
}  // namespace tamis
