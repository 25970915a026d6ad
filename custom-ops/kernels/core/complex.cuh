// complex.cuh: complex numbers of f32.
#pragma once

__device__ __forceinline__ float2 times(float2 a, float2 b) {
  return {fmaf(a.x, b.x, -(a.y * b.y)), fmaf(a.x, b.y, a.y * b.x)};
}
__device__ __forceinline__ float2 plus(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ float2 minus(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }
