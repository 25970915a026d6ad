// repulsion.cu: every pair of points.
//
//   near = 1 / (1 + |a - y_j|^2 / alpha), w = c_j near^alpha
//   forces = sum_j w near (a - y_j),  total = sum_j w
//
// c_j is how many points j stands for: 1, or its weight. Of points themselves a has c - 1 copies
// beside it, and counts c times in the sum of all totals.
//
// arrays   queries: [m, D] float; layout: [n, D] float; weights: [n] float, and those of the
//          queries that are sources [m], null where all are 1; parts: [splits, m, D + 1] float;
//          forces: [m, D] float totals: [m] float (points beside a layout) or blocks: [blocks]
//          double and total: [1] double (the points themselves)
// launch   pairs: a block of 128 queries (x) for each stretch of sources (y); gather: a thread for
//          each query in blocks of 256; add_totals: one block of 256
// shared   1.5 KiB at most, and .5 KiB of weights
// cost     n m pairs of about 10 instructions, one of which is an inverse: 16 of those a cycle and
//          multiprocessor bind
// same     stretches are added in order
// truth    repulsion_reference in src/tsne/repulsion/reference.rs

#include "tsne/points.cuh"

constexpr unsigned QUERIES = 128, TILE = 128, WARPS = 8;  // the last of gather and add_totals

template <int D, bool ONE, bool WEIGHTED>
__device__ void pairs(float* parts, const float* queries, const float* layout, const float* weights, size_t m, size_t n,
                      size_t stretch, size_t source, float alpha, bool are_sources) {
  __shared__ Point<D> tile[TILE];
  __shared__ float counts[WEIGHTED ? TILE : 1];
  const auto count_of = [&](unsigned j) { return WEIGHTED ? counts[j] : 1.f; };
  const size_t i = (size_t)blockIdx.x * QUERIES + threadIdx.x, first = blockIdx.y * stretch;
  const size_t end = n < first + stretch ? n : first + stretch;
  const Point<D> own = point<D>(queries, i < m ? i : 0);
  const float inverse_alpha = 1 / alpha;
  float force[D] = {}, total = 0;
  for (size_t at = first; at < end; at += TILE) {
    __syncthreads();
    if (at + threadIdx.x < end) {
      tile[threadIdx.x] = point<D>(layout, at + threadIdx.x);
      if (WEIGHTED) counts[threadIdx.x] = weights[at + threadIdx.x];
    }
    __syncthreads();
    const unsigned count = end - at < TILE ? (unsigned)(end - at) : TILE;
    // Sums of a tile first: long sums of floats lose digits.
    float near_force[D] = {}, near_total = 0;
    // Queries that are sources, from `source` on: no point pushes itself. Tiles of both begin on
    // multiples of 128.
    if (are_sources && at == source + (size_t)blockIdx.x * QUERIES) {
      for (unsigned j = 0; j < count; j++)
        interact<D, ONE>(near_force, near_total, own, tile[j], count_of(j) - (j == threadIdx.x ? 1.f : 0.f), alpha,
                         inverse_alpha);
    } else if (count == TILE) {
#pragma unroll 8
      for (unsigned j = 0; j < TILE; j++)
        interact<D, ONE>(near_force, near_total, own, tile[j], count_of(j), alpha, inverse_alpha);
    } else {
      for (unsigned j = 0; j < count; j++)
        interact<D, ONE>(near_force, near_total, own, tile[j], count_of(j), alpha, inverse_alpha);
    }
#pragma unroll
    for (int k = 0; k < D; k++) force[k] += near_force[k];
    total += near_total;
  }
  if (i >= m) return;
  float* out = parts + (blockIdx.y * m + i) * (D + 1);
#pragma unroll
  for (int k = 0; k < D; k++) out[k] = force[k];
  out[D] = total;
}

template <int D>
__device__ void gather(float* forces, float* totals, double* blocks, const float* parts, const float* weights,
                       size_t m, unsigned splits) {
  __shared__ double shared[WARPS];
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  double sum[D + 1] = {};
  if (i < m) {
    for (unsigned s = 0; s < splits; s++)
#pragma unroll
      for (int k = 0; k <= D; k++) sum[k] += parts[((size_t)s * m + i) * (D + 1) + k];
#pragma unroll
    for (int k = 0; k < D; k++) forces[i * D + k] = (float)sum[k];
    if (totals) totals[i] = (float)sum[D];
    if (weights) sum[D] *= weights[i];
  }
  if (blocks) {
    const double all = sum_of_block<WARPS>(i < m ? sum[D] : 0, shared);
    if (threadIdx.x == 0) blocks[blockIdx.x] = all;
  }
}

extern "C" __global__ void add_totals(double* total, const double* blocks, const unsigned count) {
  __shared__ double shared[WARPS];
  double sum = 0;
  for (unsigned b = threadIdx.x; b < count; b += blockDim.x) sum += blocks[b];
  sum = sum_of_block<WARPS>(sum, shared);
  if (threadIdx.x == 0) *total = sum;
}

#define PAIRS(D, NAME, WEIGHTED)                                                                                       \
  extern "C" __global__ void __launch_bounds__(QUERIES)                                                                \
      NAME##_##D(float* parts, const float* queries, const float* layout, const float* weights, const size_t m,        \
                 const size_t n, const size_t stretch, const size_t source, const float alpha,                         \
                 const unsigned are_sources) {                                                                         \
    if (alpha == 1.f)                                                                                                  \
      pairs<D, true, WEIGHTED>(parts, queries, layout, weights, m, n, stretch, source, alpha, are_sources);            \
    else                                                                                                               \
      pairs<D, false, WEIGHTED>(parts, queries, layout, weights, m, n, stretch, source, alpha, are_sources);           \
  }
PAIRS(2, pairs, false)
PAIRS(3, pairs, false)
PAIRS(2, pairs_weighted, true)
PAIRS(3, pairs_weighted, true)

#define GATHER(D)                                                                                                      \
  extern "C" __global__ void gather_##D(float* forces, float* totals, double* blocks, const float* parts,              \
                                        const float* weights, const size_t m, const unsigned splits) {                 \
    gather<D>(forces, totals, blocks, parts, weights, m, splits);                                                      \
  }
GATHER(2)
GATHER(3)
