// corrupt.cu: rows with noise, for denoising autoencoders.
//
//   salt_and_pepper   out = u < p/2 ? 0 : u < p ? 1 : x
//   masking           out = u < p ? 0 : x
//   gaussian          out = x + p z
//
// arrays   x: [n] f32, contiguous; out: the same, or two parts of [n] f16, `part` entries apart; not overlapping; counter: [1] i64 or null
// scalars  n, first: entry i is element first + i, which takes word e % 4 of block offset + counter + e / 4; p: a share in
//          [0, 1], or for gaussian a standard deviation of at least 0; seed, stream, offset: any values
// launch   1-D grid of 1-D blocks, any size: a thread takes the elements of one block of Philox and strides over the grid. The
//          draws do not depend on the launch
// cost     reads and writes 4n bytes; bandwidth-bound, gaussian close to its arithmetic
// NaN      stays where it is not replaced
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    corrupt_reference in src/corrupt.rs

#include "corruption.cuh"
#include "numbers.cuh"
#include "order.cuh"

// Stores one entry, as it is or as the sum of two f16 numbers.
__device__ __forceinline__ void store_entry(float* out, size_t, size_t at, float x) { out[at] = x; }
__device__ __forceinline__ void store_entry(__half* out, size_t part, size_t at, float x) {
  out[at] = narrow<__half>(x);
  out[part + at] = narrow<__half>(x - wide(out[at]));
}

template <Law LAW, typename T>
__device__ void corrupt(const float* x, T* out, size_t part, size_t n, size_t first, float p, const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t skip = first % 4;
  const size_t groups = (skip + n + 3) / 4;
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    Rounded draws[4] = {0.f, 0.f, 0.f, 0.f};
    draws_of(LAW, philox, first / 4 + g, draws);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const size_t e = 4 * g + i;  // counted from the first element of the first block
      if (e >= skip && e - skip < n) store_entry(out, part, e - skip, corrupted(LAW, x[e - skip], draws[i], p));
    }
  }
}

#define CORRUPT_TO(NAME, LAW, T)                                                                                \
  extern "C" __global__ void NAME(const float* x, T* out, const size_t part, const size_t n, const size_t first, \
                                  const float p, const unsigned long long seed, const unsigned long long stream, \
                                  const unsigned long long offset, const long long* counter) {                  \
    wait_for_previous();                                                                                        \
    let_next_start();                                                                                           \
    corrupt<LAW>(x, out, part, n, first, p, philox_at(seed, stream, offset, counter));                          \
  }
#define CORRUPT(NAME, LAW)                 \
  CORRUPT_TO(corrupt_##NAME, LAW, float)   \
  CORRUPT_TO(corrupt_parts_##NAME, LAW, __half)
CORRUPT(none, NONE)
CORRUPT(salt_and_pepper, SALT_AND_PEPPER)
CORRUPT(masking, MASKING)
CORRUPT(gaussian, GAUSSIAN)
