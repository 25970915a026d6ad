// lasso_prepare.cu: what lasso.cu starts from: unit atoms, and the lists of signals.
//
// arrays   given, unit: [grams, n, n], Gram matrices; scales: [grams, n]; work: [launches][2 + m]
//          u32, see lasso.cu; updates: [m] u32; correlations: [m, n]; energies, ease: [m]
// launch   1-D, any number of blocks of whole warps
// cost     each array once; the sort compares all pairs of signals
// NaN      an `ease` of NaN counts as 0
// same     no atomics
// truth    the start of lasso_reference in src/codes/lasso/reference.rs

#include "codes/lasso.cuh"

// scales <- 1 / sqrt(diagonals of the Gram matrices), 0 for atoms of zeros; the lists of work of
// the launches, each of 2 + m: all of m signals, and none.
template <typename T>
__device__ void begin(const T* given, T* scales, unsigned* work, unsigned* updates, unsigned launches, unsigned m, unsigned n,
                      unsigned grams) {
  const size_t all = (size_t)gridDim.x * blockDim.x, atoms = (size_t)grams * n;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (m > atoms ? m : atoms); i += all) {
    if (i < atoms) {
      const T square = given[i * n + i % n];
      scales[i] = square > 0 ? 1 / sqrt(square) : T(0);
    }
    if (i < m) work[2 + i] = i, updates[i] = 0;
    if (i == 0)
      for (unsigned launch = 0; launch < launches; ++launch) {
        unsigned* const list = work + launch * (2 + (size_t)m);
        list[0] = 0, list[1] = launch == 0 ? m : 0;
      }
  }
}

// unit[k][i][j] <- scales[k][i] given[k][i][j] scales[k][j]
template <typename T>
__device__ void to_unit(const T* given, const T* scales, T* unit, unsigned n, unsigned grams) {
  const size_t all = (size_t)gridDim.x * blockDim.x, entries = (size_t)grams * n * n;
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < entries; e += all) {
    const size_t row = e / n;  // of all matrices below each other
    unit[e] = scales[row] * given[e] * scales[row / n * n + e % n];
  }
}

// ease[i] <- the largest |c_ij| of unit atoms over the energy: of signals of one energy, those that
// no atom is much like need most atoms. A warp for each signal.
template <typename T>
__device__ void to_ease(const T* correlations, const T* energies, const T* scales, float* ease, unsigned m, unsigned n, unsigned own) {
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < m; i += warps) {
    T most = 0;
    for (unsigned j = lane; j < n; j += 32)
      most = larger(most, absolute(correlations[(size_t)i * n + j]) * scales[own ? (size_t)i * n + j : j]);
#pragma unroll
    for (int step = 16; step; step /= 2) most = larger(most, __shfl_xor_sync(ALL, most, step));
    const float of = (float)(most / energies[i]);
    if (lane == 0) ease[i] = of > 0 ? of : 0;  // no NaN, so that there is an order
  }
}

// The list of `work`: all signals, in rising order of `ease`. A warp for each signal.
extern "C" __global__ void lasso_sort(const float* ease, unsigned* work, const unsigned m) {
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32;
  for (unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < m; i += warps) {
    const float mine = ease[i];
    unsigned before = 0;
    for (unsigned j = lane; j < m; j += 32) before += ease[j] < mine || (ease[j] == mine && j < i);
    before = __reduce_add_sync(ALL, before);
    if (lane == 0) work[2 + before] = i;
  }
}

#define PREPARE(T, NAME)                                                                                           \
  extern "C" __global__ void lasso_begin_##NAME(const T* given, T* scales, unsigned* work, unsigned* updates,      \
                                                const unsigned launches, const unsigned m, const unsigned n,       \
                                                const unsigned grams) {                                            \
    begin(given, scales, work, updates, launches, m, n, grams);                                                    \
  }                                                                                                                \
  extern "C" __global__ void lasso_unit_##NAME(const T* given, const T* scales, T* unit, const unsigned n,         \
                                               const unsigned grams) {                                             \
    to_unit(given, scales, unit, n, grams);                                                                        \
  }                                                                                                                \
  extern "C" __global__ void lasso_ease_##NAME(const T* correlations, const T* energies, const T* scales,          \
                                               float* ease, const unsigned m, const unsigned n,                    \
                                               const unsigned own) {                                               \
    to_ease(correlations, energies, scales, ease, m, n, own);                                                      \
  }
PREPARE(float, f32)
PREPARE(double, f64)
