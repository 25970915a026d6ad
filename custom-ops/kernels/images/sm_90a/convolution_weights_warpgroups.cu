// sm_90a/convolution_weights_warpgroups.cu: the gradient to the weights (convolution_weights.cuh),
// for many channels, by the products of warpgroups of capability 9.0.
//
//   parts[s, o, n] = sum over positions of split s of h[position, o] x[position + n]
//                                                          n: a weight of the filter, (k, l, c)
//
// A block has 256 weights, 64 a warpgroup, of NT filters each, and a split of the positions, which
// it takes in stages as convolution_weights.cuh does. Pixels under windows are addressed, never
// stored: a warpgroup reads its 64 x 8 of them from shared memory into registers and splits them in
// TF32 parts there. Maps lie in shared memory in parts, four positions of a filter in 16 bytes.
//
// Tensor cores cut off what lies below 2^-24 of a sum or so: the sums of STEPS times 8 positions
// are added to f32 ones outside.
//
// arrays   as in convolution_weights.cuh
// launch   grid (splits, weights / 256, filters / NT), 512 threads
// shared   2 stages: x_rows * x_line floats of pixels, `pitch` from one to the next, an odd number
//          of eights, so that four of them fall in different banks; then 2 stages of rows * depth /
//          4 times 2 NT + 1 units of 16 bytes of maps
// cost     three TF32 products; maps and pixels once for each 256 weights and NT filters
// order    stages of a split; rows; columns eight at a time
// NaN      see tf32.cuh
// truth    convolution_weight_gradient_reference, in src/images/convolution/reference.rs

#include "core/sm_90a/wgmma.cuh"
#include "images/sm_90a/strip.cuh"

struct WarpgroupWeights : Stages {
  int pitch, wide;  // floats from one pixel to the next; pixels may be copied by fours
};

constexpr int THREADS = 512, UNIT = 16, STEPS = 4;

