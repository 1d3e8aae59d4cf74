// A few neurons at a time, from the first feature of the block to the last: their errors so far stay in the first-level
// cache, and each z_t is added up in registers. The same code is compiled for several instruction sets, with as many
// numbers side by side as one of their registers holds, and the widest of them is run.
//
// Products and sums are fused (rounded once) in the sum z_t wherever the processor can, and nowhere else: the file is
// compiled with -ffp-contract=fast, and the only other product followed by a sum is kept apart from it (`stretch`).

#include "feedback.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "lanes.h"

namespace tamis {
namespace {

// Up to here, comparing with every middle takes less time than searching.
constexpr std::size_t most_compared = 16;

template <typename From, typename To>
TAMIS_INLINE void copy_bits(const From& from, To& to) {
    static_assert(sizeof from == sizeof to);
    std::memcpy(&to, &from, sizeof to);
}

template <typename Number, std::size_t lanes>
TAMIS_INLINE void load(Pack<Number, lanes>& pack, const Number* from) {
    std::memcpy(&pack, from, sizeof pack);
}

template <typename Number, std::size_t lanes>
TAMIS_INLINE void store(const Pack<Number, lanes>& pack, Number* to) {
    std::memcpy(to, &pack, sizeof pack);
}

// The nearest levels, before they are scaled, by comparing with every middle. What is not a number gets the last one,
// as in torch.bucketize: hence "not at least" instead of "below".
template <std::size_t lanes>
TAMIS_INLINE void compare(const Levels& grid, const Pack<double, lanes>& numbers, Pack<std::int32_t, lanes>& indices,
                          Pack<double, lanes>& levels) {
    constexpr Pack<double, lanes> zeros{};  // a number minus this is the number in every place
    Pack<double, lanes> counts = zeros;     // as wide as what decides on them
    levels = grid.levels[0] - zeros;
    double count = 0;
    for (std::size_t i = 1; i < grid.count; ++i) {
        count += 1;
        const auto stays = grid.middles[i - 1] - zeros >= numbers;
        counts = stays ? counts : count - zeros;
        levels = stays ? levels : grid.levels[i] - zeros;
    }
    convert<std::int32_t, lanes, double>(counts, indices);
}

// The same by halving the list of middles, for all numbers alike and without a branch.
template <std::size_t lanes>
TAMIS_INLINE void search(const Levels& grid, const Pack<double, lanes>& numbers, Pack<std::int32_t, lanes>& indices,
                         Pack<double, lanes>& levels) {
    double number[lanes], level[lanes];
    std::int32_t found[lanes] = {};
    store<double, lanes>(numbers, number);
    for (auto left = static_cast<std::int32_t>(grid.count - 1); left > 0;) {
        const std::int32_t half = left - left / 2;
        for (std::size_t k = 0; k < lanes; ++k) found[k] += grid.middles[found[k] + half - 1] >= number[k] ? 0 : half;
        left -= half;
    }
    for (std::size_t k = 0; k < lanes; ++k) level[k] = grid.levels[found[k]];
    load<std::int32_t, lanes>(indices, found);
    load<double, lanes>(levels, level);
}

// The bits of finite numbers, rounded to numbers of 16 bits; halfway, to the even one.
template <typename Bits>
TAMIS_INLINE void to_bfloat16(Bits& bits) {
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & -0x10000;
}

template <std::size_t lanes>
TAMIS_INLINE void to_float16(Pack<std::int32_t, lanes>& bits) {
    using Bits = Pack<std::int32_t, lanes>;
    const Bits magnitude = bits & 0x7fffffff, sign = bits ^ magnitude;
    const Bits normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & -0x2000;
    // Below 2^-14 all numbers of 16 bits are 2^-24 apart, as numbers of 32 bits are from 0.5 to 1.
    Pack<float, lanes> shifted;
    Bits subnormal;
    copy_bits(magnitude, shifted);
    shifted = (shifted + 0.5f) - 0.5f;
    copy_bits(shifted, subnormal);
    const Bits finite = magnitude < Bits{} + std::bit_cast<std::int32_t>(0x1p-14f) ? subnormal : normal;
    const Bits largest = Bits{} + std::bit_cast<std::int32_t>(65504.0f);
    bits = sign | (finite > largest ? Bits{} + 0x7f800000 : finite);
}

// levels * scales, as they are stored.
template <std::size_t lanes>
TAMIS_INLINE void stretch(Pack<double, lanes>& levels, const Pack<double, lanes>& scales, Rounding rounding) {
    Pack<double, lanes> product = levels * scales;
    if (rounding == Rounding::to_float64) {
#if defined(__GNUC__) || defined(__clang__)
        __asm__("" : "+m"(product));  // a number that has been in memory is not fused with what follows
#endif
        levels = product;
        return;
    }
    Pack<float, lanes> rounded;
    convert<float, lanes, double>(product, rounded);
    if (rounding != Rounding::to_float32) {
        Pack<std::int32_t, lanes> bits;
        copy_bits(rounded, bits);
        if (rounding == Rounding::to_float16) to_float16<lanes>(bits);
        else to_bfloat16(bits);
        copy_bits(bits, rounded);
    }
    convert<double, lanes, float>(rounded, levels);
}

// A few columns, `count` of them, to where they lie side by side; what is left of `width` is zero.
template <std::size_t width, typename From, typename To>
TAMIS_INLINE void gather(const From* from, const Strides& strides, std::size_t rows, std::size_t count,
                         To (*to)[width]) {
    if (count < width) std::fill_n(to[0], rows * width, To{});
    if (strides.column == 1)
        for (std::size_t row = 0; row < rows; ++row) std::copy_n(from + row * strides.row, count, to[row]);
    else
        for (std::size_t column = 0; column < count; ++column)
            for (std::size_t row = 0; row < rows; ++row)
                to[row][column] = from[row * strides.row + column * strides.column];
}

// Index 0 and the value 0 where a weight is not kept, whatever the level is: an infinite one as well.
template <std::size_t lanes>
TAMIS_INLINE void prune(const Pack<std::int32_t, lanes>& kept, Pack<std::int32_t, lanes>& indices,
                        Pack<double, lanes>& levels) {
    constexpr Pack<std::int32_t, lanes> nothing{};
    constexpr Pack<double, lanes> zeros{};
    Pack<double, lanes> wide;  // as wide as what it decides on
    convert<double, lanes, std::int32_t>(kept, wide);
    indices = kept != nothing ? indices : nothing;
    levels = wide != zeros ? levels : zeros;
}

// `count` neurons of one problem, at most `packs` times `lanes`.
template <std::size_t lanes, std::size_t packs>
TAMIS_INLINE void choose(const FeedbackBlock& block, std::size_t problem, std::size_t first, std::size_t count) {
    constexpr std::size_t width = packs * lanes;
    const bool masked = block.keep.entries != nullptr;
    alignas(64) double starts[most_block_features][width], errors[most_block_features][width], scales[width];
    alignas(64) std::int32_t indices[most_block_features][width];
    gather<width>(block.start.at(problem, 0, first), block.start.strides, block.features, count, starts);
    gather<width>(block.target.at(problem, 0, first), block.target.strides, block.features, count, errors);
    if (masked) gather<width>(block.keep.at(problem, 0, first), block.keep.strides, block.features, count, indices);
    std::fill_n(scales, width, 1.0);
    std::copy_n(block.scales + problem * block.neurons + first, count, scales);
    for (std::size_t t = 0; t < block.features; ++t) {
        Pack<double, lanes> z[packs];
        for (std::size_t i = 0; i < packs; ++i) load<double, lanes>(z[i], starts[t] + i * lanes);
        const double* const coupling = block.coupling.at(problem, t, 0);
        for (std::size_t j = 0; j < t; ++j)
            for (std::size_t i = 0; i < packs; ++i) {
                Pack<double, lanes> error;
                load<double, lanes>(error, errors[j] + i * lanes);
                z[i] += coupling[j] * error;
            }
        for (std::size_t i = 0; i < packs; ++i) {
            Pack<double, lanes> scale, level, error;
            Pack<std::int32_t, lanes> index;
            load<double, lanes>(scale, scales + i * lanes);
            const Pack<double, lanes> number = z[i] / scale;
            if (block.levels.count <= most_compared) compare<lanes>(block.levels, number, index, level);
            else search<lanes>(block.levels, number, index, level);
            stretch<lanes>(level, scale, block.levels.rounding);
            if (masked) {
                Pack<std::int32_t, lanes> kept;
                load<std::int32_t, lanes>(kept, indices[t] + i * lanes);  // still the mask
                prune<lanes>(kept, index, level);
            }
            load<double, lanes>(error, errors[t] + i * lanes);  // still the target
            error -= level;
            store<double, lanes>(error, errors[t] + i * lanes);
            store<std::int32_t, lanes>(index, indices[t] + i * lanes);
        }
    }
    for (std::size_t t = 0; t < block.features; ++t) {
        std::copy_n(errors[t], count, block.errors.at(problem, t, first));
        std::copy_n(indices[t], count, block.indices.at(problem, t, first));
    }
}

template <std::size_t lanes>
TAMIS_INLINE void choose_all(const FeedbackBlock& block) {
    constexpr std::size_t packs = 4;  // sums that do not wait for each other
    for (std::size_t problem = 0; problem < block.problems; ++problem) {
        std::size_t first = 0;
        for (; block.neurons - first >= packs * lanes; first += packs * lanes)
            choose<lanes, packs>(block, problem, first, packs * lanes);
        for (; first < block.neurons; first += lanes)
            choose<lanes, 1>(block, problem, first, std::min(lanes, block.neurons - first));
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TAMIS_X86 1
__attribute__((target("avx512f,avx512dq,avx512vl,fma"))) void choose_avx512(const FeedbackBlock& block) {
    choose_all<8>(block);
}

__attribute__((target("avx2,fma"))) void choose_avx2(const FeedbackBlock& block) { choose_all<4>(block); }
#endif

void choose_portable(const FeedbackBlock& block) {
#if defined(__GNUC__) || defined(__clang__)
    choose_all<2>(block);
#else
    choose_all<1>(block);
#endif
}

}  // namespace

void feedback(const FeedbackBlock& block) {
    if (block.features > most_block_features)
        throw std::invalid_argument("feedback has more features than fit one block");
#ifdef TAMIS_X86
    const bool fma = __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (fma && avx512) return choose_avx512(block);
    if (fma && __builtin_cpu_supports("avx2")) return choose_avx2(block);
#endif
    choose_portable(block);
}

}  // namespace tamis
