// patch_products.cu: products with the weights of patches, for every type and size: up, down and
// the gradient. The formulas are in src/images/patches/mod.rs; the fast kernels for 16-bit numbers
// are in patch_units.cu and patch_step.cu.
//
// arrays   x, h, v: PARTS of [batch, units], parts x_part entries apart; weight: PARTS of [patches,
//          hidden, window_len], w_part apart; T (f32, f64, bf16, f16); out: [batch, units] or
//          [patches, hidden, window_len], S (f32; f64 for f64). A number is the sum of its parts
// scalars  Grid as validated by src/images/patches/grid.rs; parts 1 or 2
// launch   a block of 256 threads for each tile of 64 x 64: 1-D in x over (patch or cell, tiles
//          across), tiles of rows in y
// shared   2 tiles of 16 x 68 S, static
// cost     2 * batch * weights FLOP without tensor cores; what binds is shared memory
// NaN      propagates
// same     sums have one order on one device; no atomics
// truth    patch_product_reference and patch_gradient_reference

#include "core/numbers.cuh"
#include "core/patches.cuh"

constexpr int SIDE = 64, STEP = 16, EACH = 4, THREADS = 256;

template <typename T> struct Sum { using type = float; };
template <> struct Sum<double> { using type = double; };

// A number of an operand: the sum of its parts.
template <typename T>
struct Operand {
  const T* first;
  unsigned long long part;  // to the second part; 0 where there is one
  __device__ typename Sum<T>::type operator[](size_t at) const {
    typename Sum<T>::type x = wide(first[at]);
    if (part) x = x + wide(first[part + at]);
    return x;
  }
};

// Sums the tile from (row0, col0) of a product of [m, k] by [k, n] and gives its entries to
// out(row, col, sum).
template <typename S, typename A, typename B, typename Out>
__device__ void tile(int m, int n, int k, int row0, int col0, A a, B b, Out out) {
  __shared__ S as[STEP][SIDE + 4], bs[STEP][SIDE + 4];
  const int tx = threadIdx.x % (SIDE / EACH), ty = threadIdx.x / (SIDE / EACH);
  S sum[EACH][EACH] = {};
  for (int k0 = 0; k0 < k; k0 += STEP) {
    for (int i = threadIdx.x; i < STEP * SIDE; i += THREADS) {
      // Neighbouring threads read neighbours in depth of a, and columns of b.
      const int da = i % STEP, ra = i / STEP, db = i / SIDE, cb = i % SIDE;
      as[da][ra] = row0 + ra < m && k0 + da < k ? a(row0 + ra, k0 + da) : S(0);
      bs[db][cb] = col0 + cb < n && k0 + db < k ? b(k0 + db, col0 + cb) : S(0);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < STEP; ++d)
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) sum[i][j] = fused(as[d][ty * EACH + i], bs[d][tx * EACH + j], sum[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i)
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      const int row = row0 + ty * EACH + i, col = col0 + tx * EACH + j;
      if (row < m && col < n) out(row, col, sum[i][j]);
    }
}

template <typename T>
__device__ void up(typename Sum<T>::type* out, Operand<T> x, Operand<T> weight, const Grid& g, int batch, float factor) {
  using S = typename Sum<T>::type;
  const int tiles = (g.hidden + SIDE - 1) / SIDE, patch = blockIdx.x / tiles, len = g.window_len();
  const size_t origin = g.origin(patch), unit0 = (size_t)patch * g.hidden;
  tile<S>(
      batch, g.hidden, len, blockIdx.y * SIDE, blockIdx.x % tiles * SIDE,
      [&](int b, int i) { return x[(size_t)b * g.values + origin + g.entry(i)]; },
      [&](int i, int j) { return weight[(unit0 + j) * len + i]; },
      [&](int b, int j, S sum) { out[(size_t)b * g.units() + unit0 + j] = S(factor) * sum; });
}

template <typename T>
__device__ void down(typename Sum<T>::type* out, Operand<T> h, Operand<T> weight, const Grid& g, int batch, float factor) {
  using S = typename Sum<T>::type;
  const int tiles = (g.cell_len() + SIDE - 1) / SIDE, overlap = g.overlap(), len = g.window_len();
  const Cell cell(g, blockIdx.x / tiles);
  tile<S>(
      batch, g.cell_len(), overlap * overlap * g.hidden, blockIdx.y * SIDE, blockIdx.x % tiles * SIDE,
      [&](int b, int k) {
        const int q = k / g.hidden, patch = cell.patch(g, q / overlap, q % overlap);
        return patch < 0 ? S(0) : h[(size_t)b * g.units() + (size_t)patch * g.hidden + (k - q * g.hidden)];
      },
      [&](int k, int u) {
        const int q = k / g.hidden, patch = cell.patch(g, q / overlap, q % overlap), entry = cell.entry(g, u, q / overlap, q % overlap);
        return patch < 0 || entry < 0 ? S(0) : weight[((size_t)patch * g.hidden + (k - q * g.hidden)) * len + entry];
      },
      [&](int b, int u, S sum) {
        const int place = cell.place(g, u);
        if (place >= 0) out[(size_t)b * g.values + place] = S(factor) * sum;
      });
}

// factors: alpha and beta on the device, or null.
template <typename T>
__device__ void gradient(typename Sum<T>::type* out, Operand<T> h, Operand<T> v, const float* factors, const Grid& g, int rows, double alpha,
                         double beta) {
  using S = typename Sum<T>::type;
  const int len = g.window_len(), tiles = (len + SIDE - 1) / SIDE, patch = blockIdx.x / tiles;
  const size_t origin = g.origin(patch), unit0 = (size_t)patch * g.hidden;
  const S by = factors ? S(factors[0]) : S(alpha), keep = factors ? S(factors[1]) : S(beta);
  tile<S>(
      g.hidden, len, rows, blockIdx.y * SIDE, blockIdx.x % tiles * SIDE,
      [&](int j, int b) { return h[(size_t)b * g.units() + unit0 + j]; },
      [&](int b, int i) { return v[(size_t)b * g.values + origin + g.entry(i)]; },
      [&](int j, int i, S sum) {
        S* at = out + (unit0 + j) * len + i;
        *at = keep == S(0) ? by * sum : fused(keep, *at, by * sum);
      });
}

#define PATCH_PRODUCTS(NAME, T)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                          \
  patch_up_##NAME(Sum<T>::type* out, const T* x, unsigned long long x_part, const T* weight, unsigned long long w_part,          \
                  const Grid g, int batch, float factor) {                                                                       \
    up<T>(out, {x, x_part}, {weight, w_part}, g, batch, factor);                                                                 \
  }                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                          \
  patch_down_##NAME(Sum<T>::type* out, const T* h, unsigned long long h_part, const T* weight, unsigned long long w_part,        \
                    const Grid g, int batch, float factor) {                                                                     \
    down<T>(out, {h, h_part}, {weight, w_part}, g, batch, factor);                                                               \
  }                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                          \
  patch_gradient_##NAME(Sum<T>::type* out, const T* h, unsigned long long h_part, const T* v, unsigned long long v_part,         \
                        const float* factors, const Grid g, int rows, double alpha, double beta) {                               \
    gradient<T>(out, {h, h_part}, {v, v_part}, factors, g, rows, alpha, beta);                                                   \
  }
PATCH_PRODUCTS(f32, float)
PATCH_PRODUCTS(f64, double)
PATCH_PRODUCTS(bf16, __nv_bfloat16)
PATCH_PRODUCTS(f16, __half)
