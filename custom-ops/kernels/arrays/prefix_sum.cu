// prefix_sum.cu: exclusive sums.
//
//   out[i] = sum of x[k] for k < i, modulo 2^32;  total = sum of all x, modulo 2^64
//
// Tiles of 4096 numbers. Several: tile_sums adds up each, scan_tiles makes exclusive sums of those,
// scan begins each tile at its sum. One: scan.
//
// arrays   x: [n] u32, or null if the numbers are in out; out: [n] u32; sums: [tiles] u64; total:
//          [1] i64. out and x may be one array
// scalars  n is any; tiles = ceil(n / 4096)
// launch   tile_sums, scan: a block of 256 for each tile, for scan at least one. scan_tiles: one
//          block of 1024
// shared   at most 256 bytes, declared
// cost     reads x twice and writes out once; with one tile reads it once
// same     integers
// truth    prefix_sum_reference in src/arrays/prefix_sum.rs

#include "arrays/scan.cuh"

typedef unsigned long long u64;
constexpr unsigned WARP = 32, WARPS = 8, EACH = 16, STRETCH = WARP * EACH, TILE = WARPS * STRETCH, ALL = 0xffffffffu;

__device__ u64 wide_sum_of_warp(u64 x) {
  for (unsigned by = 16; by; by /= 2) x += __shfl_xor_sync(ALL, x, by);
  return x;
}

// This thread's numbers of a tile, of which each warp has a stretch; 0 beyond the end. Their sum
// over the warp.
__device__ u64 load(unsigned (&mine)[EACH], const unsigned* x, size_t tile, size_t n) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const size_t first = tile * TILE + warp * STRETCH + lane;
  u64 sum = 0;
#pragma unroll
  for (unsigned k = 0; k < EACH; k++) {
    const size_t i = first + k * WARP;
    mine[k] = i < n ? x[i] : 0;
    sum += mine[k];
  }
  return wide_sum_of_warp(sum);
}

extern "C" __global__ void tile_sums(u64* sums, const unsigned* x, const size_t n) {
  __shared__ u64 of_warps[WARPS];
  unsigned mine[EACH];
  const u64 sum = load(mine, x, blockIdx.x, n);
  if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    u64 all = 0;
    for (unsigned w = 0; w < WARPS; w++) all += of_warps[w];
    sums[blockIdx.x] = all;
  }
}

extern "C" __global__ void scan_tiles(u64* sums, const unsigned tiles) {
  __shared__ u64 of_warps[32];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  u64 before = 0;
  for (size_t at = 0; at < tiles; at += blockDim.x) {
    const size_t t = at + threadIdx.x;
    const u64 x = t < tiles ? sums[t] : 0;
    u64 sum = x;
    for (unsigned by = 1; by < WARP; by *= 2) {
      const u64 left = __shfl_up_sync(ALL, sum, by);
      if (lane >= by) sum += left;
    }
    if (lane == WARP - 1) of_warps[warp] = sum;
    __syncthreads();
    u64 others = 0, all = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) {
      if (w < warp) others += of_warps[w];
      all += of_warps[w];
    }
    if (t < tiles) sums[t] = before + others + sum - x;
    before += all;
    __syncthreads();
  }
}

extern "C" __global__ void scan(unsigned* out, const unsigned* x, long long* total, const u64* sums, const size_t n) {
  __shared__ u64 of_warps[WARPS];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  unsigned mine[EACH];
  const u64 sum = load(mine, x ? x : out, blockIdx.x, n);
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  u64 before = sums ? sums[blockIdx.x] : 0;
  for (unsigned w = 0; w < warp; w++) before += of_warps[w];
  if (total && blockIdx.x == gridDim.x - 1 && warp == WARPS - 1 && lane == 0) *total = (long long)(before + sum);
  unsigned start = (unsigned)before;
  const size_t first = (size_t)blockIdx.x * TILE + warp * STRETCH + lane;
#pragma unroll
  for (unsigned k = 0; k < EACH; k++) {
    unsigned all;
    const unsigned lower = scan_warp(mine[k], lane, all);
    if (first + k * WARP < n) out[first + k * WARP] = start + lower;
    start += all;
  }
}
