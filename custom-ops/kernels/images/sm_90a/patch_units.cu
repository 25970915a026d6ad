// sm_90a/patch_units.cu: units of a product with the weights of patches, up or down, in one launch,
// by the products of warpgroups of capability 9.0: out = units(scale * x W + bias). The tile of a
// product is that of product_tile.cuh, tiles and units are those of patch_units.cu.
//
// Values of the grid lie so that 64 that follow each other in a window do so in a row, too: all
// copies are by tensor maps. Down, a tile is two neighbours among cells of 64 values, or columns of
// larger ones; a k-block is hidden units of a patch, which the two cells share, but for the patches
// at the ends, which reach one of them. Blocks of a cluster share the patches of a tile.
//
// Up to units of 0 and 1, from numbers in one part, a block for each multiprocessor takes tiles one
// after the other (product_tiles.cuh) and finishes them from registers, while k-blocks of the next
// arrive. All multiprocessors finish at about the same time, and meanwhile nothing is multiplied.
// The finish is a loop: written out for all columns it is three times the code, and the step slower
// (NOTES.md).
//
// arrays   those of patch_units.cu, as tensor maps: x [batch, values] or [batch, patches * hidden],
//          blocks of 64 WGS lines; weights [patches * hidden, window_len], blocks of TN lines up,
//          of 64 lines down; DEPTH columns (weights down: 64), the third dimension is the part
// scalars  those of patch_units.cu; stride * depth and hidden are multiples of 64, window of stride
//          Of states up, hidden is a multiple of TN
// launch   grid (cluster * patches or cells or pairs of them, times tiles across; tiles of rows),
//          of states up any number of blocks across; 128 WGS + 128 threads
// shared   STAGES k-blocks and 1 KB to align them; the tile of sums takes their place, but for
//          states up
// cost     2 * batch * weights FLOP for each pair of parts; windows once for each tile across,
//          weights once for each tile of rows; down, hidden units once for each tile: those of 12
//          patches for two cells of windows of three cells by three
// NaN      as in units.cu
// same     sums in one order on one device; draws are those of the CPU
// truth    patch_product_reference and units_reference

#include "images/patch_units.cuh"
#include "layers/sm_90a/product_tiles.cuh"

constexpr int Q = 4;               // fours of units that a thread makes at once
constexpr long long NOWHERE = -4;  // their place where there is nothing to write

// The units of this block's part of a tile of the minibatch from row0 on, `unit` the first of this
// thread's four in planes with lines of `width`, below 0 for none.
template <typename H, typename T>
__device__ __forceinline__ void finish_tile(T* out, const Sums<H>& sums, const float* bias, const long long* counter, const Numbers& n,
                                            int row0, int width, int unit) {
  if (unit < 0) return;
  const Philox philox = philox_at(n.seed, n.stream, n.offset, counter);
  const int end = min(sums.end, n.batch - row0);
  float of_bias[4];
  load_biases(bias, unit, of_bias);
#pragma unroll 1
  for (int first = sums.first(); first < end; first += Q * sums.APART) {
    long long at[Q];
    int row[Q];
    float x[Q][4];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const int line = first + q * sums.APART;
      row[q] = row0 + line;
      at[q] = line < end ? (long long)row[q] * width + unit : NOWHERE;
      sums.read(min(line, end - 1), x[q]);
    }
    finish_units<!H::EXACT>(out, x, of_bias, at, row, philox, n);
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
    Stage<H::STAGES> stage;
#pragma unroll 1
    for (int s = 0; s < count; ++s, stage.next()) {
      uint64_t* here = announce(ring.full, ring.empty, stage, H::BYTES);
      unsigned char* to = ring.k_blocks + stage.at * H::BYTES;
#pragma unroll
      for (int p = 0; p < H::PA; ++p, to += H::A_BYTES) copy_block(to, &x_map, origin + g.entry(s * H::DEPTH), row0, p, here);
#pragma unroll
      for (int p = 0; p < H::PB; ++p, to += H::B_BYTES) copy_block(to, &weight_map, s * H::DEPTH, unit0 + col0, p, here);
    }
  };
  sum_tile<H>(1, {count}, copy, [&](const Sums<H>& sums) {
    const int col = col0 + sums.along();
    finish_tile(out, sums, bias, counter, n, row0, g.units(), col < g.hidden ? unit0 + col : -1);
  });
}

