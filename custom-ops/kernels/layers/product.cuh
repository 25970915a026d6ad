// product.cuh: the tile of a product of 16-bit numbers, or of numbers in two parts, and what is
// done with its entries, in one kernel.
//
// A number in two parts is the sum of two f16 ones; the product of both second parts is left out.
// Tensor cores cut off what lies below 2^-24 of a sum or so, where f32 rounds, and over a long sum
// that adds up: after each step (16 terms) their sums are added to f32 ones outside. Numbers in one
// part are summed in the tensor cores.
//
// A product of a minibatch has few tiles and a long sum. A cluster of blocks shares a tile: each
// sums a stretch of k, then each finishes a part of the tile from everyone's sums, read from their
// shared memory.
//
// The operands of patches (patch_units.cu) lie in windows of a grid: `tile_of_product` takes the
// copies of k-blocks from its caller.
//
// arrays   a: PA of [m, k], b: PB of [n, k] (K-major) or [k, n] (transposed), T, parts a_part and
//          b_part entries apart. Rows contiguous
// scalars  n a multiple of 4, rows of a and b (k entries; n, transposed) of 4, with `wide` of 8;
//          every row aligned to as many entries
// launch   grid (S * tiles across n, tiles across m), clusters of S along x; WM * TN threads: warps
//          of TM / WM x 32
// shared   Shape::SHARED bytes, dynamic: STAGES k-blocks of a and b, then the tile of sums in their
//          place
// cost     2mnk FLOP for each pair of parts; operands once for each tile
//
// Clusters are for capability 9.0 and above: before, kernels with clusters are empty.
#pragma once

#include "core/cluster.cuh"
#include "core/numbers.cuh"
#include "core/order.cuh"
#include "core/tiles.cuh"

// A tile of TM x TN for WM rows of warps, each with TM / WM x 32 of it, and for clusters of S. PA
// and PB: parts of a and of b.
template <int TM_, int WM_, int TN_, int S_, int PA_, bool TRANSPOSED_, int STAGES_, int PB_ = 2, typename T_ = __half>
struct Shape {
  using T = T_;
  static constexpr int TM = TM_, WM = WM_, TN = TN_, S = S_, PA = PA_, PB = PB_, STAGES = STAGES_;
  static constexpr bool EXACT = PB == 2;  // sums are added outside the tensor cores
  static constexpr int UNROLL = EXACT ? 1 : 2;  // in two parts the loop's body is large, and most blocks run it few times
  static constexpr bool TRANSPOSED = TRANSPOSED_;
  static constexpr int MR = TM / WM / 16, WN = TN / 32, THREADS = 32 * WM * WN;  // MR: sixteens of rows of a warp
  static constexpr int A_LINE = DEPTH + PAD, A_K_BLOCK = TM * A_LINE;
  static constexpr int B_LINE = (TRANSPOSED ? TN : DEPTH) + PAD, B_K_BLOCK = (TRANSPOSED ? DEPTH : TN) * B_LINE;
  static constexpr int K_BLOCK = PA * A_K_BLOCK + PB * B_K_BLOCK;
  static constexpr int TILE_LINE = TN + 4;
  static constexpr int ROWS = TM / S;  // of the tile that one block of the cluster finishes
  static constexpr int BYTES = STAGES * K_BLOCK * 2, TILE_BYTES = TM * TILE_LINE * 4;
  static constexpr int SHARED = BYTES > TILE_BYTES ? BYTES : TILE_BYTES;
};

struct Product {
  unsigned long long a_part, b_part;
  int m, n, k;
  unsigned wide;
};

template <typename H, int CHUNK>
__device__ void fetch_k_block(__half* k_block, const __half* a, const __half* b, const Product& n, int row0, int col0, int k0) {
#pragma unroll
  for (int p = 0; p < H::PA; ++p)
    fetch<CHUNK, H::TM, DEPTH, H::A_LINE, H::THREADS>(k_block + p * H::A_K_BLOCK, a + p * n.a_part, n.k, row0, n.m, k0, n.k);
  k_block += H::PA * H::A_K_BLOCK;
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    if (H::TRANSPOSED)
      fetch<CHUNK, DEPTH, H::TN, H::B_LINE, H::THREADS>(k_block + p * H::B_K_BLOCK, b + p * n.b_part, n.n, k0, n.k, col0, n.n);
    else
      fetch<CHUNK, H::TN, DEPTH, H::B_LINE, H::THREADS>(k_block + p * H::B_K_BLOCK, b + p * n.b_part, n.k, col0, n.n, k0, n.k);
  }
}

