// printed.cu: the naive and the tiled kernel of Kumar and Giaquinto (sections 3.2 and 3.3) as they
// describe them. They are here to be timed beside the library's own, not to be used.
//
//   naive_observations   sums += the update of one observation, a block an observation, a thread a
//                        feature: y = s(b + W x~), z = s(c + W' y), LN = x - z,
//                        LH = y (1 - y) W LN, and sums of W: LH x~' + y LN', of b: LH, of c: LN
//   naive_update         values += rate sums, sums = 0
//   tiled_product_T      out[i, j] = sum over k of a[i, k] b[j, k], k in order, by tiles of T x T
//
// arrays   values, sums: [n] f32, W [n_hidden, n_visible] at 0, b at bias_at, c at visible_bias_at;
//          x, corrupted: [blocks, n_visible]; a: [rows, depth], b: [cols, depth], out: [rows, cols];
//          contiguous f32, not overlapping
// scalars  sizes at least 1; bias_at and visible_bias_at below n
// launch   naive_observations: a 1-D block for each observation, of any size; naive_update: any
//          1-D grid; tiled_product_T: T x T threads, a block for each tile, rows of tiles on x
// shared   naive_observations: 2 (n_hidden + n_visible) floats; tiles: 2 T (T + 1) floats
// cost     naive: 2 n_hidden n_visible additions to shared memory and as many to global memory for
//          an observation, all atomic, which limit it; tiles: 2 rows cols depth FLOP
// NaN      spreads as it does in the sums
// same     naive: the order of atomic additions is free, so bits differ from run to run; tiles: the
//          same bits as the CPU twin
// truth    naive_denoising_step_reference in src/layers/printed.rs

#include "core/math.cuh"

extern "C" __global__ void naive_observations(float* values, float* sums, const float* x, const float* corrupted,
                                              const size_t n_visible, const size_t n_hidden, const size_t bias_at,
                                              const size_t visible_bias_at) {
  extern __shared__ float memory[];
  float* const y = memory;
  float* const lh = y + n_hidden;
  float* const noisy = lh + n_hidden;
  float* const ln = noisy + n_visible;
  const size_t first = (size_t)blockIdx.x * n_visible, thread = threadIdx.x, threads = blockDim.x;
  for (size_t h = thread; h < n_hidden; h += threads) y[h] = lh[h] = 0.f;
  for (size_t n = thread; n < n_visible; n += threads) noisy[n] = corrupted[first + n];
  __syncthreads();
  for (size_t h = 0; h < n_hidden; ++h)
    for (size_t n = thread; n < n_visible; n += threads) atomicAdd(y + h, values[h * n_visible + n] * noisy[n]);
  __syncthreads();
  for (size_t h = thread; h < n_hidden; h += threads) y[h] = exact_sigmoid(values[bias_at + h] + y[h]).v;
  __syncthreads();
  for (size_t n = thread; n < n_visible; n += threads) {
    float sum = values[visible_bias_at + n];
    for (size_t h = 0; h < n_hidden; ++h) sum += values[h * n_visible + n] * y[h];
    ln[n] = x[first + n] - exact_sigmoid(sum).v;
    atomicAdd(sums + visible_bias_at + n, ln[n]);
  }
  __syncthreads();
  for (size_t h = 0; h < n_hidden; ++h)
    for (size_t n = thread; n < n_visible; n += threads) atomicAdd(lh + h, values[h * n_visible + n] * ln[n]);
  __syncthreads();
  for (size_t h = thread; h < n_hidden; h += threads) {
    lh[h] = y[h] * (1.f - y[h]) * lh[h];
    atomicAdd(sums + bias_at + h, lh[h]);
  }
  __syncthreads();
  for (size_t h = 0; h < n_hidden; ++h)
    for (size_t n = thread; n < n_visible; n += threads)
      atomicAdd(sums + h * n_visible + n, lh[h] * noisy[n] + ln[n] * y[h]);
}

extern "C" __global__ void naive_update(float* values, float* sums, const size_t n, const float rate) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    values[i] += rate * sums[i];
    sums[i] = 0.f;
  }
}

template <unsigned T>
__device__ void tiled_product(float* out, const float* a, const float* b, size_t rows, size_t cols, size_t depth) {
  __shared__ float left[T][T + 1], right[T][T + 1];
  const unsigned across = threadIdx.x, down = threadIdx.y;
  const size_t row = (size_t)blockIdx.x * T + down, first = (size_t)blockIdx.y * T;
  float sum = 0.f;
  for (size_t k0 = 0; k0 < depth; k0 += T) {
    const size_t k = k0 + across;
    left[down][across] = row < rows && k < depth ? a[row * depth + k] : 0.f;
    right[down][across] = first + down < cols && k < depth ? b[(first + down) * depth + k] : 0.f;
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < T; ++i) sum += left[down][i] * right[across][i];
    __syncthreads();
  }
  if (row < rows && first + across < cols) out[row * cols + first + across] = sum;
}

#define TILED(T)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(T * T)                                                             \
      tiled_product_##T(float* out, const float* a, const float* b, const size_t rows, const size_t cols,         \
                        const size_t depth) {                                                                     \
    tiled_product<T>(out, a, b, rows, cols, depth);                                                               \
  }
TILED(4)
TILED(8)
TILED(16)
TILED(32)
