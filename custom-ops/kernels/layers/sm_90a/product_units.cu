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
#define OF_FORM(FORM, UNITS, ROWS, MOST, NAME, TRANSPOSED, T, PA, PB)                                                                     \
  OF_TILE(product_units_##NAME##_##FORM, PARAMETERS(T), product_units<H>(out, bias, counter, a_map, b_map, n), Turned, UNITS, ROWS, MOST, \
          TRANSPOSED, T, PA, PB)
FORMS_OF_TWO_PARTS(OF_FORM, f16x2_k_major, false, __half, 2, 2)
FORMS_OF_TWO_PARTS(OF_FORM, f16x2_transposed, true, __half, 1, 2)
FORMS_OF_ONE_PART(OF_FORM, f16_k_major, false, __half, 1, 1)
FORMS_OF_ONE_PART(OF_FORM, f16_transposed, true, __half, 1, 1)
FORMS_OF_ONE_PART(OF_FORM, bf16_k_major, false, __nv_bfloat16, 1, 1)
FORMS_OF_ONE_PART(OF_FORM, bf16_transposed, true, __nv_bfloat16, 1, 1)
