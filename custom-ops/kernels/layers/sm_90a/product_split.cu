// sm_90a/product_split.cu: products of f32 numbers that split_lines.cu has split, by the products of
// warpgroups of capability 9.0.
//
//   c[i][j] = rows[i] cols[j] sum over l of a[i][l] b[l][j]
//
// arrays   a, b: as in product_tile.cuh, f16 numbers in two parts; rows: [m] f32; cols: null, or [n]
//          f32, 16-byte aligned; c: [m, n] f32, 16-byte aligned
// scalars  n a multiple of 4, of 8 where b is transposed
// launch, shared, cost   as in product_tile.cuh
// NaN      propagates
// same     sums in one order on one device
// truth    product_of_split_reference in src/layers/products/split.rs

#include "core/numbers.cuh"
#include "layers/sm_90a/product_tile.cuh"

template <typename H>
__device__ __forceinline__ void product_split(float* c, const float* rows, const float* cols, const TensorMap& a_map, const TensorMap& b_map,
                                              const Extent& n) {
  tile_of_product<H>(a_map, b_map, n, [&](int col) {
    float4 by = make_float4(1.f, 1.f, 1.f, 1.f);
    if (cols) by = *reinterpret_cast<const float4*>(cols + col);
    return [&, by, col](int row) {
      return [by, scale = rows[row], to = c + (size_t)row * n.n + col](const float(&x)[4]) {
        store4(to, {scale * by.x * x[0], scale * by.y * x[1], scale * by.z * x[2], scale * by.w * x[3]});
      };
    };
  });
}

#define SPLIT                                                                                                                      \
  (float* c, const float* rows, const float* cols, const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, \
   const __grid_constant__ Extent n)
#define OF_FORM(FORM, UNITS, ROWS, MOST, T)                                                                                          \
  OF_TILE(product_split_##FORM, SPLIT, product_split<H>(c, rows, cols, a_map, b_map, n), Turned, UNITS, ROWS, MOST, false, T, 2, 2) \
  OF_TILE(product_split_transposed_##FORM, SPLIT, product_split<H>(c, rows, cols, a_map, b_map, n), Turned, UNITS, ROWS, MOST, true,     \
          T, 2, 2)
FORMS_OF_TWO_PARTS(OF_FORM, __half)
