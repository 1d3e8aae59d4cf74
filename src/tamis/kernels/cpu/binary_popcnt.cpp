// Binary layers with the popcnt instruction of x86-64.

#include "binary.h"

#if defined(__POPCNT__) && defined(__x86_64__)

namespace {
std::int32_t ones(std::uint64_t word) { return __builtin_popcountll(word); }
}  // namespace

#include "binary_words.h"

namespace tamis {
namespace {
constexpr BinaryKernel kernel{"popcnt", &pack, &join, &copy, &mix, nullptr, &multiply, &multiply};
}
const BinaryKernel* binary_popcnt() { return &kernel; }
}  // namespace tamis

#else

const tamis::BinaryKernel* tamis::binary_popcnt() { return nullptr; }

#endif
