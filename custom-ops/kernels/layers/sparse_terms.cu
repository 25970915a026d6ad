// sparse_terms.cu: what stands between the products of a pass of a sparse autoencoder.
//
//   sparse_begin     copy[i] <- theta[i], of sparse_begin_bf16 both weight matrices rounded and the
//                    biases as they are,   gathered[r] <- 0,
//                    parts[s] <- sum of theta[i]^2 over the weights of segment s
//   sparsity_pull    mean = sums[j] / m,   pull[j] <- s(mean) / m,
//                    divergence[p] <- sum of KL(rho || mean) over the 256 features from 256 p on
//   sparse_figures   gradient[i] <- of_rows[i] + lambda theta[i], without theta from n_weights on;
//                    figures <- J, q, w, k:  q = sum losses / m,  w = sum squares,
//                    k = sum divergence,  J = q + lambda/2 w + beta k
//   s, KL and J are those of sparsity.cuh. All is double; pull and gradient are rounded once
//
// arrays   theta [n], n = 2 n_visible n_hidden + n_hidden + n_visible, f32 (of sparse_figures: T):
//          weight [n_hidden, n_visible], decoder [n_visible, n_hidden], bias [n_hidden] and
//          visible_bias [n_visible], one after the other; copy: the same four apart, the matrices f32
//          or bf16 in lines that begin of_weight and of_decoder entries from each other; of_rows: as
//          theta, or of sparse_figures_lines as copy, f32; parts f64, one for each segment of a
//          matrix: those of weight, then those of decoder; gathered [n_gathered] f64; sums, pull [n]
//          f32 or f64; divergence [ceil(n / 256)] f64; losses, squares and divergence of
//          sparse_figures f64, as many as are said; figures [4] f64; gradient [n] T; contiguous but
//          for those in lines, aligned to their types alone, none overlap
// scalars  n >= 1; m >= 1: rows of all chunks; n_weights <= n, 0 where theta of sparse_figures is
//          null; segment: entries of a segment, a multiple of 4096; the last of each matrix may have
//          fewer
// launch   sparse_begin: blocks of 256, one for each segment of weight, of decoder, and of the biases
//          together. sparsity_pull: a block of 256 for as many features. sparse_figures: blocks of
//          1024, the first for the figures, the others for the gradient: of sparse_figures_lines one
//          for each 8192 entries of weight, of decoder, and of the biases together, else at least one
// shared   2 KiB, sparse_figures 8 KiB
// cost     sparse_begin moves 8n bytes, in bf16 6n, sparse_figures 12n (f64: 24n); bandwidth-bound,
//          sparse_begin_bf16 at 4.3 TB/s of an H200; at small sizes the launch
// NaN      propagates; that of a row is in J, q and in what it reaches of the gradient
// same     every sum has one order: lane l of N adds the entries l, l + N, ... from first to last,
//          then the lanes in halves; N is 1024 in sparse_figures, else 256. The same bits as the CPU
//          twin, but for the divergence, whose logarithms are the same to rounding
// truth    the CPU twins in src/layers/sparse_cost/begin.rs and terms.rs

#include "core/numbers.cuh"
#include "core/order.cuh"
#include "layers/sparsity.cuh"

// Lanes of a sum that one block makes of many numbers, and of one that a block makes of its own.
constexpr unsigned ALL_LANES = 1024, LANES = 256;
// Reads of a lane that are in flight together, and of a block.
constexpr unsigned AHEAD = 16, ROUND = AHEAD * LANES;
// Entries of a segment of the gradient.
constexpr unsigned OF_GRADIENT = 8 * ALL_LANES;

