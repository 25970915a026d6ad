// denoising_steps.cu: many minibatches of a denoising autoencoder with tied weights and sigmoid
// units in one launch.
//
//   for t in 0 .. n_steps - 1, X = rows t M .. t M + M - 1, all [M, .]:
//     corrupt           X~ = corrupted X
//     hidden            Y  = sigmoid(X~ W^T + b)
//     reconstruct       Z  = sigmoid(Y W + c),  LN = X - Z
//     hidden error      LH = Y (1 - Y) (LN W^T)
//     visible_bias      c += rate/M sum LN          hidden_bias   b += rate/M sum LH
//     weights           W <- keep W + rate/M (LH^T X~ + Y^T LN)
//
// A cluster of 8 blocks holds 40 rows of W (hidden units), and block `rank` of each cluster the
// same eighth of the columns (visible units). A thread keeps 5 x 4 weights in registers from the
// first step to the last. Sums over columns cross between the blocks of a cluster through their
// shared memory; sums over rows cross between blocks of one rank through global memory, in words
// that hold a value and the number of the step, so that one read tells whether the value has come:
// three exchanges a step, no barrier of the grid.
//
// arrays   weight [n_hidden, n_visible], bias [n_hidden], visible_bias [n_visible]: f32, updated;
//          rows [n_steps M, n_visible], u8 or f32, value = scale * entry; sums: [8, C, C, own, Mp]
//          and errors: [8, columns, Mp] words of 8 bytes, two of each, zero at the launch, with
//          columns = ceil(n_visible / 8), own = ceil(columns / C), Mp = M rounded up to a multiple
//          of MB; figures [2, 1024] f64: block k adds cross-entropy and squared error of its values
//          to column k. Contiguous, none overlap
// scalars  n_visible <= 1024; n_hidden <= 40 C; M <= Mp; rate_m = rate/M; keep = 1 - rate times
//          decay; p: share of corrupted values or standard deviation; a step uses ceil(M n_visible
//          / 4) blocks of Philox, numbered as in corrupt.cu
// launch   8 C blocks of 256 in clusters of 8, all at once (cooperative); C = number of clusters.
//          An H200 has room for 15 clusters
// shared   dynamic, `Shape::floats` of src/layers/denoising_steps/shape.rs
// cost     per step 10 n_visible n_hidden M FLOP; on an H200 at 784-500 7.5 us at M = 1, 10.3 at 8,
//          21 at 32. What binds is latency: two exchanges of a cluster and two trips through the
//          second-level cache, and from M = 16 on eight warps, which are too few to hide loads and
//          shuffles (4.2 us for each 8 samples, where instructions and shared memory would take
//          half)
// NaN      spreads to all weights; the figures show it
// same     every sum has one order: the same bits on every launch with the same C; other bits than
//          the CPU twin's, to rounding
// truth    denoising_steps_reference in src/layers/denoising_steps/mod.rs

#include "layers/corruption.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