// Blocks of 16 x 16 of b as products want them, in depth from k on and columns from `col` on.
template <typename H>
__device__ void load_b(uint32_t (&r)[4], const typename H::T* k_block, int k, int col, int lane) {
  if (H::TRANSPOSED)
    load_blocks_transposed(r, k_block + (k + lane / 8 % 2 * 8 + lane % 8) * H::B_LINE + col + lane / 16 * 8);
  else
    load_blocks(r, k_block + (col + lane / 16 * 8 + lane % 8) * H::B_LINE + k + lane / 8 % 2 * 8);
}

// Sums a tile of a product and calls finish(line, column, x) for four neighbours x of a line of the
// tile at a time; each is finished by one block of the cluster. start(k-block, s) begins the copies
// of k-block s of `all`: PA parts of a, then PB of b. Calls are in one order on one device. Every
// thread has waited for the launch before.
template <typename H, typename Start, typename Finish>
__device__ __forceinline__ void tile_of_product(int all, Start start_k_block, Finish finish) {
  using T = typename H::T;
  extern __shared__ __align__(16) unsigned char memory[];
  T* k_blocks = reinterpret_cast<T*>(memory);
  const int rank = blockIdx.x % H::S;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / H::WN * (16 * H::MR), warp_col = warp % H::WN * 32;
  const int first = all * rank / H::S, k_blocks_here = all * (rank + 1) / H::S - first;

  auto start = [&](int s) { start_k_block(k_blocks + s % H::STAGES * H::K_BLOCK, first + s); };
  float sum[H::MR][4][4] = {}, exact[H::EXACT ? H::MR : 1][4][4] = {};
  auto use = [&](int s) {
    const T* as = k_blocks + s % H::STAGES * H::K_BLOCK + (warp_row + lane % 16) * H::A_LINE + lane / 16 * 8;
    const T* bs = k_blocks + s % H::STAGES * H::K_BLOCK + H::PA * H::A_K_BLOCK;
#pragma unroll H::UNROLL
    for (int k = 0; k < DEPTH; k += 16) {
      uint32_t high[H::MR][4], of_b[2][4];
#pragma unroll
      for (int m = 0; m < H::MR; ++m) load_blocks(high[m], as + 16 * m * H::A_LINE + k);
#pragma unroll
      for (int c = 0; c < 2; ++c) load_b<H>(of_b[c], bs, k, warp_col + 16 * c, lane);
      // The products of second parts first: less is cut off while the sum is small.
      if constexpr (H::PA == 2) {
#pragma unroll
        for (int m = 0; m < H::MR; ++m) {
          uint32_t rest[4];
          load_blocks(rest, as + H::A_K_BLOCK + 16 * m * H::A_LINE + k);
#pragma unroll
          for (int c = 0; c < 4; ++c) multiply<T>(sum[m][c], rest, of_b[c / 2][c % 2 * 2], of_b[c / 2][c % 2 * 2 + 1]);
        }
      }
      if constexpr (H::PB == 2) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          uint32_t rest[4];
          load_b<H>(rest, bs + H::B_K_BLOCK, k, warp_col + 16 * c, lane);
#pragma unroll
          for (int m = 0; m < H::MR; ++m) {
            multiply<T>(sum[m][2 * c], high[m], rest[0], rest[1]);
            multiply<T>(sum[m][2 * c + 1], high[m], rest[2], rest[3]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < H::MR; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c) multiply<T>(sum[m][c], high[m], of_b[c / 2][c % 2 * 2], of_b[c / 2][c % 2 * 2 + 1]);
      if constexpr (H::EXACT) {
#pragma unroll
        for (int m = 0; m < H::MR; ++m)
#pragma unroll
          for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) exact[m][c][i] += sum[m][c][i], sum[m][c][i] = 0.f;
      }
    }
  };
  pipeline<H::STAGES>(k_blocks_here, start, use);
  __syncthreads();
  float* tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int m = 0; m < H::MR; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = warp_row + 16 * m + 8 * half + lane / 4, col = warp_col + 8 * c + lane % 4 * 2;
        float2* at = reinterpret_cast<float2*>(tile + row * H::TILE_LINE + col);
        const float(&of)[4] = H::EXACT ? exact[H::EXACT ? m : 0][c] : sum[m][c];
        *at = make_float2(of[2 * half], of[2 * half + 1]);
      }
  if constexpr (H::S > 1) cluster_sync();
  else __syncthreads();

  constexpr int FOURS = H::TN / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < H::ROWS * FOURS; i += H::THREADS) {
    const int line = rank * H::ROWS + i / FOURS, along = i % FOURS * 4;
    const float* at = tile + line * H::TILE_LINE + along;
    float x[4] = {};
    if constexpr (H::S > 1) {
      float4 of[H::S];
#pragma unroll
      for (int r = 0; r < H::S; ++r) of[r] = read_of(at, r);
#pragma unroll
      for (int r = 0; r < H::S; ++r) x[0] += of[r].x, x[1] += of[r].y, x[2] += of[r].z, x[3] += of[r].w;
    } else {
      load4(at, x);
    }
    finish(line, along, x);
  }
  if constexpr (H::S > 1) cluster_sync();  // nobody leaves while its tile is read
}

