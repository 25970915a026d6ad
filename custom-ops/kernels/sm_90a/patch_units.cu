// sm_90a/patch_units.cu: units of a product with the weights of patches, up or down, in one launch, by the products of warpgroups of capability
// 9.0: out = units(scale * x W + bias). The tile of a product is that of product_tile.cuh, tiles and units are those of patch_units.cu.
//
// Values of the grid lie so that 64 that follow each other in a window do so in a row, too: all copies are by tensor maps. Down, a tile is two
// neighbours among cells of 64 values, or columns of larger ones; a slice is hidden units of a patch, which the two cells share, but for the
// patches at the ends, which reach one of them. Blocks of a cluster share the patches of a tile.
//
// Up to units of 0 and 1, from numbers in one part, a block for each multiprocessor takes tiles one after the other (product_tiles.cuh) and finishes
// them from registers, while slices of the next arrive: 46 us in place of 53.7 with draws for 256 patches of 192 x 576 weights and 192 rows in
// bf16, 33 in place of 39.9 without. The sums alone take 29: the weights come from memory at half of what it can give. The finish is a loop: written
// out for all columns its code is 66 KB in place of 20, and a step, whose update passes 400 MB through the caches, 9 us longer.
//
// arrays   those of patch_units.cu, as tensor maps: x [batch, values] or [batch, patches * hidden], blocks of 64 WGS lines; weights
//          [patches * hidden, window_len], blocks of TN lines up, of 64 lines down; DEPTH columns (weights down: 64), the third dimension is the part
// scalars  those of patch_units.cu; stride * depth and hidden are multiples of 64, window of stride
//          Of states up, hidden is a multiple of TN
// launch   grid (cluster * patches or cells or pairs of them, times tiles across; tiles of rows), of states up any number of blocks across;
//          128 WGS + 128 threads
// shared   STAGES slices and 1 KB to align them; the tile of sums takes their place, but for states up
// cost     2 * batch * weights FLOP for each pair of parts; windows once for each tile across, weights once for each tile of rows; down, hidden
//          units once for each tile: those of 12 patches for two cells of windows of three cells by three
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    patch_product_reference and units_reference

#include "../patch_units.cuh"
#include "product_tiles.cuh"

constexpr int Q = 4;  // fours of units that a thread makes at once
__device__ __forceinline__ Four nowhere() { return {0, -4}; }

// The units of this block's part of a tile; place(line, along) says where four of them go.
template <typename H, typename T, typename Place>
__device__ __forceinline__ void finish_tile(T* out, const Sums<H>& sums, const float* bias, const long long* counter, const Numbers& n,
                                            Place place) {
  const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
#pragma unroll 1
  for (int first = threadIdx.x; first < sums.fours(); first += Q * H::THREADS) {
    Four at[Q];
    float x[Q][4];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int i = min(first + q * H::THREADS, sums.fours() - 1);
      at[q] = first + q * H::THREADS < sums.fours() ? place(sums.line(i), sums.along(i)) : nowhere();
      sums.read(sums.line(i), sums.along(i), x[q]);
    }
    finish_units<!H::EXACT>(out, x, bias, at, philox, n);
  }
}