namespace {

constexpr unsigned RANKS = 8;     // blocks of a cluster
constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = 256;
constexpr unsigned I = 5;         // rows of a thread
constexpr unsigned ROWS = 8 * I;  // hidden units of a cluster
constexpr unsigned FIGURES = 1024;  // columns of the figures
constexpr unsigned OWNED = ROWS / RANKS;

struct Sizes {
  unsigned n_visible, n_hidden, batch, padded, n_steps, columns, own, rows_each, span;
};

struct Noise {
  unsigned law;
  float p;
  Philox philox;
};

// Values of consecutive samples that lie together: [m / N][unit][m % N].
template <unsigned N>
struct alignas(4 * N) Vec {
  float v[N];
};

// A value and the step that it is of, in one word.
__device__ __forceinline__ void send(unsigned long long* to, float value, unsigned tag) {
  const unsigned long long word = (unsigned long long)tag << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned long long look(const unsigned long long* from) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ float wait(unsigned long long word, const unsigned long long* from, unsigned tag) {
  while ((unsigned)(word >> 32) != tag) word = look(from);
  return __uint_as_float((unsigned)word);
}

// Adds what the lane across `bit` holds: both lanes keep one half of the sums, the lane with the
// bit the upper one.
template <unsigned N>
__device__ __forceinline__ void halve(float* v, unsigned bit) {
  const bool upper = threadIdx.x & bit;
#pragma unroll
  for (unsigned k = 0; k < N / 2; ++k) {
    const float give = upper ? v[k] : v[k + N / 2];
    const float keep = upper ? v[k + N / 2] : v[k];
    v[k] = keep + __shfl_xor_sync(~0u, give, bit);
  }
}

template <typename Row>
__device__ __forceinline__ float entry(const Row* rows, size_t at, float scale) {
  return scale * (float)__ldg(rows + at);
}

// One launch. MB: samples that a thread takes at a time. SCATTER: each block of a cluster sums an
// eighth of the rows for all; else each sums all of them, which costs more traffic and one barrier
// less.
template <typename Row, unsigned MB, bool SCATTER>
struct Steps {
  static constexpr unsigned MV = MB < 4 ? MB : 4;
  static constexpr unsigned PER = MB / MV;  // vectors of a chunk of samples
  using V = Vec<MV>;

  const Sizes n;
  unsigned rank, cluster_id, n_clusters, lane, warp, group, quarter;
  unsigned first_column, columns, first_row, rows, first_own, own;
  unsigned vectors;  // of a unit: padded / MV
  // Shared memory.
  V *corrupts, *error, *hidden, *hidden_error, *part, *received, *received_errors;
  float *bias, *visible_bias;
  float weight[I][4];
  bool inside[4];  // whether column j of the thread is one of the block's
  unsigned at[4];  // the column, or one that is there

  __device__ Steps(const Sizes& n, float* shared)
      : n(n), lane(threadIdx.x % 32), warp(threadIdx.x / 32), group(lane % 8), quarter(lane / 8) {
    rank = cg::this_cluster().block_rank();
    cluster_id = blockIdx.x / RANKS;
    n_clusters = gridDim.x / RANKS;
    const auto part_of = [](unsigned all, unsigned first, unsigned each) { return first >= all ? 0 : min(each, all - first); };
    first_column = rank * n.columns;
    columns = part_of(n.n_visible, first_column, n.columns);
    first_row = cluster_id * n.rows_each;
    rows = part_of(n.n_hidden, first_row, n.rows_each);
    first_own = cluster_id * n.own;
    own = part_of(columns, first_own, n.own);
    vectors = n.padded / MV;
    V* next = (V*)shared;
    const auto take = [&](unsigned count) { V* here = next; next += count; return here; };
    corrupts = take(2 * vectors * n.columns);
    error = take(vectors * n.columns);
    hidden = take(vectors * ROWS);
    hidden_error = take(vectors * ROWS);
    part = take(n.span * WARPS * PER * ROWS);
    received = take(RANKS * vectors * (SCATTER ? OWNED : ROWS));
    received_errors = SCATTER ? received : take(RANKS * vectors * ROWS);
    bias = (float*)next;
    visible_bias = bias + ROWS;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned c = warp * 16 + j * 4 + quarter;
      inside[j] = c < columns;
      at[j] = inside[j] ? c : 0;
    }
  }

  // X~ of minibatch t: those of two steps are kept.
  __device__ V* corrupt(unsigned t) const { return corrupts + t % 2 * vectors * n.columns; }

  __device__ unsigned row(unsigned i) const { return i * 8 + group; }

  __device__ void load(const float* w, const float* b, const float* c) {
#pragma unroll
    for (unsigned i = 0; i < I; ++i)
#pragma unroll
      for (unsigned j = 0; j < 4; ++j)
        weight[i][j] = row(i) < rows && inside[j] ? w[(size_t)(first_row + row(i)) * n.n_visible + first_column + at[j]] : 0.f;
    if (threadIdx.x < ROWS) bias[threadIdx.x] = threadIdx.x < rows ? b[first_row + threadIdx.x] : 0.f;
    for (unsigned k = threadIdx.x; k < own; k += THREADS) visible_bias[k] = c[first_column + first_own + k];
    // Samples beyond the batch stay 0, and so do the errors of a block without columns: its weights
    // of 0 times what others left in shared memory could be NaN.
    for (unsigned k = threadIdx.x; k < 2 * vectors * n.columns; k += THREADS) corrupts[k] = V{};
    for (unsigned k = threadIdx.x; k < vectors * n.columns; k += THREADS) error[k] = V{};
    __syncthreads();
  }

  __device__ void store(float* w, float* b, float* c) const {
#pragma unroll
    for (unsigned i = 0; i < I; ++i)
#pragma unroll
      for (unsigned j = 0; j < 4; ++j)
        if (row(i) < rows && inside[j]) w[(size_t)(first_row + row(i)) * n.n_visible + first_column + at[j]] = weight[i][j];
    if (rank == 0 && threadIdx.x < rows) b[first_row + threadIdx.x] = bias[threadIdx.x];
    for (unsigned k = threadIdx.x; k < own; k += THREADS) c[first_column + first_own + k] = visible_bias[k];
  }

  // Module corrupt: the block's columns of minibatch t.
  __device__ void draw(const Row* from, float scale, const Noise& noise, unsigned t) {
    if (t >= n.n_steps || columns == 0) return;
    const size_t start = (size_t)t * n.batch * n.n_visible;
    Philox philox = noise.philox;
    philox.offset += t * (((unsigned long long)n.batch * n.n_visible + 3) / 4);
    const unsigned groups = n.columns / 4 + 2;
    float* out = (float*)corrupt(t);
    for (unsigned k = threadIdx.x; k < groups * n.batch; k += THREADS) {
      const unsigned m = k / groups, first = m * n.n_visible + first_column, block = first / 4 + k % groups;
      if (4 * block >= first + columns) continue;
      Rounded draws[4] = {0.f, 0.f, 0.f, 0.f};
      draws_of(noise.law, philox, block, draws);
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        const unsigned element = 4 * block + e;
        if (element < first || element >= first + columns) continue;
        const float x = entry(from, start + element, scale);
        out[((m / MV) * n.columns + element - first) * MV + m % MV] = corrupted(noise.law, x, draws[e], noise.p);
      }
    }
  }

