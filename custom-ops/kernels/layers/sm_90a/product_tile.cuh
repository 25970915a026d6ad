// product_tile.cuh: the tile of a product of 16-bit numbers, or of numbers in two parts, by the
// products of warpgroups of capability 9.0, and what is done with its entries, in one kernel.
//
// A block sums a tile of 64 WGS x TN entries: one thread of a further warp copies k-blocks of both
// operands, DEPTH entries of the depth at a time, through a ring of STAGES stages; WGS warpgroups
// multiply them. Blocks of a cluster share a tile: each sums a stretch of the depth, then each
// finishes a part of the rows from everyone's sums, read from their shared memory. `sum_tile` is
// for any operands, `tile_of_product` for two matrices.
//
// A number in two parts is the sum of two f16 ones, and the product of both second parts is left
// out. Tensor cores cut off what lies below 2^-24 of a sum or so, where f32 rounds, and over a long
// sum that adds up: the sums of a k-block, those with second parts first, are added to f32 ones
// outside. Numbers in one part are summed in the tensor cores.
//
// arrays   a: PA of [m, k]; b: PB of [n, k] (K-major) or [k, n] (transposed), T, as tensor maps of
//          blocks of DEPTH entries by lines_of_a(m) and TN lines, their third dimension the part; b
//          transposed as TensorMap::of_columns has TN columns by DEPTH lines
// scalars  n a multiple of 4, rows of a and b of 8 entries
// launch   grid (S * tiles across n, tiles across m), clusters of S <= MOST along x; Shape::BLOCK
//          threads
// shared   the k-blocks of a block, at most STAGES, and 1 KB to align them; the tile of sums takes
//          their place
// cost     2mnk FLOP for each pair of parts; operands once for each tile
#pragma once

#include "core/cluster.cuh"
#include "core/order.cuh"
#include "core/sm_90a/wgmma.cuh"

constexpr int RING = 216 * 1024;  // at most
constexpr int MOST = 8;           // blocks of a cluster

// PA and PB: parts of a and of b. TRANSPOSED_A: a comes in blocks of 64 rows along the depth, one for
// each warpgroup, which a shape that is made of this one may ask for. ALONE: each of two transposed blocks of 64 columns has k-blocks
// of its own, too. Both then always have products of their own: with those of both together there
// are not enough registers.
template <int WGS_, int TN_, bool TRANSPOSED_, typename T_, int PA_, int PB_, bool ALONE_ = false>
struct Shape {
  using T = T_;
  static constexpr int WGS = WGS_, TN = TN_, TM = 64 * WGS, PA = PA_, PB = PB_;
  static constexpr bool TRANSPOSED_A = false, TRANSPOSED = TRANSPOSED_, ALONE = ALONE_, EXACT = PB == 2;  // sums are added outside the tensor cores
  static constexpr int THREADS = 128 * WGS;  // that multiply
  // Of four parts, k-blocks half as deep leave more stages in the ring.
  static constexpr int DEPTH = PA == 2 ? 32 : 64, LINE = 2 * DEPTH, B_LINE = TRANSPOSED ? BLOCK_LINE : LINE;
  static constexpr int A_BYTES = TM * LINE, B_BYTES = TN * LINE, BYTES = PA * A_BYTES + PB * B_BYTES;  // of a k-block
  static constexpr int STAGES = RING / BYTES < 8 ? RING / BYTES : 8;
  static constexpr int TILE_LINE = TN + 4;
  static constexpr int N = ALONE ? 64 : TN;                    // columns of one product
  static constexpr int BLOCK_BYTES = DEPTH * BLOCK_LINE;       // of a transposed block
  // Both sums of a warpgroup of three take more registers than a quarter of all.
  static constexpr bool UNEVEN = EXACT && WGS == 3 && TN > 64;
  // Registers are given by warpgroups, so a whole one copies where there is more than one.
  static constexpr int BLOCK = THREADS + (WGS == 1 ? 32 : 128);
  static constexpr int BLOCKS = TRANSPOSED ? TN / 64 : 1;
  // Lines of a that come for a tile: of few rows in all no others, which would take as long as those
  // of b. What lies below in shared memory gives sums that nobody reads.
  static __device__ int lines_of_a(int m) { return min(TM, (m + 7) / 8 * 8); }
  static_assert(!TRANSPOSED || TN % 64 == 0, "a transposed operand comes in blocks of 64 columns");
  static_assert(!ALONE || (TRANSPOSED && TN == 128), "two of them may be alone");
};

