// layer.cu: bias, activation and dropout of a dense layer, forward and backward, in place.
//
//   layer_forward    a[e] <- m[e] * f(a[e] + bias[j])                 e = r * n_units + j
//   layer_backward   delta[e] <- m[e] * delta[e] * f'(f(x))           f(x) = a[e], or a[e] * (1 - rate) with dropout
//   m[e] = u[e] < rate ? 0 : scale                                    scale = 1 / (1 - rate); 1
//                                                                     without dropout
//
// arrays   a, delta: [n] f32, n = rows * n_units, contiguous, not overlapping; bias: [n_units] f32
//          or null; counter: [1] i64 or null
// scalars  n_units >= 1; rate in [0, 1), 0 draws nothing; seed, stream, offset: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes four elements (one block of Philox) and
//          strides over the grid. The result does not depend on the launch
// cost     forward reads and writes 4n bytes, backward reads 8n and writes 4n; at the sizes of a
//          minibatch launch-bound
// NaN      propagates, unless its element is dropped
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    layer_forward_reference and layer_backward_reference in src/layers/layer.rs

#include "core/math.cuh"
#include "core/philox.cuh"
#include "layers/activation.cuh"

template <Activation F>
__device__ void layer_forward(float* a, const float* bias, size_t n, size_t n_units, float rate, float scale,
                              const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    const size_t e = 4 * g;
    const int count = n - e < 4 ? (int)(n - e) : 4;
    // A 64-bit remainder takes many times as long as a 32-bit one.
    size_t unit = n <= 0xffffffffu ? (unsigned)e % (unsigned)n_units : e % n_units;
    Rounded u[4];
    if (rate > 0.f) uniform_of(philox_block(philox, g), u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      Rounded x = a[e + i];
      if (bias) x = x + bias[unit];
      Rounded y = activate<F>(x);
      if (rate > 0.f) y = u[i] < rate ? Rounded(0.f) : y * scale;
      a[e + i] = y.v;
      unit = unit + 1 == n_units ? 0 : unit + 1;
    }
  }
}

template <Activation F>
__device__ void layer_backward(float* delta, const float* a, size_t n, float rate, float scale, float keep,
                               const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    const size_t e = 4 * g;
    const int count = n - e < 4 ? (int)(n - e) : 4;
    Rounded u[4];
    if (rate > 0.f) uniform_of(philox_block(philox, g), u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      Rounded y = a[e + i], d = delta[e + i];
      if (rate > 0.f) {
        y = y * keep;
        d = u[i] < rate ? Rounded(0.f) : d * scale;
      }
      delta[e + i] = through<F>(d, y).v;
    }
  }
}

#define LAYER(NAME, F)                                                                                              \
  extern "C" __global__ void layer_forward_##NAME(                                                                  \
      float* a, const float* bias, const size_t n, const size_t n_units, const float rate, const float scale,       \
      const unsigned long long seed, const unsigned long long stream, const unsigned long long offset,              \
      const long long* counter) {                                                                                   \
    layer_forward<F>(a, bias, n, n_units, rate, scale, philox_at(seed, stream, offset, counter));                    \
  }                                                                                                                 \
  extern "C" __global__ void layer_backward_##NAME(                                                                 \
      float* delta, const float* a, const size_t n, const float rate, const float scale, const float keep,          \
      const unsigned long long seed, const unsigned long long stream, const unsigned long long offset,              \
      const long long* counter) {                                                                                   \
    layer_backward<F>(delta, a, n, rate, scale, keep, philox_at(seed, stream, offset, counter));                     \
  }
LAYER(identity, IDENTITY)
LAYER(sigmoid, SIGMOID)
LAYER(relu, RELU)
LAYER(tanh, TANH)
