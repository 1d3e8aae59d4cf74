// Binary layers with AVX2: four words in a register, whose ones are looked up for every four bits by vpshufb. Nothing here
// may be shared with other files, which are compiled for other processors: no templates or inline functions but its own.

#include "binary.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#include "binary_ahead.h"

namespace tamis {
namespace {

#define TAMIS_INLINE static __attribute__((always_inline)) inline

constexpr std::size_t rows_of_bytes = 30;  // rows add up to 24 for three of them in each byte: no more than 240

TAMIS_INLINE __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
TAMIS_INLINE void store(void* to, __m256i value) { _mm256_storeu_si256(static_cast<__m256i*>(to), value); }

// All ones in the first lanes of eight.
TAMIS_INLINE __m256i lanes8(std::size_t count) {
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count < 8 ? static_cast<int>(count) : 8), places);
}

// Numbers looked up for both halves of every byte, added up.
TAMIS_INLINE __m256i looked_up(__m256i bits, __m256i table) {
    const __m256i half = _mm256_set1_epi8(15);
    const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(bits, half));
    return _mm256_add_epi8(low, _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bits, 4), half)));
}

// Counts of two registers of words, `lane` words apart, and `words` broadcast words, as count_tile of binary_avx512.cpp.
template <int words>
TAMIS_INLINE void count_tile(const std::uint64_t* lanes, std::size_t lane_row, const std::uint64_t* singles,
                             std::size_t word_row, std::size_t rows, __m256i (&counts)[words][2]) {
    const __m256i once = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                          0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i twice = _mm256_add_epi8(once, once);
    for (int w = 0; w < words; ++w) counts[w][0] = counts[w][1] = _mm256_setzero_si256();
    for (std::size_t start = 0; start < rows; start += rows_of_bytes) {
        const std::size_t end = rows - start < rows_of_bytes ? rows : start + rows_of_bytes;
        __m256i bytes[words][2];
        for (int w = 0; w < words; ++w) bytes[w][0] = bytes[w][1] = _mm256_setzero_si256();
        for (std::size_t row = start; row < end; row += 3) {
            const std::uint64_t *const a = lanes + row * lane_row, *const b = singles + row * word_row;
#pragma GCC unroll 2
            for (int w = 0; w < words; ++w) {
                const __m256i first = _mm256_set1_epi64x(static_cast<long long>(b[w]));
                const __m256i second = _mm256_set1_epi64x(static_cast<long long>(b[w + word_row]));
                const __m256i third = _mm256_set1_epi64x(static_cast<long long>(b[w + 2 * word_row]));
#pragma GCC unroll 2
                for (int v = 0; v < 2; ++v) {
                    const __m256i x = _mm256_xor_si256(first, load(a + 4 * v));
                    const __m256i y = _mm256_xor_si256(second, load(a + 4 * v + lane_row));
                    const __m256i sum = _mm256_xor_si256(third, load(a + 4 * v + 2 * lane_row));
                    const __m256i carry = _mm256_or_si256(_mm256_and_si256(x, y),
                                                          _mm256_andnot_si256(sum, _mm256_or_si256(x, y)));
                    const __m256i ones = _mm256_add_epi8(looked_up(sum, once), looked_up(carry, twice));
                    bytes[w][v] = _mm256_add_epi8(bytes[w][v], ones);
                }
            }
        }
        for (int w = 0; w < words; ++w)
            for (int v = 0; v < 2; ++v)
                counts[w][v] = _mm256_add_epi64(counts[w][v], _mm256_sad_epu8(bytes[w][v], _mm256_setzero_si256()));
    }
}

// The eight counts of two registers, as 32-bit numbers in order.
TAMIS_INLINE __m256i narrow(__m256i low, __m256i high) {
    const __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(even), 0xD8);
}

// (border − 2 count) · scale; the first is exact, every number in it is an integer below 2²⁴.
TAMIS_INLINE __m256 values_of(__m256i counts, __m256 borders, __m256 scale) {
    const __m256 twice = _mm256_cvtepi32_ps(_mm256_add_epi32(counts, counts));
    return _mm256_mul_ps(_mm256_sub_ps(borders, twice), scale);
}

