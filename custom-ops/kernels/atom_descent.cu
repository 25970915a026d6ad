// atom_descent.cu: one descent sweep over the atoms, from the statistics of codes.
//
//   for each group of 32 atoms first <= j < last, one group after the other:
//     u_j <- b_j - a_j D                                                         all blocks, a row each
//     for j = first, ...: d_new = d_j + u_j / a_jj, brought to length; u_k += a_kj (d_j - d_new) for k > j; d_j <- d_new      block 0
//   brought to length: scaled to 1; capped: only where it is longer than 1
//
// arrays   d: [n, p], u: [min(32, n - n_fixed), p], a: [n, n], b: [n, p], T float or double. Contiguous, none overlap
// scalars  n_fixed < n: the atoms before it do not change; p >= 1; unused: an atom with a_jj at or below it does not change;
//          capped: 1 where atoms may be shorter than 1, else 0
// launch   cooperative, so that all blocks run at once; blocks of 512, at most 32 of them (surplus blocks exit) and at least one. Between the
//          two parts of a group, and between groups, the whole grid waits; block 0 alone writes d, the others read it after that
// shared   dynamic, the larger of 16 * 128 T and, near, 128 bytes and 2 (g + 1) p + g^2 T with g = min(32, n - n_fixed); far, 16
//          doubles and p T
// cost     2 n p FLOP per atom and two grid barriers per group; the chain of atoms limits: about 500 cycles per atom at p = 64
// NaN      a row whose new length is not finite, or is 0 and must be 1, does not change; a NaN in d or b spreads to the rows that a
//          couples with it
// same     each sum has one order; no atomics on numbers. Near and far round differently (a product with 1 / a_jj, a division)
// truth    descend_atoms_reference in src/atoms/descend.rs

#include <cooperative_groups.h>

#include "atoms.cuh"

constexpr unsigned GROUP = 32;

