// sm_90a/contrast_step.cu: the weights of one update of contrastive learning, from states in one part, by the products of warpgroups of
// capability 9.0. The formulas are those of contrast_step.cu; biases and the counter are updated by its kernel contrast_biases.
//
// A block takes tiles of 64 x 64 weights one after the other, in runs of contrast_tiles.cuh. Two warpgroups take turns: one sums a tile of the
// gradient from x, which stays in shared memory, and slices of h, 64 rows at a time, which one thread copies through a ring, while the other
// steps the weights of the tile before. A thread copies the tiles of weights and velocity into PLACES places in turn, and another copies the
// new ones out, so that memory moves in both directions all the time. Memory binds: at [16000, 2304] 187 us, where a loop over all weights that does
// nothing else takes 170. Copies with a policy that makes room for others first are slower (215 for 197).
//
// Where bf16 states have weights in halves (halves.cuh), the copy is their upper half, which then is read too: 12 bytes a weight in place of 14. At
// [16000, 2304] 138 us in place of 163. contrast_step_rounded is for weights of bf16 without a copy, which it rounds stochastically. It takes tiles of
// 64 x 128.
//
// arrays   h: planes of [batch, rows] and x: of [batch, cols], T; plane 0 is of the negative phase, plane 1 of the positive. weight: [rows, cols]
//          f32, bf16, or 16 bits that are lower halves; velocity: the same, V; copy: the same, T. All as tensor maps: of 64 columns by 64 rows for h and x; of 128 bytes by 64 rows
//          for the others. Of patches: [patches * rows, cols], h of all patches, x the values of the grid
// scalars  rows and cols multiples of 8, batch at most 192; of patches rows a multiple of 64, and stride * depth. Grid: of patches alone. scalars: [3] f32 on the device: rate / batch, momentum, rate.
//          counter: [1] i64, read by contrast_step_rounded. height: tiles of a run, at least 1: see contrast_tiles.cuh
// launch   1-D grid of at most as many blocks as there are runs, one for each multiprocessor; 384 threads
// shared   the side that stays, PLACES tiles of weights, velocity and copy, the ring, and 1 KB to align them
// cost     4 batch rows cols FLOP; 16 bytes a weight (12 with V of 16 bits) and 2 for the copy, 12 with halves, or 8 with bf16 weights; operands once for each tile, from the second-level
//          cache
// NaN      propagates
// same     sums in one order on one device
// truth    contrast_step_reference in src/contrast_step.rs, round_stochastic and rounding_bits in src/rounding.rs; of patches patch_gradient_reference and weight_step_reference

#include "../halves.cuh"
#include "../order.cuh"
#include "../rounding.cuh"
#include "../stepped.cuh"
#include "contrast_tiles.cuh"

// Where entry (row, col) of a tile lies, in blocks of 128 bytes by TILE rows as copies with swizzling leave it.
template <typename V>
__device__ __forceinline__ V* entry(unsigned char* tile, int row, int col) {
  constexpr int LINE = BLOCK_LINE / sizeof(V), CHUNK = 16 / sizeof(V);
  const int chunk = col % LINE / CHUNK ^ row % 8;
  return reinterpret_cast<V*>(tile + (col / LINE * TILE + row) * BLOCK_LINE + chunk * 16) + col % CHUNK;
}

__device__ __forceinline__ float2 pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ __forceinline__ float2 pair(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}
__device__ __forceinline__ void put(float* at, float2 v) { *reinterpret_cast<float2*>(at) = v; }
__device__ __forceinline__ void put(__nv_bfloat16* at, float2 v) {
  *reinterpret_cast<__nv_bfloat162*>(at) = __floats2bfloat162_rn(v.x, v.y);
}
__device__ __forceinline__ void put(__half* at, float2 v) { *reinterpret_cast<__half2*>(at) = __floats2half2_rn(v.x, v.y); }

