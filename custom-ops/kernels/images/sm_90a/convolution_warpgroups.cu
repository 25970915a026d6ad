// sm_90a/convolution_warpgroups.cu: products of windows of an image with columns of weights
// (convolution_windows.cuh), for many channels, by the products of warpgroups of capability 9.0.
//
//   y[p, n] = sum over dy, dx, c of x[row(p) + dy, column(p) + dx, c] w(n, dy, dx, c)
//
// A warpgroup has 8 x 8 positions and NT columns. The pixels that the windows of a block cover lie
// in shared memory once (the strip), so that the matrix of all windows is only addressed; a
// warpgroup reads its 64 x 8 of it into registers and splits it in TF32 parts there. Four producer
// warps bring weights, those of one place of the filters and 4 `planes` channels at a time, in
// parts, into a ring, so that four stages are on their way from memory.
//
// Tensor cores cut off what lies below 2^-24 of a sum or so: the sums of a stage of the ring are
// added to f32 ones outside.
//
// arrays   as in convolution_windows.cuh
// launch   grid (batch * tiles, columns / NT), 128 threads a warpgroup and 128: a tile is `down`
//          by `across` warpgroups
// shared   strip: strip_rows * row_pitch floats, `pitch` a pixel, 4 more than a multiple of 8, so
//          that eight pixels fall in different banks; then STAGES times planes * (2 NT + 1) units
//          of 16 bytes of weights
// cost     three TF32 products; the strip once, and NT columns of weights for each tile
// order    chunks, then rows and columns of the filter, then channels
// NaN      see tf32.cuh
// truth    convolution_reference and that of the gradient, in
//          src/images/convolution/reference.rs

#include "core/sm_90a/wgmma.cuh"
#include "images/sm_90a/strip.cuh"

struct Warpgroups {
  int height, width, channels;           // of the source
  int out_height, out_width, n_out;      // of the result
  int size, pad;
  int tiles_down, tiles_across;          // of an image
  int down, across;                      // warpgroups of a tile
  int planes, stages, n_chunks;          // fours of channels of a stage, stages of a place of the filters in a chunk, chunks
  int pitch, row_pitch, strip_rows;
  int origin, n_step, dy_step, dx_step, c_step;  // where the weights lie
  int wide, n_first, wide_weights, wide_out;     // pixels may be copied by fours; columns are neighbours in w; weights may be read by fours; results stored by twos
};

constexpr int SIDE = 8;  // of the positions of a warpgroup
constexpr int PRODUCERS = 4, STAGES = PRODUCERS, MOST_PLANES = 8, UNIT = 16;  // producers are warps

// A stage of the ring: its place of the filters and first channel.
struct Place {
  int chunk = 0, dy = 0, dx = 0, stage = 0;
  __device__ __forceinline__ int channel(const Warpgroups& p) const { return (chunk * p.stages + stage) * 4 * p.planes; }
  __device__ __forceinline__ void next(const Warpgroups& p) {
    if (++stage < p.stages) return;
    stage = 0;
    if (++dx < p.size) return;
    dx = 0;
    if (++dy < p.size) return;
    dy = 0, ++chunk;
  }
};

// A producer warp brings the weights of every PRODUCERS-th stage, which have one place in the ring.
// A unit is four terms of a column.
template <int NT>
__device__ __forceinline__ void produce(unsigned char* ring, uint64_t* full, uint64_t* empty, const float* w, const Warpgroups& p) {
  constexpr int UNITS = MOST_PLANES * NT / 32;
  const int me = warp_of_block() % PRODUCERS, lane = threadIdx.x % 32, n0 = blockIdx.y * NT;
  unsigned char* const to = ring + me * p.planes * (2 * NT + 1) * UNIT;
  // Lanes along what lies together in memory.
  const auto column = [&](int u) { return p.n_first ? u % (NT / 32) * 32 + lane : u * (32 / MOST_PLANES) + lane / MOST_PLANES; };
  const auto plane = [&](int u) { return p.n_first ? u / (NT / 32) : lane % MOST_PLANES; };
  Place place;
  for (int s = 0; s < me; ++s) place.next(p);
  w += p.origin;
  unsigned round = 0;
#pragma unroll 1
  while (place.chunk < p.n_chunks) {
    const float* const from_place = w + place.dy * p.dy_step + place.dx * p.dx_step;
    float four[UNITS][4];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
      const int n = n0 + column(u), c = place.channel(p) + 4 * plane(u);
      const float* from = from_place + n * p.n_step + c * p.c_step;
      const bool inside = plane(u) < p.planes && n < p.n_out;
      if (p.wide_weights && inside && c < p.channels) {
        load4(from, four[u]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) four[u][i] = inside && c + i < p.channels ? from[i * p.c_step] : 0.f;
      }
    }
    barrier_wait(empty + me, round % 2 ^ 1);
    ++round;
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
      if (plane(u) >= p.planes) continue;
      uint32_t high[4], low[4];
      in_tf32_parts(four[u], high, low);
      uint4* const unit = reinterpret_cast<uint4*>(to + (plane(u) * (2 * NT + 1) + column(u)) * UNIT);
      unit[0] = make_uint4(high[0], high[1], high[2], high[3]);
      unit[NT] = make_uint4(low[0], low[1], low[2], low[3]);
    }
    shared_fence();
    __syncwarp();
    if (lane == 0) barrier_arrive(full + me);
    for (int s = 0; s < PRODUCERS; ++s) place.next(p);
  }
}

