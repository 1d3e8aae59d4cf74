// Runs every binary kernel of this processor on random layers, in all forms, against a literal convolution, and max-pooling
// and x · slope + shift on random planes against literal ones. Compiled by test_sanitizers.py with the address and
// undefined-behaviour sanitizers; every array has exactly its size.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "affine.h"
#include "binary_conv.h"
#include "pool.h"

using namespace tamis;

namespace {

std::mt19937_64 draw;

std::size_t between(std::size_t least, std::size_t most) { return least + draw() % (most - least + 1); }

template <typename Entry>
Part<const Entry> part(const std::vector<Entry>& entries) {
    return {entries.data(), entries.size()};
}
template <typename Entry>
Part<Entry> room(std::vector<Entry>& entries) {
    return {entries.data(), entries.size()};
}

std::vector<float> numbers(std::size_t count, bool odd_ones) {
    std::normal_distribution<float> normal;
    std::vector<float> result(count);
    for (auto& number : result) {
        number = normal(draw);
        if (odd_ones && draw() % 16 == 0) {
            const float odd[] = {0.0f, -0.0f, std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
            number = odd[draw() % 5];
        }
    }
    return result;
}

std::vector<std::uint8_t> truths(std::size_t count) {
    std::vector<std::uint8_t> result(count);
    for (auto& truth : result) truth = draw() % 2;
    return result;
}

std::vector<std::uint64_t> pack(const std::vector<float>& x, const std::vector<float>& thresholds,
                                const std::vector<std::uint8_t>& flips, std::size_t batch, std::size_t groups,
                                std::size_t each, std::size_t plane) {
    const std::size_t words = (each + 63) / 64;
    std::vector<std::uint64_t> bits(batch * groups * words * plane);
    for (std::size_t n = 0; n < batch; ++n)
        for (std::size_t c = 0; c < groups * each; ++c)
            for (std::size_t p = 0; p < plane; ++p) {
                const bool set = (x[(n * groups * each + c) * plane + p] >= thresholds[c]) != (flips[c] != 0);
                bits[((n * groups + c / each) * words + c % each / 64) * plane + p] |= std::uint64_t{set} << c % each % 64;
            }
    return bits;
}

std::vector<std::uint64_t> pack_weight(const std::vector<std::uint8_t>& weight, std::size_t groups, std::size_t of_group,
                                       std::size_t each, std::size_t taps) {
    const std::size_t words = (each + 63) / 64, rows = (words * taps + 2) / 3 * 3, octs = (of_group + 7) / 8;
    const std::size_t in_word = each < 65536 ? 4 : 1, all = rows + (taps + in_word - 1) / in_word;
    std::vector<std::uint64_t> packed(groups * octs * all * 8);
    for (std::size_t o = 0; o < groups * of_group; ++o) {
        const std::size_t oct = o / of_group * octs + o % of_group / 8;
        const auto at = [&](std::size_t row) -> std::uint64_t& {
            return packed[(oct * all + row) * 8 + o % of_group % 8];
        };
        for (std::size_t c = 0; c < each; ++c)
            for (std::size_t tap = 0; tap < taps; ++tap) {
                const bool set = weight[(o * each + c) * taps + tap];
                at(tap * words + c / 64) |= std::uint64_t{set} << c % 64;
                at(rows + tap / in_word) += std::uint64_t{set} << tap % in_word * 16;
            }
        for (std::size_t row = 0; row < rows; row += 3) at(row + 2) ^= at(row) ^ at(row + 1);
    }
    return packed;
}

template <typename Entry>
void compare(const std::vector<Entry>& wanted, const std::vector<Entry>& found, const BinaryShape& s, const char* kernel,
             const char* form) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (std::memcmp(&wanted[i], &found[i], sizeof(Entry)) == 0) continue;
        if (wanted[i] != wanted[i] && found[i] != found[i]) continue;
        std::printf("%s, %s: entry %zu of %zu differs: outputs %zu, channels %zu, image %zu × %zu, kernel %zu × %zu, "
                    "stride %zu × %zu, padding %zu × %zu, dilation %zu × %zu, groups %zu\n",
                    kernel, form, i, wanted.size(), s.outputs, s.channels, s.height, s.width, s.kernel_height,
                    s.kernel_width, s.stride_y, s.stride_x, s.padding_y, s.padding_x, s.dilation_y, s.dilation_x, s.groups);
        std::exit(1);
    }
}

