// repulsion_grid.cu: the repulsion of a layout in two dimensions by interpolation on a grid and
// FFT.
//
//   box        square around the layout: its middle, and h, the distance of two of G nodes a side:
//              the longest side over G - 4, rounded up to a power of 1.05
//   cells      points are sorted by their cell, the square between four nodes, in whatever order
//              within it: counts and ranks, starts, places
//   charges    1, x, y of each point (from the middle, over h), times its weight where there are
//              weights, go to the 4 x 4 nodes around it by cubic interpolation: a node collects
//              from 4 x 4 cells
//   spectra    of w and w^(1 + 1/alpha) as functions of the distance, on a torus of N = 2 G nodes:
//              real and even
//   forward    FFT of the rows of charges: A = c_1, B = c_x + i c_y
//   columns    FFT of the columns, A (W + i V), B V, and back
//   back       inverse FFT of the rows: potentials W c_1, V c_1, V c_x, V c_y at the nodes
//   gather     forces = x V c_1 - V c_x, ...; total = sum of max(0, W c_1 - 1), times weights
//
// arrays   box: [4] float: middle, h, h of the spectra; charges: [3, G, G] float; a, b: [G, N]
//          complex; spectra: [G + 1, G + 1] (W, V) potentials: [G, G] float4; turns: [N] complex,
//          exp(-2 pi i k / N); boxes, blocks: parts of sums counts: [G G + 1] unsigned, points of
//          each cell, and of all cells that have a start; starts: [G, G] unsigned; ranks: [n]
//          unsigned, the place of each point within its cell; placed: [n] float2, points by cell,
//          in nodes from the first node; weights: [n] float, at least 1, and null where all are;
//          placed_weights: [n] float, the same by cell, not touched without them
// launch   FFT kernels of each G: blocks of lines by fft.cuh, of rows or of columns
// shared   8 bytes for each complex number of a block: at most 64 KiB
// cost     a and b are 8 G N bytes each and stay in the L2 up to G = 1024; one atomic addition a
//          point, and 16 visits
// NaN      gives NaN forces; places outside of the grid are never read or written
// same     charges are sums of integers, so that the order of points within a cell, and of cells,
//          does not matter
// truth    repulsion_reference in src/tsne/repulsion/reference.rs

#include "tsne/fft.cuh"
#include "tsne/grid.cuh"
#include "tsne/points.cuh"
#include "arrays/scan.cuh"

typedef long long i64;
constexpr unsigned THREADS = 256, STARTS = 4 * THREADS, ALL = 0xffffffffu;
// 2^32: charges of a point are at most its weight, so that sums of weights up to 2^31 fit.
constexpr float UNIT = 4294967296.f;

// Blocks of 256: the least of x, y, -x, -y over the points of a block, and counts set to 0.
extern "C" __global__ void grid_bounds(float* boxes, unsigned* counts, const float* layout, const size_t n,
                                       const size_t nodes) {
  __shared__ float shared[8];
  const size_t threads = (size_t)gridDim.x * blockDim.x, mine = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (size_t c = mine; c <= nodes; c += threads) counts[c] = 0;
  float least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
  for (size_t i = mine; i < n; i += threads) {
    const Point<2> y = point<2>(layout, i);
    least[0] = fminf(least[0], y.x[0]), least[1] = fminf(least[1], y.x[1]);
    least[2] = fminf(least[2], -y.x[0]), least[3] = fminf(least[3], -y.x[1]);
  }
#pragma unroll
  for (unsigned k = 0; k < 4; k++) {
    const float x = least_of_block<8>(least[k], shared);
    if (threadIdx.x == 0) boxes[blockIdx.x * 4 + k] = x;
  }
}

