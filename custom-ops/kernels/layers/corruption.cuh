// corruption.cuh: the noise of src/layers/corrupt.rs on one value; the kernels that draw for
// themselves share it.
#pragma once

#include "core/math.cuh"
#include "core/philox.cuh"

// `Corruption::law` of src/layers/corrupt.rs.
enum Law : unsigned { NONE, SALT_AND_PEPPER, MASKING, GAUSSIAN, FLIP };

// The draws of the four elements of block `index`, as `law` takes them.
__device__ __forceinline__ void draws_of(unsigned law, const Philox& philox, unsigned long long index, Rounded (&draws)[4]) {
  if (law == GAUSSIAN)
    normal_of(philox_block(philox, index), draws);
  else if (law != NONE)
    uniform_of(philox_block(philox, index), draws);
}

// x, or what takes its place; p: a share, or for GAUSSIAN a standard deviation.
__device__ __forceinline__ float corrupted(unsigned law, float x, Rounded draw, float p) {
  switch (law) {
    case SALT_AND_PEPPER: return draw.v < p ? (draw.v < 0.5f * p ? 0.f : 1.f) : x;
    case MASKING: return draw.v < p ? 0.f : x;
    case FLIP: return draw.v < p ? 1.f - x : x;
    case GAUSSIAN: return (Rounded(x) + Rounded(p) * draw).v;
    default: return x;
  }
}
