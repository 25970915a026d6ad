// halves.cu: f32 numbers to halves of 16 bits, and back.
//
//   halves_into   upper[i], lower[i] = the halves of x[i]
//   joined_into   out[i] = the number of upper[i] and lower[i]
//
// arrays   x, out: [n] f32; upper: [n] bf16; lower: [n] i16; contiguous, not overlapping
// launch   1-D grid of 1-D blocks, any size: the loop strides over the grid
// cost     8n bytes; bandwidth-bound
// NaN      stays NaN, with other bits
// truth    the CPU twins in src/arrays/halves.rs

#include "arrays/halves.cuh"

extern "C" __global__ void halves_into(const float* x, unsigned short* upper, short* lower, const size_t n) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const unsigned bits = bits_to_halve(x[i]);
    upper[i] = upper_half(bits) >> 16;
    lower[i] = (short)bits;
  }
}

extern "C" __global__ void joined_into(const unsigned short* upper, const short* lower, float* out, const size_t n) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) out[i] = joined(upper[i], lower[i]);
}
