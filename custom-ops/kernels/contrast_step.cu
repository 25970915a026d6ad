// contrast_step.cu: one update of contrastive learning: weights, velocity, biases and the copies that products read.
//
//   g = sum_k h[k][j] * x[k][i]                      k over both phases; the negative one carries its minus in h
//   v <- momentum * v + rate / batch * g - rate * (l2 * w + l1 * sign(w))
//   w <- w + v;   copy[0] <- T(s * w), copy[1] <- T(s * w - copy[0])
//   biases as bias_step.cu has them; counter <- counter + by
//
// With two parts an operand is the sum of two f16 numbers, 22 bits, and g = hi hi + hi lo + lo hi. The slices of both phases take
// turns, so that what has been summed stays small: tensor cores cut off what lies below 2^-24 of it or so.
//
// A product followed by weight_step.cu moves the velocity twice and the weights once more than this does:
// at [16000, 2304] 860 MB against 590 MB.
//
// arrays   weight: [rows, cols] f32. velocity: [rows, cols] f32 or bf16. h: PARTS of [2, batch, rows], x: PARTS of
//          [2, batch, cols], T (bf16 or f16), parts h_part and x_part entries apart, plane 0 the negative phase.
//          copy: PARTS of [rows, cols] T, copy_part entries apart. scalars: [3] f32: rate / batch, momentum, rate.
//          hidden_state, visible_state: [4, rows] and [4, cols] f32. counter: [1] i64. Rows contiguous, 16-byte aligned; none overlap
// scalars  rows and cols multiples of the Shape's CHUNK; l1, l2 >= 0; s a power of two
// launch   1-D: a block for each tile of the weights, columns fastest, then one for each 32 hidden and each 32 visible units;
//          Shape::THREADS threads
// shared   Shape::SHARED bytes, dynamic: STAGES slices of h and x, then the tile of g in their place
// cost     2 * depth * rows * cols FLOP (three times that with two parts); 16 bytes a weight with f32 velocity, 12 with bf16,
//          and 2 for each part of the copy, which binds where the weights do not fit the cache
// NaN      spreads
// same     sums in one order on one device, whatever else runs: no atomics
// truth    contrast_step_reference in src/contrast_step.rs, bias_step_reference in src/bias_step.rs

#include "tiles.cuh"

constexpr int DEPTH = 32;  // rows of h and x in one slice
constexpr int PAD = 8;     // eight lines of 16-bit or four of 32-bit entries then fall in different banks

// TILE_M x TILE_N of the weights for WARPS warps, in WARPS_K groups each of which takes its share of a slice's depth. CHUNK 16-bit
// entries are copied at once.
template <int TILE_M_, int TILE_N_, int WARPS_, int WARPS_M_, int WARPS_N_, int PARTS_, int STAGES_, int CHUNK_>
struct Shape {
  static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
  static constexpr int PARTS = PARTS_, STAGES = STAGES_, CHUNK = CHUNK_;
  static constexpr int THREADS = 32 * WARPS_, WARPS_K = WARPS_ / (WARPS_M * WARPS_N);
  static constexpr int M = TILE_M / WARPS_M, N = TILE_N / WARPS_N;
  static constexpr int H_LINE = TILE_M + PAD, X_LINE = TILE_N + PAD;
  static constexpr int H_SLICE = DEPTH * H_LINE, X_SLICE = DEPTH * X_LINE;  // of one part
  static constexpr int SHARED = PARTS * STAGES * (H_SLICE + X_SLICE) * 2;
  static_assert(DEPTH % (16 * WARPS_K) == 0, "each group of warps has whole steps");
  static_assert(TILE_M * X_LINE * sizeof(float) <= SHARED, "the tile of g takes the place of the slices");
};

// One layer's biases, see bias_step.cu.
struct BiasRule {
  float sign;      // of the sums over neg
  float target;    // mean activation wanted
  float cost;      // 0: no sparsity
  float decay;     // of the running mean activation
  unsigned error;  // 1: gather the squared error in planes 2 and 3
};

