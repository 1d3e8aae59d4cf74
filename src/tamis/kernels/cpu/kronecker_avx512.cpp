// Kronecker-sparse products with AVX-512: sixteen lanes, 24 sums in registers. Nothing here may be shared with other files,
// which are compiled for other processors: no templates or inline functions but those of this file.

#include "kronecker.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)

#include <immintrin.h>

namespace tamis {
namespace {

#define TAMIS_INLINE static __attribute__((always_inline)) inline

constexpr std::size_t lanes = 16;

TAMIS_INLINE __mmask16 first(std::size_t count) {
    return count >= lanes ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << count) - 1);
}

// A group of numbers again and again: 1, 2, 4, 8 or 16 of them, or, for 0, any number, by a permutation.
template <int group>
TAMIS_INLINE __m512 repeated(const float* from, __mmask16 mask, __m512i places) {
    if constexpr (group == 1) return _mm512_set1_ps(*from);
    if constexpr (group == 2) {
        long long both;
        __builtin_memcpy(&both, from, sizeof both);
        return _mm512_castsi512_ps(_mm512_set1_epi64(both));
    }
    if constexpr (group == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(from));
    if constexpr (group == 8) return _mm512_broadcast_f32x8(_mm256_loadu_ps(from));
    if constexpr (group == 16) return _mm512_loadu_ps(from);
    return _mm512_permutexvar_ps(places, _mm512_maskz_loadu_ps(mask, from));
}

template <int group, int count, int rows>
TAMIS_INLINE void tile(const KroneckerPanel& panel, const float* spread, float* out, __m512i places) {
    const __mmask16 mask = first(panel.group);
    __mmask16 masks[count];
    for (int v = 0; v < count; ++v) masks[v] = first(v == count - 1 ? panel.last_width : panel.width);
    const float* vectors = panel.vectors;
    const std::ptrdiff_t row = panel.spread_row, step = panel.spread_step, gap = panel.vectors_gap;
    // All sums stay in registers for the whole depth: rows · count of them, with `count` vectors and one spread number, are
    // about as many as there are. Unrolling is asked for, since an array that is indexed by a variable would be in memory.
    __m512 sums[rows][count];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < count; ++v)
            sums[r][v] = _mm512_setzero_ps();
    for (std::size_t t = 0; t < panel.depth; ++t) {
        __m512 those[count];
#pragma GCC unroll 4
        for (int v = 0; v < count; ++v) those[v] = _mm512_maskz_loadu_ps(masks[v], vectors + v * gap);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const __m512 here = repeated<group>(spread + r * row, mask, places);
#pragma GCC unroll 4
            for (int v = 0; v < count; ++v) sums[r][v] = _mm512_fmadd_ps(here, those[v], sums[r][v]);
        }
        spread += step;
        vectors += panel.vectors_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < count; ++v) {
            float* to = out + r * panel.out_row + v * panel.out_gap;
            // A deep product comes in parts, each added to what those before left in memory.
            if (panel.add) sums[r][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[v], to), sums[r][v]);
            _mm512_mask_storeu_ps(to, masks[v], sums[r][v]);
        }
}

template <int group, int count, int most, int half>
TAMIS_INLINE void tiles(const KroneckerPanel& panel) {
    alignas(64) std::int32_t remainders[lanes];
    for (std::size_t lane = 0; lane < lanes; ++lane) remainders[lane] = static_cast<std::int32_t>(lane % panel.group);
    const __m512i places = _mm512_load_si512(remainders);
    std::size_t r = 0;
    const auto spread = [&] { return panel.spread + static_cast<std::ptrdiff_t>(r) * panel.spread_row; };
    const auto out = [&] { return panel.out + static_cast<std::ptrdiff_t>(r) * panel.out_row; };
    for (; r + most <= panel.rows; r += most) tile<group, count, most>(panel, spread(), out(), places);
    for (; r + half <= panel.rows; r += half) tile<group, count, half>(panel, spread(), out(), places);
    for (; r < panel.rows; ++r) tile<group, count, 1>(panel, spread(), out(), places);
}

template <int group>
void multiply_by(const KroneckerPanel& panel) {
    switch (panel.count) {
        case 4: return tiles<group, 4, 6, 2>(panel);
        case 3: return tiles<group, 3, 8, 2>(panel);
        case 2: return tiles<group, 2, 12, 4>(panel);
        default: return tiles<group, 1, 12, 4>(panel);
    }
}