// u <- b_j - a_j D, by the whole block, with `scratch` of WARPS * COLUMNS numbers.
template <typename T>
__device__ void residual(T* u, const T* a, const T* b, const T* d, unsigned j, unsigned n, unsigned p) {
  extern __shared__ double shared[];
  T* scratch = (T*)shared;
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const T* row = a + (size_t)j * n;
  for (unsigned at = 0; at < p; at += COLUMNS) {
    T part[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (unsigned k = warp; k < n; k += WARPS) {
      const T weight = row[k];
#pragma unroll
      for (unsigned q = 0; q < 4; q++) {
        const unsigned c = at + q * WARP + lane;
        if (c < p) part[q] += weight * d[(size_t)k * p + c];
      }
    }
#pragma unroll
    for (unsigned q = 0; q < 4; q++) scratch[warp * COLUMNS + q * WARP + lane] = part[q];
    __syncthreads();
    const unsigned c = at + threadIdx.x;
    if (threadIdx.x < COLUMNS && c < p) {
      T sum = 0;
      for (unsigned w = 0; w < WARPS; w++) sum += scratch[w * COLUMNS + threadIdx.x];
      u[c] = b[(size_t)j * p + c] - sum;
    }
    __syncthreads();
  }
}

// x scaled to length 1, given the sum of its squares: by how much, or 0 where it has no length or none that is a number.
__device__ __forceinline__ double inverse_length(double squares, double) {
  const double norm = sqrt(squares);
  return norm > 1.17549435e-38 && norm < INFINITY ? 1 / norm : 0;
}
__device__ __forceinline__ float inverse_length(double squares, float) {
  const float s = (float)squares;
  // Outside, the inverse of a square root of f32 is not what it should be.
  if (!(s > 1e-30f && s < 1e30f)) return (float)inverse_length(squares, 0.);
  const float first = rsqrtf(s);
  return fmaf(0.5f * first, fmaf(-s * first, first, 1.f), first);
}

// The same where the length must be 1, or 1 where it may be below and is.
template <typename T>
__device__ __forceinline__ T to_length(double squares, unsigned capped) {
  return capped && squares <= 1 ? T(1) : inverse_length(squares, T());
}

// The atoms of a group one after the other, with d and u where they are.
template <typename T>
__device__ void chain_far(T* d, T* u, const T* a, unsigned first, unsigned last, unsigned n, unsigned p, double unused,
                          unsigned capped) {
  extern __shared__ double shared[];
  double* sums = shared;
  T* lost = (T*)(sums + WARPS);
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  for (unsigned j = first; j < last; j++) {
    const T a_jj = a[(size_t)j * n + j];
    if (!((double)a_jj > unused)) continue;  // the same for all threads
    T* row = d + (size_t)j * p;
    const T* u_j = u + (size_t)(j - first) * p;
    double squares = 0;
    for (unsigned c = threadIdx.x; c < p; c += THREADS) {
      const T wanted = row[c] + u_j[c] / a_jj;
      lost[c] = wanted;
      squares += (double)wanted * (double)wanted;
    }
    const T inverse = to_length<T>(sum_of_block(squares, sums), capped);
    if (inverse == T(0)) continue;
    for (unsigned c = threadIdx.x; c < p; c += THREADS) {
      const T unit = lost[c] * inverse;
      lost[c] = row[c] - unit;
      row[c] = unit;
    }
    __syncthreads();
    for (unsigned k = j + 1 + warp; k < last; k += WARPS) {
      const T by = a[(size_t)k * n + j];
      for (unsigned c = lane; c < p; c += WARP) u[(size_t)(k - first) * p + c] += by * lost[c];
    }
    __syncthreads();
  }
}

// The same with all that is read again and again in shared memory, and every sixteenth row a warp's own: it forms its atoms by itself, and
// one barrier an atom tells the others what the atom lost.
template <typename T>
__device__ void chain_near(T* d, const T* u, const T* a, unsigned first, unsigned last, unsigned n, unsigned p,
                           double unused, unsigned capped) {
  extern __shared__ double shared[];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rows = last - first;
  bool* const moves = (bool*)shared;
  T* const lost = (T*)(shared + WARPS);  // by this atom and by the one before
  T *const atoms = lost + 2 * p, *const wanted = atoms + rows * p, *const weight = wanted + rows * p;
  T* const from = d + (size_t)first * p;
  for (unsigned e = threadIdx.x; e < rows * p; e += THREADS) atoms[e] = from[e], wanted[e] = u[e];
  for (unsigned e = threadIdx.x; e < rows * rows; e += THREADS)
    weight[e] = a[(size_t)(first + e / rows) * n + first + e % rows];
  __syncthreads();
  for (unsigned j = 0; j < rows; j++) {
    T* const loses = lost + j % 2 * p;
    if (warp == j % WARPS) {
      const T a_jj = weight[j * rows + j];
      const bool used = (double)a_jj > unused;
      const T inverse_a = T(1) / a_jj;
      T* const row = atoms + j * p;
      const T* const u_j = wanted + j * p;
      double squares = 0;
      for (unsigned c = lane; c < p; c += WARP) {
        const T now = row[c] + u_j[c] * inverse_a;
        loses[c] = now;
        squares += (double)now * (double)now;
      }
      const T inverse = used ? to_length<T>(sum_of_warp(squares), capped) : T(0);
      for (unsigned c = lane; inverse != T(0) && c < p; c += WARP) {
        const T unit = loses[c] * inverse;
        loses[c] = row[c] - unit;
        row[c] = unit;
      }
      if (lane == 0) moves[j % 2] = inverse != T(0);
    }
    __syncthreads();
    if (!moves[j % 2]) continue;
    for (unsigned k = j + 1 + (warp + WARPS - (j + 1) % WARPS) % WARPS; k < rows; k += WARPS) {
      const T by = weight[k * rows + j];
      for (unsigned c = lane; c < p; c += WARP) wanted[k * p + c] += by * loses[c];
    }
  }
  for (unsigned e = threadIdx.x; e < rows * p; e += THREADS) from[e] = atoms[e];
}

template <typename T, bool NEAR>
__device__ void descend(T* d, T* u, const T* a, const T* b, unsigned n_fixed, unsigned n, unsigned p, double unused,
                        unsigned capped) {
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  for (unsigned first = n_fixed;; first += GROUP) {
    const unsigned last = n - first < GROUP ? n : first + GROUP;
    for (unsigned j = first + blockIdx.x; j < last; j += gridDim.x) residual(u + (size_t)(j - first) * p, a, b, d, j, n, p);
    grid.sync();
    if (blockIdx.x == 0) {
      if (NEAR)
        chain_near(d, u, a, first, last, n, p, unused, capped);
      else
        chain_far(d, u, a, first, last, n, p, unused, capped);
    }
    if (last == n) break;  // the same for all blocks
    grid.sync();
  }
}

#define OF_TYPE(T, NAME)                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
      descend_near_##NAME(T* d, T* u, const T* a, const T* b, const unsigned n_fixed, const unsigned n,           \
                          const unsigned p, const double unused, const unsigned capped) {                        \
    descend<T, true>(d, u, a, b, n_fixed, n, p, unused, capped);                                                  \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
      descend_far_##NAME(T* d, T* u, const T* a, const T* b, const unsigned n_fixed, const unsigned n,            \
                         const unsigned p, const double unused, const unsigned capped) {                         \
    descend<T, false>(d, u, a, b, n_fixed, n, p, unused, capped);                                                 \
  }

OF_TYPE(float, f32)
OF_TYPE(double, f64)
