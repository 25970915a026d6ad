// layout.cu: a step of t-SNE's gradient descent, and the divergence of a layout.
//
//   gradient_i = 4 (exaggeration / c_i sum_j p_ij (y_i - y_j) / (1 + |y_i - y_j|^2 / alpha) -
//   forces_i / total)
//   c_i        how many the point stands for: 1, or its weight; sums over points and their mean
//              count it so many times
//   gain       = gradient * velocity > 0 ? 0.8 gain : gain + 0.2, kept in its range
//   velocity   = momentum velocity - rate gain gradient, shortened to the largest step
//   room       = y + velocity                                  layout_move, of rows `begin` .. `end`, with
//                                                              sums over those of a block in `work`;
//                                                              0 beyond the blocks
//   y          = room - mean(room)                             layout_centre; |y| beyond `most`: y = most with its
//                                                              sign, velocity = 0, gain = 1
//
// arrays   layout, velocity, gains, room, forces: [n, D] float; offsets [n + 1], columns, values:
//          the graph; rates: [3] float; weights: [n] float, null where all are 1; work: [5 BLOCKS]
//          double, squares, three coordinates and, with weights, these, then six floats for each
//          1024 rows, the boxes; figures: [7] double: gradient squares, lows, highs; total: [1]
//          double
// launch   layout_move: 8 blocks of 256 for each multiprocessor, at most BLOCKS, a warp for a row
//          at a time; layout_centre: a block of 256 for each 1024 rows; layout_figures: one block
//          of 256; layout_divergence: a block of 256 for each 256 rows
// cost     8 bytes an edge and a gather of a point each; the second-level cache holds the points
// bounds   an offset beyond the edges is taken for their number, a column beyond the points for the
//          last
// NaN      shows in figures[0]
// same     sums in a fixed order; no atomics
// truth    layout_step_reference in src/tsne/layout/step.rs, layout_divergence_reference in
//          src/tsne/layout/divergence.rs

#include "tsne/points.cuh"

constexpr unsigned BLOCKS = 2048, SET = 8, THREADS = 256, WARPS = THREADS / 32, STRETCH = 1024, ALL = 0xffffffffu;

struct Settings {
  float alpha, smallest_gain, largest_gain, largest_step;
};

// The point at the other end of an edge; a column beyond the points is taken for the last, as on
// the CPU.
template <int D>
__device__ __forceinline__ Point<D> other_end(const float* layout, unsigned column, size_t n) {
  return point<D>(layout, column < n ? column : n - 1);
}

