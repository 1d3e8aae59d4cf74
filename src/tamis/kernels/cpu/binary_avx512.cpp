// Binary layers with AVX-512, VPOPCNTDQ and VNNI: eight words in a register. Nothing here may be shared with other files,
// which are compiled for other processors: no templates or inline functions but those of this file.

#include "binary.h"

#if defined(__AVX512VPOPCNTDQ__) && defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__)

#include <immintrin.h>

#include "binary_ahead.h"

namespace tamis {
namespace {

#define TAMIS_INLINE static __attribute__((always_inline)) inline

TAMIS_INLINE __mmask16 lanes16(std::size_t count) {
    return count >= 16 ? static_cast<__mmask16>(0xFFFF) : static_cast<__mmask16>((1u << count) - 1);
}

// Counts of `vectors` · 8 lanes and `words` broadcast words. One side is a matrix of vectors, `lane` words from one to
// the next and `lane_row` from row to row, the other one of single words, side by side, `word_row` from row to row.
template <int vectors, int words>
TAMIS_INLINE void count_tile(const std::uint64_t* lanes, std::size_t lane, std::size_t lane_row,
                             const std::uint64_t* singles, std::size_t word_row, std::size_t rows,
                             __m512i (&counts)[words][vectors]) {
    // Carries are counted apart and doubled once, in the end.
    __m512i carries[words][vectors];
    for (int w = 0; w < words; ++w)
        for (int v = 0; v < vectors; ++v) counts[w][v] = carries[w][v] = _mm512_setzero_si512();
    for (std::size_t row = 0; row < rows; row += 3) {
        __m512i a[vectors], b[vectors], c[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            a[v] = _mm512_loadu_si512(lanes + v * lane);
            b[v] = _mm512_loadu_si512(lanes + v * lane + lane_row);
            c[v] = _mm512_loadu_si512(lanes + v * lane + 2 * lane_row);
        }
#pragma GCC unroll 2
        for (int w = 0; w < words; ++w) {
            const __m512i first = _mm512_set1_epi64(static_cast<long long>(singles[w]));
            const __m512i second = _mm512_set1_epi64(static_cast<long long>(singles[w + word_row]));
            const __m512i third = _mm512_set1_epi64(static_cast<long long>(singles[w + 2 * word_row]));
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
                const __m512i x = _mm512_xor_si512(first, a[v]), y = _mm512_xor_si512(second, b[v]);
                const __m512i sum = _mm512_xor_si512(third, c[v]);
                const __m512i carry = _mm512_ternarylogic_epi64(x, y, sum, 0xD4);  // (x & y) | ((x | y) & ~sum)
                counts[w][v] = _mm512_add_epi64(counts[w][v], _mm512_popcnt_epi64(sum));
                carries[w][v] = _mm512_add_epi64(carries[w][v], _mm512_popcnt_epi64(carry));
            }
        }
        lanes += 3 * lane_row;
        singles += 3 * word_row;
    }
#pragma GCC unroll 2
    for (int w = 0; w < words; ++w)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            counts[w][v] = _mm512_add_epi64(counts[w][v], _mm512_add_epi64(carries[w][v], carries[w][v]));
}

// The sixteen counts of two registers, as 32-bit numbers in order.
TAMIS_INLINE __m512i narrow(__m512i low, __m512i high) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi32(low, even, high);
}

// (border − 2 count): exact, every number here is an integer below 2²⁴
TAMIS_INLINE __m512 sums_of(__m512i counts, __m512 borders) {
    return _mm512_fnmadd_ps(_mm512_set1_ps(2.0f), _mm512_cvtepi32_ps(counts), borders);
}

// What follows for sixteen channels, or for one of them.
template <bool along_channels>
TAMIS_INLINE __m512 followed(const Epilogue& after, std::size_t channel, std::size_t place, __mmask16 mask, __m512 values) {
    const auto of_channels = [&](const float* numbers) {
        return !along_channels ? _mm512_set1_ps(numbers[channel]) : _mm512_maskz_loadu_ps(mask, numbers + channel);
    };
    if (after.bias != nullptr) values = _mm512_add_ps(values, of_channels(after.bias));
    if (after.slope != nullptr) {
        const __m512 slope = of_channels(after.slope), shift = of_channels(after.shift);
        values = after.one_rounding ? _mm512_fmadd_ps(values, slope, shift)
                                    : _mm512_add_ps(_mm512_mul_ps(values, slope), shift);
    }
    if (after.added != nullptr) values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(mask, after.added + place));
    // The order of arguments matters: where one is not a number, the second is the result, and NaN stays, as in PyTorch.
    return after.relu ? _mm512_max_ps(_mm512_setzero_ps(), values) : values;
}

