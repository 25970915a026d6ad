// sm_90a/product_units.cu: units of a product of 16-bit numbers in one launch, by the products of warpgroups of capability 9.0:
// out = units(scale * a b + bias).
//
// A block sums a tile of 64 WGS x TN entries: one thread of a further warpgroup copies slices of both operands, 64 entries of the depth at a
// time, through a ring of STAGES places; WGS warpgroups multiply them. Blocks of a cluster share a tile: each sums a stretch of the depth,
// then each finishes a part of the rows from everyone's sums, read from their shared memory. Means and draws are those of units.cu.
//
// arrays   a: [m, k]; b: [n, k] (straight) or [k, n] (turned), T, as tensor maps of blocks of 64 entries by 64 WGS and TN or 64 lines;
//          bias: [n] f32; out: planes of [m, n] T from mean_at and sample_at; a place below 0 is a plane not wanted. counter: [1] i64 or null
// scalars  n a multiple of 4, rows of a and b of 8 entries
// launch   grid (S * tiles across n, tiles across m), clusters of S <= 8 along x; 128 WGS + 128 threads
// shared   STAGES slices and 1 KB to align them; the tile of sums takes their place
// cost     2mnk FLOP; operands once for each tile
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    units_of_product_reference in src/products/units.rs

#include "../cluster.cuh"
#include "../order.cuh"
#include "../product_units.cuh"
#include "wgmma.cuh"

struct Numbers {
  unsigned long long low;
  long long mean_at, sample_at;
  unsigned long long seed, stream, offset;
  float scale, mean_scale;
  int m, n, k;
  unsigned gaussian, drawn, cluster;
};

constexpr int SLICE_DEPTH = 64;

template <int WGS_, int TN_, bool TURNED_, typename T_>
struct Shape {
  using T = T_;
  static constexpr int WGS = WGS_, TN = TN_, TM = 64 * WGS;
  static constexpr bool TURNED = TURNED_;
  static constexpr int THREADS = 128 * WGS;  // that multiply; as many as a warpgroup more copy
  static constexpr int A_BYTES = TM * BLOCK_LINE, B_BYTES = TN * BLOCK_LINE, BYTES = A_BYTES + B_BYTES;  // of a slice
  static constexpr int STAGES = 200 * 1024 / BYTES < 8 ? 200 * 1024 / BYTES : 8;
  static constexpr int TILE_LINE = TN + 4;
  static constexpr int N = TURNED ? 64 : TN;  // columns of one product: those of a block where the operand is turned
  static_assert(!TURNED || TN % 64 == 0, "a turned operand comes in blocks of 64 columns");
};

// Waits for the threads that multiply.
template <int THREADS>
__device__ __forceinline__ void all_multiplied() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

template <typename H>
__device__ __forceinline__ void product_units(typename H::T* out, const float* bias, const long long* counter, const TensorMap& a_map,
                                              const TensorMap& b_map, const Numbers& n) {
  using T = typename H::T;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::STAGES], empty[H::STAGES];
  unsigned char* slices = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int cluster = n.cluster, rank = blockIdx.x % cluster;
  const int row0 = blockIdx.y * H::TM, col0 = blockIdx.x / cluster * H::TN;
  const int all = (n.k + SLICE_DEPTH - 1) / SLICE_DEPTH;
  const int first = all * rank / cluster, count = all * (rank + 1) / cluster - first;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
    for (int s = 0; s < H::STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, H::WGS);
    barriers_made();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();

  if (warp >= 4 * H::WGS) {
    if (warp == 4 * H::WGS && lane == 0) {
#pragma unroll 1
      for (int s = 0; s < count; ++s) {
        const int stage = s % H::STAGES;
        if (s >= H::STAGES) barrier_wait(empty + stage, (s / H::STAGES - 1) % 2);
        unsigned char* to = slices + stage * H::BYTES;
        barrier_expect(full + stage, H::BYTES);
        const int k = (first + s) * SLICE_DEPTH;
        copy_block(to, &a_map, k, row0, full + stage);
        to += H::A_BYTES;
        if (H::TURNED) {
#pragma unroll
          for (int c = 0; c < H::TN / 64; ++c)
            copy_block(to + c * (SLICE_DEPTH * BLOCK_LINE), &b_map, col0 + 64 * c, k, full + stage);
        } else {
          copy_block(to, &b_map, k, col0, full + stage);
        }
      }
    }
    return;  // all copies are waited for by others
  }
  float sum[H::TN / H::N][H::N / 2] = {};
  const int group = warp / 4;
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    const int stage = s % H::STAGES;
    barrier_wait(full + stage, s / H::STAGES % 2);
    const uint32_t at = shared_address(slices + stage * H::BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < SLICE_DEPTH / 16; ++k) {
      // 16 entries are 32 bytes of a line, or 16 lines.
      const uint64_t a = operand(at + group * 64 * BLOCK_LINE + 32 * k);
#pragma unroll
      for (int c = 0; c < H::TN / H::N; ++c) {
        const uint32_t of_b = at + H::A_BYTES + c * (SLICE_DEPTH * BLOCK_LINE) + (H::TURNED ? 16 * BLOCK_LINE : 32) * k;
        Wgmma<T, H::N, false, H::TURNED>::run(sum[c], a, operand(of_b));
      }
    }
    wgmma_commit();
    // The products of the slice before are done: its place is free.
    wgmma_wait<1>();
    if (s > 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + (s - 1) % H::STAGES);
  }
  wgmma_wait<0>();
  all_multiplied<H::THREADS>();

  float* tile = reinterpret_cast<float*>(slices);
