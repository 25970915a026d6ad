// scale.cu: conversion of stored rows to the numbers that a model reads.
//
//   scale   out[i] = (float)x[i] * scale      rounded in the *_bf16 and *_f16 forms
//   split   out[i] = f16(x[i] * scale), out[part + i] = f16(x[i] * scale - out[i])
//
// arrays   x: [n, len] u8 or f32; out: n lines of `len` entries that begin `apart` entries from
//          each other, f32, bf16 or f16, or two of such f16 that are `part` entries apart; not
//          overlapping
// scalars  scale: 1/255 for bytes, 1 for numbers; 1 <= len <= apart
// launch   1-D grid of 1-D blocks, any size: the loop strides over the grid, four neighbours of a
//          line at a time
// cost     reads len or 4 len bytes a line, writes 4 len or 2 len; bandwidth-bound
// NaN      propagates
// truth    scale_into_reference in src/arrays/scale.rs, and the CPU twin of split_into_ there

#include "arrays/fours.cuh"

// Calls finish(place in out, count, scaled numbers) for all neighbours of this thread.
template <typename In, typename Finish>
__device__ __forceinline__ void scaled(const In* x, float scale, size_t n, size_t len, size_t apart, Finish finish) {
  const size_t fours = (len + 3) / 4, stride = (size_t)gridDim.x * blockDim.x;
  const bool few = n * fours <= 0xffffffffu;  // 64-bit divisions take longer than the rest
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n * fours; i += stride) {
    const size_t line = n == 1 ? 0 : few ? (unsigned)i / (unsigned)fours : i / fours, along = 4 * (i - line * fours);
    const int count = len - along < 4 ? len - along : 4;
    float v[4];
    load(x + line * len + along, count, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] *= scale;
    finish(line * apart + along, count, v);
  }
}

#define SCALE_INTO(NAME, IN, OUT)                                                                           \
  extern "C" __global__ void NAME(const IN* x, OUT* out, const float scale, const size_t n, const size_t len, \
                                  const size_t apart) {                                                      \
    scaled(x, scale, n, len, apart, [&](size_t at, int count, const float(&v)[4]) { store(out + at, count, v); }); \
  }
SCALE_INTO(scale_u8_f32, unsigned char, float)
SCALE_INTO(scale_f32_f32, float, float)
SCALE_INTO(scale_u8_bf16, unsigned char, __nv_bfloat16)
SCALE_INTO(scale_f32_bf16, float, __nv_bfloat16)
SCALE_INTO(scale_u8_f16, unsigned char, __half)
SCALE_INTO(scale_f32_f16, float, __half)

#define SPLIT_INTO(NAME, IN)                                                                                    \
  extern "C" __global__ void NAME(const IN* x, __half* out, const size_t part, const float scale, const size_t n, \
                                  const size_t len, const size_t apart) {                                        \
    scaled(x, scale, n, len, apart, [&](size_t at, int count, const float(&v)[4]) {                              \
      store_parts(out + at, part, count, v);                                                                    \
    });                                                                                                          \
  }
SPLIT_INTO(split_u8, unsigned char)
SPLIT_INTO(split_f32, float)
