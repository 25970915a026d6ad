// product_units.cuh: what product_units.cu and sm_90a/product_units.cu do with the sums of a
// product: units(scale * x + bias).
#pragma once

#include "layers/units.cuh"

// P: the product as its kernel takes it.
template <typename P>
struct UnitNumbers {
  P product;
  unsigned long long low;
  long long mean_at, sample_at;
  unsigned long long seed, stream, offset;
  unsigned long long by, at;  // blocks of draws: from one row to the next, and before the first column
  float scale, mean_scale;
  unsigned gaussian, drawn;
};

// Four neighbours of a row of the result, from column `col` of `width` on, and their biases; QUICK
// as in `means_of`. Gaussian units have no samples.
template <bool QUICK, typename T, typename Numbers>
__device__ __forceinline__ void finish_units(T* out, float (&x)[4], const float (&of_bias)[4], int row, int col, int width, const Philox& philox,
                                             const Numbers& n) {
  float mean[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) x[j] = fmaf(n.scale, x[j], of_bias[j]);
  if (n.gaussian) means_of<GAUSSIAN, QUICK>(x, mean);
  else means_of<BERNOULLI, QUICK>(x, mean);
  const size_t e = (size_t)row * width + col;
  if (n.sample_at >= 0) {
    float sample[4];
    samples_of<BERNOULLI>(x, mean, x, n.drawn, philox, n.by * row + n.at + col / 4, sample);
    store4(out + n.sample_at + e, sample);
  }
  if (n.mean_at >= 0) {
#pragma unroll
    for (int j = 0; j < 4; ++j) mean[j] = n.mean_scale * mean[j];
    store_parts(out + n.mean_at + e, n.low, mean, 4);
  }
}
