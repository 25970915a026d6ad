// units.cu: bias, mean and draw of a layer of stochastic units in one pass over its
// pre-activations.
//
//   x = pre[r, j] + bias[j]          e = r * n_units + j, the element whose draws u (uniform) and z
//                                    (normal) are used
//   Bernoulli   mean = sigmoid(x)    sample = u < mean ? 1 : 0          without draws 1/2 < mean ? 1 : 0
//   Gaussian    mean = x             sample = x + std[j] * z            without draws x; std null means 1
//   Rectified   mean = max(0, x)     sample = max(0, x + sqrt(sigmoid(x)) * z)    without draws max(0, x)
//   out[mean_at + e] = mean_scale * mean,  out[sample_at + e] = sample
//   with low above 0, the rounding error of either goes to the plane `low` elements further on
//
// arrays   pre: [n] f32, n = rows * n_units, contiguous; bias, std: [n_units] f32, std may be null;
//          out: f32, bf16 or f16 (rounded to nearest even), planes of n elements from mean_at and
//          sample_at, not overlapping each other or an input; a place below 0 is a plane not
//          wanted. counter: [1] i64 or null
// scalars  n_units >= 1; by: 0, or where units are some of more: blocks of draws of a row of all, and `at`
//          those before the first (n_units a multiple of 4); drawn 0 or 1; seed, stream, offset, mean_scale: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes four elements (one block of Philox) and
//          strides over the grid; 16-byte access where addresses allow it. The result does not
//          depend on the launch
// cost     reads 4n bytes, writes 4n or 2n per plane; bandwidth-bound, launch-bound at the sizes of
//          a minibatch
// NaN      in x gives a NaN mean; a Bernoulli sample of it is 0, the others NaN
// same     the same bits as the CPU twin, by philox.cuh and math.cuh, in f32 and with low planes.
//          16-bit planes by themselves take the sigmoid of the hardware's exponential, relative
//          error below 2^-20: the last bit of a mean may differ, and a sample in a million
// truth    units_reference in src/layers/units.rs

#include "layers/units.cuh"

template <Unit UNIT, bool QUICK, typename T>
__device__ void units(T* out, long long mean_at, long long sample_at, size_t low, float mean_scale, const float* pre,
                      const float* bias, const float* std, size_t n, size_t n_units, size_t by, size_t at, bool drawn,
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
      load4(pre + e, x);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = i < count ? pre[e + i] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (Rounded(x[i]) + b[i]).v;
    means_of<UNIT, QUICK>(x, mean);

    if (sample_at >= 0) {
      float sample[4], s[4] = {1.f, 1.f, 1.f, 1.f};
      if (UNIT == GAUSSIAN && std) load_units(std, unit, n_units, count, s);
      samples_of<UNIT>(x, mean, s, drawn, philox, by ? e / n_units * by + at + unit / 4 : g, sample);
      store_parts(out + sample_at + e, UNIT == BERNOULLI ? 0 : low, sample, count);  // 0 and 1 are exact
    }
    if (mean_at >= 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mean[i] = (Rounded(mean_scale) * mean[i]).v;
      store_parts(out + mean_at + e, low, mean, count);
    }
  }
}

#define UNITS(NAME, UNIT, T)                                                                                       \
  extern "C" __global__ void NAME(T* out, const long long mean_at, const long long sample_at, const size_t low,    \
                                  const float mean_scale, const float* pre, const float* bias, const float* std,   \
                                  const size_t n, const size_t n_units, const size_t by, const size_t at,          \
                                  const unsigned drawn,                                                            \
                                  const unsigned long long seed, const unsigned long long stream,                  \
                                  const unsigned long long offset, const long long* counter) {                     \
    const Philox philox = philox_at(seed, stream, offset, counter);                                                \
    if (sizeof(T) == 2 && low == 0)                                                                                \
      units<UNIT, true>(out, mean_at, sample_at, low, mean_scale, pre, bias, std, n, n_units, by, at, drawn != 0,  \
                        philox);                                                                                   \
    else                                                                                                           \
      units<UNIT, false>(out, mean_at, sample_at, low, mean_scale, pre, bias, std, n, n_units, by, at, drawn != 0, \
                         philox);                                                                                  \
  }
UNITS(units_bernoulli_f32, BERNOULLI, float)
UNITS(units_gaussian_f32, GAUSSIAN, float)
UNITS(units_rectified_f32, RECTIFIED, float)
UNITS(units_bernoulli_bf16, BERNOULLI, __nv_bfloat16)
UNITS(units_gaussian_bf16, GAUSSIAN, __nv_bfloat16)
UNITS(units_rectified_bf16, RECTIFIED, __nv_bfloat16)
UNITS(units_bernoulli_f16, BERNOULLI, __half)
UNITS(units_gaussian_f16, GAUSSIAN, __half)
UNITS(units_rectified_f16, RECTIFIED, __half)