// Eight entries of a table of sixteen.
TAMIS_INLINE __m256 entries_of(const float* table, __m256i places) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), places);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), places);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(places, 28)));
}

// What follows for eight channels, or for one of them.
template <bool along_channels>
TAMIS_INLINE __m256 followed(const Epilogue& after, std::size_t channel, std::size_t place, __m256i mask, __m256 values) {
    const auto of_channels = [&](const float* numbers) {
        return !along_channels ? _mm256_set1_ps(numbers[channel]) : _mm256_maskload_ps(numbers + channel, mask);
    };
    if (after.bias != nullptr) values = _mm256_add_ps(values, of_channels(after.bias));
    if (after.slope != nullptr) {
        const __m256 slope = of_channels(after.slope), shift = of_channels(after.shift);
        values = after.one_rounding ? _mm256_fmadd_ps(values, slope, shift)
                                    : _mm256_add_ps(_mm256_mul_ps(values, slope), shift);
    }
    if (after.added != nullptr) values = _mm256_add_ps(values, _mm256_maskload_ps(after.added + place, mask));
    return after.relu ? _mm256_max_ps(_mm256_setzero_ps(), values) : values;  // what is not a number stays
}

// What becomes of up to 8 pixels of one channel.
TAMIS_INLINE void finish_pixels(const BinaryBlock& block, std::size_t channel, std::size_t pixel, __m256i counts) {
    const std::size_t left = block.pixels - pixel;
    const __m256i mask = lanes8(left);
    const float* const border = block.borders + channel * block.border_stride;
    const __m256i classes = load(block.classes + pixel);
    const __m256 borders = block.few_classes ? entries_of(border, classes) : _mm256_i32gather_ps(border, classes, 4);
    __m256 scale;
    if (block.full != nullptr) {
        scale = _mm256_maskload_ps(block.full + channel * block.plane + pixel, mask);
    } else {
        scale = _mm256_set1_ps(block.alpha[channel]);
        if (block.beta != nullptr) scale = _mm256_mul_ps(scale, _mm256_maskload_ps(block.beta + pixel, mask));
        if (block.gamma != nullptr) scale = _mm256_mul_ps(scale, _mm256_maskload_ps(block.gamma + pixel, mask));
    }
    __m256 values = values_of(counts, borders, scale);
    if (block.marks != nullptr) {
        const __m256 set = _mm256_cmp_ps(values, _mm256_set1_ps(block.thresholds[channel]), _CMP_GE_OQ);
        std::uint16_t& marks = block.marks[channel * block.marks_stride + pixel / 16];
        marks = static_cast<std::uint16_t>(marks | static_cast<unsigned>(_mm256_movemask_ps(set)) << pixel % 16);
        return;
    }
    const std::size_t place = channel * block.plane + pixel;
    if (block.followed) values = followed<false>(block.after, channel, place, mask, values);
    float* const out = block.out + place;
    if (left < 8) _mm256_maskstore_ps(out, mask, values);
    else if (block.past_cache && reinterpret_cast<std::uintptr_t>(out) % 32 == 0) _mm256_stream_ps(out, values);
    else _mm256_storeu_ps(out, values);
}

template <int words>
TAMIS_INLINE void pixel_row(const BinaryBlock& block, std::size_t channel, Fetch& fetch) {
    const std::uint64_t* const weights = block.weights + channel / 8 * block.oct_words + channel % 8;
    for (std::size_t pixel = 0; pixel < block.pixels; pixel += 8) {
        __m256i counts[words][2];
        count_tile<words>(block.patches + pixel, block.stride, weights, 8, block.rows, counts);
        for (int w = 0; w < words; ++w) finish_pixels(block, channel + w, pixel, narrow(counts[w][0], counts[w][1]));
        if (fetch.channels > 0) fetch_share(fetch);
    }
}

