// repulsion_tree.cu: the repulsion of a layout by a tree (Barnes and Hut, 1986).
//
//   points are in the order of a space-filling curve; node j of level 0 holds points 8 j .. 8 j + 8
//   of that order, node j of level l + 1 the nodes 8 j .. 8 j + 8 of level l a node whose box's
//   longest side is less than theta times the distance of its centre acts as its points at their
//   centre
//
// The order only makes boxes small: every order gives right results, points that lie on each other
// too. So points are sorted now and then, and boxes and centres are computed for each layout.
//
// A warp finds the forces on 32 points that follow each other. Its lanes visit 32 nodes at a time,
// the children of up to 4 nodes: one that is far from all 32 points goes to a list, the children of
// others are visited later. All lanes interact with the same 32 entries of a list at a time.
//
// A point may stand for several, its weight: it has as much in the centres of nodes, and these are
// of as many points as their weights add up to.
//
// arrays   order: [n] point of each place; sorted: [n] float4, the last its weight, or 1; nodes:
//          [nodes] float4, the centre and the square of the longest side; weights: [n] float, null
//          where all are 1; masses: [nodes] float, the sums of weights, null without these; tops:
//          [3, (n + 511) / 512] float4, the sums of coordinates and of weights, low and high
//          corners of the highest of three levels; forces: [n, D]; blocks: [blocks] double
// scalars  levels at most 11; starts[l]: the first node of level l
// launch   tree_leaves, tree_levels: a block of 512 for 512 points or nodes, three levels each;
//          tree_interact: a block of 256 for 64 places, four warps for each 32 of them, which share
//          the walk
// shared   tree_interact: 22 KiB; the others 2.3 KiB
// cost     about n (8 / theta^D) log n interactions of 13 instructions, and 8 instructions a node
//          and 32 points
// same     no atomics
// truth    repulsion_reference in src/tsne/repulsion/reference.rs

#include "tsne/points.cuh"

constexpr unsigned FANOUT = 8, WARPS = 8, WALKERS = 4, GROUPS = WARPS / WALKERS, PLACES = GROUPS * 32, ALL = 0xffffffffu;
// A walk begins with a level of at most 512 nodes; of each level below, at most 32 opened nodes
// wait.
constexpr unsigned LEVELS = 11, WAITING = 32 * (LEVELS - 4), BUILD = 512;

struct Levels {
  unsigned starts[LEVELS + 1];
  unsigned levels;
};

// What a node is made of.
struct Summary {
  float4 sum;  // of coordinates times weights, and of weights
  float3 low, high;
};

__device__ __forceinline__ float3 least(const float3& a, const float3& b) {
  return {fminf(a.x, b.x), fminf(a.y, b.y), fminf(a.z, b.z)};
}
__device__ __forceinline__ float3 greatest(const float3& a, const float3& b) {
  return {fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z)};
}

__device__ __forceinline__ Summary none() {
  return {{0, 0, 0, 0}, {INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}};
}

// The summary of each 8 lanes, for all of them.
__device__ __forceinline__ Summary of_eight(Summary s) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    const float3 l = {__shfl_xor_sync(ALL, s.low.x, step), __shfl_xor_sync(ALL, s.low.y, step), __shfl_xor_sync(ALL, s.low.z, step)};
    const float3 h = {__shfl_xor_sync(ALL, s.high.x, step), __shfl_xor_sync(ALL, s.high.y, step), __shfl_xor_sync(ALL, s.high.z, step)};
    s.low = least(s.low, l), s.high = greatest(s.high, h);
    s.sum.x += __shfl_xor_sync(ALL, s.sum.x, step), s.sum.y += __shfl_xor_sync(ALL, s.sum.y, step);
    s.sum.z += __shfl_xor_sync(ALL, s.sum.z, step), s.sum.w += __shfl_xor_sync(ALL, s.sum.w, step);
  }
  return s;
}

__device__ __forceinline__ float4 node_of(const Summary& s) {
  const float side = fmaxf(fmaxf(s.high.x - s.low.x, s.high.y - s.low.y), s.high.z - s.low.z);
  return {s.sum.x / s.sum.w, s.sum.y / s.sum.w, s.sum.z / s.sum.w, side * side};
}

