// sm_90a/cd_update_pingpong.cu: the weights of one update of contrastive learning from states in one
// part of a minibatch of any number of rows, for large matrices, by the products of warpgroups of
// capability 9.0. The formulas are those of cd_update.cu; its kernel cd_biases updates the biases
// and the counter.
//
// cd_update.cu beside this keeps the states of visible units in shared memory, which holds 192 rows
// of both phases. Here both sides pass through a ring. A block takes tiles of 128 x 128 weights one
// after the other, and two warpgroups take turns: one sums a tile of the gradient while the other
// steps the weights of the tile before, which come and go as in a SubtileRing.
//
// arrays   h: planes of [batch, rows] and x: of [batch, cols], T, as tensor maps of 64 columns by
//          64 rows; plane 0 is of the negative phase, plane 1 of the positive. weight: [rows, cols]
//          f32, bf16, or 16 bits that are lower halves; velocity: the same, V; copy: the same, T; as
//          tensor maps of 128 bytes by 64 rows
// scalars  rows and cols multiples of 8. scalars: [3] f32 on the device: rate / batch, momentum, rate.
//          counter: [1] i64, read by cd_update_pingpong_rounded
// launch   1-D grid of at most as many blocks as there are tiles, one for each multiprocessor; 384
//          threads
// shared   PingPong::BYTES, and 1 KB to align them
// cost     4 batch rows cols FLOP; 16 bytes a weight (12 with V of 16 bits) and 2 for the copy, 12
//          with halves, or 8 with bf16 weights; operands once for each tile, from the second-level
//          cache
// NaN      propagates
// same     sums in one order on one device
// truth    cd_update_reference in src/layers/cd_update/mod.rs, round_stochastic and rounding_bits in
//          src/layers/rounding.rs

#include "core/stepped.cuh"
#include "layers/cd_numbers.cuh"
#include "layers/sm_90a/cd_subtile.cuh"
#include "layers/sm_90a/product_tile.cuh"

template <typename T, typename V, Stored STORED>
struct PingPong {
  static constexpr int SIDE = 2 * TILE, DEPTH = 64, BLOCK_BYTES = DEPTH * BLOCK_LINE, K_BLOCK_BYTES = 4 * BLOCK_BYTES;
  using Subtiles = SubtileRing<T, V, STORED, 3>;
  static constexpr int SUBTILES = Subtiles::STAGES * Subtiles::BYTES, STAGES = (224 * 1024 - SUBTILES) / K_BLOCK_BYTES;
  static constexpr int BYTES = SUBTILES + STAGES * K_BLOCK_BYTES;
  static_assert(Subtiles::STAGES >= 3, "of two subtiles of another warpgroup in one stage the first is stepped before anyone waits for one behind both");
};

