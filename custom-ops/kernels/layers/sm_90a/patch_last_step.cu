// sm_90a/patch_last_step.cu: the last means of hidden units and the update of the weights of
// patches from them, in one launch, for bf16 states and weights in halves: patch_step_halves of
// cd_update.cu, for which these means need not be written, nor the weights read for them.
//
//   h[0] = -sigmoid(W x[0] + b)    of the negative phase, rounded to bf16
//   then the update of cd_update.cu from h and x
//
// A block takes tiles of WGS times 64 hidden units of a patch and all its weights, a warpgroup for
// each 64 units. First it sums W x[0]: k-blocks of 64 entries of the window, of x and of the upper
// halves of W, come through a ring of stages. The sums of a warpgroup, 64 units by rows of the
// minibatch, are then rounded to means that stay in its registers as the first operand of the
// products of the gradient, h x^T, and so does h[1]. K-blocks of both phases of x follow, and
// subtiles of 64 x 64 weights: their lower and upper halves and velocities, which a warp carries in
// and out for each warpgroup, two stages in turn.
//
// Memory binds: while weights are stepped it moves 4.3 TB/s on an H200 (NOTES.md).
//
// arrays   h, x, weight, velocity, copy: tensor maps as in cd_update.cu of patches, but for boxes
//          of ROWS rows for h and x; h[0] is not read. hidden_state: [4, all rows] f32, see
//          bias_step.cu: biases, also those of the means
// scalars  those of cd_update.cu; rows a multiple of 64 WGS, cols of 64, batch at most ROWS
// launch   1-D grid of at most as many blocks as tiles, one for each multiprocessor; 128 WGS + 128
//          threads
// shared   PASSING + 2 WGS stages, and 1 KB to align them
// cost     6 batch rows cols FLOP; 14 bytes a weight; x three times for each tile, h[1] once
// NaN      propagates
// same     sums in one order on one device; those of the biases are not rounded after each row as on
//          the CPU
// truth    units_of_patches_ and then patch_cd_update_, see src/images/patches/last_step.rs

#include "layers/cd_numbers.cuh"
#include "core/order.cuh"
#include "core/patches.cuh"
#include "core/stepped.cuh"
#include "layers/units.cuh"
#include "layers/sm_90a/cd_subtile.cuh"

constexpr int ROWS = 192;  // rows of a minibatch, at most
constexpr int PASSING = 3;  // stages of the ring where nothing stays
constexpr int STAGE_BYTES = ROWS * BLOCK_LINE;
constexpr int SUBTILE_BYTES = TILE * BLOCK_LINE;

// The parities for which stages are waited for, a bit for each.
struct Parities {
  unsigned bits;
  __device__ void wait(uint64_t* barriers, int stage) {
    barrier_wait(barriers + stage, bits >> stage & 1);
    bits ^= 1u << stage;
  }
};

// The stage behind another in a ring.
__device__ __forceinline__ int next_stage(int stage, int ring) { return stage + 1 == ring ? 0 : stage + 1; }

// The sum of both numbers of a pair.
__device__ __forceinline__ float sum_of_pair(unsigned pair) {
  const float2 both = widened<__nv_bfloat16>(pair);
  return both.x + both.y;
}

