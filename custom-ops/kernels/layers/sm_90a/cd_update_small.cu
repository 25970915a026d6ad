// sm_90a/cd_update_small.cu: one update of contrastive learning of a small matrix, from states
// in one part or in two, by the products of warpgroups of capability 9.0. The formulas are those of
// ../cd_update.cu.
//
// A block sums the gradient of a tile of 64 x 64 weights: a thread of a further warp copies
// k-blocks of both sides of the states, DEPTH rows at a time, through a ring, and a warpgroup
// multiplies them. Where the sums are long and the tiles few, the two blocks of a cluster share a
// tile: each sums half of the k-blocks, then each finishes half of the lines from both sums.
// Weights and velocities come into registers while k-blocks are multiplied. Two blocks fit on a
// multiprocessor, so that those of the biases run beside the tiles.
//
// A number in two parts is the sum of two f16 ones: g = hi lo + lo hi + hi hi. The k-blocks of both
// phases take turns, so that what has been summed stays small: tensor cores cut off what lies below
// 2^-24 of it or so, always towards 0. Over long sums that adds up, so that those of GROUP k-blocks in
// two parts are added to f32 ones outside.
//
// arrays   h_map, x_map: the states h and x as tensor maps of 64 columns by DEPTH rows, third
//          dimension the plane, fourth, of two parts, the part; the others as in
//          ../cd_update.cu
// scalars  rows and cols multiples of 8; others as in ../cd_update.cu
// launch   1-D, clusters of CLUSTER: CLUSTER blocks for each tile of the weights, columns fastest,
//          then a block for each 32 hidden and each 32 visible units, made up to whole clusters;
//          Shape::THREADS threads
// shared   the k-blocks of a block, at most STAGES, and 1 KB to align them, but for the tile of
//          sums, which takes their place, at least TILE_BYTES
// cost     4 batch rows cols FLOP, three times that with two parts; operands once for each tile,
//          from the second-level cache: 54 MB at [504, 784] and 512 rows in two parts, where it
//          takes 16 us on an H200
// NaN      propagates
// same     sums have one order on one device; no atomics
// truth    cd_update_reference in src/layers/cd_update/mod.rs, bias_step_reference in
//          src/layers/bias_step.rs

#include "core/cluster.cuh"
#include "layers/cd_numbers.cuh"
#include "layers/phases.cuh"
#include "core/order.cuh"
#include "core/stepped.cuh"
#include "core/sm_90a/wgmma.cuh"

constexpr int TILE = 64;           // its sides
constexpr int RING = 104 * 1024;   // at most
constexpr int MULTIPLYING = 128;   // threads
constexpr int LINE = TILE + 4;     // of the tile of sums
constexpr int FOURS = TILE / 4;    // of a line
constexpr int GROUP = 4;           // k-blocks

template <typename T_, typename V_, int PARTS_, int CLUSTER_>
struct Shape {
  using T = T_;
  using V = V_;  // of velocities
  static constexpr int PARTS = PARTS_, CLUSTER = CLUSTER_, THREADS = MULTIPLYING + 32;
  // Of two parts, k-blocks half as deep leave more stages in the ring.
  static constexpr int DEPTH = 64 / PARTS, SIDE = DEPTH * BLOCK_LINE, BYTES = 2 * PARTS * SIDE;  // of one part of a side, of a k-block
  static constexpr int STAGES = RING / BYTES;
  static constexpr int EACH = TILE * FOURS / MULTIPLYING / CLUSTER;  // fours that a thread finishes
};

template <typename T, typename V>
struct Arguments {
  float* weight;
  V* velocity;
  const T* h;
  const T* x;
  T* copy;
  float* hidden_state;
  float* visible_state;
  const float* scalars;
  long long* counter;
  const TensorMap& h_map;
  const TensorMap& x_map;
  const Numbers& n;
};

// Biases of 32 units, the hidden ones first, by the first MULTIPLYING threads of a block, and the
// counter.
template <typename H>
__device__ __forceinline__ void step_biases_of(const Arguments<typename H::T, typename H::V>& a, int block, float* memory) {
  const Numbers& n = a.n;
  const int of_hidden = (n.rows + BIAS_UNITS - 1) / BIAS_UNITS;
  const bool hidden = block < of_hidden;
  step_biases<MULTIPLYING, H::PARTS>(hidden ? a.hidden_state : a.visible_state, hidden ? a.h : a.x, hidden ? n.h_part : n.x_part, a.scalars,
                                     nullptr, hidden ? n.hidden : n.visible, n.batch, hidden ? n.rows : n.cols,
                                     (hidden ? block : block - of_hidden) * BIAS_UNITS, memory);
  if (block == 0 && threadIdx.x == 0) *a.counter += n.by;
}