// A product of [m, k] by [k, n] and the blocks that share a tile.
struct Extent {
  int m, n, k, cluster;
};

// Where tile i of `across` by `down` lies, in the order in which blocks take them: row after row; of
// more than FEW across column after column of up to BAND rows, since blocks that run together then
// read few other lines of both operands, which the second-level cache holds (NOTES.md).
template <int BAND>
struct TilePlace {
  static constexpr int FEW = 40;
  int row, col;
  __device__ TilePlace(int i, int across, int down) {
    const int bands = across > FEW ? (down + BAND - 1) / BAND : down, height = (down + bands - 1) / bands;
    const int band = i / (height * across), left = i - band * height * across, here = min(height, down - band * height);
    row = band * height + left % here, col = left / here;
  }
};

// The ring as the thread that copies sees it.
struct Ring {
  unsigned char* k_blocks;
  uint64_t *full, *empty;
};

// How many k-blocks there are for every block of columns, and before and after these for the first
// and for the last of two blocks ALONE.
struct Slices {
  int all, first = 0, last = 0;
};

// The sums of a tile in shared memory, of which a block of the cluster finishes the lines from
// `begin` to `end`.
template <typename H>
struct Sums {
  const float* tile;
  int cluster, begin, end;

  // A thread finishes the four columns from along() on, in lines that lie APART, from first() on.
  static constexpr int FOURS = H::TN / 4, APART = H::THREADS / FOURS;
  static __device__ int along() { return threadIdx.x % FOURS * 4; }
  __device__ int first() const { return threadIdx.x < APART * FOURS ? begin + threadIdx.x / FOURS : end; }
  // Those four of a line of the tile.
  __device__ void read(int line, float (&x)[4]) const {
    const float* at = tile + line * H::TILE_LINE + along();
    if (cluster == 1) return load4(at, x);
    float4 of[MOST];
#pragma unroll
    for (int r = 0; r < MOST; ++r)
      if (r < cluster) of[r] = read_of(at, r);
    x[0] = x[1] = x[2] = x[3] = 0.f;
#pragma unroll
    for (int r = 0; r < MOST; ++r)
      if (r < cluster) x[0] += of[r].x, x[1] += of[r].y, x[2] += of[r].z, x[3] += of[r].w;
  }
};

// sum += a b, or sum = a b without ADD, for products FROM to TO of N columns over the depth of a
// k-block; a and b: 64 rows and TN columns of one part.
template <typename H, int FROM, int TO, bool ADD>
__device__ __forceinline__ void multiply_k_block(float (&sum)[H::TN / 2], uint64_t a, uint64_t b) {
  using Product = Wgmma<typename H::T, H::N, H::TRANSPOSED_A, H::TRANSPOSED>;
#pragma unroll
  for (int k = 0; k < H::DEPTH / 16; ++k) {
    // 16 entries are 32 bytes of a line, or 16 lines.
    const uint64_t of_a = advance(a, (H::TRANSPOSED_A ? 16 * BLOCK_LINE : 32) * k);
    const uint64_t of_b = advance(b, FROM * H::BLOCK_BYTES + (H::TRANSPOSED ? 16 * BLOCK_LINE : 32) * k);
    if (ADD || k > 0) Product::template run<FROM * H::N / 2, true>(sum, of_a, of_b);
    else Product::template run<FROM * H::N / 2, false>(sum, of_a, of_b);
  }
  if constexpr (FROM + 1 < TO) multiply_k_block<H, FROM + 1, TO, ADD>(sum, a, b);
}

