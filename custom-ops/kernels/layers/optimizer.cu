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
// same     the same bits as the CPU twin: the powers are formed by squaring in f64, the rest is f32
// truth    adam_step_reference and sgd_step_reference in src/layers/optimizer.rs

#include "core/math.cuh"

struct AdamRule {
  double beta1, beta2;
  float b1, c1, b2, c2, epsilon, decay;
};

// base^t for t >= 1, by squaring.
__device__ double power(double base, long long t) {
  double result = 1.;
  for (; t > 0; t >>= 1) {
    if (t & 1) result = __dmul_rn(result, base);
    base = __dmul_rn(base, base);
  }
  return result;
}

extern "C" __global__ void adam_step_f32(float* state, const float* scalars, const long long* steps,
                                         const AdamRule rule, const size_t n, const size_t decayed) {
  __shared__ float scales[2];
  if (threadIdx.x == 0) {
    scales[0] = (float)(1. / (1. - power(rule.beta1, *steps + 1)));
    scales[1] = (float)(1. / (1. - power(rule.beta2, *steps + 1)));
  }
  __syncthreads();
  const Rounded rate = scalars[0], m_scale = scales[0], v_scale = scales[1];
  const Rounded b1 = rule.b1, c1 = rule.c1, b2 = rule.b2, c2 = rule.c2;
  const Rounded kept = Rounded(1.f) - rate * rule.decay;
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const Rounded g = state[n + i];
    const Rounded m = b1 * state[2 * n + i] + c1 * g;
    const Rounded v = b2 * state[3 * n + i] + c2 * (g * g);
    state[2 * n + i] = m.v;
    state[3 * n + i] = v.v;
    Rounded w = state[i];
    if (i < decayed) w = w * kept;
    state[i] = (w - rate * ((m * m_scale) / (root(v * v_scale) + rule.epsilon))).v;
  }
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
