// activation.cuh: the activations of dense layers, with the same bits as src/layers/activation.rs,
// which has their formulas and sources. Each line has the same operations in the same order there;
// always change both files. Needs math.cuh.
#pragma once

enum Activation { IDENTITY, SIGMOID, RELU, TANH };

__device__ __forceinline__ Rounded exact_tanh(Rounded x) {
  const Rounded z = x * x;
  Rounded p = Rounded(-5.70498872745e-3f) * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Rounded near = p * z * x + x;
  const Rounded e = exact_exp(Rounded(2.f) * minus_abs(x));
  const Rounded size = (Rounded(1.f) - e) / (Rounded(1.f) + e);
  const Rounded far = of_bits(bits_of(size) | (bits_of(x) & 0x80000000u));
  return fabsf(x.v) < 0.625f ? near : far;
}

template <Activation F>
__device__ __forceinline__ Rounded activate(Rounded x) {
  if (F == SIGMOID) return exact_sigmoid(x);
  if (F == RELU) return x.v <= 0.f ? Rounded(0.f) : x;
  if (F == TANH) return exact_tanh(x);
  return x;
}

// delta * f'(x), where y = f(x).
template <Activation F>
__device__ __forceinline__ Rounded through(Rounded delta, Rounded y) {
  if (F == SIGMOID) return delta * (y * (Rounded(1.f) - y));
  if (F == RELU) return y.v <= 0.f ? Rounded(0.f) : delta;
  if (F == TANH) return delta * (Rounded(1.f) - y * y);
  return delta;
}