// A layer of random sizes; `wide` ones have so many channels that counts of ones may need more than 16 bits.
void run_layer(bool wide) {
    BinaryShape s{};
    s.groups = draw() % 4 || wide ? 1 : between(1, 4);
    const std::size_t few = draw() % 2 ? between(1, 40) : between(41, 200);
    const std::size_t each = wide ? between(65530, 65540) : few, of_group = between(1, wide ? 3 : 80);
    s.channels = each * s.groups;
    s.outputs = of_group * s.groups;
    s.kernel_height = between(1, draw() % 8 ? 3 : 7);
    s.kernel_width = between(1, draw() % 8 ? 3 : 7);
    s.stride_y = between(1, 3);
    s.stride_x = between(1, 3);
    s.dilation_y = between(1, 2);
    s.dilation_x = between(1, 2);
    s.padding_y = draw() % 3 ? between(0, 2) : between(0, 8);
    s.padding_x = draw() % 3 ? between(0, 2) : between(0, 8);
    s.height = draw() % 4 ? between(1, wide ? 2 : 20) : 1;
    s.width = draw() % 4 ? between(1, wide ? 2 : 20) : 1;
    const std::size_t reach_y = (s.kernel_height - 1) * s.dilation_y + 1, reach_x = (s.kernel_width - 1) * s.dilation_x + 1;
    if (s.height + 2 * s.padding_y < reach_y || s.width + 2 * s.padding_x < reach_x) return;
    const std::size_t height = (s.height + 2 * s.padding_y - reach_y) / s.stride_y + 1;
    const std::size_t width = (s.width + 2 * s.padding_x - reach_x) / s.stride_x + 1;
    const std::size_t batch = between(0, 3), plane = height * width, taps = s.kernel_height * s.kernel_width;
    const auto x = numbers(batch * s.channels * s.height * s.width, true), thresholds = numbers(s.channels, true);
    const auto flips = truths(s.channels), weight = truths(s.outputs * each * taps);
    const auto bits = pack(x, thresholds, flips, batch, s.groups, each, s.height * s.width);
    const auto packed = pack_weight(weight, s.groups, of_group, each, taps);

    std::vector<float> sums;
    for (std::size_t n = 0; n < batch; ++n)
        for (std::size_t o = 0; o < s.outputs; ++o)
            for (std::size_t y = 0; y < height; ++y)
                for (std::size_t z = 0; z < width; ++z) {
                    int sum = 0;
                    for (std::size_t tap = 0; tap < taps; ++tap) {
                        const std::size_t row = y * s.stride_y + tap / s.kernel_width * s.dilation_y - s.padding_y;
                        const std::size_t column = z * s.stride_x + tap % s.kernel_width * s.dilation_x - s.padding_x;
                        if (row >= s.height || column >= s.width) continue;  // below 0, too: it has wrapped around
                        for (std::size_t c = 0; c < each; ++c) {
                            const std::size_t channel = o / of_group * each + c;
                            const float number = x[((n * s.channels + channel) * s.height + row) * s.width + column];
                            const bool set = (number >= thresholds[channel]) != (flips[channel] != 0);
                            sum += set == (weight[(o * each + c) * taps + tap] != 0) ? 1 : -1;
                        }
                    }
                    sums.push_back(static_cast<float>(sum));
                }

    const auto alpha = numbers(s.outputs, false), full = numbers(s.outputs * plane, false);
    const auto beta = numbers(plane, false), by_row = numbers(height, false), by_column = numbers(width, false);
    const std::size_t out_groups = draw() % 2 ? 1 : s.groups;
    const auto bias = numbers(s.outputs, false), slope = numbers(s.outputs, false), shift = numbers(s.outputs, false);
    const auto added = numbers(batch * s.outputs * plane, true);
    const auto out_thresholds = numbers(s.outputs, true);
    const auto out_flips = truths(s.outputs);
    const BinaryPlan plan(s);
    for (int form = 0; form < 4; ++form) {
        std::vector<float> wanted(sums.size());
        for (std::size_t i = 0; i < sums.size(); ++i) {
            const std::size_t o = i / plane % s.outputs, p = i % plane;
            float scale = alpha[o];
            if (form == 1) scale = full[o * plane + p];
            if (form == 2) scale *= beta[p];
            if (form == 3) scale = (scale * by_row[p / width]) * by_column[p % width];
            wanted[i] = sums[i] * scale;
        }
        const auto wanted_bits = pack(wanted, out_thresholds, out_flips, batch, out_groups, s.outputs / out_groups, plane);
        for (const BinaryKernel* kernel : binary_kernels())
            for (int ends = 0; ends < 4; ++ends) {
                const std::size_t after = ends & 1 ? 0 : draw() % 32;  // which steps follow
                auto last = wanted;
                for (std::size_t i = 0; i < last.size(); ++i) {
                    const std::size_t o = i / plane % s.outputs;
                    if (after & 1) last[i] += bias[o];
                    if (after & 2) last[i] = after & 16 ? std::fma(last[i], slope[o], shift[o]) : last[i] * slope[o] + shift[o];
                    if (after & 4) last[i] += added[i];
                    if (after & 8 && last[i] < 0) last[i] = 0;
                }
                std::vector<float> out(ends & 1 ? 0 : wanted.size(), 77.0f);
                std::vector<std::uint64_t> out_bits(ends & 1 ? wanted_bits.size() : 0, 77);
                BinaryCall call{};
                call.batch = batch;
                if (ends & 2) {
                    call.bits = part(bits);
                } else {
                    call.x = part(x);
                    call.thresholds = part(thresholds);
                    call.flips = part(flips);
                }
                call.weights = part(packed);
                if (form == 1) call.full = part(full);
                else call.alpha = part(alpha);
                if (form == 2) call.beta = part(beta);
                if (form == 3) call.beta = part(by_row), call.gamma = part(by_column);
                if (ends & 1) {
                    call.out_bits = room(out_bits);
                    call.out_thresholds = part(out_thresholds);
                    call.out_flips = part(out_flips);
                    call.out_groups = out_groups;
                } else {
                    call.out = room(out);
                    if (after & 1) call.bias = part(bias);
                    if (after & 2) call.slope = part(slope), call.shift = part(shift);
                    if (after & 4) call.added = part(added);
                    call.relu = after & 8;
                    call.one_rounding = after & 16;
                }
                if (batch > 0) plan.run(call, *kernel, between(1, 3));
                if (ends & 1) compare(wanted_bits, out_bits, s, kernel->name, "to bits");
                else compare(last, out, s, kernel->name, "to numbers");
            }
    }
    for (const BinaryKernel* kernel : binary_kernels()) {
        std::vector<std::uint64_t> found(bits.size(), 77);
        binary_pack(part(x), batch, s.channels, s.height * s.width, s.groups, part(thresholds), part(flips), room(found),
                    *kernel, 2);
        compare(bits, found, s, kernel->name, "packing");
    }
}

