// attraction.cu: the attraction of a layout, from each end of an edge or for both ends at once.
//
//   f_ij = p_ij (y_i - y_j) / (1 + |y_i - y_j|^2 / alpha)
//   each_end:   forces_i  = sum_j f_ij                   the graph has both directions of an edge
//   both_ends:  forces_i += f_ij, forces_j -= f_ij       the graph has one
//
// arrays   forces, layout: [n, D] float, forces 0 before both_ends; offsets [n + 1], columns,
//          values: the graph
// launch   a warp for each row in blocks of 256
// cost     8 bytes an edge and a gather of a point each; both_ends: half of the edges, and D atomic
//          additions for each
// bounds   an offset beyond the edges is taken for their number, a column beyond the points for the
//          last
// NaN      stays with the points that it comes from
// same     each_end: sums in a fixed order; both_ends: atomic additions, whose order is not fixed
// truth    attraction_reference in src/tsne/layout/attraction.rs

#include "tsne/points.cuh"

constexpr unsigned THREADS = 256, WARPS = THREADS / 32;

template <int D, bool BOTH>
__device__ void attract(float* forces, const unsigned* offsets, const unsigned* columns, const float* values,
                        const float* layout, size_t n, unsigned n_edges, float alpha) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  // All lanes of a warp have one row.
  if (i >= n) return;
  const Point<D> own = point<D>(layout, i);
  const float inverse_alpha = 1 / alpha;
  float pull[D] = {};
  const unsigned end = min(offsets[i + 1], n_edges);
  for (unsigned e = offsets[i] + lane; e < end; e += 32) {
    const size_t j = columns[e] < n ? columns[e] : n - 1;
    float difference[D];
    const float square = apart(difference, own, point<D>(layout, j));
    const float p = values[e] * quick_inverse(fmaf(square, inverse_alpha, 1.f));
#pragma unroll
    for (int k = 0; k < D; k++) {
      if (BOTH) atomicAdd(forces + j * D + k, -p * difference[k]);
      pull[k] = fmaf(p, difference[k], pull[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < D; k++) {
    const float sum = sum_of_warp(pull[k]);
    if (lane == 0) {
      if (BOTH)
        atomicAdd(forces + i * D + k, sum);
      else
        forces[i * D + k] = sum;
    }
  }
}

#define ATTRACTION(D, FORM, BOTH)                                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
      attraction_##FORM##_##D(float* forces, const unsigned* offsets, const unsigned* columns, const float* values, \
                              const float* layout, const size_t n, const unsigned n_edges, const float alpha) {     \
    attract<D, BOTH>(forces, offsets, columns, values, layout, n, n_edges, alpha);                                  \
  }
ATTRACTION(2, each_end, false)
ATTRACTION(3, each_end, false)
ATTRACTION(2, both_ends, true)
ATTRACTION(3, both_ends, true)