// The operands of a warpgroup in the stages of the ring, in their first parts.
template <typename H>
struct Operands {
  uint64_t first_a, first_b;
  __device__ explicit Operands(const unsigned char* k_blocks) {
    const uint32_t at = kept_address(k_blocks);
    first_a = operand<H::LINE>(at + warp_of_block() / 4 * 64 * H::LINE);
    first_b = operand<H::B_LINE>(at + H::PA * H::A_BYTES, H::TRANSPOSED ? H::BLOCK_BYTES : 0);
  }
  __device__ uint64_t a(int stage) const { return advance(first_a, stage * H::BYTES); }
  __device__ uint64_t b(int stage) const { return advance(first_b, stage * H::BYTES); }
};

// The tile of this block's cluster. One thread calls copy(ring), which copies the k-blocks in turn;
// the threads that multiply then call finish(sums), and this says whether the thread is one of
// them. All have waited for the launch before when copy and finish are called.
template <typename H, typename Copy, typename Finish>
__device__ __forceinline__ bool sum_tile(int cluster, Slices count, Copy copy, Finish finish) {
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::STAGES], empty[H::STAGES];
  unsigned char* k_blocks = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int rank = blockIdx.x % cluster, warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < H::STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, H::WGS);
    barriers_made();
  }
  __syncthreads();
  wait_for_previous();
  launch_dependents();

  if (warp >= 4 * H::WGS) {
    if (H::UNEVEN) give_registers<32>();
    if (warp == 4 * H::WGS && lane == 0) copy(Ring{k_blocks, full, empty});
    return false;  // all copies are waited for by others
  }
  if (H::UNEVEN) take_registers<160>();
  float sum[H::TN / 2] = {}, exact[H::EXACT ? H::TN / 2 : 1] = {};
  const Barriers here(full), used(empty);
  const Operands<H> operands(k_blocks);
  auto release = [&](int stage) {
    if (threadIdx.x % 128 == 0) used.arrive(stage);
  };
  int s = 0, last_stage = 0;
  Stage<H::STAGES> stage;
  auto multiply_to = [&](auto from, auto to, int end) {
    constexpr int FROM = decltype(from)::value, TO = decltype(to)::value;
#pragma unroll 1
    for (; s < end; ++s, stage.next()) {
      here.wait(stage.at, stage.parity);
      const uint64_t a = operands.a(stage.at), b = operands.b(stage.at);
      wgmma_fence();
      if constexpr (H::EXACT) {
        // The products with second parts first: less is cut off while the sum is small.
        multiply_k_block<H, FROM, TO, false>(sum, a, advance(b, H::B_BYTES));
        if constexpr (H::PA == 2) multiply_k_block<H, FROM, TO, true>(sum, advance(a, H::A_BYTES), b);
        multiply_k_block<H, FROM, TO, true>(sum, a, b);
        wgmma_commit();
        wgmma_wait<0>();
        release(stage.at);
        summed(sum, FROM * H::N / 2, TO * H::N / 2);
#pragma unroll
        for (int i = FROM * H::N / 2; i < TO * H::N / 2; ++i) exact[i] += sum[i];
      } else {
        multiply_k_block<H, FROM, TO, true>(sum, a, b);
        wgmma_commit();
        // The products of the k-block before are done: its stage is free.
        wgmma_wait<1>();
        if (s > 0) release(last_stage);
        last_stage = stage.at;
      }
    }
    wgmma_wait<0>();
    summed(sum, FROM * H::N / 2, TO * H::N / 2);
  };
  constexpr Number<0> zero;
  constexpr Number<H::TN / H::N> all;
  if constexpr (H::ALONE) multiply_to(zero, Number<1>(), count.first);
  multiply_to(zero, all, count.first + count.all);
  if constexpr (H::ALONE) multiply_to(Number<1>(), all, count.first + count.all + count.last);
  all_multiplied<H::THREADS>();

  float* tile = reinterpret_cast<float*>(k_blocks);
#pragma unroll
  for (int c = 0; c < H::TN / 8; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2* at = reinterpret_cast<float2*>(tile + (16 * warp + lane / 4 + 8 * half) * H::TILE_LINE + 8 * c + lane % 4 * 2);
      const float* of = (H::EXACT ? exact : sum) + 4 * c + 2 * half;
      *at = make_float2(of[0], of[1]);
    }
  if (cluster > 1) cluster_sync();
  else all_multiplied<H::THREADS>();

  finish(Sums<H>{tile, cluster, H::TM * rank / cluster, H::TM * (rank + 1) / cluster});
  if (cluster > 1) cluster_sync();  // nobody leaves while its tile is read
  return true;
}

