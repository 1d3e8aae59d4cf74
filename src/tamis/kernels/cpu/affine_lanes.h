// x · slope + shift for files that are compiled for a processor and include this one, with as many numbers side by side as
// it takes. All of it is local to the file, as in pool_planes.h and for the same reason.

#pragma once

#include <math.h>

#include "affine.h"
#include "lanes.h"

namespace tamis {
namespace {

// What happens to the entries of one plane.
struct PlaneAffine {
    float slope, shift;
    bool sloped, relu;
};

template <typename Number, std::size_t lanes>
TAMIS_INLINE void load(const void* from, Pack<Number, lanes>& pack) {
    __builtin_memcpy(&pack, from, sizeof pack);
}

// Files that include this are compiled with -ffp-contract=off: else the compiler would fuse the two roundings into one on
// processors that can, and the result would depend on the processor. Where one rounding is wanted, fmaf says so, and
// becomes one instruction for a whole register where there is one.
template <std::size_t lanes, bool one_rounding>
TAMIS_INLINE void apply_affine(const PlaneAffine& affine, Pack<float, lanes>& value) {
    if (affine.sloped) {
        if constexpr (!one_rounding) value = value * affine.slope + affine.shift;
        else if constexpr (lanes == 1) value = fmaf(value, affine.slope, affine.shift);
        else
            for (std::size_t i = 0; i < lanes; ++i) value[i] = fmaf(value[i], affine.slope, affine.shift);
    }
    const Pack<float, lanes> zero{};
    if (affine.relu) value = value < zero ? zero : value;  // what is not a number stays, as in torch.relu
}

// The last register may overlap the one before: to compute a few numbers twice is faster than a loop of single ones. That
// needs `in` and `out` to be different memory.
template <std::size_t lanes, bool one_rounding>
TAMIS_INLINE void affine_row(const float* in, std::size_t count, const PlaneAffine& affine, float* out) {
    if (lanes > 1 && count < lanes) return affine_row<1, one_rounding>(in, count, affine, out);
    for (std::size_t start = 0; start < count; start += lanes) {
        const std::size_t x = start + lanes <= count ? start : count - lanes;
        Pack<float, lanes> value;
        load<float, lanes>(in + x, value);
        apply_affine<lanes, one_rounding>(affine, value);
        __builtin_memcpy(out + x, &value, sizeof value);
    }
}

template <std::size_t lanes>
void affine_any(const AffineWork& work, std::size_t plane) {
    const std::size_t channel = plane % work.channels, start = plane * work.entries;
    const PlaneAffine affine{work.slope[channel], work.shift[channel], true, false};
    if (work.one_rounding) affine_row<lanes, true>(work.in + start, work.entries, affine, work.out + start);
    else affine_row<lanes, false>(work.in + start, work.entries, affine, work.out + start);
}

}  // namespace
}  // namespace tamis
