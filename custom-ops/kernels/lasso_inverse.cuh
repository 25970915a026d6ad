// lasso_inverse.cuh: the inverse Cholesky factor of the Gram matrix of a changing set of atoms, for lasso.cu.
//
//   T G_SS T' = 1,  T lower triangular with a diagonal above 0     min_a 1/2 a'G_SS a - r.a  is  a = T'(T r)
//
//   atoms B join   W = G_BS T',  X = inverse Cholesky factor of G_BB - W W',  T <- [T 0; -X W T, X]
//   atom i leaves  rotations of rows i and r = i + 1, i + 2, ... take column i out of all rows but the last, which goes, as does the column
//
// An atom that depends on those before it gets a row of zeros, and with it the coefficient 0.
//
// Sums have one order. Products with T need no chain over its rows, as triangular systems do; rotations have one of two fused steps a row.
#pragma once

#include "lasso.cuh"

// The factor: panels of four columns, in each the rows from the first of these columns on, four neighbours to a row, 0 above the diagonal.
__host__ __device__ __forceinline__ size_t panel_at(unsigned panel, unsigned rows) {
  return 4 * (size_t)panel * rows - 8 * (size_t)panel * (panel - 1);
}
// Numbers of a factor of `capacity` atoms, a multiple of four, and a row below it.
__host__ __device__ __forceinline__ size_t factor_size(unsigned capacity) { return panel_at(capacity / 4, capacity + 1); }

template <typename T>
struct Shared {
  Move<T>* moves;   // [2][WARPS]
  T* room;          // [5][WARPS]
  T* direction;     // [capacity]
  T* value;         // [capacity]
  T* penalty;       // [capacity]
  T* inverse;       // [capacity]
  T* work;          // [4][capacity]
  T* factor;        // [factor_size]
  unsigned* atom;   // [capacity]
  unsigned* count;  // [WARPS]
};

// Row `row` of panel `panel` of a factor with room for so many rows and one more.
template <typename T>
__device__ __forceinline__ T* four_of(T* factor, unsigned rows, unsigned panel, unsigned row) {
  return factor + panel_at(panel, rows + 1) + 4 * (row - 4 * panel);
}
template <typename T>
__device__ __forceinline__ T& entry(T* factor, unsigned rows, unsigned row, unsigned column) {
  return four_of(factor, rows, column / 4, row)[column % 4];
}

// Rows `from` to `to` of the Gram matrix of the atoms, up to the diagonal, by warps: some rows, and in each some columns of a lane, at a time,
// so that loads overlap.
template <typename T, int THREADS>
__device__ __forceinline__ void gather(T* factor, unsigned height, const unsigned* atom, const T* g, unsigned n, unsigned from,
                                       unsigned to, unsigned all) {
  constexpr unsigned ROWS = 4, COLUMNS = 4;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned first = from + warp * ROWS; first < to; first += THREADS / 32 * ROWS)
    for (unsigned start = lane; start <= ((first + ROWS - 1) | 3); start += 32 * COLUMNS) {
      T of[ROWS][COLUMNS];
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r)
#pragma unroll
        for (unsigned c = 0; c < COLUMNS; ++c) {
          const unsigned row = first + r, column = start + 32 * c;
          of[r][c] = row == column ? T(1) : T(0);
          if (row < all && column < row) of[r][c] = g[(size_t)atom[row] * n + atom[column]];
        }
#pragma unroll
      for (unsigned r = 0; r < ROWS; ++r)
#pragma unroll
        for (unsigned c = 0; c < COLUMNS; ++c)
          if (first + r < to && start + 32 * c <= ((first + r) | 3)) entry(factor, height, first + r, start + 32 * c) = of[r][c];
    }
}

