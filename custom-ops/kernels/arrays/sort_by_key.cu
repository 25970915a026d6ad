// sort_by_key.cu: entries in the order of their keys, a stable counting sort by digits.
//
//   entry e < n is valid if its key is below n_keys and, with `count`, e % width < count[e / width]
//   offsets[j] = number of valid entries with key < j, j <= n_keys;  order = the entries by key,
//                                                                    those of one key ascending,
//                                                                    then zeros
//
// sort_small does it all. Else a pass for each digit of the key, the lowest first: tally counts the
// digits of each tile of 8 stretches of entries, prefix_sum.cu turns counts (digit by digit, tile by tile)
// into starts, scatter counts once more, for each warp, and writes. A warp takes 32 entries at a
// time, in order; lanes with one digit find each other and the lowest moves the start on for all.
// So the order is that of the entries. At last starts looks up where keys begin.
//
// arrays   keys: [n] u32; count: [n / width] u32 or null; order: [n], offsets: [n_keys + 1]; table:
//          [digits][tiles] u32. tally, scatter: keys, and `from` (the entry of each key, null: its
//          own place) as the pass before wrote them; there: [1] i64, how many those are, null: all
//          n of them, of which the first pass leaves out those that are not there. sorted: the keys
//          after the last pass, null with one pass, whose table has a row for each key. None
//          overlap
// scalars  n, n_keys < 2^32 - 1; n_keys, width >= 1; digit = key >> shift & (1 << bits) - 1; 1 <=
//          bits <= 10; stretch: entries of a warp, a multiple of 32
// launch   sort_small: one block of 1024, n <= 16384. tally, scatter: a block of 256 for each tile,
//          at least one. starts: any number of threads
// shared   dynamic: sort_small 32 n_keys, tally 2^bits, scatter 8 * 2^bits numbers of 4 bytes;
//          sort_small 128 bytes more, declared
// cost     a pass reads keys twice and entries once and writes both; the scattered writes bind
// same     lists on every device: the order is part of the result. Atomics count integers in shared
//          memory, whose sums have no order
// truth    Sort::sort in src/arrays/sort_by_key/mod.rs

#include "arrays/scan.cuh"

constexpr unsigned WARP = 32, WARPS = 8, THREADS = WARP * WARPS;
constexpr unsigned SMALL_WARPS = 32, ALL = 0xffffffffu, NONE = 0xffffffffu;

// The key of entry e, NONE for one that is not there.
__device__ __forceinline__ unsigned key_of(unsigned e, const unsigned* keys, const unsigned* count, unsigned width,
                                           unsigned n_keys) {
  if (count) {
    const unsigned row = e / width;
    if (e - row * width >= count[row]) return NONE;
  }
  const unsigned key = keys[e];
  return key < n_keys ? key : NONE;
}

__device__ __forceinline__ unsigned digit_of(unsigned key, unsigned shift, unsigned bits) {
  return key == NONE ? NONE : key >> shift & ((1u << bits) - 1);
}

// Where lane's entry goes: next[digit] and on, in the order of the lanes, for all that have the
// digit; next is moved on behind them. All lanes of the warp must be here, those without an entry
// with NONE; next is the warp's own.
__device__ __forceinline__ unsigned take_place(unsigned* next, unsigned digit, unsigned lane) {
  const unsigned same = __match_any_sync(ALL, digit), before = __popc(same & ((1u << lane) - 1));
  const unsigned start = digit == NONE ? 0 : next[digit];
  __syncwarp();
  if (digit != NONE && before == 0) next[digit] = start + __popc(same);
  __syncwarp();
  return start + before;
}

