// cd_update.cuh: the tile of an update of contrastive learning, for cd_update.cu, which has
// the formulas, and patch_step.cu.
//
// The operands of patches lie in windows of a grid: `At` says where those of a matrix begin.
#pragma once

#include "core/order.cuh"
#include "layers/cd_numbers.cuh"
#include "layers/phases.cuh"
#include "layers/rounding.cuh"
#include "core/stepped.cuh"
#include "core/tiles.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;

// TILE_M x TILE_N of the weights in WARPS_M x WARPS_N parts, each for WARPS_K warps that share a
// k-block's depth. CHUNK 16-bit entries are copied at once.
template <int TILE_M_, int TILE_N_, int WARPS_M_, int WARPS_N_, int PARTS_, int STAGES_, int CHUNK_>
struct Shape {
  static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, WARPS_K = WARPS / (WARPS_M * WARPS_N);
  static constexpr int PARTS = PARTS_, STAGES = STAGES_, CHUNK = CHUNK_;
  static constexpr int M = TILE_M / WARPS_M, N = TILE_N / WARPS_N;
  static constexpr int H_LINE = TILE_M + PAD, H_K_BLOCK = DEPTH * H_LINE;  // of one part
  static constexpr int LINE = TILE_N + PAD, K_BLOCK = DEPTH * LINE;
  static constexpr int SHARED = PARTS * STAGES * (H_K_BLOCK + K_BLOCK) * 2;
  static_assert(DEPTH % (16 * WARPS_K) == 0, "each group of warps has whole steps");
  static_assert(TILE_M * LINE * sizeof(float) <= SHARED, "the tile of g takes the place of the k_blocks");
  static_assert(BIAS_FLOATS * sizeof(float) <= SHARED, "and so do the sums of the biases");
};

// Where the operands of a matrix of weights lie: all units of both sides, one matrix.
struct Whole {
  int rows, cols;
  __device__ size_t h_line() const { return rows; }        // entries of a row of h, and where those of this matrix begin
  __device__ size_t h_start() const { return 0; }
  __device__ size_t x_line() const { return cols; }
  // Where this thread's entries lie in a row of x, for the copies of columns from `first` on: not
  // asked here.
  template <typename S> __device__ long long x_at(int) const { return 0; }
  // Starts the copy of DEPTH rows of x from row0 on.
  template <typename S, typename T>
  __device__ void fetch_x(T* k_block, const T* x, int row0, int batch, int first, long long) const {
    fetch<S::CHUNK, DEPTH, S::TILE_N, S::LINE, THREADS>(k_block, x, cols, row0, batch, first, cols);
  }
};

// Starts the copy of k-block `s` of both operands.
template <typename S, typename T, typename At>
__device__ void fetch_k_block(T* h_k_block, T* x_k_block, const T* h, const T* x, size_t h_part, size_t x_part, int s, int batch, const At& at,
                            int first_row, int first_col, long long x_at) {
  const KBlockOfPhases k_block(s);
  const size_t before = (size_t)k_block.phase * batch;
  const int row0 = k_block.index * DEPTH;
#pragma unroll
  for (int p = 0; p < S::PARTS; ++p) {
    fetch<S::CHUNK, DEPTH, S::TILE_M, S::H_LINE, THREADS>(h_k_block + p * S::H_K_BLOCK, h + p * h_part + before * at.h_line() + at.h_start(),
                                                      at.h_line(), row0, batch, first_row, at.rows);
    at.template fetch_x<S>(x_k_block + p * S::K_BLOCK, x + p * x_part + before * at.x_line(), row0, batch, first_col, x_at);
  }
}

// W: the type of the weights. If bf16, they are what products read, without a copy, and are rounded
// stochastically; the counter then stays as it is: blocks that begin late read it too.
template <typename T, typename V, typename W = float>
struct Arguments {
  W* weight;
  V* velocity;
  const T* h;
  const T* x;
  T* copy;
  float* hidden_state;
  float* visible_state;
  const float* scalars;
  long long* counter;
  Rounding rounding;
};