// The inverse Cholesky factor of a lower triangle of four rows: 0 in rows that depend on those before them.
template <typename T>
__device__ __forceinline__ void invert(T (&of)[4][4], T (&inverse)[4][4]) {
  constexpr T PIVOT = sizeof(T) == 8 ? T(1e-12) : T(1e-5);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    T pivot = of[c][c];
#pragma unroll
    for (int e = 0; e < c; ++e) pivot = fused(-of[c][e], of[c][e], pivot);
    const T over = pivot > PIVOT ? rsqrt(pivot) : T(0);
#pragma unroll
    for (int r = c + 1; r < 4; ++r) {
#pragma unroll
      for (int e = 0; e < c; ++e) of[r][c] = fused(-of[r][e], of[c][e], of[r][c]);
      of[r][c] *= over;
    }
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      T sum = f == c ? T(1) : T(0);
#pragma unroll
      for (int e = 0; e < c; ++e)
        if (f <= e) sum = fused(-of[c][e], inverse[e][f], sum);
      inverse[c][f] = f <= c ? sum * over : T(0);
    }
  }
}

// Up to four atoms join the `k` before them: their rows, which hold those of the Gram matrix, become those of T.
template <typename T, int THREADS>
__device__ __forceinline__ void append(const Shared<T>& at, unsigned height, unsigned k, unsigned more) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // W: four numbers for each row of T.
  for (unsigned row = threadIdx.x; row < k; row += THREADS) {
    T sum[4] = {0, 0, 0, 0};
#pragma unroll 2
    for (unsigned panel = 0; panel <= row / 4; ++panel) {
      T of[4];
      load4(four_of(at.factor, height, panel, row), of);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < more) {
          T theirs[4];
          load4(four_of(at.factor, height, panel, k + e), theirs);
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[e] = fused(of[c], theirs[c], sum[e]);
        }
    }
    store4(at.work + 4 * row, sum);
  }
  __syncthreads();
  // G_BB - W W', by each warp for itself.
  T product[4][4] = {}, inverse[4][4];
  for (unsigned row = lane; row < k; row += 32) {
    T w[4];
    load4(at.work + 4 * row, w);
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int f = 0; f <= e; ++f) product[e][f] = fused(w[e], w[f], product[e][f]);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int f = 0; f <= e; ++f) {
#pragma unroll
      for (int step = 16; step; step /= 2) product[e][f] += __shfl_xor_sync(ALL, product[e][f], step);
      const T of = e < more ? entry(at.factor, height, k + e, k + f) : e == f ? T(1) : T(0);
      product[e][f] = of - product[e][f];
    }
  invert(product, inverse);
  __syncthreads();
  // W T: a warp for each of the four rows, a lane for four columns.
  const unsigned of_row = warp % 4;
  if (of_row < more)
    for (unsigned first = warp / 4 * 32; 4 * first < k; first += THREADS / 4) {
      const unsigned panel = first + lane;
      T sum[4] = {0, 0, 0, 0};
      const T* const from = at.factor + panel_at(panel, height + 1) - 16 * panel;
#pragma unroll 4
      for (unsigned row = 4 * first; row < k; ++row) {
        const T w = at.work[4 * row + of_row];
        if (row >= 4 * panel) {
          T of[4];
          load4(from + 4 * row, of);
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[c] = fused(w, of[c], sum[c]);
        }
      }
      if (4 * panel < k) store4(four_of(at.factor, height, panel, k + of_row), sum);
    }
  __syncthreads();
  // -X W T, and X.
  for (unsigned panel = threadIdx.x; 4 * panel < k + more; panel += THREADS) {
    T of[4][4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < more && 4 * panel < k) load4(four_of(at.factor, height, panel, k + e), of[e]);
      else of[e][0] = of[e][1] = of[e][2] = of[e][3] = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      T row[4] = {0, 0, 0, 0};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int f = 0; f <= e; ++f)
          if (4 * panel + c < k) row[c] = fused(-inverse[e][f], of[f][c], row[c]);
          else if (4 * panel + c == k + f) row[c] = inverse[e][f];
      }
      if (e < more && 4 * panel <= k + e) store4(four_of(at.factor, height, panel, k + e), row);
    }
  }
  __syncthreads();
}

