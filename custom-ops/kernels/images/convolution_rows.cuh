// convolution_rows.cuh: gradients to images of few channels.
//
//   d[i, q, (l, c)] = sum over k, o of h[i - k + pad, q, o] w[o, k, l, c]        one product for a
//                                                                                row i of the image
//   v[i, j, c]      = sum over l of d[i, j - l + pad, (l, c)]                    then sums along diagonals
//
// With a column of the product for each of the size * channels weights of a row of the filter,
// tensor cores work on no zeros, where few channels alone would fill few of their columns.
//
// A block has rows of an image, in a band of its columns: a warp ROWS rows and 32 positions q of
// each, `parts` warps beside each other. Rows of h pass through shared memory once, and each is
// used for all rows of the image that it reaches; of w, 16 columns are there, as both TF32 parts
// and in the order in which lanes take them. Columns are taken 16 at a time, and for each the whole
// sum over k and o is made before the diagonals are added to v. A block takes one unit of rows
// after the other, those in the middle of images first: at the border fewer rows of h reach a row.
//
// launch   grid (blocks that share the batch * row_blocks * n_bands units), ROWS_THREADS threads;
//          parts 1, 2, 4 or 8; a unit has ROWS * warps / parts rows
// shared   w: size * chunk * 32 floats; then ROW_STAGES stages of a row of h, 32 parts * (chunk +
//          4) floats each, or the tile of ROWS_THREADS * DIAGONAL floats in their place. The lines
//          of a step, chunk + 4 apart, fall in different banks
// bytes    h (1 + (size - 1) / rows of a unit) times for each 16 columns, from the L2
// order    columns by sixteens; for each filters by chunks; rows of h; then filters eight at a
//          time; then l
#pragma once

#include "images/convolution.cuh"

struct Rows : Sizes {
  int parts, row_blocks, band, n_bands;
  int chunk, n_chunks;                       // of filters; a multiple of 8
  int wide;                                  // filters may be copied by fours
};

constexpr int ROWS = 4, ROWS_THREADS = 256, ROW_STAGES = 2, DIAGONAL = 17;

// The weights of 16 columns from n0 on and of a chunk of filters from o0 on: lane l of row k, eight
// filters and eight columns has both parts of filters t and t + 4 in column l / 4.
__device__ __forceinline__ void split_rows(float4* weights, const float* w, const Rows& p, int n0, int o0) {
  const int columns = p.size * p.channels, filter = p.size * columns, eights = p.chunk / 8;
#pragma unroll 4
  for (int e = threadIdx.x; e < p.size * p.chunk * 8; e += ROWS_THREADS) {
    const int n = n0 + e / 32 % 2 * 8 + e % 32 / 4, o = o0 + e / 64 % eights * 8 + e % 4, k = e / 64 / eights;
    const float* from = w + o * filter + k * columns + n;
    const float b[2] = {n < columns && o < p.n_filters ? from[0] : 0.f, n < columns && o + 4 < p.n_filters ? from[4 * filter] : 0.f};
    uint32_t high[2], low[2];
    in_tf32_parts(b, high, low);
    weights[e] = make_float4(__uint_as_float(high[0]), __uint_as_float(high[1]), __uint_as_float(low[0]), __uint_as_float(low[1]));
  }
}

// What a block makes at a time.
struct Unit {
  int image, i0, j0, j_end;   // rows of the image from i0 on, columns j0 .. j_end
  int q0, q_end;              // positions of h that reach these columns
  int source0, source_end;    // rows of h that reach these rows
  __device__ __forceinline__ Unit(const Rows& p, int which, int rows) {
    const int of_rows = p.batch * p.n_bands, rank = which / of_rows, middle = p.row_blocks / 2;
    image = which % of_rows / p.n_bands;
    i0 = (rank % 2 ? middle - 1 - rank / 2 : middle + rank / 2) * rows;
    j0 = which % p.n_bands * p.band, j_end = min(j0 + p.band, p.width);
    q0 = max(0, j0 + p.pad - p.size + 1), q_end = min(p.out_width, j_end + p.pad);
    source0 = max(0, i0 + p.pad - p.size + 1), source_end = min(p.out_height, min(i0 + rows, p.height) + p.pad);
  }
};

