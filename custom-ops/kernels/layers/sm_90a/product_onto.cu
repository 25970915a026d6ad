// sm_90a/product_onto.cu: the product of two matrices of bf16 numbers, added to a multiple of a
// matrix, for large results of short sums on capability 9.0: what is added comes while the sums are
// made.
//
//   c = a' b + beta onto
//
// arrays   a: [depth, rows] and b: [depth, cols] bf16, as tensor maps of twice 64 columns by 64 rows;
//          onto and c: [rows, cols] f32, as tensor maps of 32 columns by 64 rows, which may be the
//          same
// scalars  cols a multiple of 4; lines of a and b multiples of 8; arrays begin on 16 bytes. subtiles:
//          how many have room, 2 to 4
// launch   1-D grid of at most as many blocks as there are tiles of 128 x 128, one for each
//          multiprocessor; 384 threads
// shared   the subtiles and the ring of a PingPong, and 1 KB to align them
// cost     2 depth rows cols FLOP; 8 bytes an entry of c; operands once for each tile, from the
//          second-level cache
// NaN      propagates
// same     sums in one order on one device
// truth    gemm_reference in src/layers/gemm/mod.rs

#include "layers/sm_90a/cd_subtile.cuh"
#include "layers/sm_90a/pingpong.cuh"

// Subtiles of TILE x TILE entries, where what is added becomes the result.
struct OntoMaps {
  static constexpr int LINE = BLOCK_LINE / sizeof(float), BLOCK = TILE * BLOCK_LINE, BYTES = TILE / LINE * BLOCK, READ = BYTES;
  using At = unsigned char*;
  const TensorMap &onto, &result;

  static __device__ At at(unsigned char* stage) { return stage; }
  __device__ void prefetch(int row0, int col0) const {
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) prefetch_block(&onto, col0 + LINE * c, row0);
  }
  __device__ void load(At to, int row0, int col0, uint64_t* here) const {
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) copy_block(to + c * BLOCK, &onto, col0 + LINE * c, row0, here);
  }
  __device__ void store(At from, int row0, int col0) const {
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) store_block(&result, col0 + LINE * c, row0, from + c * BLOCK);
  }
};

extern "C" __global__ void __launch_bounds__(384, 1)
product_onto_bf16(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const __grid_constant__ TensorMap onto_map,
                  const __grid_constant__ TensorMap c_map, float beta, int rows, int cols, int depth, int subtiles) {
  const OntoMaps maps{onto_map, c_map};
  step_in_turns<PingPong<__nv_bfloat16, OntoMaps, TILE, TILE>>(a_map, b_map, maps, rows, cols, depth, 1, subtiles, [&] {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, pair_at = threadIdx.x % 4 * 2;
    return [=](unsigned char* at, int, int, const float(&sum)[TILE], int first, auto wait) {
      wait();
#pragma unroll
      for (int from = 0; from < TILE / 8; from += 2) {
        // Four pairs are read before the first is written.
        float2 x[4];
        auto each = [&](auto of) {
#pragma unroll
          for (int i = 0; i < 4; ++i) of(x[i], two(entry<float>(at, row + i % 2 * 8, 8 * (from + i / 2) + pair_at)));
        };
        each([](float2& x, const float2& of) { x = of; });
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* g = sum + first + (from + i / 2) * 4 + i % 2 * 2;
          x[i].x = g[0] + beta * x[i].x, x[i].y = g[1] + beta * x[i].y;
        }
        each([](const float2& x, float2& of) { of = x; });
      }
    };
  });
}