  // The warp's sums over its columns of W times a chunk of `in`, [PER][columns], to its place in
  // `out`, [WARPS][PER][ROWS].
  __device__ void add_columns(const V* in, V* out) {
    float v[MB * I];  // [sample][row]
#pragma unroll
    for (unsigned k = 0; k < MB * I; ++k) v[k] = 0.f;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
#pragma unroll
      for (unsigned u = 0; u < PER; ++u) {
        const V x = in[u * n.columns + at[j]];
#pragma unroll
        for (unsigned i = 0; i < I; ++i)
#pragma unroll
          for (unsigned m = 0; m < MV; ++m) v[(u * MV + m) * I + i] = fmaf(weight[i][j], x.v[m], v[(u * MV + m) * I + i]);
      }
    V* const mine = out + warp * PER * ROWS;
    if constexpr (MB >= 4) {
      halve<MB * I>(v, 16);
      halve<MB / 2 * I>(v, 8);  // what is left is a quarter of the samples
      constexpr unsigned Q = MB / 4;
      const unsigned m0 = quarter / 2 * (MB / 2) + quarter % 2 * Q;
      float* const to = (float*)(mine + m0 / MV * ROWS) + m0 % MV;
#pragma unroll
      for (unsigned i = 0; i < I; ++i)
#pragma unroll
        for (unsigned m = 0; m < Q; ++m) to[row(i) * MV + m] = v[m * I + i];
    } else {
#pragma unroll
      for (unsigned k = 0; k < MB * I; ++k) v[k] += __shfl_xor_sync(~0u, v[k], 16);
#pragma unroll
      for (unsigned k = 0; k < MB * I; ++k) v[k] += __shfl_xor_sync(~0u, v[k], 8);
      if (quarter == 0)
#pragma unroll
        for (unsigned i = 0; i < I; ++i)
#pragma unroll
          for (unsigned m = 0; m < MB; ++m) mine[row(i)].v[m] = v[m * I + i];
    }
  }