// The box from the parts, for every block that wants it: 256 threads or more. h is rounded up to a
// power of 1.05.
__device__ void box_of(float (&box)[3], const float* boxes, unsigned count, unsigned G) {
  __shared__ float least[4];
  __shared__ float middle_and_h[3];
  if (threadIdx.x < 128) {
    const unsigned k = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x = INFINITY;
    for (unsigned b = lane; b < count; b += 32) x = fminf(x, boxes[b * 4 + k]);
    x = least_of_warp(x);
    if (lane == 0) least[k] = x;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const float span = fmaxf(-least[2] - least[0], -least[3] - least[1]);
    const float wanted = fmaxf(span / (float)(G - 4), 1e-12f);
    middle_and_h[0] = .5f * (least[0] - least[2]);
    middle_and_h[1] = .5f * (least[1] - least[3]);
    // 1 / log2(1.05); a little more, so that rounding never leaves a point outside.
    middle_and_h[2] = exp2f(ceilf(log2f(wanted) * 14.2066991f + 1e-3f) * .0703893279f);
  }
  __syncthreads();
  for (unsigned k = 0; k < 3; k++) box[k] = middle_and_h[k];
}

// A thread for each point, blocks of 256: counts of cells, and the rank of each point in its own.
extern "C" __global__ void grid_count(unsigned* counts, unsigned* ranks, float* box, const float* boxes, const unsigned count,
                                      const float* layout, const size_t n, const unsigned G) {
  float b[3];
  box_of(b, boxes, count, G);
  if (blockIdx.x == 0 && threadIdx.x < 3) box[threadIdx.x] = b[threadIdx.x];
  const float inverse_h = 1 / b[2];
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Point<2> y = point<2>(layout, i);
  const unsigned column = (unsigned)cell_of(in_nodes(y.x[0], b[0], inverse_h, G), G);
  const unsigned row = (unsigned)cell_of(in_nodes(y.x[1], b[1], inverse_h, G), G);
  // Points of a warp that are in one cell are counted together.
  const unsigned cell = row * G + column, same = __match_any_sync(__activemask(), cell), lane = threadIdx.x % 32;
  const unsigned leader = __ffs(same) - 1;
  unsigned rank = 0;
  if (lane == leader) rank = atomicAdd(counts + cell, __popc(same));
  ranks[i] = __shfl_sync(same, rank, leader) + __popc(same & ((1u << lane) - 1));
}

// Blocks of 256 for STARTS cells each: where the points of each cell begin. The blocks take their
// stretches in any order.
extern "C" __global__ void __launch_bounds__(THREADS) grid_starts(unsigned* starts, unsigned* counts, const unsigned G) {
  __shared__ unsigned of_warps[THREADS / 32];
  __shared__ unsigned first;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
  const uint4 own = reinterpret_cast<const uint4*>(counts)[at];
  unsigned all;
  unsigned start = scan_warp(own.x + own.y + own.z + own.w, lane, all);
  if (lane == 0) of_warps[warp] = all;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned sum = 0;
    for (unsigned w = 0; w < THREADS / 32; w++) {
      const unsigned of = of_warps[w];
      of_warps[w] = sum;
      sum += of;
    }
    first = sum ? atomicAdd(counts + (size_t)G * G, sum) : 0;
  }
  __syncthreads();
  start += first + of_warps[warp];
  reinterpret_cast<uint4*>(starts)[at] = {start, start + own.x, start + own.x + own.y, start + own.x + own.y + own.z};
}

// A thread for each point, blocks of 256.
extern "C" __global__ void grid_place(float2* placed, float* placed_weights, const unsigned* starts, const unsigned* ranks,
                                      const float* box, const float* layout, const float* weights, const size_t n,
                                      const unsigned G) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float inverse_h = 1 / box[2];
  const Point<2> y = point<2>(layout, i);
  const float x = in_nodes(y.x[0], box[0], inverse_h, G), z = in_nodes(y.x[1], box[1], inverse_h, G);
  const size_t cell = (size_t)cell_of(z, G) * G + (size_t)cell_of(x, G);
  const unsigned to = starts[cell] + ranks[i];
  placed[to] = {x, z};
  if (weights) placed_weights[to] = weights[i];
}

