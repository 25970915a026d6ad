// pursuit.cuh: the shared parts of the greedy pursuits. The equations and their symbols are in
// src/codes/pursuit/mod.rs; here the orthogonal directions are left at their own length, which
// saves a root and a pass over the atoms a step:
//
//   v_k = rho_k u_k            the inner products of all atoms with what the chosen ones leave of
//                              atom k
//   t_j = v_j[i] / e_j         e_j = rho_j^2;   row k of the unit triangle L
//   e   = 1 - sum_j v_j[i] t_j
//   v   = G_i - sum_j t_j v_j
//   b   = alpha_i / e          alpha <- alpha - b v,   |r|^2 <- |r|^2 - b alpha_i,   E <- E - v^2 / e  (least squares)
//   L^T x = b                  once, at the end
#pragma once

#include <math_constants.h>

#include "core/numbers.cuh"
#include "core/warp.cuh"

constexpr unsigned ALL = 0xffffffffu;

// 16 bytes of numbers, which a lane reads at once.
template <typename T> struct Pack;
template <> struct Pack<float> {
  using Type = float4;
  static constexpr int SIZE = 4;
};
template <> struct Pack<double> {
  using Type = double2;
  static constexpr int SIZE = 2;
};

// Where atom i lies in a row of numbers that so many lanes read in packs: lane l holds atoms SLOTS
// l, SLOTS l + 1, .., so that of equal lanes the lowest has the lowest atom, and its packs are
// `lanes` packs apart.
template <typename T>
__device__ __forceinline__ unsigned place_of(unsigned atom, unsigned slots, unsigned lanes) {
  const unsigned lane = atom / slots, slot = atom % slots;
  return slot / Pack<T>::SIZE * (lanes * Pack<T>::SIZE) + lane * Pack<T>::SIZE + slot % Pack<T>::SIZE;
}

template <typename T, int SLOTS, int LANES>
__device__ __forceinline__ void read_row(T (&row)[SLOTS], const T* at, unsigned lane) {
  using P = typename Pack<T>::Type;
  constexpr int SIZE = Pack<T>::SIZE;
#pragma unroll
  for (int t = 0; t < SLOTS / SIZE; ++t) {
    const P pack = __ldg(reinterpret_cast<const P*>(at) + t * LANES + lane);
    memcpy(&row[t * SIZE], &pack, sizeof pack);
  }
}

// The same for a row that is read once: it does not push rows of G out of the first cache.
template <typename T, int SLOTS, int LANES>
__device__ __forceinline__ void read_row_once(T (&row)[SLOTS], const T* at, unsigned lane) {
  constexpr int SIZE = Pack<T>::SIZE;
#pragma unroll
  for (int t = 0; t < SLOTS / SIZE; ++t) {
    uint4 pack;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
        : "l"(at + (t * LANES + lane) * SIZE));
    memcpy(&row[t * SIZE], &pack, sizeof pack);
  }
}

template <typename T, int SLOTS, int LANES>
__device__ __forceinline__ void write_row(T* to, const T (&row)[SLOTS], unsigned lane) {
  using P = typename Pack<T>::Type;
  constexpr int SIZE = Pack<T>::SIZE;
#pragma unroll
  for (int t = 0; t < SLOTS / SIZE; ++t) {
    P pack;
    memcpy(&pack, &row[t * SIZE], sizeof pack);
    reinterpret_cast<P*>(to)[t * LANES + lane] = pack;
  }
}

__device__ __forceinline__ float largest(float x) {
  // Numbers of at least 0 are ordered as their bits.
  return __uint_as_float(__reduce_max_sync(ALL, __float_as_uint(x)));
}
__device__ __forceinline__ double largest(double x) {
#pragma unroll
  for (int step = 16; step; step /= 2) x = fmax(x, __shfl_xor_sync(ALL, x, step));
  return x;
}

