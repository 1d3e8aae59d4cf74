// Max-pooling with AVX-512: sixteen numbers in a register.

#include "pool.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "pool_planes.h"

tamis::PoolPlane tamis::pool_avx512() { return &pool_any<16>; }

#else

tamis::PoolPlane tamis::pool_avx512() { return nullptr; }

#endif
