// place.cu: new points in a layout that stays, many steps of each in one launch.
//
//   start     in each coordinate the median of the neighbours' places, weighted by p, or where they are
//   gradient  4 (exaggeration sum_j p_j (y - y_j) / (1 + |y - y_j|^2/alpha) - force / total)
//   velocity  momentum velocity - rate gradient, the gradient no longer than its largest norm
//   force     and total: h (x V c_1 - V c_x), ... and W c_1, interpolated at y from the potentials
//             of repulsion_grid.cu; or sum_j w near (y - y_j) and sum_j w over the layout
//
// arrays   points, velocities: [m, D] float, read but for the first steps; outside: [m] unsigned, 1
//          where a point left the grid, whose place is then not written; one that is not 0 stays
//          where it is; neighbours: [m, k] unsigned; p: [m, k] float; layout: [n, D] float;
//          potentials: [G, G] float4; box: the middle and h
// launch   place_on_grid: a thread for each point in blocks of 64; place_exact: a warp for each in
//          blocks of 256
// cost     a step of a point: k edges and 16 nodes of 16 bytes, or n pairs; the start k^2
//          comparisons
// bounds   neighbours beyond n are taken for the last; nodes around a point are inside of the grid
// NaN      leaves the grid; with exact sums it gives NaN
// same     a point's sums are its own, in a fixed order
// truth    place_points_reference in src/tsne/place/reference.rs

#include "tsne/grid.cuh"
#include "tsne/points.cuh"

struct Steps {
  float alpha, exaggeration, rate, momentum, largest;
  unsigned iterations, is_first;
};

template <int D>
__device__ __forceinline__ Point<D> neighbour(const float* layout, const unsigned* neighbours, unsigned e, size_t n) {
  const size_t j = neighbours[e];
  return point<D>(layout, j < n ? j : n - 1);
}

// The places with at most half of the weight below them and at most half above: the middle of the
// least and the largest.
template <int D>
__device__ Point<D> median(const float* layout, const unsigned* neighbours, const float* p, size_t n, unsigned k) {
  Point<D> out;
  for (int c = 0; c < D; c++) {
    float all = 0, low = INFINITY, high = -INFINITY;
    for (unsigned e = 0; e < k; e++) all += p[e];
    const float half = .5f * all;
    for (unsigned e = 0; e < k; e++) {
      const float x = neighbour<D>(layout, neighbours, e, n).x[c];
      float below = 0, upto = 0;
      for (unsigned o = 0; o < k; o++) {
        const float y = neighbour<D>(layout, neighbours, o, n).x[c];
        if (y < x) below += p[o];
        if (y <= x) upto += p[o];
      }
      if (p[e] > 0 && below <= half && upto >= half) low = fminf(low, x), high = fmaxf(high, x);
    }
    out.x[c] = low <= high ? low + .5f * (high - low) : neighbour<D>(layout, neighbours, 0, n).x[c];
  }
  return out;
}

// A point where it is and as fast, or at its median and at rest.
template <int D>
__device__ __forceinline__ Point<D> start(float (&velocity)[D], const float* points, const float* velocities, const float* layout,
                          const unsigned* neighbours, const float* p, size_t i, size_t n, unsigned k, const Steps& steps) {
#pragma unroll
  for (int c = 0; c < D; c++) velocity[c] = steps.is_first ? 0 : velocities[i * D + c];
  if (steps.is_first) return median<D>(layout, neighbours, p, n, k);
  Point<D> y;
#pragma unroll
  for (int c = 0; c < D; c++) y.x[c] = points[i * D + c];
  return y;
}

template <int D>
__device__ __forceinline__ void store(float* points, float* velocities, size_t i, const Point<D>& y, const float (&velocity)[D]) {
#pragma unroll
  for (int c = 0; c < D; c++) points[i * D + c] = y.x[c], velocities[i * D + c] = velocity[c];
}

// Moves a point by one step.
template <int D>
__device__ __forceinline__ void step(Point<D>& y, float (&velocity)[D], const float (&pull)[D], const float (&force)[D],
                                     float total, const Steps& steps) {
  const float scale = total == 0 ? 0 : 1 / total;
  float gradient[D], square = 0;
#pragma unroll
  for (int c = 0; c < D; c++) {
    gradient[c] = 4 * (steps.exaggeration * pull[c] - force[c] * scale);
    square += gradient[c] * gradient[c];
  }
  const float norm = sqrtf(square), rate = steps.rate * (norm > steps.largest ? steps.largest / norm : 1);
#pragma unroll
  for (int c = 0; c < D; c++) {
    velocity[c] = steps.momentum * velocity[c] - rate * gradient[c];
    y.x[c] += velocity[c];
  }
}