// The sums of this thread in two times 16 neighbouring columns, the pair-th 32 of them, which all
// threads of a warp take at once. Sums lie in registers, through which a loop cannot count.
template <int PAIR = 0, int N>
__device__ __forceinline__ void take_sums(const float (&sum)[N], int pair, float (&to)[16]) {
  if constexpr (16 * PAIR < N) {
    if (pair != PAIR) return take_sums<PAIR + 1>(sum, pair, to);
#pragma unroll
    for (int j = 0; j < 16; ++j) asm volatile("mov.b32 %0, %1;" : "=f"(to[j]) : "f"(sum[16 * PAIR + j]));  // a branch, not a choice for each number
  }
}

// Writes 32 columns, from where `row` is, of that row and of the eighth below it, as far as they
// are `inside`. v[2 c + half]: four neighbours of the c-th 16 columns, from Exchanged::along() on,
// of one of both rows. Lanes two apart give each other fours, so that each writes eight neighbours
// and the four of a row 64 bytes at once.
template <typename T>
__device__ __forceinline__ void store_eights(T* row, size_t width, const bool (&inside)[2], const float (&v)[4][4]) {
  const bool second = threadIdx.x / 2 % 2;
  row += threadIdx.x % 2 * 8 + (second ? 16 : 0);
#pragma unroll
  for (int half = 0; half < 2; ++half, row += 8 * width) {
    const uint2 first = packed4<T>(v[half]), last = packed4<T>(v[2 + half]);
    const uint2 mine = second ? last : first, given = second ? first : last;
    const uint2 got = make_uint2(__shfl_xor_sync(~0u, given.x, 2), __shfl_xor_sync(~0u, given.y, 2));
    const uint4 all = second ? make_uint4(got.x, got.y, mine.x, mine.y) : make_uint4(mine.x, mine.y, got.x, got.y);
    if (inside[half]) *reinterpret_cast<uint4*>(row) = all;
  }
}

// What is written besides means.
enum class Samples { NONE, LIKELIEST, DRAWN };

// Units of 0 and 1 of one warpgroup's part of a tile, 32 columns at a time: of row `row` and the
// eighth below, from `unit` on.
template <Samples SAMPLES, typename H, typename T>
__device__ __forceinline__ void finish_states(T* out, const float (&sum)[H::TN / 2], const float* bias, const Philox& philox, int row,
                                              int unit, const Numbers& n) {
  const size_t width = n.grid.units(), place = (size_t)row * width + unit;
  const bool inside[2] = {row < n.batch, row + 8 < n.batch};
  T *means = out + n.mean_at + place, *samples = out + n.sample_at + place;
  bias += unit + Exchanged::along();
  float next_bias[2][4];
#pragma unroll
  for (int c = 0; c < 2; ++c) load4(bias + 16 * c, next_bias[c]);
#pragma unroll 1
  for (int pair = 0; pair < H::TN / 32; ++pair, means += 32, samples += 32) {
    float taken[16], mean[4][4];
    take_sums(sum, pair, taken);
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const int c = f / 2, half = f % 2;
      float x[4];
      Exchanged::four(taken + 8 * c + 2 * half, taken + 8 * c + 4 + 2 * half, x);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = fmaf(n.scale, x[j], next_bias[c][j]);
      means_of<BERNOULLI, true>(x, mean[f]);
    }
    bias += 32;
    if (pair + 1 < H::TN / 32)  // of the next columns while these are finished
#pragma unroll
      for (int c = 0; c < 2; ++c) load4(bias + 16 * c, next_bias[c]);
    if (SAMPLES != Samples::NONE) {
      float sample[4][4];
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const unsigned long long at = place + 8 * (f % 2) * width + 32 * pair + 16 * (f / 2) + Exchanged::along();
        const unsigned long long block = at / 4 + (row + 8 * (f % 2)) * n.apart;
        samples_of<BERNOULLI>(mean[f], mean[f], mean[f], SAMPLES == Samples::DRAWN, philox, block, sample[f]);
      }
      store_eights(samples, width, inside, sample);
    }
    if (n.mean_at >= 0) {
#pragma unroll
      for (int f = 0; f < 4; ++f)
#pragma unroll
        for (int j = 0; j < 4; ++j) mean[f][j] = n.mean_scale * mean[f][j];
      store_eights(means, width, inside, mean);
    }
  }
}

