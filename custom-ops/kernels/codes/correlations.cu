// correlations.cu: the products that a pursuit starts from, and their operands.
//
//   lengths         D^ = rows of D over their norms, and 1 / |d|;   0 for an atom of norm 0
//                   |y|, and a power of two that brings the largest |y_f| near 2^12
//   correlations    A = Y D^^T, and in the same launch the Gram matrix G = D^ D^^T with NaN on its
//                   diagonal, by which an atom that was chosen is never chosen again
//
// arrays   dictionary: [n, p]; unit: [width, line], atom i at row place_of(i) with `slots`, else at
//          row i, or any layout by its two strides; unit_halves: [2, width, line] f16, 2^12 D^ as
//          the sum of two, or null; inverse_norms: [n]; signals: [m, p]; norms: [m]; scales: [m]
//          f32, or null; correlations: [m, width]; gram: [width, width]; refused: [3] u32, see
//          Refused, set to 1 for what is not finite; it may be host memory. Contiguous, no overlap.
//          `unit` has zeros from n on and from p on.
// scalars  width: a multiple of 128; line: p rounded up to 8 (f64: 2); atoms of lengths: width, or
//          0 to leave them as they are; m: 0 without signals
// launch   lengths: a warp for an atom or a signal, atoms first. correlations: 256 threads, grid
//          (width / TILE, signal_tiles + (with the Gram matrix) width / TILE); shared memory for
//          f32 as below
// cost     2 m n p + n^2 p FLOP. f32: three f16 products in the tensor cores for one of f32;
//          writing A limits
// error    f32: as part_products.cuh says
// truth    tests/parity/pursuit, by the pursuits that start from here

#include "core/part_products.cuh"
#include "codes/pursuit.cuh"

// By one warp.
template <typename T>
__device__ __forceinline__ void unit_atom(unsigned atom, const T* __restrict__ dictionary, T* __restrict__ unit,
                                          __half* __restrict__ unit_halves, T* __restrict__ inverse_norms,
                                          unsigned* __restrict__ refused, unsigned n, unsigned p, unsigned features,
                                          unsigned width, unsigned slots, size_t row_stride, size_t feature_stride) {
  const unsigned lane = threadIdx.x & 31;
  const T* const from = dictionary + (size_t)atom * p;
  const size_t to = (slots ? place_of<T>(atom, slots, width / slots) : atom) * row_stride;
  double norm = 0;
  if (atom < n) {
    norm = norm_by_warp(from, p);
    if (!(norm < CUDART_INF) && lane == 0) refused[REFUSED_ATOM] = 1;
  }
  const double inverse = norm > 0 ? 1 / norm : 0;
  for (unsigned f = lane; f < features; f += 32) {
    const T x = atom < n && f < p ? (T)(from[f] * inverse) : T(0);
    const size_t at = to + f * feature_stride;
    unit[at] = x;
    if (unit_halves) {
      in_parts((float)x * ATOM_SCALE, unit_halves[at], unit_halves[(size_t)width * features + at]);
    }
  }
  if (lane == 0 && atom < n) inverse_norms[atom] = (T)inverse;
}

// By one warp.
template <typename T>
__device__ __forceinline__ void signal_scale(size_t signal, const T* __restrict__ signals, T* __restrict__ norms,
                                             float* __restrict__ scales, unsigned* __restrict__ refused, unsigned p) {
  const unsigned lane = threadIdx.x & 31;
  unsigned peak = 0;
  for (unsigned f = lane; f < p; f += 32) peak = max(peak, __float_as_uint(fabsf((float)signals[signal * p + f])));
  const T norm = (T)norm_by_warp(signals + signal * p, p);
  const bool finite = norm < CUDART_INF;
  // The exponents of the scale and of its inverse are those of normal numbers.
  const unsigned exponent = min(max(__reduce_max_sync(ALL, peak) >> 23, 13u), 254u);
  if (lane == 0) {
    norms[signal] = finite ? norm : 0;
    if (scales) scales[signal] = __uint_as_float((127 + 12 + 127 - exponent) << 23);
    if (!finite) refused[REFUSED_SIGNAL] = 1;
  }
}

constexpr int LINE = DEPTH + 4;  // of f32 in shared memory
constexpr int STAGES = 2;
constexpr int STAGE_BYTES = TILE * LINE * 4 + 2 * TILE * HALF_LINE * 2;
// In all: STAGES STAGE_BYTES + 2 TILE HALF_LINE 2, which is CORRELATIONS_BYTES in
// src/codes/pursuit/plan/mod.rs.

