// atom_statistics.cu: what codes say about the best dictionary, and a sweep of descent towards it.
//
//   codes_gram      a[j][l] <- beta a[j][l] + sum over the list of j, in warps and blocks of 256 entries a warp, of x_j x_l
//   codes_signals   b[j]    <- beta b[j] + sum over the list of j of x_j y
//   residuals       u[j]    <- b[j] - a[j] D                                          first <= j < last
//   descend         for j = first, ...: d_new = (d_j + u_j / a_jj) normalised; u_k += a_kj (d_j - d_new) for k > j; d_j <- d_new
//
// arrays   a: [n, n], b: [n, p], d: [n, p], u: [last - first, p], x: [m, s], y: [m, p], T float or double; indices: [m, s],
//          count: [m], offsets: [n + 1], entries: lists of places i * s + k, u32. Contiguous, none overlap
// scalars  beta finite, 0: what was there is not read; s, p >= 1; unused: a_jj at or below it leaves the atom
// launch   codes_gram: a block of 32 * warps for each atom, warps >= 1. codes_signals, residuals: a block of 512 for each atom.
//          descend, descend_near: one block of 512
// shared   codes_gram: warps * n T. codes_signals: (p + 16 * 128) T. residuals: 16 * 128 T. descend: 16 doubles and
//          p T; descend_near 2 (last - first + 1) p + (last - first)^2 T. All dynamic
// cost     codes_gram 2 s, codes_signals 2 p FLOP a use; residuals 2 n p FLOP an atom; descend is a chain: latency binds
// bounds   a count above s counts as s; an index of n or more is left out
// same     each sum has one order; no atomics
// truth    Statistics::cpu and descend_atoms_reference in src/atoms/{statistics,descend}.rs

#include "atoms.cuh"

// Entries that a warp sums by themselves before they join the sum: what is added stays of the size of what it is added to.
constexpr unsigned BLOCK = 256;

template <typename T>
__device__ void gram(T* a, T beta, const unsigned* indices, const T* x, const unsigned* count, const unsigned* offsets,
                     const unsigned* entries, unsigned n, unsigned s) {
  extern __shared__ double shared[];
  T* rows = (T*)shared;
  const unsigned j = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  T* row = rows + (size_t)warp * n;
  const unsigned length = offsets[j + 1] - offsets[j];
  const unsigned* list = entries + offsets[j];
  for (unsigned first = 0;; first += warps * BLOCK) {
    for (unsigned l = threadIdx.x; l < warps * n; l += blockDim.x) rows[l] = 0;
    __syncthreads();
    const unsigned here = min(length - first, warps * BLOCK);
    for (unsigned k = warp; k < here; k += warps) {
      const unsigned e = list[first + k], i = e / s, used = min(count[i], s);
      const T mine = x[e];
      // The atoms of a code differ, so no two lanes meet.
      for (unsigned q = lane; q < used; q += WARP) {
        const unsigned l = indices[(size_t)i * s + q];
        if (l < n) row[l] += mine * x[(size_t)i * s + q];
      }
      __syncwarp();
    }
    __syncthreads();
    for (unsigned l = threadIdx.x; l < n; l += blockDim.x) {
      T sum = 0;
      for (unsigned w = 0; w < warps; w++) sum += rows[(size_t)w * n + l];
      T* to = a + (size_t)j * n + l;
      if (first > 0)
        *to += sum;
      else
        *to = beta == T(0) ? sum : beta * *to + sum;
    }
    if (length - first <= warps * BLOCK) break;  // the same for all threads
    __syncthreads();
  }
}

template <typename T>
__device__ void signals(T* b, T beta, const T* y, const T* x, const unsigned* offsets, const unsigned* entries,
                        unsigned s, unsigned p) {
  extern __shared__ double shared[];
  T *scratch = (T*)shared, *sum = scratch + WARPS * COLUMNS;
  const unsigned j = blockIdx.x;
  weighted_sum(sum, y, x, entries + offsets[j], offsets[j + 1] - offsets[j], s, p, scratch);
  for (unsigned c = threadIdx.x; c < p; c += THREADS) {
    T* to = b + (size_t)j * p + c;
    *to = beta == T(0) ? sum[c] : beta * *to + sum[c];
  }
}

template <typename T>
__device__ void residuals(T* u, const T* a, const T* b, const T* d, unsigned first, unsigned n, unsigned p) {
  extern __shared__ double shared[];
  T* scratch = (T*)shared;
  const unsigned j = first + blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
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
      u[(size_t)blockIdx.x * p + c] = b[(size_t)j * p + c] - sum;
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

template <typename T>
__device__ void descend(T* d, T* u, const T* a, unsigned first, unsigned last, unsigned n, unsigned p, double unused) {
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
    const T inverse = inverse_length(sum_of_block(squares, sums), T());
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
__device__ void descend_near(T* d, const T* u, const T* a, unsigned first, unsigned last, unsigned n, unsigned p,
                             double unused) {
  extern __shared__ double shared[];
  __shared__ bool moves[2];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, rows = last - first;
  T* const lost = (T*)shared;  // by this atom and by the one before
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
      const T inverse = used ? inverse_length(sum_of_warp(squares), T()) : T(0);
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

#define OF_TYPE(T, NAME)                                                                                               \
  extern "C" __global__ void codes_gram_##NAME(T* a, const T beta, const unsigned* indices, const T* x,                \
                                               const unsigned* count, const unsigned* offsets, const unsigned* entries, \
                                               const unsigned n, const unsigned s) {                                   \
    gram<T>(a, beta, indices, x, count, offsets, entries, n, s);                                                       \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      codes_signals_##NAME(T* b, const T beta, const T* y, const T* x, const unsigned* offsets,                        \
                           const unsigned* entries, const unsigned s, const unsigned p) {                              \
    signals<T>(b, beta, y, x, offsets, entries, s, p);                                                                 \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      residuals_##NAME(T* u, const T* a, const T* b, const T* d, const unsigned first, const unsigned n,               \
                       const unsigned p) {                                                                             \
    residuals<T>(u, a, b, d, first, n, p);                                                                             \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      descend_##NAME(T* d, T* u, const T* a, const unsigned first, const unsigned last, const unsigned n,              \
                     const unsigned p, const double unused) {                                                          \
    descend<T>(d, u, a, first, last, n, p, unused);                                                                    \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      descend_near_##NAME(T* d, T* u, const T* a, const unsigned first, const unsigned last, const unsigned n,         \
                          const unsigned p, const double unused) {                                                     \
    descend_near<T>(d, u, a, first, last, n, p, unused);                                                               \
  }

OF_TYPE(float, f32)
OF_TYPE(double, f64)