extern "C" __global__ void __launch_bounds__(ROWS_THREADS, 2)
convolution_rows(float* v, const float* h, const float* w, const __grid_constant__ Rows p) {
  wait_for_previous();
  float4* const weights = reinterpret_cast<float4*>(memory);
  float* const stages = memory + p.size * p.chunk * 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int groups = ROWS_THREADS / 32 / p.parts, of_block = ROWS * groups, positions = 32 * p.parts;
  const int line = p.chunk + 4, stage = positions * line, eights = p.chunk / 8, columns = p.size * p.channels;
  const int of_warp = warp / p.parts, q_warp = warp % p.parts * 32;  // group of rows, first position
  const bool all_weights = p.n_chunks == 1 && columns <= 16;
  if (all_weights) split_rows(weights, w, p, 0, 0);

#pragma unroll 1
  for (int which = blockIdx.x; which < p.batch * p.n_bands * p.row_blocks; which += gridDim.x) {
    const Unit unit(p, which, of_block);
    const float* const maps = h + (size_t)unit.image * p.out_height * p.out_width * p.n_filters;
    float* const image = v + (size_t)unit.image * p.height * p.width * p.channels;
    const bool idle = unit.q0 + q_warp >= unit.q_end;

#pragma unroll 1
    for (int n0 = 0; n0 < columns; n0 += 16) {
      float sum[ROWS][2][2][4] = {};
#pragma unroll 1
      for (int o0 = 0; o0 < p.chunk * p.n_chunks; o0 += p.chunk) {
        __syncthreads();  // all are done with what the memory held
        if (!all_weights) split_rows(weights, w, p, n0, o0);
        auto start = [&](int s) {
          float* const to = stages + s % ROW_STAGES * stage;
          const float* const row = maps + ((unit.source0 + s) * p.out_width + unit.q0) * p.n_filters + o0;
          const int o = threadIdx.x % 8 * 4;  // four filters, of 32 or fewer
          if (o >= p.chunk) return;
#pragma unroll 1
          for (int q = threadIdx.x / 8; q < positions; q += ROWS_THREADS / 8) {
            const int left = unit.q0 + q < unit.q_end ? p.n_filters - o0 - o : 0;
            const float* const from = row + q * p.n_filters + o;
            if (p.wide) {
              copy<16>(to + q * line + o, left > 0 ? from : h, left > 0);
            } else {
#pragma unroll
              for (int i = 0; i < 4; ++i) copy<4>(to + q * line + o + i, i < left ? from + i : h, i < left);
            }
          }
        };
        auto use = [&](int s) {
          if (idle) return;
          const float* const rows = stages + s % ROW_STAGES * stage + (q_warp + g) * line + t;
          const int k0 = unit.i0 + of_warp * ROWS - unit.source0 - s + p.pad;  // row of the filter from this row of h to the first of the warp
          auto products = [&](auto all) {
#pragma unroll 1
            for (int o = 0; o < eights; ++o) {
              uint32_t high[2][4], low[2][4];
#pragma unroll
              for (int m = 0; m < 2; ++m) {
                const float* at = rows + 16 * m * line + o * 8;
                const float a[4] = {at[0], at[8 * line], at[4], at[8 * line + 4]};
                in_tf32_parts(a, high[m], low[m]);
              }
#pragma unroll
              for (int r = 0; r < ROWS; ++r) {
                if (!all.value && (k0 + r < 0 || k0 + r >= p.size)) continue;
                uint32_t b_high[2][2], b_low[2][2];
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                  const float4 b = weights[((k0 + r) * eights + o) * 64 + n * 32 + lane];
                  b_high[n][0] = __float_as_uint(b.x), b_high[n][1] = __float_as_uint(b.y);
                  b_low[n][0] = __float_as_uint(b.z), b_low[n][1] = __float_as_uint(b.w);
                }
                add_products<2>(sum[r], high, low, b_high, b_low);
              }
            }
          };
          // Most rows of h reach all rows of a warp: no branch is then between the products.
          if (k0 >= 0 && k0 + ROWS <= p.size) products(std::true_type());
          else products(std::false_type());
        };
        pipeline<ROW_STAGES>(unit.source_end - unit.source0, start, use);
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
        const int of_row = (unit.j_end - unit.j0) * p.channels;
#pragma unroll 1
        for (int e = threadIdx.x; e < of_row * groups; e += ROWS_THREADS) {
          const int group = e / of_row, j = unit.j0 + (e - group * of_row) / p.channels, c = (e - group * of_row) % p.channels;
          const int i = unit.i0 + group * ROWS + r;
          if (i >= p.height) continue;
          // Columns l * channels + c of the sixteen, at positions within h.
          const int first = max(max(0, (n0 - c + p.channels - 1) / p.channels), j + p.pad - unit.q_end + 1);
          const int end = min(min(p.size, (n0 + 15 - c + p.channels) / p.channels), j + p.pad - unit.q0 + 1);
          float* to = image + ((size_t)i * p.width + j) * p.channels + c;
          float x = n0 == 0 ? 0.f : *to;  // of this thread
          for (int l = first; l < end; ++l)
            x += tile[(group * positions + j - l + p.pad - unit.q0) * DIAGONAL + l * p.channels + c - n0];
          *to = x;
        }
      }
    }
  }
}
