// bitonic.cuh: a sort by one block, in shared memory (Batcher, 1968).
#pragma once

// Ascending, of a power of two of entries; all threads of the block take part, and wait for each other first and last.
__device__ inline void sort_entries(unsigned long long* entries, unsigned width) {
  for (unsigned size = 2; size <= width; size *= 2)
    for (unsigned stride = size / 2; stride; stride /= 2) {
      __syncthreads();
      for (unsigned t = threadIdx.x; t < width / 2; t += blockDim.x) {
        const unsigned low = 2 * t - (t & (stride - 1)), high = low + stride;
        const unsigned long long a = entries[low], b = entries[high];
        if ((a > b) == !(low & size)) {
          entries[low] = b;
          entries[high] = a;
        }
      }
    }
  __syncthreads();
}
