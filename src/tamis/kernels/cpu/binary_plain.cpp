// Binary layers in C++ alone, for any processor.

#include "binary.h"

namespace {
// Counts of pairs, of fours, of bytes; the product adds up the bytes in the highest one.
std::int32_t ones(std::uint64_t word) {
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return static_cast<std::int32_t>(word * 0x0101010101010101u >> 56);
}
}  // namespace

#include "binary_words.h"

namespace tamis {
namespace {
constexpr BinaryKernel kernel{"plain", &pack, &join, &copy, &mix, nullptr, &multiply, &multiply};
}
const BinaryKernel* binary_plain() { return &kernel; }
}  // namespace tamis
