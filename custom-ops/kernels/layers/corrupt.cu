// corrupt.cu: rows with noise, for denoising autoencoders.
//
//   salt_and_pepper   out = u < p/2 ? 0 : u < p ? 1 : x
//   masking           out = u < p ? 0 : x
//   flip              out = u < p ? 1 - x : x
//   gaussian          out = x + p z
//
// arrays   x: [runs, n] f32, without gaps between runs; out: the same, or runs of [n] bf16 or f16, or
//          two parts of runs of [n] f16, parts `part` and runs `apart` entries apart; a run of either
//          is of lines of `width` entries, `line` from each other, which is `width` where it has no
//          gaps; not overlapping; counter: [1] i64 or null
// scalars  n, first: entry i is element first + i, which takes word e % 4 of block offset + counter
//          + e / 4; p: a share in [0, 1], or for gaussian a standard deviation of at least 0; seed,
//          stream, offset: any values
// launch   grid of any number of 1-D blocks across, a row of them for each run: a thread takes the
//          elements of one block of Philox and strides over the row. The draws do not depend on the
//          launch
// cost     reads and writes 4n bytes; bandwidth-bound, gaussian close to its arithmetic
// NaN      stays where it is not replaced
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    corrupt_reference in src/layers/corrupt.rs

#include "layers/corruption.cuh"
#include "core/lines.cuh"
#include "core/numbers.cuh"
#include "core/order.cuh"

// Stores the first `count` of four entries, as they are or as the sum of two f16 numbers `part`
// entries apart, of which there is one alone where that is 0; four are aligned to their size.
__device__ __forceinline__ void store_entries(float* out, size_t, const float (&v)[4], int count) {
  if (count == 4) return store4(out, v);
  for (int i = 0; i < count; ++i) out[i] = v[i];
}
__device__ __forceinline__ void store_entries(__nv_bfloat16* out, size_t, const float (&v)[4], int count) {
  if (count == 4) return store4(out, v);
  for (int i = 0; i < count; ++i) out[i] = narrow<__nv_bfloat16>(v[i]);
}
__device__ __forceinline__ void store_entries(__half* out, size_t part, const float (&v)[4], int count) {
  float rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rest[i] = v[i] - wide(narrow<__half>(v[i]));
  if (count == 4) {
    store4(out, v);
    if (part) store4(out + part, rest);
    return;
  }
  for (int i = 0; i < count; ++i) {
    out[i] = narrow<__half>(v[i]);
    if (part) out[part + i] = narrow<__half>(rest[i]);
  }
}

template <Law LAW, typename T>
__device__ void corrupt(const float* x, T* out, size_t part, size_t n, size_t width, size_t line, size_t first, float p,
                        const Philox& philox) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  const size_t skip = first % 4;
  const size_t groups = (skip + n + 3) / 4;
  const bool whole = width == line || (width % 4 == 0 && line % 4 == 0);
  const bool fours = whole && skip == 0 && (size_t)x % 16 == 0 && (size_t)out % (4 * sizeof(T)) == 0 && part % 4 == 0;
  for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
    Rounded draws[4] = {0.f, 0.f, 0.f, 0.f};
    draws_of(LAW, philox, first / 4 + g, draws);
    float v[4];
    if (fours && 4 * g + 4 <= n) {
      const size_t at = place_in_lines(4 * g, width, line);
      load4(x + at, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = corrupted(LAW, v[i], draws[i], p);
      store_entries(out + at, part, v, 4);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const size_t e = 4 * g + i;  // counted from the first element of the first block
      if (e < skip || e - skip >= n) continue;
      const size_t at = place_in_lines(e - skip, width, line);
      v[0] = corrupted(LAW, x[at], draws[i], p), v[1] = v[2] = v[3] = 0.f;
      store_entries(out + at, part, v, 1);
    }
  }
}

#define CORRUPT_TO(NAME, LAW, T)                                                                                \
  extern "C" __global__ void NAME(const float* x, T* out, const size_t part, const size_t apart, const size_t n, \
                                  const size_t width, const size_t line, const size_t first, const float p,      \
                                  const unsigned long long seed,                                                 \
                                  const unsigned long long stream, const unsigned long long offset,             \
                                  const long long* counter) {                                                   \
    wait_for_previous();                                                                                        \
    launch_dependents();                                                                                           \
    const size_t run = blockIdx.y;                                                                              \
    corrupt<LAW>(x + run * (width == line ? n : n / width * line), out + run * apart, part, n, width, line,       \
                 first + run * n, p, philox_at(seed, stream, offset, counter));                                  \
  }
#define CORRUPT(NAME, LAW)                 \
  CORRUPT_TO(corrupt_##NAME, LAW, float)   \
  CORRUPT_TO(corrupt_bf16_##NAME, LAW, __nv_bfloat16) \
  CORRUPT_TO(corrupt_parts_##NAME, LAW, __half)
CORRUPT(none, NONE)
CORRUPT(salt_and_pepper, SALT_AND_PEPPER)
CORRUPT(masking, MASKING)
CORRUPT(gaussian, GAUSSIAN)
CORRUPT(flip, FLIP)
