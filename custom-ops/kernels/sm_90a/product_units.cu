// sm_90a/product_units.cu: units of a product of 16-bit numbers, or of numbers in two parts, in one launch, by the products of warpgroups of
// capability 9.0: out = units(scale * a b + bias). The tile of a product is that of product_tile.cuh, means and draws are those of units.cu.
//
// arrays   a: PA of [m, k]; b: PB of [n, k] (straight) or [k, n] (turned), T, as tensor maps of blocks of DEPTH entries (b turned: 64) by 64 WGS and TN
//          or 64 lines, their third dimension the part; bias: [n] f32; out: planes of [m, n] T from mean_at and sample_at, second parts of means
//          `low` entries further on; a place below 0 is a plane not wanted. counter: [1] i64 or null
// scalars  n a multiple of 4, rows of a and b of 8 entries
// launch   grid (S * tiles across n, tiles across m), clusters of S <= 8 along x; 128 WGS + 128 threads
// shared   STAGES slices and 1 KB to align them; the tile of sums takes their place
// cost     2mnk FLOP for each pair of parts; operands once for each tile
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    units_of_product_reference in src/products/units.rs

#include "../product_units.cuh"
#include "product_tile.cuh"

struct Numbers {
  unsigned long long low;
  long long mean_at, sample_at;
  unsigned long long seed, stream, offset;
  float scale, mean_scale;
  int m, n, k;
  unsigned gaussian, drawn, cluster;
};

// Starts the copies of slices first .. first + count of both operands, in turn, one thread.
template <typename H>
__device__ __forceinline__ void copy_slices(const Ring& ring, const TensorMap& a_map, const TensorMap& b_map, int row0, int col0, int first,
                                            int count) {
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    const int stage = s % H::STAGES, k = (first + s) * H::DEPTH;
    if (s >= H::STAGES) barrier_wait(ring.empty + stage, (s / H::STAGES - 1) % 2);
    unsigned char* to = ring.slices + stage * H::BYTES;
    uint64_t* here = ring.full + stage;
    barrier_expect(here, H::BYTES);
#pragma unroll
    for (int p = 0; p < H::PA; ++p, to += H::A_BYTES) copy_block(to, &a_map, k, row0, p, here);
#pragma unroll
    for (int p = 0; p < H::PB; ++p, to += H::B_BYTES) {
      if (H::TURNED) {
#pragma unroll
        for (int c = 0; c < H::BLOCKS; ++c) copy_block(to + c * H::BLOCK_BYTES, &b_map, col0 + 64 * c, k, p, here);
      } else {
        copy_block(to, &b_map, k, col0, p, here);
      }
    }
  }
}

template <typename H>
__device__ __forceinline__ void product_units(typename H::T* out, const float* bias, const long long* counter, const TensorMap& a_map,
                                              const TensorMap& b_map, const Numbers& n) {
  const int cluster = n.cluster, rank = blockIdx.x % cluster;
  const int row0 = blockIdx.y * H::TM, col0 = blockIdx.x / cluster * H::TN;
  const int all = (n.k + H::DEPTH - 1) / H::DEPTH;
  const int first = all * rank / cluster, count = all * (rank + 1) / cluster - first;
  if (threadIdx.x == 0) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
  }
  auto copy = [&](const Ring& ring) {
    if (threadIdx.x == H::THREADS) copy_slices<H>(ring, a_map, b_map, row0, col0, first, count);
  };
  tile_of_product<H>(cluster, {count}, copy, [&](auto each) {
    const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
    each(Number<1>(), [&](const int(&line)[1], const int(&along)[1], float(&x)[1][4]) {
      const int row = row0 + line[0], col = col0 + along[0];
      if (row < n.m && col < n.n) finish_units<!H::EXACT>(out, x[0], bias, row, col, n.n, philox, n);  // n is a multiple of 4
    });
  });
}

#define PRODUCT_UNITS(NAME, WGS, TN, TURNED, T, PA, PB)                                                                      \
  extern "C" __global__ void __launch_bounds__(128 * WGS + 128, 1)                                                           \
  NAME(T* out, const float* bias, const long long* counter, const __grid_constant__ TensorMap a_map,                         \
       const __grid_constant__ TensorMap b_map, const __grid_constant__ Numbers n) {                                         \
    product_units<Shape<WGS, TN, TURNED, T, PA, PB>>(out, bias, counter, a_map, b_map, n);                                   \
  }
#define OF_WIDTHS(NAME, WGS, T)                                                                                              \
  PRODUCT_UNITS(NAME##_straight_##WGS##x64, WGS, 64, false, T, 1, 1)                                                         \
  PRODUCT_UNITS(NAME##_straight_##WGS##x96, WGS, 96, false, T, 1, 1)                                                         \
  PRODUCT_UNITS(NAME##_straight_##WGS##x128, WGS, 128, false, T, 1, 1)                                                       \
  PRODUCT_UNITS(NAME##_straight_##WGS##x192, WGS, 192, false, T, 1, 1)                                                       \
  PRODUCT_UNITS(NAME##_turned_##WGS##x64, WGS, 64, true, T, 1, 1)                                                            \
  PRODUCT_UNITS(NAME##_turned_##WGS##x128, WGS, 128, true, T, 1, 1)                                                          \
  PRODUCT_UNITS(NAME##_turned_##WGS##x192, WGS, 192, true, T, 1, 1)
#define OF_TWO_PARTS(NAME, WGS, T)                                                                                           \
  PRODUCT_UNITS(NAME##_straight_##WGS##x64, WGS, 64, false, T, 2, 2)                                                         \
  PRODUCT_UNITS(NAME##_straight_##WGS##x96, WGS, 96, false, T, 2, 2)                                                         \
  PRODUCT_UNITS(NAME##_straight_##WGS##x128, WGS, 128, false, T, 2, 2)                                                       \
  PRODUCT_UNITS(NAME##_turned_##WGS##x64, WGS, 64, true, T, 1, 2)                                                            \
  PRODUCT_UNITS(NAME##_turned_##WGS##x128, WGS, 128, true, T, 1, 2)
#define OF_EVERY_SHAPE(NAME, T)                                                                                              \
  OF_WIDTHS(NAME, 2, T)                                                                                                      \
  OF_WIDTHS(NAME, 3, T)
OF_EVERY_SHAPE(product_units_f16, __half)
OF_EVERY_SHAPE(product_units_bf16, __nv_bfloat16)
OF_TWO_PARTS(product_units_f16x2, 2, __half)
OF_TWO_PARTS(product_units_f16x2, 3, __half)