// How weights are stored: in f32; in halves, of which the upper ones are the copy; or as bf16 numbers alone, rounded stochastically.
enum class Stored { WHOLE, HALVES, ROUNDED };

// A tile is WIDE squares side by side.
template <bool PATCHES, typename T, typename V, Stored STORED, int WIDE>
__device__ __forceinline__ void contrast_step(const TensorMap& h_map, const TensorMap& x_map, const TensorMap& weight_map,
                                              const TensorMap& velocity_map, const TensorMap& copy_map, const float* scalars,
                                              const Numbers& n, const Grid& g, int height, const Rounding& rounding, const long long* counter) {
  using Turns = Walk<PATCHES, false, WIDE>;
  using W = std::conditional_t<STORED == Stored::WHOLE, float, __nv_bfloat16>;
  constexpr bool COPIED = STORED != Stored::ROUNDED;
  constexpr int COLS = Turns::COLS, PLACES = STORED == Stored::WHOLE ? 3 : STORED == Stored::HALVES ? 4 : 2, STAYING_BYTES = SLICES * WIDE * SLICE_BYTES;
  constexpr int WEIGHT_BYTES = TILE * COLS * sizeof(W), VELOCITY_BYTES = TILE * COLS * sizeof(V), COPY_BYTES = COPIED ? TILE * COLS * 2 : 0;
  constexpr int TILE_BYTES = WEIGHT_BYTES + VELOCITY_BYTES + COPY_BYTES;
  constexpr int STAGES = (SHARED - 1024 - STAYING_BYTES - PLACES * TILE_BYTES) / SLICE_BYTES;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[STAGES], empty[STAGES], arrived[PLACES], stepped_all[PLACES], stored[PLACES], turn[2], here[SLICES], free[SLICES];
  unsigned char* staying = memory + (1024 - shared_address(memory) % 1024) % 1024;
  unsigned char* tile_memory = staying + STAYING_BYTES;
  unsigned char* slices = tile_memory + PLACES * TILE_BYTES;
  const int of_phase = (n.batch + SLICE_DEPTH - 1) / SLICE_DEPTH, count = 2 * of_phase;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    for (int p = 0; p < PLACES; ++p) barrier_init(arrived + p, 1), barrier_init(stepped_all + p, 128), barrier_init(stored + p, 1);
    for (int s = 0; s < SLICES; ++s) barrier_init(here + s, 1), barrier_init(free + s, 1);
    barrier_init(turn, 1), barrier_init(turn + 1, 1);
    barriers_made();
  }
  __syncthreads();

  // Where the tile of turn i lies, and in memory.
  constexpr int LINE = BLOCK_LINE / sizeof(V), WEIGHT_LINE = BLOCK_LINE / sizeof(W), BLOCK = TILE * BLOCK_LINE;
  auto weights_of = [&](int i) { return tile_memory + i % PLACES * TILE_BYTES; };
  auto velocities_of = [&](int i) { return weights_of(i) + WEIGHT_BYTES; };
  auto copies_of = [&](int i) { return weights_of(i) + WEIGHT_BYTES + VELOCITY_BYTES; };
  const States<Turns, 1, false> states{h_map, x_map, n, g, of_phase, height};
  if (warp == 8 && lane == 0) {
    wait_for_previous();
    states.copy_staying(staying, here, free);
  }
  if (warp == 11 && lane == 0) {
    wait_for_previous();
    states.template copy_passing<STAGES>(slices, full, empty);
  }
  if (warp == 9 && lane == 0) {  // weights and velocities in; they are older than the launch before
#pragma unroll 1
    for (Turns turn(n, g, height); turn; turn.next()) {
      const int i = turn.i, row0 = turn.row0(), col0 = turn.col0();
      if (i >= PLACES) barrier_wait(stored + i % PLACES, (i / PLACES - 1) % 2);
      uint64_t* here = arrived + i % PLACES;
      barrier_expect(here, WEIGHT_BYTES + VELOCITY_BYTES + (STORED == Stored::HALVES ? COPY_BYTES : 0));
#pragma unroll
      for (int c = 0; c < COLS / WEIGHT_LINE; ++c) copy_block(weights_of(i) + c * BLOCK, &weight_map, col0 + WEIGHT_LINE * c, row0, here);
#pragma unroll
      for (int c = 0; c < COLS / LINE; ++c) copy_block(velocities_of(i) + c * BLOCK, &velocity_map, col0 + LINE * c, row0, here);
      if (STORED == Stored::HALVES) copy_block(copies_of(i), &copy_map, col0, row0, here);
    }
  }
  if (warp == 10 && lane == 0) {  // and out, with the copy, which the launch before may have read
    wait_for_previous();
#pragma unroll 1
    for (Turns turn(n, g, height); turn; turn.next()) {
      const int i = turn.i, row0 = turn.row0(), col0 = turn.col0();
      barrier_wait(stepped_all + i % PLACES, i / PLACES % 2);
#pragma unroll
      for (int c = 0; c < COLS / WEIGHT_LINE; ++c) store_block(&weight_map, col0 + WEIGHT_LINE * c, row0, weights_of(i) + c * BLOCK);
#pragma unroll
      for (int c = 0; c < COLS / LINE; ++c) store_block(&velocity_map, col0 + LINE * c, row0, velocities_of(i) + c * BLOCK);
      if (COPIED) store_block(&copy_map, col0, row0, copies_of(i));
      store_commit();
      store_wait_read();
      barrier_arrive(stored + i % PLACES);
    }
    store_wait();
  }
  if (warp >= 8) return;

  wait_for_previous();
  let_next_start();
  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
