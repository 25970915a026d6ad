// atom_coherence.cu: the largest |cosine| of each atom with an atom of lower index.
//
//   out[j] = max_{i < j} |d_i . d_j| / (|d_i| |d_j|)          0 for the first; pairs with a length of 0 are skipped; NaN propagates
//
// arrays   d: [n, p] T (float or double), out: [n] double, contiguous, not overlapping
// scalars  p >= 1
// launch   a block of 256 for each atom
// shared   64 bytes
// cost     n^2 p products of both kinds, from the cache; the last atoms take longest, so their blocks come first in the grid
// same     a maximum does not depend on order; dot products have one order
// truth    atom_coherence_reference in src/atoms/coherence.rs

#include "warp.cuh"

constexpr unsigned WARP = 32, WARPS = 8;

__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }

template <typename T>
__device__ void coherence(double* out, const T* d, unsigned p) {
  __shared__ double most_of[WARPS];
  const unsigned j = gridDim.x - 1 - blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const T* mine = d + (size_t)j * p;
  T square = 0;
  for (unsigned c = lane; c < p; c += WARP) square += mine[c] * mine[c];
  square = sum_of_warp(square);
  double most = 0;
  for (unsigned i = warp; i < j; i += WARPS) {
    const T* other = d + (size_t)i * p;
    T both = 0, squares = 0;
    for (unsigned c = lane; c < p; c += WARP) {
      both += other[c] * mine[c];
      squares += other[c] * other[c];
    }
    both = sum_of_warp(both);
    squares = sum_of_warp(squares);
    const double norms = sqrt((double)square) * sqrt((double)squares);
    if (norms != 0) most = larger(most, fabs((double)both) / norms);
  }
  if (lane == 0) most_of[warp] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < WARPS; w++) most = larger(most, most_of[w]);
    out[j] = most;
  }
}

extern "C" __global__ void atom_coherence_f32(double* out, const float* d, const unsigned p) { coherence(out, d, p); }
extern "C" __global__ void atom_coherence_f64(double* out, const double* d, const unsigned p) { coherence(out, d, p); }
