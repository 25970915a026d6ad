// points.cuh: points of a layout in two or three dimensions, and the kernel between them.
#pragma once

#include "core/warp.cuh"

// [n, D] floats. Two dimensions are read as one float2: hosts see to it that layouts begin on 8
// bytes.
template <int D>
struct Point {
  float x[D];
};

template <int D>
__device__ __forceinline__ Point<D> point(const float* y, size_t i);
template <>
__device__ __forceinline__ Point<2> point<2>(const float* y, size_t i) {
  const float2 v = reinterpret_cast<const float2*>(y)[i];
  return {{v.x, v.y}};
}
template <>
__device__ __forceinline__ Point<3> point<3>(const float* y, size_t i) {
  return {{y[3 * i], y[3 * i + 1], y[3 * i + 2]}};
}

// 1 / x to the last bit or the one before it.
__device__ __forceinline__ float quick_inverse(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// w = (1 + d2/alpha)^-alpha from near = 1 / (1 + d2/alpha).
template <bool ONE>
__device__ __forceinline__ float weight(float near, float alpha) {
  return ONE ? near : exp2f(alpha * log2f(near));
}

// a - b, and the square of its length.
template <int D>
__device__ __forceinline__ float apart(float (&difference)[D], const Point<D>& a, const Point<D>& b) {
  float square = 0;
#pragma unroll
  for (int k = 0; k < D; k++) {
    difference[k] = a.x[k] - b.x[k];
    square = fmaf(difference[k], difference[k], square);
  }
  return square;
}

// What a source at b, of so many points, adds to the force on a and to its total.
template <int D, bool ONE>
__device__ __forceinline__ void interact(float (&force)[D], float& total, const Point<D>& a, const Point<D>& b, float count,
                                     float alpha, float inverse_alpha) {
  float difference[D];
  const float square = apart(difference, a, b);
  const float near = quick_inverse(ONE ? 1.f + square : fmaf(square, inverse_alpha, 1.f));
  const float w = count * weight<ONE>(near, alpha), push = w * near;
  total += w;
#pragma unroll
  for (int k = 0; k < D; k++) force[k] = fmaf(push, difference[k], force[k]);
}
