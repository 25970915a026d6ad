// patch_units.cu: units of a product with the weights of patches, up or down, in one launch: out =
// units(scale * x W + bias).
//
// The product is that of product.cuh; windows are copied to shared memory from where they lie. A
// tile up is rows of the minibatch by units of a patch; its sum goes over the window. A tile down
// is rows by values of a cell of the grid (patches.cuh), which the same windows cover: its sum goes
// over the units of these patches, one patch after the other.
//
// arrays   x: PARTS of [batch, units], parts x_part entries apart; weight: PARTS of [patches,
//          hidden, window_len], w_part apart; bias: [units'] f32, null with sums; out: planes of [batch, units']
//          from mean_at and sample_at, second parts `low` entries further on; a place below 0 is a
//          plane not wanted; T (f16, bf16). counter: [1] i64 or null. 16-byte aligned, rows
//          contiguous
// scalars  Grid whose stride * depth, window * depth, width * depth and hidden are multiples of 8;
//          unit: 0 Bernoulli, 1 Gaussian, 2 rectified, 3 none: out is f32
//          [batch, units'], the sums. apart: 0 unless the units are some of more
// launch   blocks in x over (patch or cell, tiles across), tiles of rows in y; Shape::THREADS
//          threads
// shared   Shape::SHARED bytes, dynamic
// cost     2 * batch * weights FLOP for each pair of parts; x once for each tile across, weights
//          once for each tile of rows
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    patch_product_reference and units_reference

#include "images/patch_units.cuh"
#include "layers/product.cuh"

// Four neighbours of a row of a plane, from `unit` of `width` on.
template <bool QUICK, typename T>
__device__ __forceinline__ void finish_four(T* out, float (&sum)[4], const float* bias, int row, int width, size_t unit, const Philox& philox,
                                            const Numbers& n) {
  float of_bias[4];
  load_biases(bias, unit, of_bias);
  const long long at[1] = {(long long)((size_t)row * width + unit)};
  const int rows[1] = {row};
  finish_units<QUICK>(out, reinterpret_cast<float(&)[1][4]>(sum), of_bias, at, rows, philox, n);
}

template <typename H, typename T>
__device__ void units_up(T* out, const T* x, const T* weight, const float* bias, const long long* counter, const Numbers& n) {
  wait_for_previous();
  launch_dependents();
  const Grid& g = n.grid;
  const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
  const int tiles = (g.hidden + H::TN - 1) / H::TN, patch = blockIdx.x / tiles, len = g.window_len();
  const int row0 = blockIdx.y * H::TM, col0 = blockIdx.x % tiles * H::TN;
  const size_t unit0 = (size_t)patch * g.hidden;
  const T* of_x = x + g.origin(patch);
  const T* of_w = weight + unit0 * len;
  auto start = [&](T* k_block, int s) {
    const int along = s * DEPTH + threadIdx.x % (DEPTH / CHUNK) * CHUNK;
    const long long entry = along < len ? g.entry(along) : -1;
#pragma unroll
    for (int p = 0; p < H::PA; ++p) {
      const T* part = of_x + p * n.x_part;
      fetch_mapped<CHUNK, H::TM, DEPTH, H::A_LINE, H::THREADS>(
          k_block + p * H::A_K_BLOCK, x, [&](int line) { return row0 + line < n.batch ? part + (size_t)(row0 + line) * g.values : nullptr; },
          entry);
    }
    k_block += H::PA * H::A_K_BLOCK;
#pragma unroll
    for (int p = 0; p < H::PB; ++p)
      fetch<CHUNK, H::TN, DEPTH, H::B_LINE, H::THREADS>(k_block + p * H::B_K_BLOCK, of_w + p * n.w_part, len, col0, g.hidden, s * DEPTH, len);
  };
  tile_of_product<H>((len + DEPTH - 1) / DEPTH, start, [&](int line, int along, float(&sum)[4]) {
    const int row = row0 + line, col = col0 + along;
    if (row >= n.batch || col >= g.hidden) return;
    finish_four<H::PB == 1>(out, sum, bias, row, g.units(), unit0 + col, philox, n);
  });
}

