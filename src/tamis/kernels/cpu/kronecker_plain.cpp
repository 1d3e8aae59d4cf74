// Kronecker-sparse products in C++ alone, for any processor: four lanes, which compilers put into registers.

#include "kronecker.h"

namespace tamis {
namespace {

constexpr std::size_t lanes = 4;

std::ptrdiff_t at(std::size_t index, std::ptrdiff_t stride) { return static_cast<std::ptrdiff_t>(index) * stride; }

// Up to `rows` rows of one vector of a panel; lanes from the width on are zeros that no one stores.
template <std::size_t rows>
void tile(const KroneckerPanel& panel, const float* spread, const float* vector, float* out, std::size_t width) {
    float sums[rows][lanes] = {};
    std::ptrdiff_t places[lanes];
    for (std::size_t lane = 0; lane < lanes; ++lane) places[lane] = static_cast<std::ptrdiff_t>(lane % panel.group);
    for (std::size_t t = 0; t < panel.depth; ++t) {
        float those[lanes] = {};
        // Two loops: the first has a length that the compiler knows, and becomes one load.
        if (width == lanes)
            for (std::size_t lane = 0; lane < lanes; ++lane) those[lane] = vector[lane];
        else
            for (std::size_t lane = 0; lane < width; ++lane) those[lane] = vector[lane];
        for (std::size_t r = 0; r < rows; ++r) {
            const float* from = spread + at(r, panel.spread_row);
            for (std::size_t lane = 0; lane < lanes; ++lane) sums[r][lane] += from[places[lane]] * those[lane];
        }
        spread += panel.spread_step;
        vector += panel.vectors_step;
    }
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t lane = 0; lane < width; ++lane) {
            float& to = out[at(r, panel.out_row) + at(lane, 1)];
            to = panel.add ? to + sums[r][lane] : sums[r][lane];
        }
}

void multiply(const KroneckerPanel& panel) {
    for (std::size_t v = 0; v < panel.count; ++v) {
        const std::size_t width = v + 1 == panel.count ? panel.last_width : panel.width;
        const float* vector = panel.vectors + at(v, panel.vectors_gap);
        float* out = panel.out + at(v, panel.out_gap);
        std::size_t r = 0;
        for (; r + 4 <= panel.rows; r += 4)
            tile<4>(panel, panel.spread + at(r, panel.spread_row), vector, out + at(r, panel.out_row), width);
        for (; r < panel.rows; ++r)
            tile<1>(panel, panel.spread + at(r, panel.spread_row), vector, out + at(r, panel.out_row), width);
    }
}

void mix(const KroneckerMixture& mixture) {
    for (std::size_t r = 0; r < mixture.rows; ++r) {
        const float *in = mixture.in + at(r, mixture.in_row), *weights = mixture.weights;
        float* out = mixture.out + at(r, mixture.out_row);
        for (std::size_t v = 0; v < mixture.count; ++v) {
            float sums[lanes] = {};
            const std::size_t written = v + 1 == mixture.count ? mixture.out_last : mixture.out_gap;
            for (std::size_t t = 0; t < mixture.depth; ++t, weights += lanes)
                for (std::size_t lane = 0; lane < written; ++lane)
                    sums[lane] += in[mixture.places[t * lanes + lane]] * weights[lane];
            for (std::size_t lane = 0; lane < written; ++lane) out[lane] = sums[lane];
            in += mixture.in_gap;
            out += mixture.out_gap;
        }
    }
}

void dots(const KroneckerDots& given) {
    for (std::size_t r = 0; r < given.rows; ++r)
        for (std::size_t v = 0; v < given.columns; ++v) {
            const float *left = given.left + at(r, given.left_row), *right = given.right + at(v, given.right_row);
            float sums[lanes] = {};
            std::size_t z = 0;
            for (; z + lanes <= given.depth; z += lanes)
                for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += left[z + lane] * right[z + lane];
            for (; z < given.depth; ++z) sums[0] += left[z] * right[z];
            float& to = given.out[at(r, given.out_row) + at(v, given.out_column)];
            // In pairs, a fixed order for every depth.
            to = (given.add ? to : 0.0f) + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
        }
}

void mixed_sum(const KroneckerMixedSum& sum) {
    for (std::size_t v = 0; v < sum.count; ++v) {
        const std::size_t read = v + 1 == sum.count ? sum.in_last : sum.in_gap;
        for (std::size_t t = 0; t < sum.depth; ++t) {
            float sums[lanes] = {}, *out = sum.out + (v * sum.depth + t) * lanes;
            const float *in = sum.in + v * sum.in_gap, *other = sum.other + v * sum.other_gap;
            for (std::size_t z = 0; z < sum.rows; ++z, in += sum.in_row, other += sum.other_row)
                for (std::size_t lane = 0; lane < read; ++lane)
                    sums[lane] += in[lane] * other[sum.places[t * lanes + lane]];
            for (std::size_t lane = 0; lane < lanes; ++lane) out[lane] = (sum.add ? out[lane] : 0.0f) + sums[lane];
        }
    }
}

constexpr KroneckerKernel kernel{"plain", lanes, 4, &multiply, &mix, &dots, &mixed_sum, nullptr};

}  // namespace

const KroneckerKernel* kronecker_plain() { return &kernel; }

}  // namespace tamis