void multiply(const KroneckerPanel& panel) {
    switch (panel.group) {
        case 1: return multiply_by<1>(panel);
        case 2: return multiply_by<2>(panel);
        case 4: return multiply_by<4>(panel);
        case 8: return multiply_by<8>(panel);
        case 16: return multiply_by<16>(panel);
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
        const __mmask16 read = first(last ? mixture.in_last : mixture.in_gap);
        const __mmask16 written = first(last ? mixture.out_last : mixture.out_gap);
        __m512 numbers[rows], sums[rows];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            numbers[r] = _mm512_maskz_loadu_ps(read, in + r * mixture.in_row);
            sums[r] = _mm512_setzero_ps();
        }
        for (std::size_t t = 0; t < mixture.depth; ++t) {
            const __m512i places = _mm512_loadu_si512(mixture.places + t * lanes);
            const __m512 weight = _mm512_loadu_ps(weights);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
                sums[r] = _mm512_fmadd_ps(_mm512_permutexvar_ps(places, numbers[r]), weight, sums[r]);
            weights += lanes;
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) _mm512_mask_storeu_ps(out + r * mixture.out_row, written, sums[r]);
        in += mixture.in_gap;
        out += mixture.out_gap;
    }
}

void mix(const KroneckerMixture& mixture) {
    std::size_t r = 0;
    const auto in = [&] { return mixture.in + static_cast<std::ptrdiff_t>(r) * mixture.in_row; };
    const auto out = [&] { return mixture.out + static_cast<std::ptrdiff_t>(r) * mixture.out_row; };
    for (; r + 8 <= mixture.rows; r += 8) mix_rows<8>(mixture, in(), out());
    for (; r < mixture.rows; ++r) mix_rows<1>(mixture, in(), out());
}