// What a node at (column, row) gets of the points from `begin` on, each `step`-th.
template <bool WEIGHTED>
__device__ __forceinline__ void collect(i64 (&sums)[3], const float2* placed, const float* weights, unsigned begin,
                                        unsigned end, unsigned step, float column, float row) {
#pragma unroll 4
  for (unsigned p = begin; p < end; p += step) {
    const float2 u = placed[p];
    const float x = u.x - column, z = u.y - row, one = weight_at(x) * weight_at(z) * UNIT;
    const float w = WEIGHTED ? weights[p] * one : one;
    sums[0] += __float2ll_rn(w), sums[1] += __float2ll_rn(w * x), sums[2] += __float2ll_rn(w * z);
  }
}

// A quarter of LANES lanes for each of the four rows of cells around a node, blocks of 256.
template <unsigned LANES, bool WEIGHTED>
__device__ void charges_of(float* charges, const unsigned* counts, const unsigned* starts, const float2* placed,
                           const float* weights, unsigned G) {
  constexpr unsigned EACH = LANES / 4;
  const unsigned t = blockIdx.x * THREADS + threadIdx.x, node = t / LANES, part = t % LANES / EACH, lane = t % EACH;
  const unsigned row = node / G, column = node % G;
  i64 sums[3] = {};
  // The cell of a node begins at it; its points reach from the node before that to the second
  // after.
  const unsigned cell_row = row + part - 2;
  if (cell_row >= 1 && cell_row <= G - 3) {
    const unsigned first = cell_row * G + (column > 2 ? column - 2 : 0), last = cell_row * G + min(column + 1, G - 1);
    const unsigned end = starts[last] + counts[last];
    // Points of cells that follow each other do so too, but for stretches of cells.
    const unsigned middle = last / STARTS * STARTS;
    if (first >= middle) {
      collect<WEIGHTED>(sums, placed, weights, starts[first] + lane, end, EACH, (float)column, (float)row);
    } else {
      const unsigned end_of_first = starts[middle - 1] + counts[middle - 1];
      collect<WEIGHTED>(sums, placed, weights, starts[first] + lane, end_of_first, EACH, (float)column, (float)row);
      collect<WEIGHTED>(sums, placed, weights, starts[middle] + lane, end, EACH, (float)column, (float)row);
    }
  }
#pragma unroll
  for (unsigned k = 0; k < 3; k++)
#pragma unroll
    for (unsigned step = 1; step < LANES; step *= 2) sums[k] += __shfl_xor_sync(ALL, sums[k], step);
  // Coordinates of charges are from the middle, those of sums from the node.
  const unsigned k = t % LANES;
  const double middle = .5 * (G - 1), from = k == 1 ? (double)column - middle : k == 2 ? (double)row - middle : 0;
  const double own = k == 1 ? (double)sums[1] : k == 2 ? (double)sums[2] : (double)sums[0];
  if (k < 3) charges[(size_t)k * G * G + node] = (float)((own + from * (double)sums[0]) * (1. / UNIT));
}

// Of small grids, where cells hold many points, a warp for each node.
#define CHARGES(LANES, NAME, WEIGHTED)                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      NAME##_##LANES(float* charges, const unsigned* counts, const unsigned* starts, const float2* placed,             \
                     const float* weights, const unsigned G) {                                                         \
    charges_of<LANES, WEIGHTED>(charges, counts, starts, placed, weights, G);                                          \
  }
CHARGES(4, grid_charges, false)
CHARGES(32, grid_charges, false)
CHARGES(4, grid_charges_weighted, true)
CHARGES(32, grid_charges_weighted, true)

// (w, w^(1 + 1/alpha)) of two nodes that are i and j apart.
__device__ __forceinline__ float2 kernels(float i, float j, float h, float alpha) {
  const float near = 1 / (1 + (i * i + j * j) * h * h / alpha), w = alpha == 1.f ? near : exp2f(alpha * log2f(near));
  return {w, w * near};
}

