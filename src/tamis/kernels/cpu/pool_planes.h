// Max-pooling for files that are compiled for a processor and include this one, with as many numbers side by side as it
// takes. All of it is local to the file: nothing may be shared with files that are compiled for other processors, so that
// there are no templates or inline functions but those of this file, of affine_lanes.h and of lanes.h: the linker keeps one
// copy of an inline function, and it could be one with instructions that this processor does not have.

#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

#include "affine_lanes.h"
#include "lanes.h"
#include "pool.h"

namespace tamis {
namespace {

constexpr float below_everything = -INFINITY;

template <std::size_t lanes>
TAMIS_INLINE void raise(const Pack<float, lanes>& value, Pack<float, lanes>& found) {
    found = (value > found) | (value != value) ? value : found;
}

// The largest of some rows, `step` apart, number by number. The last register may overlap the one before.
template <std::size_t lanes, bool one_rounding>
TAMIS_INLINE void raise_rows(const float* rows, std::size_t step, std::size_t kernel, std::size_t count,
                             const PlaneAffine* affine, float* result) {
    if (lanes > 1 && count < lanes) return raise_rows<1, one_rounding>(rows, step, kernel, count, affine, result);
    for (std::size_t start = 0; start < count; start += lanes) {
        const std::size_t x = start + lanes <= count ? start : count - lanes;
        Pack<float, lanes> found{}, value;
        found += below_everything;
        for (std::size_t tap = 0; tap < kernel; ++tap) {
            load<float, lanes>(rows + tap * step + x, value);
            if (affine != nullptr) apply_affine<lanes, one_rounding>(*affine, value);
            raise<lanes>(value, found);
        }
        __builtin_memcpy(result + x, &found, sizeof found);
    }
}

// Every second number, from the low halves of pairs, of which the last reaches one number further.
template <std::size_t lanes>
TAMIS_INLINE void load_even(const float* from, Pack<float, lanes>& value) {
    if constexpr (lanes == 1 || std::endian::native != std::endian::little) {
        for (std::size_t i = 0; i < lanes; ++i) __builtin_memcpy(reinterpret_cast<float*>(&value) + i, from + 2 * i, sizeof(float));
    } else {
        Pack<std::uint64_t, lanes> pairs;
        load<std::uint64_t, lanes>(from, pairs);
        Pack<std::uint32_t, lanes> low;
        convert<std::uint32_t, lanes, std::uint64_t>(pairs, low);
        __builtin_memcpy(&value, &low, sizeof value);
    }
}

// The largest of the columns of each window, `step` from window to window; registers as in `raise_rows`.
template <std::size_t lanes, bool one_rounding>
TAMIS_INLINE void raise_columns(const float* row, std::size_t step, std::size_t kernel, std::size_t dilation,
                                std::size_t count, const PlaneAffine* affine, float* result) {
    if (lanes > 1 && (count < lanes || step > 2))
        return raise_columns<1, one_rounding>(row, step, kernel, dilation, count, affine, result);
    for (std::size_t start = 0; start < count; start += lanes) {
        const std::size_t x = start + lanes <= count ? start : count - lanes;
        Pack<float, lanes> found{}, value;
        found += below_everything;
        for (std::size_t tap = 0; tap < kernel; ++tap) {
            const float* const from = row + x * step + tap * dilation;
            if (lanes == 1 || step == 1) load<float, lanes>(from, value);
            else load_even<lanes>(from, value);
            raise<lanes>(value, found);
        }
        if (affine != nullptr) apply_affine<lanes, one_rounding>(*affine, found);
        __builtin_memcpy(result + x, &found, sizeof found);
    }
}

// Rows of a window first, whole rows at a time; then what is left of each window lies in one row.
template <std::size_t lanes, bool one_rounding>
TAMIS_INLINE void pool_plane(const float* in, const Pooling& pooling, const PlaneAffine& affine, float* out, float* row) {
    const std::size_t height = pooling.size[0], width = pooling.size[1];
    // What never decreases may as well come last, when less is left. A shift of −0 could leave a zero of the other sign, and
    // a ReLU would raise a window that only padding lies in, as there can be where there is dilation.
    const bool spread = pooling.dilation[0] > 1 || pooling.dilation[1] > 1;
    const bool increases =
        !affine.sloped || (affine.slope > 0.0f && affine.slope < INFINITY && fabsf(affine.shift) < INFINITY &&
                           !(affine.shift == 0.0f && __builtin_signbitf(affine.shift)));
    const bool last = increases && !(affine.relu && spread);
    const std::size_t padding = pooling.padding[0], dilation = pooling.dilation[0], edge = pooling.padding[1];
    for (std::size_t x = 0; x < edge; ++x) row[x] = row[edge + width + x] = below_everything;
    for (std::size_t y = 0; y < pooling.out_size[0]; ++y) {
        const std::size_t top = y * pooling.stride[0];  // counted with the padding, as all rows are here
        std::size_t first = 0, last_tap = pooling.kernel[0];
        while (first < last_tap && top + first * dilation < padding) ++first;
        while (last_tap > first && top + (last_tap - 1) * dilation >= padding + height) --last_tap;
        const float* const rows = first < last_tap ? in + (top + first * dilation - padding) * width : in;
        raise_rows<lanes, one_rounding>(rows, dilation * width, last_tap - first, width, last ? nullptr : &affine, row + edge);
        raise_columns<(lanes > 1 ? lanes / 2 : 1), one_rounding>(row, pooling.stride[1], pooling.kernel[1], pooling.dilation[1],
                                                                  pooling.out_size[1], last ? &affine : nullptr,
                                                                  out + y * pooling.out_size[1]);
    }
}

template <std::size_t lanes>
void pool_any(const PoolWork& work, std::size_t plane, float* row) {
    const Pooling& pooling = work.pooling;
    const PoolPrologue& prologue = work.prologue;
    const bool sloped = prologue.slope != nullptr;
    const std::size_t channel = sloped ? plane % prologue.channels : 0;
    const PlaneAffine affine{sloped ? prologue.slope[channel] : 1.0f, sloped ? prologue.shift[channel] : 0.0f, sloped,
                             prologue.relu};
    const float* const in = work.in + plane * pooling.size[0] * pooling.size[1];
    float* const out = work.out + plane * pooling.out_size[0] * pooling.out_size[1];
    if (prologue.one_rounding) pool_plane<lanes, true>(in, pooling, affine, out, row);
    else pool_plane<lanes, false>(in, pooling, affine, out, row);
}

}  // namespace
}  // namespace tamis
