// pursuit_blocks.cuh: the pursuit of a signal by one block, for sizes that do not fit
// pursuit_registers.cuh.
//
// arrays   the memory of a block, `memory`, is shared where it fits and global where not; in it, in
//          this order
//            v        [s, width]      directions; NaN at the atoms chosen so far
//            alpha    [width]         correlations
//            left     [width]         E, for least squares
//            scale    [width]         1 / |observed part of an atom|, where rows are made here
//            observed, vector [line]  1 where a sample counts, else 0; its product with the signal,
//                                     later with an atom
//            triangle [s, s]          L, below its diagonal
//            small    [7, s]          see Small
//            gram_ii  [s, s], factor [s, s]   for codes of at least 0
//            atoms    [s]             u32, the chosen atoms
// rows     `gram` [width, width], or, where that is null, made from `transposed`, the unit atoms as
//          columns: for signals with missing samples, each with a Gram matrix of its own, and for
//          signals too few to pay for n^2 products
// launch   1-D blocks of a multiple of 32 threads, up to 32 MAX_WARPS, each taking every gridDim-th
//          signal; less than 1 KiB of shared memory beside `memory`
// cost     s^2 width / 2 multiply-adds and reads of v for a signal, s rows of G; with rows made
//          here s width p of both
// width    n rounded up to whole packs; atoms beyond n have rows of 0 and are never chosen
#pragma once

#include "codes/pursuit.cuh"

constexpr int MAX_WARPS = 16;

// What is kept of each step.
template <typename T>
struct Small {
  T *inverse_e, *t, *b, *x, *previous, *wish, *first;  // `first`: correlations with the signal itself
  __device__ Small(T* at, unsigned s)
      : inverse_e(at), t(at + s), b(at + 2 * s), x(at + 3 * s), previous(at + 4 * s), wish(at + 5 * s),
        first(at + 6 * s) {}
};

// x >= 0 that minimises |y - x D| over the chosen atoms, by one warp: the active set method of
// Lawson and Hanson, from the solution of the step before, in which the new atom is free from the
// start. The atoms free are those whose x is above 0.
//
//   gram_ii [count, count] of a chosen atom's row `s` apart; factor: scratch of the same shape;
//   first: D y
template <typename T>
__device__ void nonnegative_least_squares(const Small<T>& of, const T* gram_ii, T* factor, unsigned count, unsigned s,
                                          T tolerance, unsigned lane) {
  unsigned entering = count - 1;
  // Each round lowers the error, so that no set of free atoms comes back; rounding is kept from
  // turning in circles.
  for (unsigned round = 0; round < 3 * count + 3; ++round) {
    // The free atoms are the ones with x > 0 and the one that enters; `previous` counts them.
    while (true) {
      // Cholesky over all atoms; the row and column of one that is not free are those of the unit
      // matrix.
      for (unsigned i = lane; i < count * count; i += 32) {
        const unsigned r = i / count, c = i % count;
        const bool free = (of.x[r] > 0 || r == entering) && (of.x[c] > 0 || c == entering);
        factor[r * s + c] = r == c ? T(1) : free ? gram_ii[r * s + c] : T(0);
      }
      for (unsigned r = lane; r < count; r += 32) of.wish[r] = of.x[r] > 0 || r == entering ? of.first[r] : T(0);
      __syncwarp();
      // L D L^T, in place below the diagonal, D on it; the right side is taken along.
      for (unsigned k = 0; k < count; ++k) {
        const T inverse = 1 / factor[k * s + k];
        const T right = of.wish[k];
        for (unsigned r = k + 1 + lane; r < count; r += 32) {
          const T l = factor[r * s + k] * inverse;
          for (unsigned c = k + 1; c <= r; ++c) factor[r * s + c] = fma(-l, factor[c * s + k], factor[r * s + c]);
          of.wish[r] = fma(-l, right, of.wish[r]);
        }
        __syncwarp();
      }
      for (unsigned k = count; k-- > 0;) {
        const T inverse = 1 / factor[k * s + k];
        const T x = of.wish[k] * inverse;
        __syncwarp();
        if (lane == 0) of.wish[k] = x;
        // Column k of L as it was before its division.
        for (unsigned c = lane; c < k; c += 32) of.wish[c] = fma(-factor[k * s + c], x, of.wish[c]);
        __syncwarp();
      }
      // As far towards the wish as no coefficient turns negative.
      T way = 1;
      for (unsigned r = lane; r < count; r += 32)
        if ((of.x[r] > 0 || r == entering) && !(of.wish[r] > 0)) way = fmin(way, of.x[r] / (of.x[r] - of.wish[r]));
#pragma unroll
      for (int step = 16; step; step /= 2) way = fmin(way, __shfl_xor_sync(ALL, way, step));
      for (unsigned r = lane; r < count; r += 32) {
        if (!(of.x[r] > 0 || r == entering)) continue;
        const bool blocks = !(of.wish[r] > 0) && of.x[r] / (of.x[r] - of.wish[r]) <= way;
        of.previous[r] = blocks ? T(0) : fma(way, of.wish[r] - of.x[r], of.x[r]);
      }
      __syncwarp();
      for (unsigned r = lane; r < count; r += 32)
        if (of.x[r] > 0 || r == entering) of.x[r] = fmax(of.previous[r], T(0));
      __syncwarp();
      const bool entered = of.x[entering] > 0;
      if (way >= 1 || !entered) break;
    }
    // The atom that is not free and would lower the error most.
    T best = tolerance;
    unsigned mine = ALL;
    for (unsigned r = lane; r < count; r += 32) {
      if (of.x[r] > 0) continue;
      T gradient = of.first[r];
      for (unsigned c = 0; c < count; ++c) gradient = fma(-gram_ii[r * s + c], of.x[c], gradient);
      if (gradient > best) best = gradient, mine = r;
    }
    const T top = largest(best);
    entering = __reduce_min_sync(ALL, mine != ALL && best == top ? mine : ALL);
    if (entering == ALL) return;
  }
}

