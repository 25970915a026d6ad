// lasso_inverse.cuh: the inverse Cholesky factor of the Gram matrix of a changing set of atoms, for
// lasso.cu.
//
//   T G_SS T' = 1,  T lower triangular with a diagonal above 0     min_a 1/2 a'G_SS a - r.a  is  a = T'(T r)
//
//   atoms B join   W = G_BS T',  X = inverse Cholesky factor of G_BB - W W',  T <- [T 0; -X W T, X]
//   atom i leaves  rotations of row i with rows r = i + 1, i + 2, ... take column i out of these;
//                  then row and column i go
//
// An atom that depends on those before it gets a row of zeros, and with it the coefficient 0.
//
// Sums have one order. Products with T need no chain over its rows, as triangular systems do;
// rotations have one of a fused step a row.
#pragma once

#include "codes/lasso.cuh"

// The factor: panels of four columns, in each the rows from the first of these columns on, four
// neighbours to a row, 0 above the diagonal.
__host__ __device__ __forceinline__ size_t panel_at(unsigned panel, unsigned rows) {
  return 4 * (size_t)panel * rows - 8 * (size_t)panel * (panel - 1);
}
// Numbers of a factor of `capacity` atoms, a multiple of four, and a row below it.
__host__ __device__ __forceinline__ size_t factor_size(unsigned capacity) { return panel_at(capacity / 4, capacity + 1); }

// Pairs of eight atoms, each with itself too.
constexpr int MOST_PAIRS = 36;

template <typename T>
struct Shared {
  Move<T>* moves;   // [2][WARPS]
  T* room;          // [5][WARPS]
  T* penalty;       // [capacity]
  T* inverse;       // [capacity]
  T* work;          // [8][capacity], of which these are two while no atom joins:
  T* direction;     // [capacity]
  T* value;         // [capacity]
  T* parts;         // [WARPS][MOST_PAIRS]
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

// Rows `from` to `to` of the Gram matrix of the atoms, up to the diagonal, by warps: some rows, and
// in each some columns of a lane, at a time, so that loads overlap.
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

// Sums N numbers, a multiple of four, of each lane over the four lanes with the same remainder by
// 8: the first N / 4 become the sums of those from `lane / 8 * (N / 4)` on.
template <int N, typename T>
__device__ __forceinline__ void scatter_quarters(T (&v)[N]) {
#pragma unroll
  for (int step = 16, many = N / 2; step >= 8; step /= 2, many /= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < N / 2; ++i)
      if (i < many) {
        const T sent = upper ? v[i] : v[i + many], kept = upper ? v[i + many] : v[i];
        v[i] = kept + __shfl_xor_sync(ALL, sent, step);
      }
  }
}

// Atom `i` of `k` leaves: T becomes that of the others, with a row of zeros in its place; what is
// left of its column counts no more.
template <typename T, int THREADS>
__device__ __forceinline__ void remove(const Shared<T>& at, unsigned height, unsigned k, unsigned i) {
  constexpr unsigned TOGETHER = 8;
  const unsigned lane = threadIdx.x % 32, start = i + 1, many = k - start;
  T* const turns = at.work;  // cosine and sine of the rotation of each row after i, and 1 and 0 up to a multiple of eight
  if (threadIdx.x < 32) {
    const T* const of_column = at.factor + panel_at(i / 4, height + 1) - 16 * (i / 4) + i % 4;
    const T first = of_column[4 * i];
    T carry = first * first;
    for (unsigned from = 0; from < many; from += 32) {
      const unsigned x = from + lane;
      const T mine = x < many ? of_column[4 * (start + x)] : T(0);
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
      const bool is_turned = x < many && upto > 0;
      if (x < (many + TOGETHER - 1) / TOGETHER * TOGETHER) {
        turns[2 * x] = !is_turned ? T(1) : before > 0 ? before * rsqrt(before) * over : T(0);
        turns[2 * x + 1] = mine * over;
      }
    }
  }
  __syncthreads();
  // A column for each thread; those of a warp begin with a row that one of them has.
  for (unsigned column = threadIdx.x; column < k; column += THREADS) {
    const unsigned of_warp = column & ~31u;
    T* const of_column = at.factor + panel_at(column / 4, height + 1) - 16 * (column / 4) + column % 4;
    T turning = 0;
    if (column <= i) turning = of_column[4 * i], of_column[4 * i] = 0;
    for (unsigned x = of_warp > start ? (of_warp - start) / TOGETHER * TOGETHER : 0; x < many; x += TOGETHER) {
      T* const rows = of_column + 4 * (start + x);
      const unsigned row = start + x;
      T of[TOGETHER], left[TOGETHER];
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r) of[r] = row + r < k && row + r >= column ? rows[4 * r] : T(0);
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; r += 2) {
        T turn[4];
        load4(turns + 2 * (x + r), turn);
#pragma unroll
        for (unsigned e = 0; e < 2; ++e) {
          left[r + e] = fused(turn[2 * e], of[r + e], -turn[2 * e + 1] * turning);
          turning = fused(turn[2 * e], turning, turn[2 * e + 1] * of[r + e]);
        }
      }
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r)
        if (row + r < k && row + r >= column) rows[4 * r] = left[r];
    }
  }
  __syncthreads();
}

