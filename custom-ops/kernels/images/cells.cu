// cells.cu: stored rows of a grid to the numbers that a layer of patches reads, cell by cell.
//
//   out[b, (y, x, plane, line, along)]
//     = (float)x[b, (plane, y * stride + line, x * run + along)] * scale,  run = stride * depth
//
// arrays   x: [batch, values] u8 or f32; out: [batch, values] f32, bf16 or f16, or two of f16 that
//          are `part` entries apart: what rounding to the first takes; contiguous, not overlapping
// scalars  Grid whose height and width are multiples of the stride; scale as in scale.cu
// launch   2-D grid of 1-D blocks, any size, across the entries of a row and down the rows: loops
//          stride over it; a thread takes eight or four entries where runs are of so many and views
//          of whole fours
// cost     reads n or 4n bytes, writes 4n or 2n; bandwidth-bound
// NaN      propagates
// truth    cells_into_reference in src/images/patches/cells.rs

#include "core/numbers.cuh"
#include "core/patches.cuh"

// EACH entries of a run to a thread, which then lie and go together: the same ones of several rows,
// since where they lie takes many divisions.
template <int EACH, typename In, typename Out, bool SPLIT>
__device__ void cells_by(const In* __restrict__ x, Out* __restrict__ out, size_t part, const Grid& g, float scale, unsigned rows) {
  const unsigned of_run = g.stride * g.depth / EACH, of_row = g.values / EACH, across = g.width / g.stride;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < of_row; i += gridDim.x * blockDim.x) {
    const unsigned run = i / of_run, line = run % g.stride, plane = run / g.stride % g.planes;
    const unsigned cell = run / (g.stride * g.planes), y = cell / across * g.stride + line;
    const size_t lies = (size_t)(plane * g.height + y) * g.width * g.depth + (cell % across * of_run + i % of_run) * EACH;
#pragma unroll 4
    for (unsigned row = blockIdx.y; row < rows; row += gridDim.y) {
      const In* from = x + (size_t)row * g.values + lies;
      Out* to = out + (size_t)row * g.values + (size_t)i * EACH;
      constexpr int OF_FOUR = EACH == 1 ? 1 : 4, FOURS = EACH / OF_FOUR;
      float v[FOURS][4], rest[FOURS][4];
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
        if constexpr (EACH == 1) v[f][0] = (float)*from;
        else load4(from + 4 * f, v[f]);
      }
#pragma unroll
      for (int f = 0; f < FOURS; ++f) {
#pragma unroll
        for (int k = 0; k < OF_FOUR; ++k) {
          v[f][k] = v[f][k] * scale;
          rest[f][k] = v[f][k] - wide(narrow<Out>(v[f][k]));
        }
        if constexpr (EACH == 1) {
          *to = narrow<Out>(v[f][0]);
          if (SPLIT) to[part] = narrow<Out>(rest[f][0]);
        } else {
          store4(to + 4 * f, v[f]);
          if (SPLIT) store4(to + part + 4 * f, rest[f]);
        }
      }
    }
  }
}

template <typename In, typename Out, bool SPLIT>
__device__ void cells_into(const In* __restrict__ x, Out* __restrict__ out, size_t part, const Grid& g, float scale, unsigned rows) {
  const int run = g.stride * g.depth;
  const bool fours = run % 4 == 0 && part % 4 == 0 && (size_t)x % (4 * sizeof(In)) == 0 && (size_t)out % (4 * sizeof(Out)) == 0;
  if (fours && run % 8 == 0) cells_by<8, In, Out, SPLIT>(x, out, part, g, scale, rows);
  else if (fours) cells_by<4, In, Out, SPLIT>(x, out, part, g, scale, rows);
  else cells_by<1, In, Out, SPLIT>(x, out, part, g, scale, rows);
}

#define CELLS_INTO(NAME, IN, OUT, SPLIT)                                                                                              \
  extern "C" __global__ void cells_##NAME(const IN* x, OUT* out, const unsigned long long part, const Grid g, const float scale,      \
                                          const unsigned rows) {                                                                      \
    cells_into<IN, OUT, SPLIT>(x, out, part, g, scale, rows);                                                                         \
  }
CELLS_INTO(u8_f32, unsigned char, float, false)
CELLS_INTO(f32_f32, float, float, false)
CELLS_INTO(u8_bf16, unsigned char, __nv_bfloat16, false)
CELLS_INTO(f32_bf16, float, __nv_bfloat16, false)
CELLS_INTO(u8_f16, unsigned char, __half, false)
CELLS_INTO(f32_f16, float, __half, false)
CELLS_INTO(u8_f16x2, unsigned char, __half, true)
CELLS_INTO(f32_f16x2, float, __half, true)
