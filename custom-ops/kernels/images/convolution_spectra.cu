// convolution_spectra.cu: convolutions and their gradients by Fourier transforms of tiles, for
// several channels and filters.
//
//   A(f), B(f)   transforms of squares of SIDE x SIDE places
//   C(f)         = A(f) B(f), complex matrices, one product for each frequency
//   results      those of the inverse transform that did not wrap around
//
// Which squares, which of the two is conjugated, and which results are kept stands in
// src/images/convolution/tiles.rs. Two neighbouring channels a, b are one complex square a + i b;
// A = (Z(f) + conj Z(-f)) / 2 and B = (Z(f) - conj Z(-f)) / 2i take them apart.
//
// arrays   images [batch, height, width, channels]; spectra [frequencies, rows, 2 pairs] complex,
//          rows: tiles of images, or filters; frequencies: the SIDE^2 / 2 + 2 of which no two are
//          conjugates of each other
// cost     8 FLOP for each frequency, row, column and term; each spectrum is written and read
//          once, in memory that the L2 cache holds
// error    some 2^-22 of the length of a tile times that of a filter, whatever the sum is
// NaN      reaches all results of the tiles that it lies in; so do infinities
// same     each sum has one order on one device; no atomics
// truth    convolution_reference and the references of the gradients, in
//          src/images/convolution/reference.rs

#include "core/complex.cuh"
#include "core/numbers.cuh"
#include "core/order.cuh"
#include "core/tf32.cuh"

constexpr int THREADS = 256;

// cos(2 pi j / 32), for constants j.
__device__ __forceinline__ constexpr float cosine(int j) {
  j %= 32;
  if (j > 16) j = 32 - j;
  const bool negative = j > 8;
  if (negative) j = 16 - j;
  const float value = j == 0   ? 1.f
                      : j == 1 ? .98078528040323044913f
                      : j == 2 ? .92387953251128675613f
                      : j == 3 ? .83146961230254523708f
                      : j == 4 ? .70710678118654752440f
                      : j == 5 ? .55557023301960222474f
                      : j == 6 ? .38268343236508977173f
                      : j == 7 ? .19509032201612826785f
                               : 0.f;
  return negative ? -value : value;
}

template <bool INVERSE>
__device__ __forceinline__ float2 quarter_turn(float2 a) {
  return INVERSE ? float2{-a.y, a.x} : float2{a.y, -a.x};
}
// Times exp(-+ 2 pi i j / n).
template <bool INVERSE>
__device__ __forceinline__ float2 turned(float2 a, int j, int n) {
  const int at = j * (32 / n);
  if (at % 32 == 0) return a;
  if (at % 32 == 8) return quarter_turn<INVERSE>(a);
  const float c = cosine(at), s = INVERSE ? cosine(at + 24) : -cosine(at + 24);
  return times(a, {c, s});
}

// The transform of N numbers in registers, N a power of 2 up to 32.
template <int N, bool INVERSE>
__device__ __forceinline__ void transform(float2 (&x)[N]) {
  if constexpr (N == 2) {
    const float2 a = x[0], b = x[1];
    x[0] = plus(a, b), x[1] = minus(a, b);
  } else if constexpr (N >= 4) {
    constexpr int M = N / 4;
    float2 part[4][M];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int i = 0; i < M; ++i) part[r][i] = x[4 * i + r];
      transform<M, INVERSE>(part[r]);
    }
#pragma unroll
    for (int k = 0; k < M; ++k) {
      const float2 p0 = part[0][k], p1 = turned<INVERSE>(part[1][k], k, N), p2 = turned<INVERSE>(part[2][k], 2 * k, N),
                   p3 = turned<INVERSE>(part[3][k], 3 * k, N);
      const float2 a = plus(p0, p2), b = minus(p0, p2), c = plus(p1, p3), d = quarter_turn<INVERSE>(minus(p1, p3));
      x[k] = plus(a, c), x[k + M] = plus(b, d), x[k + 2 * M] = minus(a, c), x[k + 3 * M] = minus(b, d);
    }
  }
}