template <int rows, int columns>
TAMIS_INLINE void dots_tile(const KroneckerDots& dots, const float* left, const float* right, float* out) {
    __m512 sums[rows][columns];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < columns; ++v) sums[r][v] = _mm512_setzero_ps();
    for (std::size_t z = 0; z < dots.depth; z += lanes) {
        const __mmask16 mask = first(dots.depth - z);
        __m512 those[columns];
#pragma GCC unroll 4
        for (int v = 0; v < columns; ++v) those[v] = _mm512_maskz_loadu_ps(mask, right + v * dots.right_row + z);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const __m512 here = _mm512_maskz_loadu_ps(mask, left + r * dots.left_row + z);
#pragma GCC unroll 4
            for (int v = 0; v < columns; ++v) sums[r][v] = _mm512_fmadd_ps(here, those[v], sums[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < columns; ++v) {
            float& to = out[r * dots.out_row + v * dots.out_column];
            to = (dots.add ? to : 0.0f) + _mm512_reduce_add_ps(sums[r][v]);
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
    for (; column + 4 <= given.columns; column += 4) dots_columns<4>(given, column);
    for (; column < given.columns; ++column) dots_columns<1>(given, column);
}

template <int depth>
TAMIS_INLINE void mixed_sum_of(const KroneckerMixedSum& sum, std::size_t v, std::size_t start, __mmask16 read,
                               __mmask16 other_read) {
    __m512i places[depth];
    __m512 sums[depth];
    float* out = sum.out + (v * sum.depth + start) * lanes;
#pragma GCC unroll 4
    for (int t = 0; t < depth; ++t) {
        places[t] = _mm512_loadu_si512(sum.places + (start + t) * lanes);
        sums[t] = _mm512_setzero_ps();
    }
    const float *in = sum.in + v * sum.in_gap, *other = sum.other + v * sum.other_gap;
    for (std::size_t z = 0; z < sum.rows; ++z, in += sum.in_row, other += sum.other_row) {
        const __m512 here = _mm512_maskz_loadu_ps(read, in), there = _mm512_maskz_loadu_ps(other_read, other);
#pragma GCC unroll 4
        for (int t = 0; t < depth; ++t)
            sums[t] = _mm512_fmadd_ps(here, _mm512_permutexvar_ps(places[t], there), sums[t]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < depth; ++t) {
        if (sum.add) sums[t] = _mm512_add_ps(_mm512_loadu_ps(out + t * lanes), sums[t]);
        _mm512_storeu_ps(out + t * lanes, sums[t]);
    }
}

void mixed_sum(const KroneckerMixedSum& sum) {
    for (std::size_t v = 0; v < sum.count; ++v) {
        const bool last = v + 1 == sum.count;
        const __mmask16 read = first(last ? sum.in_last : sum.in_gap);
        const __mmask16 other_read = first(last ? sum.other_last : sum.other_gap);
        std::size_t t = 0;
        for (; t + 2 <= sum.depth; t += 2) mixed_sum_of<2>(sum, v, t, read, other_read);
        for (; t < sum.depth; ++t) mixed_sum_of<1>(sum, v, t, read, other_read);
    }
}

// The last two steps of turning sixteen registers: quarters of registers, (rows, quarters) → (quarters, rows).
TAMIS_INLINE void turn_quarters(__m512 (&four)[4]) {
    const __m512 a = _mm512_shuffle_f32x4(four[0], four[1], 0x44), b = _mm512_shuffle_f32x4(four[0], four[1], 0xEE);
    const __m512 c = _mm512_shuffle_f32x4(four[2], four[3], 0x44), d = _mm512_shuffle_f32x4(four[2], four[3], 0xEE);
    four[0] = _mm512_shuffle_f32x4(a, c, 0x88);
    four[1] = _mm512_shuffle_f32x4(a, c, 0xDD);
    four[2] = _mm512_shuffle_f32x4(b, d, 0x88);
    four[3] = _mm512_shuffle_f32x4(b, d, 0xDD);
}

// Registers that hold sixteen numbers of each row: after the first two steps, register 4 m + n holds, of the rows 4 m to
// 4 m + 3, the columns n, n + 4, n + 8, n + 12 in its quarters.
TAMIS_INLINE void turn_numbers(const float* from, std::ptrdiff_t row, __mmask16 mask, float* to, std::ptrdiff_t column,
                               std::size_t columns) {
    __m512 turned[4][4];
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
        const float* rows = from + 4 * m * row;
        const __m512 a = _mm512_maskz_loadu_ps(mask, rows), b = _mm512_maskz_loadu_ps(mask, rows + row);
        const __m512 c = _mm512_maskz_loadu_ps(mask, rows + 2 * row), d = _mm512_maskz_loadu_ps(mask, rows + 3 * row);
        const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
        const __m512d low2 = _mm512_castps_pd(_mm512_unpacklo_ps(c, d)), high2 = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
        turned[0][m] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low2));
        turned[1][m] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low2));
        turned[2][m] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high2));
        turned[3][m] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high2));
    }
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
        turn_quarters(turned[n]);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q)
            if (static_cast<std::size_t>(4 * q + n) < columns) _mm512_storeu_ps(to + (4 * q + n) * column, turned[n][q]);
    }
}

// Pairs: eight rows, eight columns.
TAMIS_INLINE void turn_pairs(const float* from, std::ptrdiff_t row, __mmask16 mask, float* to, std::ptrdiff_t column,
                             std::size_t columns) {
    __m512 turned[2][4];
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
        const __m512d a = _mm512_castps_pd(_mm512_maskz_loadu_ps(mask, from + 2 * m * row));
        const __m512d b = _mm512_castps_pd(_mm512_maskz_loadu_ps(mask, from + (2 * m + 1) * row));
        turned[0][m] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        turned[1][m] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
        turn_quarters(turned[n]);
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q)
            if (static_cast<std::size_t>(2 * q + n) < columns) _mm512_storeu_ps(to + (2 * q + n) * column, turned[n][q]);
    }
}

void turn(const KroneckerTurn& given) {
    const std::size_t each = lanes / given.unit;
    for (std::size_t l = 0; l < given.columns; l += each) {
        const std::size_t columns = given.columns - l;
        const __mmask16 mask = first(columns * given.unit);
        const float* from = given.from + l * given.unit;
        float* to = given.to + static_cast<std::ptrdiff_t>(l) * given.to_column;
        if (given.unit == 1) turn_numbers(from, given.from_row, mask, to, given.to_column, columns);
        else turn_pairs(from, given.from_row, mask, to, given.to_column, columns);
    }
}

constexpr KroneckerKernel kernel{"avx512", lanes, 4, &multiply, &mix, &dots, &mixed_sum, &turn};

}  // namespace

const KroneckerKernel* kronecker_avx512() { return &kernel; }

}  // namespace tamis

#else

namespace tamis {
const KroneckerKernel* kronecker_avx512() { return nullptr; }
}  // namespace tamis

#endif