void run_pooling() {
    Pooling p{};
    for (int axis = 0; axis < 2; ++axis) {
        p.size[axis] = between(1, 40);
        p.kernel[axis] = between(1, 4);
        p.stride[axis] = between(1, 3);
        p.dilation[axis] = between(1, 2);
        p.padding[axis] = between(0, p.kernel[axis] / 2);
        const std::size_t reach = (p.kernel[axis] - 1) * p.dilation[axis] + 1, room = p.size[axis] + 2 * p.padding[axis];
        if (room < reach) return;
        p.out_size[axis] = (room - reach) / p.stride[axis] + 1;
    }
    const std::size_t channels = between(1, 4), planes = channels * between(1, 3);
    const auto slope = numbers(channels, true), shift = numbers(channels, true);
    const auto in = numbers(planes * p.size[0] * p.size[1], true);
    const bool sloped = draw() % 2;
    const PoolPrologue before{sloped ? slope.data() : nullptr, sloped ? shift.data() : nullptr, sloped ? channels : 1,
                        draw() % 2 == 0, draw() % 2 == 0};
    std::vector<float> wanted, found(planes * p.out_size[0] * p.out_size[1], 77.0f);
    for (std::size_t plane = 0; plane < planes; ++plane)
        for (std::size_t y = 0; y < p.out_size[0]; ++y)
            for (std::size_t x = 0; x < p.out_size[1]; ++x) {
                float largest = -std::numeric_limits<float>::infinity();
                for (std::size_t tap = 0; tap < p.kernel[0] * p.kernel[1]; ++tap) {
                    const std::size_t row = y * p.stride[0] + tap / p.kernel[1] * p.dilation[0] - p.padding[0];
                    const std::size_t column = x * p.stride[1] + tap % p.kernel[1] * p.dilation[1] - p.padding[1];
                    if (row >= p.size[0] || column >= p.size[1]) continue;  // below 0, too: it has wrapped around
                    float value = in[(plane * p.size[0] + row) * p.size[1] + column];
                    const std::size_t c = plane % channels;
                    if (sloped) value = before.one_rounding ? std::fma(value, slope[c], shift[c]) : value * slope[c] + shift[c];
                    if (before.relu && value < 0) value = 0;
                    if (value > largest || value != value) largest = value;
                }
                wanted.push_back(largest);
            }
    max_pool(in.data(), planes, p, before, found.data(), between(1, 3));
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i] != found[i] && (wanted[i] == wanted[i] || found[i] == found[i])) {
            std::printf("pooling %zu × %zu: entry %zu is %g, not %g\n", p.size[0], p.size[1], i, found[i], wanted[i]);
            std::exit(1);
        }
}

