// lasso_newton.cuh: Newton steps on the support of a lasso, for lasso.cu: the Cholesky factor, both
// triangular systems, and the exact line search of the piecewise quadratic along the direction.
#pragma once

#include "codes/lasso_inverse.cuh"

// Four neighbours of a factor.
template <typename T>
__device__ __forceinline__ void four(const T* from, T (&v)[4]) { load4(from, v); }

// Turns the lower triangle of `rows` rows and columns, a multiple of four, into its Cholesky
// factor, and the row below, a right-hand side, into the solution of the first triangular system.
// `inverse`: one over the diagonal. A row that depends on those before it gets the least pivot: the
// direction then goes far in the direction in which the matrix vanishes, along which the objective
// is linear and the line search ends where a coefficient is 0.
template <typename T, int THREADS>
__device__ __forceinline__ void factorise(T* factor, T* inverse, unsigned rows) {
  constexpr T PIVOT = T(64 * epsilon<T>());
  for (unsigned first = 0; first < rows; first += 4) {
    T* const panel = factor + panel_at(first / 4, rows + 1);
    // What earlier columns leave of these four.
    for (unsigned row = first + threadIdx.x; row <= rows; row += THREADS) {
      T left[4];
      four(panel + 4 * (row - first), left);
      for (unsigned before = 0; before < first; before += 4) {
        const T* const of = factor + panel_at(before / 4, rows + 1) - 4 * before;
        T mine[4];
        four(of + 4 * row, mine);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          T theirs[4];
          four(of + 4 * (first + c), theirs);
#pragma unroll
          for (int e = 0; e < 4; ++e) left[c] = fused(-mine[e], theirs[e], left[c]);
        }
      }
      store4(panel + 4 * (row - first), left);
    }
    __syncthreads();
    // The four rows of the diagonal, which every thread factorises for itself.
    T of[4][4], over[4], below[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) four(panel + 4 * r, of[r]);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      T pivot = of[c][c];
#pragma unroll
      for (int e = 0; e < c; ++e) pivot = fused(-of[c][e], of[c][e], pivot);
      over[c] = rsqrt(larger(pivot, PIVOT));
      below[c] = pivot > PIVOT ? over[c] : T(0);  // what is below a pivot of 0 is rounding error
#pragma unroll
      for (int r = c + 1; r < 4; ++r) {
#pragma unroll
        for (int e = 0; e < c; ++e) of[r][c] = fused(-of[r][e], of[c][e], of[r][c]);
        of[r][c] *= below[c];
      }
    }
    __syncthreads();
    if (threadIdx.x < 4) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (threadIdx.x == c) {
          inverse[first + c] = over[c];
          store4(panel + 4 * c, of[c]);
        }
    }
    for (unsigned row = first + 4 + threadIdx.x; row <= rows; row += THREADS) {
      T mine[4];
      four(panel + 4 * (row - first), mine);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int e = 0; e < c; ++e) mine[c] = fused(-mine[e], of[c][e], mine[c]);
        mine[c] *= row == rows ? over[c] : below[c];
      }
      store4(panel + 4 * (row - first), mine);
    }
    __syncthreads();
  }
}

// The second triangular system by one warp, from the last rows on: `direction` becomes the
// solution, and all lanes get its product with what it was, the right-hand side.
template <typename T>
__device__ __forceinline__ T solve_back(T* factor, const T* inverse, T* direction, unsigned rows) {
  const unsigned lane = threadIdx.x % 32;
  T along = 0;
  for (int first = (int)rows - 4; first >= 0; first -= 4) {
    const T* const panel = factor + panel_at(first / 4, rows + 1);
    T of[4][4], d[4], was[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) four(panel + 4 * r, of[r]);
    four(panel + 4 * (rows - first), d), four(direction + first, was);
#pragma unroll
    for (int c = 3; c >= 0; --c) {
      d[c] *= inverse[first + c];
#pragma unroll
      for (int e = 0; e < c; ++e) d[e] = fused(-of[c][e], d[c], d[e]);
      along += d[c] * was[c];
    }
    __syncwarp();
    if (lane == 0) store4(direction + first, d);
    for (unsigned before = 4 * lane; before < first; before += 128) {
      T* const of_panel = factor + panel_at(before / 4, rows + 1) - 4 * before;
      T y[4];
      four(of_panel + 4 * rows, y);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        T row[4];
        four(of_panel + 4 * (first + c), row);
#pragma unroll
        for (int e = 0; e < 4; ++e) y[e] = fused(-row[e], d[c], y[e]);
      }
      store4(of_panel + 4 * rows, y);
    }
    __syncwarp();
  }
  return along;
}

