// product_errors.cu: what a denoising autoencoder computes from its two later products, each in one launch. The products are those of
// product.cuh.
//
//   errors   v = scale * a b + bias, out = target - sigmoid(v);  sums: softplus(v) - target * v, and out * out
//   deltas   out = y (1 - y) * scale * a b
//
// arrays   a, b: as in product.cuh; out and y: two parts of [m, n] f16, `low` entries apart, planes from entries `at` and `of` on; bias: [n] f32; target: [m, n] f32, 16-byte
//          aligned; sums: [2, places] f64, to which block i adds its sums at place i
// scalars  places: at least the number of blocks
// launch, shared, cost   as in product.cuh
// NaN      propagates
// same     sums in one order on one device, without atomics
// truth    errors_of_product_reference, deltas_of_product_reference in src/product_errors.rs

#include "product.cuh"
#include "units.cuh"
#include "warp.cuh"

struct Numbers {
  Product product;
  unsigned long long low;
  float scale;
  unsigned places;
};

template <typename H>
__device__ void product_errors(__half* out, double* sums, const __half* a, const __half* b, const float* bias,
                               const float* target, const Numbers& n) {
  __shared__ float losses[H::THREADS / 32], squares[H::THREADS / 32];
  float loss = 0.f, square = 0.f;
  wait_for_previous();
  let_next_start();
  product<H>(a, b, n.product, [&](int row, int col, float(&x)[4]) {
    const size_t e = (size_t)row * n.product.n + col;
    float of_bias[4], t[4], error[4];
    load4(bias + col, of_bias);
    load4(target + e, t);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Rounded v = fmaf(n.scale, x[j], of_bias[j]);
      error[j] = t[j] - exact_sigmoid(v).v;
      loss += (exact_softplus(v) - Rounded(t[j]) * v).v;
      square += error[j] * error[j];
    }
    store_parts(out + e, n.low, error, 4);
  });
  loss = sum_of_warp(loss), square = sum_of_warp(square);
  if (threadIdx.x % 32 == 0) losses[threadIdx.x / 32] = loss, squares[threadIdx.x / 32] = square;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < H::THREADS / 32; ++w) loss += losses[w], square += squares[w];
  const unsigned place = blockIdx.y * gridDim.x + blockIdx.x;
  sums[place] += loss, sums[n.places + place] += square;
}

template <typename H>
__device__ void product_deltas(__half* planes, size_t at, size_t of, const __half* a, const __half* b, const Numbers& n) {
  wait_for_previous();
  let_next_start();
  product<H>(a, b, n.product, [&](int row, int col, float(&x)[4]) {
    const size_t e = (size_t)row * n.product.n + col;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float of_y = wide(planes[of + e + j]) + wide(planes[of + n.low + e + j]);
      x[j] = of_y * (1.f - of_y) * (n.scale * x[j]);
    }
    store_parts(planes + at + e, n.low, x, 4);
  });
}

#define ERRORS                                                                                                    \
  (__half* out, double* sums, const __half* a, const __half* b, const float* bias, const float* target,           \
   const __grid_constant__ Numbers n)
#define DELTAS                                                                                                    \
  (__half* planes, const unsigned long long at, const unsigned long long of, const __half* a, const __half* b,    \
   const __grid_constant__ Numbers n)
OF_EVERY_SHAPE(product_errors, ERRORS, product_errors<H>(out, sums, a, b, bias, target, n), 2, true)
OF_EVERY_SHAPE(product_deltas, DELTAS, product_deltas<H>(planes, at, of, a, b, n), 2, false)
