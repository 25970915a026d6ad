// sm_90a/product_tiles.cuh: tiles of products of 16-bit numbers, one after the other in a block, by the products of warpgroups of capability 9.0.
//
// Operands, ring and warpgroups are those of product_tile.cuh. The sums stay in registers for the finish, so that the ring is never used for them:
// slices of the next tile arrive while a tile is finished.
#pragma once

#include "product_tile.cuh"

// `tiles` tiles of `count` slices each. One thread calls copy(tile, slice, to, here) for each slice in turn, which starts copies of H::BYTES; the
// threads that multiply call finish(tile, sum) with the sums of a tile as products leave them. b is straight. All have waited for the launch before.
template <typename H, typename Copy, typename Finish>
__device__ __forceinline__ void sum_tiles(int tiles, int count, Copy copy, Finish finish) {
  // The sums of three warpgroups leave too few of a quarter of all registers.
  constexpr bool UNEVEN = H::WGS == 3 && H::TN > 128;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::STAGES], empty[H::STAGES];
  unsigned char* slices = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < H::STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, H::WGS);
    barriers_made();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();

  int item = 0;
  if (warp >= 4 * H::WGS) {
    if (UNEVEN) give_registers<56>();
    if (warp != 4 * H::WGS || lane != 0) return;
#pragma unroll 1
    for (int i = 0; i < tiles; ++i)
#pragma unroll 1
      for (int s = 0; s < count; ++s, ++item) {
        const int stage = item % H::STAGES;
        if (item >= H::STAGES) barrier_wait(empty + stage, (item / H::STAGES - 1) % 2);
        barrier_expect(full + stage, H::BYTES);
        copy(i, s, slices + stage * H::BYTES, full + stage);
      }
    return;  // all copies are waited for by others
  }
  if (UNEVEN) take_registers<152>();
  const uint32_t group = warp / 4 * 64 * H::LINE;
  auto release = [&](int item) {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + item % H::STAGES);
  };
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    float sum[H::TN / 2] = {};
#pragma unroll 1
    for (int s = 0; s < count; ++s, ++item) {
      const int stage = item % H::STAGES;
      barrier_wait(full + stage, item / H::STAGES % 2);
      const uint32_t a = shared_address(slices + stage * H::BYTES) + group, b = a - group + H::A_BYTES;
      wgmma_fence();
      multiply_slice<H, 0, 1, true>(sum, a, b);
      wgmma_commit();
      // The products of the slice before are done: its place is free.
      wgmma_wait<1>();
      if (s > 0) release(item - 1);
    }
    wgmma_wait<0>();
    summed(sum);
    release(item - 1);
    finish(i, sum);
  }
}
