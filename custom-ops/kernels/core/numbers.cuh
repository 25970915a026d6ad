// numbers.cuh: conversions of f32, bf16 and f16 numbers, rounded to nearest even, products with a
// sum rounded once, and access to four at a time, of f64 too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

// A number as a type, for code that is compiled for each.
template <int I> using Number = std::integral_constant<int, I>;

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ double wide(double x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }

// a b + c, rounded once: the kernels are compiled without contraction.
__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

template <typename T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Four neighbours, aligned to their size.
__device__ __forceinline__ void load4(const float* from, float (&v)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
__device__ __forceinline__ void load4(const unsigned char* from, float (&v)[4]) {
  const uchar4 four = *reinterpret_cast<const uchar4*>(from);
  v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
__device__ __forceinline__ void load4(const __nv_bfloat16* from, float (&v)[4]) {
  const uint2 four = *reinterpret_cast<const uint2*>(from);
  const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&four);
  const float2 low = __bfloat1622float2(pairs[0]), high = __bfloat1622float2(pairs[1]);
  v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
}
__device__ __forceinline__ void load4(const double* from, double (&v)[4]) {
  const double2 low = *reinterpret_cast<const double2*>(from), high = *reinterpret_cast<const double2*>(from + 2);
  v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
}
// Four numbers as two words of 16-bit ones.
template <typename T> __device__ __forceinline__ uint2 packed4(const float (&v)[4]);
template <> __device__ __forceinline__ uint2 packed4<__nv_bfloat16>(const float (&v)[4]) {
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3])};
  return *reinterpret_cast<const uint2*>(pairs);
}
template <> __device__ __forceinline__ uint2 packed4<__half>(const float (&v)[4]) {
  __half2 pairs[2] = {__floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3])};
  return *reinterpret_cast<const uint2*>(pairs);
}

__device__ __forceinline__ void store4(float* to, const float (&v)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void store4(__nv_bfloat16* to, const float (&v)[4]) { *reinterpret_cast<uint2*>(to) = packed4<__nv_bfloat16>(v); }
__device__ __forceinline__ void store4(__half* to, const float (&v)[4]) { *reinterpret_cast<uint2*>(to) = packed4<__half>(v); }
__device__ __forceinline__ void store4(double* to, const double (&v)[4]) {
  *reinterpret_cast<double2*>(to) = make_double2(v[0], v[1]), *reinterpret_cast<double2*>(to + 2) = make_double2(v[2], v[3]);
}
