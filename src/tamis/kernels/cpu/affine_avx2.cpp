// x · slope + shift with AVX2: eight numbers in a register.

#include "affine.h"

#if defined(__AVX2__) && defined(__FMA__)

#include "affine_lanes.h"

tamis::AffinePlane tamis::affine_avx2() { return &affine_any<8>; }

#else

tamis::AffinePlane tamis::affine_avx2() { return nullptr; }

#endif