// Squares of one array: where they lie, and the places of each that it has.
struct Squares {
  int height, width, channels;
  int down, across, step;  // squares of an image, and how far apart they are
  int offset;              // of the first from the image's corner
  int first, extent;       // places of a square that count: `extent` from `first` on, in each direction
  int rows, pairs;         // squares, and pairs of channels
  int wide;                // whether pairs of channels are read or written at once
};

// A square's place in its image.
struct Corner {
  int y, x;
  size_t image;  // where the image begins
  __device__ __forceinline__ Corner(const Squares& p, int row) {
    const int of_image = p.down * p.across, tile = row % of_image;
    y = tile / p.across * p.step + p.offset, x = tile % p.across * p.step + p.offset;
    image = (size_t)(row / of_image) * p.height * p.width * p.channels;
  }
};

// A block's pairs of channels in shared memory: column kx, row of it, pair. Columns are 64 bytes
// apart where two of them meet in one access.
template <int SIDE>
struct Block {
  static constexpr int PAIRS = THREADS / SIDE, COLUMN = SIDE * PAIRS + (PAIRS < 16 ? 8 : 0);
  static constexpr int BYTES = SIDE * COLUMN * 8;
  static __device__ __forceinline__ int place(int column, int row, int pair) { return column * COLUMN + row * PAIRS + pair; }
};

// The places of frequency f and of its conjugate in a block.
template <int SIDE>
struct Frequency {
  static constexpr int COUNT = SIDE * SIDE / 2 + 2;
  int kx, ky;
  __device__ __forceinline__ explicit Frequency(int f) {
    constexpr int INNER = SIDE * (SIDE / 2 - 1);
    const int outer = f - INNER;
    kx = outer < 0 ? f / SIDE + 1 : outer > SIDE / 2 ? SIDE / 2 : 0;
    ky = outer < 0 ? f % SIDE : outer % (SIDE / 2 + 1);
  }
  __device__ __forceinline__ int place(int pair) const { return Block<SIDE>::place(kx, ky, pair); }
  __device__ __forceinline__ int conjugate(int pair) const { return Block<SIDE>::place((SIDE - kx) % SIDE, (SIDE - ky) % SIDE, pair); }
};

extern __shared__ __align__(16) float2 squares[];

// spectra[f, row, channel] of the squares of x. grid (rows pairs / PAIRS)
template <int SIDE>
__device__ __forceinline__ void spectra_of(float4* spectra, const float* x, const Squares& p) {
  wait_for_previous();
  launch_dependents();
  using Of = Block<SIDE>;
  const int pair = threadIdx.x % Of::PAIRS, line = threadIdx.x / Of::PAIRS;
  const int items = p.rows * p.pairs, item = blockIdx.x * Of::PAIRS + pair;
  const int c = item % p.pairs * 2;
  const bool alone = c + 1 >= p.channels;
  float2 z[SIDE];
  if (item < items) {
    const Corner corner(p, item / p.pairs);
    const int y = corner.y + line;
    const bool here = line >= p.first && line < p.first + p.extent && y >= 0 && y < p.height;
    const float* from = x + corner.image + ((ptrdiff_t)y * p.width + corner.x) * p.channels + c;
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
      const int column = corner.x + i;
      const bool inside = here && i >= p.first && i < p.first + p.extent && column >= 0 && column < p.width;
      const float* at = from + i * p.channels;
      if (!inside) z[i] = {0.f, 0.f};
      else if (p.wide) z[i] = *reinterpret_cast<const float2*>(at);
      else z[i] = {at[0], alone ? 0.f : at[1]};
    }
  } else {
#pragma unroll
    for (int i = 0; i < SIDE; ++i) z[i] = {0.f, 0.f};
  }
  transform<SIDE, false>(z);
#pragma unroll
  for (int i = 0; i < SIDE; ++i) squares[Of::place(i, line, pair)] = z[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SIDE; ++i) z[i] = squares[Of::place(line, i, pair)];
  transform<SIDE, false>(z);
#pragma unroll
  for (int i = 0; i < SIDE; ++i) squares[Of::place(line, i, pair)] = z[i];
  __syncthreads();
  if (item >= items) return;
