// curve_order.cu: the places of points on Hilbert's curve through the box around them.
//
//   at_k   = (y_k - low_k) / side, in 0..1, to BITS bits; side: the longest of the box
//   key    = the place of the cell at_0, at_1, (at_2) on the curve, D BITS bits (Skilling,
//          "Programming the Hilbert curve", 2004)
//
// arrays   boxes: [blocks, 6] float, the least of y and of -y over the points of a block; points:
//          [n, D] float low, high: [n] unsigned, the low 20 bits of each key and the others; order:
//          [n] unsigned
// launch   curve_bounds: at most 256 blocks of 256; curve_keys, curve_compose: a thread for each
//          point in blocks of 256
// shared   below 1 KiB
// cost     some 200 instructions a point
// NaN      is taken for the low end of the box
// same     no atomics; the CPU's keys, bit for bit
// truth    curve_order_reference in src/tsne/curve_order/mod.rs

#include "tsne/points.cuh"

constexpr unsigned THREADS = 256;

template <int D>
__device__ void bounds(float* boxes, const float* points, size_t n) {
  __shared__ float shared[THREADS / 32];
  float least[6] = {INFINITY, INFINITY, INFINITY, INFINITY, INFINITY, INFINITY};
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
    const Point<D> y = point<D>(points, i);
#pragma unroll
    for (int k = 0; k < D; k++) least[k] = fminf(least[k], y.x[k]), least[3 + k] = fminf(least[3 + k], -y.x[k]);
  }
#pragma unroll
  for (int k = 0; k < 6; k++) {
    const float x = least_of_block<THREADS / 32>(least[k], shared);
    if (threadIdx.x == 0) boxes[blockIdx.x * 6 + k] = x;
  }
}

// The place on the curve of a cell, BITS bits a side.
template <int D, unsigned BITS>
__device__ __forceinline__ unsigned long long place_on_curve(unsigned (&x)[D]) {
  for (unsigned q = 1u << (BITS - 1); q > 1; q >>= 1) {
    const unsigned below = q - 1;
#pragma unroll
    for (int k = 0; k < D; k++) {
      if (x[k] & q) {
        x[0] ^= below;
      } else {
        const unsigned swapped = (x[0] ^ x[k]) & below;
        x[0] ^= swapped, x[k] ^= swapped;
      }
    }
  }
#pragma unroll
  for (int k = 1; k < D; k++) x[k] ^= x[k - 1];
  unsigned turned = 0;
  for (unsigned q = 1u << (BITS - 1); q > 1; q >>= 1)
    if (x[D - 1] & q) turned ^= q - 1;
  unsigned long long key = 0;
  for (int b = BITS - 1; b >= 0; b--)
#pragma unroll
    for (int k = 0; k < D; k++) key = key << 1 | ((x[k] ^ turned) >> b & 1);
  return key;
}

template <int D>
__device__ void keys(unsigned* low, unsigned* high, const float* boxes, unsigned count, const float* points, size_t n) {
  __shared__ float shared[THREADS / 32];
  constexpr unsigned BITS = D == 2 ? 20 : 13;
  float corner[D], side = 0;
#pragma unroll
  for (int k = 0; k < D; k++) {
    float l = INFINITY, h = INFINITY;
    for (unsigned b = threadIdx.x; b < count; b += THREADS) l = fminf(l, boxes[b * 6 + k]), h = fminf(h, boxes[b * 6 + 3 + k]);
    corner[k] = least_of_block<THREADS / 32>(l, shared);
    side = fmaxf(side, -least_of_block<THREADS / 32>(h, shared) - corner[k]);
  }
  const float scale = side > 0 && isfinite(side) ? 1 / side : 0;
  const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  const Point<D> y = point<D>(points, i);
  unsigned cell[D];
#pragma unroll
  for (int k = 0; k < D; k++) {
    const float at = fminf(fmaxf((y.x[k] - corner[k]) * scale, 0.f), 1.f) * (float)((1u << BITS) - 1);
    cell[k] = (unsigned)at;
  }
  const unsigned long long key = place_on_curve<D, BITS>(cell);
  low[i] = (unsigned)(key & 0xfffff);
  high[i] = (unsigned)(key >> 20);
}

// The order by both keys: `later` orders places of `earlier`.
extern "C" __global__ void curve_compose(unsigned* order, const unsigned* earlier, const unsigned* later, const size_t n) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) order[i] = earlier[later[i]];
}

#define CURVE(D)                                                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      curve_bounds_##D(float* boxes, const float* points, const size_t n) {                                            \
    bounds<D>(boxes, points, n);                                                                                       \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                \
      curve_keys_##D(unsigned* low, unsigned* high, const float* boxes, const unsigned count, const float* points,     \
                     const size_t n) {                                                                                 \
    keys<D>(low, high, boxes, count, points, n);                                                                       \
  }
CURVE(2)
CURVE(3)