// Three levels, from level `level` on, over the summaries of the threads of a block; the last goes
// to `tops`.
__device__ void three_levels(float4* nodes, float* masses, float4* tops, Summary s, const Levels& levels, unsigned level,
                             unsigned stride) {
  __shared__ Summary between[BUILD / FANOUT];
  unsigned items = BUILD;
#pragma unroll
  for (unsigned l = 0; l < 3; l++, items /= FANOUT) {
    // Whole warps take part; summaries beyond the items hold nothing.
    if (threadIdx.x < (items < 32 ? 32 : items)) {
      s = of_eight(s);
      const unsigned j = threadIdx.x / FANOUT, at = blockIdx.x * (items / FANOUT) + j;
      const bool is_there = level + l < levels.levels && threadIdx.x < items && threadIdx.x % FANOUT == 0 && s.sum.w > 0;
      if (is_there) nodes[levels.starts[level + l] + at] = node_of(s);
      if (is_there && masses) masses[levels.starts[level + l] + at] = s.sum.w;
      if (is_there && l == 2) {
        tops[at] = s.sum;
        tops[stride + at] = {s.low.x, s.low.y, s.low.z, 0};
        tops[2 * stride + at] = {s.high.x, s.high.y, s.high.z, 0};
      }
    }
    if (l < 2) {
      __syncthreads();
      if (threadIdx.x < items && threadIdx.x % FANOUT == 0) between[threadIdx.x / FANOUT] = s;
      __syncthreads();
      s = threadIdx.x < items / FANOUT ? between[threadIdx.x] : none();
    }
  }
}

// The points of a block in their order, and levels 0 to 2.
template <int D>
__device__ void leaves(float4* sorted, float4* nodes, float* masses, float4* tops, const float* layout,
                       const float* weights, const unsigned* order, size_t n, const Levels& levels, unsigned stride) {
  const size_t i = (size_t)blockIdx.x * BUILD + threadIdx.x;
  Summary s = none();
  if (i < n) {
    const Point<D> y = point<D>(layout, order[i]);
    const float z = D == 3 ? y.x[D - 1] : 0.f;
    const float c = weights ? weights[order[i]] : 1.f;
    sorted[i] = {y.x[0], y.x[1], z, c};
    s = {{c * y.x[0], c * y.x[1], c * z, c}, {y.x[0], y.x[1], z}, {y.x[0], y.x[1], z}};
  }
  three_levels(nodes, masses, tops, s, levels, 0, stride);
}

// Levels `level` to `level` + 2 from `count` nodes below. `tops` and `below` are different halves
// of one array.
extern "C" __global__ void __launch_bounds__(BUILD)
    tree_levels(float4* nodes, float* masses, float4* tops, const float4* below, const Levels levels, const unsigned level,
                const unsigned count, const unsigned stride) {
  const unsigned i = blockIdx.x * BUILD + threadIdx.x;
  Summary s = none();
  if (i < count) {
    const float4 low = below[stride + i], high = below[2 * stride + i];
    s = {below[i], {low.x, low.y, low.z}, {high.x, high.y, high.z}};
  }
  three_levels(nodes, masses, tops, s, levels, level, stride);
}

template <int D>
__device__ __forceinline__ Point<D> place(const float4& v) {
  Point<D> p;
  p.x[0] = v.x, p.x[1] = v.y;
  if (D == 3) p.x[D - 1] = v.z;
  return p;
}

// A warp's part of the walk for 32 points.
template <int D, bool ONE, bool WEIGHTED>
struct Walker {
  const float4 *sorted, *nodes;
  const float* masses;  // of nodes, where WEIGHTED
  const float4* group;  // the 32 points
  float4* far;          // [64] centres, and how many points they stand for
  float4* near;         // [32] points
  unsigned* opened;     // [WAITING] nodes whose children are to be visited, higher levels first
  unsigned* leaves;     // [36]
  size_t n, first;      // of the 32 places
  unsigned lane, n_opened, n_far, n_leaves;
  float square_theta, alpha, inverse_alpha;
  Point<D> own;
  float force[D], total;

  __device__ __forceinline__ void interact_list(const float4* entries) {
#pragma unroll 8
    for (unsigned e = 0; e < 32; e++) {
      const float4 entry = entries[e];
      interact<D, ONE>(force, total, own, place<D>(entry), entry.w, alpha, inverse_alpha);
    }
  }