// What becomes of up to 16 pixels of one channel, in whatever form.
void finish_pixels(const BinaryBlock& block, std::size_t channel, std::size_t pixel, __m512i counts) {
    const std::size_t left = block.pixels - pixel;
    const __mmask16 mask = lanes16(left);
    const float* const border = block.borders + channel * block.border_stride;
    const __m512i classes = _mm512_loadu_si512(block.classes + pixel);
    // A permutation within a register is much faster than a gather from memory.
    const __m512 borders = block.few_classes ? _mm512_permutexvar_ps(classes, _mm512_loadu_ps(border))
                                             : _mm512_i32gather_ps(classes, border, 4);
    __m512 scale;
    if (block.full != nullptr) {
        scale = _mm512_maskz_loadu_ps(mask, block.full + channel * block.plane + pixel);
    } else {
        scale = _mm512_set1_ps(block.alpha[channel]);
        if (block.beta != nullptr) scale = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(mask, block.beta + pixel));
        if (block.gamma != nullptr) scale = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(mask, block.gamma + pixel));
    }
    __m512 values = _mm512_mul_ps(sums_of(counts, borders), scale);
    if (block.marks != nullptr) {
        const __m512 threshold = _mm512_set1_ps(block.thresholds[channel]);
        // Ordered: what is not a number is below every threshold. Lanes past the last pixel leave marks that are not read.
        block.marks[channel * block.marks_stride + pixel / 16] = _mm512_cmp_ps_mask(values, threshold, _CMP_GE_OQ);
        return;
    }
    const std::size_t place = channel * block.plane + pixel;
    if (block.followed) values = followed<false>(block.after, channel, place, mask, values);
    float* const out = block.out + place;
    if (left < 16) _mm512_mask_storeu_ps(out, mask, values);
    else if (block.past_cache && reinterpret_cast<std::uintptr_t>(out) % 64 == 0) _mm512_stream_ps(out, values);
    else _mm512_storeu_ps(out, values);
}

// The most common form, numbers by one factor for each channel, is written without a question for each sixteen of them.
TAMIS_INLINE bool is_common(const BinaryBlock& block) {
    return block.few_classes && block.marks == nullptr && block.full == nullptr && block.beta == nullptr;
}

template <int words>
struct Row {
    __m512 borders[words], alpha[words];
    float* out[words];
    bool past_cache;
};

template <int words>
TAMIS_INLINE Row<words> row_of(const BinaryBlock& block, std::size_t channel) {
    Row<words> row;
    row.past_cache = block.past_cache;
    for (int w = 0; w < words; ++w) {
        row.borders[w] = _mm512_loadu_ps(block.borders + (channel + w) * 16);
        row.alpha[w] = _mm512_set1_ps(block.alpha[channel + w]);
        row.out[w] = block.out + (channel + w) * block.plane;
        row.past_cache &= reinterpret_cast<std::uintptr_t>(row.out[w]) % 64 == 0;
    }
    return row;
}

// `vectors` · 8 pixels and `words` channels.
template <int vectors, int words, bool common, bool whole>
TAMIS_INLINE void pixel_tile(const BinaryBlock& block, const Row<words>& row, std::size_t channel, std::size_t pixel) {
    const std::uint64_t* const weights = block.weights + channel / 8 * block.oct_words + channel % 8;
    __m512i counts[words][vectors];
    count_tile<vectors, words>(block.patches + pixel, 8, block.stride, weights, 8, block.rows, counts);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v += 2)