void run_affine() {
    const std::size_t channels = between(1, 4), planes = channels * between(1, 3), entries = between(0, 70);
    const auto slope = numbers(channels, true), shift = numbers(channels, true), in = numbers(planes * entries, true);
    const bool one_rounding = draw() % 2 == 0;
    std::vector<float> found(in.size(), 77.0f);
    affine({in.data(), slope.data(), shift.data(), channels, entries, one_rounding, found.data()}, planes, between(1, 3));
    for (std::size_t i = 0; i < in.size(); ++i) {
        const std::size_t c = i / entries % channels;
        const float wanted = one_rounding ? std::fma(in[i], slope[c], shift[c]) : in[i] * slope[c] + shift[c];
        if (wanted != found[i] && (wanted == wanted || found[i] == found[i])) {
            std::printf("affine of %zu entries: entry %zu is %g, not %g\n", entries, i, found[i], wanted);
            std::exit(1);
        }
    }
}

}  // namespace

int main(int count, char** arguments) {
    const int layers = count > 1 ? std::atoi(arguments[1]) : 300;
    draw.seed(count > 2 ? std::atoi(arguments[2]) : 0);
    for (int i = 0; i < layers; ++i) run_layer(i % 100 == 50);
    for (int i = 0; i < 3 * layers; ++i) run_pooling();
    for (int i = 0; i < 3 * layers; ++i) run_affine();
    for (const BinaryKernel* kernel : binary_kernels()) std::printf("%s ", kernel->name);
    std::printf("agree on %d layers\n", layers);
}
