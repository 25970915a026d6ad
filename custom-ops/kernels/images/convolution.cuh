// convolution.cuh: what the kernels of convolution.cu have in common.
#pragma once

#include "core/numbers.cuh"
#include "core/order.cuh"
#include "core/tf32.cuh"

// The sizes of images and maps, of filters, and the zeros beside an image.
struct Sizes {
  int height, width, channels, out_height, out_width, n_filters, size, pad, batch;
};

// The same, and the stages that the gradient to the weights takes positions in.
struct Stages : Sizes {
  int splits;
  int rows, row_blocks, depth, column_blocks;  // of a stage: rows, columns (a multiple of 8); and how many cover an image
  int x_rows, x_line;                          // of pixels
};

// The shared memory of a launch.
extern __shared__ __align__(16) float memory[];
