// Small integers as few bytes: counted, packed, and coded by asymmetric numeral systems.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tamis {

// Adds to each of 256 counts how often that byte occurs.
void count_bytes(std::span<const std::uint8_t> bytes, std::span<std::uint64_t> counts);

// out[i] = Σ_k digits[group i + k] base^k, where base^group ≤ 256; digits that are missing at the end are 0.
void pack_digits(std::span<const std::uint8_t> digits, unsigned base, unsigned group, std::span<std::uint8_t> out);

// Numbers of 2, 4 or 8 bytes, one row for each of their bytes: of the lowest at `lower`, of each further one `stride` bytes
// after the one before, and of the highest at `top`. Writes the numbers, width × top.size() bytes.
void join_bytes(const std::uint8_t* lower, std::ptrdiff_t stride, std::span<const std::uint8_t> top, std::size_t width,
                std::uint8_t* out);

// The words of symbols whose frequencies sum to 2^24, as artifact/encodings/ans.py defines them; their number.
// Throws std::invalid_argument for a symbol without a frequency, or if there is not enough room.
template <typename Symbol>
std::size_t ans_compress(std::span<const Symbol> symbols, std::span<const std::uint32_t> frequencies,
                         std::span<std::uint32_t> words);

// The symbols of words; false if the words are not those of so many symbols.
template <typename Symbol>
bool ans_decompress(std::span<const std::uint32_t> words, std::span<const std::uint32_t> frequencies,
                    std::span<Symbol> symbols);

// The same for symbols that stand for a group of at most eight digits each: symbol s for those from lookup[group s] on.
bool ans_decompress_digits(std::span<const std::uint32_t> words, std::span<const std::uint32_t> frequencies,
                           std::span<const std::uint8_t> lookup, std::size_t group, std::span<std::uint8_t> digits);

}  // namespace tamis
