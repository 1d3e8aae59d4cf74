#include "pool.h"

#include <vector>

#include "pool_planes.h"
#include "workers.h"

namespace tamis {
namespace {

constexpr std::size_t least_for_threads = 1 << 15;  // entries below which another thread does not pay

PoolPlane fastest() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (pool_avx512() != nullptr && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return pool_avx512();
    if (pool_avx2() != nullptr && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return pool_avx2();
#endif
#if defined(__GNUC__) || defined(__clang__)
    return &pool_any<4>;
#else
    return &pool_any<1>;
#endif
}

struct Context {
    PoolWork work;
    PoolPlane pool;
};

void pool_task(void* given, std::size_t plane) {
    const auto& context = *static_cast<const Context*>(given);
    const Pooling& pooling = context.work.pooling;
    thread_local std::vector<float> row;
    row.resize(pooling.size[1] + 2 * pooling.padding[1] + 1);
    context.pool(context.work, plane, row.data());
}

}  // namespace

void max_pool(const float* in, std::size_t planes, const Pooling& pooling, const PoolPrologue& prologue, float* out,
              std::size_t threads) {
    Context context{{in, pooling, prologue, out}, fastest()};
    const std::size_t entries = planes * pooling.size[0] * pooling.size[1];
    run_tasks(entries < least_for_threads ? 1 : threads, planes, pool_task, &context);
}

}  // namespace tamis
