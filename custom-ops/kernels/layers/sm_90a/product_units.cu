// sm_90a/product_units.cu: units of a product of 16-bit numbers, or of numbers in two parts, in one
// launch, by the products of warpgroups of capability 9.0: out = units(scale * a b + bias).
//
// The product is that of product_tile.cuh; means and draws are those of units.cu.
//
// arrays   a, b: as in product_tile.cuh; bias: [n] f32; out: planes of [m, n] T from mean_at and
//          sample_at, second parts of means `low` entries further on; a place below 0 is a plane
//          not wanted. counter: [1] i64 or null
// scalars, launch, shared, cost   as in product_tile.cuh
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    units_of_product_reference in src/layers/products/units.rs

#include "layers/product_units.cuh"
#include "layers/sm_90a/product_tile.cuh"

using Numbers = UnitNumbers<Extent>;

template <typename H>
__device__ __forceinline__ void product_units(typename H::T* out, const float* bias, const long long* counter, const TensorMap& a_map,
                                              const TensorMap& b_map, const Numbers& n) {
  tile_of_product<H>(a_map, b_map, n.product, [&](int col) {
    const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
    float of_bias[4];
    load4(bias + col, of_bias);
    return [=, &n](int row) {
      return [=, &n](float(&x)[4]) { finish_units<!H::EXACT>(out, x, of_bias, row, col, n.product.n, philox, n); };
    };
  });
}

#define PARAMETERS(T)                                                                                             \
  (T * out, const float* bias, const long long* counter, const __grid_constant__ TensorMap a_map,                 \
   const __grid_constant__ TensorMap b_map, const __grid_constant__ Numbers n)
#define PRODUCT_UNITS(NAME, T, TILE, ...) \
  OF_TILE(NAME, PARAMETERS(T), product_units<H>(out, bias, counter, a_map, b_map, n), TILE, __VA_ARGS__)
#define OF_FORM(NAME, FORM, TRANSPOSED, T, PA, PB, ...) PRODUCT_UNITS(NAME##_##FORM, T, Turned, __VA_ARGS__, TRANSPOSED, T, PA, PB)
#define OF_TWO_PARTS(NAME, TRANSPOSED, PA)                       \
  OF_FORM(NAME, 1x2, TRANSPOSED, __half, PA, 2, 1, 2, 128)       \
  OF_FORM(NAME, 1x3, TRANSPOSED, __half, PA, 2, 1, 3, 80)        \
  OF_FORM(NAME, 2x1, TRANSPOSED, __half, PA, 2, 2, 1, 208)       \
  OF_FORM(NAME, 2x2, TRANSPOSED, __half, PA, 2, 2, 2, 96)        \
  OF_FORM(NAME, 3x1, TRANSPOSED, __half, PA, 2, 3, 1, 128)
OF_TWO_PARTS(product_units_f16x2_k_major, false, 2)
OF_TWO_PARTS(product_units_f16x2_transposed, true, 1)

#define OF_ORDER(NAME, TRANSPOSED, T)                   \
  OF_FORM(NAME, 1x2, TRANSPOSED, T, 1, 1, 1, 2, 128)    \
  OF_FORM(NAME, 2x1, TRANSPOSED, T, 1, 1, 2, 1, 256)    \
  OF_FORM(NAME, 3x1, TRANSPOSED, T, 1, 1, 3, 1, 192)    \
  OF_FORM(NAME, 4x1, TRANSPOSED, T, 1, 1, 4, 1, 128)
#define OF_ONE_PART(NAME, T)                          \
  OF_ORDER(NAME##_k_major, false, T)                  \
  OF_ORDER(NAME##_transposed, true, T)
OF_ONE_PART(product_units_f16, __half)
OF_ONE_PART(product_units_bf16, __nv_bfloat16)
