// units.cuh: the shared parts of units.cu and product_units.cu: means and samples of four units,
// and where they are stored. The formulas are in units.cu.
#pragma once

#include "core/math.cuh"
#include "core/numbers.cuh"
#include "core/philox.cuh"

enum Unit { BERNOULLI, GAUSSIAN, RECTIFIED };

__device__ __forceinline__ bool aligned(const void* p, size_t bytes) { return (size_t)p % bytes == 0; }

// Writes the first `count` of four values.
template <typename T>
__device__ __forceinline__ void store(T* out, const float (&v)[4], int count) {
  if (count == 4 && aligned(out, 4 * sizeof(T))) return store4(out, v);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) out[i] = narrow<T>(v[i]);
}

// The same, and what rounding takes `low` elements further on.
template <typename T>
__device__ __forceinline__ void store_parts(T* out, size_t low, const float (&v)[4], int count) {
  store(out, v, count);
  if (!low) return;
  float rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rest[i] = v[i] - wide(narrow<T>(v[i]));
  store(out + low, rest, count);
}

// The parameters of the units of `count` elements, the first of which belongs to unit `unit`.
__device__ __forceinline__ void load_units(const float* of_units, size_t unit, size_t n_units, int count,
                                           float (&v)[4]) {
  if (unit + 4 <= n_units && aligned(of_units + unit, 16)) return load4(of_units + unit, v);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = i < count ? of_units[unit] : 0.f;
    unit = unit + 1 == n_units ? 0 : unit + 1;
  }
}

__device__ __forceinline__ Rounded rectify(Rounded x) { return x.v <= 0.f ? Rounded(0.f) : x; }

// sigmoid(x) with the hardware's exponential and reciprocal. Subnormals may count as 0: 1 + e takes
// no notice of them, and only below e^-87 are results so small.
__device__ __forceinline__ float quick_sigmoid(float x) {
  float e, mean;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(mean) : "f"(1.f + e));
  return mean;
}

// The means of four units from their pre-activations; QUICK ones by the hardware's exponential.
template <Unit UNIT, bool QUICK>
__device__ __forceinline__ void means_of(const float (&x)[4], float (&mean)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (UNIT == BERNOULLI) mean[i] = QUICK ? quick_sigmoid(x[i]) : exact_sigmoid(x[i]).v;
    else mean[i] = UNIT == RECTIFIED ? rectify(x[i]).v : x[i];
  }
}

// Samples of four units with deviations `s` (Gaussian ones); without draws the most probable
// states.
template <Unit UNIT>
__device__ __forceinline__ void samples_of(const float (&x)[4], const float (&mean)[4], const float (&s)[4], bool drawn,
                                           const Philox& philox, unsigned long long block, float (&sample)[4]) {
  Rounded draws[4];
  if (UNIT == BERNOULLI) {
    if (drawn) uniform_of(philox_block(philox, block), draws);
#pragma unroll
    for (int i = 0; i < 4; ++i) sample[i] = (drawn ? draws[i].v : 0.5f) < mean[i] ? 1.f : 0.f;
  } else if (drawn) {
    normal_of(philox_block(philox, block), draws);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (UNIT == GAUSSIAN) sample[i] = (Rounded(x[i]) + draws[i] * s[i]).v;
      else sample[i] = rectify(Rounded(x[i]) + root(exact_sigmoid(x[i])) * draws[i]).v;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) sample[i] = mean[i];
  }
}
