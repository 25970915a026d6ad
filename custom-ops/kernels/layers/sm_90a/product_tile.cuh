// product_tile.cuh: the tile of a product of 16-bit numbers, or of numbers in two parts, by the
// products of warpgroups of capability 9.0, and what is done with its entries, in one kernel.
//
// A block sums a tile: one thread of a further warp copies k-blocks of both operands, DEPTH entries
// of the depth at a time, through a ring of stages; WGS warpgroups multiply them. Blocks of a
// cluster share a tile: each sums a stretch of the depth, then each finishes a part of the rows
// from everyone's sums, read from their shared memory. `sum_tile` is for any operands,
// `tile_of_product` for two matrices.
//
// The hardware's products have 64 rows and any multiple of 8 columns. A tile of Shape has their
// rows: 64 WGS. One of Turned has its columns in their rows, so that its own rows are any multiple
// of 16: minibatches of 193 rows take little longer than those of 192, and those of 8 multiply no
// others.
//
// A number in two parts is the sum of two f16 ones, and the product of both second parts is left
// out. Tensor cores cut off what lies below 2^-24 of a sum or so, where f32 rounds, and over a long
// sum that adds up: the sums of a k-block, those with second parts first, are added to f32 ones
// outside, those of half the rows while the other half's products run where there are many. Numbers
// in one part are summed in the tensor cores, and those of a form that is not EXACT.
//
// arrays   a: PA of [m, k]; b: PB of [n, k] (K-major) or [k, n] (transposed), T, as tensor maps of
//          blocks of DEPTH entries by the lines of a that come for a tile (Room) and TN lines,
//          their third dimension the part; b transposed as TensorMap::of_columns has TN columns by
//          DEPTH lines
// scalars  n a multiple of 4, rows of a and b of 8 entries
// launch   grid (S * tiles across n, tiles across m), clusters of S <= MOST along x; BLOCK threads
// shared   the k-blocks of a block, as many as its ring has stages at most, and 1 KB to align them;
//          the tile of sums takes their place
// cost     2mnk FLOP for each pair of parts; operands once for each tile
#pragma once

#include "core/cluster.cuh"
#include "core/order.cuh"
#include "core/sm_90a/wgmma.cuh"

constexpr int RING = 216 * 1024;  // at most
constexpr int MOST = 8;           // blocks of a cluster

// The rows of a tile, and the ring: bytes of a part of its a, of a k-block, and stages.
struct Room {
  int rows, a_bytes, bytes, stages;
  // Lines of a, of m in all, that come for the tile: of few no others, which would take as long as
  // those of b. What lies below in shared memory gives sums that nobody reads.
  __device__ int lines_of_a(int m) const { return min(rows, (m + 7) / 8 * 8); }
};

// What all tiles have. PA and PB: parts of a and of b.
template <int WGS_, int TN_, bool TRANSPOSED_, typename T_, int PA_, int PB_>
struct Tile {
  using T = T_;
  static constexpr int WGS = WGS_, TN = TN_, PA = PA_, PB = PB_, MOST_STAGES = 8;
  static constexpr bool TRANSPOSED = TRANSPOSED_, EXACT = PB == 2;  // sums are added outside the tensor cores
  static constexpr int THREADS = 128 * WGS;  // that multiply
  // Of four parts, k-blocks half as deep leave more stages in the ring.
  static constexpr int DEPTH = PA == 2 ? 32 : 64, LINE = 2 * DEPTH, B_LINE = TRANSPOSED ? BLOCK_LINE : LINE;
  static constexpr int B_BYTES = TN * LINE;
  static constexpr int TILE_LINE = TN + 4;
  static constexpr int BLOCK_BYTES = DEPTH * BLOCK_LINE;  // of a transposed block
  // Registers are given by warpgroups, so a whole one copies where there is more than one.
  static constexpr int BLOCK = THREADS + (WGS == 1 ? 32 : 128);
  static constexpr int BLOCKS = TRANSPOSED ? TN / 64 : 1;
  // Registers of a thread that multiplies, and of one that copies, where the sums of the former,
  // both those of a k-block and those outside, leave it too few of an equal part of all.
  static constexpr int TAKEN = WGS == 2 ? 240 : WGS == 3 ? 160 : 112, GIVEN = WGS == 3 ? 32 : 24;
  static constexpr bool uneven(int sums) { return EXACT && 2 * sums + 40 > 65536 / BLOCK; }
  static_assert(!TRANSPOSED || TN % 64 == 0, "a transposed operand comes in blocks of 64 columns");
};