#pragma GCC unroll 2
        for (int w = 0; w < words; ++w) {
            const __m512i both = narrow(counts[w][v], counts[w][v + 1 < vectors ? v + 1 : v]);
            if constexpr (common) {
                const __m512i classes = _mm512_loadu_si512(block.classes + pixel + 8 * v);
                const __m512 sums = sums_of(both, _mm512_permutexvar_ps(classes, row.borders[w]));
                const __mmask16 mask = whole ? lanes16(16) : lanes16(block.pixels - pixel - 8 * v);
                __m512 values = _mm512_mul_ps(sums, row.alpha[w]);
                if (block.followed)
                    values = followed<false>(block.after, channel + w, (channel + w) * block.plane + pixel + 8 * v, mask, values);
                float* const out = row.out[w] + pixel + 8 * v;
                if constexpr (!whole) _mm512_mask_storeu_ps(out, mask, values);
                else if (row.past_cache) _mm512_stream_ps(out, values);
                else _mm512_storeu_ps(out, values);
            } else {
                finish_pixels(block, channel + w, pixel + 8 * v, both);
            }
        }
}

template <int words, bool common>
TAMIS_INLINE void pixel_row(const BinaryBlock& block, std::size_t channel, Fetch& fetch) {
    Row<words> row;
    if constexpr (common) row = row_of<words>(block, channel);
    std::size_t pixel = 0;
    for (; pixel + 32 <= block.pixels; pixel += 32) {
        pixel_tile<4, words, common, true>(block, row, channel, pixel);
        if (fetch.channels > 0) fetch_share(fetch);
    }
    for (; pixel + 8 < block.pixels; pixel += 16) pixel_tile<2, words, common, false>(block, row, channel, pixel);
    if (pixel < block.pixels) pixel_tile<1, words, common, false>(block, row, channel, pixel);
}

template <bool common>
void pixel_rows(const BinaryBlock& block) {
    Fetch fetch = fetch_of(block.ahead, (block.pixels + 31) / 32 * ((block.last - block.first + 1) / 2));
    std::size_t channel = block.first;
    for (; channel + 2 <= block.last; channel += 2) pixel_row<2, common>(block, channel, fetch);
    if (channel < block.last) pixel_row<1, common>(block, channel, fetch);
}

// Counts of nine rows for sixteen pixels and the weights of one channel.
TAMIS_INLINE __m512i count_nine(const __m512i (&a)[9], const __m512i (&b)[9], const std::uint64_t* weights) {
    __m512i sums[2], carries[2];
#pragma GCC unroll 3
    for (int row = 0; row < 9; row += 3) {
        const __m512i first = _mm512_set1_epi64(static_cast<long long>(weights[row * 8]));
        const __m512i second = _mm512_set1_epi64(static_cast<long long>(weights[row * 8 + 8]));
        const __m512i third = _mm512_set1_epi64(static_cast<long long>(weights[row * 8 + 16]));
        const __m512i s = _mm512_xor_si512(third, a[row + 2]), t = _mm512_xor_si512(third, b[row + 2]);
        const __m512i c = _mm512_ternarylogic_epi64(_mm512_xor_si512(first, a[row]),
                                                    _mm512_xor_si512(second, a[row + 1]), s, 0xD4);
        const __m512i d = _mm512_ternarylogic_epi64(_mm512_xor_si512(first, b[row]),
                                                    _mm512_xor_si512(second, b[row + 1]), t, 0xD4);
        const __m512i counts[4] = {_mm512_popcnt_epi64(s), _mm512_popcnt_epi64(t), _mm512_popcnt_epi64(c),
                                   _mm512_popcnt_epi64(d)};
        sums[0] = row == 0 ? counts[0] : _mm512_add_epi64(sums[0], counts[0]);
        sums[1] = row == 0 ? counts[1] : _mm512_add_epi64(sums[1], counts[1]);
        carries[0] = row == 0 ? counts[2] : _mm512_add_epi64(carries[0], counts[2]);
        carries[1] = row == 0 ? counts[3] : _mm512_add_epi64(carries[1], counts[3]);
    }
    // sums + 2 carries in one instruction, for which 192 at most is small enough
    return _mm512_dpwssd_epi32(narrow(sums[0], sums[1]), narrow(carries[0], carries[1]), _mm512_set1_epi32(2));
}

// plain: common, sixteen pixels, whole octs, and nothing follows
enum class Form { plain, common, any };