// Starts the copies of `count` k-blocks of both operands in turn, from `first` on, each `step`
// further along the depth, one thread; a has m rows, b n columns.
template <typename H>
__device__ __forceinline__ void copy_k_blocks(const Ring& ring, const TensorMap& a_map, const TensorMap& b_map, int row0, int col0, int first,
                                            int step, int count, int m, int n) {
  const bool whole = n % 64 == 0;
  const int bytes = H::BYTES - H::PA * (H::A_BYTES - H::lines_of_a(m) * H::LINE);
  Stage<H::STAGES> stage;
#pragma unroll 1
  for (int s = 0; s < count; ++s, stage.next()) {
    const int k = (first + step * s) * H::DEPTH;
    uint64_t* here = announce(ring.full, ring.empty, stage, bytes);
    unsigned char* to = ring.k_blocks + stage.at * H::BYTES;
#pragma unroll
    for (int p = 0; p < H::PA; ++p, to += H::A_BYTES) copy_block(to, &a_map, k, row0, p, here);
#pragma unroll
    for (int p = 0; p < H::PB; ++p, to += H::B_BYTES) {
      if (H::TRANSPOSED) copy_columns<H::BLOCKS>(to, H::BLOCK_BYTES, &b_map, col0, k, p, whole, here);
      else copy_block(to, &b_map, k, col0, p, here);
    }
  }
}

// A tile of the product of two matrices. Each thread that multiplies calls begin(column) for what
// finishes four neighbours x of the result from that column on, in one order on one device:
// finish(row) reads what it needs of a row, and what it returns is called with the sums. Whether
// this thread is one of them.
template <typename H, typename Begin>
__device__ __forceinline__ bool tile_of_product(const TensorMap& a_map, const TensorMap& b_map, const Extent& n, Begin begin) {
  const int cluster = n.cluster, rank = blockIdx.x % cluster;
  const TilePlace<12> at((blockIdx.y * gridDim.x + blockIdx.x) / cluster, gridDim.x / cluster, gridDim.y);
  const int row0 = at.row * H::TM, col0 = at.col * H::TN;
  const int all = (n.k + H::DEPTH - 1) / H::DEPTH;
  // A transposed operand lies in memory along the depth. All blocks go through it together and from
  // its end, which the product of the K-major operand before has read last, as products up and down
  // take turns.
  const int begin_at = all * rank / cluster;
  const int first = H::TRANSPOSED ? all - 1 - rank : begin_at, step = H::TRANSPOSED ? -cluster : 1;
  const int count = H::TRANSPOSED ? (all - rank + cluster - 1) / cluster : all * (rank + 1) / cluster - begin_at;
  if (threadIdx.x == 0) {
    prefetch_map(&a_map);
    prefetch_map(&b_map);
  }
  auto copy = [&](const Ring& ring) { copy_k_blocks<H>(ring, a_map, b_map, row0, col0, first, step, count, n.m, n.n); };
  return sum_tile<H>(cluster, {count}, copy, [&](const Sums<H>& sums) {
    const int col = col0 + sums.along(), end = min(sums.end, n.m - row0);
    if (col >= n.n) return;  // n is a multiple of 4
    const auto finish = begin(col);
#pragma unroll 1
    for (int line = sums.first(); line < end; line += 2 * sums.APART) {
      const bool two = line + sums.APART < end;
      const int next = two ? line + sums.APART : line;
      auto take = finish(row0 + line), take_next = finish(row0 + next);  // while the sums are on their way
      float x[4], of_next[4];
      sums.read(line, x);
      if (two) sums.read(next, of_next);
      take(x);
      if (two) take_next(of_next);
    }
  });
}

// A kernel for a shape: its name, its parameters in parentheses, its body and the shape's numbers.
#define OF_TILE(NAME, PARAMETERS, RUN, ...)                                                       \
  extern "C" __global__ void __launch_bounds__(Shape<__VA_ARGS__>::BLOCK, 1) NAME PARAMETERS {    \
    using H = Shape<__VA_ARGS__>;                                                                 \
    RUN;                                                                                          \
  }
