// warp.cuh: sums over the lanes of a warp. All lanes must take part, and all get the sum.
#pragma once

template <typename T>
__device__ __forceinline__ T sum_of_warp(T x) {
#pragma unroll
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
