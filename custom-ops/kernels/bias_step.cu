// bias_step.cu: biases follow the states of both phases of contrastive learning.
//
//   g = (sum_r pos[r] + sign * sum_r neg[r]) / batch + cost * (target - q)
//   v <- momentum * v + rate * scale * g;  b <- b + v
//   q <- decay * q + (1 - decay) * sum_r pos[r] / batch    hidden units with a sparsity target
//   e <- e + sum_r (pos[r] - neg[r])^2                     visible units: squared error so far
//
// arrays   state: [4, units] f32, planes b, v, q or e, and the part of e that rounding lost. planes:
//          [2, batch, units] f32 or bf16, plane 0 neg, plane 1 pos. scalars: [3] f32 on the device: rate / batch,
//          momentum, rate. scale: [units] f32 or null
// scalars  BiasRule; sign is 1 where neg already carries the minus, else -1
// launch   blocks of (32, 16): 32 units, 16 lanes that take every 16th row
// shared   6 KiB
// cost     reads planes once
// NaN      spreads: nothing here hides it
// same     bits as the CPU twin, without -ffast-math and with -fmad=false: sums run in the order row lane, then a
//          tree over the 16 lanes
// truth    bias_step_reference in src/bias_step.rs

#include <cuda_bf16.h>

__device__ float wide(float x) { return x; }
__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }

struct BiasRule {
  float sign;      // of the sums over neg
  float target;    // mean activation wanted
  float cost;      // 0: no sparsity
  float decay;     // of the running mean activation
  unsigned error;  // 1: gather the squared error in planes 2 and 3
};

constexpr unsigned UNITS = 32, LANES = 16;

template <typename T>
__device__ void bias_step(float* state, const T* planes, const float* scalars, const float* scale,
                          const BiasRule rule, unsigned batch, unsigned units) {
  __shared__ float pos_sum[LANES][UNITS], neg_sum[LANES][UNITS], err_sum[LANES][UNITS];
  const unsigned x = threadIdx.x, y = threadIdx.y;
  const unsigned unit = blockIdx.x * UNITS + x;
  float pos = 0.f, neg = 0.f, err = 0.f;
  if (unit < units) {
    const T* of_neg = planes + unit;
    const T* of_pos = of_neg + (size_t)batch * units;
    for (unsigned r = y; r < batch; r += LANES) {
      const float p = wide(of_pos[(size_t)r * units]), q = wide(of_neg[(size_t)r * units]);
      pos = pos + p;
      neg = neg + q;
      err = err + (p - q) * (p - q);
    }
  }
  pos_sum[y][x] = pos;
  neg_sum[y][x] = neg;
  err_sum[y][x] = err;
  for (unsigned half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y < half) {
      pos_sum[y][x] = pos_sum[y][x] + pos_sum[y + half][x];
      neg_sum[y][x] = neg_sum[y][x] + neg_sum[y + half][x];
      err_sum[y][x] = err_sum[y][x] + err_sum[y + half][x];
    }
  }
  if (y != 0 || unit >= units) return;  // row 0 wrote and reads its own column: no barrier is needed

  float* bias = state + unit;
  float* velocity = bias + units;
  float* third = velocity + units;
  float* fourth = third + units;
  const float momentum = scalars[1], rate = scalars[2];
  float g = (pos_sum[0][x] + rule.sign * neg_sum[0][x]) / (float)batch;
  if (rule.cost != 0.f) {
    const float q = rule.decay * *third + (1.f - rule.decay) * (pos_sum[0][x] / (float)batch);
    *third = q;
    g = g + rule.cost * (rule.target - q);
  }
  if (scale) g = g * scale[unit];
  const float v = momentum * *velocity + rate * g;
  *velocity = v;
  *bias = *bias + v;
  if (rule.error) {  // two-sum: what the addition rounds away goes to the fourth plane
    const float a = *third, b = err_sum[0][x];
    const float s = a + b, bb = s - a;
    *fourth = *fourth + ((a - (s - bb)) + (b - bb));
    *third = s;
  }
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