// Ones of nine rows, `lanes` sixteen words apart, for four words and the weights of one channel: eight numbers for each
// word. Sums and carries of three times three rows are added up bit by bit once more, so that four registers are looked
// up, and not six.
TAMIS_INLINE __m256i count_nine(const std::uint64_t* lanes, const std::uint64_t* weights) {
    const __m256i once = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                          0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i twice = _mm256_add_epi8(once, once), four_times = _mm256_add_epi8(twice, twice);
    __m256i sums[3], carries[3];
#pragma GCC unroll 3
    for (int k = 0; k < 3; ++k) {
        const std::uint64_t *const a = lanes + 3 * k * 16, *const b = weights + 3 * k * 8;
        const __m256i x = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<long long>(b[0])), load(a));
        const __m256i y = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<long long>(b[8])), load(a + 16));
        sums[k] = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<long long>(b[16])), load(a + 32));
        carries[k] = _mm256_or_si256(_mm256_and_si256(x, y), _mm256_andnot_si256(sums[k], _mm256_or_si256(x, y)));
    }
    const __m256i s = _mm256_xor_si256(sums[0], sums[1]), c = _mm256_xor_si256(carries[0], carries[1]);
    const __m256i of_sums = _mm256_or_si256(_mm256_and_si256(sums[0], sums[1]), _mm256_and_si256(s, sums[2]));
    const __m256i of_carries = _mm256_or_si256(_mm256_and_si256(carries[0], carries[1]), _mm256_and_si256(c, carries[2]));
    const __m256i ones = looked_up(_mm256_xor_si256(s, sums[2]), once);
    const __m256i twos = _mm256_add_epi8(looked_up(of_sums, twice), looked_up(_mm256_xor_si256(c, carries[2]), twice));
    return _mm256_add_epi8(_mm256_add_epi8(ones, twos), looked_up(of_carries, four_times));
}

// The most common form, numbers by one factor for each channel, is written without a question for each eight of them.
TAMIS_INLINE bool is_common(const BinaryBlock& block) {
    return block.few_classes && block.marks == nullptr && block.full == nullptr && block.beta == nullptr;
}

// Nine rows, as a 3 × 3 kernel of up to 64 channels has, for sixteen pixels, which are a line of the result, and the
// channels [first, last) of one oct. `patches` are those of the sixteen pixels alone. A function of its own, in which the
// compiler has registers enough.
template <bool common, bool past_cache>
__attribute__((noinline)) void nine_oct(const BinaryBlock& block, const std::uint64_t* patches, std::size_t pixel,
                                        std::size_t first, std::size_t last) {
    const bool whole = common && pixel + 16 <= block.pixels;
    const std::uint64_t* weights = block.weights + first / 8 * block.oct_words;
    const __m256i classes[2] = {load(block.classes + pixel), load(block.classes + pixel + 8)};
    for (std::size_t channel = first; channel < last; ++channel, ++weights) {
        __m256i sums[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v)
            sums[v] = _mm256_sad_epu8(count_nine(patches + 4 * v, weights), _mm256_setzero_si256());
        const __m256i counts[2] = {narrow(sums[0], sums[1]), narrow(sums[2], sums[3])};
        if (!whole) {
            for (std::size_t v = 0; v < 2 && pixel + 8 * v < block.pixels; ++v)
                finish_pixels(block, channel, pixel + 8 * v, counts[v]);
            continue;
        }
        const __m256 alpha = _mm256_set1_ps(block.alpha[channel]);
        const float* const border = block.borders + channel * 16;
        const std::size_t place = channel * block.plane + pixel;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
            __m256 values = values_of(counts[v], entries_of(border, classes[v]), alpha);
            if (block.followed) values = followed<false>(block.after, channel, place + 8 * v, lanes8(8), values);
            if (past_cache) _mm256_stream_ps(block.out + place + 8 * v, values);
            else _mm256_storeu_ps(block.out + place + 8 * v, values);
        }
        if (!past_cache) __builtin_prefetch(block.out + place + 32, 1);
    }
}

template <bool common, bool past_cache>
void nine_rows(const BinaryBlock& block) {
    Fetch fetch = fetch_of(block.ahead, (block.pixels + 15) / 16 * ((block.last - block.first + 7) / 8));
    alignas(32) std::uint64_t patches[9 * 16];
    for (std::size_t pixel = 0; pixel < block.pixels; pixel += 16) {
        for (std::size_t row = 0; row < 9; ++row)
            for (std::size_t v = 0; v < 16; v += 4)
                store(patches + row * 16 + v, load(block.patches + row * block.stride + pixel + v));
        for (std::size_t channel = block.first; channel < block.last; channel += 8) {
            const std::size_t last = channel + 8 < block.last ? channel + 8 : block.last;
            nine_oct<common, past_cache>(block, patches, pixel, channel, last);
            fetch_share(fetch);
        }
    }
}

