// Max-pooling of planes of floats.

#pragma once

#include <array>
#include <cstddef>

namespace tamis {

using Lengths = std::array<std::size_t, 2>;  // of rows and of columns

struct Pooling {
    Lengths size, kernel, stride, padding, dilation, out_size;
};

// The largest entry in each window, as PyTorch has it: what is not a number wins, and padding is below everything.
// Planes lie one after the other, `in` and `out` alike.
void max_pool(const float* in, std::size_t planes, const Pooling& pooling, float* out, std::size_t threads);

}  // namespace tamis
