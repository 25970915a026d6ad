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
#define OF_ROWS(NAME, WGS, TN, TRANSPOSED, T, PA, PB) PRODUCT_UNITS(NAME##_##WGS##x##TN, T, Shape, WGS, TN, TRANSPOSED, T, PA, PB)
#define OF_FOUR_PARTS(NAME, WGS, T)                   \
  OF_ROWS(NAME##_k_major, WGS, 64, false, T, 2, 2)    \
  OF_ROWS(NAME##_k_major, WGS, 96, false, T, 2, 2)    \
  OF_ROWS(NAME##_k_major, WGS, 128, false, T, 2, 2)
#define OF_TWO_PARTS(NAME, WGS, T)                    \
  OF_FOUR_PARTS(NAME, WGS, T)                         \
  OF_ROWS(NAME##_transposed, WGS, 64, true, T, 1, 2)  \
  OF_ROWS(NAME##_transposed, WGS, 128, true, T, 1, 2)
OF_FOUR_PARTS(product_units_f16x2, 1, __half)
OF_TWO_PARTS(product_units_f16x2, 2, __half)
OF_TWO_PARTS(product_units_f16x2, 3, __half)

#define OF_TURNED(NAME, TN, TRANSPOSED, T, ...) PRODUCT_UNITS(NAME##_turned_##TN, T, Turned, __VA_ARGS__, TRANSPOSED, T, 1, 1)
#define OF_ORDER(NAME, TRANSPOSED, T)                \
  OF_TURNED(NAME, 64, TRANSPOSED, T, 1, 2, 128)      \
  OF_TURNED(NAME, 128, TRANSPOSED, T, 2, 1, 256)     \
  OF_TURNED(NAME, 192, TRANSPOSED, T, 3, 1, 192)     \
  OF_TURNED(NAME, 256, TRANSPOSED, T, 4, 1, 128)
#define OF_ONE_PART(NAME, T)                          \
  OF_ORDER(NAME##_k_major, false, T)                  \
  OF_ORDER(NAME##_transposed, true, T)
OF_ONE_PART(product_units_f16, __half)
OF_ONE_PART(product_units_bf16, __nv_bfloat16)
