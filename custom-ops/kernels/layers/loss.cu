// loss.cu: the loss of a network: replaces the product of the output layer by the derivative of the
// loss with respect to it.
//
//   x = pre[r, j] + bias[j]
//   softmax_loss   p = exp(x - max) / sum exp(x - max);   pre <- (p - [j == label]) / batch
//                  gathered[0, r] += ln sum exp(x - max) + max - x[label];   gathered[1, r] +=
//                                                                            argmax == label
//   output_loss    y = f(x), d = y - target;   gathered[1, r] += sum_j d^2
//     squared error   pre <- d f'(x) / batch;    gathered[0, r] += sum_j d^2 / 2
//     cross-entropy   pre <- d / batch, f the sigmoid;   gathered[0, r] += sum_j softplus(x) - target x
//
// arrays   pre: [batch, n] f32; of output_loss_*_bf16 read alone, where out [batch, n] bf16 takes
//          the rounded derivative, both in lines that begin pre_line and out_line entries from each
//          other; of output_loss_*_f32 null and meant by out; bias: [n] f32; target: [batch, n] f32;
//          labels: [batch] u32; gathered: [2, batch] f64, a place for each row, so that no two
//          blocks write to one; contiguous, not overlapping
// scalars  batch >= 1, n >= 1; inverse: 1 / batch; lines >= n
// launch   softmax_loss: blocks of 128 threads, one warp per row. output_loss: one block of 128
//          threads per row
// shared   output_loss 1 KiB
// cost     reads 4 or 8 bytes per element and writes 4, or 2; launch-bound at the sizes of a
//          minibatch
// NaN      in a row makes its loss NaN, and so does a label that is not below n; other rows are not
//          affected
// same     the same bits as the CPU twin: sums over a row run in lanes that stride by 32
//          (softmax_loss) or 128, added in halves
// truth    softmax_loss_reference and output_loss_reference in src/layers/loss.rs

#include "core/math.cuh"
#include "core/numbers.cuh"
#include "layers/activation.cuh"

constexpr unsigned WARP = 32, THREADS = 128;

// The sum over a warp in halves; the result is in lane 0.
__device__ __forceinline__ Rounded warp_sum(Rounded x) {
#pragma unroll
  for (unsigned half = WARP / 2; half > 0; half /= 2) x = x + Rounded(__shfl_down_sync(~0u, x.v, half));
  return x;
}

extern "C" __global__ void softmax_loss_f32(float* pre, const float* bias, const unsigned* labels, double* gathered,
                                            const unsigned batch, const unsigned n, const float inverse) {
  const unsigned lane = threadIdx.x % WARP;
  const unsigned row = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
  if (row >= batch) return;  // whole warps leave together
  float* x = pre + (size_t)row * n;

  float best = -INFINITY;
  unsigned at = n;
  for (unsigned j = lane; j < n; j += WARP) {
    const Rounded v = Rounded(x[j]) + bias[j];
    x[j] = v.v;
    if (v.v > best) best = v.v, at = j;
  }
  // Of equals the lowest: every lane ends with the same pair.
#pragma unroll
  for (unsigned mask = WARP / 2; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(~0u, best, mask);
    const unsigned other_at = __shfl_xor_sync(~0u, at, mask);
    if (other > best || (other == best && other_at < at)) best = other, at = other_at;
  }
  Rounded sum = 0.f;
  for (unsigned j = lane; j < n; j += WARP) sum = sum + exact_exp(Rounded(x[j]) - best);
  sum = __shfl_sync(~0u, warp_sum(sum).v, 0);

  const unsigned label = labels[row];
  const bool sound = label < n && sum.v >= 1.f;
  // Read by all lanes before any writes.
  const Rounded of_label = sound ? x[label] : NAN;
  __syncwarp();
  for (unsigned j = lane; j < n; j += WARP) {
    const Rounded p = exact_exp(Rounded(x[j]) - best) / sum;
    const Rounded d = (p - (j == label ? 1.f : 0.f)) * inverse;
    x[j] = sound ? d.v : NAN;
  }
  if (lane == 0) {
    const Rounded loss = sound ? (exact_ln_normal(sum) + best) - of_label : Rounded(NAN);
    gathered[row] = gathered[row] + (double)loss.v;
    gathered[batch + row] = gathered[batch + row] + (at == label ? 1. : 0.);
  }
}

