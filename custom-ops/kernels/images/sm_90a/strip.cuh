// strip.cuh: the pixels under the windows of a block, for kernels of convolutions by warpgroups.
#pragma once

#include "images/convolution.cuh"

// An image, and the pixels of it that a strip has from (row0, column0) on; those beside the image
// are 0.
struct Strip {
  const float* image;
  int height, width, channels;
  int row0, column0, rows, columns;
};

// The units of a strip that a thread has, `per_pixel` units a pixel. Their places follow by sums,
// since divisions take longer than copies.
struct Units {
  int row = 0, column, unit;
  int per_pixel, step, step_unit;
  __device__ __forceinline__ Units(int per_pixel, int threads)
      : column(threadIdx.x / per_pixel), unit(threadIdx.x % per_pixel), per_pixel(per_pixel), step(threads / per_pixel), step_unit(threads % per_pixel) {}
  // Whether there is one more.
  __device__ __forceinline__ bool is_in(const Strip& strip) {
#pragma unroll 1
    while (column >= strip.columns) column -= strip.columns, ++row;
    return row < strip.rows;
  }
  __device__ __forceinline__ void next() {
    column += step, unit += step_unit;
    if (unit >= per_pixel) unit -= per_pixel, ++column;
  }
  // Its pixel, from channel c on, none beside the image and past the channels.
  __device__ __forceinline__ const float* pixel(const Strip& strip, int c) const {
    const int y = strip.row0 + row, x = strip.column0 + column;
    const bool inside = y >= 0 && y < strip.height && x >= 0 && x < strip.width && c < strip.channels;
    return inside ? strip.image + ((size_t)y * strip.width + x) * strip.channels + c : nullptr;
  }
};
