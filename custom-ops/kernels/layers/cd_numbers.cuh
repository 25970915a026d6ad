// cd_numbers.cuh: the numbers of an update of contrastive learning as its kernels take them;
// cd_update.cu says what they are.
#pragma once

#include "layers/bias.cuh"

struct Numbers {
  unsigned long long h_part, x_part, copy_part;
  long long by;
  BiasRule hidden, visible;
  float l1, l2, scale;
  int rows, cols, batch;
};