template <typename T>
struct alignas(8) Four { T at[4]; };

__device__ void load4(const float* from, float (&v)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
__device__ void load4(const __nv_bfloat16* from, float (&v)[4]) {
  const Four<__nv_bfloat16> four = *reinterpret_cast<const Four<__nv_bfloat16>*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = wide(four.at[i]);
}
__device__ void store4(float* to, const float (&v)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
}
template <typename T>
__device__ void store4(T* to, const float (&v)[4]) {
  Four<T> four;
#pragma unroll
  for (int i = 0; i < 4; ++i) narrow(four.at[i], v[i]);
  *reinterpret_cast<Four<T>*>(to) = four;
}

__device__ float stepped(float v, float w, float g, float alpha, float momentum, float rate, float l1, float l2) {
  const float sign = w > 0.f ? 1.f : w < 0.f ? -1.f : 0.f;
  return fmaf(momentum, v, fmaf(alpha, g, -rate * fmaf(l2, w, l1 * sign)));
}

// Starts the copy of slice `index` of an operand that is `width` wide, TILE columns from column `first` on. Even slices are of the
// negative phase, odd ones of the positive.
template <typename S, int TILE, typename T>
__device__ void fetch(T* slice, const T* operand, size_t part, int index, int first, int width, int batch) {
  constexpr int CHUNKS = TILE / S::CHUNK, LINE = TILE + PAD;
  static_assert(DEPTH * CHUNKS % S::THREADS == 0, "whole rounds");
  const int phase = index % 2, begin = index / 2 * DEPTH;
#pragma unroll
  for (int p = 0; p < S::PARTS; ++p)
#pragma unroll
    for (int i = 0; i < DEPTH * CHUNKS / S::THREADS; ++i) {
      const int at = i * S::THREADS + threadIdx.x;
      const int line = at / CHUNKS, col = at % CHUNKS * S::CHUNK;
      const int row = begin + line;
      const bool inside = row < batch && first + col < width;  // width is a multiple of a chunk
      const T* from = operand + p * part + ((size_t)phase * batch + row) * width + first + col;
      copy<2 * S::CHUNK>(slice + p * DEPTH * LINE + line * LINE + col, inside ? from : operand, inside);
    }
}

// Biases of 32 units: sums over rows, every 16th to a lane, then a tree over the lanes.
template <int PARTS, typename T>
__device__ void step_biases(float* state, const T* planes, size_t part, const float* scalars, BiasRule rule, int batch,
                            int units, int first, float* memory) {
  constexpr int UNITS = 32, LANES = 16;
  float(*pos_sum)[UNITS] = reinterpret_cast<float(*)[UNITS]>(memory);
  float(*neg_sum)[UNITS] = pos_sum + LANES;
  float(*err_sum)[UNITS] = neg_sum + LANES;
  const int x = threadIdx.x % (UNITS / 2) * 2, y = threadIdx.x / (UNITS / 2);
  float pos[2] = {}, neg[2] = {}, err[2] = {};
  if (first + x < units && y < LANES) {
    const T* of_neg = planes + first + x;
    const T* of_pos = of_neg + (size_t)batch * units;
#pragma unroll 4
    for (int r = y; r < batch; r += LANES)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const size_t at = (size_t)r * units + i;
        float p = wide(of_pos[at]), q = wide(of_neg[at]);
        if (PARTS == 2) p = p + wide(of_pos[part + at]), q = q + wide(of_neg[part + at]);
        pos[i] = pos[i] + p;
        neg[i] = neg[i] + q;
        err[i] = err[i] + (p - q) * (p - q);
      }
  }
  if (y < LANES)
#pragma unroll
    for (int i = 0; i < 2; ++i) pos_sum[y][x + i] = pos[i], neg_sum[y][x + i] = neg[i], err_sum[y][x + i] = err[i];
  for (int half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (y < half)
#pragma unroll
      for (int i = x; i < x + 2; ++i) {
        pos_sum[y][i] = pos_sum[y][i] + pos_sum[y + half][i];
        neg_sum[y][i] = neg_sum[y][i] + neg_sum[y + half][i];
        err_sum[y][i] = err_sum[y][i] + err_sum[y + half][i];
      }
  }
  __syncthreads();
  const int unit = first + threadIdx.x;
  if (threadIdx.x >= UNITS || unit >= units) return;
  const float pos_all = pos_sum[0][threadIdx.x], neg_all = neg_sum[0][threadIdx.x], err_all = err_sum[0][threadIdx.x];
  float* bias = state + unit;
  float* velocity = bias + units;
  float* third = velocity + units;
  float* fourth = third + units;
  const float momentum = scalars[1], rate = scalars[2];
  float g = (pos_all + rule.sign * neg_all) / (float)batch;
  if (rule.cost != 0.f) {
    const float q = rule.decay * *third + (1.f - rule.decay) * (pos_all / (float)batch);
    *third = q;
    g = g + rule.cost * (rule.target - q);
  }
  const float v = momentum * *velocity + rate * g;
  *velocity = v;
  *bias = *bias + v;
  if (rule.error) {  // two-sum: what the addition rounds away goes to the fourth plane
    const float a = *third, b = err_all;
    const float s = a + b, bb = s - a;
    *fourth = *fourth + ((a - (s - bb)) + (b - bb));
    *third = s;
  }
}