#pragma unroll 4
  for (int f = line; f < Frequency<SIDE>::COUNT; f += SIDE) {
    const Frequency<SIDE> at(f);
    const float2 here = squares[at.place(pair)], there = squares[at.conjugate(pair)];
    float4 both = {.5f * (here.x + there.x), .5f * (here.y - there.y), .5f * (here.y + there.y), .5f * (there.x - here.x)};
    if (alone) both.z = both.w = 0.f;
    spectra[(size_t)f * items + item] = both;
  }
}

// y's squares from the sum of `parts` spectra: alpha times each result plus beta times what was
// there, the factors from memory where they are there. grid (rows pairs / PAIRS)
template <int SIDE>
__device__ __forceinline__ void results_of(float* y, const float4* spectra, const float* factors, int parts, float alpha, float beta,
                                           const Squares& p) {
  wait_for_previous();
  launch_dependents();
  using Of = Block<SIDE>;
  constexpr int FREQUENCIES = Frequency<SIDE>::COUNT;
  const int pair = threadIdx.x % Of::PAIRS, line = threadIdx.x / Of::PAIRS;
  const int items = p.rows * p.pairs, item = blockIdx.x * Of::PAIRS + pair;
  const int c = item % p.pairs * 2;
  if (item < items) {
#pragma unroll 4
    for (int f = line; f < FREQUENCIES; f += SIDE) {
      float4 both = spectra[(size_t)f * items + item];
      for (int i = 1; i < parts; ++i) {
        const float4 more = spectra[((size_t)i * FREQUENCIES + f) * items + item];
        both.x += more.x, both.y += more.y, both.z += more.z, both.w += more.w;
      }
      const Frequency<SIDE> at(f);
      squares[at.conjugate(pair)] = {both.x + both.w, both.z - both.y};
      squares[at.place(pair)] = {both.x - both.w, both.y + both.z};
    }
  }
  __syncthreads();
  float2 z[SIDE];
#pragma unroll
  for (int i = 0; i < SIDE; ++i) z[i] = squares[Of::place(line, i, pair)];
  transform<SIDE, true>(z);
#pragma unroll
  for (int i = 0; i < SIDE; ++i) squares[Of::place(line, i, pair)] = z[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SIDE; ++i) z[i] = squares[Of::place(i, line, pair)];
  if (item >= items || line < p.first || line >= p.first + p.extent) return;
  transform<SIDE, true>(z);
  const Corner corner(p, item / p.pairs);
  const int row = corner.y + line;
  if (row < 0 || row >= p.height) return;
  alpha = (factors ? factors[0] : alpha) / (SIDE * SIDE);
  if (factors) beta = factors[1];
  float* const to = y + corner.image + ((ptrdiff_t)row * p.width + corner.x) * p.channels + c;
#pragma unroll
  for (int i = 0; i < SIDE; ++i) {
    const int column = corner.x + i;
    if (i < p.first || i >= p.first + p.extent || column < 0 || column >= p.width) continue;
    float* const at = to + i * p.channels;
    float2 value = {alpha * z[i].x, alpha * z[i].y};
    const bool alone = c + 1 >= p.channels;
    if (beta != 0.f) {
      value.x = fmaf(beta, at[0], value.x);
      if (!alone) value.y = fmaf(beta, at[1], value.y);
    }
    if (p.wide) {
      *reinterpret_cast<float2*>(at) = value;
    } else {
      at[0] = value.x;
      if (!alone) at[1] = value.y;
    }
  }
}

// Complex matrices of one frequency: C[m, n] = sum over k of A B. Lengths of lines are even.
struct Products {
  int m, n, terms;             // rows, numbers of a line of C, terms
  int columns;                 // of C that are not 0: n or one less
  int a_lines, a_line;         // of a frequency's A, and the numbers of each
  int b_lines, b_line;
  int turns_a, turns_b;        // whether A and B are conjugated
  int blocks_down, adds;       // blocks of a frequency above each other; whether C was there before
};

constexpr int STEP = 8;  // terms