// Nine rows, as a 3 × 3 kernel of up to 64 channels has, for sixteen pixels, whose words stay in registers for all
// channels. Where the pixels are of one class, as they mostly are, they have one border. Questions are asked outside the
// loop, where they can be: a few instructions for each channel are some hundredths of the whole.
template <Form form, bool past_cache, bool one_class>
void nine_line(const BinaryBlock& block, std::size_t pixel, Fetch& fetch) {
    __m512i a[9], b[9];
#pragma GCC unroll 9
    for (int row = 0; row < 9; ++row) {
        a[row] = _mm512_loadu_si512(block.patches + row * block.stride + pixel);
        b[row] = _mm512_loadu_si512(block.patches + row * block.stride + pixel + 8);
    }
    const __mmask16 mask = lanes16(block.pixels - pixel);
    const __m512i classes = _mm512_loadu_si512(block.classes + pixel);
    const std::size_t plane = block.plane, oct_words = block.oct_words, last = block.last;
    const std::uint64_t* oct = block.weights + block.first / 8 * oct_words;
    const float* border = block.borders + block.first * 16 + (one_class ? block.classes[pixel] : 0);
    const float* const alpha = block.alpha;
    float* out = block.out + block.first * plane + pixel;
    for (std::size_t channel = block.first; channel < last; channel += 8, oct += oct_words) {
        const std::size_t count = form == Form::plain || channel + 8 <= last ? 8 : last - channel;
        for (std::size_t i = 0; i < count; ++i) {
            const __m512i counts = count_nine(a, b, oct + i);
            if constexpr (form == Form::any) {
                finish_pixels(block, channel + i, pixel, counts);
                continue;
            }
            const __m512 borders =
                one_class ? _mm512_set1_ps(*border) : _mm512_permutexvar_ps(classes, _mm512_loadu_ps(border));
            __m512 values = _mm512_mul_ps(sums_of(counts, borders), _mm512_set1_ps(alpha[channel + i]));
            if (form == Form::common && block.followed)
                values = followed<false>(block.after, channel + i, (channel + i) * plane + pixel, mask, values);
            if (form == Form::common && mask != lanes16(16)) _mm512_mask_storeu_ps(out, mask, values);
            else if (past_cache) _mm512_stream_ps(out, values);
            else _mm512_storeu_ps(out, values);
            if (!past_cache) __builtin_prefetch(out + 32, 1);
            border += 16;
            out += plane;
        }
        fetch_share(fetch);
    }
}

template <Form form, bool past_cache>
void nine_rows(const BinaryBlock& block) {
    Fetch fetch = fetch_of(block.ahead, (block.pixels + 15) / 16 * ((block.last - block.first + 7) / 8));
    for (std::size_t pixel = 0; pixel < block.pixels; pixel += 16) {
        const __m512i classes = _mm512_loadu_si512(block.classes + pixel);
        const __m512i first = _mm512_broadcastd_epi32(_mm512_castsi512_si128(classes));
        constexpr Form part = form == Form::plain ? Form::common : form;
        if (pixel + 16 > block.pixels) nine_line<part, past_cache, false>(block, pixel, fetch);
        else if (_mm512_cmpneq_epi32_mask(classes, first) == 0) nine_line<form, past_cache, true>(block, pixel, fetch);
        else nine_line<form, past_cache, false>(block, pixel, fetch);
    }
}

void by_pixels(const BinaryBlock& block) {
    const bool common = is_common(block);
    const bool lines = reinterpret_cast<std::uintptr_t>(block.out) % 64 == 0 && block.plane % 16 == 0;
    const bool stream = block.past_cache && lines, plain = !block.followed && block.last % 8 == 0;
    if (block.rows != 9) common ? pixel_rows<true>(block) : pixel_rows<false>(block);
    else if (!common) nine_rows<Form::any, false>(block);
    else if (plain) stream ? nine_rows<Form::plain, true>(block) : nine_rows<Form::plain, false>(block);
    else stream ? nine_rows<Form::common, true>(block) : nine_rows<Form::common, false>(block);
    if (block.past_cache) _mm_sfence();  // what was written past the cache is seen before the task counts as done
}

