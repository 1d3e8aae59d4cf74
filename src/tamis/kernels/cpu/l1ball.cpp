// A column v of norm above the radius c goes to sign(v) max(|v| − θ, 0). Everything is counted from the largest
// magnitude m: with gaps d = m − |v| and t = m − θ, the result is sign(v) max(t − d, 0), where t solves
// Σ max(t − d, 0) = c. Then 0 < t ≤ c, so nothing is lost to a large m: m − c may well round to m.
//
// From above, t is approached by t ← (c + Σ_{d<t} d) / #{d < t} (Michelot), which ends at the solution: a few times over
// the column as it is, several numbers at once, and then over the gaps that are left, which are gathered and become
// fewer each time. This is Newton's method for f(t) = Σ max(t − d, 0) − c, which is convex, with the slope k = #{d < t}:
// f / f_before + k / k_before ≤ 1, so f k falls to a quarter or less with each step. However a column of n numbers is
// made, some log₄(n² / ε) steps are the most it takes, 40 for 25 000 numbers, and for most columns the first few leave
// next to nothing: the time is linear.
//
// Sums are in double precision for float columns as well.

#include "l1ball.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "lanes.h"

namespace tamis {
namespace {

constexpr std::size_t steps_over_column = 3;       // before the gaps are gathered
constexpr std::size_t least_for_thread = 1 << 17;  // numbers; starting a thread takes as long as some ten thousand

template <std::size_t lanes, typename Number>
TAMIS_INLINE void load(Pack<double, lanes>& pack, const Number* from) {
    Pack<Number, lanes> numbers;
    std::memcpy(&numbers, from, sizeof numbers);
    convert<double, lanes, Number>(numbers, pack);
}

template <std::size_t lanes>
TAMIS_INLINE void magnitudes(Pack<double, lanes>& pack) {
    pack = pack < Pack<double, lanes>{} ? -pack : pack;
}

template <std::size_t lanes>
TAMIS_INLINE double sum_of(const Pack<double, lanes>& pack) {
    double entries[lanes], sum = 0;
    std::memcpy(entries, &pack, sizeof pack);
    for (double entry : entries) sum += entry;
    return sum;
}

template <std::size_t lanes>
TAMIS_INLINE double largest_of(const Pack<double, lanes>& pack) {
    double entries[lanes];
    std::memcpy(entries, &pack, sizeof pack);
    return *std::max_element(entries, entries + lanes);
}

template <typename Number>
struct Column {
    const Number* weights;
    std::size_t width;
    double bias;  // 0 where there is none: it changes no norm, and no result
};

struct Size {
    double norm, largest;
};

constexpr std::size_t packs = 4;  // sums that do not wait for each other

template <std::size_t lanes, typename Number>
TAMIS_INLINE Size size_of(const Column<Number>& column) {
    Pack<double, lanes> sums[packs] = {}, tops[packs] = {};
    std::size_t i = 0;
    for (; i + packs * lanes <= column.width; i += packs * lanes)
        for (std::size_t p = 0; p < packs; ++p) {
            Pack<double, lanes> values;
            load<lanes>(values, column.weights + i + p * lanes);
            magnitudes<lanes>(values);
            sums[p] += values;
            tops[p] = values > tops[p] ? values : tops[p];
        }
    Size size{std::abs(column.bias), std::abs(column.bias)};
    for (; i < column.width; ++i) {
        const double value = std::abs(static_cast<double>(column.weights[i]));
        size.norm += value;
        size.largest = std::max(size.largest, value);
    }
    for (std::size_t p = 0; p < packs; ++p) {
        size.norm += sum_of<lanes>(sums[p]);
        size.largest = std::max(size.largest, largest_of<lanes>(tops[p]));
    }
    return size;
}

// The gaps below a limit: how many, and their sum.
struct Below {
    double count, sum;

    TAMIS_INLINE void add(double gap, double limit) {
        if (gap < limit) {
            count += 1;
            sum += gap;
        }
    }
    double next(double radius) const { return (radius + sum) / count; }
};

template <std::size_t lanes, typename Number>
TAMIS_INLINE Below below(const Column<Number>& column, double largest, double limit) {
    constexpr Pack<double, lanes> zeros{};
    const Pack<double, lanes> tops = largest - zeros, limits = limit - zeros, ones = 1.0 - zeros;
    Pack<double, lanes> counts[packs] = {}, sums[packs] = {};
    std::size_t i = 0;
    for (; i + packs * lanes <= column.width; i += packs * lanes)
        for (std::size_t p = 0; p < packs; ++p) {
            Pack<double, lanes> gaps;
            load<lanes>(gaps, column.weights + i + p * lanes);
            magnitudes<lanes>(gaps);
            gaps = tops - gaps;
            counts[p] += gaps < limits ? ones : zeros;
            sums[p] += gaps < limits ? gaps : zeros;
        }
    Below found{0, 0};
    for (; i < column.width; ++i) found.add(largest - std::abs(static_cast<double>(column.weights[i])), limit);
    found.add(largest - std::abs(column.bias), limit);
    for (std::size_t p = 0; p < packs; ++p) {
        found.count += sum_of<lanes>(counts[p]);
        found.sum += sum_of<lanes>(sums[p]);
    }
    return found;
}

// The gaps of a column below a limit, one after another; their number.
template <typename Number>
TAMIS_INLINE std::size_t gather(const Column<Number>& column, double largest, double limit, double* gaps) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < column.width; ++i) {
        gaps[found] = largest - std::abs(static_cast<double>(column.weights[i]));
        found += gaps[found] < limit;
    }
    gaps[found] = largest - std::abs(column.bias);
    return found + (gaps[found] < limit);
}

