// repulsion_grid.cu: the repulsion of a layout in two dimensions by interpolation on a grid and FFT.
//
//   box        square around the layout: its middle, and h, the distance of two of G nodes a side: the longest side over G - 4, rounded up to a
//              power of 1.05
//   charges    1, x, y of each point (from the middle, over h) go to the 4 x 4 nodes around it by cubic interpolation
//   spectra    of w and w^(1 + 1/alpha) as functions of the distance, on a torus of N = 2 G nodes: real and even
//   forward    FFT of the rows of charges: A = c_1, B = c_x + i c_y
//   columns    FFT of the columns, A (W + i V), B V, and back
//   back       inverse FFT of the rows: potentials W c_1, V c_1, V c_x, V c_y at the nodes
//   feel_grid  forces = x V c_1 - V c_x, ...; total = sum of max(0, W c_1 - 1)
//
// arrays   box: [4] float: middle, h, h of the spectra; charges: [3, G, G] i64 in units of 2^-40; a, b: [G, N] complex; spectra: [G + 1, G + 1]
//          (W, V); potentials: [G, G] float4; turns: [N] complex, exp(-2 pi i k / N); boxes, blocks: parts of sums
// launch   FFT kernels: blocks of T threads hold 16 T complex numbers: 16 T / N lines; T a power of two of at most 512
// shared   128 T bytes
// cost     a and b are 8 G N bytes each and stay in the L2 up to G = 1024; 48 atomic additions a point
// NaN      gives NaN forces; places outside of the grid are never read or written
// same     charges are sums of integers, so that their order does not matter
// truth    repulsion_reference in src/repulsion/reference.rs

#include "points.cuh"

typedef long long i64;
typedef unsigned long long u64;
// Each thread of a block of lines holds 16 complex numbers.
constexpr unsigned EACH = 16, QUARTERS = EACH / 4, MOST_THREADS = 512, ALL = 0xffffffffu;
constexpr float UNIT = 1099511627776.f;  // 2^40

__device__ __forceinline__ float2 times(float2 a, float2 b) {
  return {fmaf(a.x, b.x, -(a.y * b.y)), fmaf(a.x, b.y, a.y * b.x)};
}
__device__ __forceinline__ float2 plus(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ float2 minus(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }

// FFT of 16 blockDim.x / N lines of N numbers in shared memory, number i of line l at i SI + l SL (Stockham, radix 4, then 2). INVERSE: not scaled.
template <bool INVERSE>
__device__ void fft(float2* s, const float2* turns, unsigned N, unsigned lines, unsigned SI, unsigned SL) {
  const unsigned quarter = N / 4;
  unsigned stride = 1;
  for (unsigned n = N; n >= 4; n /= 4, stride *= 4) {
    float2 x[QUARTERS][4];
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < QUARTERS; u++) {
      const unsigned all = u * blockDim.x + threadIdx.x;
      const unsigned t = SI == 1 ? all % quarter : all / lines, l = SI == 1 ? all / quarter : all % lines;
#pragma unroll
      for (unsigned r = 0; r < 4; r++) x[u][r] = s[(t + r * quarter) * SI + l * SL];
    }
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < QUARTERS; u++) {
      const unsigned all = u * blockDim.x + threadIdx.x;
      const unsigned t = SI == 1 ? all % quarter : all / lines, l = SI == 1 ? all / quarter : all % lines;
      // t = q + stride p reads numbers q + stride (p + r n / 4) and writes q + stride (4 p + r).
      const unsigned q = t & (stride - 1), p = t / stride;
      float2 w1 = turns[p * stride];
      if (INVERSE) w1.y = -w1.y;
      const float2 w2 = times(w1, w1), w3 = times(w1, w2);
      const float2 a = plus(x[u][0], x[u][2]), b = minus(x[u][0], x[u][2]);
      const float2 c = plus(x[u][1], x[u][3]), d = minus(x[u][1], x[u][3]);
      const float2 turned = INVERSE ? float2{-d.y, d.x} : float2{d.y, -d.x};
      float2* to = s + (q + stride * 4 * p) * SI + l * SL;
      to[0] = plus(a, c);
      to[stride * SI] = times(w1, plus(b, turned));
      to[2 * stride * SI] = times(w2, minus(a, c));
      to[3 * stride * SI] = times(w3, minus(b, turned));
    }
  }
  if (stride < N) {  // a factor 2 is left
    float2 x[2 * QUARTERS][2];
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < 2 * QUARTERS; u++) {
      const unsigned all = u * blockDim.x + threadIdx.x;
      const unsigned t = SI == 1 ? all % stride : all / lines, l = SI == 1 ? all / stride : all % lines;
      x[u][0] = s[t * SI + l * SL], x[u][1] = s[(t + stride) * SI + l * SL];
    }
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < 2 * QUARTERS; u++) {
      const unsigned all = u * blockDim.x + threadIdx.x;
      const unsigned t = SI == 1 ? all % stride : all / lines, l = SI == 1 ? all / stride : all % lines;
      s[t * SI + l * SL] = plus(x[u][0], x[u][1]);
      s[(t + stride) * SI + l * SL] = minus(x[u][0], x[u][1]);
    }
  }
  __syncthreads();
}