// Sixteen rows of sixteen numbers, `step` apart, to columns.
TAMIS_INLINE void transpose(const std::int32_t* from, std::size_t step, __m512i (&columns)[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * step);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    // a[4 i + j] holds column j + 4 l of rows 4 i … 4 i + 3 in its quarter l.
    for (int j = 0; j < 4; ++j) {
        b[j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
        b[4 + j] = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);
        b[8 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
        b[12 + j] = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
    }
    for (int j = 0; j < 4; ++j) {
        columns[j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0x88);
        columns[8 + j] = _mm512_shuffle_i32x4(b[j], b[8 + j], 0xDD);
        columns[4 + j] = _mm512_shuffle_i32x4(b[4 + j], b[12 + j], 0x88);
        columns[12 + j] = _mm512_shuffle_i32x4(b[4 + j], b[12 + j], 0xDD);
    }
}

// `vectors` octs of channels and `words` pixels, to the counts of the block.
template <int vectors, int words>
TAMIS_INLINE void channel_tile(const BinaryBlock& block, std::size_t channel, std::size_t pixel) {
    __m512i counts[words][vectors];
    count_tile<vectors, words>(block.weights + channel / 8 * block.oct_words, block.oct_words, 8, block.patches + pixel,
                               block.stride, block.rows, counts);
    for (int w = 0; w < words; ++w)
        for (int v = 0; v < vectors; ++v)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(block.counts + (pixel + w) * 32 + 8 * v),
                                _mm512_cvtepi64_epi32(counts[w][v]));
}

template <int vectors>
void channel_column(const BinaryBlock& block, std::size_t channel) {
    std::size_t pixel = 0;
    for (; pixel + 2 <= block.pixels; pixel += 2) channel_tile<vectors, 2>(block, channel, pixel);
    if (pixel < block.pixels) channel_tile<vectors, 1>(block, channel, pixel);
}

// What becomes of up to 16 channels of the only pixel of one image.
TAMIS_INLINE void finish_channels(const BinaryBlock& block, std::size_t channel, std::size_t image, __m512i counts) {
    const __mmask16 mask = lanes16(block.last - channel);
    const float* const factors = block.full != nullptr ? block.full : block.alpha;
    __m512 scale = _mm512_maskz_loadu_ps(mask, factors + channel);
    if (block.beta != nullptr) scale = _mm512_mul_ps(scale, _mm512_set1_ps(*block.beta));
    if (block.gamma != nullptr) scale = _mm512_mul_ps(scale, _mm512_set1_ps(*block.gamma));
    const __m512 sums = sums_of(counts, _mm512_maskz_loadu_ps(mask, block.borders + channel));
    __m512 values = _mm512_mul_ps(sums, scale);
    if (block.marks == nullptr) {
        const std::size_t place = image * block.image + channel;
        if (block.followed) values = followed<true>(block.after, channel, place, mask, values);
        _mm512_mask_storeu_ps(block.out + place, mask, values);
        return;
    }
    const __m512 thresholds = _mm512_maskz_loadu_ps(mask, block.thresholds + channel);
    unsigned set = _mm512_mask_cmp_ps_mask(mask, values, thresholds, _CMP_GE_OQ);
    for (; set != 0; set &= set - 1) {
        const std::size_t marked = channel + static_cast<unsigned>(__builtin_ctz(set));
        std::uint16_t& marks = block.marks[marked * block.marks_stride + image / 16];
        marks = static_cast<std::uint16_t>(marks | 1u << image % 16);
    }
}

void finish_counts(const BinaryBlock& block, std::size_t channel) {
    const bool common = is_common(block);
    for (std::size_t half = 0; half < 32 && channel + half < block.last; half += 16) {
        if (block.plane == 1) {
            for (std::size_t image = 0; image < block.pixels; ++image)
                finish_channels(block, channel + half, image, _mm512_loadu_si512(block.counts + image * 32 + half));
            continue;
        }
        const std::size_t columns = block.last - channel - half < 16 ? block.last - channel - half : 16;
        for (std::size_t pixel = 0; pixel < block.pixels; pixel += 16) {
            __m512i counts[16];
            transpose(block.counts + pixel * 32 + half, 32, counts);
            if (!common) {
                for (std::size_t i = 0; i < columns; ++i) finish_pixels(block, channel + half + i, pixel, counts[i]);
                continue;
            }
            const __mmask16 mask = lanes16(block.pixels - pixel);
            const __m512i classes = _mm512_loadu_si512(block.classes + pixel);
            for (std::size_t i = 0; i < columns; ++i) {
                const std::size_t c = channel + half + i;
                const __m512 borders = _mm512_permutexvar_ps(classes, _mm512_loadu_ps(block.borders + c * 16));
                __m512 values = _mm512_mul_ps(sums_of(counts[i], borders), _mm512_set1_ps(block.alpha[c]));
                const std::size_t place = c * block.plane + pixel;
                if (block.followed) values = followed<false>(block.after, c, place, mask, values);
                _mm512_mask_storeu_ps(block.out + place, mask, values);
            }
        }
    }
}

