// atom_coherence.cu: the largest |cosine| of each atom with an atom of lower index.
//
//   scale[j] = 1 / |d_j|, 0 where that is 0;  out[j] = 0                    begin
//   out[j]   = max_{i < j} |(scale_i d_i) . (scale_j d_j)|                  0 for the first; NaN propagates
//
// arrays   d: [n, p] T (float or double), scale: [n] T, out: [n] double, contiguous, not overlapping
// scalars  n >= 1, p >= 1
// launch   begin: blocks of 256, a warp for each atom. cosines: grid (T, T) for the T = n / 32 tiles of atoms, blocks of 64: a block has the
//          cosines of two tiles, and ends at once where its atoms i come after its atoms j
// shared   36 * 64 T, static
// cost     n^2 p FLOP, for which a block reads d once for each 32 atoms
// same     a maximum does not depend on order, and numbers of at least 0 compare as their bits do; dot products have one order
// truth    atom_coherence_reference in src/atoms/coherence.rs

#include "numbers.cuh"
#include "warp.cuh"

constexpr unsigned WARP = 32, TILE = 32, EACH = 4;  // EACH x EACH cosines of a thread
constexpr unsigned ACROSS = TILE / EACH, THREADS = ACROSS * ACROSS, LINE = TILE + 4;

template <typename T>
__device__ void begin(double* out, T* scale, const T* d, unsigned n, unsigned p) {
  const unsigned j = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  if (j >= n) return;
  double squares = 0;
  for (unsigned c = threadIdx.x % WARP; c < p; c += WARP) {
    const double x = d[(size_t)j * p + c];
    squares = fma(x, x, squares);
  }
  squares = sum_of_warp(squares);
  if (threadIdx.x % WARP == 0) scale[j] = squares == 0 ? T(0) : T(1 / sqrt(squares)), out[j] = 0;
}

// Atoms from `first` on, features from `at` on, of length 1: a line for each feature.
template <typename T>
__device__ void load_tile(T* tile, const T* d, const T* scale, unsigned first, unsigned at, unsigned n, unsigned p) {
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll 8
  for (unsigned row = threadIdx.x / WARP; row < TILE; row += THREADS / WARP) {
    const unsigned j = first + row, c = at + lane;
    tile[lane * LINE + row] = j < n && c < p ? d[(size_t)j * p + c] * scale[j] : T(0);
  }
}

template <typename T>
__device__ void cosines(double* out, const T* d, const T* scale, unsigned n, unsigned p) {
  __shared__ __align__(16) T of_i[TILE * LINE], of_j[TILE * LINE];
  if (blockIdx.x > blockIdx.y) return;
  const unsigned i0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE;
  const unsigned along = threadIdx.x % ACROSS * EACH, down = threadIdx.x / ACROSS * EACH;
  T sum[EACH][EACH] = {};
  for (unsigned at = 0; at < p; at += TILE) {
    load_tile(of_i, d, scale, i0, at, n, p);
    load_tile(of_j, d, scale, j0, at, n, p);
    __syncthreads();
#pragma unroll 8
    for (unsigned c = 0; c < TILE; c++) {
      T x[EACH], y[EACH];
      load4(of_i + c * LINE + along, x), load4(of_j + c * LINE + down, y);
#pragma unroll
      for (unsigned e = 0; e < EACH; e++)
#pragma unroll
        for (unsigned f = 0; f < EACH; f++) sum[e][f] = fused(x[e], y[f], sum[e][f]);
    }
    __syncthreads();
  }
#pragma unroll
  for (unsigned f = 0; f < EACH; f++) {
    const unsigned j = j0 + down + f;
    unsigned long long most = 0;
#pragma unroll
    for (unsigned e = 0; e < EACH; e++) {
      const unsigned long long bits = __double_as_longlong(fabs((double)sum[e][f]));
      if (i0 + along + e < j && bits > most) most = bits;
    }
#pragma unroll
    for (unsigned step = ACROSS / 2; step; step /= 2) {
      const unsigned long long other = __shfl_xor_sync(0xffffffffu, most, step);
      if (other > most) most = other;
    }
    if (along == 0 && j < n) atomicMax(reinterpret_cast<unsigned long long*>(out + j), most);
  }
}

#define OF_TYPE(T, NAME)                                                                                          \
  extern "C" __global__ void atom_coherence_begin_##NAME(double* out, T* scale, const T* d, const unsigned n,     \
                                                         const unsigned p) {                                      \
    begin(out, scale, d, n, p);                                                                                   \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
      atom_coherence_##NAME(double* out, const T* d, const T* scale, const unsigned n, const unsigned p) {        \
    cosines(out, d, scale, n, p);                                                                                 \
  }

OF_TYPE(float, f32)
OF_TYPE(double, f64)