// Blocks of 256: the least of x, y, -x, -y over the points of a block, and charges set to 0.
extern "C" __global__ void grid_bounds(float* boxes, i64* charges, const float* layout, const size_t n, const size_t nodes) {
  __shared__ float shared[8];
  const size_t threads = (size_t)gridDim.x * blockDim.x, mine = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (size_t c = mine; c < 3 * nodes; c += threads) charges[c] = 0;
  float least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
  for (size_t i = mine; i < n; i += threads) {
    const Point<2> y = point<2>(layout, i);
    least[0] = fminf(least[0], y.x[0]), least[1] = fminf(least[1], y.x[1]);
    least[2] = fminf(least[2], -y.x[0]), least[3] = fminf(least[3], -y.x[1]);
  }
#pragma unroll
  for (unsigned k = 0; k < 4; k++) {
    float x = least[k];
    for (int step = 16; step; step /= 2) x = fminf(x, __shfl_xor_sync(ALL, x, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned w = 1; w < blockDim.x / 32; w++) x = fminf(x, shared[w]);
      boxes[blockIdx.x * 4 + k] = x;
    }
    __syncthreads();
  }
}

// The box from the parts, for every block that wants it: 256 threads or more. h is rounded up to a power of 1.05.
__device__ void box_of(float (&box)[3], const float* boxes, unsigned count, unsigned G) {
  __shared__ float least[4];
  __shared__ float middle_and_h[3];
  if (threadIdx.x < 128) {
    const unsigned k = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x = INFINITY;
    for (unsigned b = lane; b < count; b += 32) x = fminf(x, boxes[b * 4 + k]);
    for (int step = 16; step; step /= 2) x = fminf(x, __shfl_xor_sync(ALL, x, step));
    if (lane == 0) least[k] = x;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const float span = fmaxf(-least[2] - least[0], -least[3] - least[1]);
    const float wanted = fmaxf(span / (float)(G - 4), 1e-12f);
    middle_and_h[0] = .5f * (least[0] - least[2]);
    middle_and_h[1] = .5f * (least[1] - least[3]);
    // 1 / log2(1.05); a little more, so that rounding never leaves a point outside.
    middle_and_h[2] = exp2f(ceilf(log2f(wanted) * 14.2066991f + 1e-3f) * .0703893279f);
  }
  __syncthreads();
  for (unsigned k = 0; k < 3; k++) box[k] = middle_and_h[k];
}

// The first of the four nodes around a coordinate, and their weights.
__device__ __forceinline__ unsigned nodes_around(float (&weights)[4], float y, float middle, float inverse_h, unsigned G) {
  const float at = (y - middle) * inverse_h + .5f * (float)(G - 1);
  // NaN gives the first cell.
  const float cell = fminf(fmaxf(floorf(at), 1.f), (float)(G - 3));
  const float t = at - cell, before = t + 1, after = t - 1, last = t - 2;
  weights[0] = t * after * last * (-1.f / 6);
  weights[1] = before * after * last * .5f;
  weights[2] = before * t * last * -.5f;
  weights[3] = before * t * after * (1.f / 6);
  return (unsigned)cell - 1;
}

