// sm_90a/subtile_ring.cuh: subtiles of parameters that come from memory into stages of shared memory,
// are stepped there and go out again.
#pragma once

#include "core/sm_90a/wgmma.cuh"

// At most MOST of them, one subtile after the other, each by its number from 0 on. Memory moves in
// both directions all the time: one thread calls copy_in for each of them, another copy_out, and the
// threads of a warpgroup, all of them, `arrived` before they step one and `stepped` after. Maps: where
// they lie in memory and in a stage of BYTES, of which READ are read; see SubtileMaps.
template <typename Maps, int MOST>
struct SubtileRing {
  static constexpr int BYTES = Maps::BYTES;
  struct Barriers {
    uint64_t here[MOST], done[MOST], free[MOST];
  };
  Barriers& barriers;
  unsigned char* memory;
  const Maps& maps;
  int stages = MOST;

  // Where a subtile is, by its number, and the next one.
  struct Place {
    int stage, round;
  };
  __device__ Place place(int subtile) const { return {subtile % stages, subtile / stages}; }
  __device__ void next(Place& of) const {
    if (++of.stage == stages) of.stage = 0, ++of.round;
  }

  // One thread, before the block is synchronised.
  __device__ void init() const {
    for (int s = 0; s < stages; ++s) barrier_init(barriers.here + s, 1), barrier_init(barriers.done + s, 128), barrier_init(barriers.free + s, 1);
  }
  __device__ auto at(const Place& of) const { return Maps::at(memory + of.stage * BYTES); }
  __device__ void copy_in(const Place& of, int row0, int col0) const {
    if (of.round > 0) barrier_wait(barriers.free + of.stage, (of.round - 1) % 2);
    barrier_expect(barriers.here + of.stage, Maps::READ);
    maps.load(at(of), row0, col0, barriers.here + of.stage);
  }
  // store_wait follows the last one.
  __device__ void copy_out(const Place& of, int row0, int col0) const {
    barrier_wait(barriers.done + of.stage, of.round % 2);
    maps.store(at(of), row0, col0);
    store_commit();
    store_wait_read();
    barrier_arrive(barriers.free + of.stage);
  }
  // The subtile before it in this stage may be another warpgroup's that is still to be stepped, from
  // which the parity of `here` does not tell it; the one before that has been.
  __device__ void arrived(const Place& of, bool of_another) const {
    if (of_another && of.round > 0) barrier_wait(barriers.done + of.stage, (of.round - 1) % 2);
    barrier_wait(barriers.here + of.stage, of.round % 2);
  }
  __device__ void stepped(const Place& of) const {
    shared_fence();
    barrier_arrive(barriers.done + of.stage);
  }
};
