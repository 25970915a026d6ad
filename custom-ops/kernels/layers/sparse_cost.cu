// sparse_cost.cu: the cost of a small sparse autoencoder and its gradient over all rows, in one
// launch.
//
//   A  = sigmoid(X W^T + b)                          rho_hat_j = 1/m sum_rows A
//   H  = f(A W'^T + c),   E = (H - X) f'(H)          s_j = beta ((1 - rho)/(1 - rho_hat_j) - rho/rho_hat_j)
//   D  = (E W' + s) A (1 - A)                        rho_hat_j and 1 - rho_hat_j below 1e-30 count as 1e-30 in KL; their terms of s are 0
//   gradient   D^T X/m + lambda W,  E^T A/m + lambda W',  sum_rows D/m,  sum_rows E/m
//   figures    J = q + lambda/2 w + beta k,  q = 1/m sum 1/2 (H - X)^2,  w = sum W^2 + sum W'^2,  k = sum_j KL(rho || rho_hat_j)
//
// A block takes its own rows from the first phase to the last, in tiles that lie in shared memory
// with both weight matrices. The sums over all rows cross between blocks twice, each time after a
// barrier of the grid: those of A, and the gradient.
//
// arrays   theta, gradient [2 v h + h + v] f32: W [h, v], W' [v, h], b [h], c [v]; rows [m, v] f32;
//          figures [4] f64: J, q, w, k. Scratch: activity [h, blocks] f32, parts [blocks, 2 v h + h
//          + v] f32, squares [blocks] f64, features [m, h] f32, used where a block has more than
//          one tile. Contiguous, none overlap
// scalars  h <= 512, the threads of a block; m >= 1; rows_each: rows of a block, blocks = ceil(m /
//          rows_each); tile <= rows_each: rows of a tile
// launch   `blocks` blocks of 512, all at once (cooperative)
// shared   dynamic, `Shape::shared_bytes` of src/layers/sparse_cost/shape.rs: two tiles of lines of
//          v | 1, two of h | 1, both weights, biases, s
// cost     10 m v h FLOP; reads the rows once, or twice if a block has several tiles. On an H200 45
//          us for 10,000 rows at 64-25, with cold caches; instructions bind, of which a fifth are
//          the multiply-adds of the products, at a quarter of their peak
// NaN      in a row makes the figures and the gradient NaN
// same     every sum has one order: the same bits on every launch with as many blocks; other bits
//          than the CPU twin's, to rounding
// truth    sparse_cost_reference in src/layers/sparse_cost/reference.rs

#include <cooperative_groups.h>

#include "core/math.cuh"
#include "core/warp.cuh"
#include "layers/activation.cuh"
#include "layers/sparsity.cuh"

namespace cg = cooperative_groups;

