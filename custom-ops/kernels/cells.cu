// cells.cu: stored rows of a grid to the numbers that a layer of patches reads, cell by cell.
//
//   out[b, (y, x, plane, line, along)] = (float)x[b, (plane, y * stride + line, x * run + along)] * scale      run = stride * depth
//
// arrays   x: [batch, values] u8 or f32; out: [batch, values] f32, bf16 or f16, or two of f16 that are `part` entries apart: what rounding to the
//          first takes; contiguous, not overlapping
// scalars  Grid whose height and width are multiples of the stride; scale as in scale.cu
// launch   1-D grid of 1-D blocks, any size: the loop strides over the grid; a thread takes a run
// cost     reads n or 4n bytes, writes 4n or 2n; bandwidth-bound
// NaN      propagates
// truth    cells_into_reference in src/patches/cells.rs

#include "numbers.cuh"
#include "patches.cuh"

template <typename In, typename Out, bool SPLIT>
__device__ void cells_into(const In* x, Out* out, size_t part, const Grid& g, float scale, unsigned runs) {
  const unsigned run = g.stride * g.depth, of_row = g.values / run, across = g.width / g.stride;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < runs; i += gridDim.x * blockDim.x) {
    const unsigned row = i / of_row, at = i % of_row, line = at % g.stride, plane = at / g.stride % g.planes;
    const unsigned cell = at / (g.stride * g.planes), y = cell / across * g.stride + line;
    const In* from = x + (size_t)row * g.values + (size_t)(plane * g.height + y) * g.width * g.depth + cell % across * run;
    Out* to = out + (size_t)i * run;
    for (unsigned k = 0; k < run; ++k) {
      const float v = (float)from[k] * scale;
      const Out first = narrow<Out>(v);
      to[k] = first;
      if (SPLIT) to[part + k] = narrow<Out>(v - wide(first));
    }
  }
}

#define CELLS_INTO(NAME, IN, OUT, SPLIT)                                                                                              \
  extern "C" __global__ void cells_##NAME(const IN* x, OUT* out, const unsigned long long part, const Grid g, const float scale,      \
                                          const unsigned runs) {                                                                      \
    cells_into<IN, OUT, SPLIT>(x, out, part, g, scale, runs);                                                                         \
  }
CELLS_INTO(u8_f32, unsigned char, float, false)
CELLS_INTO(f32_f32, float, float, false)
CELLS_INTO(u8_bf16, unsigned char, __nv_bfloat16, false)
CELLS_INTO(f32_bf16, float, __nv_bfloat16, false)
CELLS_INTO(u8_f16, unsigned char, __half, false)
CELLS_INTO(f32_f16, float, __half, false)
CELLS_INTO(u8_f16x2, unsigned char, __half, true)
CELLS_INTO(f32_f16x2, float, __half, true)
