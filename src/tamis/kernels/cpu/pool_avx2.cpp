// Max-pooling with AVX2: eight numbers in a register.

#include "pool.h"

#if defined(__AVX2__) && defined(__FMA__)

#include "pool_planes.h"

tamis::PoolPlane tamis::pool_avx2() { return &pool_any<8>; }

#else

tamis::PoolPlane tamis::pool_avx2() { return nullptr; }

#endif