struct Numbers {
  unsigned long long h_part, x_part, copy_part;
  long long by;
  BiasRule hidden, visible;
  float l1, l2, scale;
  int rows, cols, batch;
};

template <typename T, typename V>
struct Arguments {
  float* weight;
  V* velocity;
  const T* h;
  const T* x;
  T* copy;
  float* hidden_state;
  float* visible_state;
  const float* scalars;
  long long* counter;
};

template <typename S, typename T, typename V>
__device__ void contrast_step(const Arguments<T, V>& a, const Numbers& n) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int across = (n.cols + S::TILE_N - 1) / S::TILE_N, tiles = (n.rows + S::TILE_M - 1) / S::TILE_M * across;
  const int block = blockIdx.x;
  if (block >= tiles) {
    float* sums = reinterpret_cast<float*>(memory);
    const int of_hidden = (n.rows + 31) / 32, at = block - tiles;
    const bool hidden = at < of_hidden;
    step_biases<S::PARTS>(hidden ? a.hidden_state : a.visible_state, hidden ? a.h : a.x, hidden ? n.h_part : n.x_part,
                          a.scalars, hidden ? n.hidden : n.visible, n.batch, hidden ? n.rows : n.cols,
                          (hidden ? at : at - of_hidden) * 32, sums);
    if (at == 0 && threadIdx.x == 0) *a.counter += n.by;
    return;
  }

  T* h_slices = reinterpret_cast<T*>(memory);
  T* x_slices = h_slices + S::STAGES * S::PARTS * S::H_SLICE;
  const int row0 = block / across * S::TILE_M, col0 = block % across * S::TILE_N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_k = warp / (S::WARPS_M * S::WARPS_N);
  const int warp_row = warp / S::WARPS_N % S::WARPS_M * S::M, warp_col = warp % S::WARPS_N * S::N;
  const int slices = 2 * ((n.batch + DEPTH - 1) / DEPTH);

  // Lines of the tile of weights as threads take them. Where each thread takes few, they are read before the product.
  constexpr int ACROSS = S::TILE_N / 4;        // lanes of a line
  constexpr int LINES = S::THREADS / ACROSS;    // lines at a time
  constexpr int EACH = S::TILE_M / LINES;      // of one thread
  constexpr int AT_ONCE = EACH < 8 ? EACH : 8;  // lines of a thread whose reads are in flight together
  const int line0 = threadIdx.x / ACROSS, along = threadIdx.x % ACROSS * 4, col = col0 + along;
  float w[AT_ONCE][4], v[AT_ONCE][4];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int row = row0 + first + i * LINES;
      if (row >= n.rows || col >= n.cols) continue;  // cols is a multiple of 4
      const size_t at = (size_t)row * n.cols + col;
      load4(a.weight + at, w[i]);
      load4(a.velocity + at, v[i]);
    }
  };
  if (AT_ONCE == EACH) load(line0);

  auto start = [&](int s) {
    if (s < slices) {
      fetch<S, S::TILE_M>(h_slices + s % S::STAGES * S::PARTS * S::H_SLICE, a.h, n.h_part, s, row0, n.rows, n.batch);
      fetch<S, S::TILE_N>(x_slices + s % S::STAGES * S::PARTS * S::X_SLICE, a.x, n.x_part, s, col0, n.cols, n.batch);
    }
    commit();
  };
  float sum[S::M / 16][S::N / 8][4] = {};
  // The first rounds only start copies: the code is there once, since most blocks make few rounds and wait for their code.
