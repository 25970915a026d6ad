// convolution_windows.cuh: products of windows of an image with columns of weights, for maps of any
// number of filters, and for gradients to images of many channels, whose windows are those of the
// maps and whose filters are turned by 180 degrees.
//
//   y[p, n] = sum over dy, dx, c of x[row(p) + dy, column(p) + dx, c] w(n, dy, dx, c)      p: a
//                                                                                          position,
//                                                                                          n: a
//                                                                                          column
//
// A block has positions one after the other in a band of columns of the result, 32 a warp, and 8 NB
// columns n. The pixels that its windows cover lie in shared memory once (the strip), so that the
// matrix of all windows is only addressed, never stored. This file has what both kernels of such
// products share, and the one for many channels: a step has 8 channels of one pixel.
// convolution_flat.cuh has the one for few.
//
// Channels are taken `chunk` at a time; weights follow in stages of STEPS steps of 8 terms.
//
// launch   grid (batch * n_bands * tiles, columns / 8 NB), 128 threads: a tile is POSITIONS
//          positions
// shared   strip: (strip_rows * row_pitch + 8) floats, in fours; then 2 stages of STEPS * 64 NB
//          floats of weights. Pixels are `pitch` apart: 4 more than 8 n channels, so that the lines
//          of a step fall in different banks
// bytes    the strip and 8 NB columns of weights of a block from the L2
// order    chunks, then rows, columns and channels of the filter, eight at a time
#pragma once

#include "images/convolution.cuh"

struct Windows {
  int height, width, channels;           // of the source
  int out_height, out_width, n_out;      // of the result
  int size, pad, batch;
  int band, n_bands, tiles;              // columns of a band, bands, tiles of a band
  int chunk, n_chunks, pitch, row_pitch;
  int strip_rows, strip_columns;
  int weight_rows;                       // rows of the filters whose weights a block of convolution_flat has at a time
  int origin, n_step, dy_step, dx_step, c_step;  // where the weights lie
  int wide, n_first, wide_out;           // pixels may be copied by fours; columns are neighbours in w; results stored by twos
};

constexpr int POSITIONS = 128, WINDOW_THREADS = 128, STEPS = 8;

// A tile of a band of an image, TILE positions.
template <int TILE> struct Tile {
  int first, image, column0, row0;  // first: its first position in the band; row0: that one's row
  __device__ __forceinline__ Tile(const Windows& p, int which)
      : first(which % p.tiles * TILE), image(which / p.tiles / p.n_bands), column0(which / p.tiles % p.n_bands * p.band), row0(first / p.band) {}

  // Where the windows of this lane begin in the strip, and where their results go; none (-1) for
  // positions past the end.
  __device__ __forceinline__ void positions(const Windows& p, int (&window)[2][2], int (&result)[2][2]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int q = first + threadIdx.x / 32 * 32 + 16 * m + 8 * half + threadIdx.x % 32 / 4, row = q / p.band, column = q % p.band;
        const bool inside = row < p.out_height && column0 + column < p.out_width;
        window[m][half] = inside ? (row - row0) * p.row_pitch + column * p.pitch : 0;
        result[m][half] = inside ? row * p.out_width + column0 + column : -1;
      }
  }

  // Starts the copy of `chunk` channels from c0 on of the pixels that the windows cover.
  template <int THREADS> __device__ __forceinline__ void copy_strip(float* strip, const float* x, const Windows& p, int c0) const {
    const int by = p.wide ? 4 : 1, per_pixel = p.chunk / by, per_row = p.strip_columns * per_pixel;
    const float* const of_image = x + (size_t)image * p.height * p.width * p.channels;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < p.strip_rows; row += THREADS / 32) {
      const int from_row = row0 + row - p.pad;
      const bool row_inside = from_row >= 0 && from_row < p.height;
#pragma unroll 1
      for (int e = threadIdx.x % 32; e < per_row; e += 32) {
        const int pixel = per_pixel == 1 ? e : e / per_pixel, c = (e - pixel * per_pixel) * by;
        const int column = column0 + pixel - p.pad;
        const bool inside = row_inside && column >= 0 && column < p.width && c0 + c < p.channels;
        const float* from = inside ? of_image + (from_row * p.width + column) * p.channels + c0 + c : x;
        copy_floats(strip + row * p.row_pitch + pixel * p.pitch + c, from, inside, p.wide);
      }
    }
  }

  // Stores the results of columns from n0 on.
  template <int NB>
  __device__ __forceinline__ void store(float* y, const Windows& p, const int (&result)[2][2], int n0, const float (&sum)[2][NB][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (result[m][half] < 0) continue;
        float* to = y + ((size_t)image * p.out_height * p.out_width + result[m][half]) * p.n_out;
#pragma unroll
        for (int n = 0; n < NB; ++n) {
          const int column = n0 + n * 8 + threadIdx.x % 4 * 2;
          const float first = sum[m][n][2 * half], second = sum[m][n][2 * half + 1];
          if (p.wide_out && column < p.n_out) {
            *reinterpret_cast<float2*>(to + column) = make_float2(first, second);
          } else {
            if (column < p.n_out) to[column] = first;
            if (column + 1 < p.n_out) to[column + 1] = second;
          }
        }
      }
  }
};

