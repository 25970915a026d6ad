// halves.cuh: f32 numbers in halves of 16 bits, of which the upper one is the bf16 number next to
// the f32 one. src/arrays/halves.rs says what they are and what is exact, and has the same
// functions.
#pragma once

__device__ __forceinline__ float joined(unsigned upper, unsigned lower) {
  return __uint_as_float((upper << 16) + (unsigned)(int)(short)lower);
}
__device__ __forceinline__ unsigned upper_half(unsigned bits) { return bits + 0x8000u; }  // in the upper half of it
// The bits of a number; one NaN for all, since the bits of some would round to those of a number.
__device__ __forceinline__ unsigned bits_to_halve(float x) { return x == x ? __float_as_uint(x) : 0x7fc00000u; }

// Two neighbours, the first in the lower half of each word.
__device__ __forceinline__ float2 joined_pair(unsigned uppers, unsigned lowers) {
  return make_float2(joined(uppers, lowers), joined(uppers >> 16, lowers >> 16));
}
__device__ __forceinline__ void halve_pair(float2 pair, unsigned& uppers, unsigned& lowers) {
  const unsigned x = bits_to_halve(pair.x), y = bits_to_halve(pair.y);
  uppers = __byte_perm(upper_half(x), upper_half(y), 0x7632);
  lowers = __byte_perm(x, y, 0x5410);
}
