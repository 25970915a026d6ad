// The pursuit of a signal by one warp, with everything in registers.
#pragma once

#include "pursuit.cuh"

constexpr int WARPS = 2;

template <typename T, int SLOTS, int STEPS, bool OLS>
__device__ __forceinline__ void pursue_in_registers(const Problem<T>& of) {
  constexpr int WIDTH = 32 * SLOTS;
  constexpr T PIVOT = 64 * epsilon<T>();
  __shared__ T triangles[WARPS][STEPS][32];  // entry (k, j) of a warp's L at [k][j]
  const unsigned lane = threadIdx.x & 31;
  auto& triangle = triangles[threadIdx.x / 32];
  const size_t signal = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (signal >= of.m) return;
  const int s = of.s;

  T alpha[SLOTS];
  read_row_once<T, SLOTS>(alpha, of.correlations + signal * WIDTH, lane);
  double energy = 0;
  for (unsigned f = lane; f < of.p; f += 32) {
    const double y = of.signals[signal * of.p + f];
    energy = fma(y, y, energy);
  }
  energy = sum_of_warp(energy);
  if (!(energy < CUDART_INF)) {
    if (lane == 0) *of.refused = 1;
    energy = 0;
  }
  const T least = 16 * epsilon<T>() * (T)sqrt(energy);
  const double limit = limit_of(of.target_kind, of.target, of.targets, signal, energy);

  T v[STEPS - 1][SLOTS];  // the direction of the last step is not needed
  T inverse_e[STEPS];
  T left[OLS ? SLOTS : 1];
  if (OLS) {
#pragma unroll
    for (int e = 0; e < SLOTS; ++e) left[e] = 1;
  }
  // Lane k has what step k gave.
  unsigned atom = ALL;
  T b = 0;
  int count = 0;

#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    if (k >= s || energy <= limit) break;
    unsigned i, owner, slot;
    while (true) {
      T best = 0;
      unsigned mine = 0;
      if (OLS) {
#pragma unroll
        for (int e = 0; e < SLOTS; ++e) {
          const T score = fabs(alpha[e]) * inverse_root(left[e]);
          if (left[e] > PIVOT && score > best) best = score, mine = e;
        }
      } else {
#pragma unroll
        for (int e = 0; e < SLOTS; ++e) best = fmax(best, fabs(alpha[e]));
#pragma unroll
        for (int e = SLOTS - 1; e >= 0; --e) mine = fabs(alpha[e]) == best ? e : mine;
      }
      const T top = largest(best);
      i = __reduce_min_sync(ALL, top > 0 && best == top ? lane * SLOTS + mine : ALL);
      if (k == 0 || !__any_sync(ALL, atom == i && i != ALL)) break;
      // Rounding alone is left of an atom that was chosen before: it is out of the race from here on.
#pragma unroll
      for (int e = 0; e < SLOTS; ++e)
        if (lane * SLOTS + e == i) alpha[e] = 0;
    }
    if (i == ALL) break;
    owner = i / SLOTS, slot = i % SLOTS;
    if (k + 1 < STEPS) read_row<T, SLOTS>(v[k < STEPS - 1 ? k : 0], of.gram + (size_t)place_of<T>(i, SLOTS) * WIDTH, lane);

    // Entry i of alpha and of each direction: the slot is the same in all lanes, so one case runs.
    T alpha_i = 0, z[STEPS];
#define CASE(E)                                                                              \
  case E:                                                                                    \
    if (E < SLOTS) {                                                                         \
      constexpr int e = E < SLOTS ? E : 0;                                                   \
      alpha_i = __shfl_sync(ALL, alpha[e], owner);                                           \
      _Pragma("unroll") for (int j = 0; j < k; ++j) z[j] = __shfl_sync(ALL, v[j][e], owner); \
    }                                                                                        \
    break;
    switch (slot) {
      CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
      CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15)
    }
#undef CASE
    T e_i = 1;
    T row = 0;
#pragma unroll
    for (int j = 0; j < k; ++j) {
      const T t = z[j] * inverse_e[j];
      e_i = fma(-z[j], t, e_i);
      row = lane == j ? t : row;
      z[j] = t;
    }
    if (!(fabs(alpha_i) > least) || !(e_i > PIVOT)) break;
    inverse_e[k] = 1 / e_i;
    const T step = alpha_i * inverse_e[k];
    energy -= (double)alpha_i * step;
    triangle[k][lane] = row;
    if (lane == k) atom = i, b = step;
    count = k + 1;
    if (k + 1 < STEPS) {
      constexpr int LAST = STEPS - 2;
      T(&vk)[SLOTS] = v[k < LAST ? k : LAST];
#pragma unroll
      for (int e = 0; e < SLOTS; ++e) {
#pragma unroll
        for (int j = 0; j < k; ++j) vk[e] = fma(-z[j], v[j][e], vk[e]);
        alpha[e] = fma(-step, vk[e], alpha[e]);
        if (OLS) left[e] = fma(-vk[e] * inverse_e[k], vk[e], left[e]);
      }
    }
  }

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
