// adam.cuh: the rule of Adam for one parameter; the formulas are in optimizer.cu. The same bits as
// src/core/adam.rs, but for `step_near`: the powers are formed by squaring in f64, the rest is f32.
#pragma once

#include "core/math.cuh"

struct AdamRule {
  double beta1, beta2;
  float b1, c1, b2, c2, epsilon, decay;
};

// base^t for t >= 1, by squaring.
__device__ inline double power(double base, long long t) {
  double result = 1.;
  for (; t > 0; t >>= 1) {
    if (t & 1) result = __dmul_rn(result, base);
    base = __dmul_rn(base, base);
  }
  return result;
}

// 1 / (1 - b^t) of both moments, for the step after `steps` others.
__device__ __forceinline__ void adam_scales(const AdamRule& rule, long long steps, float* scales) {
  scales[0] = (float)(1. / (1. - power(rule.beta1, steps + 1)));
  scales[1] = (float)(1. / (1. - power(rule.beta2, steps + 1)));
}

struct AdamAt {
  Rounded b1, c1, b2, c2, epsilon, rate, kept, m_scale, v_scale;

  __device__ __forceinline__ AdamAt(const AdamRule& rule, float rate, const float* scales)
      : b1(rule.b1), c1(rule.c1), b2(rule.b2), c2(rule.c2), epsilon(rule.epsilon), rate(rate),
        kept(Rounded(1.f) - Rounded(rate) * rule.decay), m_scale(scales[0]), v_scale(scales[1]) {}

  // The parameter after a step along g; moves its moments.
  __device__ __forceinline__ float step(float parameter, float gradient, float& mean, float& square, bool decays) const {
    const Rounded g = gradient;
    const Rounded m = b1 * mean + c1 * g;
    const Rounded v = b2 * square + c2 * (g * g);
    mean = m.v, square = v.v;
    Rounded w = parameter;
    if (decays) w = w * kept;
    return (w - rate * ((m * m_scale) / (root(v * v_scale) + epsilon))).v;
  }
  // The same to some units in the last place, in a third of the instructions.
  __device__ __forceinline__ float step_near(float parameter, float g, float& mean, float& square, bool decays) const {
    mean = fmaf(b1.v, mean, c1.v * g), square = fmaf(b2.v, square, c2.v * (g * g));
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(square * v_scale.v));
    const float kept_of = decays ? parameter * kept.v : parameter;
    return fmaf(-rate.v * m_scale.v, __fdividef(mean, root + epsilon.v), kept_of);
  }
};
