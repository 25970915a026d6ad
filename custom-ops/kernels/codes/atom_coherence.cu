// atom_coherence.cu: the largest |cosine| of each atom with an atom of lower index.
//
//   scale[j] = 1 / |d_j|, 0 where that is 0;  out[j] = 0                    begin
//   out[j]   = max_{i < j} |(scale_i d_i) . (scale_j d_j)|                  0 for the first; NaN propagates
//
// arrays   d: [n, p] T (float or double), scale: [n] T, out: [n] double, contiguous, not
//          overlapping
// scalars  n >= 1, p >= 1
// launch   begin: blocks of 256, a warp for each atom. cosines: grid (T, T) for the T = n / 32
//          tiles of atoms, blocks of 64: a block has the cosines of two tiles, and ends at once
//          where its atoms i come after its atoms j
// shared   38 * 64 T, static
// cost     n^2 p FLOP, for which a block reads d once for each 32 atoms
// same     a maximum does not depend on order, and numbers of at least 0 compare as their bits do;
//          dot products have one order
// truth    atom_coherence_reference in src/codes/atoms/coherence.rs

#include "core/numbers.cuh"
#include "core/warp.cuh"

constexpr unsigned WARP = 32, TILE = 32, EACH = 4;  // EACH x EACH cosines of a thread
constexpr unsigned ACROSS = TILE / EACH, THREADS = ACROSS * ACROSS, LINE = TILE + 4;
constexpr unsigned ROWS = TILE * WARP / THREADS;  // of a tile that a warp copies

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

// The rows of a tile that a warp copies: of atoms from `first` on, features from `at` on.
template <typename T>
__device__ __forceinline__ void load(T (&v)[ROWS], const T* d, unsigned first, unsigned at, unsigned n, unsigned p) {
  const unsigned c = at + threadIdx.x % WARP;
#pragma unroll
  for (unsigned r = 0; r < ROWS; r++) {
    const unsigned j = first + threadIdx.x / WARP * ROWS + r;
    v[r] = 0;
    if (j < n && c < p) v[r] = d[(size_t)j * p + c];
  }
}

// Puts them into a tile of a line for each feature, of length 1.
template <typename T>
__device__ __forceinline__ void store(T* tile, const T (&v)[ROWS], const T* scale) {
#pragma unroll
  for (unsigned r = 0; r < ROWS; r++) {
    const unsigned row = threadIdx.x / WARP * ROWS + r;
    tile[threadIdx.x % WARP * LINE + row] = v[r] * scale[row];
  }
}

template <typename T>
__device__ void cosines(double* out, const T* d, const T* scale, unsigned n, unsigned p) {
  __shared__ __align__(16) T of_i[TILE * LINE], of_j[TILE * LINE], scale_i[TILE], scale_j[TILE];
  if (blockIdx.x > blockIdx.y) return;
  const unsigned i0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE;
  const unsigned along = threadIdx.x % ACROSS * EACH, down = threadIdx.x / ACROSS * EACH;
  if (threadIdx.x < TILE) {
    scale_i[threadIdx.x] = i0 + threadIdx.x < n ? scale[i0 + threadIdx.x] : T(0);
    scale_j[threadIdx.x] = j0 + threadIdx.x < n ? scale[j0 + threadIdx.x] : T(0);
  }
  T next_i[ROWS], next_j[ROWS], sum[EACH][EACH] = {};
  load(next_i, d, i0, 0, n, p), load(next_j, d, j0, 0, n, p);
  for (unsigned at = 0; at < p; at += TILE) {
    __syncthreads();
    store(of_i, next_i, scale_i), store(of_j, next_j, scale_j);
    __syncthreads();
    load(next_i, d, i0, at + TILE, n, p), load(next_j, d, j0, at + TILE, n, p);
#pragma unroll 8
    for (unsigned c = 0; c < TILE; c++) {
      T x[EACH], y[EACH];
      load4(of_i + c * LINE + along, x), load4(of_j + c * LINE + down, y);
#pragma unroll
      for (unsigned e = 0; e < EACH; e++)
#pragma unroll
        for (unsigned f = 0; f < EACH; f++) sum[e][f] = fused(x[e], y[f], sum[e][f]);
    }
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