template <int WGS>
__device__ __forceinline__ void last_step(const TensorMap& h_map, const TensorMap& x_map, const TensorMap& weight_map,
                                          const TensorMap& velocity_map, const TensorMap& copy_map, float* hidden_state, const float* scalars,
                                          const Numbers& n, const Grid& g) {
  using T = __nv_bfloat16;
  // Stages: some for x alone; one for each warpgroup, for subtiles alone; and one for each for
  // both.
  constexpr int STAGES = PASSING + 2 * WGS, RING = PASSING + WGS, DEPTHS = ROWS / 16;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[STAGES], empty[STAGES], stepped_all[WGS], risen;
  unsigned char* stages = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;
  const int of_patch = n.rows / (TILE * WGS), tiles = g.patches() * of_patch, count = n.cols / TILE;

  if (threadIdx.x == 0) {
    for (int p = 0; p < STAGES; ++p) barrier_init(full + p, 1), barrier_init(empty + p, WGS);
    for (int w = 0; w < WGS; ++w) barrier_init(stepped_all + w, 128);
    barrier_init(&risen, WGS);
    barriers_made();
  }
  __syncthreads();

  auto at_stage = [&](int stage) { return stages + stage * STAGE_BYTES; };
  auto stage_of_subtile = [&](int w, int s) { return PASSING + (s % 2 == 0 ? WGS : 0) + w; };
  // The last tiles first: the products before have just read them.
  auto each_tile = [&](auto of) {
#pragma unroll 1
    for (int tile = tiles - 1 - blockIdx.x; tile >= 0; tile -= gridDim.x) of(tile * WGS * TILE, tile / of_patch);
  };
  if (warp >= 4 * WGS) {
    give_registers<24>();
    if (lane != 0) return;
    const int carried = warp - 4 * WGS - 1;
    Parities parities{~0u};
    auto expect = [&](int stage, int bytes) {
      parities.wait(empty, stage);
      barrier_expect(full + stage, bytes);
      return at_stage(stage);
    };
    if (carried < 0) {
      wait_for_previous();
      each_tile([&](int row0, int patch) {
        const int origin = g.origin(patch);
#pragma unroll 1
        for (int s = 0, stage = 0; s < count; ++s) {
          copy_block(expect(stage, STAGE_BYTES), &x_map, origin + g.entry(s * TILE), 0, 0, full + stage);
          stage = next_stage(stage, RING);
          unsigned char* at = expect(stage, WGS * SUBTILE_BYTES);
#pragma unroll
          for (int w = 0; w < WGS; ++w) copy_block(at + w * SUBTILE_BYTES, &copy_map, s * TILE, row0 + w * TILE, full + stage);
          stage = next_stage(stage, RING);
        }
#pragma unroll
        for (int w = 0; w < WGS; ++w) copy_block(expect(PASSING + w, STAGE_BYTES), &h_map, row0 + w * TILE, 0, 1, full + PASSING + w);
#pragma unroll 1
        for (int s = 0, stage = 0; s < count; ++s) {
          const int along = origin + g.entry(s * TILE);
#pragma unroll
          for (int phase = 0; phase < 2; ++phase) {
            copy_block(expect(stage, STAGE_BYTES), &x_map, along, 0, phase, full + stage);
            stage = next_stage(stage, PASSING);
          }
        }
        // Odd subtiles had the other stages of this ring.
        if (count / 2 % 2 == 1) parities.bits ^= ((1u << WGS) - 1) << PASSING;
      });
    } else if (carried < WGS) {
      // Uses of the stage of odd subtiles for the products before, in a tile.
      const int in_ring = PASSING + carried, before = (2 * count - in_ring + RING - 1) / RING + 1;
      auto load = [&](int row, int s) {
        const int stage = stage_of_subtile(carried, s);
        unsigned char* subtile = expect(stage, 3 * SUBTILE_BYTES);
        copy_block(subtile, &weight_map, s * TILE, row, full + stage);
        copy_block(subtile + SUBTILE_BYTES, &velocity_map, s * TILE, row, full + stage);
        copy_block(subtile + 2 * SUBTILE_BYTES, &copy_map, s * TILE, row, full + stage);
      };
      // The first subtile comes into the second-level cache while the launch before still runs.
      const int first = tiles - 1 - blockIdx.x;
      if (first >= 0) {
        const int row = (first * WGS + carried) * TILE;
        prefetch_block(&weight_map, 0, row);
        prefetch_block(&velocity_map, 0, row);
        prefetch_block(&copy_map, 0, row);
      }
      wait_for_previous();
      int parity = 0, of_tile = 0;
      each_tile([&](int row0, int) {
        const int row = row0 + carried * TILE;
        load(row, 0);
        // Until the k-blocks before have left the other stage.
        barrier_wait(&risen, of_tile);
        of_tile ^= 1;
        if (before % 2 == 1) parities.bits ^= 1u << in_ring;
#pragma unroll 1
        for (int s = 0; s < count; ++s, parity ^= 1) {
          if (s + 1 < count) load(row, s + 1);
          const int stage = stage_of_subtile(carried, s);
          barrier_wait(stepped_all + carried, parity);
          const unsigned char* subtile = at_stage(stage);
          store_block(&weight_map, s * TILE, row, subtile);
          store_block(&velocity_map, s * TILE, row, subtile + SUBTILE_BYTES);
          store_block(&copy_map, s * TILE, row, subtile + 2 * SUBTILE_BYTES);
          store_commit();
          store_wait_read();
          barrier_arrive(empty + stage, WGS);
        }
      });
      store_wait();
    }
    return;
  }
  take_registers<(WGS == 3 ? 160 : 232)>();

  wait_for_previous();
  launch_dependents();
  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
  const int group = warp / 4, row = 16 * (warp % 4) + lane / 4, pair_at = lane % 4 * 2;
  Parities parities{0};
  auto release = [&](int stage) {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + stage);
  };
  each_tile([&](int row0, int) {
    const unsigned unit = row0 + group * TILE + row, units = g.units();
    const BiasBefore before[2] = {{hidden_state, n.hidden, units, unit}, {hidden_state, n.hidden, units, unit + 8}};
    unsigned negative[DEPTHS][4], positive[DEPTHS][4];  // h of both phases, as products take it
    float of_negative[2] = {}, of_positive[2] = {};
    {
      float sum[ROWS / 2];
#pragma unroll
      for (int e = 0; e < ROWS / 2; ++e) sum[e] = 0.f;
      int last = 0;  // stage of x
#pragma unroll 1
      for (int s = 0; s < count; ++s) {
        const int stage = s == 0 ? 0 : next_stage(next_stage(last, RING), RING), of_weights = next_stage(stage, RING);
        parities.wait(full, stage);
        parities.wait(full, of_weights);
        const uint32_t x = shared_address(at_stage(stage)), w = shared_address(at_stage(of_weights) + group * SUBTILE_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) Wgmma<T, ROWS, false, false>::run(sum, operand(w + 32 * k), operand(x + 32 * k));
        wgmma_commit();
        wgmma_wait<1>();
        if (s > 0) release(last), release(next_stage(last, RING));
        last = stage;
      }
      wgmma_wait<0>();
      summed(sum);
      release(last), release(next_stage(last, RING));
#pragma unroll
      for (int k = 0; k < DEPTHS; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* of = sum + 8 * k + 2 * j;
          const float bias = before[j % 2].bias;
          const __nv_bfloat162 both = __floats2bfloat162_rn(-quick_sigmoid(of[0] + bias), -quick_sigmoid(of[1] + bias));
          negative[k][j] = reinterpret_cast<const unsigned&>(both);
          of_negative[j % 2] += sum_of_pair(negative[k][j]);
        }
    }
#pragma unroll
    for (int w = 0; w < WGS; ++w) parities.wait(full, PASSING + w);
    // Rows of the minibatch by units; a lane names eight units of a row, of 16 rows and the 16
    // units of this warp.
    unsigned char* h = at_stage(PASSING + group);
    const int of_batch = lane / 16 * 8 + lane % 8, of_units = warp % 4 * 16 + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < DEPTHS; ++k) {
      load_blocks_transposed(positive[k], entry<T>(h, 16 * k + of_batch, of_units));
#pragma unroll
      for (int j = 0; j < 4; ++j) of_positive[j % 2] += sum_of_pair(positive[k][j]);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");  // all warps of the warpgroup have it
#pragma unroll
    for (int w = 0; w < WGS; ++w) release(PASSING + w);
    if (threadIdx.x % 128 == 0) barrier_arrive(&risen);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int apart = 1; apart < 4; apart *= 2) {
        of_negative[half] += __shfl_xor_sync(~0u, of_negative[half], apart);
        of_positive[half] += __shfl_xor_sync(~0u, of_positive[half], apart);
      }
      // Rows beyond the minibatch are 0, and their means were summed, too.
      of_negative[half] += (ROWS - n.batch) * wide(narrow<T>(quick_sigmoid(before[half].bias)));
      if (lane % 4 == 0)
        apply_bias(hidden_state, before[half], of_positive[half], of_negative[half], 0.f, momentum, rate, nullptr, n.hidden, n.batch, units,
                   unit + 8 * half);
    }