// The largest score that a thread has seen, and its atom, ALL for none.
template <typename T, bool OLS>
struct Best {
  T score = 0;
  unsigned atom = ALL;

  // Atom j with the correlation a, of which e is left.
  __device__ __forceinline__ void consider(unsigned j, T a, T e, bool nonnegative) {
    const T size = nonnegative ? a : fabs(a);
    T of_atom = size;
    if (OLS) of_atom = e > least_pivot<T, OLS>() ? size * inverse_root(e) : T(0);
    if (of_atom > score) score = of_atom, atom = j;  // a chosen atom's is NaN
  }
};

// What the threads of a block tell each other.
template <typename T>
struct Told {
  T best[MAX_WARPS];
  unsigned atom[MAX_WARPS];
  double energy[MAX_WARPS];
  T move, inverse_pivot;
  double energy_left;
  bool stop;
};

// A block with the memory that the head lists. One function for each part of a pursuit, called by
// all threads; where a function leaves something for others to read, it says who must wait.
template <typename T, bool OLS, bool ROWS_MADE>
struct Block {
  using P = typename Pack<T>::Type;
  static constexpr unsigned SIZE = Pack<T>::SIZE;

  const Problem<T>& of;
  Told<T>& told;
  const unsigned s, width, p, line, lane, warp, warps;
  T *const v, *const alpha, *const left, *const scale, *const observed, *const vector, *const triangle;
  const Small<T> small;
  T *const gram_ii, *const factor;
  unsigned* const atoms;

  __device__ __forceinline__ Block(const Problem<T>& problem, Told<T>& shared, T* memory)
      : of(problem), told(shared), s(of.s), width(of.width), p(of.p),
        line(sizeof(T) == 8 ? (p + 1) / 2 * 2 : (p + 7) / 8 * 8), lane(threadIdx.x & 31), warp(threadIdx.x / 32),
        warps(blockDim.x / 32), v(memory), alpha(v + (size_t)s * width), left(alpha + width),
        scale(left + (OLS ? width : 0)), observed(scale + (ROWS_MADE ? width : 0)),
        vector(observed + (ROWS_MADE ? line : 0)), triangle(vector + (ROWS_MADE ? line : 0)),
        small(triangle + (size_t)s * s, s), gram_ii(small.first + s), factor(gram_ii + (size_t)s * s),
        atoms(reinterpret_cast<unsigned*>(gram_ii + (of.nonnegative ? 2 * (size_t)s * s : 0))) {}

  static __device__ __forceinline__ void load(T (&to)[SIZE], const T* from) {
    const P pack = __ldg(reinterpret_cast<const P*>(from));
    memcpy(to, &pack, sizeof pack);
  }

