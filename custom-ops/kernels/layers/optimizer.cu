// optimizer.cu: optimizer steps over all parameters of a network in one launch.
//
//   adam   m <- b1 m + c1 g;  v <- b2 v + c2 g^2                     c1 = 1 - b1, c2 = 1 - b2
//          w <- (1 - rate * decay) w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
//   sgd    v <- momentum * v - rate * (g + decay * w);  w <- w + v
//
// arrays   state: [4, n] f32, planes w, g, m, v (adam) or [3, n], planes w, g, v (sgd). scalars:
//          [2] f32, rate and momentum. steps: [1] i64, steps made before, so t = steps + 1
// scalars  the rule; n >= 1; decayed <= n: parameters from there on (biases) do not decay
// launch   1-D grid of 1-D blocks of at least one thread: the loop strides over the grid
// cost     adam reads 16 and writes 12 bytes per parameter, sgd 12 and 8; bandwidth-bound
// NaN      propagates
// same     the same bits as the CPU twin
// truth    adam_step_reference and sgd_step_reference in src/layers/optimizer.rs

#include "layers/adam.cuh"

extern "C" __global__ void adam_step_f32(float* state, const float* scalars, const long long* steps,
                                         const AdamRule rule, const size_t n, const size_t decayed) {
  __shared__ float scales[2];
  if (threadIdx.x == 0) adam_scales(rule, *steps, scales);
  __syncthreads();
  const AdamAt at(rule, scalars[0], scales);
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
    state[i] = at.step(state[i], state[n + i], state[2 * n + i], state[3 * n + i], i < decayed);
}

extern "C" __global__ void sgd_step_f32(float* state, const float* scalars, const float decay, const size_t n,
                                        const size_t decayed) {
  const Rounded rate = scalars[0], momentum = scalars[1];
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const Rounded w = state[i];
    Rounded g = state[n + i];
    if (i < decayed) g = g + Rounded(decay) * w;
    const Rounded v = momentum * state[2 * n + i] - rate * g;
    state[2 * n + i] = v.v;
    state[i] = (w + v).v;
  }
}