#pragma unroll 1
  for (Turns tile(n, g, height); tile; tile.next()) {
    const int i = tile.i;
    if (i % 2 != warp / 4) continue;
    float sum[WIDE][32] = {};
    int slice = i * count;
    const int runs = tile.runs;
    const bool last = tile.last_of_run();
    // A slice is multiplied: its place is free, and after the last tile of a run that of the slice that stayed.
    auto release = [&](int s, int slice) {
      if (threadIdx.x % 128 != 0) return;
      barrier_arrive(empty + slice % STAGES);
      if (last) barrier_arrive(free + s);
    };
    // Slices are told apart by the parity of their round, so nobody waits for those of a later tile.
    if (i > 0) barrier_wait(turn + i % 2, (i - 1) / 2 % 2);
#pragma unroll 1
    for (int s = 0; s < count; ++s, ++slice) {
      const int stage = slice % STAGES;
      barrier_wait(here + s, runs % 2);
      barrier_wait(full + stage, slice / STAGES % 2);
      const uint32_t stays = shared_address(staying + s * WIDE * SLICE_BYTES), passes = shared_address(slices + stage * SLICE_BYTES);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < SLICE_DEPTH / 16; ++k)
#pragma unroll
        for (int w = 0; w < WIDE; ++w)
          Wgmma<T, TILE, true, true>::run(sum[w], operand(passes + 16 * BLOCK_LINE * k), operand(stays + w * SLICE_BYTES + 16 * BLOCK_LINE * k));
      wgmma_commit();
      wgmma_wait<1>();
      if (s > 0) release(s - 1, slice - 1);
    }
    wgmma_wait<0>();
    release(count - 1, slice - 1);
    if (threadIdx.x % 128 == 0) barrier_arrive(turn + (i + 1) % 2);

    const int row = 16 * (warp % 4) + lane / 4, pair_at = lane % 4 * 2;
    uint4 words[2][COLS / 32];  // for four times two columns of a thread's two rows
    if constexpr (!COPIED) {
      const Philox draws = rounding_draws(rounding, counter);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int c = 0; c < COLS / 32; ++c)
          words[half][c] = philox_block(draws, rounding_block(tile.row0() + row + 8 * half, tile.col0() + 32 * c + pair_at, n.cols));
    }
    barrier_wait(arrived + i % PLACES, i / PLACES % 2);
    auto step_all = [&](auto decay) {
#pragma unroll
      for (int c = 0; c < COLS / 8; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at_row = row + 8 * half, at_col = 8 * c + pair_at;
          W* w_at = entry<W>(weights_of(i), at_row, at_col);
          V* v_at = entry<V>(velocities_of(i), at_row, at_col);
          T* copy_at = entry<T>(copies_of(i), at_row, at_col);
          auto word = [](auto* at) -> unsigned& { return *reinterpret_cast<unsigned*>(at); };  // of two numbers
          const float* g = sum[c / 8] + c % 8 * 4 + 2 * half;
          float2 w, v = pair(v_at);
          if constexpr (STORED == Stored::HALVES) w = joined_pair(word(copy_at), word(w_at));
          else w = pair(w_at);
          v.x = decay(v.x, w.x, g[0]), v.y = decay(v.y, w.y, g[1]);
          w.x = w.x + v.x, w.y = w.y + v.y;
          put(v_at, v);
          if constexpr (STORED == Stored::WHOLE) {
            put(w_at, w);
            put(copy_at, make_float2(w.x * n.scale, w.y * n.scale));
          } else if constexpr (STORED == Stored::HALVES) {
            halve_pair(w, word(copy_at), word(w_at));
          } else {
            word(w_at) = rounded_pair(w.x, w.y, word_of(words[half][c / 4], c % 4));
          }
        }
    };
    if (COPIED || n.l1 != 0.f) step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
    else step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
    shared_fence();
    barrier_arrive(stepped_all + i % PLACES);
  }
}

