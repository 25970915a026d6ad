// sm_90a/pingpong.cuh: gradients of large matrices of parameters, tile after tile in a block, each
// of which a warpgroup steps its parameters by while another sums the next: for the kernels of
// cd_update_pingpong.cu, adam_of_product.cu and product_onto.cu on capability 9.0.
//
// A tile is SIDE x SIDE sums of products a' b over a minibatch. Both operands lie along their outer
// dimension, in planes of `batch` rows, and pass through a ring in k-blocks of DEPTH rows, which
// one thread copies; two warpgroups take turns at it. Of numbers in two parts the product of both
// second parts is left out, and tensor cores sum the others: as phases take turns, what is cut off
// stays small. Parameters come and go through a SubtileRing meanwhile, in subtiles of ROWS x COLS.
// The launch says how many of these have room; k-blocks have the rest.
#pragma once

#include "core/order.cuh"
#include "layers/phases.cuh"
#include "layers/sm_90a/product_tile.cuh"
#include "layers/sm_90a/subtile_ring.cuh"

template <typename T_, typename Maps_, int ROWS_, int COLS_, int PARTS_ = 1>
struct PingPong {
  using T = T_;
  using Maps = Maps_;
  using Subtiles = SubtileRing<Maps, 4>;
  static constexpr int ROWS = ROWS_, COLS = COLS_, SIDE = 128, PARTS = PARTS_, DEPTH = 64 / PARTS;
  static constexpr int BLOCK_BYTES = DEPTH * BLOCK_LINE, PART_BYTES = SIDE / 64 * BLOCK_BYTES, OPERAND_BYTES = PARTS * PART_BYTES;
  static constexpr int K_BLOCK_BYTES = 2 * OPERAND_BYTES, ROOM = 224 * 1024, MOST_STAGES = 5;
  static constexpr int ACROSS = SIDE / COLS, OF_TILE = SIDE / ROWS * ACROSS;  // subtiles beside each other, and in all
  static constexpr int GROUPS = 2, BLOCK = 128 * GROUPS + 128;                // threads of a block
  static __device__ int stages(int subtiles) { return min(MOST_STAGES, (ROOM - subtiles * Subtiles::BYTES) / K_BLOCK_BYTES); }
};