// TRANSPOSED_A: a comes in blocks of 64 rows along the depth, one for each warpgroup, which a shape
// that is made of this one may ask for. ALONE: each of two transposed blocks of 64 columns has
// k-blocks of its own, too. Both then always have products of their own: with those of both
// together there are not enough registers.
template <int WGS_, int TN_, bool TRANSPOSED_, typename T_, int PA_, int PB_, bool ALONE_ = false>
struct Shape : Tile<WGS_, TN_, TRANSPOSED_, T_, PA_, PB_> {
  using Base = Tile<WGS_, TN_, TRANSPOSED_, T_, PA_, PB_>;
  static constexpr int WGS = WGS_, TN = TN_, TM = 64 * WGS, SUMS = TN / 2;
  static constexpr bool TURNED = false, TRANSPOSED_A = false, ALONE = ALONE_;
  static constexpr int A_BYTES = TM * Base::LINE, BYTES = PA_ * A_BYTES + PB_ * Base::B_BYTES;  // of a k-block
  static constexpr int STAGES = RING / BYTES < Base::MOST_STAGES ? RING / BYTES : Base::MOST_STAGES;
  static constexpr int N = ALONE ? 64 : TN;  // columns of one product
  static constexpr bool UNEVEN = Base::uneven(SUMS);
  static __device__ Room room(int, int) { return {TM, A_BYTES, BYTES, STAGES}; }
  static_assert(!ALONE || (TRANSPOSED_ && TN == 128), "two of them may be alone");
};

// UNITS warpgroups beside each other have 64 columns each, in all rows of a tile, or ROWS of them
// below each other in a part of these: each at most MOST.
template <int UNITS_, int ROWS_, int MOST_, bool TRANSPOSED_, typename T_, int PA_, int PB_>
struct Turned : Tile<UNITS_ * ROWS_, 64 * UNITS_, TRANSPOSED_, T_, PA_, PB_> {
  using Base = Tile<UNITS_ * ROWS_, 64 * UNITS_, TRANSPOSED_, T_, PA_, PB_>;
  static constexpr int UNITS = UNITS_, ROWS = ROWS_, MOST = MOST_, SUMS = MOST / 2, STEP = 16;
  static constexpr bool TURNED = true, UNEVEN = Base::uneven(SUMS);
  // Of m rows in tiles below each other, all of which have equally many.
  static __device__ Room room(int m, int down) {
    const int rows = ((m + down - 1) / down + ROWS * STEP - 1) / (ROWS * STEP) * (ROWS * STEP);
    const int a_bytes = rows * Base::LINE, bytes = PA_ * a_bytes + PB_ * Base::B_BYTES;
    return {rows, a_bytes, bytes, min(RING / bytes, Base::MOST_STAGES)};
  }
};

// A product of [m, k] by [k, n] and the blocks that share a tile.
struct Extent {
  int m, n, k, cluster;
};