  // Sums over all columns of the cluster of W times `in` [vectors][columns], one vector of a row
  // after the other, to `out`.
  template <typename Then>
  __device__ void over_columns(const V* in, V* out, V* arrived, Then then) {
    constexpr unsigned COUNT = PER * ROWS;  // vectors of a chunk
    for (unsigned first = 0; first < vectors / PER; first += n.span) {
      const unsigned chunks = min(n.span, vectors / PER - first);
      if (first > 0) __syncthreads();
      for (unsigned chunk = 0; chunk < chunks; ++chunk) add_columns(in + (first + chunk) * PER * n.columns, part + chunk * WARPS * COUNT);
      __syncthreads();
      const unsigned all = chunks * COUNT;
      for (unsigned k = threadIdx.x; k < (SCATTER ? all : RANKS * all); k += THREADS) {
        const unsigned e = k % all, r = e % ROWS, vector = first * PER + e / ROWS;
        const V* mine = part + e / COUNT * WARPS * COUNT + e % COUNT;
        V sum = mine[0];
#pragma unroll
        for (unsigned w = 1; w < WARPS; ++w) {
          const V x = mine[w * COUNT];
#pragma unroll
          for (unsigned m = 0; m < MV; ++m) sum.v[m] += x.v[m];
        }
        const unsigned to = SCATTER ? r / OWNED : k / all;
        V* place = SCATTER ? arrived + (rank * vectors + vector) * OWNED + r % OWNED : arrived + (rank * vectors + vector) * ROWS + r;
        *cg::this_cluster().map_shared_rank(place, to) = sum;
      }
    }
    cg::this_cluster().sync();
    constexpr unsigned EACH = SCATTER ? OWNED : ROWS;
    for (unsigned k = threadIdx.x; k < vectors * EACH; k += THREADS) {
      V sum = arrived[k];
#pragma unroll
      for (unsigned from = 1; from < RANKS; ++from) {
        const V x = arrived[from * vectors * EACH + k];
#pragma unroll
        for (unsigned m = 0; m < MV; ++m) sum.v[m] += x.v[m];
      }
      const unsigned r = k % EACH + (SCATTER ? rank * OWNED : 0), place = k / EACH * ROWS + r;
#pragma unroll
      for (unsigned m = 0; m < MV; ++m) sum.v[m] = r < rows ? then(sum.v[m], r, hidden[place].v[m]) : 0.f;
      if (SCATTER) {
#pragma unroll
        for (unsigned to = 0; to < RANKS; ++to) *cg::this_cluster().map_shared_rank(out + place, to) = sum;
      } else {
        out[place] = sum;
      }
    }
    if (SCATTER)
      cg::this_cluster().sync();
    else
      __syncthreads();
  }

  // The block's share of Y W, sent to the blocks of this rank, each of which sums `own` columns.
  __device__ void send_sums(unsigned long long* sums, unsigned tag) {
    for (unsigned chunk = 0; chunk < vectors / PER; ++chunk) {
      float v[4 * MB];
#pragma unroll
      for (unsigned k = 0; k < 4 * MB; ++k) v[k] = 0.f;
#pragma unroll
      for (unsigned i = 0; i < I; ++i)
#pragma unroll
        for (unsigned u = 0; u < PER; ++u) {
          const V y = hidden[(chunk * PER + u) * ROWS + row(i)];
#pragma unroll
          for (unsigned j = 0; j < 4; ++j)
#pragma unroll
            for (unsigned m = 0; m < MV; ++m) v[j * MB + u * MV + m] = fmaf(weight[i][j], y.v[m], v[j * MB + u * MV + m]);
        }
      halve<4 * MB>(v, 4);
      halve<2 * MB>(v, 2);
      if constexpr (MB > 1)
        halve<MB>(v, 1);
      else
        v[0] += __shfl_xor_sync(~0u, v[0], 1);
      // What is left is one column, and of it the upper or the lower half of the samples.
      const unsigned c = warp * 16 + (lane / 2 % 4 / 2 * 2 + lane / 2 % 2) * 4 + quarter;
      constexpr unsigned HALF = MB > 1 ? MB / 2 : 1;
      const unsigned m0 = chunk * MB + (MB > 1 ? lane % 2 * HALF : 0);
      if (c < columns && (MB > 1 || lane % 2 == 0)) {
        const size_t to = (((size_t)rank * n_clusters + c / n.own) * n_clusters + cluster_id) * n.own + c % n.own;
#pragma unroll
        for (unsigned m = 0; m < HALF; ++m) send(sums + to * n.padded + m0 + m, v[m], tag);
      }
    }
  }

