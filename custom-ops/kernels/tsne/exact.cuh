// exact.cuh: distances of rows in f64, as src/tsne/exact.rs has them; sums have another order.
#pragma once

#include "core/warp.cuh"

// How rows are compared; cosines and correlations are angles.
constexpr unsigned EXACT_EUCLIDEAN = 0, EXACT_MANHATTAN = 1, EXACT_CHEBYSHEV = 2, EXACT_HAMMING = 3, EXACT_JACCARD = 4,
                   EXACT_ANGLE = 5;

// The sum over a warp of term(x, y) of the entries of two rows.
template <typename Term>
__device__ __forceinline__ double sum_of_terms(const float* a, const float* b, size_t d, Term term) {
  double sum = 0;
#pragma unroll 4
  for (size_t c = threadIdx.x % 32; c < d; c += 32) sum += term((double)a[c], (double)b[c]);
  return sum_of_warp(sum);
}

// The distance of rows i and j of [_, d] by all lanes of a warp.
__device__ inline double exact_distance(const float* rows, const double2* angles, size_t i, size_t j, size_t d,
                                        unsigned metric) {
  const float *a = rows + i * d, *b = rows + j * d;
  switch (metric) {
    case EXACT_EUCLIDEAN:
      return 0.5 * sum_of_terms(a, b, d, [](double x, double y) { return (x - y) * (x - y); });
    case EXACT_MANHATTAN:
      return sum_of_terms(a, b, d, [](double x, double y) { return fabs(x - y); });
    case EXACT_CHEBYSHEV: {
      double most = 0;
      for (size_t c = threadIdx.x % 32; c < d; c += 32) most = fmax(most, fabs((double)a[c] - (double)b[c]));
      return largest_of_warp(most);
    }
    case EXACT_HAMMING:
      return sum_of_terms(a, b, d, [](double x, double y) { return x != y ? 1. : 0.; }) / (d ? (double)d : 1.);
    case EXACT_JACCARD: {
      const double in_one = sum_of_terms(a, b, d, [](double x, double y) { return (x != 0) != (y != 0) ? 1. : 0.; });
      const double in_any = sum_of_terms(a, b, d, [](double x, double y) { return x != 0 || y != 0 ? 1. : 0.; });
      return in_one / fmax(in_any, 1.);
    }
    default: {
      const double2 of_a = angles[i], of_b = angles[j];
      if (of_a.y == 0 || of_b.y == 0) return 1;
      return 0.5 * sum_of_terms(a, b, d, [=](double x, double y) {
               const double apart = (x - of_a.x) * of_a.y - (y - of_b.x) * of_b.y;
               return apart * apart;
             });
    }
  }
}
