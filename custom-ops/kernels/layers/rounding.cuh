// rounding.cuh: the stochastic rounding of f32 weights to bf16. src/layers/rounding.rs says what it
// is and whose bits are whose, and has the same functions.
#pragma once

#include "core/numbers.cuh"
#include "core/philox.cuh"

// Where the draws of updates begin; each takes `blocks` of them, those of one value of the counter
// after those of the value before.
struct Rounding {
  unsigned long long seed, stream, offset, blocks;
};

__device__ __forceinline__ Philox rounding_draws(const Rounding& rounding, const long long* counter) {
  return {rounding.seed, rounding.stream, rounding.offset + rounding.blocks * (unsigned long long)*counter};
}

// The block of the weight in column `col` of a row, for columns of 0 to 31 in four words: col / 8 %
// 4 is the word, col % 2 its half.
__device__ __forceinline__ unsigned long long rounding_block(int row, int col, int cols) {
  return (unsigned long long)row * ((cols + 31) / 32 * 4) + col / 32 * 4 + col % 8 / 2;
}

// The upper half of what it gives is a bf16 number: x or one of its two neighbours; bits: 16 random
// ones.
__device__ __forceinline__ unsigned rounded_above(float x, unsigned bits) {
  return x == x ? __float_as_uint(x) + bits : 0x7fffffffu;
}
// Two neighbours, the first in the lower half, by the halves of a word.
__device__ __forceinline__ unsigned rounded_pair(float x, float y, unsigned word) {
  return __byte_perm(rounded_above(x, word & 0xffffu), rounded_above(y, word >> 16), 0x7632);
}
__device__ __forceinline__ unsigned word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// One weight.
__device__ __forceinline__ __nv_bfloat16 rounded_one(float w, const Philox& draws, int row, int col, int cols) {
  const unsigned word = word_of(philox_block(draws, rounding_block(row, col, cols)), col / 8 % 4);
  return __ushort_as_bfloat16((unsigned short)(rounded_above(w, col % 2 ? word >> 16 : word & 0xffffu) >> 16));
}

// Four weights from column `col` on, a multiple of four.
__device__ __forceinline__ void store4_rounded(__nv_bfloat16* to, const float (&w)[4], const Philox& draws, int row, int col, int cols) {
  const unsigned long long block = rounding_block(row, col, cols);
  const unsigned low = word_of(philox_block(draws, block), col / 8 % 4), high = word_of(philox_block(draws, block + 1), col / 8 % 4);
  *reinterpret_cast<uint2*>(to) = make_uint2(rounded_pair(w[0], w[1], low), rounded_pair(w[2], w[3], high));
}
