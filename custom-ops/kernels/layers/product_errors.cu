// product_errors.cu: what a denoising autoencoder computes from its two later products, each in one
// launch. The products are those of product.cuh.
//
//   errors   v = scale * a b + bias, out = target - sigmoid(v);  sums: softplus(v) - target * v, and out * out
//   deltas   out = y (1 - y) * scale * a b
//
// arrays   a, b: as in product.cuh; out and y: two parts of [m, n] f16, `low` entries apart, planes
//          from entries `at` and `of` on; bias: [n] f32; target: [m, n] f32, 16-byte aligned; sums:
//          [2, places] f64, to which block i adds its sums at place i
// scalars  places: at least the number of blocks
// launch, shared, cost   as in product.cuh
// NaN      propagates
// same     sums in one order on one device, without atomics
// truth    errors_of_product_reference, deltas_of_product_reference in
//          src/layers/products/errors.rs

#include "layers/product.cuh"
#include "layers/product_errors.cuh"

struct Numbers {
  Product product;
  unsigned long long low;
  float scale;
  unsigned places;
};

template <typename H>
__device__ void product_errors(__half* out, double* sums, const __half* a, const __half* b, const float* bias,
                               const float* target, const Numbers& n) {
  Seen seen{0.f, 0.f};
  wait_for_previous();
  launch_dependents();
  product<H>(a, b, n.product, [&](int row, int col, float(&x)[4]) {
    finish_errors<false>(out, bias, target, (size_t)row * n.product.n + col, col, n, seen)(x);
  });
  add_seen<H::THREADS>(sums, seen, n, [] { __syncthreads(); });
}

template <typename H>
__device__ void product_deltas(__half* planes, size_t at, size_t of, const __half* a, const __half* b, const Numbers& n) {
  wait_for_previous();
  launch_dependents();
  product<H>(a, b, n.product, [&](int row, int col, float(&x)[4]) {
    finish_deltas<2>(planes, at, of, (size_t)row * n.product.n + col, n)(x);
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