// Row and column x of T for each x of the list `stays`, rising, of `left` of `k`, in place of those
// that left; from number `first` on they differ from x.
template <typename T, int THREADS>
__device__ __forceinline__ void close_up(const Shared<T>& at, unsigned height, const unsigned* stays, unsigned first, unsigned left) {
  constexpr int TOGETHER = 8;
  const unsigned columns = left + 3 & ~3u;
  for (unsigned start = 0; start < columns; start += THREADS) {
    const unsigned to = start + threadIdx.x, column = to < left ? stays[to] : 0;
    const T* const of_column = at.factor + panel_at(column / 4, height + 1) - 16 * (column / 4) + column % 4;
    T* const to_column = at.factor + panel_at(to / 4, height + 1) - 16 * (to / 4) + to % 4;
    for (unsigned row = first; row < left; row += TOGETHER) {
      T of[TOGETHER];
#pragma unroll
      for (int r = 0; r < TOGETHER; ++r) of[r] = row + r < left && row + r >= to && to < left ? of_column[4 * stays[row + r]] : T(0);
      __syncthreads();  // all have read these rows, which are written now, and the rows before them
#pragma unroll
      for (int r = 0; r < TOGETHER; ++r)
        if (row + r < left && to <= ((row + r) | 3)) to_column[4 * (row + r)] = of[r];
    }
  }
  __syncthreads();
}

// value <- T'(T right), for right [k] with room for a multiple of four.
template <typename T, int THREADS>
__device__ __forceinline__ void minimum(const Shared<T>& at, unsigned height, unsigned k, T* right) {
  constexpr unsigned WARPS = THREADS / 32;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane / 8;
  if (k + threadIdx.x <= ((k - 1) | 3)) right[k + threadIdx.x] = 0;
  __syncthreads();
  // T right: eight rows of a warp at a time, every fourth panel for each lane.
  for (unsigned turn = 0; turn * WARPS * 8 < k; ++turn) {
    const unsigned row = 8 * (turn * WARPS + (turn % 2 ? WARPS - 1 - warp : warp)) + lane % 8;
    T sum[2] = {0, 0};
    if (row < k)
#pragma unroll 4
      for (unsigned panel = quarter; panel <= row / 4; panel += 4) {
        T of[4], with[4];
        load4(four_of(at.factor, height, panel, row), of), load4(right + 4 * panel, with);
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c % 2] = fused(of[c], with[c], sum[c % 2]);
      }
    T all = sum[0] + sum[1];
    all += __shfl_xor_sync(ALL, all, 8);
    all += __shfl_xor_sync(ALL, all, 16);
    if (quarter == 0 && row < k) at.direction[row] = all;
  }
  __syncthreads();
  // T' times that: eight panels of a warp at a time, a sixteenth of the rows for each lane; four
  // sums for each column.
  const unsigned part = warp % 4;
  for (unsigned chunk = warp / 4; 32 * chunk < k; chunk += WARPS / 4) {
    const unsigned panel = 8 * chunk + lane % 8;
    const T* const from = at.factor + panel_at(panel, height + 1) - 16 * panel;
    T sum[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (unsigned row = 32 * chunk + 4 * part + quarter; row < k; row += 16) {
      if (row < 4 * panel) continue;
      const T with = at.direction[row];
      T of[4];
      load4(from + 4 * row, of);
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[c] = fused(with, of[c], sum[c]);
    }
    scatter_quarters(sum);
    if (4 * panel < k) at.work[part * height + 4 * panel + quarter] = sum[0];
  }
  __syncthreads();
  for (unsigned x = threadIdx.x; x < k; x += THREADS)
    at.value[x] = at.work[x] + at.work[height + x] + (at.work[2 * height + x] + at.work[3 * height + x]);
}
