// stepped.cuh: the velocity of a weight after an update; the formulas are in cd_update.cu.
#pragma once

__device__ __forceinline__ float stepped(float v, float w, float g, float alpha, float momentum, float rate, float l1, float l2) {
  const float sign = w > 0.f ? 1.f : w < 0.f ? -1.f : 0.f;
  return fmaf(momentum, v, fmaf(alpha, g, -rate * fmaf(l2, w, l1 * sign)));
}

// The same without l1.
__device__ __forceinline__ float stepped(float v, float w, float g, float alpha, float momentum, float rate, float l2) {
  return fmaf(momentum, v, fmaf(alpha, g, -rate * (l2 * w)));
}
