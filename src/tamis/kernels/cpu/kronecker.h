// Products by Kronecker-sparse matrices: K has ad dense blocks of b × c, block (i, j) in the rows i·bd + k·d + j and the
// columns i·cd + l·d + j, and its weights are stored as (a, b, c, d).
//
// Whatever the layout, and whichever of the three factors of Σ y·K·x is looked for, lanes of a register that lie side by
// side are lanes in memory, too, so that nothing is permuted:
//
//     batch first    y[z, k, j] += x[z, l, j] · w[k, l, j]      lanes (k, j) of y and w; d numbers of x again and again
//                    w[k, l, j] += y[z, k, j] · x[z, l, j]      lanes (l, j) of w and x; d numbers of y again and again
//     batch last     y[k, j, z] += w[k, l, j] · x[l, j, z]      lanes z of y and x; one number of w in all of them
//                    w[k, l, j] += y[k, j, z] · x[l, j, z]      lanes z of y and x, added up at the end
//
// With d at least as many as there are lanes, lanes are those of j. The first three are what a kernel calls `multiply`; the
// product by the transposed matrix is the first or the third with b and c swapped. Where several whole blocks fit into one
// register, as those of butterflies do, `mix` takes them at once; the last one is `dots`.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tamis {

// out[r, v, lane] (+)= Σ_t spread[r, t, lane mod group] · vectors[t, v, lane], the lanes of a vector side by side.
struct KroneckerPanel {
    const float* spread;
    std::ptrdiff_t spread_row, spread_step;
    std::size_t group;  // at most as many as lanes
    const float* vectors;
    std::ptrdiff_t vectors_step, vectors_gap;
    float* out;
    std::ptrdiff_t out_row, out_gap;
    std::size_t rows, count, depth;  // of r, v and t
    std::size_t width, last_width;   // lanes of the vectors, and of the last one
    bool add;                        // whether to what stands in `out`
};

// Several blocks to a vector: out[r, v, lane] = Σ_t in[r, v, places[t, lane]] · weights[v, t, lane]. Between vectors are
// `in_gap` and `out_gap` numbers, at most as many as lanes; the last one reads and writes fewer.
struct KroneckerMixture {
    const float* in;
    std::ptrdiff_t in_row;
    const float* weights;        // (vectors, depth, lanes)
    const std::int32_t* places;  // (depth, lanes)
    float* out;
    std::ptrdiff_t out_row;
    std::size_t rows, count, depth, in_gap, out_gap, in_last, out_last;
};

// out[r, v] (+)= Σ_z rows[r, z] · columns[v, z], with z side by side.
struct KroneckerDots {
    const float* left;
    std::ptrdiff_t left_row;
    const float* right;
    std::ptrdiff_t right_row;
    float* out;
    std::ptrdiff_t out_row, out_column;
    std::size_t rows, columns, depth;
    bool add;
};

// Numbers or pairs of them, (rows, columns) → (columns, rows): as many rows as fill the lanes.
struct KroneckerTurn {
    const float* from;
    std::ptrdiff_t from_row;
    float* to;
    std::ptrdiff_t to_column;
    std::size_t columns, unit;  // unit: 1 or 2
};

// Sums over a batch for several blocks to a vector: out[v, t, lane] (+)= Σ_z in[z, v, lane] · other[z, v, places[t, lane]].
struct KroneckerMixedSum {
    const float* in;
    std::ptrdiff_t in_row;
    const float* other;
    std::ptrdiff_t other_row;
    const std::int32_t* places;  // (depth, lanes)
    float* out;                  // (vectors, depth, lanes)
    std::size_t rows, count, depth, in_gap, other_gap, in_last, other_last;
    bool add;
};

struct KroneckerKernel {
    const char* name;
    std::size_t lanes, most_vectors;  // most_vectors: the largest `count` of a panel
    void (*multiply)(const KroneckerPanel&);
    void (*mix)(const KroneckerMixture&);
    void (*dots)(const KroneckerDots&);
    void (*mixed_sum)(const KroneckerMixedSum&);
    void (*turn)(const KroneckerTurn&);  // null where copying one by one is as fast
};

// Each in a file of its own, compiled for its instruction set; null where the compiler has none of that name.
const KroneckerKernel* kronecker_avx512();
const KroneckerKernel* kronecker_avx2();
const KroneckerKernel* kronecker_plain();

// Those that this processor can run, the fastest first.
std::vector<const KroneckerKernel*> kronecker_kernels();

struct KroneckerShape {
    std::size_t a, b, c, d, batch;
    bool batch_last;
};

// y = x Kᵀ, or x K for the transposed matrix. x is (batch, acd), its rows `x_row` numbers apart, or (acd, batch) in the
// layout batch last; y is contiguous.
void kronecker_multiply(const KroneckerShape& shape, bool transposed, const float* x, std::size_t x_row, const float* weight,
                        float* y, const KroneckerKernel& kernel, std::size_t threads);

// The gradient in the weight, (a, b, c, d), from x and that in y. Each number is summed up in the same order whatever the
// number of threads.
void kronecker_weight_gradient(const KroneckerShape& shape, const float* x, std::size_t x_row, const float* y,
                               std::size_t y_row, float* weight, const KroneckerKernel& kernel, std::size_t threads);

}  // namespace tamis
