// pools.cuh: where the units of a block of pooled maps lie, and what their probabilities are made
// of.
//
// Maps are [batch, down * pool, across * pool, n_maps], maps last; block e is that of place e /
// n_maps of the blocks and map e % n_maps. Its units are at first_unit(e) + y * line_of() + x *
// n_maps, y and x below pool, row by row.
#pragma once
#include "core/math.cuh"

struct Sizes {
  unsigned down, across, width, n_maps, pool;
};

// Units of a line of places.
__device__ __forceinline__ size_t line_of(const Sizes& sizes) { return (size_t)sizes.width * sizes.n_maps; }

// Lines of blocks are counted through all images: their maps lie one below the other.
__device__ __forceinline__ size_t first_unit(size_t e, const Sizes& sizes) {
  const size_t place = e / sizes.n_maps;
  return place / sizes.across * sizes.pool * line_of(sizes) + place % sizes.across * sizes.pool * sizes.n_maps +
         e % sizes.n_maps;
}

// top = max(0, max_t x_t), sum = Σ exp(x_t - top) and total = sum + exp(-top) over the units of a
// block, x_t = pre[unit t] + bias.
struct Block {
  Rounded top, sum, total;
};

__device__ __forceinline__ Block block_of(const float* pre, Rounded bias, const Sizes& sizes) {
  const size_t line = line_of(sizes);
  Block block;
  block.top = 0.f;
  for (unsigned y = 0; y < sizes.pool; ++y)
    for (unsigned x = 0; x < sizes.pool; ++x) {
      const Rounded v = Rounded(pre[y * line + x * sizes.n_maps]) + bias;
      block.top = v > block.top ? v : block.top;
    }
  block.sum = 0.f;
  for (unsigned y = 0; y < sizes.pool; ++y)
    for (unsigned x = 0; x < sizes.pool; ++x)
      block.sum = block.sum + exact_exp(Rounded(pre[y * line + x * sizes.n_maps]) + bias - block.top);
  block.total = block.sum + exact_exp(of_bits(bits_of(block.top) ^ 0x80000000u));
  return block;
}