  // Interacts with up to 32 entries of the list of nodes; the others move to its beginning.
  __device__ __forceinline__ void interact_far() {
    __syncwarp();
    if (lane >= n_far) far[lane] = {0, 0, 0, 0};
    __syncwarp();
    interact_list(far);
    const float4 moved = far[32 + lane];
    __syncwarp();
    far[lane] = moved;
    n_far = n_far > 32 ? n_far - 32 : 0;
    __syncwarp();
  }

  // Interacts with the points of up to 4 leaves.
  __device__ __forceinline__ void interact_leaves() {
    const unsigned count = min(n_leaves, 4u);
    n_leaves -= count;
    __syncwarp();
    float4 entry = {0, 0, 0, 0};
    if (lane / FANOUT < count) {
      const size_t c = (size_t)leaves[n_leaves + lane / FANOUT] * FANOUT + lane % FANOUT;
      if (c < n) entry = sorted[c];
    }
    near[lane] = entry;
    __syncwarp();
    interact_list(near);
    __syncwarp();
  }

  // Visits a node for each lane that has one. `level` and `j` may differ between lanes.
  __device__ __forceinline__ void visit(bool is_there, unsigned level, unsigned j, const Levels& levels) {
    bool is_far = false, opens = false;
    float4 node = {0, 0, 0, 0};
    if (is_there) {
      node = nodes[levels.starts[level] + j];
      const unsigned bits = 3 * (level + 1);
      // A node never stands for a point to which it belongs: it has one of the 32, or all.
      const bool is_own = level == 0 ? j / 4 == first / 32 : first >> bits == j;
      const Point<D> at = place<D>(node);
      float nearest = INFINITY;
#pragma unroll 8
      for (unsigned p = 0; p < 32; p++) {
        float difference[D];
        nearest = fminf(nearest, apart(difference, place<D>(group[p]), at));
      }
      is_far = !is_own && node.w < square_theta * nearest;
      // The 32 points interact with each other apart from all others.
      opens = !is_far && !(is_own && level == 0);
      const size_t begin = (size_t)j << bits;
      node.w = WEIGHTED ? masses[levels.starts[level] + j] : (float)min(n - begin, (size_t)1 << bits);
    }
    const unsigned before = (1u << lane) - 1;
    const unsigned fars = __ballot_sync(ALL, is_far), inner = __ballot_sync(ALL, opens && level > 0);
    const unsigned outer = __ballot_sync(ALL, opens && level == 0);
    if (is_far) far[n_far + __popc(fars & before)] = node;
    if (opens && level > 0) opened[n_opened + __popc(inner & before)] = level << 28 | j;
    if (opens && level == 0) leaves[n_leaves + __popc(outer & before)] = j;
    n_far += __popc(fars), n_opened += __popc(inner), n_leaves += __popc(outer);
    __syncwarp();
    if (n_far >= 32) interact_far();
    while (n_leaves >= 4) interact_leaves();
  }

  __device__ __forceinline__ void go(const Levels& levels, unsigned walker) {
    const unsigned top = levels.levels > 4 ? levels.levels - 4 : 0;
    const unsigned count = levels.starts[top + 1] - levels.starts[top];
    for (unsigned begin = walker; begin < count; begin += 32 * WALKERS) {
      const unsigned j = begin + lane * WALKERS;
      visit(j < count, top, j, levels);
      while (n_opened) {
        const unsigned taken = min(n_opened, 4u);
        n_opened -= taken;
        const unsigned of = lane / FANOUT < taken ? opened[n_opened + lane / FANOUT] : 1u << 28;
        const unsigned level = (of >> 28) - 1, child = (of & 0x0fffffffu) * FANOUT + lane % FANOUT;
        __syncwarp();
        visit(lane / FANOUT < taken && child < levels.starts[level + 1] - levels.starts[level], level, child, levels);
      }
    }
    if (n_far) interact_far();
    if (n_leaves) interact_leaves();
  }
};

// Shared memory of a block.
struct Room {
  float4 groups[GROUPS][32], far[WARPS][64], near[WARPS][32];
  unsigned opened[WARPS][WAITING], leaves[WARPS][36];
  double sums[WARPS];
};

