// The extension module tamis._native: what Python sees of the CPU kernels. Its types stand in src/tamis/_native.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>

#include "expand.h"

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

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "CPU kernels of tamis.";
    module.def("cpu_features", &cpu_features,
               "Which instruction sets this processor and operating system can run, by name.");
    module.def("expand", &expand, nb::arg("values").noconvert(), nb::arg("mask").noconvert(), nb::arg("out").noconvert(),
               "Write values where a mask is true, in order, and zeros elsewhere.");
}
