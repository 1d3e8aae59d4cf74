// The Euclidean projection of many columns onto the ℓ1 ball of one radius.

#pragma once

#include <cstddef>

namespace tamis {

// Each of `count` columns is a row of `width` numbers, side by side, and one number more where there are biases.
template <typename Number>
struct Columns {
    Number* weights;  // (count, width)
    Number* biases;   // (count), or null
};

// Writes the projection of every column of `from` to `to`, which may be the same memory, and what was taken from the
// magnitude of its numbers to `thresholds`: 0 where a column is left as it is, which it is up to a norm of
// radius (1 + slack). A column with a number that is not finite is left alone, and its threshold is not a number.
template <typename Number>
void project_l1(const Columns<const Number>& from, const Columns<Number>& to, std::size_t count, std::size_t width,
                double radius, double slack, double* thresholds, std::size_t threads);

}  // namespace tamis