template <int D, bool WEIGHTED>
__device__ void move_points(float* velocity, float* gains, float* room, double* work, const float* layout,
                            const float* rates, const unsigned* offsets, const unsigned* columns, const float* values,
                            const float* forces, const double* total, const float* weights, size_t n, size_t begin,
                            size_t end_of_own, unsigned n_edges, const Settings& s) {
  __shared__ double shared[WARPS];
  const unsigned lane = threadIdx.x % 32;
  const float rate = rates[0], momentum = rates[1], exaggeration = rates[2];
  const float scale = *total == 0 ? 0 : (float)(1 / *total), inverse_alpha = 1 / s.alpha;
  double squares = 0, sum = 0;  // of the coordinate of this lane
  // Rows that follow each other are near each other in a sorted layout, and so are the points at
  // the other ends of their edges. Blocks are dealt out to multiprocessors in turn: those of one
  // get stretches that follow each other, so that its cache holds these points.
  const size_t sets = gridDim.x / SET, part = blockIdx.x % sets * SET + blockIdx.x / sets;
  const size_t stretch = (end_of_own - begin + gridDim.x * WARPS - 1) / (gridDim.x * WARPS) * WARPS;
  const size_t first = begin + part * stretch, last = end_of_own < first + stretch ? end_of_own : first + stretch;
  for (size_t i = first + threadIdx.x / 32; i < last; i += WARPS) {
    const Point<D> own = point<D>(layout, i);
    float pull[D] = {};
    const unsigned end = min(offsets[i + 1], n_edges);
    // Not unrolled: it would take registers of warps, which hide the gathers better.
#pragma unroll 1
    for (unsigned e = offsets[i] + lane; e < end; e += 32) {
      float difference[D];
      // Edges are read once a step.
      const float square = apart(difference, own, other_end<D>(layout, __ldcs(columns + e), n));
      const float p = __ldcs(values + e) * quick_inverse(fmaf(square, inverse_alpha, 1.f));
#pragma unroll
      for (int k = 0; k < D; k++) pull[k] = fmaf(p, difference[k], pull[k]);
    }
#pragma unroll
    for (int k = 0; k < D; k++) pull[k] = sum_of_warp(pull[k]);
    // Each of the first lanes has a coordinate from here on.
    float v = 0, gain = 0, own_pull = 0, at_own = 0;
    const size_t at = i * D + lane;
#pragma unroll
    for (int k = 0; k < D; k++)
      if (lane == k) own_pull = pull[k], at_own = own.x[k];
    if (lane < D) {
      const float share = WEIGHTED ? exaggeration / weights[i] : exaggeration;
      const float gradient = 4.f * (share * own_pull - forces[at] * scale), old = velocity[at];
      gain = gradient * old > 0 ? .8f * gains[at] : gains[at] + .2f;
      gain = fminf(fmaxf(gain, s.smallest_gain), s.largest_gain);
      v = momentum * old - rate * gain * gradient;
      squares += WEIGHTED ? (double)weights[i] * (double)(gradient * gradient) : (double)(gradient * gradient);
    }
    float length = 0;
#pragma unroll
    for (int k = 0; k < D; k++) {
      const float one = __shfl_sync(ALL, v, k);
      length += one * one;
    }
    length = sqrtf(length);
    v *= length > s.largest_step ? s.largest_step / length : 1.f;
    if (lane < D) {
      gains[at] = gain;
      velocity[at] = v;
      room[at] = at_own + v;
      sum += WEIGHTED ? (double)weights[i] * (double)(at_own + v) : (double)(at_own + v);
    }
  }
  squares = sum_of_block<WARPS>(squares, shared);
  if (threadIdx.x == 0) {
    work[blockIdx.x] = squares;
    // Other ranks may have more blocks.
    for (unsigned b = blockIdx.x + gridDim.x; b < BLOCKS; b += gridDim.x)
      for (unsigned k = 0; k < 4; k++) work[k * BLOCKS + b] = 0;
  }
#pragma unroll
  for (int k = 0; k < 3; k++) {
    const double all = k < D ? sum_of_block<WARPS>(lane == k ? sum : 0, shared) : 0;
    if (threadIdx.x == 0) work[(k + 1) * BLOCKS + blockIdx.x] = all;
  }
  if (WEIGHTED) {
    // Of all points, whatever the own ones are.
    double count = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) count += weights[i];
    count = sum_of_block<WARPS>(count, shared);
    if (threadIdx.x == 0)
      for (unsigned b = blockIdx.x; b < BLOCKS; b += gridDim.x) work[4 * BLOCKS + b] = b == blockIdx.x ? count : 0;
  }
}

// The sum of the parts of all blocks, for all threads of a block.
__device__ double sum_of_parts(const double* parts, double* shared) {
  double sum = 0;
  for (unsigned b = threadIdx.x; b < BLOCKS; b += THREADS) sum += parts[b];
  return sum_of_block<WARPS>(sum, shared);
}

// boxes: [blocks, 6], the least of y and of -y.
template <int D>
__device__ void centre(float* layout, float* boxes, float* velocity, float* gains, const float* room, const double* work,
                       size_t n, float most, bool is_weighted) {
  __shared__ double shared[WARPS];
  __shared__ float floats[WARPS];
  float mean[D], low[D], high[D];
  const double count = is_weighted ? sum_of_parts(work + 4 * BLOCKS, shared) : (double)n;
#pragma unroll
  for (int k = 0; k < D; k++) {
    mean[k] = (float)(sum_of_parts(work + (k + 1) * BLOCKS, shared) / count);
    low[k] = high[k] = INFINITY;
  }
  const size_t first = (size_t)blockIdx.x * STRETCH, end = n < first + STRETCH ? n : first + STRETCH;
  for (size_t i = first + threadIdx.x; i < end; i += THREADS) {
#pragma unroll
    for (int k = 0; k < D; k++) {
      float y = room[i * D + k] - mean[k];
      if (fabsf(y) > most) {
        y = copysignf(most, y);
        velocity[i * D + k] = 0.f;
        gains[i * D + k] = 1.f;
      }
      layout[i * D + k] = y;
      low[k] = fminf(low[k], y), high[k] = fminf(high[k], -y);
    }
  }
#pragma unroll
  for (int k = 0; k < D; k++) {
    const float l = least_of_block<WARPS>(low[k], floats), h = least_of_block<WARPS>(high[k], floats);
    if (threadIdx.x == 0) boxes[blockIdx.x * 6 + k] = l, boxes[blockIdx.x * 6 + 3 + k] = h;
  }
}