// Adds the pulls of each `stride`-th neighbour from `first` on.
template <int D>
__device__ __forceinline__ void attract(float (&pull)[D], const Point<D>& y, const float* layout, const unsigned* neighbours,
                                        const float* p, size_t n, unsigned k, unsigned first, unsigned stride,
                                        float inverse_alpha) {
#pragma unroll 4
  for (unsigned e = first; e < k; e += stride) {
    float difference[D];
    const float square = apart(difference, y, neighbour<D>(layout, neighbours, e, n));
    const float by = p[e] / fmaf(square, inverse_alpha, 1.f);
#pragma unroll
    for (int c = 0; c < D; c++) pull[c] = fmaf(by, difference[c], pull[c]);
  }
}

extern "C" __global__ void __launch_bounds__(64)
    place_on_grid(float* points, float* velocities, unsigned* outside, const unsigned* neighbours, const float* p,
                  const float* layout, const float4* potentials, const float* box, const size_t m, const size_t n,
                  const unsigned k, const unsigned G, const Steps steps) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= m || outside[i]) return;
  neighbours += i * k, p += i * k;
  float velocity[2];
  Point<2> y = start(velocity, points, velocities, layout, neighbours, p, i, n, k, steps);
  const float h = box[2], inverse_h = 1 / h, most = .5f * (float)(G - 3), inverse_alpha = 1 / steps.alpha;
  const float middle[2] = {box[0], box[1]};
  for (unsigned t = 0; t < steps.iterations; t++) {
    const float u[2] = {(y.x[0] - middle[0]) * inverse_h, (y.x[1] - middle[1]) * inverse_h};
    if (!(fabsf(u[0]) <= most && fabsf(u[1]) <= most)) {
      outside[i] = 1;
      return;
    }
    float sum[4], pull[2] = {};
    interpolate(sum, potentials, u[0] + .5f * (float)(G - 1), u[1] + .5f * (float)(G - 1), G);
    attract(pull, y, layout, neighbours, p, n, k, 0, 1, inverse_alpha);
    const float force[2] = {h * (u[0] * sum[1] - sum[2]), h * (u[1] * sum[1] - sum[3])};
    // Where the layout is far from a node, rounding of the transforms may leave less than 0.
    step(y, velocity, pull, force, fmaxf(sum[0], 0.f), steps);
  }
  store(points, velocities, i, y, velocity);
}

// Points of the layout whose pushes a lane adds in float; sums of these are in double.
constexpr unsigned STRETCH = 64;

template <int D, bool ONE>
__device__ void place_exact(float* points, float* velocities, const unsigned* neighbours, const float* p,
                            const float* layout, size_t m, size_t n, unsigned k, const Steps& steps) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (i >= m) return;
  neighbours += i * k, p += i * k;
  float velocity[D];
  Point<D> y = start(velocity, points, velocities, layout, neighbours, p, i, n, k, steps);
  const float inverse_alpha = 1 / steps.alpha;
  for (unsigned t = 0; t < steps.iterations; t++) {
    double sums[D + 1] = {};
    for (size_t first = lane; first < n; first += 32 * STRETCH) {
      const size_t end = n < first + 32 * STRETCH ? n : first + 32 * STRETCH;
      float part[D] = {}, total = 0;
#pragma unroll 4
      for (size_t j = first; j < end; j += 32)
        interact<D, ONE>(part, total, y, point<D>(layout, j), 1.f, steps.alpha, inverse_alpha);
#pragma unroll
      for (int c = 0; c < D; c++) sums[c] += part[c];
      sums[D] += total;
    }
    float pull[D] = {}, force[D];
    attract(pull, y, layout, neighbours, p, n, k, lane, 32, inverse_alpha);
#pragma unroll
    for (int c = 0; c < D; c++) pull[c] = sum_of_warp(pull[c]), force[c] = (float)sum_of_warp(sums[c]);
    step(y, velocity, pull, force, (float)sum_of_warp(sums[D]), steps);
  }
  if (lane == 0) store(points, velocities, i, y, velocity);
}

#define PLACE(D)                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256)                                                                    \
      place_exact_##D(float* points, float* velocities, const unsigned* neighbours, const float* p, const float* layout, \
                      const size_t m, const size_t n, const unsigned k, const Steps steps) {                           \
    if (steps.alpha == 1.f)                                                                                            \
      place_exact<D, true>(points, velocities, neighbours, p, layout, m, n, k, steps);                                 \
    else                                                                                                               \
      place_exact<D, false>(points, velocities, neighbours, p, layout, m, n, k, steps);                                \
  }
PLACE(2)
PLACE(3)