#define CONTRAST_STEP(NAME, PATCHES, T, V, STORED)                                                                                 \
  extern "C" __global__ void __launch_bounds__(384, 1)                                                                             \
  NAME(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,                                           \
       const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map,                               \
       const __grid_constant__ TensorMap copy_map, const float* scalars, const __grid_constant__ Numbers n,                        \
       const __grid_constant__ Grid g, int height) {                                                                               \
    contrast_step<PATCHES, T, V, STORED, 1>(h_map, x_map, weight_map, velocity_map, copy_map, scalars, n, g, height, Rounding{}, nullptr); \
  }
CONTRAST_STEP(contrast_step_f16, false, __half, float, Stored::WHOLE)
CONTRAST_STEP(contrast_step_bf16, false, __nv_bfloat16, __nv_bfloat16, Stored::WHOLE)
CONTRAST_STEP(contrast_step_halves, false, __nv_bfloat16, __nv_bfloat16, Stored::HALVES)
CONTRAST_STEP(patch_step_f16, true, __half, float, Stored::WHOLE)
CONTRAST_STEP(patch_step_bf16, true, __nv_bfloat16, __nv_bfloat16, Stored::WHOLE)
CONTRAST_STEP(patch_step_halves, true, __nv_bfloat16, __nv_bfloat16, Stored::HALVES)

// Of bf16 weights, which have no copy. Tiles of 64 x 128 halve what is read of h, and two places leave the ring room for seven slices. At
// [16000, 2304], where weights with masters take 181 us: 112; tiles of 64 x 64 in six places 138, of 64 x 128 in three, with three slices in the
// ring, 141; with 128 registers, so that a block of contrast_biases fits beside, 119.
extern "C" __global__ void __launch_bounds__(384, 1)
contrast_step_rounded(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map, const float* scalars,
                      const long long* counter, const __grid_constant__ Numbers n, const __grid_constant__ Grid g,
                      const __grid_constant__ Rounding rounding, int height) {
  contrast_step<false, __nv_bfloat16, __nv_bfloat16, Stored::ROUNDED, 2>(h_map, x_map, weight_map, velocity_map, weight_map, scalars, n, g, height, rounding,
                                                                       counter);
}