// Blocks of 256.
extern "C" __global__ void grid_spread(i64* charges, float* box, const float* boxes, const unsigned count,
                                       const float* layout, const size_t n, const unsigned G) {
  float b[3];
  box_of(b, boxes, count, G);
  if (blockIdx.x == 0 && threadIdx.x < 3) box[threadIdx.x] = b[threadIdx.x];
  const float inverse_h = 1 / b[2];
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, nodes = (size_t)G * G;
  if (i >= n) return;
  const Point<2> y = point<2>(layout, i);
  float across[4], down[4];
  const unsigned column = nodes_around(across, y.x[0], b[0], inverse_h, G);
  const unsigned row = nodes_around(down, y.x[1], b[1], inverse_h, G);
  const float x = (y.x[0] - b[0]) * inverse_h, z = (y.x[1] - b[1]) * inverse_h;
#pragma unroll
  for (unsigned r = 0; r < 4; r++)
#pragma unroll
    for (unsigned c = 0; c < 4; c++) {
      const float w = down[r] * across[c];
      u64* node = reinterpret_cast<u64*>(charges) + (size_t)(row + r) * G + column + c;
      atomicAdd(node, (u64)__float2ll_rn(w * UNIT));
      atomicAdd(node + nodes, (u64)__float2ll_rn(w * x * UNIT));
      atomicAdd(node + 2 * nodes, (u64)__float2ll_rn(w * z * UNIT));
    }
}

// (w, w^(1 + 1/alpha)) of two nodes that are i and j apart.
__device__ __forceinline__ float2 kernels(float i, float j, float h, float alpha) {
  const float near = 1 / (1 + (i * i + j * j) * h * h / alpha), w = alpha == 1.f ? near : exp2f(alpha * log2f(near));
  return {w, w * near};
}

// Rows 0..G of the torus, the others are their mirror images: rows [G + 1, G + 1] of complex numbers (the real spectra of W and V along rows).
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    grid_spectra_rows(float2* rows, const float2* turns, const float* box, const unsigned G, const float alpha) {
  extern __shared__ float2 s[];
  if (box[3] == box[2]) return;  // the spectra are of this h
  const unsigned N = 2 * G, lines = EACH * blockDim.x / N, first = blockIdx.x * lines;
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e / N, j = e % N;
    s[e] = kernels((float)(first + l), (float)(j <= G ? j : N - j), box[2], alpha);
  }
  fft<false>(s, turns, N, lines, 1, N);
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e / N, j = e % N;
    if (first + l <= G && j <= G) rows[(size_t)(first + l) * (G + 1) + j] = s[e];
  }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    grid_spectra_columns(float2* spectra, const float2* rows, const float2* turns, const float* box, const unsigned G) {
  extern __shared__ float2 s[];
  if (box[3] == box[2]) return;
  const unsigned N = 2 * G, lines = EACH * blockDim.x / N, first = blockIdx.x * lines;
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e % lines, i = e / lines, from = i <= G ? i : N - i;
    s[e] = first + l <= G ? rows[(size_t)from * (G + 1) + first + l] : float2{0, 0};
  }
  fft<false>(s, turns, N, lines, lines, 1);
  // The inverse transform divides by N in both directions.
  const float scale = 1 / ((float)N * (float)N);
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e % lines, i = e / lines;
    if (first + l <= G && i <= G) spectra[(size_t)i * (G + 1) + first + l] = {s[e].x * scale, s[e].y * scale};
  }
}

