// corrupt.cu: rows with noise, for denoising autoencoders.
//
//   salt_and_pepper   out = u < p/2 ? 0 : u < p ? 1 : x
//   masking           out = u < p ? 0 : x
//   flip              out = u < p ? 1 - x : x
//   gaussian          out = x + p z
//
// arrays   x: [runs, rows, width] f32 in lines; out: the same, or bf16 or f16, or two parts of f16, `part`
//          entries apart. Lines of a run are `line` entries from each other, runs of x `rows * line` and
//          runs of out `apart`; not overlapping; counter: [1] i64 or null
// scalars  first, numbers: entry i of a run, counted without what lies between lines, is element
//          first + run * numbers + i, which takes word e % 4 of block offset + counter + e / 4; p: a
//          share in [0, 1], or for gaussian a standard deviation of at least 0; seed, stream, offset:
//          any values
// launch   grid of any number of 1-D blocks of whole warps across, any number of rows of them for the
//          runs: a thread takes four neighbours of a line and strides over the run. Where the four are
//          of two blocks of Philox, the lane that follows has the second one: the last lane of a warp
//          then only draws. The draws do not depend on the launch
// cost     reads and writes 4n bytes, four entries at once where lines begin aligned; bandwidth-bound,
//          gaussian close to its arithmetic
// NaN      stays where it is not replaced
// same     the same bits as the CPU twin, by philox.cuh and math.cuh
// truth    corrupt_reference in src/layers/corrupt.rs

#include "layers/corruption.cuh"
#include "core/numbers.cuh"
#include "core/order.cuh"

// Stores the first `count` of four entries, all at once where `whole`.
template <typename T>
__device__ __forceinline__ void store_entries(T* out, const float (&v)[4], bool whole, size_t count) {
  if (whole) return store4(out, v);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) out[i] = narrow<T>(v[i]);
}

// The draws of four elements that begin `skip` after those of this lane's block of Philox, of which
// the lane that follows has the next one.
__device__ __forceinline__ void shift_draws(unsigned skip, Rounded (&draws)[4]) {
  Rounded seven[7];
#pragma unroll
  for (int i = 0; i < 4; ++i) seven[i] = draws[i];
#pragma unroll
  for (int i = 0; i < 3; ++i) seven[4 + i] = __shfl_down_sync(~0u, draws[i].v, 1);
#pragma unroll
  for (int i = 0; i < 6; ++i) seven[i] = skip & 1 ? seven[i + 1] : seven[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) draws[i] = skip & 2 ? seven[i + 2] : seven[i];
}

template <Law LAW, typename T>
__device__ void corrupt(const float* x, T* out, size_t part, size_t rows, size_t width, size_t line, size_t first,
                        float p, const Philox& philox) {
  const size_t of_line = (width + 3) / 4, n = rows * of_line;
  const bool in_blocks = first % 4 == 0 && (rows == 1 || width % 4 == 0);
  const bool aligned = (size_t)x % 16 == 0 && (size_t)out % (4 * sizeof(T)) == 0 && part % 4 == 0;
  const bool fours = aligned && (rows == 1 || line % 4 == 0);
  const unsigned lane = threadIdx.x % 32, lanes = in_blocks ? 32 : 31;
  const size_t warp = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const size_t stride = (size_t)gridDim.x * (blockDim.x / 32) * lanes;
  for (size_t start = warp * lanes; start < n; start += stride) {
    const size_t four = start + lane;
    const size_t row = rows == 1 ? 0 : four / of_line;
    const size_t col = 4 * (four - row * of_line);
    const size_t e = first + row * width + col;
    Rounded draws[4] = {0.f, 0.f, 0.f, 0.f};
    draws_of(LAW, philox, e / 4, draws);
    // What follows the last four of a line begins the next line, or is beyond what they need.
    if (LAW != NONE && !in_blocks) shift_draws(e % 4, draws);
    if (lane == lanes || four >= n) continue;
    const size_t at = row * line + col, count = width - col;
    const bool whole = fours && count >= 4;
    float v[4] = {0.f, 0.f, 0.f, 0.f};
    if (whole) {
      load4(x + at, v);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < count) v[i] = x[at + i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = corrupted(LAW, v[i], draws[i], p);
    store_entries(out + at, v, whole, count);
    if constexpr (std::is_same<T, __half>::value) {
      if (!part) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = v[i] - wide(narrow<__half>(v[i]));
      store_entries(out + part + at, v, whole, count);
    }
  }
}

#define CORRUPT_TO(NAME, LAW, T)                                                                                 \
  extern "C" __global__ void NAME(const float* x, T* out, const size_t part, const size_t apart, const size_t runs, \
                                  const size_t rows, const size_t width, const size_t line, const size_t first,    \
                                  const size_t numbers, const float p, const unsigned long long seed,              \
                                  const unsigned long long stream, const unsigned long long offset,               \
                                  const long long* counter) {                                                      \
    wait_for_previous();                                                                                           \
    launch_dependents();                                                                                           \
    const Philox philox = philox_at(seed, stream, offset, counter);                                                \
    for (size_t run = blockIdx.y; run < runs; run += gridDim.y)                                                    \
      corrupt<LAW>(x + run * rows * line, out + run * apart, part, rows, width, line, first + run * numbers, p,     \
                   philox);                                                                                        \
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