// Starts the copies of k-blocks first .. first + count of both sides, in turn, one thread.
template <typename H>
__device__ __forceinline__ void copy_k_blocks(const Arguments<typename H::T, typename H::V>& a, unsigned char* k_blocks, uint64_t* full, uint64_t* empty,
                                            int row0, int col0, int first, int count) {
  Stage<H::STAGES> stage;
#pragma unroll 1
  for (int i = 0; i < count; ++i, stage.next()) {
    const KBlockOfPhases k_block(first + i);
    uint64_t* here = announce(full, empty, stage, H::BYTES);
    unsigned char* to = k_blocks + stage.at * H::BYTES;
    auto start = [&](const TensorMap& map, int column, int part) {
      const int k = k_block.index * H::DEPTH;
      if (H::PARTS == 1) copy_block(to, &map, column, k, k_block.phase, here);
      else copy_block(to, &map, column, k, k_block.phase, part, here);
      to += H::SIDE;
    };
#pragma unroll
    for (int p = 0; p < H::PARTS; ++p) {
      start(a.h_map, row0, p);
      start(a.x_map, col0, p);
    }
  }
}

template <typename H>
__device__ __forceinline__ void cd_update(const Arguments<typename H::T, typename H::V>& a) {
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::STAGES], empty[H::STAGES];
  const Numbers& n = a.n;
  const int across = (n.cols + TILE - 1) / TILE, blocks = (n.rows + TILE - 1) / TILE * across * H::CLUSTER;
  if (blockIdx.x >= (unsigned)blocks) {
    wait_for_previous();
    if (threadIdx.x < MULTIPLYING) step_biases_of<H>(a, blockIdx.x - blocks, reinterpret_cast<float*>(memory));
    return;
  }
  unsigned char* k_blocks = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int rank = blockIdx.x % H::CLUSTER, at = blockIdx.x / H::CLUSTER, row0 = at / across * TILE, col0 = at % across * TILE;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;
  const int all = 2 * ((n.batch + H::DEPTH - 1) / H::DEPTH), first = all * rank / H::CLUSTER, count = all * (rank + 1) / H::CLUSTER - first;

  if (threadIdx.x == 0) {
    for (int s = 0; s < H::STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    barriers_made();
    prefetch_map(&a.h_map);
    prefetch_map(&a.x_map);
  }
  __syncthreads();
  if (threadIdx.x >= MULTIPLYING) {
    wait_for_previous();
    if (lane == 0) copy_k_blocks<H>(a, k_blocks, full, empty, row0, col0, first, count);
    return;  // all copies are waited for by others
  }

  // Line and column within the tile of the fours that this thread finishes.
  auto line = [&](int i) { return TILE * rank / H::CLUSTER + (int)(threadIdx.x + i * MULTIPLYING) / FOURS; };
  const int along = threadIdx.x % FOURS * 4, col = col0 + along;
  static_assert(MULTIPLYING % FOURS == 0, "a thread keeps to one column");
  float w[H::EACH][4], v[H::EACH][4];
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < H::EACH; ++i) {
    const int row = row0 + line(i);
    if (row >= n.rows || col >= n.cols) continue;  // cols is a multiple of 4
    const size_t place = (size_t)row * n.cols + col;
    load4(a.weight + place, w[i]);
    load4(a.velocity + place, v[i]);
  }
  const float alpha = a.scalars[0], momentum = a.scalars[1], rate = a.scalars[2];

  float sum[TILE / 2] = {}, exact[H::PARTS == 2 ? TILE / 2 : 1] = {};
  auto add_outside = [&] {
    wgmma_wait<0>();
    summed(sum);
    if constexpr (H::PARTS == 2) {
#pragma unroll
      for (int j = 0; j < TILE / 2; ++j) exact[j] += sum[j], sum[j] = 0.f;
    }
  };
  const Barriers here(full), used(empty);
  const uint64_t first_k_block = operand(kept_address(k_blocks));
  Stage<H::STAGES> stage;
  int last_stage = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i, stage.next()) {
    here.wait(stage.at, stage.parity);
    const uint64_t k_block = advance(first_k_block, stage.at * H::BYTES);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < H::DEPTH / 16; ++k) {
      auto multiply = [&](int h_part, int x_part) {
        const uint64_t of_k = advance(k_block, 16 * BLOCK_LINE * k);
        Wgmma<typename H::T, TILE, true, true>::run(sum, advance(of_k, 2 * h_part * H::SIDE), advance(of_k, (2 * x_part + 1) * H::SIDE));
      };
      if (H::PARTS == 2) {
        multiply(0, 1);
        multiply(1, 0);
      }
      multiply(0, 0);
    }
    wgmma_commit();
    // The products of the k-block before are done: its stage is free.
    wgmma_wait<1>();
    if (i > 0 && threadIdx.x == 0) used.arrive(last_stage);
    last_stage = stage.at;
    if (H::PARTS == 2 && i % GROUP == GROUP - 1) add_outside();
  }
  add_outside();

  all_multiplied<MULTIPLYING>();
  // A lane holds columns 2t and 2t + 1 of lines g and g + 8 of each eight columns; through shared
  // memory each warp gets whole lines.
  float* tile = reinterpret_cast<float*>(k_blocks);