#pragma unroll 1
  for (int s = 1 - S::STAGES; s < slices; ++s) {
    if (s >= 0) {
      wait<S::STAGES - 2>();  // slice s is here ...
      __syncthreads();        // ... for all, and all are done with slice s - 1, whose place the next one takes
    }
    start(s + S::STAGES - 1);
    if (s < 0) continue;
    // Both operands lie along their outer dimension and are turned. A lane's line in depth and column within four blocks: rows (0, 0), (0, 8), (8, 0), (8, 8) as (depth, row), and
    // columns (0, 0), (8, 0), (0, 8), (8, 8) as (depth, column).
    const int place = s % S::STAGES * S::PARTS;
    const T* hs = h_slices + place * S::H_SLICE + warp_row + (lane / 16 * 8 + lane % 8) * S::H_LINE + lane / 8 % 2 * 8;
    const T* xs = x_slices + place * S::X_SLICE + warp_col + (lane / 8 % 2 * 8 + lane % 8) * S::X_LINE + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < DEPTH / 16 / S::WARPS_K; ++step) {
      const int k = 16 * (step * S::WARPS_K + warp_k);
      uint32_t hi[S::M / 16][4], b[S::N / 16][4];
#pragma unroll
      for (int m = 0; m < S::M / 16; ++m) turned(hi[m], hs + k * S::H_LINE + 16 * m);
#pragma unroll
      for (int c = 0; c < S::N / 16; ++c) turned(b[c], xs + k * S::X_LINE + 16 * c);
#pragma unroll
      for (int m = 0; m < S::M / 16; ++m)
#pragma unroll
        for (int c = 0; c < S::N / 8; ++c) multiply(hs, sum[m][c], hi[m], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
      if (S::PARTS == 2) {
#pragma unroll
        for (int m = 0; m < S::M / 16; ++m) {
          uint32_t lo[4];
          turned(lo, hs + S::H_SLICE + k * S::H_LINE + 16 * m);
#pragma unroll
          for (int c = 0; c < S::N / 8; ++c) multiply(hs, sum[m][c], lo, b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
        }
#pragma unroll
        for (int c = 0; c < S::N / 16; ++c) {
          turned(b[0], xs + S::X_SLICE + k * S::X_LINE + 16 * c);
#pragma unroll
          for (int m = 0; m < S::M / 16; ++m) {
            multiply(hs, sum[m][2 * c], hi[m], b[0][0], b[0][1]);
            multiply(hs, sum[m][2 * c + 1], hi[m], b[0][2], b[0][3]);
          }
        }
      }
    }
  }

  // A lane holds columns 2t and 2t + 1 of rows g and g + 8 of each 16 x 8 block. Through shared memory each warp gets
  // whole lines, so that memory is read and written up to 512 bytes at a time.
  wait<0>();
  float* tile = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int group = 0; group < S::WARPS_K; ++group) {
    __syncthreads();
    if (warp_k != group) continue;
#pragma unroll
    for (int m = 0; m < S::M / 16; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int c = 0; c < S::N / 8; ++c) {
          const int row = warp_row + 16 * m + 8 * half + lane / 4, col = warp_col + 8 * c + lane % 4 * 2;
          float2* at = reinterpret_cast<float2*>(tile + row * S::X_LINE + col);
          float2 g = make_float2(sum[m][c][2 * half], sum[m][c][2 * half + 1]);
          if (group > 0) g.x += at->x, g.y += at->y;
          *at = g;
        }
  }
  __syncthreads();

  const float alpha = a.scalars[0], momentum = a.scalars[1], rate = a.scalars[2];
