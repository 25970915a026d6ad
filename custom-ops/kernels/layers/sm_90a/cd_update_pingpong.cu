// sm_90a/cd_update_pingpong.cu: the weights of one update of contrastive learning from a minibatch
// of any number of rows, for large matrices, by the products of warpgroups of capability 9.0. The
// formulas are those of cd_update.cu; its kernel cd_biases updates the biases and the counter.
//
// cd_update.cu beside this keeps the states of visible units in shared memory, which holds both
// phases of up to 256 rows. Here both sides pass through a ring; see pingpong.cuh.
//
// arrays   h: planes of [batch, rows] and x: of [batch, cols], T, as tensor maps of twice 64
//          columns by 64 rows, of two parts by 32 with the part as their last dimension; plane 0 is
//          of the negative phase, plane 1 of the positive. weight: [rows, cols] f32, bf16, or 16
//          bits that are lower halves; velocity: the same, V; copy: the same, T, in two parts where
//          the states are, rest the second; as tensor maps of 128 bytes by 64 rows, 64 bytes of
//          copies in two parts
// scalars  rows and cols multiples of 8. scalars: [3] f32 on the device: rate / batch, momentum,
//          rate. counter: [1] i64, read by cd_update_pingpong_rounded. subtiles: how many have
//          room, 2 to 4
// launch   1-D grid of at most as many blocks as there are tiles, one for each multiprocessor; 384
//          threads
// shared   the subtiles and the ring of a PingPong, and 1 KB to align them
// cost     4 batch rows cols FLOP, 12 of two parts; 16 bytes a weight (12 with V of 16 bits) and 2
//          for each part of the copy, 12 with halves, or 8 with bf16 weights; operands once for
//          each tile, from the second-level cache
// NaN      propagates
// same     sums in one order on one device
// truth    cd_update_reference in src/layers/cd_update/mod.rs, round_stochastic and rounding_bits
//          in src/layers/rounding.rs

#include "core/stepped.cuh"
#include "layers/cd_numbers.cuh"
#include "layers/sm_90a/narrow_subtile.cuh"
#include "layers/sm_90a/pingpong.cuh"

template <typename T, typename V, Stored STORED>
__device__ __forceinline__ void cd_update_pingpong(const TensorMap& h_map, const TensorMap& x_map, const TensorMap& weight_map,
                                                   const TensorMap& velocity_map, const TensorMap& copy_map, const float* scalars,
                                                   const long long* counter, const Numbers& n, const Rounding& rounding, int subtiles) {
  using Maps = SubtileMaps<T, V, STORED>;
  const Maps maps{weight_map, velocity_map, copy_map};
  step_in_turns<PingPong<T, Maps, TILE, TILE>>(h_map, x_map, maps, n.rows, n.cols, n.batch, 2, subtiles, [&] {
    const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
    const Philox draws = Maps::COPIED ? Philox{} : rounding_draws(rounding, counter);
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, pair_at = threadIdx.x % 4 * 2;
    return [=, &n](const typename Maps::At& at, int row0, int col0, const float(&sum)[TILE], int first, auto wait) {
      [[maybe_unused]] uint4 words[2][2];  // for four times two columns of a thread's two rows
      if constexpr (!Maps::COPIED) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int c = 0; c < 2; ++c) words[half][c] = philox_block(draws, rounding_block(row0 + row + 8 * half, col0 + 32 * c + pair_at, n.cols));
      }
      wait();
      auto step_all = [&](auto decay) { at.template step<TILE>(sum, first, words, row, 0, pair_at, n.scale, decay); };
      if (n.l1 != 0.f) step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
      else step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
    };
  });
}

#define CONTRAST_STEP(NAME, T, V, STORED)                                                                                              \
  extern "C" __global__ void __launch_bounds__(384, 1)                                                                                 \
  NAME(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, \
       const __grid_constant__ TensorMap velocity_map, const __grid_constant__ TensorMap copy_map, const float* scalars,               \
       const __grid_constant__ Numbers n, int subtiles) {                                                                              \
    cd_update_pingpong<T, V, STORED>(h_map, x_map, weight_map, velocity_map, copy_map, scalars, nullptr, n, Rounding{}, subtiles);     \
  }
CONTRAST_STEP(cd_update_pingpong_f16, __half, float, Stored::WHOLE)
CONTRAST_STEP(cd_update_pingpong_bf16, __nv_bfloat16, __nv_bfloat16, Stored::WHOLE)
CONTRAST_STEP(cd_update_pingpong_halves, __nv_bfloat16, __nv_bfloat16, Stored::HALVES)

// Of states and a copy in two parts.
extern "C" __global__ void __launch_bounds__(384, 1)
cd_update_pingpong_f16x2(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                         const __grid_constant__ TensorMap velocity_map, const __grid_constant__ TensorMap copy_map,
                         const __grid_constant__ TensorMap rest_map, const float* scalars, const __grid_constant__ Numbers n, int subtiles) {
  using Maps = NarrowMaps<2, 2>;
  const Maps maps{{&weight_map, &velocity_map}, {&copy_map, &rest_map}};
  step_in_turns<PingPong<__half, Maps, TILE, Maps::COLS, 2>>(h_map, x_map, maps, n.rows, n.cols, n.batch, 2, subtiles, [&] {
    const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
    return [=, &n](const Maps::At& at, int, int, const float(&sum)[TILE], int first, auto wait) {
      wait();
      at.step(sum, first, [&](float2(&of)[2], unsigned(&copy)[2], const float* g) {
        Subtile<__half, float, Stored::WHOLE>::step_two(of[0], of[1], copy[0], g, 0, n.scale, [&](float v, float w, float g) {
          return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2);
        });
        copy[1] = rest_of<__half>(make_float2(of[0].x * n.scale, of[0].y * n.scale), copy[0]);
      });
    };
  });
}

// Of bf16 weights, which have no copy.
extern "C" __global__ void __launch_bounds__(384, 1)
cd_update_pingpong_rounded(const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,
                           const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap velocity_map, const float* scalars,
                           const long long* counter, const __grid_constant__ Numbers n, const __grid_constant__ Rounding rounding, int subtiles) {
  cd_update_pingpong<__nv_bfloat16, __nv_bfloat16, Stored::ROUNDED>(h_map, x_map, weight_map, velocity_map, weight_map, scalars, counter, n,
                                                                    rounding, subtiles);
}