void by_pixels(const BinaryBlock& block) {
    if (block.rows == 9) {
        const bool common = is_common(block);
        const bool lines = reinterpret_cast<std::uintptr_t>(block.out) % 32 == 0 && block.plane % 8 == 0;
        if (!common) nine_rows<false, false>(block);
        else if (block.past_cache && lines) nine_rows<true, true>(block);
        else nine_rows<true, false>(block);
    } else {
        Fetch fetch = fetch_of(block.ahead, (block.pixels + 7) / 8 * ((block.last - block.first + 1) / 2));
        std::size_t channel = block.first;
        for (; channel + 2 <= block.last; channel += 2) pixel_row<2>(block, channel, fetch);
        if (channel < block.last) pixel_row<1>(block, channel, fetch);
    }
    if (block.past_cache) _mm_sfence();
}

// Eight rows of eight numbers, side by side, to columns.
TAMIS_INLINE void transpose(const std::int32_t* from, __m256i (&columns)[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = load(from + 8 * i);
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int j = 0; j < 4; ++j) {
        columns[j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x20);
        columns[4 + j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x31);
    }
}

// What becomes of up to 8 channels of the only pixel of one image.
TAMIS_INLINE void finish_channels(const BinaryBlock& block, std::size_t channel, std::size_t image, __m256i counts) {
    const __m256i mask = lanes8(block.last - channel);
    const float* const factors = block.full != nullptr ? block.full : block.alpha;
    __m256 scale = _mm256_maskload_ps(factors + channel, mask);
    if (block.beta != nullptr) scale = _mm256_mul_ps(scale, _mm256_set1_ps(*block.beta));
    if (block.gamma != nullptr) scale = _mm256_mul_ps(scale, _mm256_set1_ps(*block.gamma));
    __m256 values = values_of(counts, _mm256_maskload_ps(block.borders + channel, mask), scale);
    if (block.marks == nullptr) {
        const std::size_t place = image * block.image + channel;
        if (block.followed) values = followed<true>(block.after, channel, place, mask, values);
        _mm256_maskstore_ps(block.out + place, mask, values);
        return;
    }
    const __m256 thresholds = _mm256_maskload_ps(block.thresholds + channel, mask);
    const __m256 set = _mm256_and_ps(_mm256_cmp_ps(values, thresholds, _CMP_GE_OQ), _mm256_castsi256_ps(mask));
    for (unsigned left = static_cast<unsigned>(_mm256_movemask_ps(set)); left != 0; left &= left - 1) {
        const std::size_t marked = channel + static_cast<unsigned>(__builtin_ctz(left));
        std::uint16_t& marks = block.marks[marked * block.marks_stride + image / 16];
        marks = static_cast<std::uint16_t>(marks | 1u << image % 16);
    }
}

// Eight channels and `words` pixels, to the counts of the block.
template <int words>
TAMIS_INLINE void channel_tile(const BinaryBlock& block, std::size_t channel, std::size_t pixel) {
    __m256i counts[words][2];
    count_tile<words>(block.weights + channel / 8 * block.oct_words, 8, block.patches + pixel, block.stride, block.rows,
                      counts);
    for (int w = 0; w < words; ++w) store(block.counts + (pixel + w) * 8, narrow(counts[w][0], counts[w][1]));
}

