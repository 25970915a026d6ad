// split_lines.cu: f32 numbers as sums of two f16 ones, with a power of two for each line, so that a
// line of any range has the precision of f32 beside its largest number.
//
//   split_rows      y[i][j] = x[i][j] factors[j]
//   split_columns   y[i][j] = x[j][i] factors[j]
//   scales[i] = 2^-e, where 2^14 <= 2^e max |y[i]| < 2^15, or 0 where all y[i] are 0
//   parts[0][i][j] = f16(2^e y[i][j]), parts[1][i][j] = f16(2^e y[i][j] - parts[0][i][j])
//
// arrays   x: [rows, cols] f32; factors: null, or f32 as many as a line has numbers; parts: two of
//          [lines, width] f16, which are `part` entries apart; scales: [lines] f32; not overlapping.
//          Lines beyond those of x, and what is beyond its numbers in a line, are 0
// scalars  lines and width at least those of x, or of its transpose; e at most 126
// launch   split_rows: blocks of 128 that stride over the lines, any number of them; split_columns:
//          a block of 1024 for 8 lines
// cost     reads x twice, the second time from a cache, writes 4 bytes a number
// NaN      propagates; an infinite number makes its line NaN in products
// same     the same bits as the CPU twin
// truth    the CPU twin in src/arrays/split_lines.rs

#include "arrays/fours.cuh"
#include "core/warp.cuh"

// 2^e for the largest number of a line, and 2^-e; 0 where it is 0.
struct Power {
  float factor, inverse;
};
__device__ __forceinline__ Power power_for(float largest) {
  if (largest == 0.f) return {0.f, 0.f};
  const int e = min(14 - ilogbf(largest), 126);
  return {scalbnf(1.f, e), scalbnf(1.f, -e)};
}

extern "C" __global__ void __launch_bounds__(128)
split_rows(const float* x, const float* factors, __half* parts, float* scales, const size_t part, const int rows, const int cols,
           const int lines, const int width) {
  constexpr unsigned WARPS = 4;
  __shared__ float largest_of[WARPS];
#pragma unroll 1
  for (int i = blockIdx.x; i < lines; i += gridDim.x) {
    const float* from = x + (size_t)i * cols;
    auto read = [&](int j, float (&v)[4]) {
      const int count = i < rows ? max(min(cols - j, 4), 0) : 0;
      load(from + j, count, v);
      if (!factors) return;
      float f[4];
      load(factors + j, count, f);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] *= f[e];
    };
    float largest = 0.f;
#pragma unroll 4
    for (int j = 4 * threadIdx.x; j < cols; j += 4 * 128) {
      float v[4];
      read(j, v);
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = fmaxf(largest, fabsf(v[e]));
    }
    largest = largest_of_warp(largest);
    __syncthreads();  // the line before is done with them
    if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) largest = fmaxf(largest, largest_of[w]);
    const Power power = power_for(largest);
    if (threadIdx.x == 0) scales[i] = power.inverse;
#pragma unroll 4
    for (int j = 4 * threadIdx.x; j < width; j += 4 * 128) {
      float v[4];
      read(j, v);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] *= power.factor;
      store_parts(parts + (size_t)i * width + j, part, min(width - j, 4), v);
    }
  }
}

extern "C" __global__ void __launch_bounds__(1024)
split_columns(const float* x, const float* factors, __half* parts, float* scales, const size_t part, const int rows, const int cols,
              const int lines, const int width) {
  constexpr int OF_BLOCK = 8, SWEEP = 1024 / 2;
  __shared__ int largest_of[OF_BLOCK];  // bits of numbers of at least 0 are in their order
  if (threadIdx.x < OF_BLOCK) largest_of[threadIdx.x] = 0;
  __syncthreads();
  // Two threads read the eight numbers of a row.
  const int of_block = threadIdx.x % 2 * 4, i = blockIdx.x * OF_BLOCK + of_block, first = threadIdx.x / 2;
  auto read = [&](int j, float (&v)[4]) {
    load(x + (size_t)j * cols + i, j < rows ? max(min(cols - i, 4), 0) : 0, v);
    if (!factors || j >= rows) return;
    const float f = factors[j];
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] *= f;
  };
  float largest[4] = {};
#pragma unroll 8
  for (int j = first; j < rows; j += SWEEP) {
    float v[4];
    read(j, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) largest[e] = fmaxf(largest[e], fabsf(v[e]));
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
#pragma unroll
    for (int step = 16; step > 1; step /= 2) largest[e] = fmaxf(largest[e], __shfl_xor_sync(0xffffffffu, largest[e], step));
    if (threadIdx.x % 32 < 2) atomicMax(largest_of + of_block + e, __float_as_int(largest[e]));
  }
  __syncthreads();
  float factor[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const Power power = power_for(__int_as_float(largest_of[of_block + e]));
    factor[e] = power.factor;
    if (first == 0 && i + e < lines) scales[i + e] = power.inverse;
  }
#pragma unroll 8
  for (int j = first; j < width; j += SWEEP) {
    float v[4];
    read(j, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (i + e >= lines) continue;
      const float y = v[e] * factor[e];
      const __half high = narrow<__half>(y);
      __half* to = parts + (size_t)(i + e) * width + j;
      to[0] = high;
      to[part] = narrow<__half>(y - wide(high));
    }
  }
}
