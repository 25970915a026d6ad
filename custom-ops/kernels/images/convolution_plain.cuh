// convolution_plain.cuh: the three results by a thread or a block for each entry: f64, and f32
// where blocks have too little shared memory for the other kernels.
//
// launch   maps, images: 256 threads a block, a thread for each entry, striding over the grid;
//          weights: a block of 256 for each weight
// shared   weights: 256 numbers
// bytes    every factor of every term from the caches
// order    maps: rows, columns, channels of the filter; images: rows, columns, filters; weights:
//          lane l of 256 adds positions l, l + 256, ..., then the lanes are added in halves
#pragma once

#include "images/convolution.cuh"

template <typename T>
__device__ void maps_of(T* y, const T* x, const T* w, const Sizes& p) {
  const size_t of_image = (size_t)p.out_height * p.out_width * p.n_filters, all = of_image * p.batch;
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += (size_t)gridDim.x * blockDim.x) {
    const int o = (int)(e % p.n_filters), j = (int)(e / p.n_filters % p.out_width);
    const int i = (int)(e % of_image / p.n_filters / p.out_width);
    const T* from = x + e / of_image * ((size_t)p.height * p.width * p.channels);
    const T* filter = w + (size_t)o * p.size * p.size * p.channels;
    T sum = 0;
    for (int k = 0; k < p.size; ++k)
      for (int l = 0; l < p.size; ++l) {
        const int row = i + k - p.pad, column = j + l - p.pad;
        if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
        for (int c = 0; c < p.channels; ++c)
          sum = fused(from[((size_t)row * p.width + column) * p.channels + c], filter[((size_t)k * p.size + l) * p.channels + c], sum);
      }
    y[e] = sum;
  }
}

template <typename T>
__device__ void images_of(T* v, const T* h, const T* w, const Sizes& p) {
  const size_t of_image = (size_t)p.height * p.width * p.channels, all = of_image * p.batch;
  const size_t filter = (size_t)p.size * p.size * p.channels;
  for (size_t e = (size_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += (size_t)gridDim.x * blockDim.x) {
    const int c = (int)(e % p.channels), j = (int)(e / p.channels % p.width);
    const int i = (int)(e % of_image / p.channels / p.width);
    const T* from = h + e / of_image * ((size_t)p.out_height * p.out_width * p.n_filters);
    T sum = 0;
    for (int k = 0; k < p.size; ++k)
      for (int l = 0; l < p.size; ++l) {
        const int row = i - k + p.pad, column = j - l + p.pad;
        if (row < 0 || row >= p.out_height || column < 0 || column >= p.out_width) continue;
        for (int o = 0; o < p.n_filters; ++o)
          sum = fused(from[((size_t)row * p.out_width + column) * p.n_filters + o],
                      w[o * filter + ((size_t)k * p.size + l) * p.channels + c], sum);
      }
    v[e] = sum;
  }
}

template <typename T>
__device__ void weights_of(T* gradient, const T* x, const T* h, const float* factors, T alpha, T beta, const Sizes& p) {
  __shared__ T lanes[256];
  const size_t e = blockIdx.x, filter = (size_t)p.size * p.size * p.channels;
  const int o = (int)(e / filter), c = (int)(e % p.channels);
  const int l = (int)(e / p.channels % p.size), k = (int)(e % filter / p.channels / p.size);
  const size_t positions = (size_t)p.out_height * p.out_width, all = positions * p.batch;
  T sum = 0;
  for (size_t q = threadIdx.x; q < all; q += 256) {
    const int row = (int)(q % positions / p.out_width) + k - p.pad, column = (int)(q % p.out_width) + l - p.pad;
    if (row < 0 || row >= p.height || column < 0 || column >= p.width) continue;
    const size_t pixel = (q / positions * p.height + row) * p.width + column;
    sum = fused(h[q * p.n_filters + o], x[pixel * p.channels + c], sum);
  }
  lanes[threadIdx.x] = sum;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const T a = factors ? (T)factors[0] : alpha, b = factors ? (T)factors[1] : beta;
  gradient[e] = b == 0 ? a * lanes[0] : a * lanes[0] + b * gradient[e];
}

#define PLAIN(T, NAME)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) convolution_maps_##NAME(T* y, const T* x, const T* w, const Sizes p) {   \
    maps_of(y, x, w, p);                                                                                                  \
  }                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) convolution_images_##NAME(T* v, const T* h, const T* w, const Sizes p) { \
    images_of(v, h, w, p);                                                                                                \
  }                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(256) convolution_gradient_##NAME(                                            \
      T* gradient, const T* x, const T* h, const float* factors, const T alpha, const T beta, const Sizes p) {            \
    weights_of(gradient, x, h, factors, alpha, beta, p);                                                                  \
  }
PLAIN(float, f32)
PLAIN(double, f64)
