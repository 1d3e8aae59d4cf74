// One pass over the mask and the result. Everywhere: blocks of 64 entries are zeroed, and their kept entries, found by
// counting the zeros of a 64-bit word, written while the block is in the first-level cache. Where there is AVX-512, the
// entries of 4 bytes, float32 above all: 16 at a time by vpexpandd, which is what this function does, as an instruction.

#include "expand.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TAMIS_AVX512 1
#include <immintrin.h>
#endif

namespace tamis {
namespace {

constexpr std::size_t block = 64;

// The truth values of up to 64 entries as bits, the first one lowest. Any byte but 0 is true, as in numpy: a view of other
// memory can hold more than 0 and 1, and those must not spill into their neighbours.
std::uint64_t word_of(const std::uint8_t* mask, std::size_t entries) {
    std::uint64_t word = 0;
    if (entries == block && std::endian::native == std::endian::little) {
        for (std::size_t i = 0; i < block; i += 8) {
            std::uint64_t bytes;
            std::memcpy(&bytes, mask + i, 8);
            // The bits of each byte, joined in its lowest; what comes from the byte above stays above.
            bytes |= bytes >> 4;
            bytes |= bytes >> 2;
            bytes |= bytes >> 1;
            bytes &= 0x0101010101010101u;
            // Eight bytes that are 0 or 1: the product gathers them in its highest byte.
            word |= (bytes * 0x0102040810204080u >> 56) << i;
        }
        return word;
    }
    for (std::size_t i = 0; i < entries; ++i) word |= static_cast<std::uint64_t>(mask[i] != 0) << i;
    return word;
}

template <typename Entry>
void expand_entries(const Entry* values, std::size_t count, const std::uint8_t* mask, std::size_t entries,
                    Entry* out) {
    const Entry* const end = values + count;
    for (std::size_t start = 0; start < entries; start += block) {
        const std::size_t here = std::min(block, entries - start);
        std::uint64_t word = word_of(mask + start, here);
        if (std::popcount(word) > end - values) throw std::invalid_argument("expand has fewer values than kept entries");
        std::memset(out + start, 0, here * sizeof(Entry));
        for (; word != 0; word &= word - 1) out[start + std::countr_zero(word)] = *values++;
    }
    if (values != end) throw std::invalid_argument("expand has more values than kept entries");
}

#ifdef TAMIS_AVX512
// Entries of 4 bytes as long as 16 of them, and 16 values, are left to read; then as everywhere.
__attribute__((target("avx512f,popcnt"))) void expand_words(const std::uint32_t* values, std::size_t count,
                                                            const std::uint8_t* mask, std::size_t entries,
                                                            std::uint32_t* out) {
    // A result that no cache holds is written past it: to read memory only to overwrite it takes as long again.
    const bool past_cache = entries * sizeof(*out) > (1 << 20) && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
    std::size_t i = 0, used = 0;
    for (; entries - i >= 16 && count - used >= 16; i += 16) {
        const __m128i truths = _mm_loadu_si128(reinterpret_cast<const __m128i*>(mask + i));
        const auto kept = static_cast<__mmask16>(~_mm_movemask_epi8(_mm_cmpeq_epi8(truths, _mm_setzero_si128())));
        const __m512i expanded = _mm512_maskz_expand_epi32(kept, _mm512_loadu_si512(values + used));
        if (past_cache) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i), expanded);
        else _mm512_storeu_si512(out + i, expanded);
        used += static_cast<std::size_t>(__builtin_popcount(kept));
    }
    if (past_cache) _mm_sfence();
    expand_entries(values + used, count - used, mask + i, entries - i, out + i);
}
#endif

template <typename Entry>
void expand_as(const void* values, std::size_t count, const std::uint8_t* mask, std::size_t entries, void* out) {
    expand_entries(static_cast<const Entry*>(values), count, mask, entries, static_cast<Entry*>(out));
}

}  // namespace

void expand(const void* values, std::size_t count, const std::uint8_t* mask, std::size_t entries,
            std::size_t width, void* out) {
    switch (width) {
        case 1: return expand_as<std::uint8_t>(values, count, mask, entries, out);
        case 2: return expand_as<std::uint16_t>(values, count, mask, entries, out);
        case 4:
#ifdef TAMIS_AVX512
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("popcnt"))
                return expand_words(static_cast<const std::uint32_t*>(values), count, mask, entries,
                                    static_cast<std::uint32_t*>(out));
#endif
            return expand_as<std::uint32_t>(values, count, mask, entries, out);
        case 8: return expand_as<std::uint64_t>(values, count, mask, entries, out);
        default: throw std::invalid_argument("expand needs entries of 1, 2, 4 or 8 bytes");
    }
}

}  // namespace tamis