// Rows 0..G of the torus, the others are their mirror images: rows [G + 1, G + 1] of complex
// numbers (the real spectra of W and V along rows).
template <unsigned G>
__device__ void spectra_rows(float2* s, float2* rows, const float2* turns, const float* box, float alpha) {
  constexpr unsigned N = 2 * G;
  using Of = Lines<N, false>;
  if (box[3] == box[2]) return;  // the spectra are of this h
  const unsigned first = blockIdx.x * Of::COUNT;
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e / N, j = e % N;
    s[e] = kernels((float)(first + l), (float)(j <= G ? j : N - j), box[2], alpha);
  }
  fft<false, N, false>(s, turns);
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e / N, j = e % N;
    if (first + l <= G && j <= G) rows[(size_t)(first + l) * (G + 1) + j] = s[e];
  }
}

template <unsigned G>
__device__ void spectra_columns(float2* s, float2* spectra, const float2* rows, const float2* turns, const float* box) {
  constexpr unsigned N = 2 * G;
  using Of = Lines<N, true>;
  if (box[3] == box[2]) return;
  const unsigned first = blockIdx.x * Of::COUNT;
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e % Of::COUNT, i = e / Of::COUNT, from = i <= G ? i : N - i;
    s[e] = first + l <= G ? rows[(size_t)from * (G + 1) + first + l] : float2{0, 0};
  }
  fft<false, N, true>(s, turns);
  // The inverse transform divides by N in both directions.
  constexpr float SCALE = 1 / ((float)N * (float)N);
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e % Of::COUNT, i = e / Of::COUNT;
    if (first + l <= G && i <= G) spectra[(size_t)i * (G + 1) + first + l] = {s[e].x * SCALE, s[e].y * SCALE};
  }
}

// Blocks for A (y = 0) and B (y = 1).
template <unsigned G>
__device__ void forward(float2* s, float2* a, float2* b, const float* charges, const float2* turns) {
  constexpr unsigned N = 2 * G;
  constexpr size_t NODES = (size_t)G * G;
  using Of = Lines<N, false>;
  const unsigned first = blockIdx.x * Of::COUNT;
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e / N, j = e % N;
    float2 x = {0, 0};
    if (first + l < G && j < G) {
      const float* node = charges + (size_t)(first + l) * G + j;
      x = blockIdx.y == 0 ? float2{node[0], 0} : float2{node[NODES], node[2 * NODES]};
    }
    s[e] = x;
  }
  fft<false, N, false>(s, turns);
  float2* out = blockIdx.y == 0 ? a : b;
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e / N, j = e % N;
    if (first + l < G) out[(size_t)(first + l) * N + j] = s[e];
  }
}

template <unsigned G>
__device__ void columns(float2* s, float2* a, float2* b, const float2* spectra, const float2* turns) {
  constexpr unsigned N = 2 * G;
  using Of = Lines<N, true>;
  const unsigned first = blockIdx.x * Of::COUNT;
  float2* x = blockIdx.y == 0 ? a : b;
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e % Of::COUNT, i = e / Of::COUNT;
    s[e] = i < G ? x[(size_t)i * N + first + l] : float2{0, 0};
  }
  fft<false, N, true>(s, turns);
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e % Of::COUNT, i = e / Of::COUNT, j = first + l;
    const float2 k = spectra[(size_t)(i <= G ? i : N - i) * (G + 1) + (j <= G ? j : N - j)];
    s[e] = blockIdx.y == 0 ? times(s[e], k) : float2{s[e].x * k.y, s[e].y * k.y};
  }
  fft<true, N, true>(s, turns);
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e % Of::COUNT, i = e / Of::COUNT;
    if (i < G) x[(size_t)i * N + first + l] = s[e];
  }
}

