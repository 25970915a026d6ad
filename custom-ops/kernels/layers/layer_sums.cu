// layer_sums.cu: a dense layer between products in bf16: bias and activation, or their way back,
// and the sums over rows, in one pass.
//
//   y = f(a[r, j] + bias[j])
//   forward    out[r, j] <- bf16(y)    sums[j] <- sum_r y
//   backward   out[r, j] <- bf16(d)    sums[j] <- sum_r d      d = (delta[r, j] + pull[j]) f'(y)
//
// arrays   out: [rows, n_units] bf16, a, delta: the same f32, in lines that begin out_line, a_line
//          and delta_line entries from each other; sums, bias, pull: [n_units] f32; not
//          overlapping; delta and pull null in the forward form
// scalars  rows >= 1, n_units >= 1, lines >= n_units
// launch   blocks of (units, 32), units at most 16: a thread takes every 32nd row of its unit; one
//          block for each so many units
// shared   2 KiB
// cost     reads 4 bytes per element, or 8, and writes 2; bandwidth-bound, with few units bound by
//          the arithmetic of exp in as many threads as 32 a unit
// NaN      propagates; gives a NaN in the sum of its unit
// same     the same bits as the CPU twin, by math.cuh; sums in the order of arrays/sums.cu
// truth    the ops layer_forward_ and layer_backward_biased_, and column_sums_ of what they give

#include "core/math.cuh"
#include "core/numbers.cuh"
#include "layers/activation.cuh"

constexpr unsigned UNITS = 16, LANES = 32;

template <Activation F, bool BACK>
__device__ __forceinline__ void layer_sums(__nv_bfloat16* __restrict__ out, float* __restrict__ sums, const float* __restrict__ a,
                                           const float* __restrict__ bias, const float* __restrict__ delta,
                                           const float* __restrict__ pull, size_t rows, size_t n_units, size_t out_line,
                                           size_t a_line, size_t delta_line) {
  __shared__ float lanes[LANES][UNITS];
  // Rows whose reads are in flight together.
  constexpr unsigned AHEAD = 8;
  const unsigned lane = threadIdx.y;
  const size_t unit = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  Rounded sum = 0.f;
  if (unit < n_units) {
    const Rounded b = bias[unit], s = BACK ? pull[unit] : 0.f;
    for (size_t first = lane; first < rows; first += AHEAD * LANES) {
      float x[AHEAD], d[AHEAD];
#pragma unroll
      for (unsigned i = 0; i < AHEAD; ++i) {
        const size_t r = first + i * LANES;
        x[i] = r < rows ? a[r * a_line + unit] : 0.f;
        if (BACK) d[i] = r < rows ? delta[r * delta_line + unit] : 0.f;
      }
#pragma unroll
      for (unsigned i = 0; i < AHEAD; ++i) {
        const size_t r = first + i * LANES;
        if (r >= rows) break;
        Rounded y = activate<F>(Rounded(x[i]) + b);
        if (BACK) y = through<F>(Rounded(d[i]) + s, y);
        sum = sum + y;
        out[r * out_line + unit] = narrow<__nv_bfloat16>(y.v);
      }
    }
  }
  lanes[lane][threadIdx.x] = sum.v;
  for (unsigned half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) lanes[lane][threadIdx.x] = __fadd_rn(lanes[lane][threadIdx.x], lanes[lane + half][threadIdx.x]);
  }
  if (lane == 0 && unit < n_units) sums[unit] = lanes[0][threadIdx.x];
}

#define LAYER_SUMS(NAME, F, BACK)                                                                                    \
  extern "C" __global__ void __launch_bounds__(UNITS* LANES) NAME(                                                   \
      __nv_bfloat16* out, float* sums, const float* a, const float* bias, const float* delta, const float* pull,     \
      const size_t rows, const size_t n_units, const size_t out_line, const size_t a_line, const size_t delta_line) { \
    layer_sums<F, BACK>(out, sums, a, bias, delta, pull, rows, n_units, out_line, a_line, delta_line);                \
  }
#define BOTH(NAME, F) LAYER_SUMS(layer_forward_sums_##NAME, F, false) LAYER_SUMS(layer_backward_sums_##NAME, F, true)
BOTH(identity, IDENTITY)
BOTH(sigmoid, SIGMOID)
BOTH(relu, RELU)
BOTH(tanh, TANH)