// The same for units of 0 and 1, from numbers in one part, tile after tile: tiles blockIdx.x, +
// gridDim.x and so on.
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
    const int row = row0 + Exchanged::line(), unit = tile_of(i) * H::TN;
    if (n.sample_at < 0) finish_states<Samples::NONE, H>(out, sum, bias, philox, row, unit, n);
    else if (n.drawn) finish_states<Samples::DRAWN, H>(out, sum, bias, philox, row, unit, n);
    else finish_states<Samples::LIKELIEST, H>(out, sum, bias, philox, row, unit, n);
  });
}

// Tiles across in the order in which blocks take them, those of the most patches first: the longest
// sums then begin first, and multiprocessors end at nearly the same time. Without a plan the last
// comes first, and so it does among those of equally many patches: the product up before has just
// read the last weights. In steps of 192 x 192 images that saves 1 to 2 %; at 144 x 144 nothing was
// seen.
struct Order {
  unsigned count;  // of the tiles, or 0 without a plan
  unsigned short tile[1022];
  __device__ int at(int i, int all) const { return count > 0 ? tile[i] : all - 1 - i; }
};

// Tiles down: rows of the minibatch by the values of two cells, or by columns of one.
template <typename H, typename T>
__device__ __forceinline__ void units_down(T* out, const float* bias, const long long* counter, const TensorMap& x_map,
                                           const TensorMap& weight_map, const Numbers& n, const Order& order) {
  constexpr bool PAIR = H::ALONE;
  const Grid& g = n.grid;
  const int cluster = n.cluster, rank = blockIdx.x % cluster;
  const int tiles = PAIR ? 1 : (g.cell_len() + H::TN - 1) / H::TN, overlap = g.overlap();
  const int pairs = (g.cells_across() + 1) / 2, tile = order.at(blockIdx.x / cluster, gridDim.x / cluster), at = tile / tiles;
  const Cell cell(g, PAIR ? at / pairs * g.cells_across() + at % pairs * 2 : at);
  const int row0 = blockIdx.y * H::TM, col0 = tile % tiles * H::TN;
  const Covering ys(cell.y, g.down, overlap), xs(cell.x, g.across, overlap), next(cell.x + 1, g.across, overlap);
  // From left to right, the patches that cover the cell, and from where to where those that cover
  // the one beside it.
  const int low = cell.x - xs.first - xs.count + 1, high = cell.x - xs.first;
  const bool two = PAIR && cell.x + 1 < g.cells_across();
  const int low_of_next = two ? cell.x + 1 - next.first - next.count + 1 : PAIR ? high + 1 : low;
  const int high_of_next = two ? cell.x + 1 - next.first : high;
  // Of these, the ones of this block.
  const int all = high_of_next - low + 1, begin = low + all * rank / cluster, end = low + all * (rank + 1) / cluster;
  const int each = ys.count * (g.hidden / H::DEPTH);
  if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&weight_map);

  auto copy = [&](const Ring& ring) {
    Stage<H::STAGES> stage;
#pragma unroll 1
    for (int px = begin; px < end; ++px)
#pragma unroll 1
      for (int y = 0; y < ys.count; ++y) {
        const int dy = ys.first + y, unit0 = ((cell.y - dy) * g.across + px) * g.hidden;
        // Where the columns of each block lie in the window, below 0 for a block that the window
        // does not reach.
        int entry[H::BLOCKS];
        int blocks = 0;
#pragma unroll
        for (int c = 0; c < H::BLOCKS; ++c) {
          const int dx = cell.x - px + (PAIR ? c : 0);
          entry[c] = dx >= 0 && dx < overlap && (two || !PAIR || c == 0) ? cell.entry(g, PAIR ? 0 : col0 + 64 * c, dy, dx) : -1;
          blocks += entry[c] >= 0;
        }
#pragma unroll 1
        for (int unit = 0; unit < g.hidden; unit += H::DEPTH, stage.next()) {
          uint64_t* here = announce(ring.full, ring.empty, stage, H::A_BYTES + H::PB * blocks * H::BLOCK_BYTES);
          unsigned char* to = ring.k_blocks + stage.at * H::BYTES;
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
    const int along = sums.along();
    Cell of = cell;
    if (PAIR) of.x += along / 64;
    finish_tile(out, sums, bias, counter, n, row0, g.values, of.place(g, PAIR ? along % 64 : col0 + along));
  });
}

// The choice is in src/images/patches/warpgroups.rs.
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
    units_down<Shape<WGS, 128, true, T, 1, PARTS, PAIR>>(out, bias, counter, x_map, weight_map, n, order);                   \
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
