// The gradient in the weights of a Kronecker-sparse matrix: sums over the batch. Threads share the weights among them, not
// the batch, and each of these sums is taken in blocks of the batch that do not depend on the number of threads.

#include "kronecker_slabs.h"

namespace tamis {
namespace {

constexpr std::size_t slab = 96 << 10;       // numbers of a block of the batch, in the second-level cache
constexpr std::size_t mixed_rows = 64;       // of the batch, where several blocks share a vector
constexpr std::size_t row_of_dots = 1024;    // of the batch, in the layout batch last
constexpr std::size_t tasks_a_thread = 4;
constexpr std::size_t reuse = 16;            // how often numbers must be read to be copied first

thread_local FloatScratch of_x, of_y, of_sums;

struct Gradient {
    const KroneckerShape& shape;
    const float* x;
    std::size_t x_row;
    const float* y;
    std::size_t y_row;
    float* weight;
    const KroneckerKernel& kernel;
    std::size_t threads;

    std::size_t a = shape.a, b = shape.b, c = shape.c, d = shape.d, batch = shape.batch;

    void batch_first() const {
        const std::size_t largest = std::max(b, c) * d;
        if (a > 1 && 2 * largest <= kernel.lanes) by_mixtures(kernel.lanes / largest);
        else by_panels();
    }

    // Several blocks side by side in a vector: lanes (i, l, j) of x, and for every k the numbers (i, k, j) of y.
    void by_mixtures(std::size_t blocks) const {
        const std::size_t lanes = kernel.lanes, vectors = pieces_of(a, blocks);
        std::vector<std::int32_t> places(b * lanes, 0);
        for (std::size_t k = 0; k < b; ++k)
            for (std::size_t lane = 0; lane < blocks * c * d; ++lane)
                places[k * lanes + lane] = static_cast<std::int32_t>(lane / (c * d) * b * d + k * d + lane % d);
        const std::size_t wanted = threads > 1 ? tasks_a_thread * threads : 1;
        const std::size_t tasks = std::min(vectors, std::max<std::size_t>(wanted, pieces_of(vectors, 64)));
        const std::size_t in_gap = blocks * c * d, other_gap = blocks * b * d;
        in_parallel(threads, tasks, [&](std::size_t task) {
            const std::size_t begin = vectors * task / tasks, end = vectors * (task + 1) / tasks;
            float* sums = of_sums.take((end - begin) * b * lanes);
            const std::size_t in_last = std::min(in_gap, (a - (end - 1) * blocks) * c * d);
            const std::size_t other_last = std::min(other_gap, (a - (end - 1) * blocks) * b * d);
            for (std::size_t z = 0; z < batch; z += mixed_rows)
                kernel.mixed_sum({x + z * x_row + begin * in_gap, static_cast<std::ptrdiff_t>(x_row),
                                  y + z * y_row + begin * other_gap, static_cast<std::ptrdiff_t>(y_row), places.data(), sums,
                                  std::min(mixed_rows, batch - z), end - begin, b, in_gap, other_gap, in_last, other_last,
                                  z > 0});
            for (std::size_t i = begin * blocks; i < std::min(a, end * blocks); ++i)
                for (std::size_t k = 0; k < b; ++k)
                    std::memcpy(weight + (i * b + k) * c * d,
                                sums + ((i / blocks - begin) * b + k) * lanes + i % blocks * c * d, c * d * sizeof(float));
        });
    }

    void by_panels() const {
        const VectorSplit split(c, d, kernel.lanes, kernel.most_vectors);
        const std::size_t units = a * split.parts, all = units * split.panels;
        // Neighbours share pages and lines, so a task has many of them; and no fewer tasks than keep the threads busy.
        const std::size_t wanted = threads > 1 ? tasks_a_thread * threads : 1;
        const std::size_t tasks = std::min(all, std::max<std::size_t>(wanted, pieces_of(all, 64)));
        in_parallel(threads, tasks, [&](std::size_t task) {
            const std::size_t begin = all * task / tasks, end = all * (task + 1) / tasks;
            const std::size_t numbers = b * std::min(d, kernel.lanes) + kernel.lanes * kernel.most_vectors;
            const std::size_t block = std::clamp<std::size_t>(slab / numbers, 64, 512);
            for (std::size_t z = 0; z < batch; z += block) add_block(split, begin, end, z, std::min(block, batch - z));
        });
    }