// Rows `first` on and features `at` on of f32 rows `line` apart, with zeros outside.
__device__ __forceinline__ void load_rows(float* to, const float* from, size_t rows, size_t first, unsigned p,
                                          unsigned line, unsigned at, bool packs) {
  if (packs) {
#pragma unroll
    for (int t = 0; t < TILE * DEPTH / 4 / 256; ++t) {
      const unsigned i = t * 256 + threadIdx.x, row = i / (DEPTH / 4), column = i % (DEPTH / 4) * 4;
      const bool inside = first + row < rows && at + column < p;
      copy<16>(to + row * LINE + column, inside ? from + (first + row) * line + at + column : from, inside);
    }
  } else {
    for (unsigned i = threadIdx.x; i < TILE * DEPTH; i += 256) {
      const unsigned row = i / DEPTH, column = i % DEPTH;
      const bool inside = first + row < rows && at + column < p;
      copy<4>(to + row * LINE + column, inside ? from + (first + row) * line + at + column : from, inside);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256, 2)
correlations_f32(const float* __restrict__ signals, const float* __restrict__ unit,
                 const __half* __restrict__ unit_halves, const float* __restrict__ scales,
                 float* __restrict__ correlations, float* __restrict__ gram, const size_t m, const unsigned p,
                 const unsigned line, const unsigned width, const unsigned signal_tiles, const int packs) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* const halves = reinterpret_cast<__half*>(shared + STAGES * STAGE_BYTES);
  const bool of_atoms = blockIdx.y >= signal_tiles;
  const float* const rows = of_atoms ? unit : signals;
  const size_t n_rows = of_atoms ? width : m;
  const size_t first = (size_t)(of_atoms ? blockIdx.y - signal_tiles : blockIdx.y) * TILE;
  const unsigned rows_line = of_atoms ? line : p;
  float* const out = of_atoms ? gram : correlations;
  const unsigned atom = blockIdx.x * TILE;
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const unsigned at_row = warp / 4 * 64, at_atom = warp % 4 * 32;

  // What this thread splits: row `mine` and every 32nd after it, four features from `column` on.
  const unsigned mine = threadIdx.x / (DEPTH / 4), column = threadIdx.x % (DEPTH / 4) * 4;
  float scale[TILE / 32];
#pragma unroll
  for (int t = 0; t < TILE / 32; ++t) {
    const size_t row = first + mine + 32 * t;
    scale[t] = of_atoms ? ATOM_SCALE : row < m ? scales[row] : 0.f;
  }

  float sum[4][4][4] = {};
  const unsigned rounds = (p + DEPTH - 1) / DEPTH;
  auto rows_of = [&](unsigned round) { return reinterpret_cast<float*>(shared + round % STAGES * STAGE_BYTES); };
  auto atoms_of = [&](unsigned round) { return reinterpret_cast<__half*>(rows_of(round) + TILE * LINE); };
  auto load = [&](unsigned round) {
    load_rows(rows_of(round), rows, n_rows, first, p, rows_line, round * DEPTH, of_atoms || packs);
    load_halves<false>(atoms_of(round), HALF_LINE, unit_halves, width, line, round * DEPTH, atom);
    commit();
  };
  load(0);
  for (unsigned round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) {
      load(round + 1);
      wait<1>();
    } else {
      wait<0>();
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < TILE / 32; ++t) {
      const unsigned row = mine + 32 * t;
      const float4 x = *reinterpret_cast<const float4*>(rows_of(round) + row * LINE + column);
      const float scaled[4] = {x.x * scale[t], x.y * scale[t], x.z * scale[t], x.w * scale[t]};
      __half2 high[2], low[2];
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        high[q] = __floats2half2_rn(scaled[2 * q], scaled[2 * q + 1]);
        const float2 taken = __half22float2(high[q]);
        low[q] = __floats2half2_rn(scaled[2 * q] - taken.x, scaled[2 * q + 1] - taken.y);
      }
      __half* const to = halves + row * HALF_LINE + column;
      uint2 parts[2];
      memcpy(&parts[0], high, sizeof high);
      memcpy(&parts[1], low, sizeof low);
      *reinterpret_cast<uint2*>(to) = parts[0];
      *reinterpret_cast<uint2*>(to + TILE * HALF_LINE) = parts[1];
    }
    __syncthreads();
    multiply_k_block<true>(sum, halves, HALF_LINE, atoms_of(round));
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t row = first + at_row + r * 16 + half * 8 + lane / 4;
      if (row >= n_rows) continue;
      // Of powers of two: exact.
      const float back = 1 / ATOM_SCALE / (of_atoms ? ATOM_SCALE : scales[row]);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const unsigned column = atom + at_atom + c * 8 + lane % 4 * 2;
        float2 pair = make_float2(sum[r][c][half * 2] * back, sum[r][c][half * 2 + 1] * back);
        if (of_atoms && row == column) pair.x = CUDART_NAN_F;
        if (of_atoms && row == column + 1) pair.y = CUDART_NAN_F;
        *reinterpret_cast<float2*>(out + row * width + column) = pair;
      }
    }
  }
}

