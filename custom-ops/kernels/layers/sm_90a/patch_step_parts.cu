// sm_90a/patch_step_parts.cu: the weights of patches in one update of contrastive learning, from
// states in two parts, by the products of warpgroups of capability 9.0. The formulas are those of
// cd_update.cu; biases and the counter are updated by its kernel cd_biases.
//
// A block takes tiles of 64 x 64 weights one after the other, in the order of cd_tiles.cuh. x stays
// in shared memory; one thread copies k-blocks of h, 64 rows at a time, through a ring. Two
// warpgroups take turns: each reads its weights and velocities into registers, sums the gradient of
// its tile when its turn comes, and writes them back, so that memory moves in both directions all
// the time. Both parts of the side that stays leave no room for tiles of weights in shared memory,
// as sm_90a/cd_update.cu has them.
//
// A number is the sum of two f16 ones: g = hi hi + hi lo + lo hi. The k-blocks of both phases take
// turns, so that what has been summed stays small: tensor cores cut off what lies below 2^-24 of it
// or so.
//
// arrays   h: 2 parts of planes of [batch, rows] and x: of [batch, cols], f16, as tensor maps of 64
//          columns by 64 rows, third dimension the plane, fourth the part; plane 0 is of the
//          negative phase, plane 1 of the positive. weight: [rows, cols] f32, and the velocity
//          behind it; copy: 2 parts of the same, f16, copy_part entries apart. Rows contiguous,
//          16-byte aligned. Windows as in cd_update.cu here
// scalars  rows and cols multiples of 8 and as in cd_update.cu here, batch at most 192. scalars:
//          [3] f32 on the device: rate / batch, momentum, rate. height: tiles of a run of patches,
//          at least 1: see cd_tiles.cuh
// launch   1-D grid of at most as many blocks as there are runs, one for each multiprocessor;
//          THREADS threads
// shared   the side that stays and the ring, with 1 KB to align them
// cost     12 batch rows cols FLOP; 20 bytes a weight; operands once for each tile, from the
//          second-level cache
// NaN      propagates
// same     sums in one order on one device
// truth    patch_gradient_reference and weight_step_reference

#include "core/order.cuh"
#include "core/stepped.cuh"
#include "layers/sm_90a/cd_tiles.cuh"

constexpr int WGS = 2, THREADS = 128 * WGS + 64;  // two warps start copies
constexpr int PARTS = 2;
constexpr int K_BLOCKS = 6;  // of both phases, at most
constexpr int SHARED = 217 * 1024;
constexpr int STAGES = (SHARED - 1024 - K_BLOCKS * PARTS * K_BLOCK_BYTES) / K_BLOCK_BYTES;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
patch_step_f16x2(float* weight, __half* copy, const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,
                 const float* scalars, const __grid_constant__ Numbers n, const __grid_constant__ Grid g, int height) {
  using Tiles = Schedule<true>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[STAGES], empty[STAGES], turn[WGS], here[K_BLOCKS], free[K_BLOCKS];
  unsigned char* staying = memory + (1024 - shared_address(memory) % 1024) % 1024;
  unsigned char* k_blocks = staying + K_BLOCKS * PARTS * K_BLOCK_BYTES;
  const int rows = g.patches() * n.rows;
  const int of_phase = (n.batch + K_BLOCK_DEPTH - 1) / K_BLOCK_DEPTH, count = 2 * of_phase;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    for (int s = 0; s < K_BLOCKS; ++s) barrier_init(here + s, 1), barrier_init(free + s, 1);
    for (int w = 0; w < WGS; ++w) barrier_init(turn + w, 1);
    barriers_made();
  }
  __syncthreads();

  const States<Tiles, PARTS, true> states{h_map, x_map, n, g, of_phase, height};
  if (warp == 4 * WGS && lane == 0) {
    wait_for_previous();
    states.copy_staying(staying, here, free);
  }
  if (warp > 4 * WGS && lane == 0) {
    wait_for_previous();
    states.copy_passing(k_blocks, full, empty, Stage<STAGES>());
  }
  if (warp >= 4 * WGS) return;

  const int group = warp / 4;
  float* velocity = weight + (size_t)rows * n.cols;
  const int line0 = 16 * (warp % 4) + lane / 4, along0 = Exchanged::along();
  auto inside = [&](int row, int col) { return row < rows && col < n.cols; };  // cols is a multiple of 8
  constexpr int SIXTEENS = TILE / 16;
  float w[SIXTEENS][2][4], v[SIXTEENS][2][4];
  auto load = [&](const Tiles& tile) {
    if (!tile) return;
    const int first_row = tile.row0() + line0, first_col = tile.col0() + along0;
#pragma unroll
    for (int c = 0; c < SIXTEENS; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 8 * half, col = first_col + 16 * c;
        if (!inside(row, col)) continue;
        const size_t place = (size_t)row * n.cols + col;
        load4(weight + place, w[c][half]);
        load4(velocity + place, v[c][half]);
      }
  };

  const Barriers stays_here(here), passes_here(full), stayed(free), passed(empty);
  const uint64_t passing = operand(kept_address(k_blocks)), all_staying = operand(kept_address(staying));
  Tiles ahead(n, g, height);  // the next tile of this warpgroup
  if (group > 0) ahead.next();
  wait_for_previous();
  launch_dependents();
  load(ahead);
  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