#pragma unroll
  for (int c = 0; c < H::TN / 8; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2* at = reinterpret_cast<float2*>(tile + (16 * warp + lane / 4 + 8 * half) * H::TILE_LINE + 8 * c + lane % 4 * 2);
      const float* of = sum[c / (H::N / 8)] + c % (H::N / 8) * 4 + 2 * half;
      *at = make_float2(of[0], of[1]);
    }
  if (cluster > 1) cluster_sync();
  else all_multiplied<H::THREADS>();

  const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
  constexpr int FOURS = H::TN / 4;
  const int begin = H::TM * rank / cluster, rows = H::TM * (rank + 1) / cluster - begin;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * FOURS; i += H::THREADS) {
    const int line = begin + i / FOURS, along = i % FOURS * 4, row = row0 + line, col = col0 + along;
    if (row >= n.m || col >= n.n) continue;  // n is a multiple of 4
    const float* at = tile + line * H::TILE_LINE + along;
    float x[4] = {};
    if (cluster > 1) {
#pragma unroll 2
      for (int r = 0; r < cluster; ++r) {
        const float4 of = read_of(at, r);
        x[0] += of.x, x[1] += of.y, x[2] += of.z, x[3] += of.w;
      }
    } else {
      load4(at, x);
    }
    finish_units<true>(out, x, bias, row, col, n.n, philox, n);
  }
  if (cluster > 1) cluster_sync();  // nobody leaves while its tile is read
}

#define PRODUCT_UNITS(NAME, WGS, TN, TURNED, T)                                                                            \
  extern "C" __global__ void __launch_bounds__(128 * WGS + 128)                                                             \
  NAME(T* out, const float* bias, const long long* counter, const __grid_constant__ TensorMap a_map,                       \
       const __grid_constant__ TensorMap b_map, const __grid_constant__ Numbers n) {                                       \
    product_units<Shape<WGS, TN, TURNED, T>>(out, bias, counter, a_map, b_map, n);                                         \
  }
#define OF_WIDTHS(NAME, WGS, T)                              \
  PRODUCT_UNITS(NAME##_straight_##WGS##x64, WGS, 64, false, T)   \
  PRODUCT_UNITS(NAME##_straight_##WGS##x96, WGS, 96, false, T)   \
  PRODUCT_UNITS(NAME##_straight_##WGS##x128, WGS, 128, false, T) \
  PRODUCT_UNITS(NAME##_straight_##WGS##x192, WGS, 192, false, T) \
  PRODUCT_UNITS(NAME##_turned_##WGS##x64, WGS, 64, true, T)      \
  PRODUCT_UNITS(NAME##_turned_##WGS##x128, WGS, 128, true, T)    \
  PRODUCT_UNITS(NAME##_turned_##WGS##x192, WGS, 192, true, T)
#define OF_EVERY_SHAPE(NAME, T) \
  OF_WIDTHS(NAME, 2, T)         \
  OF_WIDTHS(NAME, 3, T)
OF_EVERY_SHAPE(product_units_f16, __half)
OF_EVERY_SHAPE(product_units_bf16, __nv_bfloat16)