// Lines of A hold terms (A_TERMS) or rows, those of B terms or columns. A block has DOWN by ACROSS
// warps of 32 rows by 32 columns each. Numbers are multiplied in TF32 parts, see tf32.cuh:
//   re C = re A re B + im A (-im B)        im C = re A im B + im A re B
// grid (blocks, frequencies, splits of terms)
template <int DOWN, int ACROSS, bool A_TERMS, bool B_TERMS>
__device__ __forceinline__ void products_of(float4* c, const float4* a, const float4* b, const Products& p) {
  constexpr int M = 32 * DOWN, N = 32 * ACROSS, SIZE = 32 * DOWN * ACROSS, A_LINE = M + 4, B_LINE = N + 4;
  constexpr int A_EACH = M * STEP / 2 / SIZE, B_EACH = N * STEP / 2 / SIZE;
  __shared__ __align__(16) float2 a_tile[STEP * A_LINE], b_tile[STEP * B_LINE];
  const int m0 = blockIdx.x % p.blocks_down * M, n0 = blockIdx.x / p.blocks_down * N;
  const int splits = gridDim.z, steps = (p.terms + STEP - 1) / STEP;
  const int begin = (int)((long long)steps * blockIdx.z / splits) * STEP;
  const int end = min((int)((long long)steps * (blockIdx.z + 1) / splits) * STEP, p.terms);
  a += (size_t)blockIdx.y * p.a_lines * p.a_line / 2, b += (size_t)blockIdx.y * p.b_lines * p.b_line / 2;
  const float a_sign = p.turns_a ? -1.f : 1.f, b_sign = p.turns_b ? -1.f : 1.f;

  wait_for_previous();
  launch_dependents();
  float4 next_a[A_EACH], next_b[B_EACH];
  // Two neighbours of a line; of terms the last may be alone, and then 0 lies beside it.
  auto bring = [&](int k0) {
#pragma unroll
    for (int i = 0; i < A_EACH; ++i) {
      const int at = i * SIZE + threadIdx.x;
      const int k = k0 + (A_TERMS ? at % (STEP / 2) * 2 : at / (M / 2)), m = m0 + (A_TERMS ? at / (STEP / 2) : at % (M / 2) * 2);
      const size_t place = A_TERMS ? (size_t)m * p.a_line + k : (size_t)k * p.a_line + m;
      next_a[i] = k < end && m < p.m ? a[place / 2] : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int i = 0; i < B_EACH; ++i) {
      const int at = i * SIZE + threadIdx.x;
      const int k = k0 + (B_TERMS ? at % (STEP / 2) * 2 : at / (N / 2)), n = n0 + (B_TERMS ? at / (STEP / 2) : at % (N / 2) * 2);
      const size_t place = B_TERMS ? (size_t)n * p.b_line + k : (size_t)k * p.b_line + n;
      next_b[i] = k < end && n < p.columns ? b[place / 2] : make_float4(0.f, 0.f, 0.f, 0.f);
    }
  };
  auto store = [&]() {
#pragma unroll
    for (int i = 0; i < A_EACH; ++i) {
      const int at = i * SIZE + threadIdx.x;
      float2* const to = a_tile + (A_TERMS ? at % (STEP / 2) * 2 * A_LINE + at / (STEP / 2) : at / (M / 2) * A_LINE + at % (M / 2) * 2);
      to[0] = {next_a[i].x, a_sign * next_a[i].y}, to[A_TERMS ? A_LINE : 1] = {next_a[i].z, a_sign * next_a[i].w};
    }
#pragma unroll
    for (int i = 0; i < B_EACH; ++i) {
      const int at = i * SIZE + threadIdx.x;
      float2* const to = b_tile + (B_TERMS ? at % (STEP / 2) * 2 * B_LINE + at / (STEP / 2) : at / (N / 2) * B_LINE + at % (N / 2) * 2);
      to[0] = {next_b[i].x, b_sign * next_b[i].y}, to[B_TERMS ? B_LINE : 1] = {next_b[i].z, b_sign * next_b[i].w};
    }
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = warp / ACROSS * 32, column = warp % ACROSS * 32;
  float sum[2][4][2][4] = {};  // sixteens of rows, eights of columns, re and im
  bring(begin);
#pragma unroll 1
  for (int k0 = begin; k0 < end; k0 += STEP) {
    store();
    __syncthreads();
    if (k0 + STEP < end) bring(k0 + STEP);
    uint32_t high[2][2][4], low[2][2][4];  // of A: sixteens of rows, re and im
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 from[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) from[j] = a_tile[(t + j / 2 * 4) * A_LINE + row + 16 * i + g + j % 2 * 8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        in_tf32_parts(from[j].x, high[i][0][j], low[i][0][j]);
        in_tf32_parts(from[j].y, high[i][1][j], low[i][1][j]);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b_high[3][2], b_low[3][2];  // re, im, -im
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 from = b_tile[(t + 4 * j) * B_LINE + column + 8 * n + g];
        in_tf32_parts(from.x, b_high[0][j], b_low[0][j]);
        in_tf32_parts(from.y, b_high[1][j], b_low[1][j]);
        b_high[2][j] = b_high[1][j] ^ 0x80000000u, b_low[2][j] = b_low[1][j] ^ 0x80000000u;
      }
      float part[2][2][4] = {};
      // Each waits for the one before it in its sum, so that four are in turn.
      auto add = [&](const uint32_t(&of_a)[2][2][4], const uint32_t(&of_b)[3][2], bool im) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_tf32(part[i][0], of_a[i][im], of_b[im ? 2 : 0]);
          multiply_tf32(part[i][1], of_a[i][im], of_b[im ? 0 : 1]);
        }
      };
      add(low, b_high, false), add(low, b_high, true);
      add(high, b_low, false), add(high, b_low, true);
      add(high, b_high, false), add(high, b_high, true);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][n][0][j] += part[i][0][j], sum[i][n][1][j] += part[i][1][j];
    }
    __syncthreads();
  }

  // A lane has two neighbouring columns.
  c += ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * p.m * p.n / 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = m0 + row + 8 * i + g;
    if (m >= p.m) continue;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int at = n0 + column + 8 * n + 2 * t, j = i % 2 * 2;
      if (at >= p.n) continue;
      const float(&s)[2][4] = sum[i / 2][n];
      float4* const to = c + ((size_t)m * p.n + at) / 2;
      float4 value = {s[0][j], s[1][j], s[0][j + 1], s[1][j + 1]};
      if (p.adds) {
        const float4 before = *to;
        value.x += before.x, value.y += before.y, value.z += before.z, value.w += before.w;
      }
      *to = value;
    }
  }
}