#pragma unroll 1
  for (Tiles tile(n, g, height); tile; tile.next()) {
    const int i = tile.i;
    if (i % WGS != group) continue;
    float sum[TILE / 2] = {};
    const int runs = tile.runs;
    const bool last = tile.last_of_run();
    Stage<STAGES> stage(i * count * PARTS), used = stage;
    // K-block s, the parts of which are from `used` on, is multiplied: their stages are free, and
    // after the last tile of a run those that stayed.
    auto release = [&](int s) {
#pragma unroll
      for (int p = 0; p < PARTS; ++p, used.next())
        if (threadIdx.x % 128 == 0) passed.arrive(used.at);
      if (threadIdx.x % 128 == 0 && last) stayed.arrive(s);
    };
    // Slices are told apart by the parity of their round, so nobody waits for those of a later
    // tile.
    if (i > 0) barrier_wait(turn + group, (i - (group == 0)) / WGS % 2);
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      const uint64_t stays = advance(all_staying, s * PARTS * K_BLOCK_BYTES);
      stays_here.wait(s, runs % 2);
#pragma unroll
      for (int p = 0; p < PARTS; ++p, stage.next()) {
        passes_here.wait(stage.at, stage.parity);
        const uint64_t passes = advance(passing, stage.at * K_BLOCK_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < K_BLOCK_DEPTH / 16; ++k) {
          // sum += h x, of which one passes and the other stays.
          auto multiply = [&](int part) {
            Wgmma<__half, TILE, true, true>::run(sum, advance(passes, 16 * BLOCK_LINE * k), advance(stays, part * K_BLOCK_BYTES + 16 * BLOCK_LINE * k));
          };
          multiply(0);
          if (p == 0) multiply(1);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (s > 0) release(s - 1);
    }
    // All k-blocks have come: the next warpgroup may wait for its own.
    if (threadIdx.x % 128 == 0) barrier_arrive(turn + (group + 1) % WGS);
    wgmma_wait<0>();
    summed(sum);
    release(count - 1);

    const int first_row = tile.row0() + line0, first_col = tile.col0() + along0;
#pragma unroll
    for (int c = 0; c < SIXTEENS; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* even = sum + 8 * c + 2 * half;
        float g[4];
        Exchanged::four(even, even + 4, g);
        const int row = first_row + 8 * half, col = first_col + 16 * c;
        if (!inside(row, col)) continue;
        const size_t place = (size_t)row * n.cols + col;
        float(&of_w)[4] = w[c][half], (&of_v)[4] = v[c][half];
        float copied[4], rest[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          of_v[e] = stepped(of_v[e], of_w[e], g[e], alpha, momentum, rate, n.l1, n.l2);
          of_w[e] = of_w[e] + of_v[e];
          copied[e] = of_w[e] * n.scale;
          rest[e] = copied[e] - wide(narrow<__half>(copied[e]));
        }
        store4(velocity + place, of_v);
        store4(weight + place, of_w);
        store4(copy + place, copied);
        store4(copy + n.copy_part + place, rest);
      }
    ahead.next();
    ahead.next();
    load(ahead);
  }
}
