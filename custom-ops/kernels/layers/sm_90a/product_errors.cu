// sm_90a/product_errors.cu: what a denoising autoencoder computes from its two later products, each
// in one launch, by the products of warpgroups of capability 9.0. The formulas are in
// ../product_errors.cu; the products are those of product_tile.cuh, of f16 numbers in two parts or
// of f16 or bf16 ones in one.
//
// arrays   a, b: as in product_tile.cuh, b transposed for errors, K-major for deltas; out and y:
//          one or two parts of [m, n], `low` entries apart, planes from entries `at` and `of` on;
//          bias: [n] f32; target: [m, n] f32, 16-byte aligned; sums: [2, places] f64, to which
//          block i adds its sums at place i
// scalars  n a multiple of 4, of 8 for errors; places: at least the number of blocks
// launch, shared, cost   as in product_tile.cuh
// NaN      propagates
// same     sums in one order on one device, without atomics
// truth    errors_of_product_reference, deltas_of_product_reference in
//          src/layers/products/errors.rs

#include "layers/product_errors.cuh"
#include "layers/sm_90a/product_tile.cuh"

struct Numbers {
  Extent extent;
  unsigned long long low;
  float scale;
  unsigned places;
};

template <typename H>
__device__ __forceinline__ void product_errors(typename H::T* out, double* sums, const float* bias, const float* target, const TensorMap& a_map,
                                               const TensorMap& b_map, const Numbers& n) {
  Seen seen{0.f, 0.f};
  const bool multiplied = tile_of_product<H>(a_map, b_map, n.extent, [&](int col) {
    return [&, col](int row) { return finish_errors<!H::EXACT>(out, bias, target, (size_t)row * n.extent.n + col, col, n, seen); };
  });
  if (multiplied) add_seen<H::THREADS>(sums, seen, n, [] { all_multiplied<H::THREADS>(); });
}

template <typename H>
__device__ __forceinline__ void product_deltas(typename H::T* planes, size_t at, size_t of, const TensorMap& a_map, const TensorMap& b_map,
                                               const Numbers& n) {
  tile_of_product<H>(a_map, b_map, n.extent, [&](int col) {
    return [&, col](int row) { return finish_deltas<H::PA>(planes, at, of, (size_t)row * n.extent.n + col, n); };
  });
}

#define ERRORS(T)                                                                                              \
  (T * out, double* sums, const float* bias, const float* target, const __grid_constant__ TensorMap a_map,     \
   const __grid_constant__ TensorMap b_map, const __grid_constant__ Numbers n)
#define DELTAS(T)                                                                                                 \
  (T * planes, const unsigned long long at, const unsigned long long of, const __grid_constant__ TensorMap a_map, \
   const __grid_constant__ TensorMap b_map, const __grid_constant__ Numbers n)
#define OF_FORM(FORM, UNITS, ROWS, MOST, NAME, T, PARTS)                                                                           \
  OF_TILE(product_errors_##NAME##_##FORM, ERRORS(T), product_errors<H>(out, sums, bias, target, a_map, b_map, n), Turned, UNITS,   \
          ROWS, MOST, true, T, PARTS, PARTS)                                                                                       \
  OF_TILE(product_deltas_##NAME##_##FORM, DELTAS(T), product_deltas<H>(planes, at, of, a_map, b_map, n), Turned, UNITS, ROWS, MOST, \
          false, T, PARTS, PARTS)
FORMS_OF_TWO_PARTS(OF_FORM, f16x2, __half, 2)
FORMS_OF_ONE_PART(OF_FORM, f16, __half, 1)
FORMS_OF_ONE_PART(OF_FORM, bf16, __nv_bfloat16, 1)
