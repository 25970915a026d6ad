// pursuit_blocks.cuh: the pursuit of a signal by one block, at any size: what pursuit_registers.cuh does not hold.
//
// arrays   the memory of a block, `memory`, is shared where it fits and global where not; in it, in this order
//            v        [s, width]      directions; NaN at the atoms chosen so far
//            alpha    [width]         correlations
//            left     [width]         E, for least squares
//            scale    [width]         1 / |observed part of an atom|, where rows are made here
//            observed, vector [line]  1 where a sample counts, else 0; its product with the signal, later with an atom
//            triangle [s, s]          L, below its diagonal
//            small    [7, s]          see Small
//            gram_ii  [s, s], factor [s, s]   for codes of at least 0
// rows     `gram` [width, width], or, where that is null, made from `turned`, the unit atoms as columns: for signals with
//          missing samples, each with a Gram matrix of its own, and for signals too few to pay for n^2 products
// launch   1-D blocks of a multiple of 32 threads, each taking every gridDim-th signal
// cost     s^2 width / 2 multiply-adds and reads of v for a signal, s rows of G; with rows made here s width p of both
// width    n rounded up to whole packs; atoms beyond n have rows of 0 and are never chosen
#pragma once

#include "pursuit.cuh"

constexpr int MAX_WARPS = 16;

// What is kept of each step.
template <typename T>
struct Small {
  T *inverse_e, *t, *b, *x, *previous, *wish, *first;  // `first`: correlations with the signal itself
  __device__ Small(T* at, unsigned s)
      : inverse_e(at), t(at + s), b(at + 2 * s), x(at + 3 * s), previous(at + 4 * s), wish(at + 5 * s),
        first(at + 6 * s) {}
};