// Where tile i of `across` by `down` lies, in the order in which blocks take them: row after row;
// of more than FEW across column after column of up to `most` rows, since blocks that run together
// then read few other lines of both operands, which the second-level cache holds (NOTES.md).
struct TilePlace {
  static constexpr int FEW = 40;
  int row, col;
  __device__ TilePlace(int i, int across, int down, int most) {
    const int bands = across > FEW ? (down + most - 1) / most : down, height = (down + bands - 1) / bands;
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

// sum += a b, or sum = a b without ADD, over the depth of a k-block, of sums BEGIN to END; a and b:
// the lines of a warpgroup, of one part. Those of Shape are products FROM to TO of N columns.
template <typename H, int FROM = 0, int TO = H::TN / H::N>
struct Products {
  static constexpr int BEGIN = FROM * H::N / 2, END = TO * H::N / 2;
  static constexpr bool HALVES = false;
  template <bool ADD>
  static __device__ __forceinline__ void run(float (&sum)[H::SUMS], uint64_t a, uint64_t b) {
    using Product = Wgmma<typename H::T, H::N, H::TRANSPOSED_A, H::TRANSPOSED>;
#pragma unroll
    for (int k = 0; k < H::DEPTH / 16; ++k) {
      // 16 entries are 32 bytes of a line, or 16 lines.
      const uint64_t of_a = advance(a, (H::TRANSPOSED_A ? 16 * BLOCK_LINE : 32) * k);
      const uint64_t of_b = advance(b, FROM * H::BLOCK_BYTES + (H::TRANSPOSED ? 16 * BLOCK_LINE : 32) * k);
      if (ADD || k > 0) Product::template run<BEGIN, true>(sum, of_a, of_b);
      else Product::template run<BEGIN, false>(sum, of_a, of_b);
    }
    if constexpr (FROM + 1 < TO) Products<H, FROM + 1, TO>::template run<ADD>(sum, a, b);
  }
};

// Those of Turned, rows FROM to TO of a warpgroup.
template <typename H, int TO, int FROM = 0>
struct TurnedProducts {
  static constexpr int BEGIN = FROM / 2, END = TO / 2;
  static constexpr bool HALVES = H::EXACT && H::PA == 2 && TO - FROM >= 128;
  static constexpr int MIDDLE = FROM + (TO - FROM + 16) / 32 * 16;
  using First = TurnedProducts<H, MIDDLE, FROM>;
  using Last = TurnedProducts<H, TO, MIDDLE>;
  template <bool ADD>
  static __device__ __forceinline__ void run(float (&sum)[H::SUMS], uint64_t a, uint64_t b) {
    using Product = Wgmma<typename H::T, TO - FROM, H::TRANSPOSED, false>;
#pragma unroll
    for (int k = 0; k < H::DEPTH / 16; ++k) {
      const uint64_t of_a = advance(a, FROM * H::LINE + 32 * k), of_b = advance(b, (H::TRANSPOSED ? 16 * BLOCK_LINE : 32) * k);
      if (ADD || k > 0) Product::template run<BEGIN, true>(sum, of_b, of_a);
      else Product::template run<BEGIN, false>(sum, of_b, of_a);
    }
  }
};

// Calls of(TurnedProducts<H, n>) for the n that is `rows`.
template <typename H, int N = H::STEP, typename Of>
__device__ __forceinline__ void with_rows(int rows, Of of) {
  if (N == H::MOST || rows == N) return of(TurnedProducts<H, N>());
  if constexpr (N < H::MOST) with_rows<H, N + H::STEP>(rows, of);
}

// The operands of a warpgroup in the stages of the ring, in their first parts.
template <typename H>
struct Operands {
  uint64_t first_a, first_b;
  __device__ explicit Operands(const unsigned char* k_blocks, const Room& room = H::room(0, 0)) {
    const uint32_t at = kept_address(k_blocks), b = at + H::PA * room.a_bytes;
    const int group = warp_of_block() / 4;
    if constexpr (H::TURNED) {
      first_a = operand<H::LINE>(at + group / H::UNITS * (room.rows / H::ROWS) * H::LINE);
      first_b = operand<H::B_LINE>(b + group % H::UNITS * 64 * H::LINE);
    } else {
      first_a = operand<(H::TRANSPOSED_A ? BLOCK_LINE : H::LINE)>(at + group * 64 * H::LINE);
      first_b = operand<H::B_LINE>(b, H::TRANSPOSED ? H::BLOCK_BYTES : 0);
    }
  }
  __device__ uint64_t a(int stage, int bytes) const { return advance(first_a, stage * bytes); }
  __device__ uint64_t b(int stage, int bytes) const { return advance(first_b, stage * bytes); }
};

// The tile of this block's cluster. One thread calls copy(ring), which copies the k-blocks in turn;
// the threads that multiply then call finish(sums), and this says whether the thread is one of
// them. All have waited for the launch before when copy and finish are called.
template <typename H, typename Copy, typename Finish>
__device__ __forceinline__ bool sum_tile(int cluster, Slices count, Copy copy, Finish finish, const Room& room = H::room(0, 0)) {
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::MOST_STAGES], empty[H::MOST_STAGES];
  unsigned char* k_blocks = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int rank = blockIdx.x % cluster, warp = warp_of_block(), lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < room.stages; ++s) barrier_init(full + s, 1), barrier_init(empty + s, H::WGS);
    barriers_made();
  }
  __syncthreads();
  wait_for_previous();
  launch_dependents();

  if (warp >= 4 * H::WGS) {
    if (H::UNEVEN) give_registers<H::GIVEN>();
    if (warp == 4 * H::WGS && lane == 0) copy(Ring{k_blocks, full, empty});
    return false;  // all copies are waited for by others
  }
  if (H::UNEVEN) take_registers<H::TAKEN>();
  float sum[H::SUMS] = {}, exact[H::EXACT ? H::SUMS : 1] = {};
  const Barriers here(full), used(empty);
  const Operands<H> operands(k_blocks, room);
  auto release = [&](int stage) {
    if (threadIdx.x % 128 == 0) used.arrive(stage);
  };
  int s = 0, last_stage = 0;
  Stage<0> stage(room.stages);
  // The products with second parts first, since less is cut off while the sum is small.
  auto multiply_parts = [&](auto products, uint64_t a, uint64_t b) {
    using Of = decltype(products);
    if constexpr (H::PB == 2) Of::template run<!H::EXACT>(sum, a, advance(b, H::B_BYTES));
    if constexpr (H::PA == 2) Of::template run<true>(sum, advance(a, room.a_bytes), b);
    Of::template run<true>(sum, a, b);
    wgmma_commit();
  };
  auto add = [&](auto products) {
    using Of = decltype(products);
    summed(sum, Of::BEGIN, Of::END);
#pragma unroll
    for (int i = Of::BEGIN; i < Of::END; ++i) exact[i] += sum[i];
  };
  auto multiply_to = [&](auto products, int end) {
    using Of = decltype(products);
#pragma unroll 1
    for (; s < end; ++s, stage.next()) {
      here.wait(stage.at, stage.parity);
      const uint64_t a = operands.a(stage.at, room.bytes), b = operands.b(stage.at, room.bytes);
      wgmma_fence();
      if constexpr (Of::HALVES) {
        multiply_parts(typename Of::First(), a, b);
        multiply_parts(typename Of::Last(), a, b);
        wgmma_wait<1>();
        add(typename Of::First());
        wgmma_wait<0>();
        release(stage.at);
        add(typename Of::Last());
      } else if constexpr (H::EXACT) {
        multiply_parts(products, a, b);
        wgmma_wait<0>();
        release(stage.at);
        add(products);
      } else {
        multiply_parts(products, a, b);
        // The products of the k-block before are done: its stage is free.
        wgmma_wait<1>();
        if (s > 0) release(last_stage);
        last_stage = stage.at;
      }
    }
    wgmma_wait<0>();
    summed(sum, Of::BEGIN, Of::END);
  };
  if constexpr (H::TURNED) {
    with_rows<H>(room.rows / H::ROWS, [&](auto products) { multiply_to(products, count.all); });
  } else {
    constexpr int ALL = H::TN / H::N;
    if constexpr (H::ALONE) multiply_to(Products<H, 0, 1>(), count.first);
    multiply_to(Products<H>(), count.first + count.all);
    if constexpr (H::ALONE) multiply_to(Products<H, 1, ALL>(), count.first + count.all + count.last);
  }
  all_multiplied<H::THREADS>();

  float* tile = reinterpret_cast<float*>(k_blocks);
  const float* sums = H::EXACT ? exact : sum;