// Moves the coefficients of a support of `all` atoms to the minimum along the Newton direction of
// their signs.
template <typename T, int THREADS, typename S>
__device__ __forceinline__ void newton(const Shared<T>& at, const T* g, unsigned n, unsigned all, bool nonnegative, S& s,
                                       unsigned start) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = (all + 3) / 4 * 4;
  gather<T, THREADS>(at.factor, rows, at.atom, g, n, 0, rows, all);
  // The right-hand side: q_S - b sign(a).
  unsigned to = start;
#pragma unroll
  for (int i = 0; i < S::ENTRIES; ++i)
    if (s.a[i] != 0) entry(at.factor, rows, rows, to) = at.direction[to] = s.q[i] - (s.a[i] > 0 ? s.b[i] : -s.b[i]), ++to;
  for (unsigned row = all + threadIdx.x; row < rows; row += THREADS) entry(at.factor, rows, rows, row) = at.direction[row] = 0;
  __syncthreads();
  factorise<T, THREADS>(at.factor, at.inverse, rows);
  if (warp == 0) {
    const T along = solve_back(at.factor, at.inverse, at.direction, rows);
    if (lane == 0) at.room[0] = along;
  }
  __syncthreads();
  const T along = at.room[0];  // d'Gd
  // The derivative along d is along (t - 1), and rises by 2 b |d| where a coefficient crosses zero.
  T nearest[1] = {infinity<T>()};
  for (unsigned x = threadIdx.x; x < all; x += THREADS) {
    const T d = at.direction[x];
    const T here = at.value[x] * d < 0 ? -at.value[x] / d : infinity<T>();
    at.inverse[x] = here;
    at.penalty[x] = nonnegative ? infinity<T>() : 2 * at.penalty[x] * absolute(d);
    nearest[0] = smaller(nearest[0], here);
  }
  over_block<THREADS>(nearest, at.room, [](int, T x, T y) { return smaller(x, y); });
  T step = 1;
  if (nearest[0] < 1) {
    // The first crossing at which the derivative is no longer negative, and by how much it rose
    // before.
    T end[1] = {infinity<T>()}, rose[2] = {0, 0};
    for (unsigned x = threadIdx.x; x < all; x += THREADS) {
      const T here = at.inverse[x];
      if (!(here < infinity<T>())) continue;
      T below = 0, with = 0;
      for (unsigned y = 0; y < all; ++y) {
        if (at.inverse[y] < here) below += at.penalty[y];
        if (at.inverse[y] <= here) with += at.penalty[y];
      }
      if (along * (here - 1) + with >= 0 && here < end[0]) end[0] = here, rose[0] = below;
      rose[1] = larger(rose[1], with);
    }
    const T mine = end[0];
    over_block<THREADS>(end, at.room, [](int, T x, T y) { return smaller(x, y); });
    if (mine != end[0]) rose[0] = 0;
    over_block<THREADS>(rose, at.room, [](int, T x, T y) { return larger(x, y); });
    step = end[0] < infinity<T>() ? smaller(1 - rose[0] / along, end[0]) : 1 - rose[1] / along;
  }
  if (!(along > 0)) step = 0;
  for (unsigned x = threadIdx.x; x < all; x += THREADS)
    at.value[x] = at.inverse[x] == step ? T(0) : at.value[x] + step * at.direction[x];
  __syncthreads();
  unsigned from = start;
#pragma unroll
  for (int i = 0; i < S::ENTRIES; ++i)
    if (s.a[i] != 0) s.a[i] = at.value[from++];
}