// The sum over all threads of a block, as many as there are lanes, in thread 0. `lanes` must not be
// in use.
template <unsigned N>
__device__ __forceinline__ double sum_of_lanes(double x, double (&lanes)[N]) {
  const unsigned lane = threadIdx.x;
  lanes[lane] = x;
#pragma unroll
  for (unsigned half = N / 2; half >= 32; half /= 2) {
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

// What this thread adds of the sum of x[0..n].
__device__ __forceinline__ double sum_of_lane(const double* x, size_t n) {
  double sum = 0.;
#pragma unroll 8
  for (size_t i = threadIdx.x; i < n; i += ALL_LANES) sum += x[i];
  return sum;
}

// Every STEP-th entry of what has no gaps, from one on.
template <unsigned STEP, typename T>
struct Straight {
  T* at;
  __device__ __forceinline__ T& next() {
    T& entry = *at;
    at += STEP;
    return entry;
  }
};

// Every STEP-th entry of lines of `width` that begin `line` entries from each other, from entry
// `first` on: one division finds it, and none the next.
template <unsigned STEP, typename T>
struct Lined {
  T* at;
  size_t column, width, gap, step;
  unsigned rest;

  __device__ __forceinline__ Lined(T* entries, size_t first, size_t width, size_t line) : width(width), gap(line - width) {
    // A 64-bit division takes many times as long as a 32-bit one.
    const size_t row = (first | width) <= 0xffffffffu ? (unsigned)first / (unsigned)width : first / width;
    at = entries + first + row * gap;
    column = first - row * width;
    const size_t whole = width > STEP ? 0 : STEP / (unsigned)width;
    step = STEP + whole * gap, rest = STEP - (unsigned)(whole * width);
  }
  __device__ __forceinline__ T& next() {
    T& entry = *at;
    at += step, column += rest;
    if (column >= width) column -= width, at += gap;
    return entry;
  }
};

// Weight matrices in lines that begin some entries from each other, and biases, in segments of so
// many entries: those of each matrix, of which the last may be short, and those of the biases.
template <typename T>
struct InLines {
  using Bias = std::conditional_t<std::is_const_v<T>, const float, float>;
  T *weight, *decoder;
  Bias *bias, *visible_bias;
  size_t n_visible, n_hidden, of_weight, of_decoder;

  // Takes a segment by STEP threads. Of a matrix calls `take` with the entries that are this
  // thread's, the number of the segment's first parameter, and how many entries there are; calls
  // `take_bias` with each bias of this thread and its number.
  template <unsigned STEP, typename Take, typename TakeBias>
  __device__ __forceinline__ void segment(size_t at, unsigned size, const Take& take, const TakeBias& take_bias) const {
    const size_t half = n_visible * n_hidden, each = (half + size - 1) / size;
    if (at < 2 * each) {
      const bool second = at >= each;
      const size_t start = (second ? at - each : at) * size, first = start + threadIdx.x;
      const size_t width = second ? n_hidden : n_visible, line = second ? of_decoder : of_weight;
      const size_t number = second ? half + start : start;
      const unsigned count = min(half - start, (size_t)size);
      T* entries = second ? decoder : weight;
      if (width == line) return take(Straight<STEP, T>{entries + first}, number, count);
      return take(Lined<STEP, T>(entries, first, width, line), number, count);
    }
    const size_t start = (at - 2 * each) * size, end = min(start + size, n_hidden + n_visible);
    for (size_t i = start + threadIdx.x; i < end; i += STEP)
      take_bias(i < n_hidden ? bias[i] : visible_bias[i - n_hidden], 2 * half + i);
  }
};

// One round: copies what this thread has of the next `count` numbers, of a WHOLE round all that it
// can have, and adds their squares to `sum`.
template <typename T, bool WHOLE, typename To>
__device__ __forceinline__ void copy_and_square(To& to, double& sum, const float* __restrict__ from, unsigned count) {
  const unsigned left = count > threadIdx.x ? count - threadIdx.x : 0;
  float x[AHEAD];
#pragma unroll
  for (unsigned i = 0; i < AHEAD; ++i) x[i] = WHOLE || i * LANES < left ? from[i * LANES] : 0.f;
#pragma unroll
  for (unsigned i = 0; i < AHEAD; ++i) {
    T& entry = to.next();
    if (WHOLE || i * LANES < left) entry = narrow<T>(x[i]);
    // The square of an f32 is exact in f64: this rounds as a product and a sum do.
    sum = fma((double)x[i], (double)x[i], sum);
  }
}

template <typename T>
__device__ __forceinline__ void sparse_begin(const InLines<T>& copy, double* __restrict__ parts, double* __restrict__ gathered,
                                             const float* __restrict__ theta, size_t n_gathered, unsigned segment) {
  __shared__ double lanes[LANES];
  for (size_t r = (size_t)blockIdx.x * LANES + threadIdx.x; r < n_gathered; r += (size_t)gridDim.x * LANES) gathered[r] = 0.;
  const auto take = [&](auto to, size_t number, unsigned count) {
    const float* from = theta + number + threadIdx.x;
    double sum = 0.;
#pragma unroll 1
    for (; count >= ROUND; count -= ROUND, from += ROUND) copy_and_square<T, true>(to, sum, from, count);
    if (count > 0) copy_and_square<T, false>(to, sum, from, count);
    sum = sum_of_lanes(sum, lanes);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
  };
  const auto take_bias = [theta](float& bias, size_t number) { bias = theta[number]; };
  copy.template segment<LANES>(blockIdx.x, segment, take, take_bias);
}

#define SPARSE_BEGIN(NAME, T)                                                                                        \
  extern "C" __global__ void __launch_bounds__(LANES, 4) sparse_begin_##NAME(                                        \
      T* weight, T* decoder, float* bias, float* visible_bias, double* parts, double* gathered, const float* theta, \
      const size_t n_visible, const size_t n_hidden, const size_t of_weight, const size_t of_decoder,                \
      const size_t n_gathered, const unsigned segment) {                                                             \
    const InLines<T> copy{weight, decoder, bias, visible_bias, n_visible, n_hidden, of_weight, of_decoder};          \
    sparse_begin(copy, parts, gathered, theta, n_gathered, segment);                                                 \
  }
SPARSE_BEGIN(f32, float)
SPARSE_BEGIN(bf16, __nv_bfloat16)

template <typename Sum, typename T>
__device__ void sparsity_pull(T* pull, double* divergence, const Sum* sums, unsigned n, double m, const Weighs& weighs) {
  __shared__ double lanes[LANES];
  wait_for_previous();
  const unsigned j = blockIdx.x * LANES + threadIdx.x;
  double of_lane = 0.;
  if (j < n) {
    const double mean = (double)sums[j] / m;
    pull[j] = (T)(pull_of(mean, weighs) / m);
    of_lane = divergence_of(mean, weighs);
  }
  of_lane = sum_of_lanes(of_lane, lanes);
  if (threadIdx.x == 0) divergence[blockIdx.x] = of_lane;
}

// What the passes over rows have gathered.
struct Parts {
  const double *losses, *squares, *divergence;
  size_t n_losses, n_squares, n_divergence;
};

// The figures, of a block of ALL_LANES.
__device__ __forceinline__ void sparse_figures(double* figures, const Parts& parts, double m, const Weighs& weighs) {
  __shared__ double lanes[ALL_LANES];
  // All reads begin before the first sum over lanes waits.
  const double of_squares = sum_of_lane(parts.squares, parts.n_squares);
  const double of_losses = sum_of_lane(parts.losses, parts.n_losses);
  const double of_divergence = sum_of_lane(parts.divergence, parts.n_divergence);
  const double errors = sum_of_lanes(of_losses, lanes) / m;
  const double weights = sum_of_lanes(of_squares, lanes);
  const double divergence = sum_of_lanes(of_divergence, lanes);
  if (threadIdx.x == 0) {
    figures[0] = value_of(errors, weights, divergence, weighs);
    figures[1] = errors;
    figures[2] = weights;
    figures[3] = divergence;
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
  extern "C" __global__ void __launch_bounds__(ALL_LANES, 2) sparse_figures_##NAME(                                  \
      double* figures, T* gradient, const T* theta, const T* of_rows, const Parts parts, const size_t n,             \
      const size_t n_weights, const double m, const Weighs weighs) {                                                 \
    if (blockIdx.x == 0) return sparse_figures(figures, parts, m, weighs);                                           \
    const size_t stride = (size_t)(gridDim.x - 1) * ALL_LANES;                                                       \
    for (size_t i = (size_t)(blockIdx.x - 1) * ALL_LANES + threadIdx.x; i < n; i += stride)                          \
      gradient[i] = i < n_weights ? (T)((double)of_rows[i] + weighs.decay * (double)theta[i]) : of_rows[i];          \
  }
SPARSE_FIGURES(f32, float)
SPARSE_FIGURES(f64, double)

extern "C" __global__ void __launch_bounds__(ALL_LANES, 2)
    sparse_figures_lines(double* figures, float* gradient, const float* theta, const float* weight, const float* decoder,
                         const float* bias, const float* visible_bias, const Parts parts, const size_t n_visible,
                         const size_t n_hidden, const size_t of_weight, const size_t of_decoder, const double m,
                         const Weighs weighs) {
  if (blockIdx.x == 0) return sparse_figures(figures, parts, m, weighs);
  const InLines<const float> of_rows{weight, decoder, bias, visible_bias, n_visible, n_hidden, of_weight, of_decoder};
  const auto take = [&](auto from, size_t number, unsigned count) {
    constexpr unsigned TOGETHER = 4;
    for (unsigned first = threadIdx.x; first < count; first += TOGETHER * ALL_LANES) {
      float x[TOGETHER], weight[TOGETHER];
#pragma unroll
      for (unsigned i = 0; i < TOGETHER; ++i) {
        const unsigned at = first + i * ALL_LANES;
        const float& entry = from.next();
        x[i] = at < count ? entry : 0.f, weight[i] = at < count ? theta[number + at] : 0.f;
      }
#pragma unroll
      for (unsigned i = 0; i < TOGETHER; ++i) {
        const unsigned at = first + i * ALL_LANES;
        if (at < count) gradient[number + at] = (float)((double)x[i] + weighs.decay * (double)weight[i]);
      }
    }
  };
  const auto take_bias = [gradient](const float& bias, size_t number) { gradient[number] = bias; };
  of_rows.segment<ALL_LANES>(blockIdx.x - 1, OF_GRADIENT, take, take_bias);
}
