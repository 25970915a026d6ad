// bias_step.cu: the update of biases from the states of both phases of contrastive learning.
//
//   g = (sum_r pos[r] + sign * sum_r neg[r]) / batch + cost * (target - q)
//   v <- momentum * v + rate * scale * g;  b <- b + v
//   q <- decay * q + (1 - decay) * sum_r pos[r] / batch    hidden units with a sparsity target
//   e <- e + sum_r (pos[r] - neg[r])^2                     visible units: squared error so far
//
// arrays   state: [4, units] f32, planes b, v, q or e, and the rounding error of e. planes:
//          [2, batch, units] f32 or bf16, plane 0 neg, plane 1 pos. scalars: [3] f32 on the device: rate / batch,
//          momentum, rate. scale: [units] f32 or null
// scalars  BiasRule; sign is 1 if neg already carries the minus sign, else -1
// launch   1-D: a block of 512 threads for each 32 units: 16 lanes, of which each takes every 16th row
// shared   6 KiB
// cost     reads planes once
// NaN      propagates
// same     the same bits as the CPU twin, by bias.cuh
// truth    bias_step_reference in src/bias_step.rs

#include "bias.cuh"

constexpr int THREADS = 512;

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
