#include "affine.h"

#include "affine_lanes.h"
#include "workers.h"

namespace tamis {
namespace {

constexpr std::size_t least_for_threads = 1 << 15;  // entries below which another thread does not pay

AffinePlane fastest() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    if (affine_avx512() != nullptr && __builtin_cpu_supports("avx512f")) return affine_avx512();
    if (affine_avx2() != nullptr && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return affine_avx2();
#endif
#if defined(__GNUC__) || defined(__clang__)
    return &affine_any<4>;
#else
    return &affine_any<1>;
#endif
}

struct Context {
    const AffineWork& work;
    AffinePlane run;
};

void affine_task(void* given, std::size_t plane) {
    const auto& context = *static_cast<const Context*>(given);
    context.run(context.work, plane);
}

}  // namespace

void affine(const AffineWork& work, std::size_t planes, std::size_t threads) {
    Context context{work, fastest()};
    run_tasks(planes * work.entries < least_for_threads ? 1 : threads, planes, affine_task, &context);
}

}  // namespace tamis
