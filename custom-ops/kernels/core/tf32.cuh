// tf32.cuh: products of f32 numbers in the tensor cores, each number as the sum of two TF32 ones
// (11 bits and the range of f32).
//
//   a b = a_high b_high + a_high b_low + a_low b_high
//
// error    x_high is x rounded to 11 bits, so |x_low| <= 2^-11 |x|, of which the cores take 11
//          bits: what is lost of x is at most 2^-23 |x|, of either sign, and 0 for three of four
//          numbers. a_low b_low, left out, is at most 2^-22 |a b|, of either sign, 2^-24 as a rule.
//          The cores cut sums off where f32 rounds: each takes 8 terms, the small products first,
//          and is then added to an f32 sum outside, which rounds. A product so loses about as much
//          as one rounding of f32, and a sum of n terms has n / 8 roundings in place of n.
// NaN      of either factor gives NaN, through the low parts if the high one rounds it away;
//          infinity gives NaN, for its low part is infinity - infinity, and so do numbers within
//          2^-12 of the largest, which round to infinity
//
// Lane l of a warp has line g = l / 4 and column t = l % 4 of what it names: a (16 x 8): (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4);
// b (8 x 8): (t, g), (t + 4, g); c (16 x 8): (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#pragma once

#include "core/tiles.cuh"

// Both parts of a number; the cores drop the last bits of the low one.
__device__ __forceinline__ void in_tf32_parts(float x, uint32_t& high, uint32_t& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

template <int N>
__device__ __forceinline__ void in_tf32_parts(const float (&x)[N], uint32_t (&high)[N], uint32_t (&low)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) in_tf32_parts(x[i], high[i], low[i]);
}

// c += a b for a of 16 x 8 and b of 8 x 8 entries.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// sum[m][n] += a[m] b[n], both as their parts: the products of low parts first, of all m and n in
// turn, since each waits for the one before it in its sum.
template <int M, int N>
__device__ __forceinline__ void add_products(float (*sum)[N][4], const uint32_t (&high)[M][4], const uint32_t (&low)[M][4],
                                             const uint32_t (&b_high)[N][2], const uint32_t (&b_low)[N][2]) {
  float part[M][N][4] = {};
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) multiply_tf32(part[m][n], low[m], b_high[n]);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) multiply_tf32(part[m][n], high[m], b_low[n]);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) multiply_tf32(part[m][n], high[m], b_high[n]);
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[m][n][i] += part[m][n][i];
}
// The same of a[m] that are not split yet.
template <int M, int N>
__device__ __forceinline__ void add_products(float (*sum)[N][4], const float (*a)[4], const uint32_t (&b_high)[N][2],
                                             const uint32_t (&b_low)[N][2]) {
  uint32_t high[M][4], low[M][4];
#pragma unroll
  for (int m = 0; m < M; ++m) in_tf32_parts(a[m], high[m], low[m]);
  add_products<M>(sum, high, low, b_high, b_low);
}
// One number, or four that begin on 16 bytes, to shared memory; zeros if not inside. `from` is an
// address that may be read in any case.
__device__ __forceinline__ void copy_floats(float* to, const float* from, bool inside, bool wide) {
  if (wide) copy<16>(to, from, inside);
  else copy<4>(to, from, inside);
}