// One block.
extern "C" __global__ void layout_figures(double* figures, const double* work, const float* boxes, const unsigned blocks,
                                          const unsigned dims) {
  __shared__ double shared[WARPS];
  __shared__ float floats[WARPS];
  const double squares = sum_of_parts(work, shared);
  if (threadIdx.x == 0) figures[0] = squares;
  for (unsigned k = 0; k < 6; k++) {
    float least = INFINITY;
    for (unsigned b = threadIdx.x; b < blocks; b += THREADS)
      if (k % 3 < dims) least = fminf(least, boxes[b * 6 + k]);
    least = least_of_block<WARPS>(least, floats);
    if (threadIdx.x == 0) figures[1 + k] = k % 3 >= dims ? 0. : k < 3 ? least : -least;
  }
}

template <int D>
__device__ void divergence(double* parts, const unsigned* offsets, const unsigned* columns, const float* values,
                           const float* layout, const double* total, size_t n, unsigned n_edges, float alpha) {
  __shared__ double shared[WARPS];
  const unsigned lane = threadIdx.x % 32;
  const double log_total = log(*total);
  const size_t first = (size_t)blockIdx.x * THREADS, end = n < first + THREADS ? n : first + THREADS;
  double sum = 0;
  for (size_t i = first + threadIdx.x / 32; i < end; i += WARPS) {
    const Point<D> own = point<D>(layout, i);
    const unsigned end = min(offsets[i + 1], n_edges);
    for (unsigned e = offsets[i] + lane; e < end; e += 32) {
      float difference[D];
      const float square = apart(difference, own, other_end<D>(layout, columns[e], n));
      const float p = values[e];
      if (p > 0) sum += (double)p * ((double)logf(p) + log_total + (double)(alpha * log1pf(square / alpha)));
    }
  }
  sum = sum_of_block<WARPS>(sum, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

#define MOVE(D, NAME, WEIGHTED)                                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS, 8)                                                             \
      NAME##_##D(float* velocity, float* gains, float* room, double* work, const float* layout, const float* rates,    \
                 const unsigned* offsets, const unsigned* columns, const float* values, const float* forces,           \
                 const double* total, const float* weights, const size_t n, const size_t begin, const size_t end,      \
                 const unsigned n_edges, const Settings s) {                                                           \
    move_points<D, WEIGHTED>(velocity, gains, room, work, layout, rates, offsets, columns, values, forces, total,      \
                             weights, n, begin, end, n_edges, s);                                                      \
  }
MOVE(2, layout_move, false)
MOVE(3, layout_move, false)
MOVE(2, layout_move_weighted, true)
MOVE(3, layout_move_weighted, true)

#define LAYOUT(D)                                                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      layout_centre_##D(float* layout, float* boxes, float* velocity, float* gains, const float* room,                 \
                        const double* work, const size_t n, const float most, const unsigned is_weighted) {            \
    centre<D>(layout, boxes, velocity, gains, room, work, n, most, is_weighted);                                       \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      layout_divergence_##D(double* parts, const unsigned* offsets, const unsigned* columns, const float* values,      \
                            const float* layout, const double* total, const size_t n, const unsigned n_edges,          \
                            const float alpha) {                                                                       \
    divergence<D>(parts, offsets, columns, values, layout, total, n, n_edges, alpha);                                  \
  }
LAYOUT(2)
LAYOUT(3)