#pragma unroll
  for (int c = 0; c < H::SUMS / 4; ++c)
    if constexpr (H::TURNED) {
      const int rows = room.rows / H::ROWS, line = warp / (4 * H::UNITS) * rows + 8 * c + lane % 4 * 2, col = warp % (4 * H::UNITS) * 16 + lane / 4;
      if (8 * c >= rows) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[(line + i % 2) * H::TILE_LINE + col + i / 2 * 8] = sums[4 * c + i];
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2* at = reinterpret_cast<float2*>(tile + (16 * warp + lane / 4 + 8 * half) * H::TILE_LINE + 8 * c + lane % 4 * 2);
        *at = make_float2(sums[4 * c + 2 * half], sums[4 * c + 2 * half + 1]);
      }
    }
  if (cluster > 1) cluster_sync();
  else all_multiplied<H::THREADS>();

  finish(Sums<H>{tile, cluster, room.rows * rank / cluster, room.rows * (rank + 1) / cluster});
  if (cluster > 1) cluster_sync();  // nobody leaves while its tile is read
  return true;
}

// Starts the copies of `count` k-blocks of both operands in turn, from `first` on, each `step`
// further along the depth, one thread; a has m rows, b n columns.
template <typename H>
__device__ __forceinline__ void copy_k_blocks(const Ring& ring, const TensorMap& a_map, const TensorMap& b_map, int row0, int col0, int first,
                                            int step, int count, int m, int n, const Room& room) {
  const bool whole = n % 64 == 0;
  const int bytes = room.bytes - H::PA * (room.a_bytes - room.lines_of_a(m) * H::LINE);
  Stage<0> stage(room.stages);
#pragma unroll 1
  for (int s = 0; s < count; ++s, stage.next()) {
    const int k = (first + step * s) * H::DEPTH;
    uint64_t* here = announce(ring.full, ring.empty, stage, bytes);
    unsigned char* to = ring.k_blocks + stage.at * room.bytes;
#pragma unroll
    for (int p = 0; p < H::PA; ++p, to += room.a_bytes) copy_block(to, &a_map, k, row0, p, here);
#pragma unroll
    for (int p = 0; p < H::PB; ++p, to += H::B_BYTES) {
      if (H::TRANSPOSED) copy_columns<H::BLOCKS>(to, H::BLOCK_BYTES, &b_map, col0, k, whole, here, p);
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
  const TilePlace at((blockIdx.y * gridDim.x + blockIdx.x) / cluster, gridDim.x / cluster, gridDim.y, 12);
  const Room room = H::room(n.m, gridDim.y);
  const int row0 = at.row * room.rows, col0 = at.col * H::TN;
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
  auto copy = [&](const Ring& ring) { copy_k_blocks<H>(ring, a_map, b_map, row0, col0, first, step, count, n.m, n.n, room); };
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
  }, room);
}

