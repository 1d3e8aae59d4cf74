// Several numbers side by side, or a single one: what is done to them is written in the same way.

#pragma once

#include <cstddef>

#if defined(__GNUC__) || defined(__clang__)
// A function keeps the instruction set it is compiled for, unless it is made part of its caller.
#define TAMIS_INLINE __attribute__((always_inline)) inline
#else
#define TAMIS_INLINE inline
#endif

namespace tamis {
namespace {  // each file is compiled in a way of its own

template <typename Number, std::size_t lanes>
struct PackOf {
#if defined(__GNUC__) || defined(__clang__)
    typedef Number type __attribute__((vector_size(lanes * sizeof(Number))));
#endif
};
template <typename Number>
struct PackOf<Number, 1> {
    using type = Number;
};
template <typename Number, std::size_t lanes>
using Pack = typename PackOf<Number, lanes>::type;

template <typename To, std::size_t lanes, typename From>
TAMIS_INLINE void convert(const Pack<From, lanes>& from, Pack<To, lanes>& to) {
#if defined(__GNUC__) || defined(__clang__)
    if constexpr (lanes > 1) to = __builtin_convertvector(from, Pack<To, lanes>);
    else
#endif
        to = static_cast<To>(from);
}

}  // namespace
}  // namespace tamis
