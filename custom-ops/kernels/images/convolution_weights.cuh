// convolution_weights.cuh: the gradient to the weights, a product of the maps with the windows of
// the images, summed over all positions.
//
//   parts[s, o, n] = sum over positions of split s of h[position, o] x[position + n]       n: a weight of the filter, (k, l, c)
//   g[o, n] <- alpha * (sum over s of parts[s, o, n]) + beta * g[o, n]
//
// A block has 32 filters, 256 weights of each, and a split of the positions. It takes these in
// stages: some rows of the maps of an image, `depth` columns of each, with the pixels that their
// windows cover. As with convolution_windows, windows are addressed, never stored.
//
// launch   convolution_weights: grid (splits, weights / 256, filters / 32), 256 threads, warp w has
//          weights 32 w to 32 w + 31 of the block; convolution_add: grid (weights of all filters /
//          32), 32 x 8 threads
// shared   2 stages: rows * depth * MAP_LINE floats of maps, lines of a step in different banks;
//          x_rows * x_line of pixels
// bytes    maps and pixels once for each 256 weights and 32 filters, from the L2; parts written and
//          read
// order    stages of a split; rows; columns eight at a time; splits in eight stretches, each from
//          its first on, then the stretches
#pragma once

#include "images/convolution.cuh"

struct Weights : Stages {
  int wide, wide_maps;  // pixels and maps may be copied by fours
};

constexpr int WEIGHT_THREADS = 256, FILTERS = 32, MAP_LINE = FILTERS + 8;

extern "C" __global__ void __launch_bounds__(WEIGHT_THREADS, 2)
convolution_weights(float* parts, const float* x, const float* h, const __grid_constant__ Weights p) {
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int of_row = p.size * p.channels, all = p.size * of_row;
  const int n0 = blockIdx.y * 256, o0 = blockIdx.z * FILTERS, k0 = n0 / of_row;  // k0: first row of the filters
  const int of_maps = p.rows * p.depth * MAP_LINE, stage = of_maps + p.x_rows * p.x_line;
  const long long stages = (long long)p.batch * p.row_blocks * p.column_blocks;
  const int first = (int)(stages * blockIdx.x / p.splits), count = (int)(stages * (blockIdx.x + 1) / p.splits) - first;

  // Where the pixels of this lane's weights lie, from that of position 0 and weight (k0, 0, 0) on.
  int pixel[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int at = n0 + warp * 32 + n * 8 + g;
    pixel[n] = at < all ? (at / of_row - k0) * p.x_line + at % of_row : 0;
  }

  auto start = [&](int s) {
    float* const maps = memory + s % 2 * stage;
    float* const pixels = maps + of_maps;
    const int which = first + s, column0 = which % p.column_blocks * p.depth;
    const int row0 = which / p.column_blocks % p.row_blocks * p.rows, image = which / p.column_blocks / p.row_blocks;
    const float* const of_image = h + (size_t)image * p.out_height * p.out_width * p.n_filters;
    const int by_maps = p.wide_maps ? 4 : 1, per_line = FILTERS / by_maps;
#pragma unroll 1
    for (int e = threadIdx.x; e < p.rows * p.depth * per_line; e += WEIGHT_THREADS) {
      const int o = e % per_line * by_maps, at = e / per_line, row = row0 + at / p.depth, column = column0 + at % p.depth;
      const bool inside = row < p.out_height && column < p.out_width && o0 + o < p.n_filters;
      const float* from = inside ? of_image + ((size_t)row * p.out_width + column) * p.n_filters + o0 + o : h;
      copy_floats(maps + at * MAP_LINE + o, from, inside, p.wide_maps);
    }
    const float* const pixels_of = x + (size_t)image * p.height * p.width * p.channels;
    const int by = p.wide ? 4 : 1, begin = (column0 - p.pad) * p.channels, end = p.width * p.channels;
#pragma unroll 1
    for (int row = warp; row < p.x_rows; row += WEIGHT_THREADS / 32) {
      const int from_row = row0 + row + k0 - p.pad;
      const bool row_inside = from_row >= 0 && from_row < p.height;
#pragma unroll 1
      for (int e = lane * by; e < p.x_line; e += 32 * by) {
        const bool inside = row_inside && begin + e >= 0 && begin + e < end;
        const float* from = inside ? pixels_of + (size_t)from_row * end + begin + e : x;
        copy_floats(pixels + row * p.x_line + e, from, inside, p.wide);
      }
    }
  };

  float sum[2][4][4] = {};
  auto use = [&](int s) {
    const float* const maps = memory + s % 2 * stage;
    const float* const pixels = maps + of_maps;
    const int which = first + s, depth = min(p.depth, p.out_width - which % p.column_blocks * p.depth);
    const int rows = min(p.rows, p.out_height - which / p.column_blocks % p.row_blocks * p.rows);
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll 1
      for (int q = 0; q < depth; q += 8) {
        // Positions past the end have maps of 0, but pixels of others, which may be NaN.
        const bool inside = q + t < depth, also = q + t + 4 < depth;
        const float* const from = pixels + row * p.x_line + (q + t) * p.channels;
        uint32_t high[4][2], low[4][2];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float b[2] = {inside ? from[pixel[n]] : 0.f, also ? from[pixel[n] + 4 * p.channels] : 0.f};
          in_tf32_parts(b, high[n], low[n]);
        }
        const float* const of_step = maps + (row * p.depth + q + t) * MAP_LINE + g;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const float* at = of_step + 16 * m;
          const float a[4] = {at[0], at[8], at[4 * MAP_LINE], at[4 * MAP_LINE + 8]};
          add_products<1>(&sum[m], &a, high, low);
        }
      }
    }
  };
  pipeline<2>(count, start, use);

  parts += (size_t)blockIdx.x * p.n_filters * all;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int o = o0 + 16 * m + i / 2 * 8 + g, at = n0 + warp * 32 + n * 8 + 2 * t + i % 2;
        if (o < p.n_filters && at < all) parts[(size_t)o * all + at] = sum[m][n][i];
      }
}

// Sum of the splits, and the factors: those given, or the two in memory.
extern "C" __global__ void __launch_bounds__(256)
convolution_add(float* gradient, const float* parts, const float* factors, const size_t n, const unsigned splits,
                const float alpha, const float beta) {
  wait_for_previous();
  __shared__ float sums[8][32];
  const size_t i = (size_t)blockIdx.x * 32 + threadIdx.x;
  const unsigned first = splits * threadIdx.y / 8, end = splits * (threadIdx.y + 1) / 8;
  float sum = 0.f;
  if (i < n)
    for (unsigned s = first; s < end; ++s) sum += parts[s * n + i];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  for (unsigned y = 1; y < 8; ++y) sum += sums[y][threadIdx.x];
  const float a = factors ? factors[0] : alpha, b = factors ? factors[1] : beta;
  gradient[i] = b == 0.f ? a * sum : a * sum + b * gradient[i];
}
