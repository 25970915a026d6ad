// sm_90a/contrast_tiles.cuh: the tiles of weights that blocks of contrast_step.cu and contrast_step_parts.cu take, and the copies of the states that
// they multiply.
//
// The weights are those of the patches of a grid, or one matrix: that of a grid of one patch. One side of the states stays in shared memory for a
// group of tiles, and the other passes through a ring, slice after slice. Of one matrix, the states of visible units stay for a column of tiles:
// all blocks read those of hidden units, which stay in the second-level cache. Of patches, the states of hidden units stay for a row of tiles,
// since no other patch reads them; those of the grid pass, which windows share. (At [256, 192, 576] the other order read 717 MB in place of 349.)
#pragma once

#include "../contrast_numbers.cuh"
#include "../patches.cuh"
#include "wgmma.cuh"

constexpr int TILE = 64;         // its sides
constexpr int SLICE_DEPTH = 64;  // rows of a slice
constexpr int SLICES = 6;        // of both phases, at most
constexpr int SLICE_BYTES = SLICE_DEPTH * BLOCK_LINE;  // of one part
constexpr int SHARED = 217 * 1024;  // beside which a block of contrast_biases fits

// A block's tiles one after the other: down the columns of tiles of one matrix or, of PATCHES, along the rows, and from matrix to matrix, which lie
// below each other. A tile is WIDE squares side by side.
template <bool PATCHES, int WIDE = 1>
struct Tiles {
  static_assert(WIDE == 1 || !PATCHES, "a window lies in squares");
  const Grid& g;
  int rows, down, across, first, mine;

  __device__ Tiles(const Numbers& n, const Grid& g)
      : g(g), rows(n.rows), down((n.rows + TILE - 1) / TILE), across((n.cols + WIDE * TILE - 1) / (WIDE * TILE)) {
    const long long all = (PATCHES ? g.patches() : 1LL) * across * down;
    first = all * blockIdx.x / gridDim.x;
    mine = all * (blockIdx.x + 1) / gridDim.x - first;
  }
  __device__ int group(int i) const { return (first + i) / (PATCHES ? across : down); }  // rows, counted through all matrices, or columns
  __device__ int within(int i) const { return (first + i) % (PATCHES ? across : down); }
  __device__ int row0(int i) const { return PATCHES ? group(i) / down * rows + group(i) % down * TILE : within(i) * TILE; }
  __device__ int col0(int i) const { return (PATCHES ? within(i) : group(i)) * WIDE * TILE; }
  __device__ int x0(int i) const {  // where the columns of x begin in a row of its states
    return PATCHES ? g.origin(group(i) / down) + g.entry(col0(i)) : col0(i);
  }
  __device__ bool first_of_group(int i) const { return i == 0 || group(i) != group(i - 1); }
  __device__ bool last_of_group(int i) const { return i + 1 < mine && group(i + 1) != group(i); }  // and not the last of all
};

// States of both sides, as tensor maps of 64 columns by 64 rows, third dimension the plane and fourth, of two parts, the part. PARTS: of a number;
// ALTERNATE: slices of both planes take turns.
template <int PARTS, bool ALTERNATE, bool PATCHES, int WIDE = 1>
struct States {
  const TensorMap& h_map;
  const TensorMap& x_map;
  const Tiles<PATCHES, WIDE>& tiles;
  int of_phase;  // slices

  // Starts the copy of a part of slice s of one side.
  __device__ void copy_slice(unsigned char* to, bool of_h, int along, int s, int part, uint64_t* here) const {
    const TensorMap* map = of_h ? &h_map : &x_map;
    const int plane = ALTERNATE ? s % 2 : s / of_phase, row = (ALTERNATE ? s / 2 : s % of_phase) * SLICE_DEPTH;
    if (PARTS == 1) copy_block(to, map, along, row, plane, here);
    else copy_block(to, map, along, row, plane, part, here);
  }

  // Copies the slices that stay, of every group of tiles, one thread: each slice as soon as the products of the group before no longer need its
  // place.
  __device__ void copy_staying(unsigned char* slices, uint64_t* here, uint64_t* free) const {
    int groups = 0;
#pragma unroll 1
    for (int i = 0; i < tiles.mine; ++i) {
      if (!tiles.first_of_group(i)) continue;
      const int along = PATCHES ? tiles.row0(i) : tiles.x0(i);
#pragma unroll 1
      for (int s = 0; s < 2 * of_phase; ++s) {
        if (groups > 0) barrier_wait(free + s, (groups - 1) % 2);
        barrier_expect(here + s, PARTS * WIDE * SLICE_BYTES);
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
          for (int w = 0; w < WIDE; ++w)
            copy_slice(slices + ((s * PARTS + p) * WIDE + w) * SLICE_BYTES, PATCHES, along + w * TILE, s, p, here + s);
      }
      ++groups;
    }
  }

  // Copies the slices that pass, of every tile, each part through the next of STAGES places, one thread.
  template <int STAGES>
  __device__ void copy_passing(unsigned char* slices, uint64_t* full, uint64_t* empty) const {
    int item = 0;
#pragma unroll 1
    for (int i = 0; i < tiles.mine; ++i) {
      const int along = PATCHES ? tiles.x0(i) : tiles.row0(i);
#pragma unroll 1
      for (int s = 0; s < 2 * of_phase; ++s)
#pragma unroll
        for (int p = 0; p < PARTS; ++p, ++item) {
          const int stage = item % STAGES;
          if (item >= STAGES) barrier_wait(empty + stage, (item / STAGES - 1) % 2);
          barrier_expect(full + stage, SLICE_BYTES);
          copy_slice(slices + stage * SLICE_BYTES, !PATCHES, along, s, p, full + stage);
        }
    }
  }
};