// The first block notes which h the spectra are of.
template <unsigned G>
__device__ void back(float2* s, float2* potentials, float* box, const float2* a, const float2* b, const float2* turns) {
  constexpr unsigned N = 2 * G;
  using Of = Lines<N, false>;
  const unsigned first = blockIdx.x * Of::COUNT;
  const float2* from = blockIdx.y == 0 ? a : b;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) box[3] = box[2];
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e / N, j = e % N;
    s[e] = first + l < G ? from[(size_t)(first + l) * N + j] : float2{0, 0};
  }
  fft<true, N, false>(s, turns);
  for (unsigned e = threadIdx.x; e < Of::HELD; e += Of::THREADS) {
    const unsigned l = e / N, j = e % N;
    if (first + l < G && j < G) potentials[((size_t)(first + l) * G + j) * 2 + blockIdx.y] = s[e];
  }
}

#define GRID(G)                                                                                                        \
  extern "C" __global__ void __launch_bounds__(Lines<2 * G, false>::THREADS, Lines<2 * G, false>::RESIDENT)            \
      grid_spectra_rows_##G(float2* rows, const float2* turns, const float* box, const float alpha) {                  \
    extern __shared__ float2 s[];                                                                                      \
    spectra_rows<G>(s, rows, turns, box, alpha);                                                                       \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(Lines<2 * G, true>::THREADS, Lines<2 * G, true>::RESIDENT)              \
      grid_spectra_columns_##G(float2* spectra, const float2* rows, const float2* turns, const float* box) {           \
    extern __shared__ float2 s[];                                                                                      \
    spectra_columns<G>(s, spectra, rows, turns, box);                                                                  \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(Lines<2 * G, false>::THREADS, Lines<2 * G, false>::RESIDENT)            \
      grid_forward_##G(float2* a, float2* b, const float* charges, const float2* turns) {                              \
    extern __shared__ float2 s[];                                                                                      \
    forward<G>(s, a, b, charges, turns);                                                                               \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(Lines<2 * G, true>::THREADS, Lines<2 * G, true>::RESIDENT)              \
      grid_columns_##G(float2* a, float2* b, const float2* spectra, const float2* turns) {                             \
    extern __shared__ float2 s[];                                                                                      \
    columns<G>(s, a, b, spectra, turns);                                                                               \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(Lines<2 * G, false>::THREADS, Lines<2 * G, false>::RESIDENT)            \
      grid_back_##G(float2* potentials, float* box, const float2* a, const float2* b, const float2* turns) {           \
    extern __shared__ float2 s[];                                                                                      \
    back<G>(s, potentials, box, a, b, turns);                                                                          \
  }
GRID(64)
GRID(128)
GRID(256)
GRID(384)
GRID(512)
GRID(768)
GRID(1024)
GRID(1536)
GRID(2048)

// Blocks of 256.
extern "C" __global__ void grid_gather(float* forces, double* blocks, const float4* potentials, const float* box,
                                     const float* layout, const float* weights, const size_t begin, const size_t n,
                                     const unsigned G) {
  __shared__ double shared[THREADS / 32];
  const size_t i = begin + (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  float sum[4] = {};
  if (i < n) {
    const float h = box[2], inverse_h = 1 / h;
    const Point<2> y = point<2>(layout, i);
    interpolate(sum, potentials, in_nodes(y.x[0], box[0], inverse_h, G), in_nodes(y.x[1], box[1], inverse_h, G), G);
    const float x = (y.x[0] - box[0]) * inverse_h, z = (y.x[1] - box[1]) * inverse_h;
    forces[2 * i] = h * (x * sum[1] - sum[2]);
    forces[2 * i + 1] = h * (z * sum[1] - sum[3]);
  }
  // Where nodes are far apart, interpolation makes less of a point's own charge than 1. Others
  // never add less than nothing.
  const double weight = weights && i < n ? weights[i] : 1;
  const double all = sum_of_block<THREADS / 32>(i < n ? weight * fmax((double)sum[0] - 1, 0.) : 0, shared);
  if (threadIdx.x == 0) blocks[blockIdx.x] = all;
}
