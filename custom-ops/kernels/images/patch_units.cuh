// patch_units.cuh: what patch_units.cu and sm_90a/patch_units.cu take, and what they do with the
// sums of a product with the weights of patches: units(scale * x + bias).
#pragma once

#include "core/patches.cuh"
#include "layers/units.cuh"

constexpr int CHUNK = 8;

// Not a unit: scale * x as it is, f32 from the beginning of `out` on, without biases or draws.
constexpr unsigned SUMS = 3;

struct Numbers {
  unsigned long long x_part, w_part, low;
  long long mean_at, sample_at;
  unsigned long long seed, stream, offset;
  unsigned long long apart;  // blocks of draws between those of a row and of the next
  Grid grid;
  int batch;
  float scale, mean_scale;
  unsigned unit, drawn, cluster;
};

// Writes fours of neighbouring units to a plane, and what rounding takes `low` entries further on;
// EXACT ones leave nothing. `at`: their places, below 0 where there is nothing to write.
template <bool EXACT, int Q, typename T>
__device__ __forceinline__ void store_fours(T* plane, const float (&v)[Q][4], const long long (&at)[Q], unsigned long long low) {
#pragma unroll
  for (int q = 0; q < Q; ++q)
    if (at[q] >= 0) store4(plane + at[q], v[q]);
  if constexpr (!EXACT) {
    if (!low) return;
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      float rest[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) rest[j] = v[q][j] - wide(narrow<T>(v[q][j]));
      if (at[q] >= 0) store4(plane + low + at[q], rest);
    }
  }
}

// Means and samples of Q fours at once from their pre-activations, so that the arithmetic of one
// fills the waits of another. Planes and fours begin on whole words of four entries. QUICK ones are
// of numbers in one part.
template <Unit UNIT, bool QUICK, int Q, typename T>
__device__ __forceinline__ void store_units(T* out, const float (&x)[Q][4], const long long (&at)[Q], const int (&row)[Q], const Philox& philox,
                                            const Numbers& n) {
  float mean[Q][4];
#pragma unroll
  for (int q = 0; q < Q; ++q) means_of<UNIT, QUICK>(x[q], mean[q]);
  if (n.sample_at >= 0) {
    const float ones[4] = {1.f, 1.f, 1.f, 1.f};
    float sample[Q][4];
    // The block of a four that is nowhere does not matter.
    if (n.drawn) {
#pragma unroll
      for (int q = 0; q < Q; ++q) samples_of<UNIT>(x[q], mean[q], ones, true, philox, (unsigned long long)at[q] / 4 + row[q] * n.apart, sample[q]);
    } else {
#pragma unroll
      for (int q = 0; q < Q; ++q) samples_of<UNIT>(x[q], mean[q], ones, false, philox, 0, sample[q]);
    }
    store_fours<QUICK || UNIT == BERNOULLI>(out + n.sample_at, sample, at, n.low);
  }
  if (n.mean_at >= 0) {
#pragma unroll
    for (int q = 0; q < Q; ++q)
#pragma unroll
      for (int j = 0; j < 4; ++j) mean[q][j] = n.mean_scale * mean[q][j];
    store_fours<QUICK>(out + n.mean_at, mean, at, n.low);
  }
}

// The biases of four units; none with sums.
__device__ __forceinline__ void load_biases(const float* bias, size_t unit, float (&of_bias)[4]) {
  if (bias) load4(bias + unit, of_bias);
}

// The same from sums, and the biases of the four units, which are those of each of the Q rows.
template <bool QUICK, int Q, typename T>
__device__ __forceinline__ void finish_units(T* out, float (&x)[Q][4], const float (&of_bias)[4], const long long (&at)[Q], const int (&row)[Q],
                                             const Philox& philox, const Numbers& n) {
  if (n.unit == SUMS) {
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[q][j] = n.scale * x[q][j];
      if (at[q] >= 0) store4(reinterpret_cast<float*>(out) + at[q], x[q]);
    }
    return;
  }
#pragma unroll
  for (int q = 0; q < Q; ++q)
#pragma unroll
    for (int j = 0; j < 4; ++j) x[q][j] = fmaf(n.scale, x[q][j], of_bias[j]);
  if (n.unit == BERNOULLI) store_units<BERNOULLI, QUICK>(out, x, at, row, philox, n);
  else if (n.unit == GAUSSIAN) store_units<GAUSSIAN, QUICK>(out, x, at, row, philox, n);
  else store_units<RECTIFIED, QUICK>(out, x, at, row, philox, n);
}

// The patches that cover a cell in one direction, which is `at` of the cells there: `count` of
// them, from that on which lies `first` cells before.
struct Covering {
  int first, count;
  __device__ Covering(int at, int patches, int overlap) : first(max(at - patches + 1, 0)), count(min(at, overlap - 1) - first + 1) {}
};
