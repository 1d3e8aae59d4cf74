// x · slope + shift, with a slope and a shift for each channel: a batch normalization in evaluation.

#pragma once

#include <cstddef>

namespace tamis {

// Planes are of channels 0, 1, …, again and again, and lie one after the other, `in` and `out` alike.
struct AffineWork {
    const float* in;
    const float *slope, *shift;  // of each channel
    std::size_t channels, entries;  // entries of a plane
    bool one_rounding;  // whether the product is added to before it is rounded
    float* out;
};

// Computes one plane. Each is in a file of its own, compiled for its instruction set, and null where the compiler has none
// of that name.
using AffinePlane = void (*)(const AffineWork& work, std::size_t plane);
AffinePlane affine_avx512();
AffinePlane affine_avx2();

// Rounded as PyTorch rounds it, in one rounding or in two: every number by itself, so that neither the number of threads
// nor the processor changes a bit.
void affine(const AffineWork& work, std::size_t planes, std::size_t threads);

}  // namespace tamis
