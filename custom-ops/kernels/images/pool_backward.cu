// pool_backward.cu: from the derivative by pooled units to that by the pre-activations of the units
// of their blocks, in place.
//
//   x_t = pre[unit t] + bias[map],  p_t = exp(x_t - top) / total,  off = exp(-top) / total       top, total: pools.cuh
//   pre[unit t] <- (p_t * off) * delta[block]                       the mean of the pooled unit is
//                                                                   1 - off
//
// arrays   pre: [batch, down * pool, width, n_maps] f32, width = across * pool; bias: [n_maps] f32;
//          delta: [batch, down, across, n_maps] f32; none overlaps another
// scalars  n = batch * down * across * n_maps, the blocks
// launch   1-D grid of 1-D blocks, any size: a thread takes one block of units and strides over the
//          grid. The result does not depend on the launch
// cost     reads pre three times, twice of it from the caches, writes it once, and takes two
//          exponentials for each unit
// NaN      or an infinity in a block gives NaN there
// same     the same bits as the CPU twin, by math.cuh
// truth    pool_backward_reference in src/images/pool_units/backward.rs

#include "images/pools.cuh"

extern "C" __global__ void pool_backward_f32(float* pre, const float* bias, const float* delta, const size_t n,
                                             const Sizes sizes) {
  const size_t line = line_of(sizes);
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < n; e += (size_t)gridDim.x * blockDim.x) {
    float* units = pre + first_unit(e, sizes);
    const Rounded b = bias[e % sizes.n_maps], d = delta[e];
    const Block block = block_of(units, b, sizes);
    const Rounded off = exact_exp(of_bits(bits_of(block.top) ^ 0x80000000u)) / block.total;
    for (unsigned y = 0; y < sizes.pool; ++y)
      for (unsigned x = 0; x < sizes.pool; ++x) {
        float* unit = units + y * line + x * sizes.n_maps;
        const Rounded p = exact_exp(Rounded(*unit) + b - block.top) / block.total;
        *unit = (p * off * d).v;
      }
  }
}