  // Modules reconstruct and visible_bias, for the block's own columns: LN goes to all blocks of
  // this rank.
  __device__ void reconstruct(const unsigned long long* sums, unsigned long long* errors, unsigned tag, const Row* from,
                              float scale, unsigned t, double (&figures)[2]) {
    const unsigned long long* mine = sums + ((size_t)rank * n_clusters + cluster_id) * n_clusters * n.own * n.padded;
    for (unsigned k = threadIdx.x; k < own * n.padded; k += THREADS) {
      const unsigned m = k % n.padded, c = first_own + k / n.padded;
      const bool there = m < n.batch;
      const float x = there ? entry(from, ((size_t)t * n.batch + m) * n.n_visible + first_column + c, scale) : 0.f;
      float sum = 0.f;
      for (unsigned s0 = 0; s0 < n_clusters; s0 += 8) {
        unsigned long long words[8];
#pragma unroll
        for (unsigned s = 0; s < 8; ++s)
          words[s] = s0 + s < n_clusters ? look(mine + (size_t)(s0 + s) * n.own * n.padded + k) : 0;
#pragma unroll
        for (unsigned s = 0; s < 8; ++s)
          if (s0 + s < n_clusters) sum += wait(words[s], mine + (size_t)(s0 + s) * n.own * n.padded + k, tag);
      }
      const float a = sum + visible_bias[k / n.padded];
      const float left = there ? x - exact_sigmoid(a).v : 0.f;
      send(errors + ((size_t)rank * n.columns + c) * n.padded + m, left, tag);
      if (there) {
        figures[0] += (double)(exact_softplus(a).v - x * a);
        figures[1] += (double)left * left;
      }
    }
  }

  __device__ void gather_errors(const unsigned long long* errors, unsigned tag) {
    const unsigned long long* mine = errors + (size_t)rank * n.columns * n.padded;
    const unsigned count = columns * n.padded;
    float* out = (float*)error;
    for (unsigned k0 = threadIdx.x; k0 < count; k0 += 4 * THREADS) {
      unsigned long long words[4];
#pragma unroll
      for (unsigned u = 0; u < 4; ++u) words[u] = k0 + u * THREADS < count ? look(mine + k0 + u * THREADS) : 0;
#pragma unroll
      for (unsigned u = 0; u < 4; ++u) {
        const unsigned k = k0 + u * THREADS;
        if (k >= count) break;
        const unsigned m = k % n.padded, c = k / n.padded;
        out[((m / MV) * n.columns + c) * MV + m % MV] = wait(words[u], mine + k, tag);
      }
    }
    __syncthreads();
  }

  // Modules weights, hidden_bias and the own part of visible_bias.
  __device__ void update(unsigned t, float rate, float keep) {
    const V* x = corrupt(t);
    float sum[I][4] = {};
    for (unsigned vector = 0; vector < vectors; ++vector) {
      V y[I], lh[I];
#pragma unroll
      for (unsigned i = 0; i < I; ++i) y[i] = hidden[vector * ROWS + row(i)], lh[i] = hidden_error[vector * ROWS + row(i)];
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const V noisy = x[vector * n.columns + at[j]], ln = error[vector * n.columns + at[j]];
#pragma unroll
        for (unsigned i = 0; i < I; ++i)
#pragma unroll
          for (unsigned m = 0; m < MV; ++m)
            sum[i][j] = fmaf(y[i].v[m], ln.v[m], fmaf(lh[i].v[m], noisy.v[m], sum[i][j]));
      }
    }
#pragma unroll
    for (unsigned i = 0; i < I; ++i)
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) weight[i][j] = inside[j] ? fmaf(rate, sum[i][j], keep * weight[i][j]) : 0.f;
    // Eight threads a unit.
    step_bias(bias, rows, hidden_error, ROWS, 0, rate);
    step_bias(visible_bias, own, error, n.columns, first_own, rate);
  }

  __device__ void step_bias(float* of, unsigned count, const V* gradient, unsigned line, unsigned first, float rate) {
    for (unsigned base = 0; base < count; base += THREADS / 8) {
      const unsigned unit = base + threadIdx.x / 8;
      float sum = 0.f;
      if (unit < count)
        for (unsigned vector = threadIdx.x % 8; vector < vectors; vector += 8) {
          const V g = gradient[vector * line + first + unit];
#pragma unroll
          for (unsigned m = 0; m < MV; ++m) sum += g.v[m];
        }
#pragma unroll
      for (unsigned bit = 4; bit; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
      if (unit < count && threadIdx.x % 8 == 0) of[unit] = fmaf(rate, sum, of[unit]);
    }
  }
};

