// bitonic.cuh: a sort by one block, in shared memory (Batcher, 1968).
#pragma once

// Ascending, of a power of two of entries: `swap` exchanges two where `after` tells that the first
// belongs after the second. All threads of the block take part, and wait for each other first and
// last.
template <typename After, typename Swap>
__device__ __forceinline__ void sort_by(unsigned width, After after, Swap swap) {
  for (unsigned size = 2; size <= width; size *= 2)
    for (unsigned stride = size / 2; stride; stride /= 2) {
      __syncthreads();
      for (unsigned t = threadIdx.x; t < width / 2; t += blockDim.x) {
        const unsigned low = 2 * t - (t & (stride - 1)), high = low + stride;
        if (low & size ? after(high, low) : after(low, high)) swap(low, high);
      }
    }
  __syncthreads();
}

__device__ inline void sort_entries(unsigned long long* entries, unsigned width) {
  sort_by(
      width, [=](unsigned a, unsigned b) { return entries[a] > entries[b]; },
      [=](unsigned a, unsigned b) {
        const unsigned long long entry = entries[a];
        entries[a] = entries[b], entries[b] = entry;
      });
}

// By key, then by row.
__device__ inline void sort_pairs(unsigned long long* keys, unsigned* rows, unsigned width) {
  sort_by(
      width, [=](unsigned a, unsigned b) { return keys[a] > keys[b] || (keys[a] == keys[b] && rows[a] > rows[b]); },
      [=](unsigned a, unsigned b) {
        const unsigned long long key = keys[a];
        const unsigned row = rows[a];
        keys[a] = keys[b], keys[b] = key;
        rows[a] = rows[b], rows[b] = row;
      });
}
