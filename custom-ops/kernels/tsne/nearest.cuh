// nearest.cuh: what neighbours.cu and nearest.cu share.
#pragma once

#include "core/warp.cuh"

typedef unsigned long long u64;
constexpr unsigned THREADS = 256, WARPS = THREADS / 32;

// The power of two that brings the largest entry, of which `largest` holds the bits of a half, to
// at least 1 and at most 2; 1 where all are 0 or nothing is to be scaled.
__device__ __forceinline__ double scale_of(const unsigned* largest) {
  const float most = largest ? __uint_as_float(*largest) : 0;
  if (!(most > 0) || isinf(most)) return 1;
  const int exponent = ilogbf(most) + 1;
  return ldexp(1., -max(-126, min(126, exponent)));
}
