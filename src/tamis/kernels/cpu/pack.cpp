// Counting goes to four tables in turn, since the same byte twice in a row would wait for its own count. Coding divides by
// multiplying with the reciprocal of a frequency and correcting the quotient, which is at most one too small; decoding
// finds a symbol by a table of 2^11 places, and a search among the few symbols that share one.

#include "pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace tamis {
namespace {

constexpr unsigned precision = 24;
constexpr std::uint32_t total = 1u << precision;
constexpr std::uint64_t start = std::uint64_t{1} << 32;
constexpr unsigned coarse = 11;  // bits of the decoder's table, which should fit the first-level cache
constexpr std::size_t most_digits = 8;  // in a symbol

std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
#if defined(__SIZEOF_INT128__)
    return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#else
    const std::uint64_t a_low = a & 0xFFFFFFFFu, a_high = a >> 32, b_low = b & 0xFFFFFFFFu, b_high = b >> 32;
    const std::uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    const std::uint64_t other = a_low * b_high + (middle & 0xFFFFFFFFu);
    return a_high * b_high + (middle >> 32) + (other >> 32);
#endif
}

// Where the interval of each symbol begins among 2^24 places, and at the end 2^24.
std::vector<std::uint32_t> beginnings(std::span<const std::uint32_t> frequencies) {
    std::vector<std::uint32_t> first(frequencies.size() + 1, 0);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        sum += frequencies[i];
        if (sum > total) break;
        first[i + 1] = static_cast<std::uint32_t>(sum);
    }
    if (sum != total) throw std::invalid_argument("frequencies must sum to 2^24");
    return first;
}

struct Share {
    std::uint64_t reciprocal;
    std::uint32_t frequency, first;
};

struct Interval {
    std::uint32_t first, frequency, symbol;
};

// The interval that a place belongs to, of those of a symbol and the ones after it.
inline Interval interval_of(std::uint32_t place, std::size_t symbol, std::span<const std::uint32_t> first,
                            std::span<const std::uint32_t> frequencies) {
    // Most symbols that share a place of the table are next to each other; a search pays only where there are many.
    for (int steps = 0; first[symbol + 1] <= place; ++symbol) {
        if (++steps < 4) continue;
        const auto after = std::upper_bound(first.begin() + static_cast<std::ptrdiff_t>(symbol), first.end(), place);
        symbol = static_cast<std::size_t>(after - first.begin()) - 1;
        break;
    }
    return {first[symbol], frequencies[symbol], static_cast<std::uint32_t>(symbol)};
}

template <unsigned base, unsigned group>
void pack_groups(std::span<const std::uint8_t> digits, std::span<std::uint8_t> out) {
    const std::size_t full = digits.size() / group;
    for (std::size_t i = 0; i < full; ++i) {
        unsigned symbol = 0;
        for (unsigned k = group; k-- > 0;) symbol = symbol * base + digits[i * group + k];
        out[i] = static_cast<std::uint8_t>(symbol);
    }
}

// The symbols of words, handed on one by one; false if the words are not those of so many symbols. Each step waits for the
// one before, and is little more than one look into a table and one product.
template <typename Sink>
bool decoded(std::span<const std::uint32_t> words, std::span<const std::uint32_t> frequencies, std::size_t count,
             Sink&& take) {
    const auto first = beginnings(frequencies);
    if (words.size() < 2) return false;
    std::vector<Interval> table(std::size_t{1} << coarse);
    for (std::uint32_t place = 0, symbol = 0; place < table.size(); ++place) {
        while (symbol + 1 < frequencies.size() && first[symbol + 1] <= place << (precision - coarse)) ++symbol;
        table[place] = {first[symbol], frequencies[symbol], symbol};
    }
    std::size_t left = words.size() - 2;
    std::uint64_t state = static_cast<std::uint64_t>(words[left + 1]) << 32 | words[left];
    for (; count > 0; --count) {
        const auto rest = static_cast<std::uint32_t>(state) & (total - 1);
        Interval at = table[rest >> (precision - coarse)];
        if (rest - at.first >= at.frequency) at = interval_of(rest, at.symbol, first, frequencies);
        take(at.symbol);
        state = (state >> precision) * at.frequency + rest - at.first;
        // Words may be forged: where they end too early, the state stays small, and the comparison below says so.
        if (state < start && left > 0) state = state << 32 | words[--left];
    }
    return state == start && left == 0;
}

template <std::size_t width>
void join_width(const std::uint8_t* lower, std::ptrdiff_t stride, const std::uint8_t* top, std::size_t count,
                std::uint8_t* out) {
    std::array<const std::uint8_t*, width> rows{};
    for (std::size_t k = 0; k + 1 < width; ++k) rows[k] = lower + static_cast<std::ptrdiff_t>(k) * stride;
    rows[width - 1] = top;
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < width; ++k) out[i * width + k] = rows[k][i];
}

}  // namespace

void count_bytes(std::span<const std::uint8_t> bytes, std::span<std::uint64_t> counts) {
    if (counts.size() != 256) throw std::invalid_argument("count_bytes needs 256 counts");
    std::array<std::array<std::uint64_t, 256>, 4> tables{};
    std::size_t i = 0;
    for (; i + 4 <= bytes.size(); i += 4)
        for (std::size_t k = 0; k < 4; ++k) ++tables[k][bytes[i + k]];
    for (; i < bytes.size(); ++i) ++tables[0][bytes[i]];
    for (std::size_t byte = 0; byte < 256; ++byte)
        for (const auto& table : tables) counts[byte] += table[byte];
}