void by_channels(const BinaryBlock& block) {
    for (std::size_t channel = block.first; channel < block.last; channel += 32) {
        const std::size_t octs = (block.last - channel + 7) / 8;
        if (octs >= 4) channel_column<4>(block, channel);
        else if (octs == 3) channel_column<3>(block, channel);
        else if (octs == 2) channel_column<2>(block, channel);
        else channel_column<1>(block, channel);
        finish_counts(block, channel);
    }
    if (block.past_cache) _mm_sfence();
}

// Low and high halves of sixteen words to memory, as many as there are.
TAMIS_INLINE void store_words(__m512i low, __m512i high, std::uint64_t flips, std::size_t count, std::uint64_t* words) {
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    const __m512i flip = _mm512_set1_epi64(static_cast<long long>(flips));
    const __m512i front = _mm512_xor_si512(_mm512_permutex2var_epi32(low, first, high), flip);
    const __m512i back = _mm512_xor_si512(_mm512_permutex2var_epi32(low, second, high), flip);
    if (count >= 16) {
        _mm512_storeu_si512(words, front);
        _mm512_storeu_si512(words + 8, back);
    } else {
        const __mmask16 mask = lanes16(count);
        _mm512_mask_storeu_epi64(words, static_cast<__mmask8>(mask), front);
        _mm512_mask_storeu_epi64(words + 8, static_cast<__mmask8>(mask >> 8), back);
    }
}

// 32 channels of `vectors` · 16 pixels; `mask` for those of the last.
template <int vectors>
TAMIS_INLINE void compare(const float* x, std::size_t step, std::size_t channels, const float* thresholds, __mmask16 mask,
                          __m512i (&bits)[vectors]) {
    for (int v = 0; v < vectors; ++v) bits[v] = _mm512_setzero_si512();
    __m512i bit = _mm512_set1_epi32(1);
    for (std::size_t c = 0; c < channels; ++c) {
        const __m512 threshold = _mm512_set1_ps(thresholds[c]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            const __m512 numbers = vectors > 1 ? _mm512_loadu_ps(x + 16 * v) : _mm512_maskz_loadu_ps(mask, x);
            const __mmask16 set = _mm512_cmp_ps_mask(numbers, threshold, _CMP_GE_OQ);
            bits[v] = _mm512_mask_or_epi32(bits[v], set, bits[v], bit);
        }
        bit = _mm512_add_epi32(bit, bit);
        x += step;
    }
}

template <int vectors>
TAMIS_INLINE void pack_pixels(const float* x, std::size_t step, std::size_t channels, const float* thresholds,
                              std::uint64_t flips, std::size_t pixels, std::uint64_t* words) {
    const __mmask16 mask = lanes16(pixels);
    const std::size_t half = channels < 32 ? channels : 32;
    __m512i low[vectors], high[vectors];
    compare<vectors>(x, step, half, thresholds, mask, low);
    compare<vectors>(x + half * step, step, channels - half, thresholds + half, mask, high);
    for (int v = 0; v < vectors; ++v) store_words(low[v], high[v], flips, pixels - 16 * v, words + 16 * v);
}

// One pixel: its channels lie side by side.
void pack_channels(const float* x, std::size_t channels, const float* thresholds, std::uint64_t flips,
                   std::uint64_t* words) {
    std::uint64_t word = 0;
    for (std::size_t c = 0; c < channels; c += 16) {
        const __mmask16 mask = lanes16(channels - c);
        const __m512 numbers = _mm512_maskz_loadu_ps(mask, x + c), limits = _mm512_maskz_loadu_ps(mask, thresholds + c);
        word |= std::uint64_t{_mm512_mask_cmp_ps_mask(mask, numbers, limits, _CMP_GE_OQ)} << c;
    }
    *words = word ^ flips;
}

void pack(const float* x, std::size_t step, std::size_t channels, std::size_t pixels, const float* thresholds,
          std::uint64_t flips, std::uint64_t* words) {
    if (pixels == 1 && step == 1) return pack_channels(x, channels, thresholds, flips, words);
    std::size_t pixel = 0;
    for (; pixel + 128 <= pixels; pixel += 128)
        pack_pixels<8>(x + pixel, step, channels, thresholds, flips, 128, words + pixel);
    for (; pixel + 32 <= pixels; pixel += 32)
        pack_pixels<2>(x + pixel, step, channels, thresholds, flips, 32, words + pixel);
    for (; pixel < pixels; pixel += 16)
        pack_pixels<1>(x + pixel, step, channels, thresholds, flips, pixels - pixel, words + pixel);
}