extern "C" __global__ void __launch_bounds__(WARP * SMALL_WARPS)
    sort_small(unsigned* offsets, unsigned* order, const unsigned* keys, const unsigned* count, const unsigned n,
               const unsigned width, const unsigned n_keys) {
  extern __shared__ unsigned next_of[];  // [warps][n_keys]
  __shared__ unsigned of_warps[SMALL_WARPS];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const unsigned stretch = (n + blockDim.x - 1) / blockDim.x * WARP;
  const unsigned first = warp * stretch, end = min(first + stretch, n);
  unsigned* next = next_of + warp * n_keys;
  for (unsigned k = threadIdx.x; k < SMALL_WARPS * n_keys; k += blockDim.x) next_of[k] = 0;
  __syncthreads();
  for (unsigned e = first + lane; e < end; e += WARP) {
    const unsigned key = key_of(e, keys, count, width, n_keys);
    if (key != NONE) atomicAdd(next + key, 1);
  }
  __syncthreads();

  // A thread for each key: its number, then where it starts for each warp.
  const unsigned j = threadIdx.x;
  unsigned mine = 0, all;
  if (j < n_keys)
    for (unsigned w = 0; w < SMALL_WARPS; w++) mine += next_of[w * n_keys + j];
  const unsigned lower = scan_warp(mine, lane, all);
  if (lane == 0) of_warps[warp] = all;
  __syncthreads();
  unsigned present;
  const unsigned others = scan_warp(of_warps[lane], lane, present);
  unsigned start = __shfl_sync(ALL, others, warp) + lower;
  if (j < n_keys) {
    offsets[j] = start;
    for (unsigned w = 0; w < SMALL_WARPS; w++) {
      const unsigned here = next_of[w * n_keys + j];
      next_of[w * n_keys + j] = start;
      start += here;
    }
  }
  if (j == 0) offsets[n_keys] = present;
  __syncthreads();

  for (unsigned at = first; at < end; at += WARP) {
    const unsigned e = at + lane, key = e < end ? key_of(e, keys, count, width, n_keys) : NONE;
    const unsigned place = take_place(next, key, lane);
    if (key != NONE) order[place] = e;
  }
  for (unsigned k = present + threadIdx.x; k < n; k += blockDim.x) order[k] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tally(unsigned* table, const unsigned* keys, const unsigned* count, const long long* there, const unsigned n,
          const unsigned width, const unsigned n_keys, const unsigned shift, const unsigned bits,
          const unsigned stretch) {
  extern __shared__ unsigned counts[];
  const unsigned digits = 1u << bits, entries = there ? (unsigned)*there : n;
  for (unsigned d = threadIdx.x; d < digits; d += THREADS) counts[d] = 0;
  __syncthreads();
  for (unsigned k = threadIdx.x; k < WARPS * stretch; k += THREADS) {
    const size_t e = (size_t)blockIdx.x * WARPS * stretch + k;
    if (e >= entries) break;
    const unsigned digit = digit_of(key_of((unsigned)e, keys, count, width, n_keys), shift, bits);
    if (digit != NONE) atomicAdd(counts + digit, 1);
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < digits; d += THREADS) table[(size_t)d * gridDim.x + blockIdx.x] = counts[d];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scatter(unsigned* order, unsigned* sorted, const unsigned* table, const unsigned* keys, const unsigned* from,
            const unsigned* count, const long long* there, const unsigned n, const unsigned width,
            const unsigned n_keys, const unsigned shift, const unsigned bits, const unsigned stretch) {
  extern __shared__ unsigned next_of[];  // [warps][digits]
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const unsigned digits = 1u << bits, entries = there ? (unsigned)*there : n;
  const size_t first = ((size_t)blockIdx.x * WARPS + warp) * stretch;
  unsigned* next = next_of + warp * digits;
  for (unsigned k = threadIdx.x; k < WARPS * digits; k += THREADS) next_of[k] = 0;
  __syncthreads();
  for (unsigned k = lane; k < stretch && first + k < entries; k += WARP) {
    const unsigned key = key_of((unsigned)(first + k), keys, count, width, n_keys);
    if (key != NONE) atomicAdd(next + digit_of(key, shift, bits), 1);
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < digits; d += THREADS) {
    unsigned start = table[(size_t)d * gridDim.x + blockIdx.x];
    for (unsigned w = 0; w < WARPS; w++) {
      const unsigned here = next_of[w * digits + d];
      next_of[w * digits + d] = start;
      start += here;
    }
  }
  __syncthreads();
  for (unsigned k = 0; k < stretch && first + k < entries; k += WARP) {  // the same for all lanes
    const size_t e = first + k + lane;
    const unsigned key = e < entries ? key_of((unsigned)e, keys, count, width, n_keys) : NONE;
    const unsigned place = take_place(next, digit_of(key, shift, bits), lane);
    if (key != NONE) {
      order[place] = from ? from[e] : (unsigned)e;
      if (sorted) sorted[place] = key;
    }
  }
}

extern "C" __global__ void starts(unsigned* offsets, unsigned* order, const unsigned* sorted, const unsigned* table,
                                  const long long* there, const unsigned n, const unsigned n_keys,
                                  const unsigned tiles) {
  const size_t threads = (size_t)gridDim.x * blockDim.x, mine = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned present = (unsigned)*there;
  for (size_t j = mine; j <= n_keys; j += threads) {
    unsigned start = present;
    if (j < n_keys && sorted) {
      // The first entry whose key is not below j.
      unsigned low = 0, high = present;
      while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (sorted[middle] < j)
          low = middle + 1;
        else
          high = middle;
      }
      start = low;
    } else if (j < n_keys) {
      start = table[j * tiles];
    }
    offsets[j] = start;
  }
  for (size_t k = present + mine; k < n; k += threads) order[k] = 0;
}
