// sm_90a/cd_update.cu: the weights of one update of contrastive learning, from states in one
// part, by the products of warpgroups of capability 9.0, and the biases of the hidden units. The
// formulas are those of cd_update.cu; its kernel cd_biases updates the other biases and
// the counter.
//
// A block takes tiles of weights one after the other, in runs of cd_tiles.cuh. Warpgroups
// take turns: one sums a tile of the gradient from x, which stays in shared memory, and k-blocks of
// h, 64 rows at a time, which one thread copies through a ring, while the others step the weights
// of the tiles before. A tile is one or two subtiles of 64 x 64. A thread copies the subtiles of
// weights and velocity into stages of shared memory in turn, and another copies the new ones out,
// so that memory moves in both directions all the time.
//
// The sums of hidden units over the minibatch are products with ones, in one tile of those with the
// same rows: nobody reads the states of hidden units once more for them.
//
// Where bf16 states have weights in halves (halves.cuh), the copy is their upper half, which then
// is read too: 12 bytes a weight in place of 14. cd_update_rounded is for weights of bf16
// without a copy, which it rounds stochastically.
//
// Memory binds. Addresses of stages and operands are made once and kept: made anew for each k-block
// they take longer than its products (NOTES.md).
//
// arrays   h: planes of [batch, rows] and x: of [batch, cols], T; plane 0 is of the negative phase,
//          plane 1 of the positive. weight: [rows, cols] f32, bf16, or 16 bits that are lower
//          halves; velocity: the same, V; copy: the same, T. All as tensor maps: of 64 columns by
//          64 rows for h and x; of 128 bytes by 64 rows for the others. Of patches: [patches *
//          rows, cols], h of all patches, x the values of the grid. hidden_state: [4, all rows]
//          f32, see bias_step.cu
// scalars  rows and cols multiples of 8, batch at most 256; of patches rows a multiple of 64, and
//          stride * depth. Grid: of patches alone. scalars: [3] f32 on the device: rate / batch,
//          momentum, rate. counter: [1] i64, read by cd_update_rounded. height: tiles of a run,
//          at least 1: see cd_tiles.cuh. Rooms: subtiles and stages of the ring
// launch   1-D grid of at most as many blocks as there are runs, one for each multiprocessor; 384
//          threads, or 512 for cd_update_rounded
// shared   the side that stays, subtiles of weights, velocity and copy, the ring and ONES_BYTES: at
//          most 226 KB
// cost     4 batch rows cols FLOP; 16 bytes a weight (12 with V of 16 bits) and 2 for the copy, 12
//          with halves, or 8 with bf16 weights; operands once for each tile, from the second-level
//          cache
// NaN      propagates
// same     sums in one order on one device; those of the biases are not rounded after each row as
//          on the CPU
// truth    cd_update_reference in src/layers/cd_update/mod.rs, round_stochastic and
//          rounding_bits in src/layers/rounding.rs; of patches patch_gradient_reference and
//          weight_step_reference

#include "core/order.cuh"
#include "core/stepped.cuh"
#include "layers/sm_90a/cd_subtile.cuh"
#include "layers/sm_90a/cd_tiles.cuh"
#include "layers/sm_90a/subtile_ring.cuh"

// How many subtiles have room, at least as many as half a tile of each warpgroup, and how many
// k-blocks in the ring: see src/layers/cd_update/staying.rs.
struct Rooms {
  int subtiles, stages;
};
constexpr int MOST_SUBTILES = 4, MOST_STAGES = 8, MOST_K_BLOCKS = 8;  // k-blocks that stay
constexpr int ONES_BYTES = 2048;