// A kernel for a tile: its name, its parameters in parentheses, its body and the tile's numbers.
#define OF_TILE(NAME, PARAMETERS, RUN, OF, ...)                                          \
  extern "C" __global__ void __launch_bounds__(OF<__VA_ARGS__>::BLOCK, 1) NAME PARAMETERS {    \
    using H = OF<__VA_ARGS__>;                                                             \
    RUN;                                                                                       \
  }
// Calls OF(form, units, rows, most, ...) for the forms of Turned that products have, named by
// warpgroups beside and below each other; Tile in src/layers/products/warpgroup_tile.rs chooses
// one.
#define FORMS_OF_ONE_PART(OF, ...) \
  OF(1x2, 1, 2, 128, __VA_ARGS__)  \
  OF(2x1, 2, 1, 256, __VA_ARGS__)  \
  OF(3x1, 3, 1, 192, __VA_ARGS__)  \
  OF(4x1, 4, 1, 128, __VA_ARGS__)
#define FORMS_OF_TWO_PARTS(OF, ...) \
  OF(1x2, 1, 2, 128, __VA_ARGS__)   \
  OF(1x3, 1, 3, 80, __VA_ARGS__)    \
  OF(2x1, 2, 1, 208, __VA_ARGS__)   \
  OF(2x2, 2, 2, 96, __VA_ARGS__)    \
  OF(3x1, 3, 1, 128, __VA_ARGS__)
