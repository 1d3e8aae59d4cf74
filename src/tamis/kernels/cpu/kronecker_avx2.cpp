// Kronecker-sparse products with AVX2 and FMA: eight lanes, twelve sums in registers. Nothing here may be shared with other
// files, which are compiled for other processors: no templates or inline functions but those of this file.

#include "kronecker.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

namespace tamis {
namespace {

#define TAMIS_INLINE static __attribute__((always_inline)) inline

constexpr std::size_t lanes = 8;

// All ones in the first lanes.
TAMIS_INLINE __m256i first(std::size_t count) {
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count < lanes ? static_cast<int>(count) : 8), places);
}

TAMIS_INLINE __m256 load(const float* from, std::size_t width) {
    return width >= lanes ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, first(width));
}

// Masked stores are slow on some processors: a few lanes go by way of memory.
TAMIS_INLINE void store(float* to, __m256 numbers, std::size_t width) {
    if (width >= lanes) return _mm256_storeu_ps(to, numbers);
    alignas(32) float all[lanes];
    _mm256_store_ps(all, numbers);
    for (std::size_t lane = 0; lane < width; ++lane) to[lane] = all[lane];
}

// A group of numbers again and again: 1, 2, 4 or 8 of them, or, for 0, any number, by a permutation.
template <int group>
TAMIS_INLINE __m256 repeated(const float* from, __m256i mask, __m256i places) {
    if constexpr (group == 1) return _mm256_broadcast_ss(from);
    if constexpr (group == 2) {
        long long both;
        __builtin_memcpy(&both, from, sizeof both);
        return _mm256_castsi256_ps(_mm256_set1_epi64x(both));
    }
    if constexpr (group == 4) {
        const __m128 four = _mm_loadu_ps(from);
        return _mm256_insertf128_ps(_mm256_castps128_ps256(four), four, 1);
    }
    if constexpr (group == 8) return _mm256_loadu_ps(from);
    return _mm256_permutevar8x32_ps(_mm256_maskload_ps(from, mask), places);
}

template <int group, int count, int rows, bool whole>
TAMIS_INLINE void tile(const KroneckerPanel& panel, const float* spread, float* out, __m256i places) {
    const __m256i mask = first(panel.group);
    const auto width = [&](int v) { return whole ? lanes : v == count - 1 ? panel.last_width : panel.width; };
    const float* vectors = panel.vectors;
    const std::ptrdiff_t row = panel.spread_row, step = panel.spread_step, gap = panel.vectors_gap;
    // All sums stay in registers for the whole depth: rows · count of them, with `count` vectors and one spread number, are
    // about as many as there are. Unrolling is asked for, since an array that is indexed by a variable would be in memory.
    __m256 sums[rows][count];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < count; ++v)
            sums[r][v] = _mm256_setzero_ps();
    for (std::size_t t = 0; t < panel.depth; ++t) {
        __m256 those[count];
#pragma GCC unroll 2
        for (int v = 0; v < count; ++v) those[v] = load(vectors + v * gap, width(v));
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const __m256 here = repeated<group>(spread + r * row, mask, places);
#pragma GCC unroll 2
            for (int v = 0; v < count; ++v) sums[r][v] = _mm256_fmadd_ps(here, those[v], sums[r][v]);
        }
        spread += step;
        vectors += panel.vectors_step;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < count; ++v) {
            float* to = out + r * panel.out_row + v * panel.out_gap;
            // A deep product comes in parts, each added to what those before left in memory.
            if (panel.add) sums[r][v] = _mm256_add_ps(load(to, width(v)), sums[r][v]);
            store(to, sums[r][v], width(v));
        }
}

