// tf32_parts.cu: the two TF32 parts of f32 numbers, three times side by side, for products in the
// tensor cores.
//
//   out[l, c], out[part + l, c], out[2 part + l, c]     low, high, high of x[l, c], or high, low, high         (part counts entries here)
//   high = x rounded to 11 bits, low = (x - high) rounded to 11 bits
//
// arrays   x: lines of `width` numbers, `x_line` apart; out: f32, lines `out_line` apart; not
//          overlapping
// scalars  out has `out_lines` lines of `out_width` numbers in each part, of which those beyond x
//          become 0; part: entries from one part to the next; low_at: the part, 0 or 1, that is low
// launch   blocks of 256 threads over the columns (x), lines from y on, that stride over the grid
// cost     reads 4 and writes 12 bytes a number; memory limits
// NaN      of either part gives NaN in the sum of a product; infinity gives NaN: low is infinity -
//          infinity
// truth    gemm_reference: see src/layers/gemm/split.rs

#include "core/tf32.cuh"

extern "C" __global__ void tf32_parts_f32(float* out, const float* x, const size_t lines, const size_t width,
                                          const size_t x_line, const size_t out_lines, const size_t out_width,
                                          const size_t out_line, const size_t part, const unsigned low_at) {
  const size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= out_width) return;
  for (size_t line = blockIdx.y; line < out_lines; line += gridDim.y) {
    const float value = line < lines && column < width ? x[line * x_line + column] : 0.f;
    uint32_t high, low;
    in_tf32_parts(value, high, low);
    low = (low + 0x1000u) & 0xffffe000u;
    float* to = out + line * out_line + column;
    to[low_at * part] = __uint_as_float(low);
    to[(1 - low_at) * part] = __uint_as_float(high);
    to[2 * part] = __uint_as_float(high);
  }
}
