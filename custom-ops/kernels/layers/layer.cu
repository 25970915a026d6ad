// layer.cu: bias, activation and dropout of a dense layer, forward and backward, in place, or from
// f32 products to what products in bf16 read.
//
//   layer_forward    out[e] <- m[e] * f(a[e] + bias[j])               e = r * n_units + j
//   layer_backward   delta[e] <- m[e] * (delta[e] + bias[j]) * f'(f(x))
//                    f(x) = a[e], or a[e] * (1 - rate) with dropout; without a bias 0
//   m[e] = u[e] < rate ? 0 : scale                                    scale = 1 / (1 - rate); 1
//                                                                     without dropout
//
// arrays   out, a, to, from: [n], n = rows * n_units, contiguous, not overlapping; bias: [n_units]
//          f32 or null; counter: [1] i64 or null. _f32: out is f32, a null and meant by out; to is
//          delta and from the outputs. _bf16: out is bf16 and a f32; to is the outputs, whose place
//          the rounded derivative takes, and from is delta
// scalars  n_units >= 1; rate in [0, 1), 0 draws nothing; seed, stream, offset: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes four elements (one block of Philox) and
//          strides over the grid. The result does not depend on the launch
// cost     forward reads and writes 4n bytes, backward reads 8n and writes 4n (bf16: 6n and 2n);
//          at the sizes of a minibatch launch-bound
// NaN      propagates, unless its element is dropped
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    layer_forward_reference and layer_backward_reference in src/layers/layer.rs

#include "core/math.cuh"
#include "core/numbers.cuh"
#include "core/philox.cuh"
#include "layers/activation.cuh"

// Whether threads may take four neighbours at once: all arrays begin on 16 bytes, and four
// neighbours are of one row.
__device__ __forceinline__ bool by_fours(const void* a, const void* b, const void* c, size_t n_units) {
  return ((size_t)a | (size_t)b | (size_t)c) % 16 == 0 && n_units % 4 == 0;
}

// Four numbers, or `count` of them.
template <typename T>
__device__ __forceinline__ void read_some(const T* from, int count, bool fours, float (&x)[4]) {
  if (fours) return load4(from, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < count ? wide(from[i]) : 0.f;
}
template <typename T>
__device__ __forceinline__ void write_some(T* to, int count, bool fours, const float (&x)[4]) {
  if (fours) return store4(to, x);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) to[i] = narrow<T>(x[i]);
}

template <Activation F, typename T>
__device__ void layer_forward(T* out, const float* a, const float* bias, size_t n, size_t n_units, float rate, float scale,
                              const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  const bool fours = by_fours(out, a, bias, n_units);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    const size_t e = 4 * g;
    const int count = n - e < 4 ? (int)(n - e) : 4;
    // A 64-bit remainder takes many times as long as a 32-bit one.
    size_t unit = n <= 0xffffffffu ? (unsigned)e % (unsigned)n_units : e % n_units;
    Rounded u[4];
    if (rate > 0.f) uniform_of(philox_block(philox, g), u);
    float of[4], of_bias[4] = {}, to[4];
    if (a) read_some(a + e, count, fours, of);
    else read_some(out + e, count, fours, of);
    if (bias && fours) load4(bias + unit, of_bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      Rounded x = of[i];
      if (bias) x = x + (fours ? of_bias[i] : bias[unit]);
      Rounded y = activate<F>(x);
      if (rate > 0.f) y = u[i] < rate ? Rounded(0.f) : y * scale;
      to[i] = y.v;
      unit = unit + 1 == n_units ? 0 : unit + 1;
    }
    write_some(out + e, count, fours, to);
  }
}

// The derivative takes the place of `to`: of the product that it is made of (f32), or of the
// outputs (bf16); `from` is the other of both.
template <Activation F, typename T>
__device__ void layer_backward(T* to, const float* from, const float* bias, size_t n, size_t n_units, float rate,
                               float scale, float keep, const Philox& philox) {
  constexpr bool IN_PLACE = std::is_same_v<T, float>;
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  const bool fours = by_fours(to, from, nullptr, n);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    const size_t e = 4 * g;
    const int count = n - e < 4 ? (int)(n - e) : 4;
    size_t unit = bias == nullptr ? 0 : n <= 0xffffffffu ? (unsigned)e % (unsigned)n_units : e % n_units;
    Rounded u[4];
    if (rate > 0.f) uniform_of(philox_block(philox, g), u);
    float of_to[4], of_from[4];
    read_some(to + e, count, fours, of_to);
    read_some(from + e, count, fours, of_from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) break;
      Rounded y = IN_PLACE ? of_from[i] : of_to[i], d = IN_PLACE ? of_to[i] : of_from[i];
      if (bias) {
        d = d + bias[unit];
        unit = unit + 1 == n_units ? 0 : unit + 1;
      }
      if (rate > 0.f) {
        y = y * keep;
        d = u[i] < rate ? Rounded(0.f) : d * scale;
      }
      of_to[i] = through<F>(d, y).v;
    }
    write_some(to + e, count, fours, of_to);
  }
}

#define LAYER(NAME, F, T)                                                                                           \
  extern "C" __global__ void layer_forward_##NAME(                                                                  \
      T* out, const float* a, const float* bias, const size_t n, const size_t n_units, const float rate,            \
      const float scale, const unsigned long long seed, const unsigned long long stream,                            \
      const unsigned long long offset, const long long* counter) {                                                  \
    layer_forward<F>(out, a, bias, n, n_units, rate, scale, philox_at(seed, stream, offset, counter));               \
  }                                                                                                                 \
  extern "C" __global__ void layer_backward_##NAME(                                                                 \
      T* to, const float* from, const float* bias, const size_t n, const size_t n_units, const float rate,          \
      const float scale, const float keep, const unsigned long long seed, const unsigned long long stream,          \
      const unsigned long long offset, const long long* counter) {                                                  \
    layer_backward<F>(to, from, bias, n, n_units, rate, scale, keep, philox_at(seed, stream, offset, counter));      \
  }
#define LAYERS(NAME, F) LAYER(NAME##_f32, F, float) LAYER(NAME##_bf16, F, __nv_bfloat16)
LAYERS(identity, IDENTITY)
LAYERS(sigmoid, SIGMOID)
LAYERS(relu, RELU)
LAYERS(tanh, TANH)
