// pool_units.cu: bias, mean and draw of units of maps with probabilistic max-pooling in one pass
// over their pre-activations.
//
//   x_t = pre[unit t] + bias[map]            t = 1 .. pool * pool, the units of a block in one map,
//                                            row by row
//   top = max(0, max_t x_t)   e_t = exp(x_t - top)   sum = e_1 + e_2 + ..   total = sum + exp(-top)
//   detection   mean[t] = e_t / total        sample[t] = 1 for the first t with u * total < e_1 + .. + e_t, else 0
//   pooled      mean = sum / total           sample = 1 where there is such a t
//   without draws t is the first with x_t = top, if top > 0
//   out[mean_at + ..] = mean_scale * mean,  out[sample_at + ..] = sample
//   with low above 0, the rounding error of a mean goes to the plane `low` elements further on
//
// arrays   pre: [batch, down * pool, width, n_maps] f32, width = across * pool; bias: [n_maps] f32;
//          out: f32, bf16 or f16 (rounded to nearest even), planes of the shape of pre, or of
//          [batch, down, across, n_maps], not overlapping each other or an input; a place below 0
//          is a plane not wanted. counter: [1] i64 or null
// scalars  n = batch * down * across * n_maps, the blocks; element e of the draws is that of block
//          e; where the maps are some of more, both in fours, a place of blocks has `by` blocks of
//          draws, else 0. drawn 0 or 1
// launch   1-D grid of 1-D blocks, any size: a thread takes one block of units and strides over the
//          grid, so that neighbours read neighbouring maps. The result does not depend on the
//          launch
// cost     reads pre three times, twice of it from the caches, and takes two or three exponentials
//          for each unit: at 24 maps bound by arithmetic and by memory about alike
// NaN      or an infinity in a block gives NaN means there and no unit that is on
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    pool_units_reference in src/images/pool_units/reference.rs

#include "core/math.cuh"
#include "core/numbers.cuh"
#include "core/philox.cuh"
#include "images/pools.cuh"

// Writes x, and what rounding takes `low` elements further on.
template <typename T>
__device__ __forceinline__ void put(T* out, size_t low, float x) {
  *out = narrow<T>(x);
  if (low) out[low] = narrow<T>(x - wide(*out));
}

template <bool DETECTION, typename T>
__device__ __forceinline__ void pool_units(T* out, long long mean_at, long long sample_at, size_t low, float mean_scale,
                                           const float* pre, const float* bias, size_t n, const Sizes& sizes, size_t by, bool drawn,
                                           const Philox& philox) {
  const unsigned pool = sizes.pool;
  const size_t line = line_of(sizes);
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < n; e += (size_t)gridDim.x * blockDim.x) {
    const size_t first = first_unit(e, sizes);
    const Rounded b = bias[e % sizes.n_maps];
    const Block block = block_of(pre + first, b, sizes);
    const Rounded top = block.top, sum = block.sum, total = block.total;

    Rounded bar = 0.f;
    if (drawn && sample_at >= 0) {
      const uint4 words = philox_block(philox, by ? e / sizes.n_maps * by + e % sizes.n_maps / 4 : e / 4);
      const unsigned word = e % 4 == 0 ? words.x : e % 4 == 1 ? words.y : e % 4 == 2 ? words.z : words.w;
      bar = uniform_of(word) * total;
    }
    bool on = false;
    if (DETECTION || sample_at >= 0) {
      Rounded reached = 0.f;
      for (unsigned y = 0; y < pool; ++y)
        for (unsigned x = 0; x < pool; ++x) {
          const size_t at = first + y * line + x * sizes.n_maps;
          const Rounded v = Rounded(pre[at]) + b;
          const Rounded part = exact_exp(v - top);
          if (DETECTION && mean_at >= 0) put(out + mean_at + at, low, (Rounded(mean_scale) * (part / total)).v);
          if (sample_at < 0) continue;
          reached = reached + part;
          const bool passed = drawn ? bar < reached : v.v == top.v && v.v > 0.f && total.v == total.v;
          if (DETECTION) out[sample_at + at] = narrow<T>(passed && !on ? 1.f : 0.f);
          on = on || passed;
        }
    }
    if (!DETECTION) {
      if (mean_at >= 0) put(out + mean_at + e, low, (Rounded(mean_scale) * (sum / total)).v);
      if (sample_at >= 0) out[sample_at + e] = narrow<T>(on ? 1.f : 0.f);
    }
  }
}

#define POOL_UNITS(NAME, DETECTION, T)                                                                                \
  extern "C" __global__ void NAME(T* out, const long long mean_at, const long long sample_at, const size_t low,      \
                                  const float mean_scale, const float* pre, const float* bias, const size_t n,       \
                                  const Sizes sizes, const size_t by, const unsigned drawn,                          \
                                  const unsigned long long seed,                                                     \
                                  const unsigned long long stream, const unsigned long long offset,                  \
                                  const long long* counter) {                                                        \
    pool_units<DETECTION>(out, mean_at, sample_at, low, mean_scale, pre, bias, n, sizes, by, drawn != 0,             \
                          philox_at(seed, stream, offset, counter));                                                 \
  }
POOL_UNITS(pool_units_detection_f32, true, float)
POOL_UNITS(pool_units_detection_bf16, true, __nv_bfloat16)
POOL_UNITS(pool_units_detection_f16, true, __half)
POOL_UNITS(pool_units_pooled_f32, false, float)
POOL_UNITS(pool_units_pooled_bf16, false, __nv_bfloat16)
POOL_UNITS(pool_units_pooled_f16, false, __half)
