// sm_90a/patch_last_step.cu: the last means of hidden units and the update of the weights of patches from them, in one launch, for bf16 states and weights
// in halves: patch_step_halves of contrast_step.cu, for which these means need not be written, nor the weights read for them.
//
//   h[0] = -sigmoid(W x[0] + b)    of the negative phase, rounded to bf16    then the update of contrast_step.cu from h and x
//
// A block takes tiles of WGS times 64 hidden units of a patch and all its weights, a warpgroup for each 64 units. First it sums W x[0]: slices of 64
// entries of the window, of x and of the upper halves of W, come through a ring of places. The sums of a warpgroup, 64 units by rows of the minibatch, are
// then rounded to means that stay in its registers as the first operand of the products of the gradient, h x^T, and so does h[1]. Slices of both phases of x
// follow, and squares of 64 x 64 weights: their lower and upper halves and velocities, which a warp carries in and out for each warpgroup, two in turn.
//
// Memory binds: while weights are stepped it moves 4.3 TB/s on an H200. That is as much as means and update one after the other move, since the second-level
// cache has lost the upper halves when they are read again; but the means do not wait for a launch of their own. Microseconds there, of weights
// [256, 192, 576] and [484, 192, 576] and 192 rows, before squares were read by ldmatrix: 133 and 257, where the two kernels took 142 and 270.
//
// arrays   h, x, weight, velocity, copy: tensor maps as in contrast_step.cu of patches, but for blocks of LINES rows for h and x; h[0] is not read.
//          hidden_state: [4, all rows] f32, see bias_step.cu: biases, also those of the means
// scalars  those of contrast_step.cu; rows a multiple of 64 WGS, cols of 64, batch at most LINES
// launch   1-D grid of at most as many blocks as tiles, one for each multiprocessor; 128 WGS + 128 threads
// shared   PASSING + 2 WGS places, and 1 KB to align them
// cost     6 batch rows cols FLOP; 14 bytes a weight; x three times for each tile, h[1] once
// NaN      propagates
// same     sums in one order on one device; those of the biases are not rounded after each row as on the CPU
// truth    units_of_patches_ and then patch_contrast_step_, see src/patches/last_step.rs

#include "layers/contrast_numbers.cuh"
#include "core/order.cuh"
#include "core/patches.cuh"
#include "core/stepped.cuh"
#include "layers/units.cuh"
#include "layers/sm_90a/contrast_square.cuh"

constexpr int LINES = 192;  // rows of a minibatch, at most
constexpr int PASSING = 3;  // places of the ring where nothing stays
constexpr int PLACE_BYTES = LINES * BLOCK_LINE;
constexpr int BLOCK_BYTES = TILE * BLOCK_LINE;

// The parities for which places are waited for, a bit for each.
struct Parities {
  unsigned bits;
  __device__ void wait(uint64_t* barriers, int place) {
    barrier_wait(barriers + place, bits >> place & 1);
    bits ^= 1u << place;
  }
};

