// block_means.cu: means over blocks of pooled maps, and the way back.
//
//   block_means    pooled[block] <- (units_1 + units_2 + ..) * share          t row by row; share = 1 / (pool * pool)
//   spread_blocks  units[unit t] <- pooled[block] * share
//
// arrays   units: [batch, down * pool, width, n_maps] f32, width = across * pool; pooled: [batch,
//          down, across, n_maps] f32; not overlapping
// scalars  n = batch * down * across * n_maps, the blocks
// launch   1-D grid of 1-D blocks, any size: a thread takes one block of units and strides over the
//          grid. The result does not depend on the launch
// cost     reads and writes every entry once: bound by memory
// NaN      propagates
// same     the same bits as the CPU twin
// truth    block_means_reference and spread_blocks_reference in src/images/pool_units/means.rs

#include "images/pools.cuh"

extern "C" __global__ void block_means_f32(float* pooled, const float* units, const float share, const size_t n,
                                           const Sizes sizes) {
  const size_t line = line_of(sizes);
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < n; e += (size_t)gridDim.x * blockDim.x) {
    const float* of_block = units + first_unit(e, sizes);
    Rounded sum = 0.f;
    for (unsigned y = 0; y < sizes.pool; ++y)
      for (unsigned x = 0; x < sizes.pool; ++x) sum = sum + of_block[y * line + x * sizes.n_maps];
    pooled[e] = (sum * share).v;
  }
}

extern "C" __global__ void spread_blocks_f32(float* units, const float* pooled, const float share, const size_t n,
                                             const Sizes sizes) {
  const size_t line = line_of(sizes);
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < n; e += (size_t)gridDim.x * blockDim.x) {
    float* of_block = units + first_unit(e, sizes);
    const float each = (Rounded(pooled[e]) * share).v;
    for (unsigned y = 0; y < sizes.pool; ++y)
      for (unsigned x = 0; x < sizes.pool; ++x) of_block[y * line + x * sizes.n_maps] = each;
  }
}
