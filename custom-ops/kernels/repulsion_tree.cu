// repulsion_tree.cu: the repulsion of a layout by a tree (Barnes and Hut, 1986).
//
//   points are in the order of a space-filling curve; node j of level 0 holds points 8 j .. 8 j + 8 of that order, node j of level l + 1 the nodes
//   8 j .. 8 j + 8 of level l
//   a node whose box's longest side is less than theta times the distance of its centre acts as its points at their centre
//
// The order only makes boxes small: every order gives right results, points that lie on each other too. So points are sorted now and then,
// and boxes and centres are computed for each layout.
//
// arrays   order: [n] point of each place; sorted: [n] float4; centres: [nodes] float4 (centre and count); sides: [nodes] float
//          lows, highs: [nodes] float4; forces: [n, D]; blocks: [blocks] double
// scalars  levels at most 12; starts[l]: the first node of level l
// launch   tree_keys, tree_gather: a thread for a point; tree_level: a thread for a node; tree_feel: a block of 256 for 64 places
// shared   tree_feel: a stack of 128 nodes and 32 sums for each warp, at most 8.3 KiB
// cost     about n (8 / theta^D) log n interactions
// same     no atomics
// truth    repulsion_reference in src/repulsion/reference.rs

#include "points.cuh"

constexpr unsigned FANOUT = 8, DEPTH = 128, WARPS = 8, WALKERS = 4, PLACES = WARPS / WALKERS * 32, ALL = 0xffffffffu;
constexpr unsigned LEVELS = 12;

struct Levels {
  unsigned starts[LEVELS + 1];
  unsigned levels;
};

// Bits of x spread out to every D-th place.
template <int D>
__device__ unsigned long long spread_bits(unsigned long long x, unsigned bits) {
  unsigned long long key = 0;
  for (unsigned b = 0; b < bits; b++) key |= (x >> b & 1) << b * D;
  return key;
}

// The place on a Morton curve of 20 (D = 2) or 13 bits (D = 3) a side, its low and its high 20 bits.
template <int D>
__device__ void keys(unsigned* low, unsigned* high, const float* layout, size_t n, const float (&corner)[3], float scale) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  constexpr unsigned BITS = D == 2 ? 20 : 13;
  const Point<D> y = point<D>(layout, i);
  unsigned long long key = 0;
#pragma unroll
  for (int k = 0; k < D; k++) {
    const float at = fminf(fmaxf((y.x[k] - corner[k]) * scale, 0.f), 1.f) * (float)((1u << BITS) - 1);
    key |= spread_bits<D>((unsigned long long)at, BITS) << k;
  }
  low[i] = (unsigned)(key & 0xfffff);
  high[i] = (unsigned)(key >> 20);
}

template <int D>
__device__ void gather_points(float4* sorted, const float* layout, const unsigned* order, size_t n) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Point<D> y = point<D>(layout, order[i]);
  sorted[i] = {y.x[0], y.x[1], D == 3 ? y.x[D - 1] : 0.f, 1.f};
}

// The order by both keys: `later` orders places of `earlier`.
extern "C" __global__ void tree_order(unsigned* order, const unsigned* earlier, const unsigned* later, const size_t n) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) order[i] = earlier[later[i]];
}

// The nodes of a level from the `count` points (level 0: children are sorted points) or nodes below.
extern "C" __global__ void tree_level(float4* centres, float* sides, float4* lows, float4* highs, const float4* children,
                                      const unsigned first, const unsigned below, const unsigned count,
                                      const unsigned is_leaf) {
  const unsigned j = blockIdx.x * blockDim.x + threadIdx.x, nodes = (count + FANOUT - 1) / FANOUT;
  if (j >= nodes) return;
  const unsigned end = min(count, (j + 1) * FANOUT);
  float sum[3] = {}, weight = 0, low[3] = {INFINITY, INFINITY, INFINITY}, high[3] = {-INFINITY, -INFINITY, -INFINITY};
  for (unsigned c = j * FANOUT; c < end; c++) {
    const float4 child = is_leaf ? children[c] : centres[below + c];
    const float4 l = is_leaf ? child : lows[below + c], h = is_leaf ? child : highs[below + c];
    sum[0] = fmaf(child.w, child.x, sum[0]), sum[1] = fmaf(child.w, child.y, sum[1]);
    sum[2] = fmaf(child.w, child.z, sum[2]), weight += child.w;
    low[0] = fminf(low[0], l.x), low[1] = fminf(low[1], l.y), low[2] = fminf(low[2], l.z);
    high[0] = fmaxf(high[0], h.x), high[1] = fmaxf(high[1], h.y), high[2] = fmaxf(high[2], h.z);
  }
  const unsigned at = first + j;
  centres[at] = {sum[0] / weight, sum[1] / weight, sum[2] / weight, weight};
  lows[at] = {low[0], low[1], low[2], 0}, highs[at] = {high[0], high[1], high[2], 0};
  sides[at] = fmaxf(fmaxf(high[0] - low[0], high[1] - low[1]), high[2] - low[2]);
}