// A tile is WIDE subtiles side by side, each with a stage of its own for its weights; GROUPS
// warpgroups take turns.
template <bool PATCHES, typename T, typename V, Stored STORED, int WIDE, int GROUPS>
__device__ __forceinline__ void cd_update(const TensorMap& h_map, const TensorMap& x_map, const TensorMap& weight_map,
                                              const TensorMap& velocity_map, const TensorMap& copy_map, float* hidden_state,
                                              const float* scalars, const Numbers& n, const Grid& g, int height, const Rooms& rooms,
                                              const Rounding& rounding, const long long* counter) {
  using Tiles = Schedule<PATCHES, WIDE>;
  using Maps = SubtileMaps<T, V, STORED>;
  using Subtiles = SubtileRing<Maps, MOST_SUBTILES>;
  constexpr bool COPIED = Maps::COPIED;
  const int of_phase = (n.batch + K_BLOCK_DEPTH - 1) / K_BLOCK_DEPTH, count = 2 * of_phase;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES], turn[GROUPS], here[MOST_K_BLOCKS], free[MOST_K_BLOCKS];
  __shared__ typename Subtiles::Barriers of_subtiles;
  unsigned char* staying = memory;
  const Maps maps{weight_map, velocity_map, copy_map};
  const Subtiles subtiles{of_subtiles, staying + count * WIDE * K_BLOCK_BYTES, maps, rooms.subtiles};
  unsigned char* k_blocks = subtiles.memory + rooms.subtiles * Subtiles::BYTES;
  unsigned char* ones = k_blocks + rooms.stages * K_BLOCK_BYTES;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < rooms.stages; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    subtiles.init();
    for (int s = 0; s < count; ++s) barrier_init(here + s, 1), barrier_init(free + s, 1);
    for (int t = 0; t < GROUPS; ++t) barrier_init(turn + t, 1);
    barriers_made();
  }
  // Of patches one phase follows the other, as in patch_last_step.cu.
  const States<Tiles, 1, !PATCHES> states{h_map, x_map, n, g, of_phase, height};
  // For each phase, a line of ones among zeros: products with it are the sums of h over the rows of
  // that phase.
  for (int i = threadIdx.x; i < ONES_BYTES / 2; i += blockDim.x)
    reinterpret_cast<T*>(ones)[i] = narrow<T>(i / K_BLOCK_DEPTH % 8 == i / (8 * K_BLOCK_DEPTH) ? 1.f : 0.f);
  shared_fence();
  __syncthreads();

  // Calls of(subtile, row0, col0) for all subtiles of this block, or the first so many, counted
  // from 0.
  auto each_subtile = [&](auto of, int most = 0x7fffffff) {
    int subtile = 0;
#pragma unroll 1
    for (Tiles tile(n, g, height); tile && subtile < most; tile.next()) {
      const int end = min(subtile + tile.subtiles(), most), row0 = tile.row0();
      int col0 = tile.col0();
#pragma unroll 1
      for (; subtile < end; ++subtile, col0 += TILE) of(subtile, row0, col0);
    }
  };
  if (warp >= 4 * GROUPS) {
    if (GROUPS == 3) give_registers<40>();
    if (lane != 0) return;
    switch (warp - 4 * GROUPS) {
      case 0:
        wait_for_previous();
        states.copy_staying(staying, here, free);
        return;
      case 1:
        wait_for_previous();
        states.copy_passing(k_blocks, full, empty, Stage<0>(rooms.stages));
        return;
      case 2:  // weights and velocities in; the first ones come into the second-level cache while the launch before still runs
        each_subtile([&](int, int row0, int col0) { maps.prefetch(row0, col0); }, rooms.subtiles);
        wait_for_previous();
        each_subtile([&](int subtile, int row0, int col0) { subtiles.copy_in(subtiles.place(subtile), row0, col0); });
        return;
      default:  // and out, with the copy, which the launch before may have read
        wait_for_previous();
        each_subtile([&](int subtile, int row0, int col0) { subtiles.copy_out(subtiles.place(subtile), row0, col0); });
        store_wait();
        return;
    }
  }
  if (GROUPS == 3) take_registers<152>();

  wait_for_previous();
  launch_dependents();
  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
  const Philox draws = COPIED ? Philox{} : rounding_draws(rounding, counter);
  const int row = 16 * (warp % 4) + lane / 4, pair_at = lane % 4 * 2;
  const Barriers stays_here(here), passes_here(full), stayed(free), passed(empty);
  const uint64_t passing = operand(kept_address(k_blocks)), all_staying = operand(kept_address(staying), K_BLOCK_BYTES), of_ones = operand(kept_address(ones));
  int subtile = 0;
