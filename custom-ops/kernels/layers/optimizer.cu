// optimizer.cu: optimizer steps over all parameters of a network in one launch.
//
//   adam   m <- b1 m + c1 g;  v <- b2 v + c2 g^2                     c1 = 1 - b1, c2 = 1 - b2
//          w <- (1 - rate * decay) w - rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
//   sgd    v <- momentum * v - rate * (g + decay * w);  w <- w + v
//
// arrays   state: [4, n] f32, planes w, g, m, v (adam) or [3, n], planes w, g, v (sgd). copy: [copied]
//          bf16, the first parameters rounded, or null with copied = 0. scalars:
//          [2] f32, rate and momentum. steps: [1] i64, steps made before, so t = steps + 1
// scalars  the rule; n >= 1; first < end <= n: parameters that adam steps; decayed <= n: parameters
//          from there on (biases) do not decay
// launch   1-D grid of 1-D blocks of at least one thread: the loop strides over the grid
// cost     adam reads 16 and writes 12 bytes per parameter, sgd 12 and 8, and 2 for the copy;
//          bandwidth-bound
// NaN      propagates
// same     the same bits as the CPU twin
// truth    adam_step_reference and sgd_step_reference in src/layers/optimizer.rs

#include "core/numbers.cuh"
#include "layers/adam.cuh"

extern "C" __global__ void adam_step_f32(float* state, __nv_bfloat16* copy, const float* scalars, const long long* steps,
                                         const AdamRule rule, const size_t n, const size_t first, const size_t end,
                                         const size_t decayed, const size_t copied) {
  __shared__ float scales[2];
  if (threadIdx.x == 0) adam_scales(rule, *steps, scales);
  __syncthreads();
  const AdamAt at(rule, scalars[0], scales);
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = first + (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < end; i += stride) {
    const float w = at.step(state[i], state[n + i], state[2 * n + i], state[3 * n + i], i < decayed);
    state[i] = w;
    if (i < copied) copy[i] = narrow<__nv_bfloat16>(w);
  }
}

extern "C" __global__ void sgd_step_f32(float* state, __nv_bfloat16* copy, const float* scalars, const float decay,
                                        const size_t n, const size_t decayed, const size_t copied) {
  const Rounded rate = scalars[0], momentum = scalars[1];
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const Rounded w = state[i];
    Rounded g = state[n + i];
    if (i < decayed) g = g + Rounded(decay) * w;
    const Rounded v = momentum * state[2 * n + i] - rate * g;
    state[2 * n + i] = v.v;
    state[i] = (w + v).v;
    if (i < copied) copy[i] = narrow<__nv_bfloat16>(state[i]);
  }
}