// Tiles up: rows of the minibatch by units of a patch.
template <typename H, typename T>
__device__ __forceinline__ void units_up(T* out, const float* bias, const long long* counter, const TensorMap& x_map,
                                         const TensorMap& weight_map, const Numbers& n) {
  const Grid& g = n.grid;
  const int tiles = (g.hidden + H::TN - 1) / H::TN, patch = blockIdx.x / tiles, origin = g.origin(patch), unit0 = patch * g.hidden;
  const int row0 = blockIdx.y * H::TM, col0 = blockIdx.x % tiles * H::TN, count = g.window_len() / H::DEPTH;
  if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&weight_map);

  auto copy = [&](const Ring& ring) {
#pragma unroll 1
    for (int s = 0; s < count; ++s) {
      const int stage = s % H::STAGES;
      if (s >= H::STAGES) barrier_wait(ring.empty + stage, (s / H::STAGES - 1) % 2);
      unsigned char* to = ring.slices + stage * H::BYTES;
      uint64_t* here = ring.full + stage;
      barrier_expect(here, H::BYTES);
#pragma unroll
      for (int p = 0; p < H::PA; ++p, to += H::A_BYTES) copy_block(to, &x_map, origin + g.entry(s * H::DEPTH), row0, p, here);
#pragma unroll
      for (int p = 0; p < H::PB; ++p, to += H::B_BYTES) copy_block(to, &weight_map, s * H::DEPTH, unit0 + col0, p, here);
    }
  };
  sum_tile<H>(1, {count}, copy, [&](const Sums<H>& sums) {
    finish_tile<H>(out, sums, bias, counter, n, [&](int line, int along) {
      const int row = row0 + line, col = col0 + along;
      return row < n.batch && col < g.hidden ? Four{(size_t)(unit0 + col), (long long)((size_t)row * g.units() + unit0 + col)} : nowhere();
    });
  });
}

// The sums of this thread in two times 16 neighbouring columns, the pair-th 32 of them, which all threads of a warp take at once. Sums lie in
// registers, through which a loop cannot count.
template <int PAIR = 0, int N>
__device__ __forceinline__ void take_sums(const float (&sum)[N], int pair, float (&to)[16]) {
  if constexpr (16 * PAIR < N) {
    if (pair != PAIR) return take_sums<PAIR + 1>(sum, pair, to);
#pragma unroll
    for (int j = 0; j < 16; ++j) asm volatile("mov.b32 %0, %1;" : "=f"(to[j]) : "f"(sum[16 * PAIR + j]));  // a branch, not a choice for each number
  }
}

// The same for units of 0 and 1, from numbers in one part, tile after tile: tiles blockIdx.x, + gridDim.x and so on.
template <typename H, typename T>
__device__ __forceinline__ void states_up(T* out, const float* bias, const long long* counter, const TensorMap& x_map,
                                          const TensorMap& weight_map, const Numbers& n) {
  const Grid& g = n.grid;
  const int across = g.hidden / H::TN, tiles = g.patches() * across, row0 = blockIdx.y * H::TM;
  if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&weight_map);
  auto tile_of = [&](int i) { return blockIdx.x + i * gridDim.x; };
  auto copy = [&](int i, int s, unsigned char* to, uint64_t* here) {
    const int tile = tile_of(i), entry = s * H::DEPTH;
    copy_block(to, &x_map, g.origin(tile / across) + g.entry(entry), row0, 0, here);
    copy_block(to + H::A_BYTES, &weight_map, entry, tile * H::TN, 0, here);
  };
  sum_tiles<H>((tiles - blockIdx.x + gridDim.x - 1) / gridDim.x, g.window_len() / H::DEPTH, copy, [&](int i, const float(&sum)[H::TN / 2]) {
    const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
    const int row = row0 + Exchanged::line();
    const size_t unit = (size_t)tile_of(i) * H::TN + Exchanged::along(), place = (size_t)row * g.units() + unit;
    float next_bias[2][4];
#pragma unroll
    for (int c = 0; c < 2; ++c) load4(bias + unit + 16 * c, next_bias[c]);
#pragma unroll 1
    for (int pair = 0; pair < H::TN / 32; ++pair) {
      const int col0 = 32 * pair;
      float taken[16], x[4][4];
      Four at[4];
      take_sums(sum, pair, taken);
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const int c = f / 2, half = f % 2;
        Exchanged::four(taken + 8 * c + 2 * half, taken + 8 * c + 4 + 2 * half, x[f]);
        at[f] = row + 8 * half < n.batch ? Four{unit, (long long)(place + (size_t)(8 * half) * g.units() + col0 + 16 * c)} : nowhere();
#pragma unroll
        for (int j = 0; j < 4; ++j) x[f][j] = fmaf(n.scale, x[f][j], next_bias[c][j]);
      }
      if (col0 + 32 < H::TN)  // of the next columns while these are finished
#pragma unroll
        for (int c = 0; c < 2; ++c) load4(bias + unit + col0 + 32 + 16 * c, next_bias[c]);
      store_units<BERNOULLI, true>(out, x, at, philox, n);
    }
  });
}