void pack_digits(std::span<const std::uint8_t> digits, unsigned base, unsigned group, std::span<std::uint8_t> out) {
    if (out.size() != (digits.size() + group - 1) / group)
        throw std::invalid_argument("pack_digits needs one byte for each group of digits");
    switch (base * 16 + group) {
        case 2 * 16 + 8: pack_groups<2, 8>(digits, out); break;
        case 3 * 16 + 5: pack_groups<3, 5>(digits, out); break;
        case 4 * 16 + 4: pack_groups<4, 4>(digits, out); break;
        case 16 * 16 + 2: pack_groups<16, 2>(digits, out); break;
        default: throw std::invalid_argument("pack_digits packs digits of base 2, 3, 4 or 16");
    }
    const std::size_t full = digits.size() / group;
    if (full == out.size()) return;
    unsigned symbol = 0;
    for (std::size_t i = digits.size(); i-- > full * group;) symbol = symbol * base + digits[i];
    out[full] = static_cast<std::uint8_t>(symbol);
}

void join_bytes(const std::uint8_t* lower, std::ptrdiff_t stride, std::span<const std::uint8_t> top, std::size_t width,
                std::uint8_t* out) {
    switch (width) {
        case 2: return join_width<2>(lower, stride, top.data(), top.size(), out);
        case 4: return join_width<4>(lower, stride, top.data(), top.size(), out);
        case 8: return join_width<8>(lower, stride, top.data(), top.size(), out);
        default: throw std::invalid_argument("join_bytes joins numbers of 2, 4 or 8 bytes");
    }
}

template <typename Symbol>
std::size_t ans_compress(std::span<const Symbol> symbols, std::span<const std::uint32_t> frequencies,
                         std::span<std::uint32_t> words) {
    const auto first = beginnings(frequencies);
    std::vector<Share> shares(frequencies.size());
    for (std::size_t s = 0; s < shares.size(); ++s)
        shares[s] = {frequencies[s] ? ~std::uint64_t{0} / frequencies[s] : 0, frequencies[s], first[s]};
    std::uint64_t state = start;
    std::size_t used = 0;
    // From the last symbol on: ANS is a stack, and the decoder shall give the first symbol first.
    for (std::size_t i = symbols.size(); i-- > 0;) {
        if (static_cast<std::size_t>(symbols[i]) >= shares.size()) throw std::invalid_argument("a symbol is too large");
        const Share& share = shares[static_cast<std::size_t>(symbols[i])];
        if (share.frequency == 0) throw std::invalid_argument("a symbol has no frequency");
        // A word leaves where the next state would need more than 64 bits; the decoder takes it back at the same step.
        if (state >> (64 - precision) >= share.frequency) {
            if (used == words.size()) throw std::invalid_argument("the words do not suffice");
            words[used++] = static_cast<std::uint32_t>(state);
            state >>= 32;
        }
        // The reciprocal is rounded down, so that the quotient is never too large.
        std::uint64_t quotient = high_product(state, share.reciprocal);
        std::uint64_t rest = state - quotient * share.frequency;
        while (rest >= share.frequency) {
            ++quotient;
            rest -= share.frequency;
        }
        state = (quotient << precision) + share.first + rest;
    }
    if (words.size() - used < 2) throw std::invalid_argument("the words do not suffice");
    words[used++] = static_cast<std::uint32_t>(state);
    words[used++] = static_cast<std::uint32_t>(state >> 32);
    return used;
}

template <typename Symbol>
bool ans_decompress(std::span<const std::uint32_t> words, std::span<const std::uint32_t> frequencies,
                    std::span<Symbol> symbols) {
    return decoded(words, frequencies, symbols.size(),
                   [out = symbols.data()](std::uint32_t symbol) mutable { *out++ = static_cast<Symbol>(symbol); });
}

bool ans_decompress_digits(std::span<const std::uint32_t> words, std::span<const std::uint32_t> frequencies,
                           std::span<const std::uint8_t> lookup, std::size_t group, std::span<std::uint8_t> digits) {
    if (group < 1 || group > most_digits || lookup.size() != frequencies.size() * group || digits.size() % group != 0)
        throw std::invalid_argument("ans_decompress_digits needs the digits of each symbol, and room for whole symbols");
    std::vector<std::array<std::uint8_t, most_digits>> wide(frequencies.size());
    for (std::size_t s = 0; s < wide.size(); ++s) std::copy_n(lookup.data() + s * group, group, wide[s].data());
    std::uint8_t* out = digits.data();
    std::uint8_t* const end = out + digits.size();
    return decoded(words, frequencies, digits.size() / group, [&](std::uint32_t symbol) {
        // All eight bytes where there is room: those beyond the group are overwritten by the symbols after it.
        if (static_cast<std::size_t>(end - out) >= most_digits) std::memcpy(out, wide[symbol].data(), most_digits);
        else std::memcpy(out, wide[symbol].data(), group);
        out += group;
    });
}

template std::size_t ans_compress(std::span<const std::uint8_t>, std::span<const std::uint32_t>,
                                  std::span<std::uint32_t>);
template std::size_t ans_compress(std::span<const std::int32_t>, std::span<const std::uint32_t>,
                                  std::span<std::uint32_t>);
template bool ans_decompress(std::span<const std::uint32_t>, std::span<const std::uint32_t>, std::span<std::uint8_t>);
template bool ans_decompress(std::span<const std::uint32_t>, std::span<const std::uint32_t>, std::span<std::int32_t>);

}  // namespace tamis