// x >= 0 that minimises |y - x D| over the chosen atoms, by one warp: the active set method of Lawson and Hanson, from the
// solution of the step before, in which the new atom is free from the start. The atoms free are those whose x is above 0.
//
//   gram_ii [count, count] of a chosen atom's row `s` apart; factor: scratch of the same shape; first: D y
template <typename T>
__device__ void nonnegative_least_squares(const Small<T>& of, const T* gram_ii, T* factor, unsigned count, unsigned s,
                                          T tolerance, unsigned lane) {
  unsigned entering = count - 1;
  // Each round lowers the error, so that no set of free atoms comes back; rounding is kept from turning in circles.
  for (unsigned round = 0; round < 3 * count + 3; ++round) {
    // The free atoms are the ones with x > 0 and the one that enters; `previous` counts them.
    while (true) {
      // Cholesky over all atoms; the row and column of one that is not free are those of the unit matrix.
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

template <typename T, bool OLS, bool ROWS_MADE>
__device__ void pursue_in_block(const Problem<T>& of, T* memory) {
  using P = typename Pack<T>::Type;
  constexpr unsigned SIZE = Pack<T>::SIZE;
  constexpr T PIVOT = least_pivot<T, OLS>();
  __shared__ T warp_best[MAX_WARPS];
  __shared__ unsigned warp_atom[MAX_WARPS];
  __shared__ double warp_energy[MAX_WARPS];
  __shared__ T move, inverse_pivot;
  __shared__ double energy_left;
  __shared__ bool stop;

  const unsigned s = of.s, width = of.width, p = of.p, line = sizeof(T) == 8 ? (p + 1) / 2 * 2 : (p + 7) / 8 * 8;
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  T* const v = memory;
  T* const alpha = v + (size_t)s * width;
  T* const left = alpha + width;
  T* const scale = left + (OLS ? width : 0);
  T* const observed = scale + (ROWS_MADE ? width : 0);
  T* const vector = observed + (ROWS_MADE ? line : 0);
  T* const triangle = vector + (ROWS_MADE ? line : 0);
  const Small<T> small(triangle + (size_t)s * s, s);
  T* const gram_ii = small.first + s;
  T* const factor = gram_ii + (size_t)s * s;
  unsigned* const atoms = reinterpret_cast<unsigned*>(gram_ii + (of.nonnegative ? 2 * (size_t)s * s : 0));

  // sum over samples of vector[f] * turned[f][j], for the atoms of this thread's pack
  auto made_row = [&](unsigned j, T(&row)[SIZE]) {
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) row[e] = 0;
    for (unsigned f = 0; f < p; ++f) {
      const P pack = __ldg(reinterpret_cast<const P*>(of.turned + (size_t)f * width + j));
      T atom[SIZE];
      memcpy(atom, &pack, sizeof pack);
      const T x = vector[f];
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) row[e] = fma(x, atom[e], row[e]);
    }
  };

  for (size_t signal = blockIdx.x; signal < of.m; signal += gridDim.x) {
    __syncthreads();  // the signal before is done with what is shared
    T norm;
    if (ROWS_MADE) {
      // The signal's observed samples, and their norm: as norm_by_warp has it.
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
        if (lane == 0) warp_energy[warp] = peak;
        __syncthreads();
        for (unsigned w = 0; w < warps; ++w) peak = fmax(peak, warp_energy[w]);
        power = peak > 0 && peak < CUDART_INF ? ilogb(peak) : 0;
        __syncthreads();
      }
      for (unsigned f = threadIdx.x; f < p; f += blockDim.x) {
        const double y = sizeof(T) == 8 ? scalbn((double)vector[f], -power) : (double)vector[f];
        energy = fma(y, y, energy);
      }
      energy = sum_of_warp(energy);
      if (lane == 0) warp_energy[warp] = energy;
      __syncthreads();
      energy = 0;
      for (unsigned w = 0; w < warps; ++w) energy += warp_energy[w];
      norm = (T)scalbn(sqrt(energy), power);
      if (!(norm < CUDART_INF)) {
        if (threadIdx.x == 0) of.refused[REFUSED_SIGNAL] = 1;
        norm = 0;
      }
    } else {
      norm = of.norms[signal];
    }
    const T least = 16 * epsilon<T>() * norm, limit = limit_of(of, signal, norm);
    // |r|^2 as a share of |y|^2
    const double inverse_norm = 1 / (double)norm;
    double energy = 1;

    T best = 0;
    unsigned mine = ALL;
    unsigned k = 0;
    auto consider = [&](unsigned j, T a, T e) {
      const T size = of.nonnegative ? a : fabs(a);
      T score = size;
      if (OLS) score = e > PIVOT ? size * inverse_root(e) : T(0);
      if (score > best) best = score, mine = j;  // a chosen atom's is NaN
    };
    for (unsigned j = threadIdx.x * SIZE; j < width; j += blockDim.x * SIZE) {
      T row[SIZE];
      if (ROWS_MADE) {
        made_row(j, row);
        T square[SIZE] = {};
        for (unsigned f = 0; f < p; ++f) {
          const P pack = __ldg(reinterpret_cast<const P*>(of.turned + (size_t)f * width + j));
          T atom[SIZE];
          memcpy(atom, &pack, sizeof pack);
#pragma unroll
          for (unsigned e = 0; e < SIZE; ++e) square[e] = fma(observed[f] * atom[e], atom[e], square[e]);
        }
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) {
          scale[j + e] = square[e] > 0 ? 1 / sqrt(square[e]) : T(0);
          row[e] *= scale[j + e];
        }
      } else {
        const P pack = __ldg(reinterpret_cast<const P*>(of.correlations + signal * width + j));
        memcpy(row, &pack, sizeof pack);
      }
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        alpha[j + e] = row[e];
        if (OLS) left[j + e] = 1;
        consider(j + e, row[e], 1);
      }
    }

    for (; k < s && energy > limit; ++k) {
      const T top_of_warp = largest(best);
      const unsigned atom_of_warp = __reduce_min_sync(ALL, mine != ALL && best == top_of_warp ? mine : ALL);
      if (lane == 0) warp_best[warp] = top_of_warp, warp_atom[warp] = atom_of_warp;
      __syncthreads();
      T top = 0;
      unsigned i = ALL;
      for (unsigned w = 0; w < warps; ++w) {
        const bool better = warp_best[w] > top || (warp_best[w] == top && warp_atom[w] < i);
        if (warp_atom[w] != ALL && better) top = warp_best[w], i = warp_atom[w];
      }
      if (i == ALL) break;  // the same in all threads
      // On its way while warp 0 works: for most sizes all that a thread needs of row i.
      const unsigned first_pack = threadIdx.x * SIZE;
      P first{};
      if (!ROWS_MADE && first_pack < width)
        first = __ldg(reinterpret_cast<const P*>(of.gram + (size_t)i * width + first_pack));
      T* const row_of_l = triangle + (size_t)k * s;
      if (warp == 0) {
        T e = 0;
        for (unsigned j = lane; j < k; j += 32) {
          const T z = v[(size_t)j * width + i], t = z * small.inverse_e[j];
          small.t[j] = t;
          row_of_l[j] = t;
          e = fma(z, t, e);
        }
        e = 1 - sum_of_warp(e);
        const T alpha_i = alpha[i];
        if (lane == 0) {
          stop = !(fabs(alpha_i) > least) || !(e > PIVOT);
          inverse_pivot = 1 / e;
          small.inverse_e[k] = inverse_pivot;
          atoms[k] = i;
          move = alpha_i * inverse_pivot;
        }
        __syncwarp();
      }
      __syncthreads();
      if (stop) break;

      // The new direction; where codes may have either sign, alpha and the next choice in the same pass.
      if (ROWS_MADE) {
        for (unsigned f = threadIdx.x; f < p; f += blockDim.x)
          vector[f] = observed[f] * of.turned[(size_t)f * width + i] * scale[i];
        __syncthreads();
      }
      best = 0, mine = ALL;
      for (unsigned j = threadIdx.x * SIZE; j < width; j += blockDim.x * SIZE) {
        T row[SIZE];
        if (ROWS_MADE) {
          made_row(j, row);
#pragma unroll
          for (unsigned e = 0; e < SIZE; ++e) row[e] = j + e == i ? not_a_number<T>() : row[e] * scale[j + e];
        } else {
          const P pack =
              j == first_pack ? first : __ldg(reinterpret_cast<const P*>(of.gram + (size_t)i * width + j));
          memcpy(row, &pack, sizeof pack);
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
          if (OLS) left[j + e] = fma(-row[e] * inverse_pivot, row[e], left[j + e]);
          if (!of.nonnegative) {
            const T a = fma(-move, row[e], alpha[j + e]);
            alpha[j + e] = a;
            consider(j + e, a, OLS ? left[j + e] : T(1));
          }
        }
      }
      if (!of.nonnegative) {
        if (threadIdx.x == 0) small.b[k] = move;
        const double share = move * inverse_norm;
        energy -= share * share / inverse_pivot;
        continue;
      }

      // Codes of at least 0: b is kept as for either sign, and what x falls short of it is taken back from alpha.
      __syncthreads();
      if (warp == 0) {
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
          T along = alpha[i];
          for (unsigned j = 0; j < k; ++j) along = fma(gram_ii[k * s + j], small.x[j], along);
          small.first[k] = along;
          for (unsigned j = 0; j < k; ++j) along = fma(-row_of_l[j], small.b[j] / small.inverse_e[j], along);
          small.b[k] = along * small.inverse_e[k];
          small.x[k] = 0;
        }
        __syncwarp();
        // c = L^T x, of the coefficients so far
        for (unsigned l = lane; l <= k; l += 32) {
          T c = 0;
          for (unsigned r = l; r < k; ++r) c = fma(r == l ? T(1) : triangle[(size_t)r * s + l], small.x[r], c);
          small.t[l] = c;
        }
        __syncwarp();
        nonnegative_least_squares<T>(small, gram_ii, factor, k + 1, s, least / 4, lane);
        double error = 0;
        for (unsigned l = lane; l <= k; l += 32) {
          T c = 0;
          for (unsigned r = l; r <= k; ++r) c = fma(r == l ? T(1) : triangle[(size_t)r * s + l], small.x[r], c);
          const double e = 1 / small.inverse_e[l], b = small.b[l] * inverse_norm, short_of = b - c * inverse_norm;
          error += e * (short_of * short_of - b * b);
          small.t[l] = c - small.t[l];
        }
        error = sum_of_warp(error);
        if (lane == 0) energy_left = 1 + error;
      }
      __syncthreads();
      energy = energy_left;
      for (unsigned j = threadIdx.x * SIZE; j < width; j += blockDim.x * SIZE) {
        for (unsigned l = 0; l <= k; ++l) {
          const T t = small.t[l];
          if (t == 0 && l < k) continue;  // but v_k takes the new atom out by its NaN even where x stays 0
#pragma unroll
          for (unsigned e = 0; e < SIZE; ++e) alpha[j + e] = fma(-t, v[(size_t)l * width + j + e], alpha[j + e]);
        }
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) consider(j + e, alpha[j + e], OLS ? left[j + e] : T(1));
      }
    }

    __syncthreads();
    if (warp == 0) {
      if (!of.nonnegative) {
        // L^T x = b
        for (unsigned l = lane; l < k; l += 32) small.x[l] = small.b[l];
        __syncwarp();
        for (unsigned r = k; r-- > 1;) {
          const T x = small.x[r];
          for (unsigned l = lane; l < r; l += 32) small.x[l] = fma(-triangle[(size_t)r * s + l], x, small.x[l]);
          __syncwarp();
        }
      }
      unsigned filled = 0;
      for (unsigned first = 0; first < k; first += 32) {
        const unsigned l = first + lane;
        const bool keep = l < k && (!of.nonnegative || small.x[l] > 0);
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
  }
}