#pragma unroll
  for (int c = 0; c < TILE / 8; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2* to = reinterpret_cast<float2*>(tile + (16 * warp + lane / 4 + 8 * half) * LINE + 8 * c + lane % 4 * 2);
      const float* of = (H::PARTS == 2 ? exact : sum) + 4 * c + 2 * half;
      *to = make_float2(of[0], of[1]);
    }
  if (H::CLUSTER > 1) cluster_sync();
  else all_multiplied<MULTIPLYING>();

#pragma unroll
  for (int i = 0; i < H::EACH; ++i) {
    const float* from = tile + line(i) * LINE + along;
    float g[4];
    if (H::CLUSTER == 1) {
      load4(from, g);
    } else {
      float4 of[H::CLUSTER];
#pragma unroll
      for (int r = 0; r < H::CLUSTER; ++r) of[r] = read_of(from, r);
      g[0] = of[0].x, g[1] = of[0].y, g[2] = of[0].z, g[3] = of[0].w;
#pragma unroll
      for (int r = 1; r < H::CLUSTER; ++r) g[0] += of[r].x, g[1] += of[r].y, g[2] += of[r].z, g[3] += of[r].w;
    }
    const int row = row0 + line(i);
    if (row >= n.rows || col >= n.cols) continue;
    const size_t place = (size_t)row * n.cols + col;
    float copied[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[i][e] = stepped(v[i][e], w[i][e], g[e], alpha, momentum, rate, n.l1, n.l2);
      w[i][e] = w[i][e] + v[i][e];
      copied[e] = w[i][e] * n.scale;
    }
    store4(a.velocity + place, v[i]);
    store4(a.weight + place, w[i]);
    store4(a.copy + place, copied);
    if (H::PARTS == 2) {
#pragma unroll
      for (int e = 0; e < 4; ++e) copied[e] = copied[e] - wide(narrow<typename H::T>(copied[e]));
      store4(a.copy + n.copy_part + place, copied);
    }
  }
  if (H::CLUSTER > 1) cluster_sync();  // nobody leaves while its tile is read
}

// Without a velocity of its own, that of f32 lies behind the weights.
#define CONTRAST_STEP(NAME, T, V, PARTS, CLUSTER)                                                                                          \
  extern "C" __global__ void __launch_bounds__(Shape<T, V, PARTS, CLUSTER>::THREADS, 2)                                                    \
  NAME(float* weight, V* velocity, const T* h, const T* x, T* copy, float* hidden_state, float* visible_state, const float* scalars,       \
       long long* counter, const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,                               \
       const __grid_constant__ Numbers n) {                                                                                                \
    V* own = velocity ? velocity : reinterpret_cast<V*>(weight + (size_t)n.rows * n.cols);                                                 \
    cd_update<Shape<T, V, PARTS, CLUSTER>>({weight, own, h, x, copy, hidden_state, visible_state, scalars, counter, h_map, x_map, n}); \
  }
#define OF_BOTH_CLUSTERS(NAME, T, V, PARTS) \
  CONTRAST_STEP(NAME##_1, T, V, PARTS, 1)   \
  CONTRAST_STEP(NAME##_2, T, V, PARTS, 2)
OF_BOTH_CLUSTERS(cd_update_small_bf16, __nv_bfloat16, __nv_bfloat16, 1)
OF_BOTH_CLUSTERS(cd_update_small_f16, __half, float, 1)
OF_BOTH_CLUSTERS(cd_update_small_f16x2, __half, float, 2)