// The tile of this block's cluster of a b: calls finish(row, col, x) for entries within the result.
template <typename H, typename Finish>
__device__ __forceinline__ void product(const __half* a, const __half* b, const Product& n, Finish finish) {
  wait_for_previous();
  launch_dependents();
  const int row0 = blockIdx.y * H::TM, col0 = blockIdx.x / H::S * H::TN;
  auto start = [&](__half* k_block, int s) {
    if (n.wide) fetch_k_block<H, 8>(k_block, a, b, n, row0, col0, s * DEPTH);
    else fetch_k_block<H, 4>(k_block, a, b, n, row0, col0, s * DEPTH);
  };
  tile_of_product<H>((n.k + DEPTH - 1) / DEPTH, start, [&](int line, int along, float(&x)[4]) {
    const int row = row0 + line, col = col0 + along;
    if (row < n.m && col < n.n) finish(row, col, x);  // n is a multiple of 4
  });
}

// A kernel for a shape: its name, its parameters in parentheses, its body and the shape's numbers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER(S) __cluster_dims__(S, 1, 1)
#define BODY(...) __VA_ARGS__
#else
#define CLUSTER(S)
#define BODY(...)
#endif
#define OF_PRODUCT(NAME, PARAMETERS, RUN, ...)                                                                    \
  namespace shape_of_##NAME { using H = Shape<__VA_ARGS__>; }                                                     \
  extern "C" __global__ void CLUSTER(shape_of_##NAME::H::S) __launch_bounds__(shape_of_##NAME::H::THREADS)        \
  NAME PARAMETERS {                                                                                               \
    using H = shape_of_##NAME::H;                                                                                 \
    BODY(RUN;)                                                                                                    \
  }

// Tiles of TM x 64 by clusters, and for large layers of 192 x 128 by single blocks. PA: parts of a.
// The choice is in src/layers/products/shape.rs. Clusters of 8 and 4 have few enough stages that
// two blocks fit on a multiprocessor: of clusters of single blocks fewer run at once than the
// multiprocessors suggest.
//                                            TM, WM, TN, S, PA, TRANSPOSED, STAGES
#define OF_EVERY_SHAPE(NAME, PARAMETERS, RUN, PA, TRANSPOSED)                  \
  OF_PRODUCT(NAME##_64x8, PARAMETERS, RUN, 64, 2, 64, 8, PA, TRANSPOSED, 4)    \
  OF_PRODUCT(NAME##_128x8, PARAMETERS, RUN, 128, 2, 64, 8, PA, TRANSPOSED, 3)  \
  OF_PRODUCT(NAME##_192x8, PARAMETERS, RUN, 192, 3, 64, 8, PA, TRANSPOSED, 2)  \
  OF_PRODUCT(NAME##_128x4, PARAMETERS, RUN, 128, 2, 64, 4, PA, TRANSPOSED, 3)  \
  OF_PRODUCT(NAME##_192x4, PARAMETERS, RUN, 192, 3, 64, 4, PA, TRANSPOSED, 2)  \
  OF_PRODUCT(NAME##_128x2, PARAMETERS, RUN, 128, 2, 64, 2, PA, TRANSPOSED, 4)  \
  OF_PRODUCT(NAME##_192x2, PARAMETERS, RUN, 192, 3, 64, 2, PA, TRANSPOSED, 4)  \
  OF_PRODUCT(NAME##_192x1, PARAMETERS, RUN, 192, 3, 128, 1, PA, TRANSPOSED, 3)
