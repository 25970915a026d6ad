#include "pursuit.cuh"
#include "tiles.cuh"

// One warp an atom.
template <typename T>
__device__ __forceinline__ void unit_atoms(const T* __restrict__ dictionary, T* __restrict__ unit,
                                           T* __restrict__ inverse_norms, unsigned* __restrict__ refused, unsigned n,
                                           unsigned p, unsigned features, unsigned width, unsigned slots,
                                           size_t row_stride, size_t feature_stride) {
  const unsigned lane = threadIdx.x & 31;
  const unsigned atom = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (atom >= width) return;
  const T* const from = dictionary + (size_t)atom * p;
  T* const to = unit + (slots ? place_of<T>(atom, slots) : atom) * row_stride;
  double square = 0;
  if (atom < n) {
    for (unsigned f = lane; f < p; f += 32) square = fma((double)from[f], (double)from[f], square);
    square = sum_of_warp(square);
    if (!(square < CUDART_INF) && lane == 0) *refused = 1;
  }
  const double inverse = square > 0 ? 1 / sqrt(square) : 0;
  for (unsigned f = lane; f < features; f += 32)
    to[f * feature_stride] = atom < n && f < p ? (T)(from[f] * inverse) : T(0);
  if (lane == 0 && atom < n) inverse_norms[atom] = (T)inverse;
}

// f32 as the sum of two numbers that the tensor cores multiply exactly: 11 bits each, 22 of 24.
__device__ __forceinline__ void halves(float x, uint32_t& high, uint32_t& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;        // to nearest
  low = __float_as_uint(x - __uint_as_float(high));           // exact; the unit reads its upper 11 bits
}

__device__ __forceinline__ void multiply_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

constexpr int TILE = 128;      // signals and atoms of a block
constexpr int DEPTH = 32;      // features at a time
constexpr int LINE = DEPTH + 4;  // so that the eight lines of a fragment lie in different banks
constexpr int STAGES = 2;

#ifndef CHAIN
#define CHAIN 1
#endif

__device__ __forceinline__ void load_tile(float* to, const float* from, size_t rows, size_t first, unsigned p, unsigned line,
                          unsigned at, bool packs) {
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
correlations_f32(const float* __restrict__ signals, const float* __restrict__ unit, float* __restrict__ correlations,
                 float* __restrict__ gram, const size_t m, const unsigned p, const unsigned line, const unsigned width,
                 const unsigned signal_tiles, const int packs) {
  extern __shared__ __align__(16) float shared[];
  const bool of_atoms = blockIdx.y >= signal_tiles;
  const float* const rows = of_atoms ? unit : signals;
  const size_t n_rows = of_atoms ? width : m;
  const size_t first = (size_t)(of_atoms ? blockIdx.y - signal_tiles : blockIdx.y) * TILE;
  const unsigned rows_line = of_atoms ? line : p;
  const bool rows_in_packs = of_atoms || packs;
  float* const out = of_atoms ? gram : correlations;
  const unsigned atom = blockIdx.x * TILE;
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const unsigned group = lane / 4, quarter = lane & 3;
  const unsigned at_row = warp / 4 * 64, at_atom = warp % 4 * 32;

  float sum[4][4][4] = {};
  const unsigned rounds = (p + DEPTH - 1) / DEPTH;
  auto load = [&](unsigned round) {
    float* const to = shared + round % STAGES * (2 * TILE * LINE);
    load_tile(to, rows, n_rows, first, p, rows_line, round * DEPTH, rows_in_packs);
    load_tile(to + TILE * LINE, unit, width, atom, line, line, round * DEPTH, true);
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
    const float* const a_tile = shared + round % STAGES * (2 * TILE * LINE);
    const float* const b_tile = a_tile + TILE * LINE;
#pragma unroll
    for (int at = 0; at < DEPTH; at += 8 * CHAIN) {
      uint32_t b_high[CHAIN][4][2], b_low[CHAIN][4][2];
#pragma unroll
      for (int h = 0; h < CHAIN; ++h)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float* const from = b_tile + (at_atom + c * 8 + group) * LINE + at + h * 8 + quarter;
#pragma unroll
          for (int q = 0; q < 2; ++q) halves(from[q * 4], b_high[h][c][q], b_low[h][c][q]);
        }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        uint32_t a_high[CHAIN][4], a_low[CHAIN][4];
#pragma unroll
        for (int h = 0; h < CHAIN; ++h) {
          const float* const from = a_tile + (at_row + r * 16 + group) * LINE + at + h * 8 + quarter;
#pragma unroll
          for (int q = 0; q < 4; ++q) halves(from[(q & 1) * 8 * LINE + (q >> 1) * 4], a_high[h][q], a_low[h][q]);
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          // The tensor cores cut sums off where f32 rounds: few at a time, then rounded.
          float part[4] = {};
#pragma unroll
          for (int h = 0; h < CHAIN; ++h) multiply_tf32(part, a_low[h], b_high[h][c]);
#pragma unroll
          for (int h = 0; h < CHAIN; ++h) multiply_tf32(part, a_high[h], b_low[h][c]);
#pragma unroll
          for (int h = 0; h < CHAIN; ++h) multiply_tf32(part, a_high[h], b_high[h][c]);
#pragma unroll
          for (int q = 0; q < 4; ++q) sum[r][c][q] += part[q];
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t row = first + at_row + r * 16 + half * 8 + group;
      if (row >= n_rows) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const unsigned column = atom + at_atom + c * 8 + quarter * 2;
        float2 pair = make_float2(sum[r][c][half * 2], sum[r][c][half * 2 + 1]);
        if (of_atoms && row == column) pair.x = CUDART_NAN_F;
        if (of_atoms && row == column + 1) pair.y = CUDART_NAN_F;
        *reinterpret_cast<float2*>(out + row * width + column) = pair;
      }
    }
  }
}

constexpr unsigned TILE_F64 = 64, DEPTH_F64 = 16;

extern "C" __global__ void __launch_bounds__(256)
correlations_f64(const double* __restrict__ signals, const double* __restrict__ unit, double* __restrict__ correlations,
                 double* __restrict__ gram, const size_t m, const unsigned p, const unsigned line, const unsigned width,
                 const unsigned signal_tiles, const int) {
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

#define UNIT_ATOMS(NAME, T)                                                                                           \
  extern "C" __global__ void NAME(const T* dictionary, T* unit, T* inverse_norms, unsigned* refused, const unsigned n, \
                                  const unsigned p, const unsigned features, const unsigned width,                    \
                                  const unsigned slots, const size_t row_stride, const size_t feature_stride) {       \
    unit_atoms<T>(dictionary, unit, inverse_norms, refused, n, p, features, width, slots, row_stride, feature_stride); \
  }
UNIT_ATOMS(unit_atoms_f32, float)
UNIT_ATOMS(unit_atoms_f64, double)