template <typename Row, unsigned MB, bool SCATTER>
__device__ void train(float* weight, float* bias, float* visible_bias, const Row* rows, unsigned long long* sums,
                      unsigned long long* errors, double* figures, const Sizes n, float scale, float rate, float keep,
                      const Noise noise) {
  extern __shared__ float4 shared[];
  Steps<Row, MB, SCATTER> steps(n, (float*)shared);
  steps.load(weight, bias, visible_bias);
  const size_t of_sums = (size_t)RANKS * steps.n_clusters * steps.n_clusters * n.own * n.padded;
  const size_t of_errors = (size_t)RANKS * n.columns * n.padded;
  double seen[2] = {0, 0};
  steps.draw(rows, scale, noise, 0);
  cg::this_cluster().sync();  // all blocks have begun: their shared memory may be written
  for (unsigned t = 0; t < n.n_steps; ++t) {
    unsigned long long* const sums_t = sums + t % 2 * of_sums;
    unsigned long long* const errors_t = errors + t % 2 * of_errors;
    const float* b = steps.bias;
    steps.over_columns(steps.corrupt(t), steps.hidden, steps.received,
                       [=](float sum, unsigned r, float) { return exact_sigmoid(sum + b[r]).v; });
    steps.send_sums(sums_t, t + 1);
    steps.draw(rows, scale, noise, t + 1);  // while the sums travel
    steps.reconstruct(sums_t, errors_t, t + 1, rows, scale, t, seen);
    steps.gather_errors(errors_t, t + 1);
    steps.over_columns(steps.error, steps.hidden_error, steps.received_errors,
                       [](float sum, unsigned, float y) { return y * (1.f - y) * sum; });
    steps.update(t, rate, keep);
    __syncthreads();
  }
  steps.store(weight, bias, visible_bias);
  // The figures of the block, in a fixed order; a block that has left must not be written to.
  double* const all = (double*)shared;
  cg::this_cluster().sync();
  all[2 * threadIdx.x] = seen[0], all[2 * threadIdx.x + 1] = seen[1];
  __syncthreads();
  if (threadIdx.x < 2) {
    double sum = 0;
    for (unsigned k = 0; k < THREADS; ++k) sum += all[2 * k + threadIdx.x];
    figures[FIGURES * threadIdx.x + blockIdx.x] += sum;
  }
}

}  // namespace

#define STEPS(NAME, ROW, MB, SCATTER)                                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
      denoising_steps_##NAME(float* weight, float* bias, float* visible_bias, unsigned long long* sums,                \
                             unsigned long long* errors, double* figures, const ROW* rows, const Sizes n,              \
                             const float scale, const float rate_m, const float keep, const unsigned law,              \
                             const float p,                                                                           \
                             const unsigned long long seed, const unsigned long long stream,                           \
                             const unsigned long long offset, const long long* counter) {                              \
    const Noise noise{law, p, philox_at(seed, stream, offset, counter)};                                               \
    train<ROW, MB, SCATTER>(weight, bias, visible_bias, rows, sums, errors, figures, n, scale, rate_m, keep, noise);         \
  }
#else
struct Sizes {
  unsigned n_visible, n_hidden, batch, padded, n_steps, columns, own, rows_each, span;
};
// Clusters are of capability 9.0; the host launches this on no other.
#define STEPS(NAME, ROW, MB, SCATTER)                                                                                  \
  extern "C" __global__ void denoising_steps_##NAME(float*, float*, float*, unsigned long long*, unsigned long long*,  \
                                                    double*, const ROW*, const Sizes, const float, const float,        \
                                                    const float, const unsigned, const float, const unsigned long long, \
                                                    const unsigned long long, const unsigned long long,                \
                                                    const long long*) {}
#endif

#define SIZES(NAME, ROW)                  \
  STEPS(NAME##_1_direct, ROW, 1, false)   \
  STEPS(NAME##_2_direct, ROW, 2, false)   \
  STEPS(NAME##_4_direct, ROW, 4, false)   \
  STEPS(NAME##_8_direct, ROW, 8, false)   \
  STEPS(NAME##_8_scatter, ROW, 8, true)
SIZES(f32, float)
SIZES(u8, unsigned char)