#pragma unroll 1
    for (int s = 0, stage = 0; s < count; ++s) {
      const int next = next_stage(stage, PASSING), of_subtile = stage_of_subtile(group, s);
      unsigned char* lies = at_stage(of_subtile);
      const Subtile<T, T, Stored::HALVES> subtile{lies, lies + SUBTILE_BYTES, lies + 2 * SUBTILE_BYTES};
      parities.wait(full, stage);
      parities.wait(full, next);
#pragma unroll 1
      for (int col = 0; col < TILE; col += 32) {
        float sum[16];
        const uint32_t first = shared_address(at_stage(stage)) + 2 * col, second = shared_address(at_stage(next)) + 2 * col;
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTHS; ++k) {
          if (k == 0) wgmma_of_registers<false>(sum, negative[k], operand(first));
          else wgmma_of_registers(sum, negative[k], operand(first + 16 * BLOCK_LINE * k));
        }
#pragma unroll
        for (int k = 0; k < DEPTHS; ++k) wgmma_of_registers(sum, positive[k], operand(second + 16 * BLOCK_LINE * k));
        wgmma_commit();
        wgmma_wait<0>();
        summed(sum);
        if (col > 0) release(stage), release(next);
        else parities.wait(full, of_subtile);
        const uint4 no_words[2][2] = {};
        auto step = [&](auto decay) { subtile.template step<32>(sum, 0, no_words, row, col, pair_at, 1.f, decay); };
        if (n.l1 != 0.f) step([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
        else step([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
      }
      stage = next_stage(next, PASSING);
      shared_fence();
      barrier_arrive(stepped_all + group);
    }
    // Odd subtiles of the other warpgroups had their stages, too.
    if (count / 2 % 2 == 1) parities.bits ^= (((1u << WGS) - 1) ^ 1u << group) << PASSING;
  });
}

#define PATCH_LAST_STEP(WGS)                                                                                               \
  extern "C" __global__ void __launch_bounds__(128 * WGS + 128, 1)                                                         \
  patch_last_step_##WGS(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,                  \
                        const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map,      \
                        const __grid_constant__ TensorMap copy_map, float* hidden_state, const float* scalars,             \
                        const __grid_constant__ Numbers n, const __grid_constant__ Grid g) {                               \
    last_step<WGS>(h_map, x_map, weight_map, velocity_map, copy_map, hidden_state, scalars, n, g);                         \
  }
PATCH_LAST_STEP(2)
PATCH_LAST_STEP(3)