#define SPECTRA(SIDE)                                                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS) spectra_##SIDE(float4* spectra, const float* x, const Squares p) {      \
    spectra_of<SIDE>(spectra, x, p);                                                                                            \
  }                                                                                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS) results_##SIDE(float* y, const float4* spectra, const float* factors,   \
                                                                       int parts, float alpha, float beta, const Squares p) {   \
    results_of<SIDE>(y, spectra, factors, parts, alpha, beta, p);                                                                                \
  }
SPECTRA(16)
SPECTRA(32)

// By what the lines of A and B hold: maps, images, weights.
#define OF_PRODUCTS(NAME, DOWN, ACROSS, A_TERMS, B_TERMS)                                                                         \
  extern "C" __global__ void __launch_bounds__(32 * DOWN * ACROSS, 12 / (DOWN * ACROSS)) spectral_##NAME##_##DOWN##x##ACROSS(                         \
      float4* c, const float4* a, const float4* b, const Products p) {                                                          \
    products_of<DOWN, ACROSS, A_TERMS, B_TERMS>(c, a, b, p);                                                                    \
  }
#define PRODUCTS(DOWN, ACROSS)                      \
  OF_PRODUCTS(maps, DOWN, ACROSS, true, true)       \
  OF_PRODUCTS(images, DOWN, ACROSS, true, false)    \
  OF_PRODUCTS(weights, DOWN, ACROSS, false, false)
PRODUCTS(2, 2)
PRODUCTS(2, 1)
PRODUCTS(1, 1)