constexpr unsigned TILE_F64 = 64, DEPTH_F64 = 16;

extern "C" __global__ void __launch_bounds__(256)
correlations_f64(const double* __restrict__ signals, const double* __restrict__ unit, const __half*, const float*,
                 double* __restrict__ correlations, double* __restrict__ gram, const size_t m, const unsigned p,
                 const unsigned line, const unsigned width, const unsigned signal_tiles, const int) {
  __shared__ double a_tile[DEPTH_F64][TILE_F64 + 1], b_tile[DEPTH_F64][TILE_F64 + 1];
  const bool of_atoms = blockIdx.y >= signal_tiles;
  const double* const rows = of_atoms ? unit : signals;
  const size_t n_rows = of_atoms ? width : m;
  const size_t first = (size_t)(of_atoms ? blockIdx.y - signal_tiles : blockIdx.y) * TILE_F64;
  const unsigned rows_line = of_atoms ? line : p, atom = blockIdx.x * TILE_F64;
  double* const out = of_atoms ? gram : correlations;
  const unsigned x = threadIdx.x % 16, y = threadIdx.x / 16;
  double sum[4][4] = {};
  for (unsigned at = 0; at < p; at += DEPTH_F64) {
    for (unsigned i = threadIdx.x; i < TILE_F64 * DEPTH_F64; i += 256) {
      const unsigned row = i / DEPTH_F64, f = i % DEPTH_F64;
      a_tile[f][row] = first + row < n_rows && at + f < p ? rows[(first + row) * rows_line + at + f] : 0;
      b_tile[f][row] = atom + row < width && at + f < p ? unit[(size_t)(atom + row) * line + at + f] : 0;
    }
    __syncthreads();
#pragma unroll
    for (unsigned f = 0; f < DEPTH_F64; ++f)
#pragma unroll
      for (unsigned r = 0; r < 4; ++r)
#pragma unroll
        for (unsigned c = 0; c < 4; ++c)
          sum[r][c] = fma(a_tile[f][y + 16 * r], b_tile[f][x + 16 * c], sum[r][c]);
    __syncthreads();
  }
#pragma unroll
  for (unsigned r = 0; r < 4; ++r) {
    const size_t row = first + y + 16 * r;
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) {
      const unsigned column = atom + x + 16 * c;
      if (row < n_rows && column < width) out[row * width + column] = of_atoms && row == column ? CUDART_NAN : sum[r][c];
    }
  }
}

// Atoms first: they take longer.
#define OF(SUFFIX, T)                                                                                                  \
  extern "C" __global__ void lengths_##SUFFIX(                                                                         \
      const T* dictionary, T* unit, __half* unit_halves, T* inverse_norms, const T* signals, T* norms, float* scales,  \
      unsigned* refused, const size_t m, const size_t row_stride, const size_t feature_stride, const unsigned atoms,   \
      const unsigned n, const unsigned p, const unsigned features, const unsigned slots) {                             \
    const size_t warp = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;                                     \
    if (warp < atoms) {                                                                                                \
      unit_atom<T>((unsigned)warp, dictionary, unit, unit_halves, inverse_norms, refused, n, p, features, atoms,       \
                   slots, row_stride, feature_stride);                                                                 \
    } else if (warp - atoms < m) {                                                                                     \
      signal_scale<T>(warp - atoms, signals, norms, scales, refused, p);                                               \
    }                                                                                                                  \
  }
OF(f32, float)
OF(f64, double)
