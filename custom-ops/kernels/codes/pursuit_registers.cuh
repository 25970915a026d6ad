// pursuit_registers.cuh: the pursuit of a signal by TEAM warps, with correlations and directions in
// their registers.
//
// sizes    up to 32 TEAM SLOTS atoms, SLOTS of them in a lane, and STEPS steps; SLOTS (STEPS + 1)
//          numbers in registers
// rows     of correlations and of G: in the order of place_of, 32 TEAM SLOTS wide; atoms of padding
//          are 0 and never chosen
// launch   1-D blocks of a signal, or, for teams of one warp, of two; for each (STEPS - 1) 32 TEAM
//          SLOTS numbers of shared memory, and 32 STEPS more that the kernel declares, beside 2
//          TEAM candidates: `shared_by_registers` in src/codes/pursuit/plan/mod.rs
// binds    latency: choose, then a row of G from the second cache, then k multiply-adds for each
//          atom. Directions have a copy in shared memory, where the entries at the chosen atom are
//          read: a register cannot be indexed
#pragma once

#include "codes/pursuit.cuh"

template <int TEAM> constexpr int WARPS_OF_BLOCK = TEAM == 1 ? 2 : TEAM;

// The largest score of a lane, at least 0, with the lowest slot that has it and what `of` holds
// there. A NaN is no score.
template <typename T, int SLOTS>
__device__ __forceinline__ void first_largest(const T (&score)[SLOTS], const T (&of)[SLOTS], T& top, unsigned& slot,
                                              T& chosen) {
  constexpr int GROUPS = SLOTS / 4;
  T of_group[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; ++g)
    of_group[g] = fmax(fmax(score[4 * g], score[4 * g + 1]), fmax(score[4 * g + 2], score[4 * g + 3]));
  top = 0;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) top = fmax(top, of_group[g]);
  unsigned base = 4 * (GROUPS - 1);
  T scores[4], entries[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) scores[e] = score[4 * (GROUPS - 1) + e], entries[e] = of[4 * (GROUPS - 1) + e];
#pragma unroll
  for (int g = GROUPS - 2; g >= 0; --g) {
    const bool here = of_group[g] == top;
    base = here ? 4 * g : base;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[e] = here ? score[4 * g + e] : scores[e];
      entries[e] = here ? of[4 * g + e] : entries[e];
    }
  }
  slot = base + 3;
  chosen = entries[3];
#pragma unroll
  for (int e = 2; e >= 0; --e) {
    const bool here = scores[e] == top;
    slot = here ? base + e : slot;
    chosen = here ? entries[e] : chosen;
  }
}

// step(Number<K>()) for K from FROM on until one of them says false: a loop of which nothing is
// left, however long; registers have no index.
template <int FROM, int END, typename Step>
__device__ __forceinline__ void steps(const Step& step) {
  if constexpr (FROM < END)
    if (step(Number<FROM>())) steps<FROM + 1, END>(step);
}

// What a warp of a team has to offer.
template <typename T>
struct Candidate {
  T score, alpha;
  unsigned atom;
};

