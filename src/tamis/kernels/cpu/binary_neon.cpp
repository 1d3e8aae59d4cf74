// Binary layers with NEON: two words in a register, whose ones cnt counts byte by byte. What becomes of the counts is left to
// the compiler, as in the kernels of single words.

#include "binary.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include <arm_neon.h>

namespace {
[[maybe_unused]] std::int32_t ones(std::uint64_t word) { return __builtin_popcountll(word); }
}  // namespace

#include "binary_words.h"

namespace tamis {
namespace {

constexpr std::size_t rows_of_bytes = 30;  // rows add up to 24 for three of them in each byte: no more than 240

uint8x16_t ones_of(uint64x2_t words) { return vcntq_u8(vreinterpretq_u8_u64(words)); }

// Two channels and four pixels; pixels past the last one lie in the padding of the patches, and are not written.
void by_pixels(const BinaryBlock& block) {
    for (std::size_t channel = block.first; channel < block.last; channel += 2) {
        const std::uint64_t* const weights = block.weights + channel / 8 * block.oct_words + channel % 8;
        for (std::size_t pixel = 0; pixel < block.pixels; pixel += 4) {
            uint64x2_t counts[2][2] = {{vdupq_n_u64(0), vdupq_n_u64(0)}, {vdupq_n_u64(0), vdupq_n_u64(0)}};
            for (std::size_t start = 0; start < block.rows; start += rows_of_bytes) {
                const std::size_t end = block.rows - start < rows_of_bytes ? block.rows : start + rows_of_bytes;
                uint8x16_t bytes[2][2] = {{vdupq_n_u8(0), vdupq_n_u8(0)}, {vdupq_n_u8(0), vdupq_n_u8(0)}};
                for (std::size_t row = start; row < end; row += 3) {
                    const std::uint64_t *const a = block.patches + row * block.stride + pixel, *const w = weights + row * 8;
                    for (int c = 0; c < 2; ++c)
                        for (int p = 0; p < 2; ++p) {
                            const uint64x2_t x = veorq_u64(vdupq_n_u64(w[c]), vld1q_u64(a + 2 * p));
                            const uint64x2_t y = veorq_u64(vdupq_n_u64(w[8 + c]), vld1q_u64(a + block.stride + 2 * p));
                            const uint64x2_t sum =
                                veorq_u64(vdupq_n_u64(w[16 + c]), vld1q_u64(a + 2 * block.stride + 2 * p));
                            const uint64x2_t carry = vorrq_u64(vandq_u64(x, y), vbicq_u64(vorrq_u64(x, y), sum));
                            const uint8x16_t half = ones_of(carry);
                            bytes[c][p] = vaddq_u8(bytes[c][p], vaddq_u8(ones_of(sum), vaddq_u8(half, half)));
                        }
                }
                for (int c = 0; c < 2; ++c)
                    for (int p = 0; p < 2; ++p)
                        counts[c][p] = vaddq_u64(counts[c][p], vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(bytes[c][p]))));
            }
            for (std::size_t c = 0; c < 2 && channel + c < block.last; ++c) {
                std::uint64_t each[4];
                vst1q_u64(each, counts[c][0]);
                vst1q_u64(each + 2, counts[c][1]);
                for (std::size_t p = 0; p < 4 && pixel + p < block.pixels; ++p)
                    finish(block, channel + c, pixel + p, static_cast<std::int32_t>(each[p]));
            }
        }
    }
}

constexpr BinaryKernel kernel{"neon", &pack, &join, &copy, &mix, nullptr, &by_pixels, &by_pixels};

}  // namespace

const BinaryKernel* binary_neon() { return &kernel; }

}  // namespace tamis

#else

const tamis::BinaryKernel* tamis::binary_neon() { return nullptr; }

#endif
