// The levels that one block of features is rounded to, where every rounding hears of the errors before it.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis {

// The most features of one block: its errors stay in the first-level cache.
constexpr std::size_t most_block_features = 64;

// What the product of a level and a scale is rounded to before it counts.
enum class Rounding { to_float64, to_float32, to_float16, to_bfloat16 };

struct Strides {
    std::ptrdiff_t problem, row, column;
};

// Entries of (problems, rows, columns).
template <typename Entry>
struct Entries {
    Entry* entries;
    Strides strides;

    Entry* at(std::size_t problem, std::size_t row, std::size_t column) const {
        return entries + static_cast<std::ptrdiff_t>(problem) * strides.problem +
               static_cast<std::ptrdiff_t>(row) * strides.row + static_cast<std::ptrdiff_t>(column) * strides.column;
    }
};

// The level of index i of a neuron is levels[i] * scale, rounded. middles[i] lies between levels[i] and levels[i + 1].
struct Levels {
    const double* levels;
    const double* middles;
    std::size_t count;
    Rounding rounding;
};

// The columns of all but start, target and keep lie side by side.
struct FeedbackBlock {
    std::size_t problems, features, neurons;
    Entries<const double> start, target;  // (problems, features, neurons)
    Entries<const double> coupling;       // (problems, features, features); only what is below the diagonal is read
    const double* scales;                 // (problems, neurons)
    Levels levels;
    Entries<std::int32_t> indices;     // (problems, features, neurons), written
    Entries<double> errors;            // likewise
    Entries<const std::uint8_t> keep;  // of the same shape, 0 where a weight is pruned; no entries where none is
};

// For t = 0, 1, … and every neuron: z = start_t + Σ_{j<t} coupling_tj errors_j, added up in this order;
// indices_t = how many middles are below z / scale, and errors_t = target_t − the level of that index.
// Where a weight is pruned, indices_t = 0 and errors_t = target_t instead.
// Throws std::invalid_argument where there are more features than most_block_features.
void feedback(const FeedbackBlock& block);

}  // namespace tamis