template <int D, bool ONE, bool WEIGHTED>
__device__ void walk(Room& room, float* forces, double* blocks, const float4* sorted, const unsigned* order,
                     const float4* nodes, const float* masses, size_t n, size_t begin, size_t end, const Levels& levels,
                     float theta, float alpha) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / WALKERS, walker = warp % WALKERS;
  const size_t first = (size_t)blockIdx.x * PLACES + group * 32, i = first + lane;
  const bool is_here = i < n;
  const size_t block = (size_t)blockIdx.x * PLACES;
  if (block < begin || block >= end) {  // the same for all threads
    if (walker == 0 && is_here)
      for (int k = 0; k < D; k++) forces[(size_t)order[i] * D + k] = 0;
    if (threadIdx.x == 0) blocks[blockIdx.x] = 0;
    return;
  }
  const float4 own = sorted[is_here ? i : n - 1];
  float4* group_points = room.groups[group];
  if (walker == 0) group_points[lane] = own;
  __syncthreads();
  Walker<D, ONE, WEIGHTED> w;
  w.masses = masses;
  w.sorted = sorted, w.nodes = nodes, w.group = group_points, w.far = room.far[warp], w.near = room.near[warp];
  w.opened = room.opened[warp], w.leaves = room.leaves[warp], w.n = n, w.first = first, w.lane = lane;
  w.n_opened = w.n_far = w.n_leaves = 0, w.square_theta = theta * theta, w.alpha = alpha, w.inverse_alpha = 1 / alpha;
  w.own = place<D>(own), w.total = 0;
#pragma unroll
  for (int k = 0; k < D; k++) w.force[k] = 0;
  if (first < n) {  // the same for all lanes
    // The walkers share the points of the group. Of a point that stands for several, one is itself.
    for (unsigned p = walker; p < 32; p += WALKERS) {
      const float others = WEIGHTED ? group_points[p].w - (p == lane ? 1.f : 0.f) : p != lane ? 1.f : 0.f;
      interact<D, ONE>(w.force, w.total, w.own, place<D>(group_points[p]), first + p < n ? others : 0.f, alpha,
                       w.inverse_alpha);
    }
    w.go(levels, walker);
  }
  __syncwarp();
  w.far[lane] = {w.force[0], w.force[1], D == 3 ? w.force[D - 1] : 0.f, w.total};
  __syncthreads();
  double sum = 0;
  if (walker == 0 && is_here) {
    float4 all = w.far[lane];
    sum = all.w;
    for (unsigned o = 1; o < WALKERS; o++) {
      const float4 other = room.far[warp + o][lane];
      all.x += other.x, all.y += other.y, all.z += other.z, sum += other.w;
    }
    if (WEIGHTED) sum *= own.w;
    const size_t to = (size_t)order[i] * D;
    forces[to] = all.x, forces[to + 1] = all.y;
    if (D == 3) forces[to + D - 1] = all.z;
  }
  const double all = sum_of_block<WARPS>(sum, room.sums);
  if (threadIdx.x == 0) blocks[blockIdx.x] = all;
}

#define LEAVES(D)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(BUILD)                                                                  \
      tree_leaves_##D(float4* sorted, float4* nodes, float* masses, float4* tops, const float* layout,                 \
                      const float* weights, const unsigned* order, const size_t n, const Levels levels,                \
                      const unsigned stride) {                                                                         \
    leaves<D>(sorted, nodes, masses, tops, layout, weights, order, n, levels, stride);                                 \
  }
LEAVES(2)
LEAVES(3)

#define INTERACT(D, NAME, WEIGHTED)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 5)                                                                 \
      NAME##_##D(float* forces, double* blocks, const float4* sorted, const unsigned* order, const float4* nodes,      \
                 const float* masses, const size_t n, const size_t begin, const size_t end, const Levels levels,       \
                 const float theta, const float alpha) {                                                               \
    __shared__ Room room;                                                                                              \
    if (alpha == 1.f)                                                                                                  \
      walk<D, true, WEIGHTED>(room, forces, blocks, sorted, order, nodes, masses, n, begin, end, levels, theta, alpha);  \
    else                                                                                                               \
      walk<D, false, WEIGHTED>(room, forces, blocks, sorted, order, nodes, masses, n, begin, end, levels, theta, alpha); \
  }
INTERACT(2, tree_interact, false)
INTERACT(3, tree_interact, false)
INTERACT(2, tree_interact_weighted, true)
INTERACT(3, tree_interact_weighted, true)