// One matrix of weights, or those of `patches` patches with `hidden` and `visible` units in all.
// At: see Whole.
template <typename S, typename T, typename V, typename W, typename At>
__device__ void cd_update(const Arguments<T, V, W>& a, const Numbers& n, int patches, int hidden_units, int visible_units, At where) {
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr bool MASTERS = sizeof(W) == 4;
  const int across = (n.cols + S::TILE_N - 1) / S::TILE_N, tiles = (n.rows + S::TILE_M - 1) / S::TILE_M * across;
  if (blockIdx.x >= (unsigned)(tiles * patches)) {
    wait_for_previous();
    const int of_hidden = (hidden_units + BIAS_UNITS - 1) / BIAS_UNITS, at = blockIdx.x - tiles * patches;
    const bool hidden = at < of_hidden;
    step_biases<THREADS, S::PARTS>(hidden ? a.hidden_state : a.visible_state, hidden ? a.h : a.x,
                                   hidden ? n.h_part : n.x_part, a.scalars, nullptr, hidden ? n.hidden : n.visible, n.batch,
                                   hidden ? hidden_units : visible_units, (hidden ? at : at - of_hidden) * BIAS_UNITS,
                                   reinterpret_cast<float*>(memory));
    if (MASTERS && at == 0 && threadIdx.x == 0) *a.counter += n.by;
    return;
  }

  const int patch = patches > 1 ? blockIdx.x / tiles : 0, block = blockIdx.x - patch * tiles;
  const auto at = where(patch);
  const size_t weights = (size_t)patch * n.rows * n.cols;  // of the patches before
  T* h_k_blocks = reinterpret_cast<T*>(memory);
  T* x_k_blocks = h_k_blocks + S::STAGES * S::PARTS * S::H_K_BLOCK;
  const int row0 = block / across * S::TILE_M, col0 = block % across * S::TILE_N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_k = warp / (S::WARPS_M * S::WARPS_N);
  const int warp_row = warp / S::WARPS_N % S::WARPS_M * S::M, warp_col = warp % S::WARPS_N * S::N;
  const int k_blocks = 2 * ((n.batch + DEPTH - 1) / DEPTH);

  // Lines of the tile of weights as threads take them. Where each thread takes few, they are asked
  // for before the product.
  constexpr int ACROSS = S::TILE_N / 4;           // lanes of a line
  constexpr int LINES = THREADS / ACROSS;       // lines at a time
  constexpr int EACH = S::TILE_M / LINES;         // of one thread
  constexpr int AT_ONCE = EACH < 8 ? EACH : EACH % 8 ? 6 : 8;  // lines of a thread whose reads are in flight together
  static_assert(THREADS % ACROSS == 0 && EACH % AT_ONCE == 0, "threads share the tile alike");
  const int line0 = threadIdx.x / ACROSS, along = threadIdx.x % ACROSS * 4, col = col0 + along;
  float w[AT_ONCE][4], v[AT_ONCE][4];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int row = row0 + first + i * LINES;
      if (row >= n.rows || col >= n.cols) continue;  // cols is a multiple of 4
      const size_t place = weights + (size_t)row * n.cols + col;
      load4(a.weight + place, w[i]);
      load4(a.velocity + place, v[i]);
    }
  };
  wait_for_previous();
  if (AT_ONCE == EACH) load(line0);

  const long long x_at = at.template x_at<S>(col0);
  auto start = [&](int s) {
    const int stage = s % S::STAGES * S::PARTS;
    fetch_k_block<S>(h_k_blocks + stage * S::H_K_BLOCK, x_k_blocks + stage * S::K_BLOCK, a.h, a.x, n.h_part, n.x_part, s, n.batch, at, row0, col0,
                   x_at);
  };
  float sum[S::M / 16][S::N / 8][4] = {};
  // Both operands lie along their outer dimension and are transposed. A lane's line in depth and
  // column within four blocks: rows (0, 0), (0, 8), (8, 0), (8, 8) as (depth, row), and columns (0,
  // 0), (8, 0), (0, 8), (8, 8) as (depth, column).
  auto use = [&](int s) {
    const int stage = s % S::STAGES * S::PARTS;
    const T* hs = h_k_blocks + stage * S::H_K_BLOCK + warp_row + (lane / 16 * 8 + lane % 8) * S::H_LINE + lane / 8 % 2 * 8;
    const T* xs = x_k_blocks + stage * S::K_BLOCK + warp_col + (lane / 8 % 2 * 8 + lane % 8) * S::LINE + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < DEPTH / 16 / S::WARPS_K; ++step) {
      const int k = 16 * (step * S::WARPS_K + warp_k);
      uint32_t hi[S::M / 16][4], b[S::N / 16][4];
#pragma unroll
      for (int m = 0; m < S::M / 16; ++m) load_blocks_transposed(hi[m], hs + k * S::H_LINE + 16 * m);
#pragma unroll
      for (int c = 0; c < S::N / 16; ++c) load_blocks_transposed(b[c], xs + k * S::LINE + 16 * c);
#pragma unroll
      for (int m = 0; m < S::M / 16; ++m)
#pragma unroll
        for (int c = 0; c < S::N / 8; ++c) multiply<T>(sum[m][c], hi[m], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
      if (S::PARTS == 2) {
#pragma unroll
        for (int m = 0; m < S::M / 16; ++m) {
          uint32_t lo[4];
          load_blocks_transposed(lo, hs + S::H_K_BLOCK + k * S::H_LINE + 16 * m);
#pragma unroll
          for (int c = 0; c < S::N / 8; ++c) multiply<T>(sum[m][c], lo, b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
        }
#pragma unroll
        for (int c = 0; c < S::N / 16; ++c) {
          load_blocks_transposed(b[0], xs + S::K_BLOCK + k * S::LINE + 16 * c);
#pragma unroll
          for (int m = 0; m < S::M / 16; ++m) {
            multiply<T>(sum[m][2 * c], hi[m], b[0][0], b[0][1]);
            multiply<T>(sum[m][2 * c + 1], hi[m], b[0][2], b[0][3]);
          }
        }
      }
    }
  };
  pipeline<S::STAGES>(k_blocks, start, use);

  // A lane holds columns 2t and 2t + 1 of rows g and g + 8 of each 16 x 8 block. Through shared
  // memory each warp gets whole lines, so that memory is read and written up to 512 bytes at a
  // time.
  float* tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int group = 0; group < S::WARPS_K; ++group) {
    __syncthreads();
    if (warp_k != group) continue;
#pragma unroll
    for (int m = 0; m < S::M / 16; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int c = 0; c < S::N / 8; ++c) {
          const int row = warp_row + 16 * m + 8 * half + lane / 4, col = warp_col + 8 * c + lane % 4 * 2;
          float2* to = reinterpret_cast<float2*>(tile + row * S::LINE + col);
          float2 g = make_float2(sum[m][c][2 * half], sum[m][c][2 * half + 1]);
          if (group > 0) g.x += to->x, g.y += to->y;
          *to = g;
        }
  }
  __syncthreads();

  const float alpha = a.scalars[0], momentum = a.scalars[1], rate = a.scalars[2];
  const Philox draws = MASTERS ? Philox{} : rounding_draws(a.rounding, a.counter);
