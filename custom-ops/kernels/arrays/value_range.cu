// value_range.cu: the range of the values that were seen so far.
//
//   range[0] = min(range[0], x),  range[1] = max(range[1], x)   over all x
//
// arrays   x: [n] u8 or f32; range: [2] f32, not overlapping
// scalars  n >= 0
// launch   blocks of 256 that stride over the grid, any number of them
// cost     reads x once; two atomics for each block that widens the range
// NaN      is passed over
// same     the same bits as the CPU twin: minima and maxima do not depend on the order (zeros are
//          +0)
// truth    the CPU twin in src/arrays/value_range.rs

#include "core/numbers.cuh"

constexpr unsigned THREADS = 256, WARP = 32, WARPS = THREADS / WARP;

// Bits of floats are in order as signed integers from +0 up, and in the opposite order as unsigned
// ones below.
__device__ __forceinline__ void lower(float* to, float x) {
  if (x >= 0.f) atomicMin((int*)to, __float_as_int(x));
  else atomicMax((unsigned*)to, __float_as_uint(x));
}

__device__ __forceinline__ void raise(float* to, float x) {
  if (x >= 0.f) atomicMax((int*)to, __float_as_int(x));
  else atomicMin((unsigned*)to, __float_as_uint(x));
}

template <typename T>
__device__ void extend_range(float* range, const T* x, size_t n) {
  constexpr size_t FOUR = 4 * sizeof(T);
  __shared__ float least_of[WARPS], most_of[WARPS];
  float least = __int_as_float(0x7f800000), most = -least;  // infinity
  auto see = [&](float value) { least = fminf(least, value), most = fmaxf(most, value); };
  const size_t stride = (size_t)gridDim.x * THREADS, first = (size_t)blockIdx.x * THREADS + threadIdx.x;
  // Values before and behind those that are read by four.
  const size_t before = min(n, (FOUR - (size_t)x % FOUR) % FOUR / sizeof(T));
  const size_t fours = (n - before) / 4, behind = before + 4 * fours;
  if (first < before) see((float)x[first]);
  if (first < n - behind) see((float)x[behind + first]);
#pragma unroll 4
  for (size_t i = first; i < fours; i += stride) {
    float four[4];
    load4(x + before + 4 * i, four);
#pragma unroll
    for (int e = 0; e < 4; ++e) see(four[e]);
  }
#pragma unroll
  for (unsigned step = WARP / 2; step; step /= 2) {
    least = fminf(least, __shfl_xor_sync(0xffffffffu, least, step));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
  }
  if (threadIdx.x % WARP == 0) {
    least_of[threadIdx.x / WARP] = least;
    most_of[threadIdx.x / WARP] = most;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (unsigned w = 1; w < WARPS; ++w) {
    least = fminf(least, least_of[w]);
    most = fmaxf(most, most_of[w]);
  }
  // Adding 0 makes +0 of -0. What is read may be old: then the atomic is not needed, but right.
  if (least < *(volatile float*)range) lower(range, least + 0.f);
  if (most > *(volatile float*)(range + 1)) raise(range + 1, most + 0.f);
}

extern "C" __global__ void extend_range_f32(float* range, const float* x, const size_t n) { extend_range(range, x, n); }

extern "C" __global__ void extend_range_u8(float* range, const unsigned char* x, const size_t n) {
  extend_range(range, x, n);
}
