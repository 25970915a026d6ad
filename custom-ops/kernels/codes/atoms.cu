// atoms.cu: the update of a group of atoms, and the error after it.
//
//   update_atoms   for each atom j of the group with signals, F = E_I + x_j d_j over its list I, x and d of before the group:
//                    g = sum_k x_k E_k + (x . x_old) d_old - 2 gamma * sum_{l != j} (d_l . d) d_l
//                    d <- g / |g|;  x_k <- E_k . d + x_old_k (d_old . d)          steps times, or until |change of d| <= tolerance
//                  steps = 0: d only. If g has length 0 or is not finite, the steps end and atom
//                  and coefficients keep their values
//   follow         E_i += x_old d_old - x_new d_new for the atoms of the group in the code of
//                  signal i, in the code's order
//
// arrays   d_in: [n, p], x_in: [m, s]: the inputs. d_out, x_out: the same shapes, at first copies
//          of them; each atom writes its row and its entries. error: [m, p]. offsets: [n + 1],
//          entries: [offsets[n]]: places i * s + k, sorted by atom. indices: [m, s], count: [m]
//          u32. T is float or double; contiguous; none overlap
// scalars  atoms with more than `above` and at most `most` uses are updated; first <= j < last <=
//          n; s, p >= 1; steps >= 0; tolerance2 >= 0, squared; gamma >= 0
// launch   update_atoms: blocks of 512, one for each atom or, of capability 9.0, a cluster. follow:
//          a warp for each signal, blocks of 256
// shared   update_atoms: (3 p + 16 * 128 + 16) T and 16 doubles, dynamic
// cost     each step reads the rows of E in the list twice, usually from L2: 2 * p * sizeof(T)
//          bytes per use; the atom with the longest list is the last to end, of which each block of
//          a cluster takes its share
// NaN      affects only its own atom
// twice    if a code names an atom twice, each entry is updated separately, as if it belonged to
//          another signal
// same     sums have one order, for each number of blocks; no atomics
// truth    update_atoms_reference in src/codes/atoms/reference.rs

#include "codes/atoms.cuh"

template <typename T>
__device__ void update(T* d_out, T* x_out, const T* d_in, const T* x_in, const T* error, const unsigned* offsets,
                       const unsigned* entries, unsigned first, unsigned n, unsigned s, unsigned p, unsigned steps,
                       double tolerance2, double gamma, unsigned above, unsigned most) {
  extern __shared__ double shared[];
  double* sums = shared;  // WARPS
  T* sums_t = (T*)(sums + WARPS);
  T *scratch = sums_t + WARPS, *old = scratch + WARPS * COLUMNS, *d = old + p, *g = d + p;

  const Team team;
  const unsigned j = first + blockIdx.x / team.blocks, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const unsigned length = offsets[j + 1] - offsets[j];
  const unsigned* list = entries + offsets[j];
  if (length <= above || length > most) return;  // the whole cluster
  for (unsigned c = threadIdx.x; c < p; c += THREADS) old[c] = d[c] = d_in[(size_t)j * p + c];
  __syncthreads();

  for (unsigned step = 0; step < max(steps, 1u); step++) {
    // The first coefficients are the old ones, later ones those that this block wrote.
    const T* x = step == 0 ? x_in : x_out;
    T both = 0;
    for (size_t k = team.rank * THREADS + threadIdx.x; k < length; k += team.blocks * THREADS)
      both += x[list[k]] * x_in[list[k]];
    both = team.sum(both, sums_t);
    for (unsigned at = 0; at < p; at += COLUMNS) {
      const T sum = weighted_tile(error, x, list, length, s, p, at, scratch, team);
      const unsigned c = at + threadIdx.x;
      if (threadIdx.x < COLUMNS && c < p) g[c] = sum + both * old[c];
    }
    __syncthreads();
    if (gamma > 0) {
      // The warps of all blocks take the other atoms in turn and keep their sums apart, a tile of
      // columns after the other.
      for (unsigned at = 0; at < p; at += COLUMNS) {
        T part[4] = {0, 0, 0, 0};
        for (unsigned l = team.rank * WARPS + warp; l < n; l += team.blocks * WARPS) {
          if (l == j) continue;
          const T* other = (l < first ? d_out : d_in) + (size_t)l * p;
          T like = 0;
          for (unsigned c = lane; c < p; c += WARP) like += other[c] * d[c];
          like = T(-2 * gamma) * sum_of_warp(like);
#pragma unroll
          for (unsigned q = 0; q < 4; q++) {
            const unsigned c = at + q * WARP + lane;
            if (c < p) part[q] += like * other[c];
          }
        }
        const T sum = team.sum_columns(part, min(COLUMNS, p - at), scratch);
        const unsigned c = at + threadIdx.x;
        if (threadIdx.x < COLUMNS && c < p) g[c] += sum;
      }
      __syncthreads();
    }

    double squares = 0;
    for (unsigned c = threadIdx.x; c < p; c += THREADS) squares += (double)g[c] * (double)g[c];
    const double norm = sqrt(sum_of_block<WARPS>(squares, sums));
    if (!(norm > 1.17549435e-38 && norm < INFINITY)) break;  // the same for all threads of all blocks
    double change = 0;
    for (unsigned c = threadIdx.x; c < p; c += THREADS) {
      const T unit = T((double)g[c] / norm);
      change += ((double)unit - (double)d[c]) * ((double)unit - (double)d[c]);
      d[c] = unit;
    }
    change = sum_of_block<WARPS>(change, sums);
    if (steps == 0) break;

    T along = 0;
    for (unsigned c = threadIdx.x; c < p; c += THREADS) along += old[c] * d[c];
    along = sum_of_block<WARPS>(along, sums_t);
    const unsigned each = team.blocks * WARPS;
    for (size_t at = team.rank * WARPS + warp; at < length; at += each * AT_ONCE) {
      T dot[AT_ONCE];
      unsigned e[AT_ONCE];
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; i++) {
        const size_t k = at + i * each;
        e[i] = list[k < length ? k : at];
        dot[i] = 0;
      }
      for (unsigned c = lane; c < p; c += WARP) {
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) dot[i] += error[(size_t)(e[i] / s) * p + c] * d[c];
      }
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; i++) {
        const T x_new = sum_of_warp(dot[i]) + x_in[e[i]] * along;
        if (lane == 0 && at + i * each < length) x_out[e[i]] = x_new;
      }
    }
    team.sync();
    if (change <= tolerance2) break;
  }
  if (team.rank > 0) return;
  for (unsigned c = threadIdx.x; c < p; c += THREADS) d_out[(size_t)j * p + c] = d[c];
}

