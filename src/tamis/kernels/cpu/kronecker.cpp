// Products by Kronecker-sparse matrices and by their transposes. Weights are put into the order in which they are read, once
// for a call; inputs are read where they stand, but for those whose distances would crowd them in the cache.

#include "kronecker.h"

#include "kronecker_slabs.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tamis {
namespace {

constexpr std::size_t slab = 48 << 10;     // numbers of the input that panels of weights pass over, in the second-level cache
constexpr std::size_t row_multiple = 24;   // rows of all tiles of a kernel divide it
constexpr std::size_t tasks_a_thread = 4;  // so that a thread that comes late does less
constexpr std::size_t few_rows = 8;        // of a batch that does not pay for putting weights in order

thread_local FloatScratch of_weights, of_slab;

// So much memory is often fresh from the system when it is allocated, and each of its pages costs a microsecond or two when
// it is first written: it is asked for in large pages.
void ask_for_large_pages([[maybe_unused]] float* numbers, [[maybe_unused]] std::size_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr std::size_t least = std::size_t{4} << 20, large = std::size_t{2} << 20;
    const auto start = reinterpret_cast<std::uintptr_t>(numbers), end = start + count * sizeof(float);
    const std::uintptr_t from = pieces_of(start, large) * large, to = end / large * large;
    if (end - start >= least) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);  // it may well be refused
#endif
}

// One product: ins numbers of x for each of outs of y in every block.
struct Product {
    const KroneckerShape& shape;
    bool transposed;
    const float* x;
    std::size_t x_row;
    const float* weight;
    float* y;
    const KroneckerKernel& kernel;
    std::size_t threads;

    std::size_t a = shape.a, d = shape.d, batch = shape.batch;
    std::size_t outs = transposed ? shape.c : shape.b, ins = transposed ? shape.b : shape.c;
    // From one output or input to the next in the weights of a block.
    std::size_t of_out = transposed ? d : shape.c * d, of_in = transposed ? shape.c * d : d;

    const float* weights_of(std::size_t i) const { return weight + i * outs * ins * d; }

    void batch_first() const {
        const std::size_t largest = std::max(outs, ins) * d;
        if (a > 1 && 2 * largest <= kernel.lanes) by_mixtures(kernel.lanes / largest);
        else if (d == 1 && !transposed && batch <= few_rows) by_dots();
        else by_rows();
    }

    // Inputs and weights of an output lie side by side: the weights are read once, where they stand.
    void by_dots() const {
        const std::size_t outputs = a * outs, tasks = threads > 1 ? std::min(outputs, tasks_a_thread * threads) : 1;
        in_parallel(threads, tasks, [&](std::size_t task) {
            const std::size_t last = outputs * (task + 1) / tasks;
            for (std::size_t first = outputs * task / tasks; first < last;) {
                const std::size_t i = first / outs, count = std::min(last, (i + 1) * outs) - first;
                kernel.dots({x + i * ins, static_cast<std::ptrdiff_t>(x_row), weight + first * ins,
                             static_cast<std::ptrdiff_t>(ins), y + first, static_cast<std::ptrdiff_t>(outputs), 1, batch,
                             count, ins, false});
                first += count;
            }
        });
    }

    // Several blocks side by side in a vector.
    void by_mixtures(std::size_t blocks) const {
        const std::size_t lanes = kernel.lanes, vectors = pieces_of(a, blocks), rest = a - (vectors - 1) * blocks;
        float* weights = of_weights.take(vectors * ins * lanes);
        std::memset(weights, 0, vectors * ins * lanes * sizeof(float));
        std::vector<std::int32_t> places(ins * lanes, 0);
        for (std::size_t i = 0; i < a; ++i)
            for (std::size_t k = 0; k < outs; ++k)
                for (std::size_t l = 0; l < ins; ++l)
                    for (std::size_t j = 0; j < d; ++j) {
                        const std::size_t lane = (i % blocks * outs + k) * d + j;
                        weights[(i / blocks * ins + l) * lanes + lane] = weights_of(i)[k * of_out + l * of_in + j];
                        places[l * lanes + lane] = static_cast<std::int32_t>((i % blocks * ins + l) * d + j);
                    }
        const std::size_t in_gap = blocks * ins * d, out_gap = blocks * outs * d, y_row = a * outs * d, rows = 16;
        in_parallel(threads, pieces_of(batch, rows), [&](std::size_t task) {
            const std::size_t z = task * rows;
            kernel.mix({x + z * x_row, static_cast<std::ptrdiff_t>(x_row), weights, places.data(), y + z * y_row,
                        static_cast<std::ptrdiff_t>(y_row), std::min(rows, batch - z), vectors, ins, in_gap, out_gap,
                        rest * ins * d, rest * outs * d});
        });
    }

