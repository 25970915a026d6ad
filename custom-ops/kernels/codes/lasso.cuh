// lasso.cuh: the shared parts of lasso.cu and lasso_step.cu: sums over a block, soft thresholds,
// the objective and the duality gap.
//
// The equations are in src/codes/lasso/mod.rs.
#pragma once

#include "core/numbers.cuh"

constexpr unsigned ALL = 0xffffffffu;

template <typename T> __device__ __forceinline__ T infinity() { return (T)__int_as_float(0x7f800000); }
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }
__device__ __forceinline__ double absolute(double x) { return fabs(x); }

// Joins N numbers of each thread over the block; all threads get the results. `room`: N numbers for
// each warp.
template <int THREADS, int N, typename T, typename Join>
__device__ __forceinline__ void over_block(T (&x)[N], T* room, Join join) {
  constexpr int WARPS = THREADS / 32;
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int step = 16; step; step /= 2) x[i] = join(i, x[i], __shfl_xor_sync(ALL, x[i], step));
  __syncthreads();
  if (threadIdx.x % 32 == 0)
#pragma unroll
    for (int i = 0; i < N; ++i) room[i * WARPS + threadIdx.x / 32] = x[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    x[i] = room[i * WARPS];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) x[i] = join(i, x[i], room[i * WARPS + w]);
  }
}

template <typename T> __device__ __forceinline__ T smaller(T x, T y) { return x < y ? x : y; }
template <typename T> __device__ __forceinline__ T larger(T x, T y) { return x > y ? x : y; }

// Where z leads: the minimiser of 1/2 (a - z)^2 + b |a|.
template <typename T>
__device__ __forceinline__ T shrunk(T z, T b, bool nonnegative) {
  const T far = absolute(z) - b;
  if (!(far > 0) || (nonnegative && z < 0)) return 0;
  return z > 0 ? far : -far;
}

// Smallest number that changes 1.
template <typename T> __device__ constexpr double epsilon() { return sizeof(T) == 8 ? 2.220446049250313e-16 : 1.1920928955078125e-7; }

// The objective and the relative duality gap of activations. excess: the largest |q_j| / b_j;
// unpenalised: the largest |q_j| / sqrt(G_jj) of atoms without a penalty. A NaN stays.
template <typename T>
__device__ __forceinline__ void certify(double energy, double ca, double qa, double l1, double excess, double unpenalised,
                                        double& objective, double& gap) {
  double left = energy - ca - qa;
  if (left < 0) left = 0;
  objective = 0.5 * left + l1;
  const double s = excess > 1 ? 1 / excess : 1, dual = s * (energy - ca) - 0.5 * s * s * left;
  unpenalised = energy > 0 ? unpenalised / sqrt(energy) : 0;
  gap = (objective - dual) / objective;
  if (objective <= 16 * epsilon<T>() * energy) gap = unpenalised;
  else if (gap < unpenalised) gap = unpenalised;
}

// What moves are compared by: how far, then the lower index.
template <typename T>
struct alignas(16) Move {
  T far, by;
  unsigned atom;
};
template <typename T>
__device__ __forceinline__ bool before(const Move<T>& x, const Move<T>& y) {
  return x.far > y.far || (x.far == y.far && x.atom < y.atom);
}
