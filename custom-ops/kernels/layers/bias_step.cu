// bias_step.cu: the update of biases from the states of both phases of contrastive learning.
//
//   g = (sum_r pos[r] + sign * sum_r neg[r]) / batch + cost * (target - q)
//   v <- momentum * v + rate * scale * g;  b <- b + v
//   q <- decay * q + (1 - decay) * sum_r pos[r] / batch    hidden units with a sparsity target
//   e <- e + sum_r (pos[r] - neg[r])^2                     visible units: squared error so far
//
// arrays   state: [4, units] f32, planes b, v, q or e, and the rounding error of e. planes: [2,
//          batch, units] f32 or bf16, plane 0 neg, plane 1 pos. scalars: [3] f32 on the device:
//          rate / batch, momentum, rate. scale: [units] f32 or null
// scalars  BiasRule; sign is 1 if neg already carries the minus sign, else -1
// launch   bias_step: 1-D, a block of 512 threads for each 32 units: 16 lanes, of which each takes
//          every 16th row. For more than 4096 rows bias_sums, a grid of [units / 32, stretches]
//          such blocks, writes the sums of a stretch of 4096 rows to sums: [stretches, 3, units]
//          f32 (pos, neg, squared differences), and bias_step_of_sums, a thread for each unit, adds
//          them from first to last
// shared   2 KiB
// cost     reads planes once
// NaN      propagates
// same     the same bits as the CPU twin, by bias.cuh
// truth    bias_step_reference in src/layers/bias_step.rs

#include "layers/bias.cuh"

constexpr int THREADS = 512;
constexpr unsigned STRETCH = 4096;

template <typename T>
__device__ void bias_step(float* state, const T* planes, const float* scalars, const float* scale,
                          const BiasRule& rule, unsigned batch, unsigned units) {
  __shared__ float sums[BIAS_FLOATS];
  step_biases<THREADS, 1>(state, planes, 0, scalars, scale, rule, batch, units, blockIdx.x * BIAS_UNITS, sums);
}

extern "C" __global__ void bias_step_f32(float* state, const float* planes, const float* scalars,
                                         const float* scale, const BiasRule rule,
                                         const unsigned batch, const unsigned units) {
  bias_step(state, planes, scalars, scale, rule, batch, units);
}

extern "C" __global__ void bias_step_bf16(float* state, const __nv_bfloat16* planes, const float* scalars,
                                          const float* scale, const BiasRule rule,
                                          const unsigned batch, const unsigned units) {
  bias_step(state, planes, scalars, scale, rule, batch, units);
}

template <typename T>
__device__ void bias_sums(float* sums, const T* planes, unsigned batch, unsigned units) {
  __shared__ float memory[BIAS_FLOATS];
  const unsigned start = blockIdx.y * STRETCH, first = blockIdx.x * BIAS_UNITS;
  const unsigned rows = batch - start < STRETCH ? batch - start : STRETCH;
  float of[3];
  sum_biases<THREADS, 1, BIAS_UNITS>(planes + (size_t)start * units, (size_t)batch * units, 0, rows, units, first, true, memory, of);
  const unsigned unit = first + threadIdx.x;
  if (threadIdx.x < BIAS_UNITS && unit < units)
#pragma unroll
    for (int kind = 0; kind < 3; ++kind) sums[((size_t)blockIdx.y * 3 + kind) * units + unit] = of[kind];
}

extern "C" __global__ void bias_sums_f32(float* sums, const float* planes, const unsigned batch, const unsigned units) {
  bias_sums(sums, planes, batch, units);
}

extern "C" __global__ void bias_sums_bf16(float* sums, const __nv_bfloat16* planes, const unsigned batch,
                                          const unsigned units) {
  bias_sums(sums, planes, batch, units);
}

extern "C" __global__ void bias_step_of_sums(float* state, const float* sums, const float* scalars, const float* scale,
                                             const BiasRule rule, const unsigned batch, const unsigned units,
                                             const unsigned stretches) {
  const unsigned unit = blockIdx.x * blockDim.x + threadIdx.x;
  if (unit >= units) return;
  float of[3] = {0.f, 0.f, 0.f};
#pragma unroll 4
  for (unsigned s = 0; s < stretches; ++s)
#pragma unroll
    for (int kind = 0; kind < 3; ++kind) of[kind] = of[kind] + sums[((size_t)s * 3 + kind) * units + unit];
  step_bias(state, of, scalars, scale, rule, batch, units, unit);
}