template <int NT>
__device__ __forceinline__ void windows_of_warpgroups(float* y, const float* x, const float* w, const Warpgroups& p) {
  constexpr int PLANE = (2 * NT + 1) * UNIT;
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int warpgroups = p.down * p.across, threads = 128 * warpgroups, stage_bytes = p.planes * PLANE;
  unsigned char* const ring = reinterpret_cast<unsigned char*>(memory + p.strip_rows * p.row_pitch);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, threads / 32);
    barriers_made();
  }
  __syncthreads();
  const int warpgroup = warp_of_block() / 4;
  if (warpgroup == warpgroups) return produce<NT>(ring, full, empty, w, p);

  const int tiles = p.tiles_down * p.tiles_across, tile = blockIdx.x % tiles, image = blockIdx.x / tiles;
  const int row0 = tile / p.tiles_across * p.down * SIDE, column0 = tile % p.tiles_across * p.across * SIDE;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // A warp has two lines of positions, a lane one position of each.
  const int row = warpgroup / p.across * SIDE + warp_of_block() % 4 * 2, column = warpgroup % p.across * SIDE + g;
  const Strip strip = {x + (size_t)image * p.height * p.width * p.channels, p.height, p.width, p.channels,
                       row0 - p.pad, column0 - p.pad, p.strip_rows, p.across * SIDE + p.size - 1};
  const float* const windows = memory + row * p.row_pitch + column * p.pitch + t;
  const int chunk = 4 * p.planes * p.stages, by = p.wide ? 4 : 1;
  const uint32_t weights = kept_address(ring);

  float sum[NT / 2] = {};
  Stage<STAGES> stage;
#pragma unroll 1
  for (int c0 = 0; c0 < chunk * p.n_chunks; c0 += chunk) {
    if (c0 > 0) asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");  // all are done with the strip
#pragma unroll 1
    for (Units e(chunk / by, threads); e.is_in(strip); e.next()) {
      const float* from = e.pixel(strip, c0 + e.unit * by);
      copy_floats(memory + e.row * p.row_pitch + e.column * p.pitch + e.unit * by, from ? from : x, from, p.wide);
    }
    commit();
    wait<0>();
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
#pragma unroll 1
    for (int dy = 0; dy < p.size; ++dy) {
#pragma unroll 1
      for (int dx = 0; dx < p.size; ++dx) {
        const float* at = windows + dy * p.row_pitch + dx * p.pitch;
#pragma unroll 1
        for (int s = 0; s < p.stages; ++s, stage.next()) {
          uint64_t b = scattered(weights + stage.at * stage_bytes, PLANE, 8 * UNIT);
          barrier_wait(full + stage.at, stage.parity);
          float part[NT / 2] = {};
#pragma unroll 1
          for (int k = 0; k < p.planes; k += 2, at += 8) {
            const float a[4] = {at[0], at[p.row_pitch], at[4], at[p.row_pitch + 4]};
            if (k > 0) wgmma_wait<0>(), summed(part);  // products have read the parts before
            uint32_t high[4], low[4];
            in_tf32_parts(a, high, low);
            wgmma_fence();
            Tf32<NT>::run(part, low, b);
            Tf32<NT>::run(part, high, advance(b, NT * UNIT));
            Tf32<NT>::run(part, high, b);
            wgmma_commit();
            b = advance(b, 2 * PLANE);
          }
          wgmma_wait<0>();
          summed(part);
          if (lane == 0) barrier_arrive(empty + stage.at);
#pragma unroll
          for (int i = 0; i < NT / 2; ++i) sum[i] += part[i];
        }
      }
    }
  }

  // A lane has two of each eight columns.
  if (column0 + column >= p.out_width) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int out_row = row0 + row + half;
    if (out_row >= p.out_height) continue;
    float* to = y + (((size_t)image * p.out_height + out_row) * p.out_width + column0 + column) * p.n_out;
#pragma unroll
    for (int n = 0; n < NT / 8; ++n) {
      const int at = blockIdx.y * NT + n * 8 + 2 * t;
      const float first = sum[4 * n + 2 * half], second = sum[4 * n + 2 * half + 1];
      if (p.wide_out && at < p.n_out) {
        *reinterpret_cast<float2*>(to + at) = make_float2(first, second);
      } else {
        if (at < p.n_out) to[at] = first;
        if (at + 1 < p.n_out) to[at + 1] = second;
      }
    }
  }
}

// Of few columns so few registers that two blocks of three warpgroups run at once.
#define WARPGROUPS(NT, THREADS)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) convolution_warpgroups_##NT(                  \
      float* y, const float* x, const float* w, const __grid_constant__ Warpgroups p) {                         \
    wait_for_previous();                                                                                        \
    windows_of_warpgroups<NT>(y, x, w, p);                                                                      \
  }
WARPGROUPS(32, 768)
WARPGROUPS(64, 640)