    void by_rows() const {
        const VectorSplit split(outs, d, kernel.lanes, kernel.most_vectors);
        const std::size_t lanes = kernel.lanes, of_unit = split.vectors * ins * lanes;
        const std::size_t units = a * split.parts, all = units * split.panels;
        float* weights = nullptr;
        if (batch > few_rows || (d < lanes && of_out != d)) {
            weights = of_weights.take(units * of_unit);
            in_parallel(threads, all, [&](std::size_t task) {
                const std::size_t unit = task / split.panels, panel = task % split.panels;
                order_weights(split, unit, panel, weights + unit * of_unit + split.first(panel) * ins * lanes);
            });
        }
        // Blocks of rows, of panels where there are few of them, and of fewer rows where there are few of both.
        const std::size_t most = row_multiple * (outs * ins < 64 ? 1 : 8);
        const std::size_t fitting = std::clamp<std::size_t>(slab / (ins * std::min(d, lanes)), row_multiple, most);
        const std::size_t wanted = threads > 1 ? tasks_a_thread * threads : 1;
        const std::size_t pieces = std::min(all, pieces_of(wanted, pieces_of(batch, fitting)));
        const std::size_t shares = std::max(pieces_of(batch, fitting), pieces_of(wanted, pieces));
        const std::size_t rows = pieces_of(pieces_of(batch, shares), row_multiple) * row_multiple;
        const std::size_t blocks = pieces_of(batch, rows);
        in_parallel(threads, blocks * pieces, [&](std::size_t task) {
            const std::size_t z = task / pieces * rows, piece = task % pieces;
            multiply_block(split, weights, z, std::min(rows, batch - z), all * piece / pieces, all * (piece + 1) / pieces);
        });
    }

    // The weights of a panel as (ins, vectors, lanes).
    void order_weights(const VectorSplit& split, std::size_t unit, std::size_t panel, float* to) const {
        const std::size_t lanes = kernel.lanes, count = split.count(panel), part = unit % split.parts;
        const float* from = weights_of(unit / split.parts) + part * lanes;
        const std::size_t each = split.gap / d, start = split.first(panel) * each;
        const std::size_t end = std::min(outs, split.first(panel + 1) * each), width = d < lanes ? d : split.group(part);
        if (of_out == d && d < lanes) {  // a vector lies side by side
            for (std::size_t v = 0; v < count; ++v)
                copy_slab(from + (start + v * each) * d, 0, of_in, 1, ins, std::min(each, end - start - v * each) * d,
                          to + v * lanes, 0, count * lanes);
            return;
        }
        std::size_t k = start;
        if (kernel.turn != nullptr && d <= 2)
            for (; k + each <= end; k += each)
                kernel.turn({from + k * of_out, static_cast<std::ptrdiff_t>(of_out), to + (k - start) / each * lanes,
                             static_cast<std::ptrdiff_t>(count * lanes), ins, d});
        constexpr std::size_t few = 16;  // so that what is written stays in the cache until it is complete
        for (std::size_t l = 0; l < ins; l += few)
            for (std::size_t out = k; out < end; ++out)
                copy_slab(from + out * of_out + l * of_in, 0, of_in, 1, std::min(few, ins - l), width,
                          to + l * count * lanes + (out - start) / each * lanes + (out - start) % each * d, 0,
                          count * lanes);
    }

    // Some rows of the batch times some of all panels. The weights are in the order of `order_weights`, or, if null, where
    // they stand, with the lanes of a vector side by side.
    void multiply_block(const VectorSplit& split, const float* weights, std::size_t z, std::size_t rows, std::size_t begin,
                        std::size_t end) const {
        const std::size_t lanes = kernel.lanes, of_unit = split.vectors * ins * lanes, y_row = a * outs * d;
        const std::size_t each_gap = split.gap / d * of_out;  // from a vector to the next, of weights where they stand
        while (begin < end) {
            const std::size_t unit = begin / split.panels, i = unit / split.parts, part = unit % split.parts;
            const std::size_t stop = std::min(end, (unit + 1) * split.panels), group = split.group(part);
            const float* spread = x + z * x_row + i * ins * d + part * lanes;
            std::size_t spread_row = x_row, step = d;
            if (stop - begin > 1 && (split.parts > 1 || x_row % page == 0)) {
                step = group;
                spread_row = ins * group + (ins * group % page == 0 ? lanes : 0);
                float* copy = of_slab.take(rows * spread_row);
                if (step == d) copy_slab(spread, x_row, 0, rows, 1, ins * d, copy, spread_row, 0);
                else copy_slab(spread, x_row, d, rows, ins, group, copy, spread_row, group);
                spread = copy;
            }
            for (; begin < stop; ++begin) {
                const std::size_t panel = begin % split.panels, first = split.first(panel), count = split.count(panel);
                const std::size_t width = split.width(part), gap = split.gap;
                const float* vectors = weights != nullptr ? weights + unit * of_unit + first * ins * lanes
                                                          : weights_of(i) + part * lanes + first * each_gap;
                const std::size_t step_of = weights != nullptr ? count * lanes : of_in;
                const std::size_t gap_of = weights != nullptr ? lanes : each_gap;
                float* out = y + z * y_row + i * outs * d + part * lanes + first * gap;
                for (std::size_t l = 0; l < ins; l += deepest)
                    kernel.multiply({spread + l * step, static_cast<std::ptrdiff_t>(spread_row),
                                     static_cast<std::ptrdiff_t>(step), group, vectors + l * step_of,
                                     static_cast<std::ptrdiff_t>(step_of), static_cast<std::ptrdiff_t>(gap_of), out,
                                     static_cast<std::ptrdiff_t>(y_row), static_cast<std::ptrdiff_t>(gap), rows, count,
                                     std::min(deepest, ins - l), width,
                                     first + count == split.vectors ? split.last_width(part) : width, l > 0});
            }
        }
    }

