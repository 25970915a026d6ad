// softmax_units.cu: bias, mean and draw of groups of units of which exactly one is on.
//
//   x_c = pre[r, c] + bias[c]      m = max_c x_c      t = sum_c exp(x_c - m), in the order of c
//   mean_c = exp(x_c - m) / t
//   sample is 1 at the first c with u t < exp(x_0 - m) + ... + exp(x_c - m), u the uniform draw of element r;
//          without draws at the first c with x_c = m; else 0
//   out[mean_at + r * n_classes + c] = mean_scale * mean_c,  out[sample_at + r * n_classes + c] =
//                                                            sample_c
//
// arrays   pre: [rows, n_classes] f32, contiguous; bias: [n_classes] f32; out: f32 planes of rows *
//          n_classes elements from mean_at and sample_at, not overlapping each other or an input; a
//          place below 0 is a plane not wanted. counter: [1] i64 or null
// scalars  n_classes >= 1; drawn 0 or 1; seed, stream, offset, mean_scale: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes a row and strides over the grid. The
//          result does not depend on the launch
// cost     reads 12 bytes per element, writes 4 per plane, three exponentials per element; at the
//          sizes of a minibatch of labels launch-bound
// NaN      or +infinity in a row gives NaN means and a sample of zeros only
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    softmax_units_reference in src/layers/softmax_units.rs

#include "core/math.cuh"
#include "core/philox.cuh"

extern "C" __global__ void softmax_units_f32(float* out, const long long mean_at, const long long sample_at,
                                             const float mean_scale, const float* pre, const float* bias,
                                             const size_t rows, const size_t n_classes, const unsigned drawn,
                                             const unsigned long long seed, const unsigned long long stream,
                                             const unsigned long long offset, const long long* counter) {
  const Philox philox = philox_at(seed, stream, offset, counter);
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t r = (size_t)blockIdx.x * blockDim.x + threadIdx.x; r < rows; r += stride) {
    const float* row = pre + r * n_classes;
    Rounded top = Rounded(row[0]) + bias[0];
    for (size_t c = 1; c < n_classes; ++c) {
      const Rounded x = Rounded(row[c]) + bias[c];
      top = x > top ? x : top;
    }
    Rounded total = 0.f;
    for (size_t c = 0; c < n_classes; ++c) total = total + exact_exp(Rounded(row[c]) + bias[c] - top);

    // Without draws the bar is passed by the first class of the largest x.
    Rounded bar = 0.f;
    if (drawn) {
      const uint4 block = philox_block(philox, r / 4);
      const unsigned word = r % 4 == 0 ? block.x : r % 4 == 1 ? block.y : r % 4 == 2 ? block.z : block.w;
      bar = uniform_of(word) * total;
    }
    Rounded sum = 0.f;
    bool found = false;
    for (size_t c = 0; c < n_classes; ++c) {
      const Rounded x = Rounded(row[c]) + bias[c];
      const Rounded part = exact_exp(x - top);
      sum = sum + part;
      const bool passed = drawn ? bar < sum : x.v == top.v && total.v == total.v;
      if (sample_at >= 0) out[sample_at + r * n_classes + c] = passed && !found ? 1.f : 0.f;
      found = found || passed;
      if (mean_at >= 0) out[mean_at + r * n_classes + c] = (Rounded(mean_scale) * (part / total)).v;
    }
  }
}