namespace {

constexpr unsigned THREADS = 512, WARP = 32, WARPS = THREADS / WARP;
constexpr unsigned SIDE = 4;  // a thread makes SIDE x SIDE entries of a product

struct Sizes {
  unsigned n_visible, n_hidden, rows, rows_each, tile;
};

// A matrix in shared memory, and how far apart its lines and the entries of a line are.
struct Lines {
  const float* at;
  unsigned line, entry;
};

// use(m, n, sum over k < depth of a[m, k] b[n, k]) for all m < rows, n < columns. A thread gets the
// same entries at every call of these sizes.
template <typename Use>
__device__ __forceinline__ void product(unsigned rows, unsigned columns, unsigned depth, Lines a, Lines b, Use use) {
  const unsigned down = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE;
  for (unsigned item = threadIdx.x; item < down * across; item += THREADS) {
    // Neighbouring threads take neighbouring lines of b: an odd distance of lines keeps them in
    // different banks.
    const unsigned m = item / across, n = item % across;
    const float *from_a[SIDE], *from_b[SIDE];
#pragma unroll
    for (unsigned i = 0; i < SIDE; ++i) {
      from_a[i] = a.at + min(m + i * down, rows - 1) * a.line;
      from_b[i] = b.at + min(n + i * across, columns - 1) * b.line;
    }
    float sum[SIDE][SIDE] = {};
#pragma unroll 4
    for (unsigned k = 0; k < depth; ++k) {
      float of_a[SIDE], of_b[SIDE];
#pragma unroll
      for (unsigned i = 0; i < SIDE; ++i) {
        of_a[i] = from_a[i][k * a.entry];
        of_b[i] = from_b[i][k * b.entry];
      }
#pragma unroll
      for (unsigned i = 0; i < SIDE; ++i)
#pragma unroll
        for (unsigned j = 0; j < SIDE; ++j) sum[i][j] = fmaf(of_a[i], of_b[j], sum[i][j]);
    }
#pragma unroll
    for (unsigned i = 0; i < SIDE; ++i)
#pragma unroll
      for (unsigned j = 0; j < SIDE; ++j)
        if (m + i * down < rows && n + j * across < columns) use(m + i * down, n + j * across, sum[i][j]);
  }
}

// The sum of column `at` of `rows` lines.
__device__ __forceinline__ float column_sum(const float* lines, unsigned line, unsigned rows, unsigned at) {
  float sum = 0.f;
#pragma unroll 8
  for (unsigned r = 0; r < rows; ++r) sum += lines[r * line + at];
  return sum;
}

// Copies [lines, width] to lines `line` apart.
__device__ __forceinline__ void take(float* to, const float* from, unsigned lines, unsigned width, unsigned line) {
  for (unsigned i = threadIdx.x; i < lines * width; i += THREADS) to[i / width * line + i % width] = from[i];
}

template <Activation F>
__device__ void sparse_cost(double* figures, float* gradient, float* activity, float* parts, double* squares,
                            float* features, const float* theta, const float* rows, const Sizes n, const Weighs weighs) {
  extern __shared__ float shared[];
  __shared__ double sums[WARPS * WARP];
  const unsigned v = n.n_visible, h = n.n_hidden, v_line = v | 1, h_line = h | 1;
  const unsigned n_weights = 2 * v * h, n_parameters = n_weights + h + v;
  float* x = shared;
  float* e = x + n.tile * v_line;
  float* a = e + n.tile * v_line;
  float* d = a + n.tile * h_line;
  float* weight = d + n.tile * h_line;
  float* decoder = weight + h * v_line;
  float* bias = decoder + v * h_line;
  float* visible_bias = bias + h;
  float* pull = visible_bias + v;
  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const unsigned blocks = gridDim.x, first = blockIdx.x * n.rows_each, end = min(first + n.rows_each, n.rows);
  const bool one_tile = n.tile >= n.rows_each;
  const double m = n.rows;
  cg::grid_group grid = cg::this_grid();

  take(weight, theta, h, v, v_line);
  take(decoder, theta + v * h, v, h, h_line);
  for (unsigned i = threadIdx.x; i < h + v; i += THREADS) bias[i] = theta[n_weights + i];

  float active = 0.f;  // of the thread's feature
  for (unsigned start = first; start < end; start += n.tile) {
    const unsigned count = min(n.tile, end - start);
    __syncthreads();
    take(x, rows + (size_t)start * v, count, v, v_line);
    __syncthreads();
    product(count, h, v, {x, v_line, 1}, {weight, v_line, 1}, [&](unsigned r, unsigned j, float sum) {
      const float y = activate<SIGMOID>(Rounded(sum) + bias[j]).v;
      a[r * h_line + j] = y;
      if (!one_tile) features[(size_t)(start + r) * h + j] = y;
    });
    __syncthreads();
    if (threadIdx.x < h) active += column_sum(a, h_line, count, threadIdx.x);
  }
  if (threadIdx.x < h) activity[threadIdx.x * blocks + blockIdx.x] = active;
  grid.sync();

  // Each block forms the mean activations by itself, in the same order.
  double divergence = 0.;
  for (unsigned j = warp; j < h; j += WARPS) {
    double sum = 0.;
    for (unsigned k = lane; k < blocks; k += WARP) sum += (double)__ldcg(activity + j * blocks + k);
    const double mean = sum_of_warp(sum) / m;
    if (lane == 0) {
      pull[j] = (float)pull_of(mean, weighs);
      if (blockIdx.x == blocks - 1) divergence += divergence_of(mean, weighs);
    }
  }

  float* part = parts + (size_t)blockIdx.x * n_parameters;
  double square = 0.;
  for (unsigned start = first; start < end; start += n.tile) {
    const unsigned count = min(n.tile, end - start);
    const bool begins = start == first;
    const auto add = [&](unsigned at, float sum) { part[at] = begins ? sum : part[at] + sum; };
    __syncthreads();
    if (!one_tile) {
      take(x, rows + (size_t)start * v, count, v, v_line);
      take(a, features + (size_t)start * h, count, h, h_line);
      __syncthreads();
    }
    float near = 0.f;
    product(count, v, h, {a, h_line, 1}, {decoder, h_line, 1}, [&](unsigned r, unsigned i, float sum) {
      const Rounded y = activate<F>(Rounded(sum) + visible_bias[i]);
      const Rounded apart = y - x[r * v_line + i];
      near = fmaf(apart.v, apart.v, near);
      e[r * v_line + i] = through<F>(apart, y).v;
    });
    square += near;
    __syncthreads();
    product(count, h, v, {e, v_line, 1}, {decoder, 1, h_line}, [&](unsigned r, unsigned j, float sum) {
      const Rounded y = a[r * h_line + j];
      d[r * h_line + j] = through<SIGMOID>(Rounded(sum) + pull[j], y).v;
    });
    __syncthreads();
    product(h, v, count, {d, 1, h_line}, {x, 1, v_line}, [&](unsigned j, unsigned i, float sum) { add(j * v + i, sum); });
    product(v, h, count, {e, 1, v_line}, {a, 1, h_line},
            [&](unsigned i, unsigned j, float sum) { add(v * h + i * h + j, sum); });
    for (unsigned at = threadIdx.x; at < h + v; at += THREADS)
      add(n_weights + at, at < h ? column_sum(d, h_line, count, at) : column_sum(e, v_line, count, at - h));
  }
  square = sum_of_block<WARPS>(square, sums);
  if (threadIdx.x == 0) squares[blockIdx.x] = square;
  grid.sync();

  // A group of 32 parameters at a time: each warp adds a share of the blocks.
  for (unsigned group = blockIdx.x; group * WARP < n_parameters; group += blocks) {
    const unsigned at = group * WARP + lane, share = (blocks + WARPS - 1) / WARPS;
    double sum = 0.;
    if (at < n_parameters)
      for (unsigned k = warp * share; k < min((warp + 1) * share, blocks); ++k)
        sum += (double)__ldcg(parts + (size_t)k * n_parameters + at);
    sums[warp * WARP + lane] = sum;
    __syncthreads();
    if (warp == 0 && at < n_parameters) {
      for (unsigned w = 1; w < WARPS; ++w) sum += sums[w * WARP + lane];
      gradient[at] = (float)(sum / m + (at < n_weights ? weighs.decay * (double)theta[at] : 0.));
    }
    __syncthreads();
  }

  // The last block has the fewest groups.
  if (blockIdx.x != blocks - 1) return;
  double errors = 0., weights = 0.;
  for (unsigned k = threadIdx.x; k < blocks; k += THREADS) errors += __ldcg(squares + k);
  for (unsigned i = threadIdx.x; i < n_weights; i += THREADS) weights += (double)theta[i] * (double)theta[i];
  errors = 0.5 * sum_of_block<WARPS>(errors, sums) / m;
  weights = sum_of_block<WARPS>(weights, sums);
  divergence = sum_of_block<WARPS>(divergence, sums);
  if (threadIdx.x == 0) {
    figures[0] = value_of(errors, weights, divergence, weighs);
    figures[1] = errors;
    figures[2] = weights;
    figures[3] = divergence;
  }
}

}  // namespace

#define SPARSE_COST(NAME, F)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS) sparse_cost_##NAME(                                          \
      double* figures, float* gradient, float* activity, float* parts, double* squares, float* features,            \
      const float* theta, const float* rows, const Sizes n, const Weighs weighs) {                                  \
    sparse_cost<F>(figures, gradient, activity, parts, squares, features, theta, rows, n, weighs);                  \
  }
SPARSE_COST(identity, IDENTITY)
SPARSE_COST(sigmoid, SIGMOID)
