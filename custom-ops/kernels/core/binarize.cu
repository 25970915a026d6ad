// binarize.cu: binary states drawn from probabilities.
//
//   out[e] = u(word) < p[e] ? 1 : 0     word e % 4 of block offset + counter + e / 4; where the entries
//                                       are some columns of more, of block offset + counter + by row
//                                       + e / 4 % (width / 4)
//
// arrays   p: [n] f32; out: [n] f32, bf16 or f16; contiguous, not overlapping; counter: [1] i64 or
//          null
// scalars  seed, stream, offset: any values; width, a multiple of 4, and by: columns, and blocks
//          from one row to the next, 0 and 0 where the entries follow each other
// launch   1-D grid of 1-D blocks, any size: a thread takes four elements (one block of Philox) and
//          strides over the grid. The draws do not depend on the launch
// cost     reads 4n bytes, writes 4n or 2n; bandwidth-bound
// NaN      in p gives 0
// same     the same bits as the CPU twin and as bernoulli of draw.cu, by philox.cuh and math.cuh
// truth    bernoulli_into_reference in src/core/binarize.rs

#include "core/math.cuh"
#include "core/numbers.cuh"
#include "core/philox.cuh"

template <typename Out>
__device__ void bernoulli_into(const float* p, Out* out, size_t n, size_t width, size_t by, const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    Rounded draws[4];
    const size_t of_row = width / 4;
    uniform_of(philox_block(philox, of_row ? g / of_row * by + g % of_row : g), draws);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (4 * g + i < n) out[4 * g + i] = narrow<Out>(draws[i].v < p[4 * g + i] ? 1.f : 0.f);
  }
}

#define BERNOULLI_INTO(NAME, OUT)                                                                            \
  extern "C" __global__ void NAME(const float* p, OUT* out, const size_t n, const size_t width,              \
                                  const size_t by, const unsigned long long seed,                            \
                                  const unsigned long long stream, const unsigned long long offset,          \
                                  const long long* counter) {                                                \
    bernoulli_into<OUT>(p, out, n, width, by, philox_at(seed, stream, offset, counter));                     \
  }
BERNOULLI_INTO(bernoulli_into_f32, float)
BERNOULLI_INTO(bernoulli_into_f16, __half)
BERNOULLI_INTO(bernoulli_into_bf16, __nv_bfloat16)