// All tiles of this block, of a matrix of rows x cols, with room for so many subtiles. Of one plane
// of `batch` rows, or of two phases, as TensorMap::of_columns has both blocks of a tile; `begin` is
// called once by each thread that multiplies, after the launch before has ended, and what it
// returns is called with each subtile: step(number, row0, col0, sums), where the sums are those of
// its ROWS rows, of columns from `first` on, as products leave them.
template <typename P, typename Begin>
__device__ __forceinline__ void step_in_turns(const TensorMap& a_map, const TensorMap& b_map, const typename P::Maps& maps, int rows, int cols, int batch,
                                              int planes, int of_subtiles, Begin begin) {
  using Subtiles = typename P::Subtiles;
  constexpr int GROUPS = P::GROUPS;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[P::MOST_STAGES], empty[P::MOST_STAGES], turn[GROUPS], step_turn[GROUPS];
  __shared__ typename Subtiles::Barriers barriers;
  unsigned char* k_blocks = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int stages = P::stages(of_subtiles);
  const Subtiles subtiles{barriers, k_blocks + stages * P::K_BLOCK_BYTES, maps, of_subtiles};
  const int count = planes * ((batch + P::DEPTH - 1) / P::DEPTH);
  const int across = (cols + P::SIDE - 1) / P::SIDE, down = (rows + P::SIDE - 1) / P::SIDE;
  // Parameters lie row after row; operands matter more where there are more of them.
  const int most_below = count > 4 ? 12 : 1;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    for (int t = 0; t < GROUPS; ++t) barrier_init(turn + t, 1), barrier_init(step_turn + t, 1);
    subtiles.init();
    barriers_made();
  }
  __syncthreads();

  // Calls of(i, row0, col0) for the tiles of this block, or for the first so many.
  auto each_tile = [&](auto of, int most = 0x7fffffff) {
    int i = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < across * down && i < most; tile += gridDim.x, ++i) {
      const TilePlace at(tile, across, down, most_below);
      of(i, at.row * P::SIDE, at.col * P::SIDE);
    }
  };
  // Calls of(subtile, row0, col0) for their subtiles.
  auto each_subtile = [&](auto of, int most = 0x7fffffff) {
    each_tile(
        [&](int i, int row0, int col0) {
#pragma unroll 1
          for (int s = 0; s < P::OF_TILE; ++s) of(P::OF_TILE * i + s, row0 + s / P::ACROSS * P::ROWS, col0 + s % P::ACROSS * P::COLS);
        },
        most);
  };
  if (warp >= 4 * GROUPS) {
    give_registers<40>();
    if (lane != 0) return;
    switch (warp - 4 * GROUPS) {
      case 0: {
        wait_for_previous();
        const bool whole_a = rows % 64 == 0, whole_b = cols % 64 == 0;
        Stage<0> stage(stages);
        each_tile([&](int, int row0, int col0) {
#pragma unroll 1
          for (int s = 0; s < count; ++s, stage.next()) {
            const KBlockOfPhases k_block(s);
            const int plane = planes == 2 ? k_block.phase : 0, row = (planes == 2 ? k_block.index : s) * P::DEPTH;
            uint64_t* here = announce(full, empty, stage, P::K_BLOCK_BYTES);
            unsigned char* to = k_blocks + stage.at * P::K_BLOCK_BYTES;
            auto copy = [&](unsigned char* to, auto... part) {
              copy_columns<P::SIDE / 64>(to, P::BLOCK_BYTES, &a_map, row0, row, whole_a, here, plane, part...);
              copy_columns<P::SIDE / 64>(to + P::OPERAND_BYTES, P::BLOCK_BYTES, &b_map, col0, row, whole_b, here, plane, part...);
            };
            if constexpr (P::PARTS == 1) copy(to);
            else copy(to, 0), copy(to + P::PART_BYTES, 1);
          }
        });
        return;
      }
      case 1:
        each_subtile([&](int, int row0, int col0) { maps.prefetch(row0, col0); }, 1);
        wait_for_previous();
        each_subtile([&](int subtile, int row0, int col0) { subtiles.copy_in(subtiles.place(subtile), row0, col0); });
        return;
      case 2:
        wait_for_previous();
        each_subtile([&](int subtile, int row0, int col0) { subtiles.copy_out(subtiles.place(subtile), row0, col0); });
        store_wait();
        return;
      default:
        return;
    }
  }
  take_registers<232>();

  wait_for_previous();
  launch_dependents();
  const auto step = begin();
  const Barriers here(full), used(empty);
  const uint32_t at = kept_address(k_blocks);
  const uint64_t of_a = operand(at), of_b = operand(at + P::OPERAND_BYTES, P::BLOCK_BYTES);
  each_tile([&](int i, int row0, int col0) {
    const int group = i % GROUPS;
    if (group != warp / 4) return;
    float sum[2][64] = {};  // of the upper and the lower 64 rows
    auto release = [&](int stage) {
      if (threadIdx.x % 128 == 0) used.arrive(stage);
    };
    const unsigned parity = (i / GROUPS - (group == 0)) % 2;  // of this warpgroup's turn
    int last_stage = 0;
    if (i > 0) barrier_wait(turn + group, parity);
    Stage<0> stage(stages, i * count);
#pragma unroll 1
    for (int s = 0; s < count; ++s, stage.next()) {
      here.wait(stage.at, stage.parity);
      const uint64_t a = advance(of_a, stage.at * P::K_BLOCK_BYTES), b = advance(of_b, stage.at * P::K_BLOCK_BYTES);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < P::DEPTH / 16; ++k)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint64_t of_a = advance(a, r * P::BLOCK_BYTES + 16 * BLOCK_LINE * k), of_b = advance(b, 16 * BLOCK_LINE * k);
          using Product = Wgmma<typename P::T, P::SIDE, true, true>;
          if constexpr (P::PARTS == 2) {
            Product::run(sum[r], of_a, advance(of_b, P::PART_BYTES));
            Product::run(sum[r], advance(of_a, P::PART_BYTES), of_b);
          }
          Product::run(sum[r], of_a, of_b);
        }
      wgmma_commit();
      wgmma_wait<1>();
      if (s > 0) release(last_stage);
      last_stage = stage.at;
    }
    // All k-blocks have come: the other warpgroup may wait for its own.
    if (threadIdx.x % 128 == 0) barrier_arrive(turn + (i + 1) % GROUPS);
    wgmma_wait<0>();
    summed(sum[0]), summed(sum[1]);
    release(last_stage);

    // In the order of the subtiles, so that of those before in a stage at most one is still to be
    // stepped.
    if (i > 0) barrier_wait(step_turn + group, parity);
    auto place = subtiles.place(P::OF_TILE * i);
#pragma unroll
    for (int s = 0; s < P::OF_TILE; ++s, subtiles.next(place)) {
      const int row = s / P::ACROSS * P::ROWS, col = s % P::ACROSS * P::COLS;
      step(subtiles.at(place), row0 + row, col0 + col, sum[row / 64], col / 2, [&] { subtiles.arrived(place, true); });
      subtiles.stepped(place);
    }
    if (threadIdx.x % 128 == 0) barrier_arrive(step_turn + (i + 1) % GROUPS);
  });
}
