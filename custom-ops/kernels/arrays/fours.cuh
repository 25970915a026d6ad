// fours.cuh: four neighbours of a line that may be fewer and may lie anywhere.
#pragma once

#include "core/numbers.cuh"

// `count` of four neighbours, in one access where they are four and begin on as many.
template <typename T>
__device__ __forceinline__ bool is_whole(const T* at, int count) { return count == 4 && (size_t)at % (4 * sizeof(T)) == 0; }
template <typename T>
__device__ __forceinline__ void load(const T* from, int count, float (&v)[4]) {
  if (is_whole(from, count)) return load4(from, v);
#pragma unroll
  for (int e = 0; e < 4; ++e) v[e] = e < count ? (float)from[e] : 0.f;
}
template <typename T>
__device__ __forceinline__ void store(T* to, int count, const float (&v)[4]) {
  if (is_whole(to, count)) return store4(to, v);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (e < count) to[e] = narrow<T>(v[e]);
}
// The same as sums of two f16 numbers, of which the second lies `part` entries further on.
__device__ __forceinline__ void store_parts(__half* to, size_t part, int count, const float (&v)[4]) {
  float left[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) left[e] = v[e] - wide(narrow<__half>(v[e]));
  store(to, count, v);
  store(to + part, count, left);
}
