// x · slope + shift with AVX-512: sixteen numbers in a register.

#include "affine.h"

#if defined(__AVX512F__)

#include "affine_lanes.h"

tamis::AffinePlane tamis::affine_avx512() { return &affine_any<16>; }

#else

tamis::AffinePlane tamis::affine_avx512() { return nullptr; }

#endif
