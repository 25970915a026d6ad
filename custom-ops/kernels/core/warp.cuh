// warp.cuh: sums, minima and maxima over the lanes of a warp and over a block. All lanes or threads
// must take part, and all get the result.
#pragma once

template <typename T>
__device__ __forceinline__ T sum_of_warp(T x) {
#pragma unroll
  for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// A NaN is passed over.
template <typename T>
__device__ __forceinline__ T largest_of_warp(T x) {
#pragma unroll
  for (int step = 16; step; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// The sum over a block of WARPS warps, which are added in their order. `scratch` holds WARPS
// numbers, which may be in use before the call and are after it.
template <unsigned WARPS, typename T>
__device__ __forceinline__ T sum_of_block(T x, T* scratch) {
  x = sum_of_warp(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
#pragma unroll
  for (unsigned w = 0; w < WARPS; ++w) sum += scratch[w];
  return sum;
}

// A NaN is passed over.
__device__ __forceinline__ float least_of_warp(float x) {
#pragma unroll
  for (int step = 16; step; step /= 2) x = fminf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// The same over a block of WARPS warps, in all threads; `scratch` holds WARPS numbers and is free
// after it.
template <unsigned WARPS>
__device__ __forceinline__ float least_of_block(float x, float* scratch) {
  x = least_of_warp(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
  for (unsigned w = 1; w < WARPS; w++) x = fminf(x, scratch[w]);
  __syncthreads();
  return x;
}