// Tiles across in the order in which blocks take them, those of the most patches first: the longest sums then begin first, and multiprocessors end
// at nearly the same time. Without a plan the last comes first, and so it does among those of equally many patches: the product up before has just read
// the last weights. In steps of 192 x 192 images that saves 1 to 2 %; at 144 x 144 nothing was seen.
struct Order {
  unsigned count;  // of the tiles, or 0 without a plan
  unsigned short tile[1022];
  __device__ int at(int i, int all) const { return count > 0 ? tile[i] : all - 1 - i; }
};

// Tiles down: rows of the minibatch by the values of two cells, or by columns of one.
template <typename H, bool PAIR, typename T>
__device__ __forceinline__ void units_down(T* out, const float* bias, const long long* counter, const TensorMap& x_map,
                                           const TensorMap& weight_map, const Numbers& n, const Order& order) {
  const Grid& g = n.grid;
  const int cluster = n.cluster, rank = blockIdx.x % cluster;
  const int tiles = PAIR ? 1 : (g.cell_len() + H::TN - 1) / H::TN, overlap = g.overlap();
  const int pairs = (g.cells_across() + 1) / 2, tile = order.at(blockIdx.x / cluster, gridDim.x / cluster), at = tile / tiles;
  const Cell cell(g, PAIR ? at / pairs * g.cells_across() + at % pairs * 2 : at);
  const int row0 = blockIdx.y * H::TM, col0 = tile % tiles * H::TN;
  const Covering ys(cell.y, g.down, overlap), xs(cell.x, g.across, overlap), next(cell.x + 1, g.across, overlap);
  // From left to right, the patches that cover the cell, and from where to where those that cover the one beside it.
  const int low = cell.x - xs.first - xs.count + 1, high = cell.x - xs.first;
  const bool two = PAIR && cell.x + 1 < g.cells_across();
  const int low_of_next = two ? cell.x + 1 - next.first - next.count + 1 : PAIR ? high + 1 : low;
  const int high_of_next = two ? cell.x + 1 - next.first : high;
  // Of these, the ones of this block.
  const int all = high_of_next - low + 1, begin = low + all * rank / cluster, end = low + all * (rank + 1) / cluster;
  const int each = ys.count * (g.hidden / H::DEPTH);
  if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&weight_map);

  auto copy = [&](const Ring& ring) {
    int s = 0;
#pragma unroll 1
    for (int px = begin; px < end; ++px)
#pragma unroll 1
      for (int y = 0; y < ys.count; ++y) {
        const int dy = ys.first + y, unit0 = ((cell.y - dy) * g.across + px) * g.hidden;
        // Where the columns of each block lie in the window, below 0 for a block that the window does not reach.
        int entry[H::BLOCKS];
        int blocks = 0;
#pragma unroll
        for (int c = 0; c < H::BLOCKS; ++c) {
          const int dx = cell.x - px + (PAIR ? c : 0);
          entry[c] = dx >= 0 && dx < overlap && (two || !PAIR || c == 0) ? cell.entry(g, PAIR ? 0 : col0 + 64 * c, dy, dx) : -1;
          blocks += entry[c] >= 0;
        }
#pragma unroll 1
        for (int unit = 0; unit < g.hidden; unit += H::DEPTH, ++s) {
          const int stage = s % H::STAGES;
          if (s >= H::STAGES) barrier_wait(ring.empty + stage, (s / H::STAGES - 1) % 2);
          unsigned char* to = ring.slices + stage * H::BYTES;
          uint64_t* here = ring.full + stage;
          barrier_expect(here, H::A_BYTES + H::PB * blocks * H::BLOCK_BYTES);
          copy_block(to, &x_map, unit0 + unit, row0, 0, here);
#pragma unroll
          for (int p = 0; p < H::PB; ++p)
#pragma unroll
            for (int c = 0; c < H::BLOCKS; ++c)
              if (entry[c] >= 0)
                copy_block(to + H::A_BYTES + p * H::B_BYTES + c * H::BLOCK_BYTES, &weight_map, entry[c], unit0 + unit, p, here);
        }
      }
  };
  // How many of them lie before, among and after those that cover both.
  const int before = min(end, low_of_next) - begin, after = end - max(begin, high + 1);
  const int first = max(before, 0), last = max(after, 0);
  const Slices count{(end - begin - first - last) * each, first * each, last * each};
  sum_tile<H>(cluster, count, copy, [&](const Sums<H>& sums) {
    finish_tile<H>(out, sums, bias, counter, n, [&](int line, int along) {
      Cell of = cell;
      if (PAIR) of.x += along / 64;
      const int row = row0 + line, place = of.place(g, PAIR ? along % 64 : col0 + along);
      return row < n.batch && place >= 0 ? Four{(size_t)place, (long long)((size_t)row * g.values + place)} : nowhere();
    });
  });
}