double by_steps(double* gaps, std::size_t count, double limit, double radius) {
    double sum = std::accumulate(gaps, gaps + count, 0.0);
    while (count > 0) {
        limit = (radius + sum) / static_cast<double>(count);
        std::size_t found = 0;
        sum = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const double gap = gaps[i];
            const bool stays = gap < limit;
            gaps[found] = gap;
            found += stays;
            sum += stays ? gap : 0;
        }
        if (found == count) return limit;
        count = found;
    }
    return limit;  // too small a radius to be shared: it came to 0
}

template <std::size_t lanes, typename Number>
TAMIS_INLINE double solution(const Column<Number>& column, double largest, double radius, double* gaps) {
    double limit = radius, count = -1;
    for (std::size_t step = 0; step < steps_over_column; ++step) {
        const Below found = below<lanes>(column, largest, limit);
        if (found.count == 0) return limit;
        limit = std::min(limit, found.next(radius));  // of rounding, t could grow
        if (found.count == count) return limit;
        count = found.count;
    }
    return by_steps(gaps, gather(column, largest, limit, gaps), limit, radius);
}

template <typename Number>
TAMIS_INLINE Number shrunk(Number value, double largest, double solution) {
    const double left = solution - (largest - std::abs(static_cast<double>(value)));
    return left > 0 ? static_cast<Number>(value < 0 ? -left : left) : Number{0};
}

template <std::size_t lanes, typename Number>
TAMIS_INLINE void shrink(const Number* from, Number* to, std::size_t width, double largest, double solution) {
    constexpr Pack<double, lanes> zeros{};
    const Pack<double, lanes> tops = largest - zeros, solutions = solution - zeros;
    std::size_t i = 0;
    for (; i + lanes <= width; i += lanes) {
        Pack<double, lanes> values, sizes;
        load<lanes>(values, from + i);
        sizes = values;
        magnitudes<lanes>(sizes);
        sizes = solutions - (tops - sizes);
        sizes = sizes > zeros ? sizes : zeros;
        sizes = values < zeros ? zeros - sizes : sizes;
        Pack<Number, lanes> numbers;
        convert<Number, lanes, double>(sizes, numbers);
        std::memcpy(to + i, &numbers, sizeof numbers);
    }
    for (; i < width; ++i) to[i] = shrunk(from[i], largest, solution);
}

template <typename Number>
struct Work {
    Columns<const Number> from;
    Columns<Number> to;
    std::size_t width;
    double radius, slack;
    double* thresholds;
};

template <std::size_t lanes, typename Number>
TAMIS_INLINE void project_columns(const Work<Number>& work, std::size_t first, std::size_t last) {
    std::vector<double> gaps(work.width + 1);
    for (std::size_t j = first; j < last; ++j) {
        const Number bias = work.from.biases ? work.from.biases[j] : Number{0};
        const Column<Number> column{work.from.weights + j * work.width, work.width, static_cast<double>(bias)};
        Number* const to = work.to.weights + j * work.width;
        const Size size = size_of<lanes>(column);
        const bool finite = size.norm == size.norm && size.largest <= std::numeric_limits<double>::max();
        if (!finite || size.norm <= work.radius * (1 + work.slack)) {
            if (to != column.weights) std::copy_n(column.weights, work.width, to);
            if (work.to.biases) work.to.biases[j] = bias;
            work.thresholds[j] = finite ? 0 : std::numeric_limits<double>::quiet_NaN();
            continue;
        }
        const double t = work.radius > 0 ? solution<lanes>(column, size.largest, work.radius, gaps.data()) : 0;
        shrink<lanes>(column.weights, to, work.width, size.largest, t);
        if (work.to.biases) work.to.biases[j] = shrunk(bias, size.largest, t);
        work.thresholds[j] = size.largest - t;
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TAMIS_X86 1
template <typename Number>
__attribute__((target("avx512f,avx512dq,avx512vl"))) void project_avx512(const Work<Number>& work, std::size_t first,
                                                                         std::size_t last) {
    project_columns<8>(work, first, last);
}

template <typename Number>
__attribute__((target("avx2"))) void project_avx2(const Work<Number>& work, std::size_t first, std::size_t last) {
    project_columns<4>(work, first, last);
}
#endif

template <typename Number>
void project_portable(const Work<Number>& work, std::size_t first, std::size_t last) {
#if defined(__GNUC__) || defined(__clang__)
    project_columns<2>(work, first, last);
#else
    project_columns<1>(work, first, last);
#endif
}

template <typename Number>
auto* fastest() {
#ifdef TAMIS_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &project_avx512<Number>;
    if (__builtin_cpu_supports("avx2")) return &project_avx2<Number>;
#endif
    return &project_portable<Number>;
}

}  // namespace

template <typename Number>
void project_l1(const Columns<const Number>& from, const Columns<Number>& to, std::size_t count, std::size_t width,
                double radius, double slack, double* thresholds, std::size_t threads) {
    const Work<Number> work{from, to, width, radius, slack, thresholds};
    auto* const project = fastest<Number>();
    const std::size_t useful = std::min(count, count * (width + 1) / least_for_thread);
    const std::size_t parts = std::max<std::size_t>(1, std::min(threads, useful));
    std::vector<std::thread> others;
    for (std::size_t part = 1; part < parts; ++part)
        others.emplace_back(project, work, count * part / parts, count * (part + 1) / parts);
    project(work, 0, count / parts);
    for (auto& other : others) other.join();
}

template void project_l1(const Columns<const float>&, const Columns<float>&, std::size_t, std::size_t, double, double,
                         double*, std::size_t);
template void project_l1(const Columns<const double>&, const Columns<double>&, std::size_t, std::size_t, double, double,
                         double*, std::size_t);

}  // namespace tamis
