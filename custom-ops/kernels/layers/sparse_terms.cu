// sparse_terms.cu: what stands between the products of a pass of a sparse autoencoder.
//
//   sparse_begin     copy[i] <- theta[i], of sparse_begin_bf16 both weight matrices rounded and the
//                    biases as they are,   gathered[r] <- 0,
//                    parts[s] <- sum of theta[i]^2 over i of segment s below n_weights
//   sparsity_pull    mean = sums[j] / m,   pull[j] <- s(mean) / m,
//                    divergence <- sum_j KL(rho || mean)
//   sparse_figures   gradient[i] <- of_rows[i] + lambda theta[i], without theta from n_weights on;
//                    figures <- J, q, w, k:  q = sum losses / m,  w = sum parts,  k = divergence,
//                    J = q + lambda/2 w + beta k
//   s, KL and J are those of sparsity.cuh. All is double; pull and gradient are rounded once
//
// arrays   theta [n], n = 2 n_visible n_hidden + n_hidden + n_visible, f32 (of sparse_figures: T):
//          weight [n_hidden, n_visible], decoder [n_visible, n_hidden], bias [n_hidden] and
//          visible_bias [n_visible], one after the other; copy: the same four apart, the matrices f32
//          or bf16 in lines that begin of_weight and of_decoder entries from each other; of_rows: as
//          theta, or of sparse_figures_lines as copy, f32; parts [n_parts] f64, those of sparse_begin
//          of 4096 entries each; gathered [n_gathered], losses [n_losses] f64; sums, pull [n] f32 or
//          f64; divergence [1] f64; figures [4] f64; gradient [n] T; contiguous but for those in
//          lines, none overlap
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

// Parameters, or numbers for each of them, one after the other.
template <typename T>
struct InOne {
  const T* numbers;
  __device__ __forceinline__ T load(size_t i) const { return numbers[i]; }
};

// Weight matrices in lines that begin some entries from each other, and biases.
template <typename T, typename Bias>
struct InLines {
  T *weight, *decoder;
  Bias *bias, *visible_bias;
  size_t n_visible, n_hidden, of_weight, of_decoder;

  // Where entry i of a matrix with lines of `width` lies.
  static __device__ __forceinline__ size_t place(size_t i, size_t width, size_t line) {
    if (width == line) return i;
    // A 64-bit division takes many times as long as a 32-bit one.
    const size_t row = i <= 0xffffffffu ? (unsigned)i / (unsigned)width : i / width;
    return i + row * (line - width);
  }
  __device__ __forceinline__ size_t n_weights() const { return 2 * n_visible * n_hidden; }
  __device__ __forceinline__ size_t n() const { return n_weights() + n_hidden + n_visible; }
  // Calls `take` with number i.
  template <typename Take>
  __device__ __forceinline__ void at(size_t i, const Take& take) const {
    const size_t half = n_visible * n_hidden;
    if (i < half) return take(weight[place(i, n_visible, of_weight)]);
    if ((i -= half) < half) return take(decoder[place(i, n_hidden, of_decoder)]);
    if ((i -= half) < n_hidden) return take(bias[i]);
    take(visible_bias[i - n_hidden]);
  }
  __device__ __forceinline__ void store(size_t i, float x) const {
    at(i, [x](auto& to) { to = narrow<std::remove_reference_t<decltype(to)>>(x); });
  }
  __device__ __forceinline__ float load(size_t i) const {
    float got;
    at(i, [&got](float x) { got = x; });
    return got;
  }
};

template <typename Copy>
__device__ __forceinline__ void sparse_begin(const Copy& copy, double* __restrict__ parts, double* __restrict__ gathered,
                                             const float* __restrict__ theta, size_t n_gathered) {
  __shared__ double lanes[LANES];
  const size_t first = (size_t)blockIdx.x * SEGMENT + threadIdx.x, n = copy.n(), n_weights = copy.n_weights();
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

#define SPARSE_BEGIN(NAME, T)                                                                                        \
  extern "C" __global__ void __launch_bounds__(LANES, 2) sparse_begin_##NAME(                                        \
      T* weight, T* decoder, float* bias, float* visible_bias, double* parts, double* gathered, const float* theta, \
      const size_t n_visible, const size_t n_hidden, const size_t of_weight, const size_t of_decoder,                \
      const size_t n_gathered) {                                                                                     \
    const InLines<T, float> copy{weight,    decoder,  bias,      visible_bias,                                       \
                                 n_visible, n_hidden, of_weight, of_decoder};                                        \
    sparse_begin(copy, parts, gathered, theta, n_gathered);                                                          \
  }
SPARSE_BEGIN(f32, float)
SPARSE_BEGIN(bf16, __nv_bfloat16)

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

template <typename T, typename OfRows>
__device__ void sparse_figures(double* figures, T* gradient, const T* theta, const OfRows& of_rows, const double* losses,
                               const double* parts, const double* divergence, size_t n, size_t n_weights, size_t n_losses,
                               size_t n_parts, double m, const Weighs& weighs) {
  __shared__ double lanes[LANES];
  if (blockIdx.x > 0) {
    const size_t stride = (size_t)(gridDim.x - 1) * LANES;
    for (size_t i = (size_t)(blockIdx.x - 1) * LANES + threadIdx.x; i < n; i += stride)
      gradient[i] = i < n_weights ? (T)((double)of_rows.load(i) + weighs.decay * (double)theta[i]) : of_rows.load(i);
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
    sparse_figures(figures, gradient, theta, InOne<T>{of_rows}, losses, parts, divergence, n, n_weights, n_losses,   \
                   n_parts, m, weighs);                                                                              \
  }
SPARSE_FIGURES(f32, float)
SPARSE_FIGURES(f64, double)

extern "C" __global__ void __launch_bounds__(LANES)
    sparse_figures_lines(double* figures, float* gradient, const float* theta, const float* weight, const float* decoder,
                         const float* bias, const float* visible_bias, const double* losses, const double* parts,
                         const double* divergence, const size_t n_visible, const size_t n_hidden, const size_t of_weight,
                         const size_t of_decoder, const size_t n_losses, const size_t n_parts, const double m,
                         const Weighs weighs) {
  const InLines<const float, const float> of_rows{weight,    decoder,  bias,      visible_bias,
                                                  n_visible, n_hidden, of_weight, of_decoder};
  sparse_figures(figures, gradient, theta, of_rows, losses, parts, divergence, of_rows.n(), of_rows.n_weights(), n_losses,
                 n_parts, m, weighs);
}
