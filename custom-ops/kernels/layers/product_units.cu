// product_units.cu: binary units (or means of Gaussian ones) of a product of numbers in two parts,
// in one launch: out = units(scale * a b + bias).
//
// The product is that of product.cuh; means and draws are those of units.cu.
//
// arrays   a, b: as in product.cuh; bias: [n] f32; out: planes of [m, n] f16 from mean_at and
//          sample_at, second parts of means `low` entries further on; a place below 0 is a plane
//          not wanted. counter: [1] i64 or null. Rows contiguous
// scalars, launch, shared, cost   as in product.cuh
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    units_of_product_reference in src/layers/products/units.rs

#include "layers/product.cuh"
#include "layers/product_units.cuh"

using Numbers = UnitNumbers<Product>;

template <typename H>
__device__ void product_units(__half* out, const __half* a, const __half* b, const float* bias, const long long* counter,
                              const Numbers& n) {
  wait_for_previous();
  launch_dependents();
  const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
  product<H>(a, b, n.product, [&](int row, int col, float(&x)[4]) {
    float of_bias[4];
    load4(bias + col, of_bias);
    finish_units<false>(out, x, of_bias, row, col, n.product.n, philox, n);
  });
}

#define PARAMETERS                                                                                       \
  (__half* out, const __half* a, const __half* b, const float* bias, const long long* counter,           \
   const __grid_constant__ Numbers n)
// Up from two parts, down from states of 0 and 1, which have one.
OF_EVERY_SHAPE(product_units_k_major, PARAMETERS, product_units<H>(out, a, b, bias, counter, n), 2, false)
OF_EVERY_SHAPE(product_units_transposed, PARAMETERS, product_units<H>(out, a, b, bias, counter, n), 1, true)