template <int D>
__device__ __forceinline__ Point<D> place(const float4& v) {
  Point<D> p;
  p.x[0] = v.x, p.x[1] = v.y;
  if (D == 3) p.x[D - 1] = v.z;
  return p;
}

// A block has PLACES places; WALKERS warps share the walk for each 32 of them, and take the nodes of the level below the top in turn.
template <int D, bool ONE>
__device__ void walk(float* forces, double* blocks, const float4* sorted, const unsigned* order, const float4* centres,
                     const float* sides, size_t n, const Levels& levels, float theta, float alpha) {
  __shared__ unsigned stacks[WARPS][DEPTH];
  __shared__ float felt[WARPS][D + 1][32];
  __shared__ double shared[WARPS];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / WALKERS, walker = warp % WALKERS;
  const size_t first = (size_t)blockIdx.x * PLACES + group * 32, i = first + lane;
  const bool is_here = i < n;
  unsigned* stack = stacks[warp];
  const Point<D> own = place<D>(sorted[is_here ? i : n - 1]);
  const float inverse_alpha = 1 / alpha, square_theta = theta * theta;
  float force[D] = {}, total = 0;
  // A node is told by its level, 4 bits, and its place.
  const unsigned level_of_start = levels.levels > 2 ? levels.levels - 3 : 0;
  const unsigned starts = levels.starts[level_of_start + 1] - levels.starts[level_of_start];
  for (unsigned begin = walker; begin < starts; begin += WALKERS) {
    unsigned depth = 0;
    if (first < n) {  // the same for all lanes
      if (lane == 0) stack[0] = level_of_start << 28 | begin;
      depth = 1;
    }
    __syncwarp();
    while (depth) {
      const unsigned node = stack[--depth], level = node >> 28, j = node & 0x0fffffffu;
      const float4 centre = centres[levels.starts[level] + j];
      const float side = sides[levels.starts[level] + j];
      const Point<D> at = place<D>(centre);
      float difference[D];
      const float square = apart(difference, own, at);
      __syncwarp();
      // A node never stands for a point to which it belongs.
      const bool is_outside = i >> 3 * (level + 1) != j;
      if (__all_sync(ALL, is_outside && side * side < square_theta * square)) {
        feel<D, ONE>(force, total, own, at, centre.w, alpha, inverse_alpha);
      } else if (level == 0) {
        const size_t end = min(n, (size_t)(j + 1) * FANOUT);
        for (size_t c = (size_t)j * FANOUT; c < end; c++)
          feel<D, ONE>(force, total, own, place<D>(sorted[c]), c == i ? 0.f : 1.f, alpha, inverse_alpha);
      } else {
        const unsigned below = levels.starts[level] - levels.starts[level - 1], child = j * FANOUT;
        const unsigned count = min(FANOUT, below - child);
        if (lane < count) stack[depth + lane] = (level - 1) << 28 | (child + lane);
        depth += count;
      }
      __syncwarp();
    }
  }
#pragma unroll
  for (int k = 0; k < D; k++) felt[warp][k][lane] = force[k];
  felt[warp][D][lane] = total;
  __syncthreads();
  double sum = 0;
  if (walker == 0 && is_here) {
    const size_t to = order[i];
#pragma unroll
    for (int k = 0; k < D; k++) {
      for (unsigned w = 1; w < WALKERS; w++) force[k] += felt[warp + w][k][lane];
      forces[to * D + k] = force[k];
    }
    for (unsigned w = 0; w < WALKERS; w++) sum += felt[warp + w][D][lane];
  }
  const double all = sum_of_block(sum, shared);
  if (threadIdx.x == 0) blocks[blockIdx.x] = all;
}

#define TREE(D)                                                                                                        \
  extern "C" __global__ void tree_keys_##D(unsigned* low, unsigned* high, const float* layout, const size_t n,         \
                                           const float x, const float y, const float z, const float scale) {           \
    const float corner[3] = {x, y, z};                                                                                 \
    keys<D>(low, high, layout, n, corner, scale);                                                                      \
  }                                                                                                                    \
  extern "C" __global__ void tree_gather_##D(float4* sorted, const float* layout, const unsigned* order,               \
                                             const size_t n) {                                                         \
    gather_points<D>(sorted, layout, order, n);                                                                        \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      tree_feel_##D(float* forces, double* blocks, const float4* sorted, const unsigned* order, const float4* centres, \
                    const float* sides, const size_t n, const Levels levels, const float theta, const float alpha) {   \
    if (alpha == 1.f)                                                                                                  \
      walk<D, true>(forces, blocks, sorted, order, centres, sides, n, levels, theta, alpha);                           \
    else                                                                                                               \
      walk<D, false>(forces, blocks, sorted, order, centres, sides, n, levels, theta, alpha);                          \
  }
TREE(2)
TREE(3)
