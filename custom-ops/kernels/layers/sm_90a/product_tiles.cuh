// sm_90a/product_tiles.cuh: tiles of products of 16-bit numbers, one after the other in a block, by
// the products of warpgroups of capability 9.0.
//
// Operands, ring and warpgroups are those of product_tile.cuh. The sums stay in registers for the
// finish, so that the ring is never used for them: k-blocks of the next tile arrive while a tile is
// finished.
#pragma once

#include "layers/sm_90a/product_tile.cuh"

// `tiles` tiles of `count` k-blocks each. One thread calls copy(tile, k-block, to, here) for each
// k-block in turn, which starts copies of H::BYTES; the threads that multiply call finish(tile,
// sum) with the sums of a tile as products leave them. b is K-major. All have waited for the launch
// before.
template <typename H, typename Copy, typename Finish>
__device__ __forceinline__ void sum_tiles(int tiles, int count, Copy copy, Finish finish) {
  // The sums of three warpgroups leave too few of a quarter of all registers.
  constexpr bool UNEVEN = H::WGS == 3 && H::TN > 128;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::STAGES], empty[H::STAGES];
  unsigned char* k_blocks = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < H::STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, H::WGS);
    barriers_made();
  }
  __syncthreads();
  wait_for_previous();
  launch_dependents();

  Stage<H::STAGES> stage;
  if (warp >= 4 * H::WGS) {
    if (UNEVEN) give_registers<56>();
    if (warp != 4 * H::WGS || lane != 0) return;
#pragma unroll 1
    for (int i = 0; i < tiles; ++i)
#pragma unroll 1
      for (int s = 0; s < count; ++s, stage.next()) {
        uint64_t* here = announce(full, empty, stage, H::BYTES);
        copy(i, s, k_blocks + stage.at * H::BYTES, here);
      }
    return;  // all copies are waited for by others
  }
  if (UNEVEN) take_registers<152>();
  const Barriers here(full), used(empty);
  const Operands<H> operands(k_blocks);
  auto release = [&](int stage) {
    if (threadIdx.x % 128 == 0) used.arrive(stage);
  };
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    float sum[H::TN / 2] = {};
    int last_stage = 0;
#pragma unroll 1
    for (int s = 0; s < count; ++s, stage.next()) {
      here.wait(stage.at, stage.parity);
      wgmma_fence();
      Products<H>::template run<true>(sum, operands.a(stage.at, H::BYTES), operands.b(stage.at, H::BYTES));
      wgmma_commit();
      // The products of the k-block before are done: its stage is free.
      wgmma_wait<1>();
      if (s > 0) release(last_stage);
      last_stage = stage.at;
    }
    wgmma_wait<0>();
    summed(sum);
    release(last_stage);
    finish(i, sum);
  }
}
