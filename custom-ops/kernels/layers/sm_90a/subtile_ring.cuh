// sm_90a/subtile_ring.cuh: subtiles of parameters that come from memory into stages of shared memory,
// are stepped there and go out again.
#pragma once

#include "core/sm_90a/wgmma.cuh"

// STAGES of them, one subtile after the other, each by its number from 0 on. Memory moves in both
// directions all the time: one thread calls copy_in for each of them, another copy_out, and the
// threads of a warpgroup, all of them, `arrived` before they step one and `stepped` after. Maps: where
// they lie in memory and in a stage of BYTES, of which READ are read; see SubtileMaps.
template <typename Maps, int STAGES_>
struct SubtileRing {
  static constexpr int STAGES = STAGES_, BYTES = Maps::BYTES;
  struct Barriers {
    uint64_t here[STAGES], done[STAGES], free[STAGES];
  };
  Barriers& barriers;
  unsigned char* memory;
  const Maps& maps;

  // One thread, before the block is synchronised.
  __device__ void init() const {
    for (int s = 0; s < STAGES; ++s) barrier_init(barriers.here + s, 1), barrier_init(barriers.done + s, 128), barrier_init(barriers.free + s, 1);
  }
  __device__ auto at(int subtile) const { return Maps::at(memory + subtile % STAGES * BYTES); }
  __device__ void copy_in(int subtile, int row0, int col0) const {
    const int stage = subtile % STAGES, round = subtile / STAGES;
    if (round > 0) barrier_wait(barriers.free + stage, (round - 1) % 2);
    barrier_expect(barriers.here + stage, Maps::READ);
    maps.load(at(subtile), row0, col0, barriers.here + stage);
  }
  // store_wait follows the last one.
  __device__ void copy_out(int subtile, int row0, int col0) const {
    const int stage = subtile % STAGES;
    barrier_wait(barriers.done + stage, subtile / STAGES % 2);
    maps.store(at(subtile), row0, col0);
    store_commit();
    store_wait_read();
    barrier_arrive(barriers.free + stage);
  }
  // The subtile before it in this stage may be another warpgroup's that is still to be stepped, from
  // which the parity of `here` does not tell it; the one before that has been.
  __device__ void arrived(int subtile, bool of_another) const {
    const int stage = subtile % STAGES, round = subtile / STAGES;
    if (of_another && round > 0) barrier_wait(barriers.done + stage, (round - 1) % 2);
    barrier_wait(barriers.here + stage, round % 2);
  }
  __device__ void stepped(int subtile) const {
    shared_fence();
    barrier_arrive(barriers.done + subtile % STAGES);
  }
};