void by_channels(const BinaryBlock& block) {
    for (std::size_t channel = block.first; channel < block.last; channel += 8) {
        std::size_t pixel = 0;
        for (; pixel + 2 <= block.pixels; pixel += 2) channel_tile<2>(block, channel, pixel);
        if (pixel < block.pixels) channel_tile<1>(block, channel, pixel);
        if (block.plane == 1) {
            for (std::size_t image = 0; image < block.pixels; ++image)
                finish_channels(block, channel, image, load(block.counts + image * 8));
            continue;
        }
        const std::size_t here = block.last - channel < 8 ? block.last - channel : 8;
        for (pixel = 0; pixel < block.pixels; pixel += 8) {
            __m256i counts[8];
            transpose(block.counts + pixel * 8, counts);
            for (std::size_t i = 0; i < here; ++i) finish_pixels(block, channel + i, pixel, counts[i]);
        }
    }
    if (block.past_cache) _mm_sfence();
}

// Low and high halves of eight words to memory, as many as there are.
TAMIS_INLINE void store_words(__m256i low, __m256i high, std::uint64_t flips, std::size_t count, std::uint64_t* words) {
    const __m256i flip = _mm256_set1_epi64x(static_cast<long long>(flips));
    const __m256i even = _mm256_unpacklo_epi32(low, high), odd = _mm256_unpackhi_epi32(low, high);
    const __m256i front = _mm256_xor_si256(_mm256_permute2x128_si256(even, odd, 0x20), flip);
    const __m256i back = _mm256_xor_si256(_mm256_permute2x128_si256(even, odd, 0x31), flip);
    if (count >= 8) {
        store(words, front);
        store(words + 4, back);
        return;
    }
    alignas(32) std::uint64_t all[8];
    store(all, front);
    store(all + 4, back);
    for (std::size_t i = 0; i < count; ++i) words[i] = all[i];
}

// Up to 32 channels of `vectors` · 8 pixels; `mask` for those of a single one.
template <int vectors>
TAMIS_INLINE void compare(const float* x, std::size_t step, std::size_t channels, const float* thresholds, __m256i mask,
                          __m256i (&bits)[vectors]) {
    for (int v = 0; v < vectors; ++v) bits[v] = _mm256_setzero_si256();
    __m256i bit = _mm256_set1_epi32(1);
    for (std::size_t c = 0; c < channels; ++c) {
        const __m256 threshold = _mm256_set1_ps(thresholds[c]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            const __m256 numbers = vectors > 1 ? _mm256_loadu_ps(x + 8 * v) : _mm256_maskload_ps(x, mask);
            const __m256i set = _mm256_castps_si256(_mm256_cmp_ps(numbers, threshold, _CMP_GE_OQ));
            bits[v] = _mm256_or_si256(bits[v], _mm256_and_si256(set, bit));
        }
        bit = _mm256_add_epi32(bit, bit);
        x += step;
    }
}

template <int vectors>
TAMIS_INLINE void pack_pixels(const float* x, std::size_t step, std::size_t channels, const float* thresholds,
                              std::uint64_t flips, std::size_t pixels, std::uint64_t* words) {
    const __m256i mask = lanes8(pixels);
    const std::size_t half = channels < 32 ? channels : 32;
    __m256i low[vectors], high[vectors];
    compare<vectors>(x, step, half, thresholds, mask, low);
    compare<vectors>(x + half * step, step, channels - half, thresholds + half, mask, high);
    for (int v = 0; v < vectors; ++v) store_words(low[v], high[v], flips, pixels - 8 * v, words + 8 * v);
}

void pack(const float* x, std::size_t step, std::size_t channels, std::size_t pixels, const float* thresholds,
          std::uint64_t flips, std::uint64_t* words) {
    if (pixels == 1 && step == 1) {  // channels side by side
        std::uint64_t word = 0;
        for (std::size_t c = 0; c < channels; c += 8) {
            const __m256i mask = lanes8(channels - c);
            const __m256 numbers = _mm256_maskload_ps(x + c, mask), limits = _mm256_maskload_ps(thresholds + c, mask);
            const __m256 set = _mm256_and_ps(_mm256_cmp_ps(numbers, limits, _CMP_GE_OQ), _mm256_castsi256_ps(mask));
            word |= static_cast<std::uint64_t>(_mm256_movemask_ps(set)) << c;
        }
        *words = word ^ flips;
        return;
    }
    std::size_t pixel = 0;
    for (; pixel + 32 <= pixels; pixel += 32)
        pack_pixels<4>(x + pixel, step, channels, thresholds, flips, 32, words + pixel);
    for (; pixel < pixels; pixel += 8)
        pack_pixels<1>(x + pixel, step, channels, thresholds, flips, pixels - pixel, words + pixel);
}

