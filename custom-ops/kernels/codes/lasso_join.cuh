// lasso_join.cuh: atoms join the inverse Cholesky factor of lasso_inverse.cuh, four or eight at
// once.
//
//   W = G_BS T',  X = inverse Cholesky factor of G_BB - W W',  T <- [T 0; -X W T, X]
//
// T is read once for W and once for (X W) T, whatever the number of atoms: with eight it crosses
// shared memory half as often as with four.
#pragma once

#include "codes/lasso_inverse.cuh"

// The inverse Cholesky factor of a lower triangle of four rows: 0 in rows that depend on those
// before them.
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

// Sums N numbers, a power of two up to 32, of each lane over the warp: the first becomes the sum of
// number `lane / (32 / N)`.
template <int N, typename T>
__device__ __forceinline__ void scatter_sums(T (&v)[N]) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 16, many = N; step; step /= 2) {
    if (many > 1) {
      many /= 2;
      const bool upper = lane & step;
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        if (i < many) {
          const T sent = upper ? v[i] : v[i + many], kept = upper ? v[i + many] : v[i];
          v[i] = kept + __shfl_xor_sync(ALL, sent, step);
        }
    } else {
      v[0] += __shfl_xor_sync(ALL, v[0], step);
    }
  }
}

// The place of entry (e, f) of a lower triangle.
__device__ constexpr int triangle(int e, int f) { return e * (e + 1) / 2 + f; }

// The inverse Cholesky factor of a lower triangle of MANY rows, 4 or 8, which takes its place: 0 in
// rows that depend on those before them.
template <int MANY, typename T>
__device__ __forceinline__ void invert_all(T* of) {
  T block[4][4], first[4][4];
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int f = 0; f <= e; ++f) block[e][f] = of[triangle(e, f)];
  invert(block, first);
  T across[4][4], second[4][4];
  if constexpr (MANY == 8) {
    // M = S_21 X_1';  X_2 of S_22 - M M';  X_21 = -X_2 M X_1
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        across[e][f] = 0;
#pragma unroll
        for (int g = 0; g <= f; ++g) across[e][f] = fused(of[triangle(4 + e, g)], first[f][g], across[e][f]);
      }
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int f = 0; f <= e; ++f) {
        block[e][f] = of[triangle(4 + e, 4 + f)];
#pragma unroll
        for (int g = 0; g < 4; ++g) block[e][f] = fused(-across[e][g], across[f][g], block[e][f]);
      }
    invert(block, second);
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int f = 0; f <= e; ++f) {
        of[triangle(e, f)] = first[e][f];
        if constexpr (MANY == 8) of[triangle(4 + e, 4 + f)] = second[e][f];
      }
    if constexpr (MANY == 8) {
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        T of_first[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          of_first[e] = 0;
#pragma unroll
          for (int g = f; g < 4; ++g) of_first[e] = fused(across[e][g], first[g][f], of_first[e]);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          T sum = 0;
#pragma unroll
          for (int g = 0; g <= e; ++g) sum = fused(-second[e][g], of_first[g], sum);
          of[triangle(4 + e, f)] = sum;
        }
      }
    }
  }
}