template <typename T>
__device__ void follow(T* error, const T* d_out, const T* x_out, const T* d_in, const T* x_in, const unsigned* indices,
                       const unsigned* count, unsigned first, unsigned last, size_t m, unsigned s, unsigned p) {
  const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  const unsigned lane = threadIdx.x % WARP;
  if (i >= m) return;
  const unsigned used = min(count[i], s);
  for (unsigned at = 0; at < used; at += WARP) {
    const unsigned mine = at + lane < used ? indices[i * s + at + lane] : 0xffffffffu;
    unsigned changed = __ballot_sync(ALL_LANES, mine >= first && mine < last);
    while (changed) {
      const unsigned k = __ffs(changed) - 1;
      changed &= changed - 1;
      const size_t atom = (size_t)__shfl_sync(ALL_LANES, mine, k) * p, e = i * s + at + k;
      const T x_old = x_in[e], x_new = x_out[e];
      for (unsigned c = lane; c < p; c += WARP) {
        T sum = error[i * p + c] + x_old * d_in[atom + c];
        error[i * p + c] = sum - x_new * d_out[atom + c];
      }
    }
  }
}

#define OF_TYPE(T, NAME)                                                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
      update_atoms_##NAME(T* d_out, T* x_out, const T* d_in, const T* x_in, const T* error, const unsigned* offsets, \
                          const unsigned* entries, const unsigned first, const unsigned n, const unsigned s,         \
                          const unsigned p, const unsigned steps, const double tolerance2, const double gamma,       \
                          const unsigned above, const unsigned most) {                                               \
    update<T>(d_out, x_out, d_in, x_in, error, offsets, entries, first, n, s, p, steps, tolerance2, gamma, above,    \
              most);                                                                                                 \
  }                                                                                                                  \
  extern "C" __global__ void follow_##NAME(T* error, const T* d_out, const T* x_out, const T* d_in, const T* x_in,   \
                                           const unsigned* indices, const unsigned* count, const unsigned first,     \
                                           const unsigned last, const size_t m, const unsigned s, const unsigned p) { \
    follow<T>(error, d_out, x_out, d_in, x_in, indices, count, first, last, m, s, p);                                \
  }

OF_TYPE(float, f32)
OF_TYPE(double, f64)
