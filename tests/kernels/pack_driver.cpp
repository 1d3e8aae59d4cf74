// Reads rows of words as those of random symbols: the right ones, which must give the symbols again, and any others, which may
// come from a forged file. Joins the bytes of numbers. Compiled by test_sanitizers.py with the sanitizers of the compiler;
// every array has exactly its size.

#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "pack.h"

using namespace tamis;

namespace {

std::mt19937_64 draw;

std::size_t between(std::size_t least, std::size_t most) { return least + draw() % (most - least + 1); }

[[noreturn]] void fail(const char* what) {
    std::printf("%s\n", what);
    std::exit(1);
}

template <typename Number>
std::vector<Number> drawn(std::size_t count) {
    std::vector<Number> result(count);
    for (auto& number : result) number = static_cast<Number>(draw());
    return result;
}

// They sum to 2^24; some are 0, and some are most of it.
std::vector<std::uint32_t> frequencies_of(std::size_t symbols) {
    std::vector<std::uint32_t> result(symbols);
    std::uint32_t left = 1u << 24;
    for (std::size_t s = 0; s + 1 < symbols; ++s) {
        const std::uint32_t most = draw() % 4 == 0 ? left : left / 64;
        result[s] = draw() % 3 == 0 ? 0 : static_cast<std::uint32_t>(between(0, most));
        left -= result[s];
    }
    result.back() = left;
    return result;
}

void check_symbols() {
    const std::size_t symbols = between(2, 256), group = between(1, 8), count = between(0, 300);
    const auto frequencies = frequencies_of(symbols);
    const auto lookup = drawn<std::uint8_t>(symbols * group);
    std::vector<std::uint8_t> written(count), read(count), digits(count * group);
    for (auto& symbol : written)
        do symbol = static_cast<std::uint8_t>(between(0, symbols - 1));
        while (frequencies[symbol] == 0);
    std::vector<std::uint32_t> room(count + 2);
    const std::size_t used = ans_compress<std::uint8_t>(written, frequencies, room);
    const std::vector<std::uint32_t> words(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(used));
    if (!ans_decompress<std::uint8_t>(words, frequencies, read) || read != written) fail("symbols differ");
    if (!ans_decompress_digits(words, frequencies, lookup, group, digits)) fail("digits are refused");
    for (std::size_t i = 0; i < digits.size(); ++i)
        if (digits[i] != lookup[written[i / group] * group + i % group]) fail("digits differ");
    const auto others = drawn<std::uint32_t>(between(0, 40));  // whatever they give, it is the same
    std::vector<std::uint8_t> more(count * group);
    const bool sound = ans_decompress<std::uint8_t>(others, frequencies, read);
    if (sound != ans_decompress_digits(others, frequencies, lookup, group, more)) fail("one refuses, and one does not");
}

void check_bytes() {
    const std::size_t width = std::size_t{2} << between(0, 2), count = between(0, 70), stride = count + between(0, 5);
    const auto lower = drawn<std::uint8_t>(stride * (width - 2) + count), top = drawn<std::uint8_t>(count);
    std::vector<std::uint8_t> numbers(count * width);
    join_bytes(lower.data(), static_cast<std::ptrdiff_t>(stride), top, width, numbers.data());
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < width; ++k)
            if (numbers[i * width + k] != (k + 1 == width ? top[i] : lower[k * stride + i])) fail("bytes differ");
}

}  // namespace

int main(int, char** arguments) {
    const long rows = std::atol(arguments[1]);
    draw.seed(static_cast<std::uint64_t>(std::atol(arguments[2])));
    for (long row = 0; row < rows; ++row) {
        check_symbols();
        check_bytes();
    }
    std::printf("agree on %ld rows\n", rows);
}
