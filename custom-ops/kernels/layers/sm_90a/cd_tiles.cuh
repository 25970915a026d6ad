// sm_90a/cd_tiles.cuh: the tiles of weights that blocks of cd_update.cu and
// patch_step_parts.cu take, and the copies of the states that they multiply.
//
// The weights are those of the patches of a grid, or one matrix: that of a grid of one patch. The
// states of visible units stay in shared memory for tiles below each other; those of hidden units
// pass through a ring, k-block after k-block.
#pragma once

#include "layers/cd_numbers.cuh"
#include "layers/phases.cuh"
#include "core/patches.cuh"
#include "layers/sm_90a/cd_subtile.cuh"

constexpr int K_BLOCK_DEPTH = 64;  // rows of a k-block
constexpr int K_BLOCK_BYTES = K_BLOCK_DEPTH * BLOCK_LINE;  // of one part

// A block's tiles, one after the other: runs of tiles below each other, for which the states of
// visible units stay. Runs have `height` tiles, each as many runs further along the rows as there
// are blocks, so that all blocks together move over one stretch of memory: with a stretch for each,
// memory is slower (NOTES.md). They begin with the last rows, which the products before have just
// read, and end with the first, which the products after read first. A tile is WIDE subtiles side
// by side. The positions are counted on: a division takes as long as a tile's products of some
// k-blocks.
template <bool PATCHES, int WIDE = 1>
struct Schedule {
  static constexpr int COLS = WIDE * TILE;
  const Grid& g;
  const int rows, cols, down, across, height, bands;  // rows and columns of a matrix, its tiles, tiles of a run, runs below each other
  int i = 0, runs = 0;         // tiles of this block before this one, and runs with other states of visible units
  int matrix, band, col, row;  // the run, and the tile of the run; matrices and runs below each other count from the last
  int left;                    // runs: this one and those to come
  int matrices_on, bands_on, cols_on;  // from a run of this block to its next

  __device__ Schedule(const Numbers& n, const Grid& g, int height)
      : g(g),
        rows(n.rows),
        cols(n.cols),
        down((n.rows + TILE - 1) / TILE),
        across((n.cols + COLS - 1) / COLS),
        height(height),
        bands((down + height - 1) / height) {
    const int all = (PATCHES ? g.patches() : 1) * bands * across, run = blockIdx.x, on = gridDim.x;
    row = 0;
    left = run < all ? (all - 1 - run) / on + 1 : 0;
    matrix = run / (bands * across), band = run / across % bands, col = run % across;
    matrices_on = on / (bands * across), bands_on = on / across % bands, cols_on = on % across;
  }
  __device__ explicit operator bool() const { return left > 0; }
  __device__ void next() {
    ++i;
    if (++row < height_here()) return;
    row = 0, runs += moves();
    --left;
    col += cols_on, band += bands_on, matrix += matrices_on;
    if (col >= across) col -= across, ++band;
    if (band >= bands) band -= bands, ++matrix;
  }
  // The last tile with these states of visible units, and not the last of all.
  __device__ bool last_of_run() const { return moves() && left > 1 && row + 1 == height_here(); }
  // Whether this tile, among those of its rows, is for what is done once for each row: columns take
  // turns, a power of two of them. Blocks that stay in a column take the tiles of the same rows as
  // their i-th, and the turns are counted by that, so that each block has as many.
  __device__ bool alone() const { return ((moves() ? row0() / TILE : i) & ((1 << (31 - __clz(across))) - 1)) == col; }
  __device__ int row0() const { return matrix_here() * rows + (band_here() * height + row) * TILE; }
  __device__ int col0() const { return col * COLS; }
  // Subtiles of the tile that begin within the matrix.
  __device__ int subtiles() const { return WIDE == 1 ? 1 : min(WIDE, (cols - col0() + TILE - 1) / TILE); }
  // Where the columns of x for a subtile begin in a row of it.
  __device__ int x0(int subtile) const {
    const int at = col0() + subtile * TILE;
    return PATCHES ? g.origin(matrix_here()) + g.entry(at) : at;
  }

 private:
  __device__ bool moves() const { return PATCHES || cols_on != 0; }  // to another column from run to run
  __device__ int matrix_here() const { return PATCHES ? g.patches() - 1 - matrix : 0; }
  __device__ int band_here() const { return bands - 1 - band; }
  __device__ int height_here() const { return min(height, down - band_here() * height); }
};

// States of both sides, as tensor maps of 64 columns by 64 rows, third dimension the plane and
// fourth, of two parts, the part. PARTS: of a number; ALTERNATE: k-blocks of both planes take
// turns.
template <typename Tiles, int PARTS, bool ALTERNATE>
struct States {
  static constexpr int STAYING = PARTS * Tiles::COLS / TILE;  // blocks of a k-block that stays
  const TensorMap& h_map;
  const TensorMap& x_map;
  const Numbers& n;
  const Grid& g;
  int of_phase;  // k-blocks
  int height;    // of a run of tiles

  __device__ int phase(int s) const { return ALTERNATE ? KBlockOfPhases(s).phase : s >= of_phase; }

  // Starts the copy of a part of k-block s of one side.
  __device__ void copy_k_block(unsigned char* to, const TensorMap& map, int along, int s, int part, uint64_t* here) const {
    const int plane = phase(s), row = (ALTERNATE ? KBlockOfPhases(s).index : s - plane * of_phase) * K_BLOCK_DEPTH;
    if (PARTS == 1) copy_block(to, &map, along, row, plane, here);
    else copy_block(to, &map, along, row, plane, part, here);
  }

  // Copies the k-blocks of x that stay, of every run of tiles, one thread: each k-block as soon as
  // the products of the run before no longer need its place.
  __device__ void copy_staying(unsigned char* k_blocks, uint64_t* here, uint64_t* free) const {
    int runs = -1;
#pragma unroll 1
    for (Tiles tile(n, g, height); tile; tile.next()) {
      if (tile.runs == runs) continue;
      runs = tile.runs;
      const int blocks = PARTS * tile.subtiles();
#pragma unroll 1
      for (int s = 0; s < 2 * of_phase; ++s) {
        if (runs > 0) barrier_wait(free + s, (runs - 1) % 2);
        barrier_expect(here + s, blocks * K_BLOCK_BYTES);
#pragma unroll
        for (int b = 0; b < STAYING; ++b)
          if (b < blocks) copy_k_block(k_blocks + (s * STAYING + b) * K_BLOCK_BYTES, x_map, tile.x0(b / PARTS), s, b % PARTS, here + s);
      }
    }
  }

  // Copies the k-blocks of h that pass, of every tile, each part through the next stage from
  // `stage` on, one thread.
  template <int STAGES>
  __device__ void copy_passing(unsigned char* k_blocks, uint64_t* full, uint64_t* empty, Stage<STAGES> stage) const {
#pragma unroll 1
    for (Tiles tile(n, g, height); tile; tile.next()) {
      const int row0 = tile.row0();
#pragma unroll 1
      for (int s = 0; s < 2 * of_phase; ++s)
#pragma unroll
        for (int p = 0; p < PARTS; ++p, stage.next()) {
          uint64_t* here = announce(full, empty, stage, K_BLOCK_BYTES);
          copy_k_block(k_blocks + stage.at * K_BLOCK_BYTES, h_map, row0, s, p, here);
        }
    }
  }
};
