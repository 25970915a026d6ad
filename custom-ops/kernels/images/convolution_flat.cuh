// convolution_flat.cuh: products of windows with columns of weights, see convolution_windows.cuh,
// for images of few channels.
//
// The pixels of a row of a window lie one after the other, size * channels numbers: a step is eight
// of them. A block takes tile after tile of FLAT_POSITIONS positions, the strip of the next one on
// its way, and keeps its weights: in shared memory as both TF32 parts, in the order in which lanes
// take them, so that they are split once for all tiles. Where those of whole filters are too many,
// `weight_rows` rows of the filters are there at a time, for each tile anew.
//
// launch   grid (blocks that share the tiles, columns / 8 NB), 256 threads, warp w has positions 32
//          w to 32 w + 31 of a tile
// shared   weights: weight_rows * ceil(size * channels / 8) * NB * 128 floats; then 2 strips of
//          (strip_rows * row_pitch + 8) floats, in fours
// bytes    a strip for each tile and the weights for each block from the L2
// order    rows of the filter, eight terms of each at a time
#pragma once

#include "images/convolution_windows.cuh"

constexpr int FLAT_POSITIONS = 256, FLAT_THREADS = 256;

template <int NB>
__device__ __forceinline__ void flat(float* y, const float* x, const float* w, const Windows& p) {
  const int lane = threadIdx.x % 32, t = lane % 4, n0 = blockIdx.y * 8 * NB;
  const int run = p.size * p.channels, steps = (run + 7) / 8, tiles = p.tiles * p.n_bands * p.batch;  // steps: of a row of the filter
  float4* const weights = reinterpret_cast<float4*>(memory);
  float* const strips = memory + p.weight_rows * steps * NB * 128;
  const int of_strip = (p.strip_rows * p.row_pitch + 8 + 3) / 4 * 4;

  // Lane l of step s and eight columns n: both parts of terms t and t + 4 of column l / 4. Terms
  // are evenly spaced in w where rows are not turned.
  const bool even = p.dx_step == p.channels * p.c_step;
  auto split_weights = [&](int row0) {
#pragma unroll 4
    for (int e = threadIdx.x; e < p.weight_rows * steps * NB * 32; e += FLAT_THREADS) {
      const int s = e / 32 / NB, dy = row0 + s / steps, n = n0 + e / 32 % NB * 8 + e % 32 / 4;
      float b[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int k = s % steps * 8 + 4 * i + e % 4, dx = even ? 0 : k / p.channels, c = k - dx * p.channels;
        const bool inside = dy < p.size && k < run && n < p.n_out;
        b[i] = inside ? w[p.origin + n * p.n_step + dy * p.dy_step + dx * p.dx_step + c * p.c_step] : 0.f;
      }
      uint32_t high[2], low[2];
      in_tf32_parts(b, high, low);
      weights[e] = make_float4(__uint_as_float(high[0]), __uint_as_float(high[1]), __uint_as_float(low[0]), __uint_as_float(low[1]));
    }
  };
  auto copy_strip = [&](int which, float* to) {
    if (which < tiles) Tile<FLAT_POSITIONS>(p, which).template copy_strip<FLAT_THREADS>(to, x, p, 0);
    commit();
  };

  const bool all_rows = p.weight_rows >= p.size;
  copy_strip(blockIdx.x, strips);
  if (all_rows) split_weights(0);
  int buffer = 0;
#pragma unroll 1
  for (int which = blockIdx.x; which < tiles; which += gridDim.x) {
    wait<0>();
    __syncthreads();  // the strip is there for all, and all are done with the one before
    const float* const strip = strips + buffer * of_strip + t;
    buffer ^= 1;
    copy_strip(which + gridDim.x, strips + buffer * of_strip);

    const Tile<FLAT_POSITIONS> tile(p, which);
    const bool idle = tile.first + threadIdx.x / 32 * 32 >= p.band * p.out_height;
    int window[2][2], result[2][2];
    tile.positions(p, window, result);
    float sum[2][NB][4] = {};
#pragma unroll 1
    for (int row0 = 0; row0 < p.size; row0 += p.weight_rows) {
      if (!all_rows) {
        __syncthreads();  // all are done with the weights of the rows before
        split_weights(row0);
        __syncthreads();
      }
      if (idle) continue;
      const float4* from = weights + lane;
#pragma unroll 1
      for (int dy = row0; dy < min(p.size, row0 + p.weight_rows); ++dy) {
        const float* at = strip + dy * p.row_pitch;
        // Terms past the end of a row are pixels of others: they must not be factors, as they may
        // be NaN.
        auto step = [&](bool first, bool second) {
          uint32_t high[NB][2], low[NB][2];
#pragma unroll
          for (int n = 0; n < NB; ++n) {
            const float4 b = from[n * 32];
            high[n][0] = __float_as_uint(b.x), high[n][1] = __float_as_uint(b.y);
            low[n][0] = __float_as_uint(b.z), low[n][1] = __float_as_uint(b.w);
          }
          float a[2][4];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            a[m][0] = first ? at[window[m][0]] : 0.f, a[m][1] = first ? at[window[m][1]] : 0.f;
            a[m][2] = second ? at[window[m][0] + 4] : 0.f, a[m][3] = second ? at[window[m][1] + 4] : 0.f;
          }
          add_products<2>(sum, a, high, low);
          at += 8, from += NB * 32;
        };
#pragma unroll 1
        for (int k = 8; k <= run; k += 8) step(true, true);
        if (run % 8 != 0) step(t < run % 8, t + 4 < run % 8);
      }
    }
    tile.store<NB>(y, p, result, n0, sum);
  }
}

#define FLAT(NB)                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(FLAT_THREADS, 2) convolution_flat_##NB(float* y, const float* x, const float* w,     \
                                                                                      const __grid_constant__ Windows p) {         \
    wait_for_previous();                                                                                                           \
    flat<NB>(y, x, w, p);                                                                                                          \
  }
FLAT(1)
FLAT(2)
FLAT(3)
FLAT(4)
