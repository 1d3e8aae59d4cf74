#include "pool.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "workers.h"

namespace tamis {
namespace {

struct Work {
    const float* in;
    const Pooling& pooling;
    float* out;
};

// Without a branch, so that the compiler makes vectors of it.
float larger(float found, float value) { return (value > found) | (value != value) ? value : found; }

void raise_to(float* __restrict found, const float* __restrict values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) found[i] = larger(found[i], values[i]);
}

// Rows of a window first, whole rows at a time; then what is left of each window lies in one row.
void pool_plane(const float* in, const Pooling& pooling, float* out, std::vector<float>& row) {
    const auto [height, width] = pooling.size;
    const auto [down, right] = pooling.stride;
    row.resize(width + 2 * pooling.padding[1]);
    float* middle = row.data() + pooling.padding[1];
    for (std::size_t y = 0; y < pooling.out_size[0]; ++y) {
        std::fill(row.begin(), row.end(), -std::numeric_limits<float>::infinity());
        for (std::size_t tap = 0; tap < pooling.kernel[0]; ++tap) {
            const std::size_t from = y * down + tap * pooling.dilation[0];  // counted with the padding
            if (from >= pooling.padding[0] && from < pooling.padding[0] + height)
                raise_to(middle, in + (from - pooling.padding[0]) * width, width);
        }
        float* result = out + y * pooling.out_size[1];
        for (std::size_t tap = 0; tap < pooling.kernel[1]; ++tap) {
            const float* values = row.data() + tap * pooling.dilation[1];
            if (tap == 0)
                for (std::size_t x = 0; x < pooling.out_size[1]; ++x) result[x] = values[x * right];
            else
                for (std::size_t x = 0; x < pooling.out_size[1]; ++x)
                    result[x] = larger(result[x], values[x * right]);
        }
    }
}

void pool_task(void* context, std::size_t plane) {
    const auto& work = *static_cast<const Work*>(context);
    thread_local std::vector<float> row;
    const auto &size = work.pooling.size, &out_size = work.pooling.out_size;
    pool_plane(work.in + plane * size[0] * size[1], work.pooling, work.out + plane * out_size[0] * out_size[1], row);
}

}  // namespace

void max_pool(const float* in, std::size_t planes, const Pooling& pooling, float* out, std::size_t threads) {
    Work work{in, pooling, out};
    run_tasks(threads, planes, pool_task, &work);
}

}  // namespace tamis
