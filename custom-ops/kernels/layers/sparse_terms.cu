// sparse_terms.cu: what stands between the products of a pass of a sparse autoencoder.
//
//   sparse_begin     copy[i] <- theta[i],   gathered[r] <- 0,
//                    of sparse_begin_bf16 both weight matrices rounded and the biases as they are
//                    parts[s] <- sum of theta[i]^2 over i of segment s below n_weights
//   sparsity_pull    mean = sums[j] / m,   pull[j] <- s(mean) / m,
//                    divergence <- sum_j KL(rho || mean)
//   sparse_figures   gradient[i] <- of_rows[i] + lambda theta[i], without theta from n_weights on;
//                    figures <- J, q, w, k:  q = sum losses / m,  w = sum parts,  k = divergence,
//                    J = q + lambda/2 w + beta k
//   s, KL and J are those of sparsity.cuh. All is double; pull and gradient are rounded once
//
// arrays   theta, copy [n] f32 (theta of sparse_figures: T); weight [n_hidden, n_visible] and
//          decoder [n_visible, n_hidden] bf16 in lines that begin of_weight and of_decoder entries
//          from each other, biases [n_hidden + n_visible] f32, in theta one after the other; parts
//          [n_parts] f64, those of sparse_begin of 4096 entries each; gathered [n_gathered], losses
//          [n_losses] f64; sums, pull [n] f32 or f64; divergence [1] f64; figures [4] f64; gradient,
//          of_rows [n] T; contiguous but for those in lines, none overlap
// scalars  n >= 1; m >= 1: rows of all chunks; n_weights <= n, 0 where theta of sparse_figures is
//          null
// launch   sparse_begin: a block of 1024 for each segment. sparsity_pull: one block of 1024.
//          sparse_figures: blocks of 1024, the first for the figures, the others, at least one, for
//          the gradient
// shared   8 KiB
// cost     sparse_begin moves 8n bytes, in bf16 6n, sparse_figures 12n (f64: 24n); at small sizes
//          the launch
// NaN      propagates; that of a row is in J, q and in what it reaches of the gradient
// same     every sum has one order: lane l of 1024 adds the entries l, l + 1024, ... from first to
//          last, then the lanes in halves. The same bits as the CPU twin, but for the
//          divergence, whose logarithms are the same to rounding
// truth    the CPU twins in src/layers/sparse_cost/begin.rs and terms.rs

#include "core/numbers.cuh"
#include "core/order.cuh"
#include "layers/sparsity.cuh"

constexpr unsigned LANES = 1024, OF_LANE = 4, SEGMENT = LANES * OF_LANE;

// The sum over all threads of a block, in thread 0. `lanes` must not be in use.
__device__ __forceinline__ double sum_of_lanes(double x, double* lanes) {
  const unsigned lane = threadIdx.x;
  lanes[lane] = x;
  for (unsigned half = LANES / 2; half >= 32; half /= 2) {
    __syncthreads();
    if (lane < half) lanes[lane] += lanes[lane + half];
  }
  // The rest is in the first warp, whose lanes have written what they read.
  if (lane < 32) {
    x = lanes[lane];
#pragma unroll
    for (unsigned half = 16; half > 0; half /= 2) x += __shfl_down_sync(~0u, x, half);
  }
  __syncthreads();
  return x;
}

// The sum of x[0..n], in thread 0.
__device__ __forceinline__ double sum_of_all(const double* x, size_t n, double* lanes) {
  double sum = 0.;
#pragma unroll 4
  for (size_t i = threadIdx.x; i < n; i += LANES) sum += x[i];
  return sum_of_lanes(sum, lanes);
}

// Parameters as they are.
struct Same {
  float* to;
  __device__ __forceinline__ void store(size_t i, float x) const { to[i] = x; }
};

// Both weight matrices rounded, in lines that begin some entries from each other, and biases.
struct InLines {
  __nv_bfloat16 *weight, *decoder;
  float* biases;
  size_t n_visible, n_hidden, of_weight, of_decoder;

  // Where entry i of a matrix with lines of `width` lies.
  static __device__ __forceinline__ size_t place(size_t i, size_t width, size_t line) {
    if (width == line) return i;
    // A 64-bit division takes many times as long as a 32-bit one.
    const size_t row = i <= 0xffffffffu ? (unsigned)i / (unsigned)width : i / width;
    return i + row * (line - width);
  }
  __device__ __forceinline__ void store(size_t i, float x) const {
    const size_t n = n_visible * n_hidden;
    if (i < n) weight[place(i, n_visible, of_weight)] = narrow<__nv_bfloat16>(x);
    else if (i < 2 * n) decoder[place(i - n, n_hidden, of_decoder)] = narrow<__nv_bfloat16>(x);
    else biases[i - 2 * n] = x;
  }
};