    void add_block(const VectorSplit& split, std::size_t begin, std::size_t end, std::size_t z, std::size_t depth) const {
        const std::size_t lanes = kernel.lanes;
        while (begin < end) {
            const std::size_t unit = begin / split.panels, i = unit / split.parts, part = unit % split.parts;
            const std::size_t stop = std::min(end, (unit + 1) * split.panels), group = split.group(part);
            const float* spread = y + z * y_row + i * b * d + part * lanes;
            std::size_t row = d, step = y_row;
            if (c >= reuse && (split.parts > 1 || y_row % page == 0)) {
                row = group;
                step = b * group + (b * group % page == 0 ? lanes : 0);
                float* copy = of_y.take(depth * step);
                if (row == d) copy_slab(spread, y_row, 0, depth, 1, b * d, copy, step, 0);
                else copy_slab(spread, y_row, d, depth, b, group, copy, step, group);
                spread = copy;
            }
            for (; begin < stop; ++begin) {
                const std::size_t panel = begin % split.panels, first = split.first(panel), count = split.count(panel);
                const std::size_t gap = split.gap, width = split.width(part);
                const std::size_t last_width = first + count == split.vectors ? split.last_width(part) : width;
                const float* vectors = x + z * x_row + i * c * d + part * lanes + first * gap;
                std::size_t vectors_step = x_row, vectors_gap = gap;
                if (b >= reuse) {
                    float* copy = of_x.take(depth * count * lanes);
                    if (gap == lanes || count == 1)
                        copy_slab(vectors, x_row, 0, depth, 1, (count - 1) * lanes + last_width, copy, count * lanes, 0);
                    else {
                        copy_slab(vectors, x_row, gap, depth, count - 1, width, copy, count * lanes, lanes);
                        copy_slab(vectors + (count - 1) * gap, x_row, 0, depth, 1, last_width, copy + (count - 1) * lanes,
                                  count * lanes, 0);
                    }
                    vectors = copy;
                    vectors_step = count * lanes;
                    vectors_gap = lanes;
                }
                kernel.multiply({spread, static_cast<std::ptrdiff_t>(row), static_cast<std::ptrdiff_t>(step), group, vectors,
                                 static_cast<std::ptrdiff_t>(vectors_step), static_cast<std::ptrdiff_t>(vectors_gap),
                                 weight + i * b * c * d + part * lanes + first * gap, static_cast<std::ptrdiff_t>(c * d),
                                 static_cast<std::ptrdiff_t>(gap), b, count, depth, width, last_width, z > 0});
            }
        }
    }

    void batch_last() const {
        const std::size_t units = a * d, wanted = threads > 1 ? tasks_a_thread * threads : 1;
        const std::size_t unit_pieces = std::min(units, std::max<std::size_t>(wanted, pieces_of(units, 64)));
        const std::size_t column_pieces = std::min(c, pieces_of(wanted, unit_pieces));
        in_parallel(threads, unit_pieces * column_pieces, [&](std::size_t task) {
            const std::size_t piece = task / column_pieces, part = task % column_pieces;
            const std::size_t first = c * part / column_pieces, last = c * (part + 1) / column_pieces;
            for (std::size_t unit = units * piece / unit_pieces; unit < units * (piece + 1) / unit_pieces; ++unit) {
                const std::size_t i = unit / d, j = unit % d;
                for (std::size_t z = 0; z < batch; z += row_of_dots)
                    kernel.dots({y + (i * b * d + j) * y_row + z, static_cast<std::ptrdiff_t>(d * y_row),
                                 x + ((i * c + first) * d + j) * x_row + z, static_cast<std::ptrdiff_t>(d * x_row),
                                 weight + (i * b * c + first) * d + j, static_cast<std::ptrdiff_t>(c * d),
                                 static_cast<std::ptrdiff_t>(d), b, last - first, std::min(row_of_dots, batch - z), z > 0});
            }
        });
    }
};

}  // namespace

void kronecker_weight_gradient(const KroneckerShape& shape, const float* x, std::size_t x_row, const float* y,
                               std::size_t y_row, float* weight, const KroneckerKernel& kernel, std::size_t threads) {
    const std::size_t weights = shape.a * shape.b * shape.c * shape.d;
    if (shape.batch == 0) {
        std::memset(weight, 0, weights * sizeof(float));
        return;
    }
    const Gradient gradient{shape, x, x_row, y, y_row, weight, kernel, shape.batch * weights < least_for_threads ? 1 : threads};
    const bool one = shape.batch == 1 && x_row == 1 && y_row == 1;  // the same numbers in both layouts
    if (shape.batch_last && !one) gradient.batch_last();
    else gradient.batch_first();
}

}  // namespace tamis