// The place of a step: row and column of the filter, and its first term.
struct Place {
  int dy, dx, k;
  __device__ __forceinline__ void next(int run, int columns) {
    k += 8;
    if (k < run) return;
    k = 0;
    if (++dx == columns) dx = 0, ++dy;
  }
};

template <int NB>
__device__ __forceinline__ void windows(float* y, const float* x, const float* w, const Windows& p) {
  float* const strip = memory;
  float* const weights = memory + (p.strip_rows * p.row_pitch + 8 + 3) / 4 * 4;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n0 = blockIdx.y * 8 * NB;
  const Tile<POSITIONS> tile(p, blockIdx.x);
  int window[2][2], result[2][2];
  tile.positions(p, window, result);

  float sum[2][NB][4] = {};
#pragma unroll 1
  for (int c0 = 0; c0 < p.chunk * p.n_chunks; c0 += p.chunk) {
    __syncthreads();  // all are done with the strip and the weights of the chunk before
    const int run = min(p.chunk, p.channels - c0), steps = p.size * p.size * ((run + 7) / 8);
    tile.copy_strip<WINDOW_THREADS>(strip, x, p, c0);

    // The step that is copied next, and the one that is used next.
    Place copied = {0, 0, 0}, used = {0, 0, 0};
    auto start = [&](int s) {
      float* to = weights + s % 2 * STEPS * 64 * NB;
#pragma unroll 1
      for (int i = 0; i < STEPS && s * STEPS + i < steps; ++i) {
#pragma unroll
        for (int e = threadIdx.x; e < 64 * NB; e += WINDOW_THREADS) {
          const int n = p.n_first ? e % (8 * NB) : e / 8, j = p.n_first ? e / (8 * NB) : e % 8, k = copied.k + j;
          const bool inside = k < run && n0 + n < p.n_out;
          const int at = p.origin + (n0 + n) * p.n_step + copied.dy * p.dy_step + copied.dx * p.dx_step + (c0 + k) * p.c_step;
          copy<4>(to + i * 64 * NB + n / 8 * 64 + j * 8 + n % 8, inside ? w + at : w, inside);
        }
        copied.next(run, p.size);
      }
    };
    auto use = [&](int s) {
      const float* from = weights + s % 2 * STEPS * 64 * NB + t * 8 + g;
#pragma unroll 1
      for (int i = 0; i < STEPS && s * STEPS + i < steps; ++i, from += 64 * NB) {
        uint32_t high[NB][2], low[NB][2];
#pragma unroll
        for (int n = 0; n < NB; ++n) {
          const float b[2] = {from[n * 64], from[n * 64 + 32]};
          in_tf32_parts(b, high[n], low[n]);
        }
        const float* const at = strip + used.dy * p.row_pitch + used.dx * p.pitch + used.k + t;
        // Terms past the end are pixels of others: they must not be factors, as they may be NaN.
        const bool first = used.k + t < run, second = used.k + t + 4 < run;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float a[4] = {first ? at[window[m][0]] : 0.f, first ? at[window[m][1]] : 0.f,
                              second ? at[window[m][0] + 4] : 0.f, second ? at[window[m][1] + 4] : 0.f};
          add_products<1>(&sum[m], &a, high, low);
        }
        used.next(run, p.size);
      }
    };
    pipeline<2>((steps + STEPS - 1) / STEPS, start, use);
  }

  tile.store<NB>(y, p, result, n0, sum);
}

#define WINDOWS(NB)                                                                                             \
  extern "C" __global__ void __launch_bounds__(WINDOW_THREADS, 4) convolution_windows_##NB(                      \
      float* y, const float* x, const float* w, const __grid_constant__ Windows p) {                             \
    wait_for_previous();                                                                                        \
    windows<NB>(y, x, w, p);                                                                                    \
  }
WINDOWS(1)
WINDOWS(2)
WINDOWS(3)
WINDOWS(4)