// Up to MANY atoms, 4 or 8, join the `k` before them: their rows, which hold those of the Gram
// matrix, become those of T.
template <typename T, int THREADS, int MANY>
__device__ __forceinline__ void append(const Shared<T>& at, unsigned height, unsigned k, unsigned more) {
  constexpr int WARPS = THREADS / 32, PAIRS = triangle(MANY, 0);
  static_assert((MANY == 4 || MANY == 8) && PAIRS <= MOST_PAIRS);
  // Each of one or two groups of warps has its atoms; in it, some warps share the rows.
  constexpr int GROUPS = MANY == 8 && WARPS > 4 ? 2 : 1, MINE = MANY / GROUPS, SHARE = WARPS / GROUPS;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / SHARE, of_group = warp % SHARE;
  T* const w_of = at.work;  // [k][MANY]: W'
  for (unsigned row = threadIdx.x % (THREADS / GROUPS); row < k; row += THREADS / GROUPS) {
    T sum[MINE] = {};
#pragma unroll 2
    for (unsigned panel = 0; panel <= row / 4; ++panel) {
      T of[4];
      load4(four_of(at.factor, height, panel, row), of);
      const T* const theirs = four_of(at.factor, height, panel, k);
#pragma unroll
      for (int e = 0; e < MINE; ++e) {
        T with[4];
        load4(theirs + 4 * (group * MINE + e < more ? group * MINE + e : 0), with);
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[e] = fused(of[c], with[c], sum[e]);
      }
    }
#pragma unroll
    for (int e = 0; e < MINE; e += 4) store4(w_of + MANY * row + group * MINE + e, reinterpret_cast<T(&)[4]>(sum[e]));
  }
  __syncthreads();
  // W W': of the rows of a thread, of those of a warp, of all.
  {
    T product[PAIRS] = {};
    for (unsigned row = threadIdx.x; row < k; row += THREADS) {
      T w[MANY];
#pragma unroll
      for (int e = 0; e < MANY; e += 4) load4(w_of + MANY * row + e, reinterpret_cast<T(&)[4]>(w[e]));
#pragma unroll
      for (int e = 0; e < MANY; ++e)
#pragma unroll
        for (int f = 0; f <= e; ++f) product[triangle(e, f)] = fused(w[e], w[f], product[triangle(e, f)]);
    }
    T* const mine = at.parts + warp * PAIRS;
    const auto keep = [&](unsigned pair, T sum) {
      // The last warp has the Gram matrix too, which the rows of W T will overwrite.
      unsigned e = 0;
      while (triangle(e + 1, 0) <= pair) ++e;
      const unsigned f = pair - triangle(e, 0);
      T of = 0;
      if (warp == WARPS - 1 && e < more) of = entry(at.factor, height, k + e, k + f);
      mine[pair] = e < more ? of - sum : warp == WARPS - 1 && e == f ? T(1) : T(0);
    };
    if constexpr (MANY == 8) {
      T few[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) few[i] = product[32 + i];
      scatter_sums(reinterpret_cast<T(&)[32]>(product));
      scatter_sums(few);
      keep(lane, product[0]);
      if (lane % 8 == 0) keep(32 + lane / 8, few[0]);
    } else {
      T all[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) all[i] = i < PAIRS ? product[i < PAIRS ? i : 0] : T(0);
      scatter_sums(all);
      if (lane % 2 == 0 && lane / 2 < PAIRS) keep(lane / 2, all[0]);
    }
  }
  __syncthreads();
  // X, by one warp.
  if (warp == 0) {
    for (unsigned pair = lane; pair < PAIRS; pair += 32) {
      T sum = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) sum += at.parts[w * PAIRS + pair];
      at.parts[pair] = sum;
    }
    __syncwarp();
    invert_all<MANY>(at.parts);
  }
  __syncthreads();
  // -X W.
  for (unsigned row = threadIdx.x; row < k; row += THREADS) {
    T w[MANY], xw[MANY];
#pragma unroll
    for (int e = 0; e < MANY; e += 4) load4(w_of + MANY * row + e, reinterpret_cast<T(&)[4]>(w[e]));
#pragma unroll
    for (int e = 0; e < MANY; ++e) {
      xw[e] = 0;
#pragma unroll
      for (int f = 0; f <= e; ++f) xw[e] = fused(-at.parts[triangle(e, f)], w[f], xw[e]);
    }
#pragma unroll
    for (int e = 0; e < MANY; e += 4) store4(w_of + MANY * row + e, reinterpret_cast<T(&)[4]>(xw[e]));
  }
  __syncthreads();
  // Entry (e, f) of X, 0 above its diagonal.
  const auto x_of = [&](unsigned e, unsigned f) { return f <= e ? at.parts[triangle(e, f)] : T(0); };
  // -X W T: eight panels of a warp at a time, a quarter of the rows for each lane.
  const unsigned quarter = lane / 8;
  for (unsigned turn = 0; turn * SHARE * 32 < k; ++turn) {
    const unsigned chunk = turn * SHARE + (turn % 2 ? SHARE - 1 - of_group : of_group), start = 32 * chunk, panel = 8 * chunk + lane % 8;
    if (start >= k) continue;
    T sum[4 * MINE] = {};
    const T* const from = at.factor + panel_at(panel, height + 1) - 16 * panel;
    const auto add = [&](unsigned row) {
      T of[4], w[MINE];
      load4(from + 4 * row, of);
#pragma unroll
      for (int e = 0; e < MINE; e += 4) load4(w_of + MANY * row + group * MINE + e, reinterpret_cast<T(&)[4]>(w[e]));
#pragma unroll
      for (int e = 0; e < MINE; ++e)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[4 * e + c] = fused(w[e], of[c], sum[4 * e + c]);
    };
    const unsigned whole = start + 32 < k ? start + 32 : k;
    unsigned row = start + quarter;
    for (; row < whole; row += 4)
      if (row >= 4 * panel) add(row);
#pragma unroll 2
    for (; row < k; row += 4) add(row);
    scatter_quarters(sum);
    if (4 * panel < k) {
#pragma unroll
      for (int e = 0; e < MINE / 4; ++e) {
        const unsigned row_of = group * MINE + quarter * (MINE / 4) + e;
        if (4 * panel + 4 > k)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            if (4 * panel + c >= k) sum[4 * e + c] = x_of(row_of, 4 * panel + c - k);
        if (row_of < more) store4(four_of(at.factor, height, panel, k + row_of), reinterpret_cast<T(&)[4]>(sum[4 * e]));
      }
    }
  }
  // X, in the panels after these.
  for (unsigned x = threadIdx.x; x < MANY * (MANY + 4); x += THREADS) {
    const unsigned e = x / (MANY + 4), f = x % (MANY + 4), column = k + f;
    if (e < more && column >= ((k + 3) & ~3u) && column <= ((k + e) | 3)) entry(at.factor, height, k + e, column) = x_of(e, f);
  }
  __syncthreads();
}