  // sum over samples of vector[f] * transposed[f][j], for the pack of atoms from j on
  __device__ __forceinline__ void make_row(unsigned j, T (&row)[SIZE]) const {
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) row[e] = 0;
    for (unsigned f = 0; f < p; ++f) {
      T atom[SIZE];
      load(atom, of.transposed + (size_t)f * width + j);
      const T x = vector[f];
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) row[e] = fma(x, atom[e], row[e]);
    }
  }

  // The signal's observed samples, and their norm: as norm_by_warp has it. Its last barrier lets
  // all see the samples.
  __device__ __forceinline__ T observe(size_t signal) const {
    double peak = 0, energy = 0;
    for (unsigned f = threadIdx.x; f < p; f += blockDim.x) {
      const bool counts = !of.mask || of.mask[signal * p + f];
      const T y = counts ? of.signals[signal * p + f] : T(0);
      peak = fmax(peak, fabs((double)y));
      observed[f] = counts, vector[f] = y;
    }
    int power = 0;
    if (sizeof(T) == 8) {
      peak = largest(peak);
      if (lane == 0) told.energy[warp] = peak;
      __syncthreads();
      for (unsigned w = 0; w < warps; ++w) peak = fmax(peak, told.energy[w]);
      power = peak > 0 && peak < CUDART_INF ? ilogb(peak) : 0;
      __syncthreads();
    }
    for (unsigned f = threadIdx.x; f < p; f += blockDim.x) {
      const double y = sizeof(T) == 8 ? scalbn((double)vector[f], -power) : (double)vector[f];
      energy = fma(y, y, energy);
    }
    energy = sum_of_warp(energy);
    if (lane == 0) told.energy[warp] = energy;
    __syncthreads();
    energy = 0;
    for (unsigned w = 0; w < warps; ++w) energy += told.energy[w];
    const T norm = (T)scalbn(sqrt(energy), power);
    if (norm < CUDART_INF) return norm;
    if (threadIdx.x == 0) of.refused[REFUSED_SIGNAL] = 1;
    return 0;
  }

  // Correlations with the signal, and where rows are made the norms of the atoms' observed parts.
  __device__ __forceinline__ void begin(size_t signal, Best<T, OLS>& best) const {
    for (unsigned j = threadIdx.x * SIZE; j < width; j += blockDim.x * SIZE) {
      T row[SIZE];
      if (ROWS_MADE) {
        make_row(j, row);
        T square[SIZE] = {};
        for (unsigned f = 0; f < p; ++f) {
          T atom[SIZE];
          load(atom, of.transposed + (size_t)f * width + j);
#pragma unroll
          for (unsigned e = 0; e < SIZE; ++e) square[e] = fma(observed[f] * atom[e], atom[e], square[e]);
        }
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) {
          scale[j + e] = square[e] > 0 ? 1 / sqrt(square[e]) : T(0);
          row[e] *= scale[j + e];
        }
      } else {
        load(row, of.correlations + signal * width + j);
      }
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        alpha[j + e] = row[e];
        if (OLS) left[j + e] = 1;
        best.consider(j + e, row[e], 1, of.nonnegative);
      }
    }
  }

  // The atom of the best score of all threads, of equal ones the lowest; ALL for none. Its barrier
  // lets all see alpha and v.
  __device__ __forceinline__ unsigned choose(const Best<T, OLS>& best) const {
    const T top_of_warp = largest(best.score);
    const unsigned atom_of_warp =
        __reduce_min_sync(ALL, best.atom != ALL && best.score == top_of_warp ? best.atom : ALL);
    if (lane == 0) told.best[warp] = top_of_warp, told.atom[warp] = atom_of_warp;
    __syncthreads();
    T top = 0;
    unsigned i = ALL;
    for (unsigned w = 0; w < warps; ++w) {
      const bool better = told.best[w] > top || (told.best[w] == top && told.atom[w] < i);
      if (told.atom[w] != ALL && better) top = told.best[w], i = told.atom[w];
    }
    return i;
  }

  // t, e and b of step k, which adds atom i, by warp 0: whether the pursuit goes on. Its barrier
  // lets all see them.
  __device__ __forceinline__ bool absorb(unsigned i, unsigned k, T least) const {
    if (warp == 0) {
      T e = 0;
      for (unsigned j = lane; j < k; j += 32) {
        const T z = v[(size_t)j * width + i], t = z * small.inverse_e[j];
        small.t[j] = t;
        triangle[(size_t)k * s + j] = t;
        e = fma(z, t, e);
      }
      e = 1 - sum_of_warp(e);
      const T alpha_i = alpha[i];
      if (lane == 0) {
        told.stop = !(fabs(alpha_i) > least) || !(e > least_pivot<T, OLS>());
        told.inverse_pivot = 1 / e;
        small.inverse_e[k] = told.inverse_pivot;
        atoms[k] = i;
        told.move = alpha_i * told.inverse_pivot;
      }
      __syncwarp();
    }
    __syncthreads();
    return !told.stop;
  }

  // The new direction v_k; where codes may have either sign, alpha and the next choice in the same
  // pass. `first` is row i of G where this thread's first pack is.
  __device__ __forceinline__ void extend(unsigned i, unsigned k, const P& first, Best<T, OLS>& best) const {
    if (ROWS_MADE) {
      for (unsigned f = threadIdx.x; f < p; f += blockDim.x)
        vector[f] = observed[f] * of.transposed[(size_t)f * width + i] * scale[i];
      __syncthreads();
    }
    for (unsigned j = threadIdx.x * SIZE; j < width; j += blockDim.x * SIZE) {
      T row[SIZE];
      if (ROWS_MADE) {
        make_row(j, row);
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) row[e] = j + e == i ? not_a_number<T>() : row[e] * scale[j + e];
      } else if (j == threadIdx.x * SIZE) {
        memcpy(row, &first, sizeof first);
      } else {
        load(row, of.gram + (size_t)i * width + j);
      }
#pragma unroll 4
      for (unsigned l = 0; l < k; ++l) {
        const P pack = *reinterpret_cast<const P*>(v + (size_t)l * width + j);
        T old[SIZE];
        memcpy(old, &pack, sizeof pack);
        const T t = small.t[l];
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) row[e] = fma(-t, old[e], row[e]);
      }
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        v[(size_t)k * width + j + e] = row[e];
        if (OLS) left[j + e] = fma(-row[e] * told.inverse_pivot, row[e], left[j + e]);
        if (!of.nonnegative) {
          const T a = fma(-told.move, row[e], alpha[j + e]);
          alpha[j + e] = a;
          best.consider(j + e, a, OLS ? left[j + e] : T(1), false);
        }
      }
    }
  }

  // c_l = (L^T x)_l over the first `count` atoms
  __device__ __forceinline__ T along(unsigned l, unsigned count) const {
    T c = 0;
    for (unsigned r = l; r < count; ++r) c = fma(r == l ? T(1) : triangle[(size_t)r * s + l], small.x[r], c);
    return c;
  }

  // Codes of at least 0: b is kept as for either sign, and what x falls short of it is taken back
  // from alpha. Returns |r|^2.
  __device__ __forceinline__ double solve_nonnegative(unsigned i, unsigned k, T least, double inverse_norm,
                                                      Best<T, OLS>& best) const {
    __syncthreads();
    if (warp == 0) {
      const T* const row_of_l = triangle + (size_t)k * s;
      // The chosen atoms' products are L E L^T, and E_l L_kl is what v_l has at i.
      for (unsigned j = lane; j <= k; j += 32) {
        T product = j == k ? T(1) : v[(size_t)j * width + i];
        if (j < k)
          for (unsigned l = 0; l < j; ++l)
            product = fma(triangle[(size_t)j * s + l], v[(size_t)l * width + i], product);
        gram_ii[k * s + j] = product;
        gram_ii[j * s + k] = product;
      }
      __syncwarp();
      if (lane == 0) {
        // d_i . y = alpha_i + what the coefficients so far take of it; then y . v_k of it
        T y = alpha[i];
        for (unsigned j = 0; j < k; ++j) y = fma(gram_ii[k * s + j], small.x[j], y);
        small.first[k] = y;
        for (unsigned j = 0; j < k; ++j) y = fma(-row_of_l[j], small.b[j] / small.inverse_e[j], y);
        small.b[k] = y * small.inverse_e[k];
        small.x[k] = 0;
      }
      __syncwarp();
      for (unsigned l = lane; l <= k; l += 32) small.t[l] = along(l, k);
      __syncwarp();
      nonnegative_least_squares<T>(small, gram_ii, factor, k + 1, s, least / 4, lane);
      double error = 0;
      for (unsigned l = lane; l <= k; l += 32) {
        const T c = along(l, k + 1);
        const double e = 1 / small.inverse_e[l], b = small.b[l] * inverse_norm, short_of = b - c * inverse_norm;
        error += e * (short_of * short_of - b * b);
        small.t[l] = c - small.t[l];
      }
      error = sum_of_warp(error);
      if (lane == 0) told.energy_left = 1 + error;
    }
    __syncthreads();
    for (unsigned j = threadIdx.x * SIZE; j < width; j += blockDim.x * SIZE) {
      for (unsigned l = 0; l <= k; ++l) {
        const T t = small.t[l];
        if (t == 0 && l < k) continue;  // but v_k takes the new atom out by its NaN even where x stays 0
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) alpha[j + e] = fma(-t, v[(size_t)l * width + j + e], alpha[j + e]);
      }
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) best.consider(j + e, alpha[j + e], OLS ? left[j + e] : T(1), true);
    }
    return told.energy_left;
  }

  // The code of `count` atoms, by warp 0, once all that it reads is there.
  __device__ __forceinline__ void write(size_t signal, unsigned count) const {
    if (!of.nonnegative) {
      // L^T x = b
      for (unsigned l = lane; l < count; l += 32) small.x[l] = small.b[l];
      __syncwarp();
      for (unsigned r = count; r-- > 1;) {
        const T x = small.x[r];
        for (unsigned l = lane; l < r; l += 32) small.x[l] = fma(-triangle[(size_t)r * s + l], x, small.x[l]);
        __syncwarp();
      }
    }
    unsigned filled = 0;
    for (unsigned first = 0; first < count; first += 32) {
      const unsigned l = first + lane;
      const bool keep = l < count && (!of.nonnegative || small.x[l] > 0);
      const unsigned kept = __ballot_sync(ALL, keep);
      if (keep) {
        const size_t to = signal * s + filled + __popc(kept & ((1u << lane) - 1));
        const unsigned atom = atoms[l];
        of.indices[to] = atom;
        of.values[to] = small.x[l] * of.inverse_norms[atom] * (ROWS_MADE ? scale[atom] : T(1));
      }
      filled += __popc(kept);
    }
    for (unsigned l = filled + lane; l < s; l += 32) of.indices[signal * s + l] = 0, of.values[signal * s + l] = 0;
    if (lane == 0) of.counts[signal] = filled;
  }
};