// The place behind another in a ring.
__device__ __forceinline__ int behind(int place, int ring) { return place + 1 == ring ? 0 : place + 1; }

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
  // Places: some for x alone; one for each warpgroup, for squares alone; and one for each for both.
  constexpr int PLACES = PASSING + 2 * WGS, RING = PASSING + WGS, DEPTHS = LINES / 16;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[PLACES], empty[PLACES], stepped_all[WGS], risen;
  unsigned char* places = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;
  const int of_patch = n.rows / (TILE * WGS), tiles = g.patches() * of_patch, count = n.cols / TILE;

  if (threadIdx.x == 0) {
    for (int p = 0; p < PLACES; ++p) barrier_init(full + p, 1), barrier_init(empty + p, WGS);
    for (int w = 0; w < WGS; ++w) barrier_init(stepped_all + w, 128);
    barrier_init(&risen, WGS);
    barriers_made();
  }
  __syncthreads();

  auto at_place = [&](int place) { return places + place * PLACE_BYTES; };
  auto place_of_square = [&](int w, int s) { return PASSING + (s % 2 == 0 ? WGS : 0) + w; };
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
    auto expect = [&](int place, int bytes) {
      parities.wait(empty, place);
      barrier_expect(full + place, bytes);
      return at_place(place);
    };
    if (carried < 0) {
      wait_for_previous();
      each_tile([&](int row0, int patch) {
        const int origin = g.origin(patch);
#pragma unroll 1
        for (int s = 0, place = 0; s < count; ++s) {
          copy_block(expect(place, PLACE_BYTES), &x_map, origin + g.entry(s * TILE), 0, 0, full + place);
          place = behind(place, RING);
          unsigned char* at = expect(place, WGS * BLOCK_BYTES);
#pragma unroll
          for (int w = 0; w < WGS; ++w) copy_block(at + w * BLOCK_BYTES, &copy_map, s * TILE, row0 + w * TILE, full + place);
          place = behind(place, RING);
        }
#pragma unroll
        for (int w = 0; w < WGS; ++w) copy_block(expect(PASSING + w, PLACE_BYTES), &h_map, row0 + w * TILE, 0, 1, full + PASSING + w);
#pragma unroll 1
        for (int s = 0, place = 0; s < count; ++s) {
          const int along = origin + g.entry(s * TILE);
#pragma unroll
          for (int phase = 0; phase < 2; ++phase) {
            copy_block(expect(place, PLACE_BYTES), &x_map, along, 0, phase, full + place);
            place = behind(place, PASSING);
          }
        }
        // Odd squares had the other places of this ring.
        if (count / 2 % 2 == 1) parities.bits ^= ((1u << WGS) - 1) << PASSING;
      });
    } else if (carried < WGS) {
      // Uses of the place of odd squares for the products before, in a tile.
      const int in_ring = PASSING + carried, before = (2 * count - in_ring + RING - 1) / RING + 1;
      auto load = [&](int row, int s) {
        const int place = place_of_square(carried, s);
        unsigned char* square = expect(place, 3 * BLOCK_BYTES);
        copy_block(square, &weight_map, s * TILE, row, full + place);
        copy_block(square + BLOCK_BYTES, &velocity_map, s * TILE, row, full + place);
        copy_block(square + 2 * BLOCK_BYTES, &copy_map, s * TILE, row, full + place);
      };
      // The first square comes into the second-level cache while the launch before still runs.
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
        // Until the slices before have left the other place.
        barrier_wait(&risen, of_tile);
        of_tile ^= 1;
        if (before % 2 == 1) parities.bits ^= 1u << in_ring;
#pragma unroll 1
        for (int s = 0; s < count; ++s, parity ^= 1) {
          if (s + 1 < count) load(row, s + 1);
          const int place = place_of_square(carried, s);
          barrier_wait(stepped_all + carried, parity);
          const unsigned char* square = at_place(place);
          store_block(&weight_map, s * TILE, row, square);
          store_block(&velocity_map, s * TILE, row, square + BLOCK_BYTES);
          store_block(&copy_map, s * TILE, row, square + 2 * BLOCK_BYTES);
          store_commit();
          store_wait_read();
          barrier_arrive(empty + place, WGS);
        }
      });
      store_wait();
    }
    return;
  }
  take_registers<(WGS == 3 ? 160 : 232)>();

  wait_for_previous();
  let_next_start();
  const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
  const int group = warp / 4, row = 16 * (warp % 4) + lane / 4, pair_at = lane % 4 * 2;
  Parities parities{0};
  auto release = [&](int place) {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + place);
  };
  each_tile([&](int row0, int) {
    const unsigned unit = row0 + group * TILE + row, units = g.units();
    const BiasBefore before[2] = {{hidden_state, n.hidden, units, unit}, {hidden_state, n.hidden, units, unit + 8}};
    unsigned negative[DEPTHS][4], positive[DEPTHS][4];  // h of both phases, as products take it
    float of_negative[2] = {}, of_positive[2] = {};
    {
      float sum[LINES / 2];
#pragma unroll
      for (int e = 0; e < LINES / 2; ++e) sum[e] = 0.f;
      int last = 0;  // place of x
#pragma unroll 1
      for (int s = 0; s < count; ++s) {
        const int place = s == 0 ? 0 : behind(behind(last, RING), RING), of_weights = behind(place, RING);
        parities.wait(full, place);
        parities.wait(full, of_weights);
        const uint32_t x = shared_address(at_place(place)), w = shared_address(at_place(of_weights) + group * BLOCK_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) Wgmma<T, LINES, false, false>::run(sum, operand(w + 32 * k), operand(x + 32 * k));
        wgmma_commit();
        wgmma_wait<1>();
        if (s > 0) release(last), release(behind(last, RING));
        last = place;
      }
      wgmma_wait<0>();
      summed(sum);
      release(last), release(behind(last, RING));
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
    // Rows of the minibatch by units; a lane names eight units of a row, of 16 rows and the 16 units of this warp.
    unsigned char* h = at_place(PASSING + group);
    const int of_batch = lane / 16 * 8 + lane % 8, of_units = warp % 4 * 16 + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < DEPTHS; ++k) {
      turned(positive[k], entry<T>(h, 16 * k + of_batch, of_units));
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
      of_negative[half] += (LINES - n.batch) * wide(narrow<T>(quick_sigmoid(before[half].bias)));
      if (lane % 4 == 0)
        apply_bias(hidden_state, before[half], of_positive[half], of_negative[half], 0.f, momentum, rate, nullptr, n.hidden, n.batch, units,
                   unit + 8 * half);
    }

#pragma unroll 1
    for (int s = 0, place = 0; s < count; ++s) {
      const int next = behind(place, PASSING), of_square = place_of_square(group, s);
      unsigned char* lies = at_place(of_square);
      const Square<T, T, Stored::HALVES> square{lies, lies + BLOCK_BYTES, lies + 2 * BLOCK_BYTES};
      parities.wait(full, place);
      parities.wait(full, next);
#pragma unroll 1
      for (int col = 0; col < TILE; col += 32) {
        float sum[16];
        const uint32_t first = shared_address(at_place(place)) + 2 * col, second = shared_address(at_place(next)) + 2 * col;
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
        if (col > 0) release(place), release(next);
        else parities.wait(full, of_square);
        const uint4 no_words[2][2] = {};
        auto step = [&](auto decay) { square.template step<32>(sum, 0, no_words, row, col, pair_at, 1.f, decay); };
        if (n.l1 != 0.f) step([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
        else step([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
      }
      place = behind(next, PASSING);
      shared_fence();
      barrier_arrive(stepped_all + group);
    }
    // Odd squares of the other warpgroups had their places, too.
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