template <typename H, typename T>
__device__ void units_down(T* out, const T* x, const T* weight, const float* bias, const long long* counter, const Numbers& n) {
  wait_for_previous();
  launch_dependents();
  const Grid& g = n.grid;
  const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
  const int tiles = (g.cell_len() + H::TN - 1) / H::TN, len = g.window_len(), units = g.units();
  const Cell cell(g, blockIdx.x / tiles);
  const int row0 = blockIdx.y * H::TM, col0 = blockIdx.x % tiles * H::TN;
  const Covering ys(cell.y, g.down, g.overlap()), xs(cell.x, g.across, g.overlap());
  const int of_patch = (g.hidden + DEPTH - 1) / DEPTH;
  const int u = col0 + threadIdx.x % (H::TN / CHUNK) * CHUNK;
  auto start = [&](T* k_block, int s) {
    const int q = s / of_patch, unit = (s - q * of_patch) * DEPTH, dy = ys.first + q / xs.count, dx = xs.first + q % xs.count;
    const int patch = cell.patch(g, dy, dx);
    const size_t unit0 = (size_t)patch * g.hidden;
#pragma unroll
    for (int p = 0; p < H::PA; ++p)
      fetch<CHUNK, H::TM, DEPTH, H::A_LINE, H::THREADS>(k_block + p * H::A_K_BLOCK, x + p * n.x_part + unit0, units, row0, n.batch, unit,
                                                        g.hidden);
    k_block += H::PA * H::A_K_BLOCK;
    const long long entry = cell.entry(g, u, dy, dx);
#pragma unroll
    for (int p = 0; p < H::PB; ++p) {
      const T* part = weight + p * n.w_part;
      fetch_mapped<CHUNK, DEPTH, H::TN, H::B_LINE, H::THREADS>(
          k_block + p * H::B_K_BLOCK, weight,
          [&](int line) { return unit + line < g.hidden ? part + (unit0 + unit + line) * len : nullptr; }, entry);
    }
  };
  tile_of_product<H>(ys.count * xs.count * of_patch, start, [&](int line, int along, float(&sum)[4]) {
    const int row = row0 + line, place = cell.place(g, col0 + along);
    if (row >= n.batch || place < 0) return;
    finish_four<H::PB == 1>(out, sum, bias, row, g.values, place, philox, n);
  });
}

// A kernel for a shape: TM, WM, TN, PA, TRANSPOSED, STAGES, PB; BLOCKS of them run on a
// multiprocessor at once. The choice is in src/images/patches/shape.rs.
#define PATCH_UNITS(NAME, T, RUN, TM, WM, TN, PA, TRANSPOSED, STAGES, PB, BLOCKS)                                               \
  namespace shape_of_##NAME { using H = Shape<TM, WM, TN, 1, PA, TRANSPOSED, STAGES, PB, T>; }                          \
  extern "C" __global__ void __launch_bounds__(shape_of_##NAME::H::THREADS, BLOCKS)                                 \
  NAME(T* out, const T* x, const T* weight, const float* bias, const long long* counter,                            \
       const __grid_constant__ Numbers n) {                                                                         \
    RUN<shape_of_##NAME::H>(out, x, weight, bias, counter, n);                                                      \
  }
#define OF_EVERY_ROWS(NAME, T, RUN, TN, PA, TRANSPOSED, STAGES, PB, BLOCKS)       \
  PATCH_UNITS(NAME##_128, T, RUN, 128, 2, TN, PA, TRANSPOSED, STAGES, PB, BLOCKS) \
  PATCH_UNITS(NAME##_192, T, RUN, 192, 3, TN, PA, TRANSPOSED, STAGES, PB, BLOCKS)
#define OF_EVERY_TILE(NAME, T, RUN, PA, TRANSPOSED, STAGES, PB)                   \
  OF_EVERY_ROWS(NAME##_64, T, RUN, 64, PA, TRANSPOSED, STAGES, PB, 3)             \
  OF_EVERY_ROWS(NAME##_96, T, RUN, 96, PA, TRANSPOSED, STAGES, PB, 2)
OF_EVERY_TILE(patch_up_bf16, __nv_bfloat16, units_up, 1, false, 3, 1)
OF_EVERY_TILE(patch_up_f16, __half, units_up, 1, false, 3, 1)
OF_EVERY_ROWS(patch_up_f16x2_64, __half, units_up, 64, 2, false, 2, 2, 2)
OF_EVERY_TILE(patch_down_bf16, __nv_bfloat16, units_down, 1, true, 3, 1)
OF_EVERY_TILE(patch_down_f16, __half, units_down, 1, true, 3, 1)
OF_EVERY_ROWS(patch_down_f16x2_64, __half, units_down, 64, 1, true, 2, 2, 2)
