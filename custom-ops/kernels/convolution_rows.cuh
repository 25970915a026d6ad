// convolution_rows.cuh: gradients to images of few channels.
//
//   d[i, q, (l, c)] = sum over k, o of h[i - k + pad, q, o] w[o, k, l, c]        one product for a row i of the image
//   v[i, j, c]      = sum over l of d[i, j - l + pad, (l, c)]                    then sums along diagonals
//
// With a column of the product for each of the size * channels weights of a row of the filter, tensor cores work on no zeros, where few
// channels alone would fill few of their columns.
//
// A block has rows of an image, in a band of its columns: a warp ROWS rows and 32 positions q of each, `parts` warps beside each other. Rows of h
// pass through shared memory once, and each is used for all rows of the image that it reaches; of w, 16 columns are there. Columns are taken 16
// at a time, and for each the whole sum over k and o is made before the diagonals are added to v.
//
// launch   grid (batch * row_blocks * n_bands), 256 threads; parts 1, 2, 4 or 8; a block has ROWS * 8 / parts rows
// shared   w: size * chunk * 16 floats; then 3 stages of a row of h, 32 parts * (chunk + 4) floats each, or the tile of 256 * DIAGONAL
//          floats in their place. The lines of a step, chunk + 4 apart, fall in different banks
// bytes    h (1 + (size - 1) / rows of a block) times for each 16 columns, from the L2
// order    columns by sixteens; for each filters by chunks; rows of h; then filters eight at a time; then l
#pragma once

#include "convolution.cuh"

struct Rows : Sizes {
  int parts, row_blocks, band, n_bands;
  int chunk, n_chunks;                       // of filters; a multiple of 8
  int wide;                                  // filters may be copied by fours
};

constexpr int ROWS = 4, ROWS_THREADS = 256, ROW_STAGES = 3, DIAGONAL = 17;

// Whether row `source` of h reaches row i of the image; `k` is the row of the filter that takes it there.
__device__ __forceinline__ bool reaches(const Rows& p, int i, int source, int& k) {
  k = i - source + p.pad;
  return k >= 0 && k < p.size;
}

extern "C" __global__ void __launch_bounds__(ROWS_THREADS, 2)
convolution_rows(float* v, const float* h, const float* w, const __grid_constant__ Rows p) {
  float* const weights = memory;
  float* const stages = memory + p.size * p.chunk * 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int of_block = ROWS * 8 / p.parts, positions = 32 * p.parts, line = p.chunk + 4, stage = positions * line;
  const int image = blockIdx.x / p.n_bands / p.row_blocks;
  const int i0 = blockIdx.x / p.n_bands % p.row_blocks * of_block, j0 = blockIdx.x % p.n_bands * p.band;
  const int j_end = min(j0 + p.band, p.width);
  // Positions of h that reach the band, and rows that reach the block.
  const int q0 = max(0, j0 + p.pad - p.size + 1), q_end = min(p.out_width, j_end + p.pad);
  const int source0 = max(0, i0 + p.pad - p.size + 1);
  const int source_end = min(p.out_height, min(i0 + of_block, p.height) + p.pad);
  const int columns = p.size * p.channels, filter = p.size * columns;
  const int of_warp = warp / p.parts, q_warp = warp % p.parts * 32;  // group of rows, first position
  const bool idle = q0 + q_warp >= q_end;
  h += (size_t)image * p.out_height * p.out_width * p.n_filters;
  v += (size_t)image * p.height * p.width * p.channels;

#pragma unroll 1
  for (int n0 = 0; n0 < columns; n0 += 16) {
    float sum[ROWS][2][2][4] = {};
#pragma unroll 1
    for (int o0 = 0; o0 < p.chunk * p.n_chunks; o0 += p.chunk) {
      __syncthreads();  // all are done with what the memory held
      // [k][eight of columns][filter][column]
#pragma unroll 1
      for (int e = threadIdx.x; e < p.size * p.chunk * 16; e += ROWS_THREADS) {
        const int n = e % 16, o = e / 16 % p.chunk, k = e / 16 / p.chunk;
        const bool inside = n0 + n < columns && o0 + o < p.n_filters;
        const float* from = inside ? w + (o0 + o) * filter + k * columns + n0 + n : w;
        copy<4>(weights + ((k * 2 + n / 8) * p.chunk + o) * 8 + n % 8, from, inside);
      }
      auto start = [&](int s) {
        float* to = stages + s % ROW_STAGES * stage;
        const float* row = h + (size_t)(source0 + s) * p.out_width * p.n_filters + o0;
        const int by = p.wide ? 4 : 1, of_position = p.chunk / by;
#pragma unroll 1
        for (int e = threadIdx.x; e < positions * of_position; e += ROWS_THREADS) {
          const int q = e / of_position, o = (e - q * of_position) * by;
          const bool inside = q0 + q < q_end && o0 + o < p.n_filters;
          copy_floats(to + q * line + o, inside ? row + (size_t)(q0 + q) * p.n_filters + o : h, inside, p.wide);
        }
      };
      auto use = [&](int s) {
        if (idle) return;
        const float* const rows = stages + s % ROW_STAGES * stage + (q_warp + g) * line + t;
#pragma unroll 1
        for (int o = 0; o < p.chunk; o += 8) {
          float a[2][4];
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const float* at = rows + 16 * m * line + o;
            a[m][0] = at[0], a[m][1] = at[8 * line], a[m][2] = at[4], a[m][3] = at[8 * line + 4];
          }
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            int k;
            if (!reaches(p, i0 + of_warp * ROWS + r, source0 + s, k)) continue;
            uint32_t high[2][2], low[2][2];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const float* at = weights + ((k * 2 + n) * p.chunk + o + t) * 8 + g;
              const float b[2] = {at[0], at[32]};
              in_tf32_parts(b, high[n], low[n]);
            }
#pragma unroll
            for (int m = 0; m < 2; ++m) add_products<2>(sum[r][m], a[m], high, low);
          }
        }
      };
      pipeline<ROW_STAGES>(source_end - source0, start, use);
    }

    // One row of each warp at a time: its product, then the diagonals of all.
    float* const tile = stages;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      __syncthreads();
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int q = q_warp + 16 * m + i / 2 * 8 + g;
            tile[(of_warp * positions + q) * DIAGONAL + n * 8 + 2 * t + i % 2] = sum[r][m][n][i];
          }
      __syncthreads();
      const int of_row = (j_end - j0) * p.channels;
#pragma unroll 1
      for (int e = threadIdx.x; e < of_row * (8 / p.parts); e += ROWS_THREADS) {
        const int group = e / of_row, j = j0 + (e - group * of_row) / p.channels, c = (e - group * of_row) % p.channels;
        const int i = i0 + group * ROWS + r;
        if (i >= p.height) continue;
        // Columns l * channels + c of the sixteen, at positions within h.
        const int first = max(max(0, (n0 - c + p.channels - 1) / p.channels), j + p.pad - q_end + 1);
        const int end = min(min(p.size, (n0 + 15 - c + p.channels) / p.channels), j + p.pad - q0 + 1);
        float* to = v + ((size_t)i * p.width + j) * p.channels + c;
        float x = n0 == 0 ? 0.f : *to;  // of this thread
        for (int l = first; l < end; ++l)
          x += tile[(group * positions + j - l + p.pad - q0) * DIAGONAL + l * p.channels + c - n0];
        *to = x;
      }
    }
  }
}
