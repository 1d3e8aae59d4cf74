// Runs every kernel of Kronecker-sparse products of this processor on random patterns, in all forms, against the sums written
// out. Compiled by test_sanitizers.py with the sanitizers of the compiler; every array has exactly its size.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kronecker.h"

using namespace tamis;

namespace {

std::mt19937_64 draw;

std::size_t between(std::size_t least, std::size_t most) { return least + draw() % (most - least + 1); }

std::vector<float> numbers(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> result(count);
    for (auto& number : result) number = normal(draw);
    return result;
}

// (rows, columns) → (columns, rows)
std::vector<float> turned(const std::vector<float>& matrix, std::size_t rows, std::size_t columns) {
    std::vector<float> result(matrix.size());
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
    return result;
}

// With `more` numbers between the rows, and none after the last.
std::vector<float> apart(const std::vector<float>& matrix, std::size_t rows, std::size_t columns, std::size_t more) {
    std::vector<float> result(rows * columns + (rows - 1) * more, 77.0f);
    for (std::size_t r = 0; r < rows; ++r)
        std::memcpy(result.data() + r * (columns + more), matrix.data() + r * columns, columns * sizeof(float));
    return result;
}

void compare(const std::vector<double>& wanted, const std::vector<float>& found, const KroneckerShape& s, const char* kernel,
             const char* form) {
    double error = 0, size = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        error += (wanted[i] - found[i]) * (wanted[i] - found[i]);
        size += wanted[i] * wanted[i];
    }
    if (std::sqrt(error) <= 1e-6 * std::sqrt(size)) return;
    std::printf("%s, %s: off by %g of %g: (%zu, %zu, %zu, %zu), batch %zu, batch %s\n", kernel, form, std::sqrt(error),
                std::sqrt(size), s.a, s.b, s.c, s.d, s.batch, s.batch_last ? "last" : "first");
    std::exit(1);
}

void run_pattern() {
    const std::size_t most[] = {3, 9, 40};
    KroneckerShape s{between(1, most[draw() % 3]), between(1, most[draw() % 3]), between(1, most[draw() % 3]),
                     between(1, most[draw() % 3]), between(1, draw() % 2 ? 9 : 70), false};
    if (draw() % 16 == 0) s = {1, 3, between(510, 1100), between(1, 2), between(1, 12), false};
    if (draw() % 16 == 0) s.a = 1, s.b = between(16, 20), s.c = between(16, 20), s.d = 64;
    while (s.a * s.b * s.c * s.d > 30000) s.a = (s.a + 1) / 2, s.b = (s.b + 1) / 2, s.c = (s.c + 1) / 2;
    const std::size_t rows = s.a * s.b * s.d, columns = s.a * s.c * s.d, weights = rows * s.c;
    const auto x = numbers(s.batch * columns), gradient = numbers(s.batch * rows), weight = numbers(weights);
    std::vector<double> y(s.batch * rows), by_x(s.batch * columns), by_weight(weights);
    for (std::size_t z = 0; z < s.batch; ++z)
        for (std::size_t i = 0; i < s.a; ++i)
            for (std::size_t k = 0; k < s.b; ++k)
                for (std::size_t l = 0; l < s.c; ++l)
                    for (std::size_t j = 0; j < s.d; ++j) {
                        const std::size_t w = ((i * s.b + k) * s.c + l) * s.d + j;
                        const std::size_t in = z * columns + (i * s.c + l) * s.d + j;
                        const std::size_t out = z * rows + (i * s.b + k) * s.d + j;
                        y[out] += double(weight[w]) * x[in];
                        by_x[in] += double(weight[w]) * gradient[out];
                        by_weight[w] += double(gradient[out]) * x[in];
                    }
    const std::size_t more = draw() % 3;
    for (const KroneckerKernel* kernel : kronecker_kernels())
        for (const bool last : {false, true}) {
            s.batch_last = last;
            const auto x_here = last ? apart(turned(x, s.batch, columns), columns, s.batch, more)
                                     : apart(x, s.batch, columns, more);
            const auto gradient_here = last ? apart(turned(gradient, s.batch, rows), rows, s.batch, more)
                                            : apart(gradient, s.batch, rows, more);
            const std::size_t x_row = (last ? s.batch : columns) + more, y_row = (last ? s.batch : rows) + more;
            std::vector<float> found_y(y.size(), 77.0f), found_x(by_x.size(), 77.0f), found_weight(weights, 77.0f);
            const std::size_t threads = between(1, 3);
            kronecker_multiply(s, false, x_here.data(), x_row, weight.data(), found_y.data(), *kernel, threads);
            kronecker_multiply(s, true, gradient_here.data(), y_row, weight.data(), found_x.data(), *kernel, threads);
            kronecker_weight_gradient(s, x_here.data(), x_row, gradient_here.data(), y_row, found_weight.data(), *kernel,
                                      threads);
            compare(y, last ? turned(found_y, rows, s.batch) : found_y, s, kernel->name, "product");
            compare(by_x, last ? turned(found_x, columns, s.batch) : found_x, s, kernel->name, "transposed product");
            compare(by_weight, found_weight, s, kernel->name, "gradient in the weight");
        }
}

}  // namespace

int main(int count, char** arguments) {
    const int patterns = count > 1 ? std::atoi(arguments[1]) : 300;
    draw.seed(count > 2 ? std::atoi(arguments[2]) : 0);
    for (int i = 0; i < patterns; ++i) run_pattern();
    for (const KroneckerKernel* kernel : kronecker_kernels()) std::printf("%s ", kernel->name);
    std::printf("agree on %d patterns\n", patterns);
}
