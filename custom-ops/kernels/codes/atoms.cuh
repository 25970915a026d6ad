// atoms.cuh: sums over the rows of a list, computed by a block or a cluster of blocks.
//
// Entry e of a list is slot e % s of signal e / s. Warps take entries in turn, lanes take columns;
// each warp keeps its own sum and the sums of the warps are added in their order, so that the
// result depends on nothing but the list and the number of blocks.
#pragma once

#include <cooperative_groups.h>

#include "core/warp.cuh"

constexpr unsigned WARP = 32, WARPS = 16, THREADS = WARP * WARPS, ALL_LANES = 0xffffffffu;
constexpr unsigned COLUMNS = 128;  // of a tile: four a lane
constexpr unsigned AT_ONCE = 4;    // entries that a warp has in flight

// The blocks that work on one atom: a cluster, of which each takes its share of the list, or one
// block. Sums of all are those of the blocks, in their order, and the same in each block.
struct Team {
  unsigned rank = 0, blocks = 1;

#if __CUDA_ARCH__ >= 900
  __device__ Team()
      : rank(cooperative_groups::this_cluster().block_rank()), blocks(cooperative_groups::this_cluster().num_blocks()) {}
#endif

  // Waits for all threads, and for what they wrote.
  __device__ __forceinline__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) return cooperative_groups::this_cluster().sync();
#endif
    __syncthreads();
  }

  // What lies in block r where `mine` lies in this one.
  template <typename T>
  __device__ __forceinline__ const T* of(T* mine, unsigned r) const {
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, r);
#endif
    return mine;
  }

  // The sum of x over all threads, for all of them; scratch holds WARPS numbers and is free again.
  template <typename T>
  __device__ __forceinline__ T sum(T x, T* scratch) const {
    x = sum_of_block<WARPS>(x, scratch);
    if (blocks == 1) return x;
    __syncthreads();
    if (threadIdx.x == 0) scratch[0] = x;
    sync();
    T all = 0;
    for (unsigned r = 0; r < blocks; r++) all += *of(scratch, r);
    sync();
    return all;
  }

  // Of four columns a lane, `part`: their sums over all warps, for the thread of a column that is
  // less than `columns`. scratch holds WARPS * COLUMNS numbers and is free again.
  template <typename T>
  __device__ __forceinline__ T sum_columns(const T (&part)[4], unsigned columns, T* scratch) const {
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (unsigned q = 0; q < 4; q++) scratch[warp * COLUMNS + q * WARP + lane] = part[q];
    __syncthreads();
    T all = 0;
    if (threadIdx.x < columns) {
      for (unsigned w = 0; w < WARPS; w++) all += scratch[w * COLUMNS + threadIdx.x];
      if (blocks > 1) scratch[threadIdx.x] = all;
    }
    sync();
    if (blocks == 1) return all;
    if (threadIdx.x < columns) {
      all = 0;
      for (unsigned r = 0; r < blocks; r++) all += of(scratch, r)[threadIdx.x];
    }
    sync();
    return all;
  }
};

// Σ_k weight[list[k]] * rows[list[k] / s][at + c], for the thread of column c < min(COLUMNS, p -
// at); with SCALED both factors are multiplied by `scale` first. `scratch` holds WARPS * COLUMNS
// numbers. Ends with every thread past a barrier.
template <typename T, bool SCALED = false>
__device__ T weighted_tile(const T* rows, const T* weight, const unsigned* list, unsigned length, unsigned s, unsigned p,
                           unsigned at, T* scratch, const Team& team, T scale = T(1)) {
  const unsigned lane = threadIdx.x % WARP, each = team.blocks * WARPS;
  T part[4] = {0, 0, 0, 0};
  for (size_t first = team.rank * WARPS + threadIdx.x / WARP; first < length; first += each * AT_ONCE) {
    T w[AT_ONCE], x[AT_ONCE][4];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
      const size_t k = first + i * each;
      const bool there = k < length;
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
      for (unsigned q = 0; q < 4; q++) part[q] += w[i] * x[i][q];
  }
  return team.sum_columns(part, min(COLUMNS, p - at), scratch);
}
