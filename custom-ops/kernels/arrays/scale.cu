// scale.cu: conversion of stored rows to the numbers that a model reads.
//
//   scale   out[i] = (float)x[i] * scale      rounded in the *_bf16 and *_f16 forms
//   split   out[i] = f16(x[i] * scale), out[part + i] = f16(x[i] * scale - out[i])
//
// arrays   x: [n] u8 or f32; out: [n] f32, bf16 or f16, or two of [n] f16 that are `part` entries
//          apart, each in runs of `len` entries, `apart` from each other; not overlapping
// scalars  scale: 1/255 for bytes, 1 for numbers; 1 <= len <= apart
// launch   1-D grid of 1-D blocks, any size: the loop strides over the grid
// cost     reads n or 4n bytes, writes 4n or 2n; bandwidth-bound
// NaN      propagates
// truth    scale_into_reference in src/arrays/scale.rs, and the CPU twin of split_into_ there

#include "core/lines.cuh"
#include "core/numbers.cuh"

template <typename In, typename Out>
__device__ void scale_into(const In* x, Out* out, float scale, size_t n, size_t len, size_t apart) {
  const size_t stride = (size_t)gridDim.x * blockDim.x, first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if constexpr (std::is_same_v<In, float>) {
    // Four neighbours at once where both begin on as many, and runs too.
    const bool whole = n % 4 == 0 && len % 4 == 0 && apart % 4 == 0;
    if (whole && (size_t)x % 16 == 0 && (size_t)out % (4 * sizeof(Out)) == 0) {
      for (size_t i = 4 * first; i < n; i += 4 * stride) {
        float v[4];
        load4(x + i, v);
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] *= scale;
        store4(out + place_in_lines(i, len, apart), v);
      }
      return;
    }
  }
  for (size_t i = first; i < n; i += stride) out[place_in_lines(i, len, apart)] = narrow<Out>((float)x[i] * scale);
}

#define SCALE_INTO(NAME, IN, OUT)                                                                           \
  extern "C" __global__ void NAME(const IN* x, OUT* out, const float scale, const size_t n, const size_t len, \
                                  const size_t apart) {                                                      \
    scale_into<IN, OUT>(x, out, scale, n, len, apart);                                                       \
  }
SCALE_INTO(scale_u8_f32, unsigned char, float)
SCALE_INTO(scale_f32_f32, float, float)
SCALE_INTO(scale_u8_bf16, unsigned char, __nv_bfloat16)
SCALE_INTO(scale_f32_bf16, float, __nv_bfloat16)
SCALE_INTO(scale_u8_f16, unsigned char, __half)
SCALE_INTO(scale_f32_f16, float, __half)

template <typename In>
__device__ void split_into(const In* x, __half* out, size_t part, float scale, size_t n, size_t len, size_t apart) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const float v = (float)x[i] * scale;
    const __half high = narrow<__half>(v);
    const size_t at = place_in_lines(i, len, apart);
    out[at] = high;
    out[part + at] = narrow<__half>(v - wide(high));
  }
}

#define SPLIT_INTO(NAME, IN)                                                                                    \
  extern "C" __global__ void NAME(const IN* x, __half* out, const size_t part, const float scale, const size_t n, \
                                  const size_t len, const size_t apart) {                                        \
    split_into<IN>(x, out, part, scale, n, len, apart);                                                          \
  }
SPLIT_INTO(split_u8, unsigned char)
SPLIT_INTO(split_f32, float)