#pragma unroll 1
  for (int first = line0; first < S::TILE_M; first += AT_ONCE * LINES) {
    if (AT_ONCE < EACH) load(first);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int line = first + i * LINES, row = row0 + line;
      if (row >= n.rows || col >= n.cols) continue;
      const size_t place = weights + (size_t)row * n.cols + col;
      float g[4], copied[4];
      load4(tile + line * S::LINE + along, g);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        v[i][e] = stepped(v[i][e], w[i][e], g[e], alpha, momentum, rate, n.l1, n.l2);
        w[i][e] = w[i][e] + v[i][e];
        copied[e] = w[i][e] * n.scale;
      }
      if constexpr (MASTERS) {
        store4(a.velocity + place, v[i]);
        store4(a.weight + place, w[i]);
        store4(a.copy + place, copied);
        if (S::PARTS == 2) {
#pragma unroll
          for (int e = 0; e < 4; ++e) copied[e] = copied[e] - wide(narrow<T>(copied[e]));
          store4(a.copy + n.copy_part + place, copied);
        }
      } else {
        store4(a.velocity + place, v[i]);
        store4_rounded(a.weight + place, w[i], draws, row, col, n.cols);
      }
    }
  }
}

// Two blocks of 128 x 128 a multiprocessor: one of 256 x 128 reads less of the operands, but
// nothing runs while it waits for its weights (NOTES.md).
//                 TILE_M, TILE_N, WARPS_M, WARPS_N, PARTS, STAGES, CHUNK
using Large1 = Shape<128, 128, 2, 4, 1, 4, 8>;
using Large2 = Shape<128, 128, 2, 4, 2, 3, 8>;
using Small1 = Shape<64, 64, 2, 2, 1, 4, 8>;
using Small2 = Shape<64, 64, 2, 2, 2, 3, 8>;
// Copies of more k-blocks in flight, for GPUs with the shared memory for it.
using Deep2 = Shape<64, 64, 2, 2, 2, 6, 8>;
using Odd1 = Shape<64, 64, 2, 2, 1, 4, 4>;
using Odd2 = Shape<64, 64, 2, 2, 2, 3, 4>;
// For patches of 192 hidden units: all of them by 64 entries of the window.
using High1 = Shape<192, 64, 4, 2, 1, 4, 8>;
using High2 = Shape<192, 64, 4, 2, 2, 3, 8>;