template <typename T, int SLOTS, int STEPS, int TEAM, bool OLS>
__device__ __forceinline__ void pursue_in_registers(const Problem<T>& of) {
  constexpr int LANES = 32 * TEAM, WIDTH = LANES * SLOTS, SIGNALS = WARPS_OF_BLOCK<TEAM> / TEAM;
  constexpr T PIVOT = least_pivot<T, OLS>();
  using Copy = T[STEPS - 1][WIDTH];  // of v
  extern __shared__ __align__(16) unsigned char shared[];
  Copy* const copies = reinterpret_cast<Copy*>(shared);
  __shared__ T triangles[SIGNALS][STEPS][32];                    // entry (k, j) of L at [k][j]
  __shared__ Candidate<T> candidates[2][TEAM];                   // of this step and the one before
  // `lane` within the warp, `seat` within the team.
  const unsigned lane = threadIdx.x & 31, seat = threadIdx.x % LANES, warp = seat / 32;
  auto& copy = copies[threadIdx.x / LANES];
  auto& triangle = triangles[threadIdx.x / LANES];
  const size_t signal = (size_t)blockIdx.x * SIGNALS + threadIdx.x / LANES;
  if (signal >= of.m) return;
  const int s = of.s;

  T alpha[SLOTS];
  read_row_once<T, SLOTS, LANES>(alpha, of.correlations + signal * WIDTH, seat);
  const T norm = of.norms[signal], inverse_norm = 1 / norm, least = 16 * epsilon<T>() * norm;
  const T limit = limit_of(of, signal, norm);
  T energy = 1;  // of the residual, as a share of the signal's

  T v[STEPS - 1][SLOTS];  // the direction of the last step is not needed
  T inverse_e[STEPS];
  T left[OLS ? SLOTS : 1];
  if (OLS) {
#pragma unroll
    for (int e = 0; e < SLOTS; ++e) left[e] = 1;
  }
  // Of step k in lane k.
  unsigned atom = 0;
  T b = 0, my_inverse_e = 0;
  int count = 0;

  steps<0, STEPS>([&](auto step_of) {
    constexpr int k = decltype(step_of)::value;
    if (k >= s || energy <= limit) return false;
    T score[SLOTS], best, mine;
    unsigned slot;
#pragma unroll
    for (int e = 0; e < SLOTS; ++e) {
      score[e] = fabs(alpha[e]);
      if (OLS && k > 0) score[e] = left[e] > PIVOT ? score[e] * inverse_root(left[e]) : T(0);
    }
    first_largest<T, SLOTS>(score, alpha, best, slot, mine);
    T top = largest(best);
    unsigned i = __reduce_min_sync(ALL, best == top ? seat * SLOTS + slot : ALL);
    T alpha_i = __shfl_sync(ALL, mine, i / SLOTS % 32);
    if (TEAM > 1) {
      // One barrier a step: it also lets all see the copies of the step before, and places are
      // taken in turn.
      if (lane == 0) candidates[k % 2][warp] = {top, alpha_i, i};
      __syncthreads();
      Candidate<T> first = candidates[k % 2][0];
#pragma unroll
      for (int w = 1; w < TEAM; ++w)
        if (candidates[k % 2][w].score > first.score) first = candidates[k % 2][w];
      top = first.score, alpha_i = first.alpha, i = first.atom;
    }
    if (!(top > 0)) return false;
    const unsigned place = place_of<T>(i, SLOTS, LANES);
    const bool more = k + 1 < STEPS && k + 1 < s;
    constexpr int LAST = STEPS - 2;
    T(&vk)[SLOTS] = v[k < LAST ? k : LAST];
    if (more) read_row<T, SLOTS, LANES>(vk, of.gram + (size_t)place * WIDTH, seat);

    // t of all steps before in every lane, and lane j's own for L.
    T t[STEPS], e_i = 1;
    T own = 0;
    if (k > 0 && lane < k) own = copy[lane < k ? lane : 0][place] * my_inverse_e;
#pragma unroll
    for (int j = 0; j < k; ++j) {
      const T z = copy[j][place];
      t[j] = z * inverse_e[j];
      e_i = fma(-z, t[j], e_i);
    }
    if (!(fabs(alpha_i) > least) || !(e_i > PIVOT)) return false;
    inverse_e[k] = reciprocal(e_i);
    const T step = alpha_i * inverse_e[k];
    const T share = alpha_i * inverse_norm;
    energy = fma(-share, share * inverse_e[k], energy);
    if (k > 0 && warp == 0) triangle[k][lane] = own;
    if (lane == k) atom = i, b = step, my_inverse_e = inverse_e[k];
    count = k + 1;
    if (!more) return false;
#pragma unroll
    for (int j = 0; j < k; ++j) {
#pragma unroll
      for (int e = 0; e < SLOTS; ++e) vk[e] = fma(-t[j], v[j][e], vk[e]);
    }
#pragma unroll
    for (int e = 0; e < SLOTS; ++e) {
      // The row of G has a NaN at the atom itself, which takes the atom out of all that follows.
      alpha[e] = fma(-step, vk[e], alpha[e]);
      if (OLS) left[e] = fma(-vk[e] * inverse_e[k], vk[e], left[e]);
    }
    write_row<T, SLOTS, LANES>(copy[k < LAST ? k : LAST], vk, seat);
    if (TEAM == 1) __syncwarp();
    return true;
  });

  if (warp > 0) return;
  __syncwarp();
#pragma unroll
  for (int k = STEPS - 1; k > 0; --k) {
    if (k < count) {
      const T x = __shfl_sync(ALL, b, k);
      if (lane < k) b = fma(-triangle[k][lane], x, b);
    }
  }
  if (lane < s) {
    const bool inside = lane < count;
    of.indices[signal * s + lane] = inside ? atom : 0;
    of.values[signal * s + lane] = inside ? b * of.inverse_norms[atom] : 0;
  }
  if (lane == 0) of.counts[signal] = count;
}
