// sm_90a/contrast_tiles.cuh: the tiles of weights that blocks of contrast_step.cu and contrast_step_parts.cu take, and the copies of the states that
// they multiply.
//
// The weights are those of the patches of a grid, or one matrix: that of a grid of one patch. The states of visible units stay in shared memory for
// tiles below each other; those of hidden units pass through a ring, slice after slice.
#pragma once

#include "../contrast_numbers.cuh"
#include "../patches.cuh"
#include "wgmma.cuh"

constexpr int TILE = 64;         // sides of a square of a tile
constexpr int SLICE_DEPTH = 64;  // rows of a slice
constexpr int SLICES = 6;        // of both phases, at most
constexpr int SLICE_BYTES = SLICE_DEPTH * BLOCK_LINE;  // of one part
constexpr int SHARED = 217 * 1024;  // beside which a block of contrast_biases fits

// A block's tiles, one after the other. What waits for memory takes every tile that is a multiple of the blocks further along the rows, so that all
// blocks together move over one stretch of memory: where each has a stretch of its own, memory is a tenth to a fifth slower (186 us against
// 156 for the weights of [256, 192, 576] and states of one part). What waits for products takes a stretch DOWN the columns, in which the states of
// visible units stay for longest. A tile is WIDE squares side by side.
template <bool PATCHES, bool DOWN, int WIDE = 1>
struct Walk {
  static constexpr int COLS = WIDE * TILE;
  const Grid& g;
  int rows, down, across;      // rows of a matrix, and its tiles
  int i = 0, groups = 0;       // how many tiles of this block were before, and how many groups, for which states stay
  int tile, end, step;

  __device__ Walk(const Numbers& n, const Grid& g)
      : g(g), rows(n.rows), down((n.rows + TILE - 1) / TILE), across((n.cols + COLS - 1) / COLS), step(DOWN ? 1 : gridDim.x) {
    const int all = (PATCHES ? g.patches() : 1) * down * across;
    tile = DOWN ? (int)((long long)all * blockIdx.x / gridDim.x) : blockIdx.x;
    end = DOWN ? (int)((long long)all * (blockIdx.x + 1) / gridDim.x) : all;
  }
  __device__ explicit operator bool() const { return tile < end; }
  __device__ void next() {
    const int group = group_of(tile);
    tile += step;
    ++i;
    groups += group_of(tile) != group;
  }
  __device__ bool last_of_group() const { return tile + step < end && group_of(tile + step) != group_of(tile); }  // and not the last of all
  __device__ int row0() const { return matrix(tile) * rows + row(tile) % down * TILE; }
  __device__ int col0() const { return col(tile) * COLS; }
  __device__ int x0() const { return PATCHES ? g.origin(matrix(tile)) + g.entry(col0()) : col0(); }  // where the columns of x begin in a row of it

 private:
  __device__ int row(int tile) const { return DOWN ? tile % down : tile / across; }  // of tiles, through all matrices
  __device__ int col(int tile) const { return DOWN ? tile / down : tile % across; }
  __device__ int matrix(int tile) const { return PATCHES ? row(tile) / down : 0; }
  __device__ int group_of(int tile) const { return matrix(tile) * across + col(tile); }
};

// States of both sides, as tensor maps of 64 columns by 64 rows, third dimension the plane and fourth, of two parts, the part. PARTS: of a number;
// ALTERNATE: slices of both planes take turns.
template <typename Turns, int PARTS, bool ALTERNATE>
struct States {
  static constexpr int STAYING = PARTS * Turns::COLS / TILE;  // blocks of a slice that stays
  const TensorMap& h_map;
  const TensorMap& x_map;
  const Numbers& n;
  const Grid& g;
  int of_phase;  // slices

  // Starts the copy of a part of slice s of one side.
  __device__ void copy_slice(unsigned char* to, const TensorMap& map, int along, int s, int part, uint64_t* here) const {
    const int plane = ALTERNATE ? s % 2 : s / of_phase, row = (ALTERNATE ? s / 2 : s % of_phase) * SLICE_DEPTH;
    if (PARTS == 1) copy_block(to, &map, along, row, plane, here);
    else copy_block(to, &map, along, row, plane, part, here);
  }

  // Copies the slices of x that stay, of every group of tiles, one thread: each slice as soon as the products of the group before no longer need
  // its place.
  __device__ void copy_staying(unsigned char* slices, uint64_t* here, uint64_t* free) const {
    int groups = -1;
#pragma unroll 1
    for (Turns turn(n, g); turn; turn.next()) {
      if (turn.groups == groups) continue;
      groups = turn.groups;
#pragma unroll 1
      for (int s = 0; s < 2 * of_phase; ++s) {
        if (groups > 0) barrier_wait(free + s, (groups - 1) % 2);
        barrier_expect(here + s, STAYING * SLICE_BYTES);
#pragma unroll
        for (int b = 0; b < STAYING; ++b)
          copy_slice(slices + (s * STAYING + b) * SLICE_BYTES, x_map, turn.x0() + b / PARTS * TILE, s, b % PARTS, here + s);
      }
    }
  }

  // Copies the slices of h that pass, of every tile, each part through the next of STAGES places, one thread.
  template <int STAGES>
  __device__ void copy_passing(unsigned char* slices, uint64_t* full, uint64_t* empty) const {
    int item = 0;
#pragma unroll 1
    for (Turns turn(n, g); turn; turn.next()) {
#pragma unroll 1
      for (int s = 0; s < 2 * of_phase; ++s)
#pragma unroll
        for (int p = 0; p < PARTS; ++p, ++item) {
          const int stage = item % STAGES;
          if (item >= STAGES) barrier_wait(empty + stage, (item / STAGES - 1) % 2);
          barrier_expect(full + stage, SLICE_BYTES);
          copy_slice(slices + stage * SLICE_BYTES, h_map, turn.row0(), s, p, full + stage);
        }
    }
  }
};