template <typename Copy>
__device__ __forceinline__ void sparse_begin(const Copy& copy, double* __restrict__ parts, double* __restrict__ gathered,
                                             const float* __restrict__ theta, size_t n, size_t n_weights, size_t n_gathered) {
  __shared__ double lanes[LANES];
  const size_t first = (size_t)blockIdx.x * SEGMENT + threadIdx.x;
  float x[OF_LANE];
#pragma unroll
  for (unsigned i = 0; i < OF_LANE; ++i) x[i] = first + i * LANES < n ? theta[first + i * LANES] : 0.f;
  for (size_t r = (size_t)blockIdx.x * LANES + threadIdx.x; r < n_gathered; r += (size_t)gridDim.x * LANES) gathered[r] = 0.;
  double sum = 0.;
#pragma unroll
  for (unsigned i = 0; i < OF_LANE; ++i) {
    const size_t at = first + i * LANES;
    if (at < n) copy.store(at, x[i]);
    if (at < n_weights) sum += (double)x[i] * (double)x[i];
  }
  sum = sum_of_lanes(sum, lanes);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(LANES)
    sparse_begin_f32(float* copy, double* parts, double* gathered, const float* theta, const size_t n, const size_t n_weights,
                     const size_t n_gathered) {
  sparse_begin(Same{copy}, parts, gathered, theta, n, n_weights, n_gathered);
}

extern "C" __global__ void __launch_bounds__(LANES)
    sparse_begin_bf16(__nv_bfloat16* weight, __nv_bfloat16* decoder, float* biases, double* parts, double* gathered,
                      const float* theta, const size_t n_visible, const size_t n_hidden, const size_t of_weight,
                      const size_t of_decoder, const size_t n_gathered) {
  const size_t n_weights = 2 * n_visible * n_hidden, n = n_weights + n_visible + n_hidden;
  const InLines copy{weight, decoder, biases, n_visible, n_hidden, of_weight, of_decoder};
  sparse_begin(copy, parts, gathered, theta, n, n_weights, n_gathered);
}

template <typename Sum, typename T>
__device__ void sparsity_pull(T* pull, double* divergence, const Sum* sums, unsigned n, double m, const Weighs& weighs) {
  __shared__ double lanes[LANES];
  wait_for_previous();
  double of_lane = 0.;
  for (unsigned j = threadIdx.x; j < n; j += LANES) {
    const double mean = (double)sums[j] / m;
    pull[j] = (T)(pull_of(mean, weighs) / m);
    of_lane += divergence_of(mean, weighs);
  }
  of_lane = sum_of_lanes(of_lane, lanes);
  if (threadIdx.x == 0) *divergence = of_lane;
}

template <typename T>
__device__ void sparse_figures(double* figures, T* gradient, const T* theta, const T* of_rows, const double* losses,
                               const double* parts, const double* divergence, size_t n, size_t n_weights, size_t n_losses,
                               size_t n_parts, double m, const Weighs& weighs) {
  __shared__ double lanes[LANES];
  if (blockIdx.x > 0) {
    const size_t stride = (size_t)(gridDim.x - 1) * LANES;
    for (size_t i = (size_t)(blockIdx.x - 1) * LANES + threadIdx.x; i < n; i += stride)
      gradient[i] = i < n_weights ? (T)((double)of_rows[i] + weighs.decay * (double)theta[i]) : of_rows[i];
    return;
  }
  const double errors = sum_of_all(losses, n_losses, lanes) / m;
  const double weights = sum_of_all(parts, n_parts, lanes);
  if (threadIdx.x == 0) {
    figures[0] = value_of(errors, weights, *divergence, weighs);
    figures[1] = errors;
    figures[2] = weights;
    figures[3] = *divergence;
  }
}

#define SPARSITY_PULL(NAME, SUM, T)                                                                                  \
  extern "C" __global__ void __launch_bounds__(LANES) sparsity_pull_##NAME(                                          \
      T* pull, double* divergence, const SUM* sums, const unsigned n, const double m, const Weighs weighs) {        \
    sparsity_pull(pull, divergence, sums, n, m, weighs);                                                            \
  }
SPARSITY_PULL(f32_f32, float, float)
SPARSITY_PULL(f32_f64, float, double)
SPARSITY_PULL(f64_f32, double, float)
SPARSITY_PULL(f64_f64, double, double)

#define SPARSE_FIGURES(NAME, T)                                                                                      \
  extern "C" __global__ void __launch_bounds__(LANES) sparse_figures_##NAME(                                         \
      double* figures, T* gradient, const T* theta, const T* of_rows, const double* losses, const double* parts,     \
      const double* divergence, const size_t n, const size_t n_weights, const size_t n_losses, const size_t n_parts, \
      const double m, const Weighs weighs) {                                                                         \
    sparse_figures(figures, gradient, theta, of_rows, losses, parts, divergence, n, n_weights, n_losses, n_parts, m, \
                   weighs);                                                                                          \
  }
SPARSE_FIGURES(f32, float)
SPARSE_FIGURES(f64, double)