// Atom `i` of `k` leaves: T becomes that of the others. Their other numbers stay where they are.
template <typename T, int THREADS>
__device__ __forceinline__ void remove(const Shared<T>& at, unsigned height, unsigned k, unsigned i) {
  constexpr int AT_ONCE = 8;
  const unsigned lane = threadIdx.x % 32;
  // The rotations: cosine and sine of each row after i.
  if (threadIdx.x < 32) {
    const T first = entry(at.factor, height, i, i);
    T carry = first * first;
    for (unsigned from = i + 1; from < k; from += 32) {
      const unsigned row = from + lane;
      const T mine = row < k ? entry(at.factor, height, row, i) : T(0);
      T upto = mine * mine;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const T below = __shfl_up_sync(ALL, upto, step);
        if (lane >= step) upto += below;
      }
      upto += carry;
      T before = __shfl_up_sync(ALL, upto, 1);
      if (lane == 0) before = carry;
      carry = __shfl_sync(ALL, upto, 31);
      const T over = upto > 0 ? rsqrt(upto) : T(0);
      if (row < k) at.work[2 * row] = upto > 0 ? sqrt(before) * over : T(1), at.work[2 * row + 1] = mine * over;
    }
  }
  __syncthreads();
  const unsigned width = ((k - 1) | 3) + 2;
  for (unsigned from = 0; from < width; from += THREADS) {
    const unsigned column = from + threadIdx.x, to = column - (column > i);
    T turning = column <= i ? entry(at.factor, height, i, column) : T(0);
    for (unsigned first = i + 1; first < k; first += AT_ONCE) {
      T of[AT_ONCE];
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) {
        const unsigned row = first + r;
        of[r] = row < k && column <= (row | 3) ? entry(at.factor, height, row, column) : T(0);
      }
      __syncthreads();  // all have read these rows, the first of which nobody reads again
#pragma unroll
      for (int r = 0; r < AT_ONCE; ++r) {
        const unsigned row = first + r;
        if (row >= k) break;
        const T cosine = at.work[2 * row], sine = at.work[2 * row + 1];
        const T left = fused(cosine, of[r], -sine * turning);
        turning = fused(sine, of[r], cosine * turning);
        if (column != i && to <= ((row - 1) | 3)) entry(at.factor, height, row - 1, to) = left;
      }
    }
  }
  __syncthreads();
}

// value <- T'(T right), for right [k] with room for a multiple of four.
template <typename T, int THREADS>
__device__ __forceinline__ void minimum(const Shared<T>& at, unsigned height, unsigned k, T* right) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (k + threadIdx.x <= ((k - 1) | 3)) right[k + threadIdx.x] = 0;
  __syncthreads();
  for (unsigned row = threadIdx.x; row < k; row += THREADS) {
    T sum[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (unsigned panel = 0; panel <= row / 4; ++panel) {
      T of[4], with[4];
      load4(four_of(at.factor, height, panel, row), of), load4(right + 4 * panel, with);
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[c] = fused(of[c], with[c], sum[c]);
    }
    at.direction[row] = sum[0] + sum[1] + (sum[2] + sum[3]);
  }
  __syncthreads();
  for (unsigned first = warp / 4 * 32; 4 * first < k; first += THREADS / 4) {
    const unsigned panel = first + lane;
    const T* const from = at.factor + panel_at(panel, height + 1) - 16 * panel;
    T sum[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (unsigned row = 4 * first + warp % 4; row < k; row += 4) {
      const T with = at.direction[row];
      if (row >= 4 * panel) {
        T of[4];
        load4(from + 4 * row, of);
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] = fused(with, of[c], sum[c]);
      }
    }
    if (4 * panel < k) store4(at.work + warp % 4 * height + 4 * panel, sum);
  }
  __syncthreads();
  for (unsigned x = threadIdx.x; x < k; x += THREADS)
    at.value[x] = at.work[x] + at.work[height + x] + (at.work[2 * height + x] + at.work[3 * height + x]);
}
