// Max-pooling of planes of floats.

#pragma once

#include <cstddef>

namespace tamis {

// Two lengths each: of rows and of columns.
struct Pooling {
    std::size_t size[2], kernel[2], stride[2], padding[2], dilation[2], out_size[2];
};

// What happens to every entry before it is pooled: x · slope + shift of its channel, in one rounding or in two, and no less
// than 0. Planes are of channels 0, 1, …, again and again. Null where there is no slope and shift.
struct PoolPrologue {
    const float *slope, *shift;
    std::size_t channels;
    bool one_rounding, relu;
};

struct PoolWork {
    const float* in;  // planes, one after the other
    const Pooling& pooling;
    const PoolPrologue& prologue;
    float* out;  // likewise
};

// Pools one plane; `row` has room for one of its rows with the padding, and for one number more, which `load_even` reads.
// Each is in a file of its own, compiled for its instruction set, and null where the compiler has none of that name.
using PoolPlane = void (*)(const PoolWork& work, std::size_t plane, float* row);
PoolPlane pool_avx512();
PoolPlane pool_avx2();

// The largest entry in each window, as PyTorch has it: what is not a number wins, and padding is below everything.
// Planes lie one after the other, `in` and `out` alike.
void max_pool(const float* in, std::size_t planes, const Pooling& pooling, const PoolPrologue& prologue, float* out,
              std::size_t threads);

}  // namespace tamis