// The choice is in src/patches/warpgroups.rs.
#define PATCH_UP(NAME, T, RUN, WGS, TN, PARTS)                                                                               \
  extern "C" __global__ void __launch_bounds__(128 * WGS + 128, 1)                                                           \
  NAME##_##WGS##x##TN(T* out, const float* bias, const long long* counter, const __grid_constant__ TensorMap x_map,          \
                      const __grid_constant__ TensorMap weight_map, const __grid_constant__ Numbers n) {                     \
    RUN<Shape<WGS, TN, false, T, PARTS, PARTS>>(out, bias, counter, x_map, weight_map, n);                                   \
  }
#define PATCH_DOWN(NAME, T, PAIR, WGS, PARTS)                                                                                \
  extern "C" __global__ void __launch_bounds__(128 * WGS + 128, 1)                                                           \
  NAME##_##WGS##x128(T* out, const float* bias, const long long* counter, const __grid_constant__ TensorMap x_map,           \
                     const __grid_constant__ TensorMap weight_map, const __grid_constant__ Numbers n,                        \
                     const __grid_constant__ Order order) {                                                                  \
    units_down<Shape<WGS, 128, true, T, 1, PARTS>, PAIR>(out, bias, counter, x_map, weight_map, n, order);                   \
  }
#define UP_OF_EVERY_ROWS(NAME, T, RUN, TN, PARTS) \
  PATCH_UP(NAME, T, RUN, 2, TN, PARTS)            \
  PATCH_UP(NAME, T, RUN, 3, TN, PARTS)
#define DOWN_OF_EVERY_ROWS(NAME, T, PARTS)               \
  PATCH_DOWN(patch_down_##NAME, T, false, 2, PARTS)      \
  PATCH_DOWN(patch_down_##NAME, T, false, 3, PARTS)      \
  PATCH_DOWN(patch_down_pairs_##NAME, T, true, 2, PARTS) \
  PATCH_DOWN(patch_down_pairs_##NAME, T, true, 3, PARTS)
#define OF_ONE_PART(NAME, T)                                            \
  UP_OF_EVERY_ROWS(patch_states_up_##NAME, T, states_up, 64, 1)         \
  UP_OF_EVERY_ROWS(patch_states_up_##NAME, T, states_up, 128, 1)        \
  UP_OF_EVERY_ROWS(patch_states_up_##NAME, T, states_up, 192, 1)        \
  UP_OF_EVERY_ROWS(patch_up_##NAME, T, units_up, 64, 1)                 \
  UP_OF_EVERY_ROWS(patch_up_##NAME, T, units_up, 128, 1)                \
  UP_OF_EVERY_ROWS(patch_up_##NAME, T, units_up, 192, 1)                \
  DOWN_OF_EVERY_ROWS(NAME, T, 1)
OF_ONE_PART(f16, __half)
OF_ONE_PART(bf16, __nv_bfloat16)
UP_OF_EVERY_ROWS(patch_up_f16x2, __half, units_up, 64, 2)
UP_OF_EVERY_ROWS(patch_up_f16x2, __half, units_up, 96, 2)
DOWN_OF_EVERY_ROWS(f16x2, __half, 2)
