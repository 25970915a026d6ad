// code_figures.cu: the sizes of errors and signals, in parts of equally many rows, and how often
// atoms are used.
//
//   squares[i]             sum_c e[i, c]^2          lane l of 32 sums c = l, l + 32, ... in this order, then the lanes in halves
//   figures[t]             sum of squares[i] for i in part t: a warp every eighth row, then the
//                          warps in order
//   figures[parts + t]     max of sum_c y[i, c]^2 for i in part t; 0 without rows, NaN if one is
//   figures[2 parts + j]   offsets[j], j <= n
//
// arrays   e, y: [m, p] T (float or double), offsets: [n + 1] u32, squares: [m], figures: [2 parts
//          + n + 1] double. Contiguous, none overlap
// scalars  any m and p; part t has the rows t * part <= i < (t + 1) * part that there are; parts *
//          part >= m; n < 2^32 - 1
// launch   a block of 256 for each part
// shared   128 bytes
// cost     reads e and y once, which limits
// NaN      propagates to its part and to squares
// same     each sum has one order; no atomics
// truth    Figures::figures in src/codes/atoms/figures.rs

#include "core/warp.cuh"

constexpr unsigned WARP = 32, WARPS = 8;

__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }

// The sum of the squares of a row, the same bits as row_squares.cu; known to all lanes.
template <typename T>
__device__ double square_of(const T* row, size_t p, unsigned lane) {
  double sum = 0;
  for (size_t c = lane; c < p; c += WARP) sum += (double)row[c] * (double)row[c];
  return sum_of_warp(sum);
}

template <typename T>
__device__ void code_figures(double* figures, double* squares, const T* e, const T* y, const unsigned* offsets, size_t m,
                             size_t p, size_t part, unsigned n) {
  __shared__ double sums[WARPS], largest[WARPS];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, parts = gridDim.x;
  const size_t first = blockIdx.x * part, end = first + part < m ? first + part : m;
  double sum = 0, most = 0;
  for (size_t i = first + warp; i < end; i += WARPS) {
    const double error = square_of(e + i * p, p, lane);
    if (lane == 0) squares[i] = error;
    sum += error;
    most = larger(most, square_of(y + i * p, p, lane));
  }
  if (lane == 0) sums[warp] = sum, largest[warp] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < WARPS; w++) sum += sums[w], most = larger(most, largest[w]);
    figures[blockIdx.x] = sum;
    figures[parts + blockIdx.x] = most;
  }
  const size_t threads = (size_t)parts * blockDim.x;
  for (size_t j = (size_t)blockIdx.x * blockDim.x + threadIdx.x; j <= n; j += threads)
    figures[2 * parts + j] = offsets[j];
}

extern "C" __global__ void code_figures_f32(double* figures, double* squares, const float* e, const float* y,
                                            const unsigned* offsets, const size_t m, const size_t p, const size_t part,
                                            const unsigned n) {
  code_figures(figures, squares, e, y, offsets, m, p, part, n);
}
extern "C" __global__ void code_figures_f64(double* figures, double* squares, const double* e, const double* y,
                                            const unsigned* offsets, const size_t m, const size_t p, const size_t part,
                                            const unsigned n) {
  code_figures(figures, squares, e, y, offsets, m, p, part, n);
}
