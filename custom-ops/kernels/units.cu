// units.cu: bias, mean and draw of a layer of stochastic units in one pass over its pre-activations.
//
//   x = pre[r, j] + bias[j]          e = r * n_units + j, the element whose draws u (uniform) and z (normal) are used
//   Bernoulli   mean = sigmoid(x)    sample = u < mean ? 1 : 0          without draws 1/2 < mean ? 1 : 0
//   Gaussian    mean = x             sample = x + std[j] * z            without draws x; std null means 1
//   Rectified   mean = max(0, x)     sample = max(0, x + sqrt(sigmoid(x)) * z)    without draws max(0, x)
//   out[mean_at + e] = mean_scale * mean,  out[sample_at + e] = sample
//
// arrays   pre: [n] f32, n = rows * n_units, contiguous; bias, std: [n_units] f32, std may be null; out: f32 or bf16
//          (rounded to nearest even), planes of n elements from mean_at and sample_at, not overlapping each other or
//          an input; a place below 0 is a plane not wanted. counter: [1] i64 or null
// scalars  n_units >= 1; drawn 0 or 1; seed, stream, offset, mean_scale: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes four elements (one block of Philox) and strides over the
//          grid; 16-byte access where addresses allow it. The result does not depend on the launch
// cost     reads 4n bytes, writes 4n or 2n a plane; bandwidth-bound, at the sizes of a minibatch launch-bound
// NaN      in x gives a NaN mean; a Bernoulli sample of it is 0, the others NaN
// same     bits as the CPU twin, by philox.cuh and math.cuh
// truth    units_reference in src/units.rs

#include <cuda_bf16.h>

#include "math.cuh"
#include "philox.cuh"

enum Unit { BERNOULLI, GAUSSIAN, RECTIFIED };

__device__ __forceinline__ bool aligned(const void* p, size_t bytes) { return (size_t)p % bytes == 0; }

__device__ __forceinline__ void store4(float* out, const float (&v)[4]) {
  *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void store4(__nv_bfloat16* out, const float (&v)[4]) {
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
  *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(pairs);
}
__device__ __forceinline__ void store1(float* out, float v) { *out = v; }
__device__ __forceinline__ void store1(__nv_bfloat16* out, float v) { *out = __float2bfloat16_rn(v); }

// Writes the first `count` of four values.
template <typename T>
__device__ __forceinline__ void store(T* out, const float (&v)[4], int count) {
  if (count == 4 && aligned(out, 4 * sizeof(T))) return store4(out, v);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) store1(out + i, v[i]);
}

// The parameters of the units of `count` elements, the first of which belongs to unit `unit`.
__device__ __forceinline__ void load_units(const float* of_units, size_t unit, size_t n_units, int count,
                                           float (&v)[4]) {
  if (unit + 4 <= n_units && aligned(of_units + unit, 16)) {
    const float4 four = *reinterpret_cast<const float4*>(of_units + unit);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = i < count ? of_units[unit] : 0.f;
    unit = unit + 1 == n_units ? 0 : unit + 1;
  }
}

__device__ __forceinline__ Rounded rectify(Rounded x) { return x.v <= 0.f ? Rounded(0.f) : x; }

template <Unit UNIT, typename T>
__device__ void units(T* out, long long mean_at, long long sample_at, float mean_scale, const float* pre,
                      const float* bias, const float* std, size_t n, size_t n_units, bool drawn,
                      const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    const size_t e = 4 * g;
    const int count = n - e < 4 ? (int)(n - e) : 4;
    // A 64-bit remainder takes many times as long as a 32-bit one.
    const size_t unit = n <= 0xffffffffu ? (unsigned)e % (unsigned)n_units : e % n_units;
    float b[4], x[4], mean[4];
    load_units(bias, unit, n_units, count, b);
    if (count == 4 && aligned(pre + e, 16)) {
      const float4 four = *reinterpret_cast<const float4*>(pre + e);
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = i < count ? pre[e + i] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = (Rounded(x[i]) + b[i]).v;
      mean[i] = UNIT == BERNOULLI ? exact_sigmoid(x[i]).v : UNIT == RECTIFIED ? rectify(x[i]).v : x[i];
    }

    if (sample_at >= 0) {
      float sample[4];
      Rounded draws[4];
      if (UNIT == BERNOULLI) {
        if (drawn) uniform_of(philox_block(philox, g), draws);
#pragma unroll
        for (int i = 0; i < 4; ++i) sample[i] = (drawn ? draws[i].v : 0.5f) < mean[i] ? 1.f : 0.f;
      } else if (drawn) {
        normal_of(philox_block(philox, g), draws);
        float s[4] = {1.f, 1.f, 1.f, 1.f};
        if (UNIT == GAUSSIAN && std) load_units(std, unit, n_units, count, s);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (UNIT == GAUSSIAN) sample[i] = (Rounded(x[i]) + draws[i] * s[i]).v;
          else sample[i] = rectify(Rounded(x[i]) + root(exact_sigmoid(x[i])) * draws[i]).v;
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) sample[i] = mean[i];
      }
      store(out + sample_at + e, sample, count);
    }
    if (mean_at >= 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mean[i] = (Rounded(mean_scale) * mean[i]).v;
      store(out + mean_at + e, mean, count);
    }
  }
}

#define UNITS(NAME, UNIT, T)                                                                                       \
  extern "C" __global__ void NAME(T* out, const long long mean_at, const long long sample_at,                      \
                                  const float mean_scale, const float* pre, const float* bias, const float* std,   \
                                  const size_t n, const size_t n_units, const unsigned drawn,                      \
                                  const unsigned long long seed, const unsigned long long stream,                  \
                                  const unsigned long long offset, const long long* counter) {                     \
    units<UNIT>(out, mean_at, sample_at, mean_scale, pre, bias, std, n, n_units, drawn != 0,                       \
                philox_at(seed, stream, offset, counter));                                                         \
  }
UNITS(units_bernoulli_f32, BERNOULLI, float)
UNITS(units_gaussian_f32, GAUSSIAN, float)
UNITS(units_rectified_f32, RECTIFIED, float)
UNITS(units_bernoulli_bf16, BERNOULLI, __nv_bfloat16)
UNITS(units_gaussian_bf16, GAUSSIAN, __nv_bfloat16)
UNITS(units_rectified_bf16, RECTIFIED, __nv_bfloat16)