#pragma unroll 1
  for (Tiles tile(n, g, height); tile; tile.next()) {
    const int i = tile.i, beside = tile.subtiles();
    if (i % GROUPS != warp / 4) {
      subtile += beside;
      continue;
    }
    float sum[32 * WIDE], of_rows[4];
    const bool sums_rows = tile.alone();
    const int runs = tile.runs;
    const bool last = tile.last_of_run();
    // A k-block is multiplied: its stage is free, and after the last tile of a run that of the
    // k-block that stayed.
    auto release = [&](int s, int stage) {
      if (threadIdx.x % 128 != 0) return;
      passed.arrive(stage);
      if (last) stayed.arrive(s);
    };
    // One lane of four has the sums of two rows. It reads what it changes by them early: from
    // memory that takes as long as the products.
    const int units = PATCHES ? g.units() : n.rows;
    const bool steps_biases = sums_rows && lane % 4 == 0;
    BiasBefore before[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = tile.row0() + row + 8 * half;
      if (steps_biases && unit < units) before[half] = BiasBefore(hidden_state, n.hidden, units, unit);
    }
    int last_stage = 0;  // of the k-block before
    // Slices are told apart by the parity of their round, so nobody waits for those of a later
    // tile.
    if (i > 0) barrier_wait(turn + i % GROUPS, (i / GROUPS - (i % GROUPS == 0)) % 2);
    // A loop for tiles that sum the rows of h, too, and one for the others: products in a branch
    // would wait for each other.
    auto sum_k_blocks = [&](auto rows_too) {
#pragma unroll
      for (int e = 0; e < 32 * WIDE; ++e) sum[e] = 0.f;
#pragma unroll
      for (int e = 0; e < 4; ++e) of_rows[e] = 0.f;
      Stage<0> stage(rooms.stages, i * count);
#pragma unroll 1
      for (int s = 0; s < count; ++s) {
        stays_here.wait(s, runs % 2);
        passes_here.wait(stage.at, stage.parity);
        const uint64_t of_h = advance(passing, stage.at * K_BLOCK_BYTES), of_x = advance(all_staying, s * WIDE * K_BLOCK_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < K_BLOCK_DEPTH / 16; ++k) {
          Wgmma<T, WIDE * TILE, true, true>::run(sum, advance(of_h, 16 * BLOCK_LINE * k), advance(of_x, 16 * BLOCK_LINE * k));
          if constexpr (rows_too.value)
            Wgmma<T, 8, true, false>::run(of_rows, advance(of_h, 16 * BLOCK_LINE * k), advance(of_ones, states.phase(s) * (ONES_BYTES / 2)));
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (s > 0) release(s - 1, last_stage);
        last_stage = stage.at;
        stage.next();
      }
      // All k-blocks have come: the next warpgroup may wait for its own.
      if (threadIdx.x % 128 == 0) barrier_arrive(turn + (i + 1) % GROUPS);
      wgmma_wait<0>();
      summed(sum);
      if constexpr (rows_too.value) summed(of_rows);
    };
    if (sums_rows) sum_k_blocks(std::true_type());
    else sum_k_blocks(std::false_type());
    release(count - 1, last_stage);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = tile.row0() + row + 8 * half;
      if (steps_biases && unit < units)
        apply_bias(hidden_state, before[half], of_rows[2 * half + 1], of_rows[2 * half], 0.f, momentum, rate, nullptr, n.hidden, n.batch,
                   units, unit);
    }

#pragma unroll
    for (int w = 0; w < WIDE; ++w) {
      if (w >= beside) break;  // beyond the matrix: no x came for it, and nobody reads its sums
      [[maybe_unused]] uint4 words[2][2];  // for four times two columns of a thread's two rows
      if constexpr (!COPIED) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            words[half][c] = philox_block(draws, rounding_block(tile.row0() + row + 8 * half, tile.col0() + w * TILE + 32 * c + pair_at, n.cols));
      }
      const auto place = subtiles.place(subtile);
      subtiles.arrived(place, rooms.subtiles < GROUPS * WIDE);
      const auto at = subtiles.at(place);
      auto step_all = [&](auto decay) { at.template step<TILE>(sum, 32 * w, words, row, 0, pair_at, n.scale, decay); };
      if (n.l1 != 0.f) step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
      else step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
      subtiles.stepped(place);
      ++subtile;
    }
  }
}

// Not more, so that a block of cd_biases finds registers beside.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define REGISTERS __maxnreg__(144)
#else
#define REGISTERS __launch_bounds__(384, 1)
#endif
#define CONTRAST_STEP(NAME, PATCHES, T, V, STORED, WIDE)                                                                   \
  extern "C" __global__ void REGISTERS                                                                                     \
  NAME(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,                                   \
       const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map,                       \
       const __grid_constant__ TensorMap copy_map, float* hidden_state, const float* scalars,                              \
       const __grid_constant__ Numbers n, const __grid_constant__ Grid g, int height, const __grid_constant__ Rooms rooms) { \
    cd_update<PATCHES, T, V, STORED, WIDE, 2>(h_map, x_map, weight_map, velocity_map, copy_map, hidden_state, scalars,     \
                                              n, g, height, rooms, Rounding{}, nullptr);                                   \
  }
CONTRAST_STEP(cd_update_f16, false, __half, float, Stored::WHOLE, 1)
CONTRAST_STEP(cd_update_bf16, false, __nv_bfloat16, __nv_bfloat16, Stored::WHOLE, 1)
CONTRAST_STEP(cd_update_halves, false, __nv_bfloat16, __nv_bfloat16, Stored::HALVES, 2)
CONTRAST_STEP(patch_step_f16, true, __half, float, Stored::WHOLE, 1)
CONTRAST_STEP(patch_step_bf16, true, __nv_bfloat16, __nv_bfloat16, Stored::WHOLE, 1)
CONTRAST_STEP(patch_step_halves, true, __nv_bfloat16, __nv_bfloat16, Stored::HALVES, 2)

// Of bf16 weights, which have no copy. Their rounding takes so many instructions that a third
// warpgroup pays. It leaves no registers for a block of cd_biases beside.
constexpr int GROUPS_ROUNDED = 3;
extern "C" __global__ void __launch_bounds__(128 * GROUPS_ROUNDED + 128, 1)
cd_update_rounded(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map, float* hidden_state,
                      const float* scalars, const long long* counter, const __grid_constant__ Numbers n, const __grid_constant__ Grid g,
                      const __grid_constant__ Rounding rounding, int height, const __grid_constant__ Rooms rooms) {
  cd_update<false, __nv_bfloat16, __nv_bfloat16, Stored::ROUNDED, 2, GROUPS_ROUNDED>(
      h_map, x_map, weight_map, velocity_map, weight_map, hidden_state, scalars, n, g, height, rooms, rounding, counter);
}