// The words of 16 pixels from the marks of two times 32 channels.
TAMIS_INLINE __m512i gathered(const std::uint16_t* marks, std::size_t stride, std::size_t channels) {
    __m512i bits = _mm512_setzero_si512(), bit = _mm512_set1_epi32(1);
    for (std::size_t c = 0; c < channels; ++c) {
        bits = _mm512_mask_or_epi32(bits, marks[c * stride], bits, bit);
        bit = _mm512_add_epi32(bit, bit);
    }
    return bits;
}

void join(const std::uint16_t* marks, std::size_t stride, std::size_t channels, std::size_t pixels, std::uint64_t flips,
          std::uint64_t* words) {
    const std::size_t half = channels < 32 ? channels : 32;
    for (std::size_t pixel = 0; pixel < pixels; pixel += 16) {
        const std::uint16_t* const here = marks + pixel / 16;
        const __m512i low = gathered(here, stride, half);
        const __m512i high = gathered(here + half * stride, stride, channels - half);
        store_words(low, high, flips, pixels - pixel, words + pixel);
    }
}

TAMIS_INLINE __mmask8 lanes8(std::size_t count) {
    return count >= 8 ? static_cast<__mmask8>(0xFF) : static_cast<__mmask8>((1u << count) - 1);
}

void copy(const std::uint64_t* from, std::uint64_t* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
    const __mmask8 mask = lanes8(count - i);
    if (i < count) _mm512_mask_storeu_epi64(to + i, mask, _mm512_maskz_loadu_epi64(mask, from + i));
}

void mix(const std::uint64_t* first, const std::uint64_t* second, std::uint64_t* third, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 8) {
        const __mmask8 mask = lanes8(count - i);
        const __m512i a = _mm512_maskz_loadu_epi64(mask, first + i), b = _mm512_maskz_loadu_epi64(mask, second + i);
        const __m512i c = _mm512_maskz_loadu_epi64(mask, third + i);
        _mm512_mask_storeu_epi64(third + i, mask, _mm512_ternarylogic_epi64(a, b, c, 0x96));
    }
}

// Lanes [0, 8) whose columns from `column` on lie in a row.
TAMIS_INLINE __mmask8 lanes_within(std::ptrdiff_t column, std::ptrdiff_t width) {
    if (column >= width || column <= -8) return 0;
    const auto past = static_cast<unsigned>(width - column >= 8 ? 0xFF : (1u << (width - column)) - 1);
    return static_cast<__mmask8>(column >= 0 ? past : past & (0xFFu << -column));
}

void three(const std::uint64_t* row, std::ptrdiff_t start, std::size_t width, std::size_t count, std::uint64_t* to,
           std::size_t stride) {
    const auto end = static_cast<std::ptrdiff_t>(width);
    for (std::size_t i = 0; i < count; i += 8) {
        const std::ptrdiff_t column = start + static_cast<std::ptrdiff_t>(i);
        __m512i words[3];
        if (column >= 0 && column + 10 <= end) {
#pragma GCC unroll 3
            for (int k = 0; k < 3; ++k) words[k] = _mm512_loadu_si512(row + column + k);
        } else {
#pragma GCC unroll 3
            for (int k = 0; k < 3; ++k)  // an address is never read where the mask is 0
                words[k] = _mm512_maskz_loadu_epi64(lanes_within(column + k, end), row + (column + k));
        }
        words[2] = _mm512_ternarylogic_epi64(words[0], words[1], words[2], 0x96);
        const __mmask8 mask = lanes8(count - i);
#pragma GCC unroll 3
        for (int k = 0; k < 3; ++k) _mm512_mask_storeu_epi64(to + k * stride + i, mask, words[k]);
    }
}

constexpr BinaryKernel kernel{"avx512", &pack, &join, &copy, &mix, &three, &by_pixels, &by_channels};

}  // namespace

const BinaryKernel* binary_avx512() { return &kernel; }

}  // namespace tamis

#else

const tamis::BinaryKernel* tamis::binary_avx512() { return nullptr; }

#endif
