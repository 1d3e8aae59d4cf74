// The extension module tamis._native: what Python sees of the CPU kernels. Its types stand in src/tamis/_native.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "affine.h"
#include "binary_conv.h"
#include "expand.h"
#include "feedback.h"
#include "kronecker.h"
#include "l1ball.h"
#include "pack.h"
#include "pool.h"

namespace nb = nanobind;

namespace {

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
// True only when the operating system also saves the registers, so a kernel may be called on its word alone.
#define TAMIS_X86_HAS(feature) (__builtin_cpu_supports(feature) != 0)
#else
#define TAMIS_X86_HAS(feature) false
#endif

// NEON is a property of the target on ARM: code compiled for it runs only where it is present.
#if defined(__ARM_NEON)
constexpr bool has_neon = true;
#else
constexpr bool has_neon = false;
#endif

nb::typed<nb::dict, nb::str, bool> cpu_features() {
    nb::typed<nb::dict, nb::str, bool> features;
    features["popcnt"] = TAMIS_X86_HAS("popcnt");
    features["avx2"] = TAMIS_X86_HAS("avx2");
    features["fma"] = TAMIS_X86_HAS("fma");
    features["avx512f"] = TAMIS_X86_HAS("avx512f");
    features["avx512bw"] = TAMIS_X86_HAS("avx512bw");
    features["avx512vl"] = TAMIS_X86_HAS("avx512vl");
    features["avx512_vbmi"] = TAMIS_X86_HAS("avx512vbmi");
    features["avx512_vbmi2"] = TAMIS_X86_HAS("avx512vbmi2");
    features["avx512_vpopcntdq"] = TAMIS_X86_HAS("avx512vpopcntdq");
    features["neon"] = has_neon;
    return features;
}

using Row = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MaskRow = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void expand(const ConstRow& values, const MaskRow& mask, const Row& out) {
    if (values.dtype() != out.dtype() || mask.size() != out.size())
        throw std::invalid_argument("expand needs values of the type of the result, and a mask of its length");
    nb::gil_scoped_release released;
    // As bytes: memory that numpy calls boolean may hold others than 0 and 1, which no C++ bool may.
    const auto* truths = reinterpret_cast<const std::uint8_t*>(mask.data());
    tamis::expand(values.data(), values.size(), truths, mask.size(), values.itemsize(), out.data());
}

// (problems, rows, columns)
template <typename Entry>
using Cube = nb::ndarray<Entry, nb::ndim<3>, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleRows = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename Entry>
tamis::Entries<Entry> entries_of(const Cube<Entry>& cube, std::initializer_list<std::size_t> shape) {
    if (!std::equal(shape.begin(), shape.end(), cube.shape_ptr(), [](std::size_t wanted, auto length) {
            return wanted == static_cast<std::size_t>(length);
        }))
        throw std::invalid_argument("feedback got arrays whose shapes do not agree");
    // The stride of a single column says nothing, nor do those of an empty array.
    const std::ptrdiff_t column = cube.shape(2) > 1 && cube.size() > 0 ? cube.stride(2) : 1;
    return {cube.data(), {cube.stride(0), cube.stride(1), column}};
}

template <typename Entry>
tamis::Entries<Entry> rows_of(const Cube<Entry>& cube, std::initializer_list<std::size_t> shape) {
    const auto entries = entries_of(cube, shape);
    if (entries.strides.column != 1)
        throw std::invalid_argument("feedback needs the columns of coupling, indices and errors side by side");
    return entries;
}

tamis::Entries<const std::uint8_t> truths_of(const Cube<const bool>& mask, std::initializer_list<std::size_t> shape) {
    if (!mask.is_valid()) return {nullptr, {}};
    const auto entries = entries_of(mask, shape);
    return {reinterpret_cast<const std::uint8_t*>(entries.entries), entries.strides};  // as bytes, as in `expand`
}

tamis::Rounding rounding_of(std::string_view dtype) {
    if (dtype == "float64") return tamis::Rounding::to_float64;
    if (dtype == "float32") return tamis::Rounding::to_float32;
    if (dtype == "float16") return tamis::Rounding::to_float16;
    if (dtype == "bfloat16") return tamis::Rounding::to_bfloat16;
    throw std::invalid_argument("feedback rounds levels to float64, float32, float16 or bfloat16");
}

void feedback(const Cube<const double>& start, const Cube<const double>& target, const Cube<const double>& coupling,
              const DoubleRows& scales, const Doubles& levels, const Doubles& middles, const char* dtype,
              const Cube<std::int32_t>& indices, const Cube<double>& errors, const Cube<const bool>& keep) {
    const std::size_t problems = start.shape(0), features = start.shape(1), neurons = start.shape(2);
    if (scales.shape(0) != problems || scales.shape(1) != neurons || levels.size() != middles.size() + 1)
        throw std::invalid_argument("feedback needs one scale for each neuron, and one middle less than levels");
    const tamis::FeedbackBlock block{problems, features, neurons,
                                     entries_of(start, {problems, features, neurons}),
                                     entries_of(target, {problems, features, neurons}),
                                     rows_of(coupling, {problems, features, features}),
                                     scales.data(),
                                     {levels.data(), middles.data(), levels.size(), rounding_of(dtype)},
                                     rows_of(indices, {problems, features, neurons}),
                                     rows_of(errors, {problems, features, neurons}),
                                     truths_of(keep, {problems, features, neurons})};
    nb::gil_scoped_release released;
    tamis::feedback(block);
}

template <typename Entry>
using RowOf = nb::ndarray<Entry, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = RowOf<const std::uint8_t>;
using Words = RowOf<const std::uint32_t>;

template <typename Entry>
std::span<Entry> span_of(const RowOf<Entry>& row) {
    return {row.data(), row.size()};
}

void count_bytes(const Bytes& row, const RowOf<std::uint64_t>& counts) {
    nb::gil_scoped_release released;
    tamis::count_bytes(span_of(row), span_of(counts));
}

void pack_digits(const Bytes& digits, unsigned base, unsigned group, const RowOf<std::uint8_t>& out) {
    nb::gil_scoped_release released;
    tamis::pack_digits(span_of(digits), base, group, span_of(out));
}

template <typename Symbol>
std::size_t ans_compress(const RowOf<const Symbol>& symbols, const Words& frequencies,
                         const RowOf<std::uint32_t>& words) {
    nb::gil_scoped_release released;
    return tamis::ans_compress(span_of(symbols), span_of(frequencies), span_of(words));
}

template <typename Symbol>
bool ans_decompress(const Words& words, const Words& frequencies, const RowOf<Symbol>& symbols) {
    nb::gil_scoped_release released;
    return tamis::ans_decompress(span_of(words), span_of(frequencies), span_of(symbols));
}

template <typename Entry>
using RowsOf = nb::ndarray<Entry, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool ans_decompress_digits(const Words& words, const Words& frequencies, const RowsOf<const std::uint8_t>& lookup,
                           const RowOf<std::uint8_t>& digits) {
    nb::gil_scoped_release released;
    return tamis::ans_decompress_digits(span_of(words), span_of(frequencies), {lookup.data(), lookup.size()},
                                        lookup.shape(1), span_of(digits));
}

void join_bytes(const nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::device::cpu>& lower, const Bytes& top,
                const RowsOf<std::uint8_t>& out) {
    const std::size_t width = out.shape(1), count = out.shape(0);
    if (lower.shape(0) + 1 != width || lower.shape(1) != count || top.size() != count)
        throw std::invalid_argument("join_bytes got rows whose lengths do not agree");
    if (count > 1 && lower.stride(1) != 1) throw std::invalid_argument("join_bytes needs rows of bytes side by side");
    nb::gil_scoped_release released;
    tamis::join_bytes(lower.data(), lower.stride(0), span_of(top), width, out.data());
}

template <typename Number>
void project_l1(const RowsOf<const Number>& weights, const RowOf<const Number>& biases, double radius, double slack,
                const RowsOf<Number>& out, const RowOf<Number>& out_biases, const RowOf<double>& thresholds,
                std::size_t threads) {
    const std::size_t count = weights.shape(0), width = weights.shape(1);
    const bool biased = biases.is_valid();
    if (out.shape(0) != count || out.shape(1) != width || thresholds.size() != count ||
        biased != out_biases.is_valid() || (biased && (biases.size() != count || out_biases.size() != count)))
        throw std::invalid_argument("project_l1 got arrays whose shapes do not agree");
    if (!(radius >= 0)) throw std::invalid_argument("project_l1 needs a radius of 0 or more");
    const tamis::Columns<const Number> from{weights.data(), biased ? biases.data() : nullptr};
    const tamis::Columns<Number> to{out.data(), biased ? out_biases.data() : nullptr};
    nb::gil_scoped_release released;
    tamis::project_l1(from, to, count, width, radius, slack, thresholds.data(), threads);
}

template <typename Number>
void define_project_l1(nb::module_& module) {
    module.def("project_l1", &project_l1<Number>, nb::arg("weights").noconvert(),
               nb::arg("biases").noconvert().none(), nb::arg("radius"), nb::arg("slack"), nb::arg("out").noconvert(),
               nb::arg("out_biases").noconvert().none(), nb::arg("thresholds").noconvert(), nb::arg("threads"),
               "Write the projection of every column onto the l1 ball of a radius.");
}

// Binary layers take microseconds, and to hand over arrays would take as long. A layer is made once for arrays of certain
// lengths, which are checked against its shape, and run on their addresses, which tamis.kernels.binary takes from tensors of
// these lengths.
template <typename Entry>
tamis::Part<Entry> part_of(std::uintptr_t address, std::size_t length) {
    if ((address == 0) != (length == 0) || address % alignof(Entry) != 0)
        throw std::invalid_argument("a binary layer got an address that is missing, too many, or not aligned");
    return {reinterpret_cast<Entry*>(address), length};
}

const tamis::BinaryKernel& kernel_named(const char* name) {
    static const auto kernels = tamis::binary_kernels();
    for (const auto* kernel : kernels)
        if (std::string_view(kernel->name) == name) return *kernel;
    throw std::invalid_argument(std::string("no binary kernel of this processor is called ") + name);
}

nb::typed<nb::list, nb::str> binary_kernels() {
    nb::typed<nb::list, nb::str> names;
    for (const auto* kernel : tamis::binary_kernels()) names.append(kernel->name);
    return names;
}

using Pair = std::array<std::size_t, 2>;

class BinaryLayer {
public:
    BinaryLayer(const char* kernel, std::size_t outputs, std::size_t channels, std::size_t groups, const Pair& size,
                const Pair& kernel_size, const Pair& stride, const Pair& padding, const Pair& dilation, std::size_t batch,
                std::size_t out_groups, const std::array<std::size_t, 17>& lengths, bool one_rounding, bool relu)
        : kernel_(kernel_named(kernel)),
          plan_({outputs, channels, size[0], size[1], kernel_size[0], kernel_size[1], stride[0], stride[1], padding[0],
                 padding[1], dilation[0], dilation[1], groups}),
          batch_(batch),
          out_groups_(out_groups),
          lengths_(lengths),
          one_rounding_(one_rounding),
          relu_(relu) {}