// The derivative takes the place of the product where both are f32 (`pre` is null), else it is
// rounded.
template <Activation F, bool CROSS, typename T>
__device__ void output_loss(T* out, const float* pre, const float* bias, const float* target, double* gathered, unsigned batch,
                            unsigned n, float inverse, size_t out_line, size_t pre_line) {
  __shared__ float losses[THREADS], squares[THREADS];
  // Entries of a lane whose reads are in flight together.
  constexpr unsigned AHEAD = 4;
  const unsigned row = blockIdx.x, lane = threadIdx.x;
  T* to = out + (size_t)row * out_line;
  const float* x;
  if constexpr (std::is_same_v<T, float>) x = to;
  else x = pre + (size_t)row * pre_line;
  const float* t = target + (size_t)row * n;
  Rounded loss = 0.f, square = 0.f;
  for (unsigned first = lane; first < n; first += AHEAD * THREADS) {
    float of_x[AHEAD], of_bias[AHEAD], of_target[AHEAD];
#pragma unroll
    for (unsigned i = 0; i < AHEAD; ++i) {
      const unsigned j = first + i * THREADS;
      of_x[i] = j < n ? x[j] : 0.f;
      of_bias[i] = j < n ? bias[j] : 0.f;
      of_target[i] = j < n ? t[j] : 0.f;
    }
#pragma unroll
    for (unsigned i = 0; i < AHEAD; ++i) {
      const unsigned j = first + i * THREADS;
      if (j >= n) break;
      const Rounded v = Rounded(of_x[i]) + of_bias[i];
      const Rounded y = activate<F>(v);
      const Rounded d = y - of_target[i];
      square = square + d * d;
      if (CROSS) loss = loss + (exact_softplus(v) - Rounded(of_target[i]) * v);
      to[j] = narrow<T>(((CROSS ? d : through<F>(d, y)) * inverse).v);
    }
  }
  losses[lane] = loss.v;
  squares[lane] = square.v;
  for (unsigned half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
      losses[lane] = (Rounded(losses[lane]) + losses[lane + half]).v;
      squares[lane] = (Rounded(squares[lane]) + squares[lane + half]).v;
    }
  }
  if (lane == 0) {
    const double square = squares[0];
    gathered[row] = gathered[row] + (CROSS ? (double)losses[0] : 0.5 * square);
    gathered[batch + row] = gathered[batch + row] + square;
  }
}

#define OUTPUT_LOSS(NAME, F, CROSS, T)                                                                               \
  extern "C" __global__ void output_loss_##NAME(T* out, const float* pre, const float* bias, const float* target,    \
                                                double* gathered, const unsigned batch, const unsigned n,            \
                                                const float inverse, const size_t out_line, const size_t pre_line) { \
    output_loss<F, CROSS>(out, pre, bias, target, gathered, batch, n, inverse, out_line, pre_line);                   \
  }
#define OUTPUT_LOSSES(NAME, F, CROSS) \
  OUTPUT_LOSS(NAME##_f32, F, CROSS, float) OUTPUT_LOSS(NAME##_bf16, F, CROSS, __nv_bfloat16)
OUTPUT_LOSSES(identity, IDENTITY, false)
OUTPUT_LOSSES(sigmoid, SIGMOID, false)
OUTPUT_LOSSES(relu, RELU, false)
OUTPUT_LOSSES(tanh, TANH, false)
OUTPUT_LOSSES(cross_entropy, SIGMOID, true)
