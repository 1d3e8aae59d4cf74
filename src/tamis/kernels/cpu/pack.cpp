// Counting goes to four tables in turn, since the same byte twice in a row would wait for its own count. Coding divides by
// multiplying with the reciprocal of a frequency and correcting the quotient, which is at most one too small; decoding
// finds a symbol by a table of 2^12 places, and a search among the few symbols that share one.

#include "pack.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

namespace tamis {
namespace {

constexpr unsigned precision = 24;
constexpr std::uint32_t total = 1u << precision;
constexpr std::uint64_t start = std::uint64_t{1} << 32;
constexpr unsigned coarse = 12;  // bits of the decoder's table

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

template <unsigned base, unsigned group>
void pack_groups(std::span<const std::uint8_t> digits, std::span<std::uint8_t> out) {
    const std::size_t full = digits.size() / group;
    for (std::size_t i = 0; i < full; ++i) {
        unsigned symbol = 0;
        for (unsigned k = group; k-- > 0;) symbol = symbol * base + digits[i * group + k];
        out[i] = static_cast<std::uint8_t>(symbol);
    }
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

template <typename Symbol>
std::size_t ans_compress(std::span<const Symbol> symbols, std::span<const std::uint32_t> frequencies,
                         std::span<std::uint32_t> words) {
    const auto first = beginnings(frequencies);
    std::vector<Share> shares(frequencies.size());
    for (std::size_t s = 0; s < shares.size(); ++s)
        shares[s] = {frequencies[s] ? ~std::uint64_t{0} / frequencies[s] : 0, frequencies[s], first[s]};
    std::uint64_t state = start;
    std::size_t used = 0;
    for (std::size_t i = symbols.size(); i-- > 0;) {
        if (static_cast<std::size_t>(symbols[i]) >= shares.size()) throw std::invalid_argument("a symbol is too large");
        const Share& share = shares[static_cast<std::size_t>(symbols[i])];
        if (share.frequency == 0) throw std::invalid_argument("a symbol has no frequency");
        if (state >> (64 - precision) >= share.frequency) {
            if (used == words.size()) throw std::invalid_argument("the words do not suffice");
            words[used++] = static_cast<std::uint32_t>(state);
            state >>= 32;
        }
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
    const auto first = beginnings(frequencies);
    if (words.size() < 2) return false;
    // For each place of the coarse table, the symbol that its first fine place belongs to.
    std::vector<std::uint32_t> table((1u << coarse) + 1);
    for (std::uint32_t place = 0, symbol = 0; place < table.size(); ++place) {
        while (symbol + 1 < frequencies.size() && first[symbol + 1] <= place << (precision - coarse)) ++symbol;
        table[place] = symbol;
    }
    std::size_t left = words.size() - 2;
    std::uint64_t state = static_cast<std::uint64_t>(words[left + 1]) << 32 | words[left];
    for (auto& out : symbols) {
        const auto rest = static_cast<std::uint32_t>(state) & (total - 1);
        const std::uint32_t* low = first.data() + table[rest >> (precision - coarse)];
        const std::uint32_t* high = first.data() + table[(rest >> (precision - coarse)) + 1] + 1;
        // The last symbol of those from `low` on that begins at `rest` or before.
        if (high - low <= 4)
            while (low[1] <= rest) ++low;
        else
            low = std::upper_bound(low, high, rest) - 1;
        const auto symbol = static_cast<std::size_t>(low - first.data());
        out = static_cast<Symbol>(symbol);
        state = (state >> precision) * frequencies[symbol] + rest - *low;
        if (state < start && left > 0) state = state << 32 | words[--left];
    }
    return state == start && left == 0;
}

template std::size_t ans_compress(std::span<const std::uint8_t>, std::span<const std::uint32_t>,
                                  std::span<std::uint32_t>);
template std::size_t ans_compress(std::span<const std::int32_t>, std::span<const std::uint32_t>,
                                  std::span<std::uint32_t>);
template bool ans_decompress(std::span<const std::uint32_t>, std::span<const std::uint32_t>, std::span<std::uint8_t>);
template bool ans_decompress(std::span<const std::uint32_t>, std::span<const std::uint32_t>, std::span<std::int32_t>);

}  // namespace tamis