    // The arrays at these addresses, in the order of `lengths`. An address of 0 goes with a length of 0, and `plan_.run` checks
    // lengths against the shape: no kernel reads past an array, as long as Python gives addresses of arrays of these lengths.
    tamis::BinaryCall call_of(const std::array<std::uintptr_t, 17>& at) const {
        return {batch_,
                part_of<const float>(at[0], lengths_[0]),
                part_of<const float>(at[1], lengths_[1]),
                part_of<const std::uint8_t>(at[2], lengths_[2]),
                part_of<const std::uint64_t>(at[3], lengths_[3]),
                part_of<const std::uint64_t>(at[4], lengths_[4]),
                part_of<const float>(at[5], lengths_[5]),
                part_of<const float>(at[6], lengths_[6]),
                part_of<const float>(at[7], lengths_[7]),
                part_of<const float>(at[8], lengths_[8]),
                part_of<float>(at[9], lengths_[9]),
                part_of<std::uint64_t>(at[10], lengths_[10]),
                part_of<const float>(at[11], lengths_[11]),
                part_of<const std::uint8_t>(at[12], lengths_[12]),
                out_groups_,
                part_of<const float>(at[13], lengths_[13]),
                part_of<const float>(at[14], lengths_[14]),
                part_of<const float>(at[15], lengths_[15]),
                part_of<const float>(at[16], lengths_[16]),
                one_rounding_,
                relu_};
    }