    // Lanes are those of the batch; every block (i, j) by itself.
    void batch_last() const {
        const bool in_order = d == 1 && !transposed;
        const std::size_t units = a * d;
        const float* weights = weight;
        if (!in_order) {
            float* ordered = of_weights.take(units * outs * ins);
            in_parallel(threads, a * outs, [&](std::size_t task) {
                const std::size_t i = task / outs, k = task % outs;
                order_row(weights_of(i) + k * of_out, ordered + (i * d * outs + k) * ins);
            });
            weights = ordered;
        }
        const std::size_t panel = kernel.lanes * kernel.most_vectors, panels = pieces_of(batch, panel);
        const std::size_t wanted = threads > 1 ? tasks_a_thread * threads : 1;
        const std::size_t unit_pieces = std::min(units, std::max<std::size_t>(wanted, pieces_of(units, 64)));
        const std::size_t panel_pieces = std::min(panels, pieces_of(wanted, unit_pieces));
        in_parallel(threads, unit_pieces * panel_pieces, [&](std::size_t task) {
            const std::size_t piece = task / panel_pieces, part = task % panel_pieces;
            for (std::size_t unit = units * piece / unit_pieces; unit < units * (piece + 1) / unit_pieces; ++unit)
                for (std::size_t p = panels * part / panel_pieces; p < panels * (part + 1) / panel_pieces; ++p)
                    multiply_columns(weights + unit * outs * ins, unit, p * panel, std::min(panel, batch - p * panel));
        });
    }

    // The weights (ins, d) of one output as (d, ins), with those of all outputs between.
    void order_row(const float* from, float* to) const {
        std::size_t l = 0;
        if (kernel.turn != nullptr)
            for (; l + kernel.lanes <= ins; l += kernel.lanes)
                kernel.turn({from + l * of_in, static_cast<std::ptrdiff_t>(of_in), to + l,
                             static_cast<std::ptrdiff_t>(outs * ins), d, 1});
        constexpr std::size_t few = 16;  // numbers of a line, which stays in the cache meanwhile
        for (std::size_t start = 0; start < d; start += few)
            for (std::size_t j = start; j < std::min(d, start + few); ++j)
                for (std::size_t later = l; later < ins; ++later) to[j * outs * ins + later] = from[later * of_in + j];
    }

    void multiply_columns(const float* weights, std::size_t unit, std::size_t z, std::size_t width) const {
        const std::size_t i = unit / d, j = unit % d, lanes = kernel.lanes, count = pieces_of(width, lanes);
        const float* vectors = x + (i * ins * d + j) * x_row + z;
        std::size_t step = d * x_row;
        if (outs >= 16) {
            float* copy = of_slab.take(ins * count * lanes);
            copy_slab(vectors, step, 0, ins, 1, width, copy, count * lanes, 0);
            vectors = copy;
            step = count * lanes;
        }
        for (std::size_t l = 0; l < ins; l += deepest)
            kernel.multiply({weights + l, static_cast<std::ptrdiff_t>(ins), 1, 1, vectors + l * step,
                             static_cast<std::ptrdiff_t>(step), static_cast<std::ptrdiff_t>(lanes),
                             y + (i * outs * d + j) * batch + z, static_cast<std::ptrdiff_t>(d * batch),
                             static_cast<std::ptrdiff_t>(lanes), outs, count, std::min(deepest, ins - l), lanes,
                             width - (count - 1) * lanes, l > 0});
    }
};

}  // namespace

void kronecker_multiply(const KroneckerShape& shape, bool transposed, const float* x, std::size_t x_row, const float* weight,
                        float* y, const KroneckerKernel& kernel, std::size_t threads) {
    if (shape.batch == 0) return;
    const std::size_t multiplications = shape.batch * shape.a * shape.b * shape.c * shape.d;
    ask_for_large_pages(y, shape.batch * shape.a * (transposed ? shape.c : shape.b) * shape.d);
    const bool one = shape.batch == 1 && x_row == 1;  // the same numbers in both layouts
    const std::size_t row = one ? shape.a * (transposed ? shape.b : shape.c) * shape.d : x_row;
    const Product product{shape, transposed, x, row, weight, y, kernel, multiplications < least_for_threads ? 1 : threads};
    if (shape.batch_last && !one) product.batch_last();
    else product.batch_first();
}

std::vector<const KroneckerKernel*> kronecker_kernels() {
    std::vector<const KroneckerKernel*> kernels;
    const auto add = [&](const KroneckerKernel* kernel, bool runs) {
        if (kernel != nullptr && runs) kernels.push_back(kernel);
    };
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    add(kronecker_avx512(), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"));
    add(kronecker_avx2(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#endif
    add(kronecker_plain(), true);
    return kernels;
}

}  // namespace tamis