template <int NT>
__device__ __forceinline__ void weights_of_warpgroups(float* parts, const float* x, const float* h, const WarpgroupWeights& p) {
  constexpr int PLANE = (2 * NT + 1) * UNIT, MOST = 2;  // bytes of four positions; units of maps of a thread
  const int lane = threadIdx.x % 32, warp = warp_of_block(), g = lane / 4, t = lane % 4;
  const int of_row = p.size * p.channels, all = p.size * of_row;
  const int n0 = blockIdx.y * 256, o0 = blockIdx.z * NT, k0 = n0 / of_row;  // k0: first row of the filters
  const int of_pixels = p.x_rows * p.x_line, planes = p.rows * p.depth / 4;
  const long long stages = (long long)p.batch * p.row_blocks * p.column_blocks;
  const int first = (int)(stages * blockIdx.x / p.splits), count = (int)(stages * (blockIdx.x + 1) / p.splits) - first;
  unsigned char* const maps = reinterpret_cast<unsigned char*>(memory + 2 * of_pixels);
  const uint32_t maps_at = kept_address(maps);

  // Where the pixels of this lane's weights lie, from that of position 0 and weight (k0, 0, 0) on.
  int pixel[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = n0 + warp * 16 + 8 * i + g, in_row = at % of_row;
    pixel[i] = at < all ? (at / of_row - k0) * p.x_line + in_row / p.channels * p.pitch + in_row % p.channels : 0;
  }

  // The place of a stage.
  struct Place {
    int image, row0, column0;
  };
  auto after = [&](Place place) {
    if ((place.column0 += p.depth) < p.column_blocks * p.depth) return place;
    place.column0 = 0;
    if ((place.row0 += p.rows) < p.row_blocks * p.rows) return place;
    return Place{place.image + 1, 0, 0};
  };
  const int of_image = p.row_blocks * p.column_blocks;
  Place here = {first / of_image, first / p.column_blocks % p.row_blocks * p.rows, first % p.column_blocks * p.depth};
  auto copy_pixels = [&](int s, const Place& here) {
    float* const pixels = memory + s % 2 * of_pixels;
    const Strip strip = {x + (size_t)here.image * p.height * p.width * p.channels, p.height, p.width, p.channels,
                         here.row0 + k0 - p.pad, here.column0 - p.pad, p.x_rows, p.depth + p.size - 1};
    const int by = p.wide ? 4 : 1;
#pragma unroll 1
    for (Units e(p.channels / by, THREADS); e.is_in(strip); e.next()) {
      const float* from = e.pixel(strip, e.unit * by);
      copy_floats(pixels + e.row * p.x_line + e.column * p.pitch + e.unit * by, from ? from : x, from, p.wide);
    }
    commit();
  };
  // A unit is four positions of a filter; four are in one row.
  float units[MOST][4];
  int row_of[MOST], column_of[MOST];
#pragma unroll
  for (int u = 0; u < MOST; ++u) {
    const int at = (u * THREADS + threadIdx.x) / NT * 4;
    row_of[u] = at / p.depth, column_of[u] = at - row_of[u] * p.depth;
  }
  auto read_maps = [&](const Place& here) {
    const int o = o0 + threadIdx.x % NT;
#pragma unroll
    for (int u = 0; u < MOST; ++u) {
      const int row = here.row0 + row_of[u], column = here.column0 + column_of[u];
      const bool inside = row_of[u] < p.rows && row < p.out_height && o < p.n_filters;
      const float* from = h + (((size_t)here.image * p.out_height + row) * p.out_width + column) * p.n_filters + o;
#pragma unroll
      for (int i = 0; i < 4; ++i) units[u][i] = inside && column + i < p.out_width ? from[i * p.n_filters] : 0.f;
    }
  };
  auto store_maps = [&](int s) {
#pragma unroll
    for (int u = 0; u < MOST; ++u) {
      const int e = u * THREADS + threadIdx.x;
      if (e >= planes * NT) break;
      uint32_t high[4], low[4];
      in_tf32_parts(units[u], high, low);
      uint4* const to = reinterpret_cast<uint4*>(maps + (size_t)(s % 2 * planes + e / NT) * PLANE + e % NT * UNIT);
      to[0] = make_uint4(high[0], high[1], high[2], high[3]);
      to[NT] = make_uint4(low[0], low[1], low[2], low[3]);
    }
    shared_fence();
  };

  float sum[NT / 2] = {};
  if (count > 0) copy_pixels(0, here), read_maps(here), store_maps(0);
#pragma unroll 1
  for (int s = 0; s < count; ++s, here = after(here)) {
    wait<0>();
    __syncthreads();  // the stage is here for all, and all are done with the one before
    const int depth = min(p.depth, p.out_width - here.column0), rows = min(p.rows, p.out_height - here.row0);
    const float* from = memory + s % 2 * of_pixels;
    uint32_t b = maps_at + s % 2 * planes * PLANE;
    int row = 0, q = 0;
    bool next_begun = false;
#pragma unroll 1
    while (row < rows) {
      uint32_t high[STEPS][4], low[STEPS][4], at[STEPS];
#pragma unroll
      for (int i = 0; i < STEPS; ++i) {
        // Positions past the end have maps of 0, but pixels of others, which may be NaN; steps past
        // the end read maps that are here.
        const bool inside = row < rows && q + t < depth, also = row < rows && q + t + 4 < depth;
        const float* const pixels = from + row * p.x_line + (q + t) * p.pitch;
        const float a[4] = {inside ? pixels[pixel[0]] : 0.f, inside ? pixels[pixel[1]] : 0.f,
                            also ? pixels[pixel[0] + 4 * p.pitch] : 0.f, also ? pixels[pixel[1] + 4 * p.pitch] : 0.f};
        in_tf32_parts(a, high[i], low[i]);
        at[i] = row < rows ? b + (row * p.depth + q) / 4 * PLANE : b;
        q += 8;
        if (q >= depth) q = 0, ++row;
      }
      float part[NT / 2] = {};
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < STEPS; ++i) {
        const uint64_t maps_high = scattered(at[i], PLANE, 8 * UNIT);
        Tf32<NT>::run(part, low[i], maps_high);
        Tf32<NT>::run(part, high[i], advance(maps_high, NT * UNIT));
        Tf32<NT>::run(part, high[i], maps_high);
      }
      wgmma_commit();
      // The next stage is brought behind the first products of this one.
      if (!next_begun && s + 1 < count) copy_pixels(s + 1, after(here)), read_maps(after(here));
      next_begun = true;
      wgmma_wait<0>();
      summed(part);
#pragma unroll
      for (int i = 0; i < NT / 2; ++i) sum[i] += part[i];
    }
    if (s + 1 < count) store_maps(s + 1);
  }

  parts += (size_t)blockIdx.x * p.n_filters * all;
#pragma unroll
  for (int i = 0; i < NT / 2; ++i) {
    const int o = o0 + i / 4 * 8 + 2 * t + i % 2, at = n0 + warp * 16 + i / 2 % 2 * 8 + g;
    if (o < p.n_filters && at < all) parts[(size_t)o * all + at] = sum[i];
  }
}

#define WEIGHTS(NT)                                                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) convolution_weights_warpgroups_##NT(                 \
      float* parts, const float* x, const float* h, const __grid_constant__ WarpgroupWeights p) {               \
    wait_for_previous();                                                                                        \
    weights_of_warpgroups<NT>(parts, x, h, p);                                                                  \
  }
WEIGHTS(32)
WEIGHTS(64)