    void run(std::size_t threads, const std::array<std::uintptr_t, 17>& addresses) const {
        const tamis::BinaryCall call = call_of(addresses);
        nb::gil_scoped_release released;
        plan_.run(call, kernel_, threads);
    }

    bool from_bits() const { return lengths_[3] > 0; }
    bool to_bits() const { return lengths_[10] > 0; }

private:
    const tamis::BinaryKernel& kernel_;
    tamis::BinaryPlan plan_;
    std::size_t batch_, out_groups_;
    std::array<std::size_t, 17> lengths_;
    bool one_rounding_, relu_;
};

// A layer and the addresses of all that stays from call to call: to hand over one number takes a twentieth of a microsecond.
class BoundLayer {
public:
    BoundLayer(const BinaryLayer& layer, const std::array<std::uintptr_t, 17>& addresses)
        : layer_(layer), addresses_(addresses) {}

    void run(std::size_t threads, std::uintptr_t input, std::uintptr_t result, std::uintptr_t added) const {
        std::array<std::uintptr_t, 17> addresses = addresses_;
        addresses[layer_.from_bits() ? 3 : 0] = input;
        addresses[layer_.to_bits() ? 10 : 9] = result;
        addresses[16] = added;
        layer_.run(threads, addresses);
    }

private:
    const BinaryLayer& layer_;  // which Python keeps for as long as this
    std::array<std::uintptr_t, 17> addresses_;
};

void binary_pack(const char* kernel, std::size_t threads, const std::array<std::size_t, 3>& shape, std::size_t groups,
                 std::uintptr_t x, std::uintptr_t thresholds, std::uintptr_t flips, std::uintptr_t bits) {
    const tamis::BinaryKernel& chosen = kernel_named(kernel);
    const auto [batch, channels, plane] = shape;
    if (groups < 1) throw std::invalid_argument("binary_pack needs at least one group");
    const std::size_t count = batch * channels * plane, words = batch * groups * ((channels / groups + 63) / 64) * plane;
    nb::gil_scoped_release released;
    tamis::binary_pack(part_of<const float>(x, count), batch, channels, plane, groups,
                       part_of<const float>(thresholds, channels), part_of<const std::uint8_t>(flips, channels),
                       part_of<std::uint64_t>(bits, words), chosen, threads);
}

nb::typed<nb::list, nb::str> kronecker_kernels() {
    nb::typed<nb::list, nb::str> names;
    for (const auto* kernel : tamis::kronecker_kernels()) names.append(kernel->name);
    return names;
}

const tamis::KroneckerKernel& kronecker_kernel_named(const char* name) {
    static const auto kernels = tamis::kronecker_kernels();
    for (const auto* kernel : kernels)
        if (std::string_view(kernel->name) == name) return *kernel;
    throw std::invalid_argument(std::string("no Kronecker kernel of this processor is called ") + name);
}

template <typename Entry>
Entry* floats_at(std::uintptr_t address) {
    if (address == 0 || address % alignof(float) != 0)
        throw std::invalid_argument("a Kronecker product got an address that is missing or not aligned");
    return reinterpret_cast<Entry*>(address);
}

tamis::KroneckerShape kronecker_shape(const std::array<std::size_t, 4>& pattern, std::size_t batch, bool batch_last,
                                      std::size_t inputs, std::size_t row) {
    const auto [a, b, c, d] = pattern;
    if (std::min({a, b, c, d, batch}) < 1 || row < (batch_last ? batch : inputs))
        throw std::invalid_argument("a Kronecker product got sizes that do not agree");
    return {a, b, c, d, batch, batch_last};
}

void kronecker_multiply(const char* kernel, std::size_t threads, const std::array<std::size_t, 4>& pattern,
                        std::size_t batch, bool batch_last, bool transposed, std::uintptr_t x, std::size_t x_row,
                        std::uintptr_t weight, std::uintptr_t y) {
    const auto& chosen = kronecker_kernel_named(kernel);
    const std::size_t inputs = pattern[0] * pattern[transposed ? 1 : 2] * pattern[3];
    const auto shape = kronecker_shape(pattern, batch, batch_last, inputs, x_row);
    nb::gil_scoped_release released;
    tamis::kronecker_multiply(shape, transposed, floats_at<const float>(x), x_row, floats_at<const float>(weight),
                              floats_at<float>(y), chosen, threads);
}

void kronecker_weight_gradient(const char* kernel, std::size_t threads, const std::array<std::size_t, 4>& pattern,
                               std::size_t batch, bool batch_last, std::uintptr_t x, std::size_t x_row, std::uintptr_t y,
                               std::size_t y_row, std::uintptr_t weight) {
    const auto& chosen = kronecker_kernel_named(kernel);
    const auto shape = kronecker_shape(pattern, batch, batch_last, pattern[0] * pattern[2] * pattern[3], x_row);
    kronecker_shape(pattern, batch, batch_last, pattern[0] * pattern[1] * pattern[3], y_row);
    nb::gil_scoped_release released;
    tamis::kronecker_weight_gradient(shape, floats_at<const float>(x), x_row, floats_at<const float>(y), y_row,
                                     floats_at<float>(weight), chosen, threads);
}

void affine(const RowsOf<const float>& in, const RowOf<const float>& slope, const RowOf<const float>& shift,
            const RowsOf<float>& out, std::size_t threads, bool one_rounding) {
    const std::size_t planes = in.shape(0), entries = in.shape(1), channels = slope.size();
    if (shift.size() != channels || channels < 1 || planes % channels != 0 || out.shape(0) != planes || out.shape(1) != entries)
        throw std::invalid_argument("affine got sizes that do not agree");
    if (in.data() == out.data() && in.size() > 0) throw std::invalid_argument("affine cannot write over what it reads");
    nb::gil_scoped_release released;
    tamis::affine({in.data(), slope.data(), shift.data(), channels, entries, one_rounding, out.data()}, planes, threads);
}

// (planes, rows, columns)
using Planes = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using PooledPlanes = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void max_pool(const Planes& in, const Pair& kernel, const Pair& stride, const Pair& padding,
              const Pair& dilation, const PooledPlanes& out, std::size_t threads, const RowOf<const float>& slope,
              const RowOf<const float>& shift, bool one_rounding, bool relu) {
    const tamis::Pooling pooling{{in.shape(1), in.shape(2)}, {kernel[0], kernel[1]},     {stride[0], stride[1]},
                                 {padding[0], padding[1]},   {dilation[0], dilation[1]}, {out.shape(1), out.shape(2)}};
    const bool sloped = slope.is_valid();
    const tamis::PoolPrologue prologue{sloped ? slope.data() : nullptr, sloped && shift.is_valid() ? shift.data() : nullptr,
                                       sloped ? slope.size() : 1, one_rounding, relu};
    bool fits = in.shape(0) == out.shape(0) && sloped == shift.is_valid();
    if (sloped && fits) fits = slope.size() == shift.size() && slope.size() > 0 && in.shape(0) % slope.size() == 0;
    for (int axis = 0; axis < 2; ++axis) {
        constexpr std::size_t most = 1u << 24;  // keeps sums of products below from wrapping
        const std::size_t length = pooling.size[axis] + 2 * padding[axis];
        fits = fits && std::max({kernel[axis], stride[axis], padding[axis], dilation[axis], pooling.size[axis]}) < most;
        fits = fits && std::min({kernel[axis], stride[axis], dilation[axis]}) > 0;
        fits = fits && (kernel[axis] - 1) * dilation[axis] < length;
        fits = fits && pooling.out_size[axis] == (length - (kernel[axis] - 1) * dilation[axis] - 1) / stride[axis] + 1;
    }
    if (!fits) throw std::invalid_argument("max_pool got sizes that do not agree");
    nb::gil_scoped_release released;
    tamis::max_pool(in.data(), in.shape(0), pooling, prologue, out.data(), threads);
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "CPU kernels of tamis.";
    nb::set_leak_warnings(false);  // binary layers stay in a cache until the process ends
    module.def("cpu_features", &cpu_features,
               "Which instruction sets this processor and operating system can run, by name.");
    module.def("expand", &expand, nb::arg("values").noconvert(), nb::arg("mask").noconvert(), nb::arg("out").noconvert(),
               "Write values where a mask is true, in order, and zeros elsewhere.");
    module.def("feedback", &feedback, nb::arg("start").noconvert(), nb::arg("target").noconvert(),
               nb::arg("coupling").noconvert(), nb::arg("scales").noconvert(), nb::arg("levels").noconvert(),
               nb::arg("middles").noconvert(), nb::arg("dtype"), nb::arg("indices").noconvert(),
               nb::arg("errors").noconvert(), nb::arg("keep").noconvert() = nb::none(),
               "Write the levels that a block of features is rounded to, and what each rounding leaves.");
    module.def("count_bytes", &count_bytes, nb::arg("row").noconvert(), nb::arg("counts").noconvert(),
               "Add to 256 counts how often each byte occurs in a row.");
    module.def("pack_digits", &pack_digits, nb::arg("digits").noconvert(), nb::arg("base"), nb::arg("group"),
               nb::arg("out").noconvert(), "Write digits as a byte for each group, the first lowest.");
    module.def("join_bytes", &join_bytes, nb::arg("lower").noconvert(), nb::arg("top").noconvert(),
               nb::arg("out").noconvert(), "Write numbers of which each byte stands in a row of its own.");
    const char* compress = "Write the words of a row of symbols, and return their number.";
    module.def("ans_compress", &ans_compress<std::uint8_t>, nb::arg("symbols").noconvert(),
               nb::arg("frequencies").noconvert(), nb::arg("words").noconvert(), compress);
    module.def("ans_compress", &ans_compress<std::int32_t>, nb::arg("symbols").noconvert(),
               nb::arg("frequencies").noconvert(), nb::arg("words").noconvert(), compress);
    const char* decompress = "Write the symbols of words, and return whether these are theirs.";
    module.def("ans_decompress", &ans_decompress<std::uint8_t>, nb::arg("words").noconvert(),
               nb::arg("frequencies").noconvert(), nb::arg("symbols").noconvert(), decompress);
    module.def("ans_decompress", &ans_decompress<std::int32_t>, nb::arg("words").noconvert(),
               nb::arg("frequencies").noconvert(), nb::arg("symbols").noconvert(), decompress);
    module.def("ans_decompress_digits", &ans_decompress_digits, nb::arg("words").noconvert(),
               nb::arg("frequencies").noconvert(), nb::arg("lookup").noconvert(), nb::arg("digits").noconvert(),
               "Write the digits of the symbols of words, and return whether the words are those of so many.");
    define_project_l1<float>(module);
    define_project_l1<double>(module);
    module.def("binary_kernels", &binary_kernels,
               "The kernels of binary layers that this processor can run, the fastest first.");
    nb::class_<BinaryLayer>(module, "BinaryLayer", "A binary convolution of one shape, for arrays of certain lengths.")
        .def(nb::init<const char*, std::size_t, std::size_t, std::size_t, const Pair&, const Pair&, const Pair&, const Pair&,
                      const Pair&, std::size_t, std::size_t, const std::array<std::size_t, 17>&, bool, bool>(),
             nb::arg("kernel"), nb::arg("outputs"), nb::arg("channels"), nb::arg("groups"), nb::arg("size"),
             nb::arg("kernel_size"), nb::arg("stride"), nb::arg("padding"), nb::arg("dilation"), nb::arg("batch"),
             nb::arg("out_groups"), nb::arg("lengths"), nb::arg("one_rounding"), nb::arg("relu"))
        .def("run", &BinaryLayer::run, "Run the convolution on the addresses of arrays, 0 for those that there are not.");
    nb::class_<BoundLayer>(module, "BoundLayer", "A binary convolution with the addresses of all but what comes and goes.")
        .def(nb::init<const BinaryLayer&, const std::array<std::uintptr_t, 17>&>(), nb::keep_alive<1, 2>(),
             nb::arg("layer"), nb::arg("addresses"))
        .def("run", &BoundLayer::run, "Run the convolution on the addresses of an input, a result, and what is added.");
    module.def("binary_pack", &binary_pack, nb::arg("kernel"), nb::arg("threads"), nb::arg("shape"), nb::arg("groups"),
               nb::arg("x"), nb::arg("thresholds"), nb::arg("flips"), nb::arg("bits"),
               "Write the bits of numbers, packed for a binary layer.");
    module.def("kronecker_kernels", &kronecker_kernels,
               "The kernels of Kronecker-sparse products that this processor can run, the fastest first.");
    module.def("kronecker_multiply", &kronecker_multiply, nb::arg("kernel"), nb::arg("threads"), nb::arg("pattern"),
               nb::arg("batch"), nb::arg("batch_last"), nb::arg("transposed"), nb::arg("x"), nb::arg("x_row"),
               nb::arg("weight"), nb::arg("y"), "Write a product by a Kronecker-sparse matrix, or by its transpose.");
    module.def("kronecker_weight_gradient", &kronecker_weight_gradient, nb::arg("kernel"), nb::arg("threads"),
               nb::arg("pattern"), nb::arg("batch"), nb::arg("batch_last"), nb::arg("x"), nb::arg("x_row"), nb::arg("y"),
               nb::arg("y_row"), nb::arg("weight"), "Write the gradient of such a product in its weight.");
    module.def("affine", &affine, nb::arg("planes").noconvert(), nb::arg("slope").noconvert(), nb::arg("shift").noconvert(),
               nb::arg("out").noconvert(), nb::arg("threads"), nb::arg("one_rounding"),
               "Write x · slope + shift of each channel.");
    module.def("max_pool", &max_pool, nb::arg("planes").noconvert(), nb::arg("kernel"), nb::arg("stride"),
               nb::arg("padding"), nb::arg("dilation"), nb::arg("out").noconvert(), nb::arg("threads"),
               nb::arg("slope").noconvert() = nb::none(), nb::arg("shift").noconvert() = nb::none(),
               nb::arg("one_rounding") = false, nb::arg("relu") = false,
               "Write the largest entry of each window of planes of floats, after x · slope + shift and a ReLU if wanted.");
}
