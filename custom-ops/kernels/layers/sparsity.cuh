// sparsity.cuh: what a sparse autoencoder weighs, and the terms of its mean activations. The same
// formulas as those of SparseCost in src/layers/sparse_cost/mod.rs; always change both files.
#pragma once

// A mean activation, or what it lacks of 1, below this counts as this, and its term has no slope.
constexpr double LEAST_ACTIVATION = 1e-30;

struct Weighs {
  double decay, weight, target;  // lambda, beta, rho
};

// What KL takes of a mean activation, or of what it lacks of 1; NaN stays NaN.
__device__ __forceinline__ double bounded(double mean) { return mean < LEAST_ACTIVATION ? LEAST_ACTIVATION : mean; }

// The slope of -share log(bounded(mean)), turned.
__device__ __forceinline__ double slope(double share, double mean) { return mean < LEAST_ACTIVATION ? 0. : share / mean; }

// KL(rho || mean)
__device__ __forceinline__ double divergence_of(double mean, const Weighs& weighs) {
  const double rho = weighs.target;
  return rho * log(rho / bounded(mean)) + (1. - rho) * log((1. - rho) / bounded(1. - mean));
}

// s of a feature: the derivative of beta KL.
__device__ __forceinline__ double pull_of(double mean, const Weighs& weighs) {
  const double rho = weighs.target;
  return weighs.weight * (slope(1. - rho, 1. - mean) - slope(rho, mean));
}

// J, from 1/m sum 1/2 (H - X)^2, sum W^2 + sum W'^2 and sum KL.
__device__ __forceinline__ double value_of(double errors, double weights, double divergence, const Weighs& weighs) {
  return errors + 0.5 * weighs.decay * weights + weighs.weight * divergence;
}
