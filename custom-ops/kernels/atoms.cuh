// atoms.cuh: sums over the rows of a list, computed by a block.
//
// Entry e of a list is slot e % s of signal e / s. Warps take entries in turn, lanes take columns; each warp keeps its own sum and the
// sums of the warps are added in their order, so that the result depends on nothing but the list.
#pragma once

#include "warp.cuh"

constexpr unsigned WARP = 32, WARPS = 16, THREADS = WARP * WARPS, ALL_LANES = 0xffffffffu;
constexpr unsigned COLUMNS = 128;  // of a tile: four a lane
constexpr unsigned AT_ONCE = 4;    // entries that a warp has in flight

// sum[c] = Σ_k weight[list[k]] * rows[list[k] / s][at + c] for c < min(COLUMNS, p - at), written by the first threads; with SCALED both
// factors are multiplied by `scale` first. `scratch` holds WARPS * COLUMNS numbers. Ends with every thread past a barrier.
template <typename T, bool SCALED = false>
__device__ void weighted_tile(T* sum, const T* rows, const T* weight, const unsigned* list, unsigned length, unsigned s,
                              unsigned p, unsigned at, T* scratch, T scale = T(1)) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  T part[4] = {0, 0, 0, 0};
  for (unsigned first = warp; first < length; first += WARPS * AT_ONCE) {
    T w[AT_ONCE], x[AT_ONCE][4];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
      const unsigned k = first + i * WARPS;
      const bool there = k < length && k >= first;
      const unsigned e = there ? list[k] : 0;
      const T* row = rows + (size_t)(e / s) * p;
      w[i] = there ? weight[e] : T(0);
      if (SCALED) w[i] *= scale;
#pragma unroll
      for (unsigned q = 0; q < 4; q++) {
        const unsigned c = at + q * WARP + lane;
        x[i][q] = there && c < p ? row[c] : T(0);
        if (SCALED) x[i][q] *= scale;
      }
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++)
#pragma unroll
      for (unsigned q = 0; q < 4; q++)
        if (first + i * WARPS < length) part[q] += w[i] * x[i][q];
  }
#pragma unroll
  for (unsigned q = 0; q < 4; q++) scratch[warp * COLUMNS + q * WARP + lane] = part[q];
  __syncthreads();
  if (threadIdx.x < COLUMNS && at + threadIdx.x < p) {
    T all = 0;
    for (unsigned w = 0; w < WARPS; w++) all += scratch[w * COLUMNS + threadIdx.x];
    sum[threadIdx.x] = all;
  }
  __syncthreads();
}

// The same for all columns: sum[c] for c < p.
template <typename T>
__device__ void weighted_sum(T* sum, const T* rows, const T* weight, const unsigned* list, unsigned length, unsigned s,
                             unsigned p, T* scratch) {
  for (unsigned at = 0; at < p; at += COLUMNS) weighted_tile(sum + at, rows, weight, list, length, s, p, at, scratch);
}
