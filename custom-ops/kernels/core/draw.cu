// draw.cu: tensors of random draws.
//
//   uniform    out[e] = u(word)                        words of block offset + counter + e / 4, word e % 4
//   normal     out[e] = Box and Muller on words (0, 1) and (2, 3) of a block
//   bernoulli  out[e] = u(word) < p[e] ? 1 : 0
//
// arrays   out, p: [n] f32, contiguous, not overlapping; counter: [1] i64 or null
// scalars  seed, stream, offset: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes four elements (one block of Philox) and
//          strides over the grid. The draws do not depend on the launch
// cost     writes 4n bytes, bernoulli also reads 4n; bandwidth-bound, normal close to its
//          arithmetic
// NaN      in p gives 0
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    known answers and distributions: tests/philox.rs, tests/draw.rs

#include "core/math.cuh"
#include "core/philox.cuh"

// Calls store(first element, draws, how many of the four exist) for each group of four elements of
// this thread.
template <bool NORMAL, typename Store>
__device__ void for_groups(const Philox& philox, size_t n, Store store) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t groups = n / 4 + (n % 4 != 0);
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    const uint4 words = philox_block(philox, g);
    Rounded draws[4];
    if (NORMAL) normal_of(words, draws);
    else uniform_of(words, draws);
    const size_t left = n - 4 * g;
    store(4 * g, draws, left < 4 ? (int)left : 4);
  }
}

template <bool NORMAL>
__device__ void fill(float* out, size_t n, const Philox& philox) {
  const bool wide = (size_t)out % 16 == 0;
  for_groups<NORMAL>(philox, n, [=](size_t e, const Rounded (&draws)[4], int count) {
    if (wide && count == 4) {
      *reinterpret_cast<float4*>(out + e) = make_float4(draws[0].v, draws[1].v, draws[2].v, draws[3].v);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < count) out[e + i] = draws[i].v;
  });
}

extern "C" __global__ void uniform_f32(float* out, const size_t n, const unsigned long long seed,
                                       const unsigned long long stream, const unsigned long long offset,
                                       const long long* counter) {
  fill<false>(out, n, philox_at(seed, stream, offset, counter));
}

extern "C" __global__ void normal_f32(float* out, const size_t n, const unsigned long long seed,
                                      const unsigned long long stream, const unsigned long long offset,
                                      const long long* counter) {
  fill<true>(out, n, philox_at(seed, stream, offset, counter));
}

extern "C" __global__ void bernoulli_f32(const float* p, float* out, const size_t n, const unsigned long long seed,
                                         const unsigned long long stream, const unsigned long long offset) {
  for_groups<false>(Philox{seed, stream, offset}, n, [=](size_t e, const Rounded (&draws)[4], int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < count) out[e + i] = draws[i].v < p[e + i] ? 1.f : 0.f;
  });
}