// Low or high halves of the words of eight pixels, from the marks of up to 32 channels.
TAMIS_INLINE __m256i gathered(const std::uint16_t* marks, std::size_t stride, std::size_t channels, __m256i places) {
    __m256i bits = _mm256_setzero_si256(), bit = _mm256_set1_epi32(1);
    for (std::size_t c = 0; c < channels; ++c) {
        const __m256i mark = _mm256_and_si256(_mm256_set1_epi32(marks[c * stride]), places);
        bits = _mm256_or_si256(bits, _mm256_and_si256(_mm256_cmpeq_epi32(mark, places), bit));
        bit = _mm256_add_epi32(bit, bit);
    }
    return bits;
}

void join(const std::uint16_t* marks, std::size_t stride, std::size_t channels, std::size_t pixels, std::uint64_t flips,
          std::uint64_t* words) {
    const std::size_t half = channels < 32 ? channels : 32;
    const __m256i first = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), second = _mm256_slli_epi32(first, 8);
    for (std::size_t pixel = 0; pixel < pixels; pixel += 8) {
        const std::uint16_t* const here = marks + pixel / 16;
        const __m256i places = pixel % 16 == 0 ? first : second;
        const __m256i low = gathered(here, stride, half, places);
        const __m256i high = gathered(here + half * stride, stride, channels - half, places);
        store_words(low, high, flips, pixels - pixel, words + pixel);
    }
}

void copy(const std::uint64_t* from, std::uint64_t* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = from[i];
}

void mix(const std::uint64_t* first, const std::uint64_t* second, std::uint64_t* third, std::size_t count) {
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4)
        store(third + i, _mm256_xor_si256(load(third + i), _mm256_xor_si256(load(first + i), load(second + i))));
    for (; i < count; ++i) third[i] ^= first[i] ^ second[i];
}

// All ones in the lanes of four whose places, from `first` on, lie in [0, end).
TAMIS_INLINE __m256i lanes_within(std::ptrdiff_t first, std::ptrdiff_t end) {
    const __m256i places = _mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_setr_epi64x(0, 1, 2, 3));
    const __m256i before_end = _mm256_cmpgt_epi64(_mm256_set1_epi64x(end), places);
    return _mm256_andnot_si256(_mm256_cmpgt_epi64(_mm256_setzero_si256(), places), before_end);
}

void three(const std::uint64_t* row, std::ptrdiff_t start, std::size_t width, std::size_t count, std::uint64_t* to,
           std::size_t stride) {
    const auto end = static_cast<std::ptrdiff_t>(width);
    for (std::size_t i = 0; i < count; i += 4) {
        const std::ptrdiff_t column = start + static_cast<std::ptrdiff_t>(i);
        __m256i words[3];
        if (column >= 0 && column + 6 <= end) {
            for (int k = 0; k < 3; ++k) words[k] = load(row + column + k);
        } else {
            for (int k = 0; k < 3; ++k)  // an address is never read where the mask is 0
                words[k] = _mm256_maskload_epi64(reinterpret_cast<const long long*>(row + (column + k)),
                                                 lanes_within(column + k, end));
        }
        words[2] = _mm256_xor_si256(words[2], _mm256_xor_si256(words[0], words[1]));
        if (i + 4 <= count) {
            for (int k = 0; k < 3; ++k) store(to + k * stride + i, words[k]);
            continue;
        }
        const __m256i mask = lanes_within(static_cast<std::ptrdiff_t>(i), static_cast<std::ptrdiff_t>(count));
        for (int k = 0; k < 3; ++k)
            _mm256_maskstore_epi64(reinterpret_cast<long long*>(to + k * stride + i), mask, words[k]);
    }
}

constexpr BinaryKernel kernel{"avx2", &pack, &join, &copy, &mix, &three, &by_pixels, &by_channels};

}  // namespace

const BinaryKernel* binary_avx2() { return &kernel; }

}  // namespace tamis

#else

const tamis::BinaryKernel* tamis::binary_avx2() { return nullptr; }

#endif