template <int group, int count, int most, int half, bool whole>
TAMIS_INLINE void tiles(const KroneckerPanel& panel) {
    alignas(32) std::int32_t remainders[lanes];
    for (std::size_t lane = 0; lane < lanes; ++lane) remainders[lane] = static_cast<std::int32_t>(lane % panel.group);
    const __m256i places = _mm256_load_si256(reinterpret_cast<const __m256i*>(remainders));
    std::size_t r = 0;
    const auto spread = [&] { return panel.spread + static_cast<std::ptrdiff_t>(r) * panel.spread_row; };
    const auto out = [&] { return panel.out + static_cast<std::ptrdiff_t>(r) * panel.out_row; };
    for (; r + most <= panel.rows; r += most) tile<group, count, most, whole>(panel, spread(), out(), places);
    for (; r + half <= panel.rows; r += half) tile<group, count, half, whole>(panel, spread(), out(), places);
    for (; r < panel.rows; ++r) tile<group, count, 1, whole>(panel, spread(), out(), places);
}

template <int group>
void multiply_by(const KroneckerPanel& panel) {
    const bool whole = panel.width >= lanes && panel.last_width >= lanes;
    if (panel.count == 2) return whole ? tiles<group, 2, 6, 2, true>(panel) : tiles<group, 2, 6, 2, false>(panel);
    return whole ? tiles<group, 1, 8, 2, true>(panel) : tiles<group, 1, 8, 2, false>(panel);
}

void multiply(const KroneckerPanel& panel) {
    switch (panel.group) {
        case 1: return multiply_by<1>(panel);
        case 2: return multiply_by<2>(panel);
        case 4: return multiply_by<4>(panel);
        case 8: return multiply_by<8>(panel);
        default: return multiply_by<0>(panel);
    }
}

// For blocks so small that several fit a register: each number finds its factors by a permutation within the register, and
// nothing is gathered from memory.
template <int rows>
TAMIS_INLINE void mix_rows(const KroneckerMixture& mixture, const float* in, float* out) {
    const float* weights = mixture.weights;
    for (std::size_t v = 0; v < mixture.count; ++v) {
        const bool last = v + 1 == mixture.count;
        const std::size_t read = last ? mixture.in_last : mixture.in_gap;
        const std::size_t written = last ? mixture.out_last : mixture.out_gap;
        __m256 numbers[rows], sums[rows];
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            numbers[r] = load(in + r * mixture.in_row, read);
            sums[r] = _mm256_setzero_ps();
        }
        for (std::size_t t = 0; t < mixture.depth; ++t) {
            const __m256i places = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mixture.places + t * lanes));
            const __m256 weight = _mm256_loadu_ps(weights);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r)
                sums[r] = _mm256_fmadd_ps(_mm256_permutevar8x32_ps(numbers[r], places), weight, sums[r]);
            weights += lanes;
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) store(out + r * mixture.out_row, sums[r], written);
        in += mixture.in_gap;
        out += mixture.out_gap;
    }
}

void mix(const KroneckerMixture& mixture) {
    std::size_t r = 0;
    const auto in = [&] { return mixture.in + static_cast<std::ptrdiff_t>(r) * mixture.in_row; };
    const auto out = [&] { return mixture.out + static_cast<std::ptrdiff_t>(r) * mixture.out_row; };
    for (; r + 4 <= mixture.rows; r += 4) mix_rows<4>(mixture, in(), out());
    for (; r < mixture.rows; ++r) mix_rows<1>(mixture, in(), out());
}

// In pairs, a fixed order for every depth.
TAMIS_INLINE float added_up(__m256 numbers) {
    __m128 sums = _mm_add_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps(numbers, 1));
    sums = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
    return _mm_cvtss_f32(_mm_add_ss(sums, _mm_shuffle_ps(sums, sums, 1)));
}