template <typename T, bool OLS, bool ROWS_MADE>
__device__ void pursue_in_block(const Problem<T>& of, T* memory) {
  using P = typename Pack<T>::Type;
  __shared__ Told<T> told;
  const Block<T, OLS, ROWS_MADE> block(of, told, memory);
  const unsigned first_pack = threadIdx.x * Pack<T>::SIZE;

  for (size_t signal = blockIdx.x; signal < of.m; signal += gridDim.x) {
    __syncthreads();  // the signal before is done with what is shared
    const T norm = ROWS_MADE ? block.observe(signal) : of.norms[signal];
    const T least = 16 * epsilon<T>() * norm, limit = limit_of(of, signal, norm);
    // |r|^2 as a share of |y|^2
    const double inverse_norm = 1 / (double)norm;
    double energy = 1;
    Best<T, OLS> best;
    block.begin(signal, best);

    unsigned k = 0;
    for (; k < of.s && energy > limit; ++k) {
      const unsigned i = block.choose(best);
      if (i == ALL) break;  // the same in all threads
      // On its way while warp 0 works: for most sizes all that a thread needs of row i.
      P first{};
      if (!ROWS_MADE && first_pack < of.width)
        first = __ldg(reinterpret_cast<const P*>(of.gram + (size_t)i * of.width + first_pack));
      if (!block.absorb(i, k, least)) break;
      best = {};
      block.extend(i, k, first, best);
      if (of.nonnegative) {
        energy = block.solve_nonnegative(i, k, least, inverse_norm, best);
      } else {
        if (threadIdx.x == 0) block.small.b[k] = told.move;
        const double share = told.move * inverse_norm;
        energy -= share * share / told.inverse_pivot;
      }
    }

    __syncthreads();
    if (block.warp == 0) block.write(signal, k);
  }
}