#pragma unroll 1
  for (int first = line0; first < S::TILE_M; first += AT_ONCE * LINES) {
    if (AT_ONCE < EACH) load(first);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int line = first + i * LINES, row = row0 + line;
      if (row >= n.rows || col >= n.cols) continue;
      const size_t at = (size_t)row * n.cols + col;
      float g[4], copied[4];
      load4(tile + line * S::X_LINE + along, g);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        v[i][e] = stepped(v[i][e], w[i][e], g[e], alpha, momentum, rate, n.l1, n.l2);
        w[i][e] = w[i][e] + v[i][e];
        copied[e] = w[i][e] * n.scale;
      }
      store4(a.velocity + at, v[i]);
      store4(a.weight + at, w[i]);
      store4(a.copy + at, copied);
      if (S::PARTS == 2) {
        T high;
#pragma unroll
        for (int e = 0; e < 4; ++e) narrow(high, copied[e]), copied[e] = copied[e] - wide(high);
        store4(a.copy + n.copy_part + at, copied);
      }
    }
  }
}

// Two blocks of 128 x 128 a multiprocessor: one of 256 x 128 reads less of the operands, but nothing runs while it waits for its
// weights, and at [16000, 2304] it took 250 us where these take 193.
//                     TILE_M, TILE_N, WARPS, WARPS_M, WARPS_N, PARTS, STAGES, CHUNK
using Large1 = Shape<128, 128, 8, 2, 4, 1, 4, 8>;
using Large2 = Shape<128, 128, 8, 2, 4, 2, 3, 8>;
using Small1 = Shape<64, 64, 8, 2, 2, 1, 4, 8>;
using Small2 = Shape<64, 64, 8, 2, 2, 2, 3, 8>;
using Odd1 = Shape<64, 64, 8, 2, 2, 1, 4, 4>;
using Odd2 = Shape<64, 64, 8, 2, 2, 2, 3, 4>;

// Without a velocity of its own, that of f32 lies behind the weights.
#define CONTRAST_STEP(NAME, S, T, V)                                                                              \
  extern "C" __global__ void __launch_bounds__(S::THREADS, 512 / S::THREADS)                                                    \
  NAME(float* weight, V* velocity, const T* h, const T* x, T* copy, float* hidden_state, float* visible_state,    \
       const float* scalars, long long* counter, const __grid_constant__ Numbers n) {                             \
    V* own = velocity ? velocity : reinterpret_cast<V*>(weight + (size_t)n.rows * n.cols);                        \
    contrast_step<S, T, V>({weight, own, h, x, copy, hidden_state, visible_state, scalars, counter}, n);          \
  }
CONTRAST_STEP(contrast_step_large_bf16, Large1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP(contrast_step_large_f16, Large1, __half, float)
CONTRAST_STEP(contrast_step_large_f16x2, Large2, __half, float)
CONTRAST_STEP(contrast_step_small_bf16, Small1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP(contrast_step_small_f16, Small1, __half, float)
CONTRAST_STEP(contrast_step_small_f16x2, Small2, __half, float)
CONTRAST_STEP(contrast_step_odd_bf16, Odd1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP(contrast_step_odd_f16, Odd1, __half, float)
CONTRAST_STEP(contrast_step_odd_f16x2, Odd2, __half, float)