// |x| of a row of p numbers. Squares of f32 are within the range of f64; those of f64 are once the largest is brought near 1.
__device__ __forceinline__ double norm_by_warp(const float* x, unsigned p) {
  double square = 0;
  for (unsigned f = threadIdx.x & 31; f < p; f += 32) square = fma((double)x[f], (double)x[f], square);
  return sqrt(sum_of_warp(square));
}
__device__ __forceinline__ double norm_by_warp(const double* x, unsigned p) {
  double peak = 0, square = 0;
  for (unsigned f = threadIdx.x & 31; f < p; f += 32) peak = fmax(peak, fabs(x[f]));
  peak = largest(peak);
  const int power = peak > 0 && peak < CUDART_INF ? ilogb(peak) : 0;
  for (unsigned f = threadIdx.x & 31; f < p; f += 32) {
    const double scaled = scalbn(x[f], -power);
    square = fma(scaled, scaled, square);
  }
  return scalbn(sqrt(sum_of_warp(square)), power);
}

// 1 / sqrt(x) to an ulp or two, for x well above 0.
__device__ __forceinline__ float inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double inverse_root(double x) { return rsqrt(x); }
// The same, with a step of Newton's method: to half an ulp but for rounding.
__device__ __forceinline__ float refined_inverse_root(float x) {
  const float first = inverse_root(x);
  return fmaf(0.5f * first, fmaf(-x * first, first, 1.f), first);
}

// Which flag says what was not finite, or of a target negative.
enum Refused : unsigned { REFUSED_SIGNAL, REFUSED_ATOM, REFUSED_TARGET };

// What a kernel is told, field for field Problem in src/codes/pursuit/cuda/problem.rs. Arrays do
// not overlap.
template <typename T>
struct Problem {
  const T* signals;             // [m, p], where rows of G are made in the kernel
  const T* norms;               // [m], else
  const T* correlations;        // [m, width]
  const T* gram;                // [width, width], NaN on the diagonal
  const T* transposed;              // [p, width], unit atoms as columns, where rows of G are made in the kernel
  const T* inverse_norms;       // [n]
  const T* targets;             // [m], for TARGET_EACH
  const unsigned char* mask;    // [m, p] or null
  unsigned* indices;            // [m, s]
  T* values;                    // [m, s]
  unsigned* counts;             // [m]
  unsigned* refused;            // [3], see Refused
  T* memory;                    // scratch of the blocks, `memory_of_block` numbers each
  double target;                // for TARGET_ABSOLUTE and TARGET_RELATIVE
  size_t m, memory_of_block;
  unsigned p, width, s, target_kind;
  unsigned nonnegative;         // not 0: coefficients of at least 0
  unsigned unused;
};

// 1 / x to an ulp, for x well above 0 and up to 1.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return fmaf(y, fmaf(-x, y, 1.f), y);
}
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

// A pursuit ends where |r|^2 / |y|^2 is not above this; minus infinity where nothing but the number
// of atoms ends it. Shares of
// |y|^2 stay in the range of f32 whatever the signal's.
enum TargetKind : unsigned { TARGET_NONE, TARGET_ABSOLUTE, TARGET_RELATIVE, TARGET_EACH };

template <typename T, typename Of>
__device__ __forceinline__ T limit_of(const Of& of, size_t signal, T norm) {
  if (of.target_kind == TARGET_NONE) return -CUDART_INF;
  const T target = of.target_kind == TARGET_EACH ? of.targets[signal] : (T)of.target;
  if (!(target >= 0 && target < CUDART_INF)) of.refused[REFUSED_TARGET] = 1;
  const T share = of.target_kind == TARGET_RELATIVE ? target : target / norm;
  return share * share;
}

// What is below some of these is rounding: 16 for a correlation with a signal of norm 1, and what
// `least_pivot` says for a pivot, the numbers of Rounding in src/codes/pursuit/job.rs.
template <typename T> __device__ __forceinline__ constexpr T epsilon();
template <> __device__ __forceinline__ constexpr float epsilon<float>() { return 1.1920929e-7f; }
template <> __device__ __forceinline__ constexpr double epsilon<double>() { return 2.220446049250313e-16; }
template <typename T> __device__ __forceinline__ T not_a_number();
template <> __device__ __forceinline__ float not_a_number<float>() { return CUDART_NAN_F; }
template <> __device__ __forceinline__ double not_a_number<double>() { return CUDART_NAN; }
template <typename T, bool OLS> __device__ __forceinline__ constexpr T least_pivot() { return (OLS ? 1024 : 64) * epsilon<T>(); }
