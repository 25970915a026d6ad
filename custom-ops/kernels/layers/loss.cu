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
// arrays   pre: [batch, n] f32; bias: [n] f32; target: [batch, n] f32; labels: [batch] u32;
//          gathered: [2, batch] f64, a place for each row, so that no two blocks write to one;
//          contiguous, not overlapping
// scalars  batch >= 1, n >= 1; inverse: 1 / batch
// launch   softmax_loss: blocks of 128 threads, one warp per row. output_loss: one block of 128
//          threads per row
// shared   output_loss 1 KiB
// cost     reads 4 or 8 bytes per element and writes 4; launch-bound at the sizes of a minibatch
// NaN      in a row makes its loss NaN, and so does a label that is not below n; other rows are not
//          affected
// same     the same bits as the CPU twin: sums over a row run in lanes that stride by 32
//          (softmax_loss) or 128, added in halves
// truth    softmax_loss_reference and output_loss_reference in src/layers/loss.rs

#include "core/math.cuh"
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

template <Activation F, bool CROSS>
__device__ void output_loss(float* pre, const float* bias, const float* target, double* gathered, unsigned batch,
                            unsigned n, float inverse) {
  __shared__ float losses[THREADS], squares[THREADS];
  const unsigned row = blockIdx.x, lane = threadIdx.x;
  float* x = pre + (size_t)row * n;
  const float* t = target + (size_t)row * n;
  Rounded loss = 0.f, square = 0.f;
  for (unsigned j = lane; j < n; j += THREADS) {
    const Rounded v = Rounded(x[j]) + bias[j];
    const Rounded y = activate<F>(v);
    const Rounded d = y - t[j];
    square = square + d * d;
    if (CROSS) loss = loss + (exact_softplus(v) - Rounded(t[j]) * v);
    x[j] = ((CROSS ? d : through<F>(d, y)) * inverse).v;
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

#define OUTPUT_LOSS(NAME, F, CROSS)                                                                                 \
  extern "C" __global__ void output_loss_##NAME(float* pre, const float* bias, const float* target,                 \
                                                double* gathered, const unsigned batch, const unsigned n,           \
                                                const float inverse) {                                              \
    output_loss<F, CROSS>(pre, bias, target, gathered, batch, n, inverse);                                          \
  }
OUTPUT_LOSS(identity, IDENTITY, false)
OUTPUT_LOSS(sigmoid, SIGMOID, false)
OUTPUT_LOSS(relu, RELU, false)
OUTPUT_LOSS(tanh, TANH, false)
OUTPUT_LOSS(cross_entropy, SIGMOID, true)
