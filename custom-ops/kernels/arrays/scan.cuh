// scan.cuh: exclusive sums over the lanes of a warp. All lanes must take part.
#pragma once

// The sum of the lanes before this one, modulo 2^32; `all` becomes that of all lanes.
__device__ __forceinline__ unsigned scan_warp(unsigned x, unsigned lane, unsigned& all) {
  unsigned sum = x;
#pragma unroll
  for (unsigned by = 1; by < 32; by *= 2) {
    const unsigned left = __shfl_up_sync(0xffffffffu, sum, by);
    if (lane >= by) sum += left;
  }
  all = __shfl_sync(0xffffffffu, sum, 31);
  return sum - x;
}