template <typename T, typename V, Stored STORED>
__device__ __forceinline__ void cd_update_pingpong(const TensorMap& h_map, const TensorMap& x_map, const TensorMap& weight_map,
                                                   const TensorMap& velocity_map, const TensorMap& copy_map, const float* scalars,
                                                   const long long* counter, const Numbers& n, const Rounding& rounding) {
  using P = PingPong<T, V, STORED>;
  using Subtiles = typename P::Subtiles;
  constexpr int STAGES = P::STAGES, GROUPS = 2;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[STAGES], empty[STAGES], turn[GROUPS];
  __shared__ typename Subtiles::Barriers barriers;
  unsigned char* k_blocks = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const Subtiles subtiles{barriers, k_blocks + STAGES * P::K_BLOCK_BYTES, weight_map, velocity_map, copy_map};
  const int of_phase = (n.batch + P::DEPTH - 1) / P::DEPTH, count = 2 * of_phase;
  const int across = (n.cols + P::SIDE - 1) / P::SIDE, down = (n.rows + P::SIDE - 1) / P::SIDE;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    for (int t = 0; t < GROUPS; ++t) barrier_init(turn + t, 1);
    subtiles.init();
    barriers_made();
  }
  __syncthreads();

  // Calls of(i, row0, col0) for the tiles of this block, or for the first so many.
  auto each_tile = [&](auto of, int most = 0x7fffffff) {
    int i = 0;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < across * down && i < most; tile += gridDim.x, ++i) {
      const TilePlace<12> at(tile, across, down);
      of(i, at.row * P::SIDE, at.col * P::SIDE);
    }
  };
  // Calls of(subtile, row0, col0) for their subtiles.
  auto each_subtile = [&](auto of, int most = 0x7fffffff) {
    each_tile(
        [&](int i, int row0, int col0) {
#pragma unroll 1
          for (int s = 0; s < 4; ++s) of(4 * i + s, row0 + s / 2 * TILE, col0 + s % 2 * TILE);
        },
        most);
  };
  if (warp >= 4 * GROUPS) {
    give_registers<40>();
    if (lane != 0) return;
    switch (warp - 4 * GROUPS) {
      case 0: {
        wait_for_previous();
        Stage<STAGES> stage;
        each_tile([&](int, int row0, int col0) {
#pragma unroll 1
          for (int s = 0; s < count; ++s, stage.next()) {
            const int plane = s >= of_phase, row = (s - plane * of_phase) * P::DEPTH;
            uint64_t* here = announce(full, empty, stage, P::K_BLOCK_BYTES);
            unsigned char* to = k_blocks + stage.at * P::K_BLOCK_BYTES;
#pragma unroll
            for (int c = 0; c < 2; ++c, to += P::BLOCK_BYTES) copy_block(to, &h_map, row0 + TILE * c, row, plane, here);
#pragma unroll
            for (int c = 0; c < 2; ++c, to += P::BLOCK_BYTES) copy_block(to, &x_map, col0 + TILE * c, row, plane, here);
          }
        });
        return;
      }
      case 1:
        each_subtile([&](int, int row0, int col0) { subtiles.prefetch(row0, col0); }, 1);
        wait_for_previous();
        each_subtile([&](int subtile, int row0, int col0) { subtiles.copy_in(subtile, row0, col0); });
        return;
      case 2:
        wait_for_previous();
        each_subtile([&](int subtile, int row0, int col0) { subtiles.copy_out(subtile, row0, col0); });
        store_wait();
        return;
      default:
        return;
    }
  }
  take_registers<232>();

  wait_for_previous();
  launch_dependents();
  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
  const Philox draws = Subtiles::COPIED ? Philox{} : rounding_draws(rounding, counter);
  const int row = 16 * (warp % 4) + lane / 4, pair_at = lane % 4 * 2;
  const Barriers here(full), used(empty);
  const uint32_t at = kept_address(k_blocks);
  const uint64_t of_h = operand(at), of_x = operand(at + 2 * P::BLOCK_BYTES, P::BLOCK_BYTES);
  each_tile([&](int i, int row0, int col0) {
    if (i % GROUPS != warp / 4) return;
    float sum[2][TILE] = {};  // of the upper and the lower 64 rows
    auto release = [&](int stage) {
      if (threadIdx.x % 128 == 0) used.arrive(stage);
    };
    int last_stage = 0;
    if (i > 0) barrier_wait(turn + i % GROUPS, (i / GROUPS - (i % GROUPS == 0)) % 2);
    Stage<STAGES> stage(i * count);
#pragma unroll 1
    for (int s = 0; s < count; ++s, stage.next()) {
      here.wait(stage.at, stage.parity);
      const uint64_t h = advance(of_h, stage.at * P::K_BLOCK_BYTES), x = advance(of_x, stage.at * P::K_BLOCK_BYTES);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < P::DEPTH / 16; ++k)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          Wgmma<T, P::SIDE, true, true>::run(sum[r], advance(h, r * P::BLOCK_BYTES + 16 * BLOCK_LINE * k), advance(x, 16 * BLOCK_LINE * k));
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

#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int down_at = s / 2, across_at = s % 2, subtile = 4 * i + s;
      [[maybe_unused]] uint4 words[2][2];  // for four times two columns of a thread's two rows
      if constexpr (!Subtiles::COPIED) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            words[half][c] = philox_block(
                draws, rounding_block(row0 + down_at * TILE + row + 8 * half, col0 + across_at * TILE + 32 * c + pair_at, n.cols));
      }
      subtiles.arrived(subtile, true);
      auto step_all = [&](auto decay) {
        subtiles.at(subtile).template step<TILE>(sum[down_at], 32 * across_at, words, row, 0, pair_at, n.scale, decay);
      };
      if (n.l1 != 0.f) step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
      else step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
      subtiles.stepped(subtile);
    }
  });
}

#define CONTRAST_STEP(NAME, T, V, STORED)                                                                                              \
  extern "C" __global__ void __launch_bounds__(384, 1)                                                                                 \
  NAME(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, \
       const __grid_constant__ TensorMap velocity_map, const __grid_constant__ TensorMap copy_map, const float* scalars,               \
       const __grid_constant__ Numbers n) {                                                                                            \
    cd_update_pingpong<T, V, STORED>(h_map, x_map, weight_map, velocity_map, copy_map, scalars, nullptr, n, Rounding{});               \
  }
CONTRAST_STEP(cd_update_pingpong_f16, __half, float, Stored::WHOLE)
CONTRAST_STEP(cd_update_pingpong_bf16, __nv_bfloat16, __nv_bfloat16, Stored::WHOLE)
CONTRAST_STEP(cd_update_pingpong_halves, __nv_bfloat16, __nv_bfloat16, Stored::HALVES)

// Of bf16 weights, which have no copy.
extern "C" __global__ void __launch_bounds__(384, 1)
cd_update_pingpong_rounded(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,
                           const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map, const float* scalars,
                           const long long* counter, const __grid_constant__ Numbers n, const __grid_constant__ Rounding rounding) {
  cd_update_pingpong<__nv_bfloat16, __nv_bfloat16, Stored::ROUNDED>(h_map, x_map, weight_map, velocity_map, weight_map, scalars, counter, n,
                                                                    rounding);
}