template <int rows, int columns>
TAMIS_INLINE void dots_tile(const KroneckerDots& dots, const float* left, const float* right, float* out) {
    __m256 sums[rows][columns];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < columns; ++v) sums[r][v] = _mm256_setzero_ps();
    for (std::size_t z = 0; z < dots.depth; z += lanes) {
        const std::size_t width = dots.depth - z;
        __m256 those[columns];
#pragma GCC unroll 2
        for (int v = 0; v < columns; ++v) those[v] = load(right + v * dots.right_row + z, width);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const __m256 here = load(left + r * dots.left_row + z, width);
#pragma GCC unroll 2
            for (int v = 0; v < columns; ++v) sums[r][v] = _mm256_fmadd_ps(here, those[v], sums[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < columns; ++v) {
            float& to = out[r * dots.out_row + v * dots.out_column];
            to = (dots.add ? to : 0.0f) + added_up(sums[r][v]);
        }
}

template <int columns>
TAMIS_INLINE void dots_columns(const KroneckerDots& dots, std::size_t column) {
    const float* right = dots.right + static_cast<std::ptrdiff_t>(column) * dots.right_row;
    float* out = dots.out + static_cast<std::ptrdiff_t>(column) * dots.out_column;
    std::size_t r = 0;
    for (; r + 4 <= dots.rows; r += 4)
        dots_tile<4, columns>(dots, dots.left + static_cast<std::ptrdiff_t>(r) * dots.left_row, right,
                              out + static_cast<std::ptrdiff_t>(r) * dots.out_row);
    for (; r < dots.rows; ++r)
        dots_tile<1, columns>(dots, dots.left + static_cast<std::ptrdiff_t>(r) * dots.left_row, right,
                              out + static_cast<std::ptrdiff_t>(r) * dots.out_row);
}

void dots(const KroneckerDots& given) {
    std::size_t column = 0;
    for (; column + 2 <= given.columns; column += 2) dots_columns<2>(given, column);
    for (; column < given.columns; ++column) dots_columns<1>(given, column);
}

template <int depth>
TAMIS_INLINE void mixed_sum_of(const KroneckerMixedSum& sum, std::size_t v, std::size_t start, std::size_t read,
                               std::size_t other_read) {
    __m256i places[depth];
    __m256 sums[depth];
    float* out = sum.out + (v * sum.depth + start) * lanes;
#pragma GCC unroll 2
    for (int t = 0; t < depth; ++t) {
        places[t] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum.places + (start + t) * lanes));
        sums[t] = _mm256_setzero_ps();
    }
    const float *in = sum.in + v * sum.in_gap, *other = sum.other + v * sum.other_gap;
    for (std::size_t z = 0; z < sum.rows; ++z, in += sum.in_row, other += sum.other_row) {
        const __m256 here = load(in, read), there = load(other, other_read);
#pragma GCC unroll 2
        for (int t = 0; t < depth; ++t)
            sums[t] = _mm256_fmadd_ps(here, _mm256_permutevar8x32_ps(there, places[t]), sums[t]);
    }
#pragma GCC unroll 2
    for (int t = 0; t < depth; ++t) {
        if (sum.add) sums[t] = _mm256_add_ps(_mm256_loadu_ps(out + t * lanes), sums[t]);
        _mm256_storeu_ps(out + t * lanes, sums[t]);
    }
}

void mixed_sum(const KroneckerMixedSum& sum) {
    for (std::size_t v = 0; v < sum.count; ++v) {
        const bool last = v + 1 == sum.count;
        const std::size_t read = last ? sum.in_last : sum.in_gap, other_read = last ? sum.other_last : sum.other_gap;
        std::size_t t = 0;
        for (; t + 2 <= sum.depth; t += 2) mixed_sum_of<2>(sum, v, t, read, other_read);
        for (; t < sum.depth; ++t) mixed_sum_of<1>(sum, v, t, read, other_read);
    }
}

constexpr KroneckerKernel kernel{"avx2", lanes, 2, &multiply, &mix, &dots, &mixed_sum, nullptr};

}  // namespace

const KroneckerKernel* kronecker_avx2() { return &kernel; }

}  // namespace tamis

#else

namespace tamis {
const KroneckerKernel* kronecker_avx2() { return nullptr; }
}  // namespace tamis

#endif
