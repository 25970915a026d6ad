// product_errors.cuh: what product_errors.cu and sm_90a/product_errors.cu do with the sums of a
// product. Their `Numbers` have these members: low, scale, places.
#pragma once

#include "layers/units.cuh"
#include "core/warp.cuh"

__device__ __forceinline__ float2 widened_pair(const __half2& pair) { return __half22float2(pair); }
__device__ __forceinline__ float2 widened_pair(const __nv_bfloat162& pair) { return __bfloat1622float2(pair); }

// Four neighbours of type T in memory.
template <typename T> __device__ __forceinline__ void widen4(const uint2& four, float (&v)[4]) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const Pair* pairs = reinterpret_cast<const Pair*>(&four);
  const float2 low = widened_pair(pairs[0]), high = widened_pair(pairs[1]);
  v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
}

// Sums of the cross-entropies and squared errors that a thread has seen.
struct Seen {
  float loss, square;
};

// What finishes four neighbours of a row of the result, from entry e and column `col` on, once it
// has their sums: out = target - sigmoid(scale * x + bias). QUICK: by the hardware's exponential and
// logarithm, for numbers of one part, which round by more.
template <bool QUICK, typename T, typename Numbers>
__device__ __forceinline__ auto finish_errors(T* out, const float* bias, const float* target, size_t e, int col, const Numbers& n,
                                              Seen& seen) {
  const float4 of_bias = *reinterpret_cast<const float4*>(bias + col), of_target = *reinterpret_cast<const float4*>(target + e);
  return [=, &n, &seen](const float(&x)[4]) {
    const float b[4] = {of_bias.x, of_bias.y, of_bias.z, of_bias.w}, t[4] = {of_target.x, of_target.y, of_target.z, of_target.w};
    float error[4];
    if constexpr (QUICK) {
      float sums = 1.f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float v = fmaf(n.scale, x[j], b[j]), small = __expf(-fabsf(v)), sum = 1.f + small;
        sums *= sum;
        error[j] = t[j] - __fdividef(v < 0.f ? small : 1.f, sum);
        seen.loss += (v > 0.f ? v : v * 0.f) - t[j] * v;  // of NaN, NaN
        seen.square += error[j] * error[j];
      }
      seen.loss += __logf(sums);
      store_parts(out + e, n.low, error, 4);
      return;
    }
    // softplus(v) = max(v, 0) + ln(1 + exp(-|v|)): one logarithm serves the product of four sums,
    // each in 1 .. 2.
    Rounded sums = 1.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Rounded v = fmaf(n.scale, x[j], b[j]), small = exact_exp(minus_abs(v)), sum = Rounded(1.f) + small;
      sums = sums * sum;
      error[j] = t[j] - __fdividef(v < 0.f ? small.v : 1.f, sum.v);
      seen.loss += ((v > 0.f ? v : Rounded(0.f)) - Rounded(t[j]) * v).v;
      seen.square += error[j] * error[j];
    }
    seen.loss += exact_ln_normal(sums).v;
    store_parts(out + e, n.low, error, 4);
  };
}

// Adds the sums of the first THREADS threads of a block to its place, where `synchronize` waits for
// them. Other threads have left, or wait.
template <int THREADS, typename Numbers, typename Synchronize>
__device__ __forceinline__ void add_seen(double* sums, Seen seen, const Numbers& n, Synchronize synchronize) {
  __shared__ Seen of_warps[THREADS / 32];
  seen.loss = sum_of_warp(seen.loss), seen.square = sum_of_warp(seen.square);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = seen;
  synchronize();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < THREADS / 32; ++w) seen.loss += of_warps[w].loss, seen.square += of_warps[w].square;
  const unsigned place = blockIdx.y * gridDim.x + blockIdx.x;
  sums[place] += seen.loss, sums[n.places + place] += seen.square;
}

// The same of planes that begin at entries `at` and `of`, in PARTS: out = y (1 - y) * scale * x.
template <int PARTS, typename T, typename Numbers>
__device__ __forceinline__ auto finish_deltas(T* planes, size_t at, size_t of, size_t e, const Numbers& n) {
  const uint2 high = *reinterpret_cast<const uint2*>(planes + of + e);
  uint2 low{};
  if (PARTS == 2) low = *reinterpret_cast<const uint2*>(planes + of + n.low + e);
  return [=, &n](const float(&x)[4]) {
    float y[4], rest[4] = {}, out[4];
    widen4<T>(high, y);
    if (PARTS == 2) widen4<T>(low, rest);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[j] = y[j] + rest[j];
      out[j] = y[j] * (1.f - y[j]) * (n.scale * x[j]);
    }
    store_parts(planes + at + e, n.low, out, 4);
  };
}