// Blocks for A (y = 0) and B (y = 1).
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    grid_forward(float2* a, float2* b, const i64* charges, const float2* turns, const unsigned G) {
  extern __shared__ float2 s[];
  const unsigned N = 2 * G, lines = EACH * blockDim.x / N, first = blockIdx.x * lines;
  const size_t nodes = (size_t)G * G;
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e / N, j = e % N;
    float2 x = {0, 0};
    if (first + l < G && j < G) {
      const i64* node = charges + (size_t)(first + l) * G + j;
      x = blockIdx.y == 0 ? float2{(float)node[0] * (1 / UNIT), 0}
                          : float2{(float)node[nodes] * (1 / UNIT), (float)node[2 * nodes] * (1 / UNIT)};
    }
    s[e] = x;
  }
  fft<false>(s, turns, N, lines, 1, N);
  float2* out = blockIdx.y == 0 ? a : b;
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e / N, j = e % N;
    if (first + l < G) out[(size_t)(first + l) * N + j] = s[e];
  }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    grid_columns(float2* a, float2* b, const float2* spectra, const float2* turns, const unsigned G) {
  extern __shared__ float2 s[];
  const unsigned N = 2 * G, lines = EACH * blockDim.x / N, first = blockIdx.x * lines;
  float2* x = blockIdx.y == 0 ? a : b;
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e % lines, i = e / lines;
    s[e] = i < G ? x[(size_t)i * N + first + l] : float2{0, 0};
  }
  fft<false>(s, turns, N, lines, lines, 1);
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e % lines, i = e / lines, j = first + l;
    const float2 k = spectra[(size_t)(i <= G ? i : N - i) * (G + 1) + (j <= G ? j : N - j)];
    s[e] = blockIdx.y == 0 ? times(s[e], k) : float2{s[e].x * k.y, s[e].y * k.y};
  }
  fft<true>(s, turns, N, lines, lines, 1);
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e % lines, i = e / lines;
    if (i < G) x[(size_t)i * N + first + l] = s[e];
  }
}

// The first block notes which h the spectra are of.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    grid_back(float2* potentials, float* box, const float2* a, const float2* b, const float2* turns, const unsigned G) {
  extern __shared__ float2 s[];
  const unsigned N = 2 * G, lines = EACH * blockDim.x / N, first = blockIdx.x * lines;
  const float2* from = blockIdx.y == 0 ? a : b;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) box[3] = box[2];
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e / N, j = e % N;
    s[e] = first + l < G ? from[(size_t)(first + l) * N + j] : float2{0, 0};
  }
  fft<true>(s, turns, N, lines, 1, N);
  for (unsigned e = threadIdx.x; e < EACH * blockDim.x; e += blockDim.x) {
    const unsigned l = e / N, j = e % N;
    if (first + l < G && j < G) potentials[((size_t)(first + l) * G + j) * 2 + blockIdx.y] = s[e];
  }
}

// Blocks of 256.
extern "C" __global__ void grid_feel(float* forces, double* blocks, const float4* potentials, const float* box,
                                     const float* layout, const size_t n, const unsigned G) {
  __shared__ double shared[8];
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  float sum[4] = {};
  if (i < n) {
    const float h = box[2], inverse_h = 1 / h;
    const Point<2> y = point<2>(layout, i);
    float across[4], down[4];
    const unsigned column = nodes_around(across, y.x[0], box[0], inverse_h, G);
    const unsigned row = nodes_around(down, y.x[1], box[1], inverse_h, G);
#pragma unroll
    for (unsigned r = 0; r < 4; r++)
#pragma unroll
      for (unsigned c = 0; c < 4; c++) {
        const float w = down[r] * across[c];
        const float4 p = potentials[(size_t)(row + r) * G + column + c];
        sum[0] = fmaf(w, p.x, sum[0]), sum[1] = fmaf(w, p.y, sum[1]);
        sum[2] = fmaf(w, p.z, sum[2]), sum[3] = fmaf(w, p.w, sum[3]);
      }
    const float x = (y.x[0] - box[0]) * inverse_h, z = (y.x[1] - box[1]) * inverse_h;
    forces[2 * i] = h * (x * sum[1] - sum[2]);
    forces[2 * i + 1] = h * (z * sum[1] - sum[3]);
  }
  // Where nodes are far apart, interpolation makes less of a point's own charge than 1. Others never add less than nothing.
  const double all = sum_of_block(i < n ? fmax((double)sum[0] - 1, 0.) : 0, shared);
  if (threadIdx.x == 0) blocks[blockIdx.x] = all;
}
