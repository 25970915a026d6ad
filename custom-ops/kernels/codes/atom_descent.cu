// atom_descent.cu: one descent sweep over the atoms, from the statistics of codes.
//
//   for each group of 32 atoms, one group after the other:
//     y_k  = d_k + (b_k - a_k D) / a_kk                             k in the group
//     y_k += c_ik (d_i - s_i y_i)   for i < k, i in rising order    c_ik = a_ik / a_kk
//     d_k <- s_k y_k                                                s_k brings y_k to length: to 1;
//                                                                   capped: only where it is longer
//                                                                   than 1
//
// Columns depend on each other only through the lengths s_k, and these follow from the inner
// products of the group's rows alone. With
//
//     e_k = y_k + sum_{i<k} c_ik d_i     (the first y)     w_k = e_k - sum_{i<k} c_ik s_i w_i     (the last y)
//
// the chain over the atoms is on R = E E', 32 x 32 in double: s_i = 1 / sqrt(R_ii), R_jk <- <w_j,
// w_k> for j, k > i. A block owns columns for the whole sweep; blocks meet only to add up R. While
// some warps follow the chain, the others form a_k D for the next group, from the atoms of before;
// the next group adds what this one changed.
//
//   1  y and E of the block's columns, its part of R              all warps
//   2  R over all blocks: parts, then sums                        two barriers of the grid, or of the cluster that is the grid
//   3  s of the group | a_k D, c and a of the next one            four warps of each block, the same numbers in each | the others
//   4  d of the block's columns, and what each atom lost          all warps
//
// arrays   d: [n, p], a: [n, n] symmetric, b: [n, p], T float or double, contiguous, none overlap.
//          far: a slice for each block (see Slice), or null where it is in shared memory; sums:
//          (blocks + 1) * 1024 double, not read where there is one block
// scalars  n_fixed < n: the atoms before it do not change; p >= 1; columns: a multiple of 8, those
//          of a block, blocks * columns >= p; unused: an atom with a_jj at or below it does not
//          change; capped: 1 where atoms may be shorter than 1, else 0
// launch   blocks of 512; several are a cluster (clustered = 1) or cooperative, so that all run at
//          once
// shared   sizeof(Room<T>) and, without `far`, a slice
// cost     2 n p FLOP per atom; a from the second-level cache once for each 8 columns. The chain
//          limits: some 200 cycles an atom, and 3 us a group for R
// NaN      a row whose new length is not finite, or is 0 and must be 1, does not change: parts 1 to
//          3 are done again as if it were unused; a NaN in d or b spreads to the rows that a
//          couples with it
// same     each sum has one order; no atomics on numbers
// truth    descend_atoms_reference in src/codes/atoms/descend.rs

#include "codes/atoms.cuh"
#include "core/numbers.cuh"

constexpr unsigned GROUP = 32;           // atoms of a group: one a lane
constexpr unsigned PAIRS = GROUP * GROUP;
constexpr unsigned TILE = 8;             // columns that a lane sums at a time
constexpr unsigned CHAIN = 4;            // warps that follow the chain
constexpr unsigned OWN = GROUP / CHAIN;  // columns of products of each
constexpr unsigned AHEAD = WARPS - CHAIN;  // warps that look ahead
constexpr unsigned IN_FLIGHT = 16;       // numbers that such a lane waits for at a time

// What a block keeps of a group and of the next one.
template <typename T>
struct alignas(16) Room {
  double2 step[2][GROUP];             // of the chain: for each k what products with w_k lose, and t_k
  double of_step[2][GROUP];           // the products with the row of the step
  double coupling[2][PAIRS];          // c_ik at [i][k]: 0 for i >= k and where i or k does not change
  double rows[WARPS][GROUP + 1];      // e_k of a column
  T narrow[2][PAIRS];                 // c_ik as T
  T across[PAIRS];                    // a_ik, i in the group before
  T parts[AHEAD][TILE][GROUP];        // of the sum over atoms, of each warp
  T inverse[2][GROUP];                // 1 / a_kk, 0 where it is unused
  T length[GROUP];                    // s_k
  unsigned moves[2];                  // a bit for each atom that may change
  unsigned stays;                     // those that turned out to have no length
};

// The rows that a block owns columns of, in shared or global memory.
template <typename T>
struct Slice {
  T* atoms;  // [n][columns], 0 beyond p
  T* next;   // [columns][GROUP]: b_k - a_k D of the next group
  T* y;      // [columns][GROUP]
  T* lost;   // [columns][GROUP]: what the last group's atoms lost
  unsigned columns, first;  // how many, and which of all

  __device__ Slice(T* at, unsigned n, unsigned columns)
      : atoms(at), next(at + (size_t)n * columns), y(next + columns * GROUP), lost(y + columns * GROUP),
        columns(columns), first(blockIdx.x * columns) {}
};

// The statistics and their sizes.
template <typename T>
struct Statistics {
  const T *a, *b;
  unsigned n, p;
  double unused;
};

// By how much x is scaled to length 1, given the sum of its squares; 0 where it has no length or
// none that is a number.
__device__ __noinline__ double inverse_length(double squares, double) {
  const double norm = sqrt(squares);
  return norm > 1.17549435e-38 && norm < INFINITY ? 1 / norm : 0;
}
__device__ __forceinline__ float inverse_length(double squares, float) {
  const float s = (float)squares;
  // Outside, the inverse of a square root of f32 is not what it should be.
  if (!(s > 1e-30f && s < 1e30f)) return (float)inverse_length(squares, 0.);
  const float first = rsqrtf(s);
  return fmaf(0.5f * first, fmaf(-s * first, first, 1.f), first);
}

// The same where the length must be 1, or 1 where it may be below and is.
template <typename T>
__device__ __forceinline__ T to_length(double squares, unsigned capped) {
  return capped && squares <= 1 ? T(1) : inverse_length(squares, T());
}

// Waits for all blocks, and for what they wrote.
__device__ __forceinline__ void meet(unsigned blocks, unsigned clustered) {
  if (blocks == 1) return __syncthreads();
#if __CUDA_ARCH__ >= 900
  if (clustered) return cooperative_groups::this_cluster().sync();
#endif
  cooperative_groups::this_grid().sync();
}

// Waits for the warps that look ahead, or for those that follow the chain.
__device__ __forceinline__ void ahead_sync() { asm volatile("bar.sync 1, %0;" ::"n"(AHEAD * WARP) : "memory"); }
__device__ __forceinline__ void chain_sync() { asm volatile("bar.sync 2, %0;" ::"n"(CHAIN * WARP) : "memory"); }

// What the group of atoms from `first` on needs of the statistics and of the atoms as they are, by
// the last warps. follows: there is a group before it.
template <typename T>
__device__ void look_ahead(Room<T>& room, const Slice<T>& slice, const Statistics<T>& of, unsigned first, unsigned buffer,
                           bool follows) {
  const unsigned lane = threadIdx.x % WARP, worker = threadIdx.x / WARP - CHAIN, n = of.n;
  const bool inside = first + lane < n;
  const unsigned k = inside ? first + lane : first;  // any atom
  if (worker == 0) {
    const T a_kk = of.a[(size_t)k * n + k];
    const bool moves = inside && (double)a_kk > of.unused;
    const unsigned all = __ballot_sync(ALL_LANES, moves);
    room.inverse[buffer][lane] = moves ? 1 / a_kk : T(0);
    if (lane == 0) room.moves[buffer] = all;
  }
  for (unsigned at = 0; at < slice.columns; at += TILE) {
    T sum[TILE];
#pragma unroll
    for (unsigned c = 0; c < TILE; c++) {
      const bool there = worker == 0 && inside && slice.first + at + c < of.p;
      sum[c] = there ? of.b[(size_t)k * of.p + slice.first + at + c] : T(0);
    }
    for (unsigned from = worker; from < n; from += IN_FLIGHT * AHEAD) {
      T weight[IN_FLIGHT];
#pragma unroll
      for (unsigned i = 0; i < IN_FLIGHT; i++) {
        const unsigned j = from + i * AHEAD;
        weight[i] = j < n ? -of.a[(size_t)j * n + k] : T(0);
      }
#pragma unroll
      for (unsigned i = 0; i < IN_FLIGHT; i++) {
        const unsigned j = from + i * AHEAD;
        if (j >= n) break;
        T atom[TILE];
        load4(slice.atoms + (size_t)j * slice.columns + at, reinterpret_cast<T(&)[4]>(atom[0]));
        load4(slice.atoms + (size_t)j * slice.columns + at + 4, reinterpret_cast<T(&)[4]>(atom[4]));
#pragma unroll
        for (unsigned c = 0; c < TILE; c++) sum[c] = fused(weight[i], atom[c], sum[c]);
      }
    }
#pragma unroll
    for (unsigned c = 0; c < TILE; c++) room.parts[worker][c][lane] = sum[c];
    ahead_sync();
    for (unsigned c = worker; c < TILE; c += AHEAD) {
      T all = 0;
#pragma unroll
      for (unsigned w = 0; w < AHEAD; w++) all += room.parts[w][c][lane];
      slice.next[(at + c) * GROUP + lane] = inside ? all : T(0);
    }
    ahead_sync();
  }
  for (unsigned i = worker; i < GROUP; i += AHEAD) {
    const bool couples = i < lane && (room.moves[buffer] >> i & room.moves[buffer] >> lane & 1);
    const T inverse = room.inverse[buffer][lane];
    const T a_ik = couples ? of.a[(size_t)(first + i) * n + k] : T(0);
    room.narrow[buffer][i * GROUP + lane] = a_ik * inverse;
    room.coupling[buffer][i * GROUP + lane] = (double)(a_ik * inverse);
    room.across[i * GROUP + lane] = follows && inside ? of.a[(size_t)(first - GROUP + i) * n + k] : T(0);
  }
}

// s for each atom of the group that moves, from the inner products of the rows e; those that have
// no length are told in room.stays, the first of them truly, others as if it moved. By the first
// warps, each with some columns of the products; lane j has row j.
template <typename T>
__device__ void chain(Room<T>& room, const double* total, unsigned buffer, unsigned moves, unsigned capped) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  double products[OWN];
#pragma unroll
  for (unsigned c = 0; c < OWN; c++) products[c] = total[(warp * OWN + c) * GROUP + lane];
  if (warp == 0) room.length[lane] = 0;
  if (threadIdx.x == 0) room.stays = 0;
  chain_sync();
  unsigned at = 0;
#pragma unroll 1
  for (unsigned owner = 0; owner < CHAIN; owner++)
#pragma unroll
    for (unsigned c = 0; c < OWN; c++) {
      const unsigned i = owner * OWN + c;
      if (!(moves >> i & 1)) continue;  // the same for all warps
      if (warp == owner) {
        const double squares = __shfl_sync(ALL_LANES, products[c], i);
        const T length = to_length<T>(squares, capped);
        const bool has_length = length != T(0);
        const double t = room.coupling[buffer][i * GROUP + lane] * (double)length;
        room.step[at][lane] = has_length ? make_double2(fma(-t, squares, products[c]), t) : make_double2(0, 0);
        room.of_step[at][lane] = has_length ? products[c] : 0;
        if (lane == 0) {
          room.length[i] = length;
          if (!has_length) room.stays |= 1u << i;
        }
      }
      chain_sync();
      // <w_j - t_j w_i, w_k - t_k w_i>, t_k = c_ik s_i, for j and k after i.
      if (warp >= owner) {
        const double of_i = room.of_step[at][lane], t = room.step[at][lane].y;
#pragma unroll
        for (unsigned e = 0; e < OWN; e++) {
          const double2 of_k = room.step[at][warp * OWN + e];
          products[e] = fma(-t, of_k.x, fma(-of_k.y, of_i, products[e]));
        }
      }
      at ^= 1;
    }
}

template <typename T, bool NEAR>
__device__ void descend(T* d, const Statistics<T>& of, T* far, double* sums, unsigned n_fixed, unsigned columns,
                        unsigned capped, unsigned clustered) {
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n = of.n, p = of.p, blocks = gridDim.x;
  Room<T>& room = *reinterpret_cast<Room<T>*>(memory);
  const size_t slice_size = (size_t)(n + 3 * GROUP) * columns;
  const Slice<T> slice(NEAR ? reinterpret_cast<T*>(memory + sizeof(Room<T>)) : far + blockIdx.x * slice_size, n, columns);
  double* const total = sums;
  double* const parts = sums + PAIRS;

  for (size_t e = threadIdx.x; e < (size_t)n * columns; e += THREADS) {
    const unsigned c = slice.first + e % columns;
    slice.atoms[e] = c < p ? d[e / columns * p + c] : T(0);
  }
  __syncthreads();
  if (warp >= CHAIN) look_ahead(room, slice, of, n_fixed, 0, false);
  __syncthreads();

  unsigned buffer = 0;
  for (unsigned first = n_fixed; first < n; first += GROUP, buffer ^= 1) {
    const unsigned rows = n - first < GROUP ? n - first : GROUP;
    const bool inside = lane < rows;
    T* const atoms = slice.atoms + (size_t)first * columns;
    // 1: y
    for (unsigned c = warp; c < columns; c += WARPS) {
      T left = slice.next[c * GROUP + lane];
      if (first > n_fixed)
#pragma unroll
        for (unsigned i = 0; i < GROUP; i++) left = fused(room.across[i * GROUP + lane], slice.lost[c * GROUP + i], left);
      slice.y[c * GROUP + lane] = fused(left, room.inverse[buffer][lane], inside ? atoms[lane * columns + c] : T(0));
    }
    unsigned moves = room.moves[buffer];
    for (bool again = false;; again = true) {
      // 1: E and its products, of rows warp and warp + 16 with row lane.
      double product[2] = {0, 0};
      for (unsigned from = 0; from < columns; from += WARPS) {
        const unsigned here = columns - from < WARPS ? columns - from : WARPS, c = from + warp;
        if (warp < here) {
          double e[2] = {slice.y[c * GROUP + lane], 0};
#pragma unroll
          for (unsigned i = 0; i < GROUP - 1; i++)
            if (i < rows) e[i % 2] = fma(room.coupling[buffer][i * GROUP + lane], (double)atoms[i * columns + c], e[i % 2]);
          room.rows[warp][lane] = e[0] + e[1];
        }
        __syncthreads();
        for (unsigned c = 0; c < here; c++) {
          const double row = room.rows[c][lane];
          product[0] = fma(room.rows[c][warp], row, product[0]);
          product[1] = fma(room.rows[c][warp + WARPS], row, product[1]);
        }
        __syncthreads();
      }
      // 2
      double* const mine = blocks > 1 ? parts + (size_t)blockIdx.x * PAIRS : total;
      mine[threadIdx.x] = product[0];
      mine[threadIdx.x + THREADS] = product[1];
      meet(blocks, clustered);
      if (blocks > 1) {
        for (unsigned pair = blockIdx.x + blocks * warp; pair < PAIRS; pair += blocks * WARPS) {
          double sum = 0;
          for (unsigned block = lane; block < blocks; block += WARP) sum += parts[(size_t)block * PAIRS + pair];
          sum = sum_of_warp(sum);
          if (lane == 0) total[pair] = sum;
        }
        meet(blocks, clustered);
      }
      // 3
      if (warp < CHAIN) {
        chain(room, total, buffer, moves, capped);
      } else if (!again && first + rows < n) {
        look_ahead(room, slice, of, first + rows, buffer ^ 1, true);
      }
      __syncthreads();
      const unsigned stays = room.stays & -room.stays;
      if (stays == 0) break;  // the same in all blocks
      moves &= ~stays;
      for (unsigned i = warp; i < GROUP; i += WARPS)
        if (stays >> i & 1) room.coupling[buffer][i * GROUP + lane] = room.narrow[buffer][i * GROUP + lane] = 0;
      __syncthreads();
    }
    // 4
    const T length = room.length[lane];  // 0: does not move
    for (unsigned c = warp; c < columns; c += WARPS) {
      T y = slice.y[c * GROUP + lane];
      const T was = inside ? atoms[lane * columns + c] : T(0);
#pragma unroll
      for (unsigned i = 0; i < GROUP; i++) {
        const T lost = __shfl_sync(ALL_LANES, length == 0 ? T(0) : was - length * y, i);
        y = fused(room.narrow[buffer][i * GROUP + lane], lost, y);
      }
      const T now = length == 0 ? was : length * y;
      if (inside) atoms[lane * columns + c] = now;
      slice.lost[c * GROUP + lane] = was - now;
    }
    __syncthreads();
  }

  for (size_t e = (size_t)n_fixed * columns + threadIdx.x; e < (size_t)n * columns; e += THREADS) {
    const unsigned c = slice.first + e % columns;
    if (c < p) d[e / columns * p + c] = slice.atoms[e];
  }
}

#define OF_TYPE(T, NAME)                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
      descend_near_##NAME(T* d, const T* a, const T* b, T* far, double* sums, const unsigned n_fixed,             \
                          const unsigned n, const unsigned p, const unsigned columns, const double unused,        \
                          const unsigned capped, const unsigned clustered) {                                      \
    descend<T, true>(d, {a, b, n, p, unused}, far, sums, n_fixed, columns, capped, clustered);                    \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
      descend_far_##NAME(T* d, const T* a, const T* b, T* far, double* sums, const unsigned n_fixed,              \
                         const unsigned n, const unsigned p, const unsigned columns, const double unused,         \
                         const unsigned capped, const unsigned clustered) {                                       \
    descend<T, false>(d, {a, b, n, p, unused}, far, sums, n_fixed, columns, capped, clustered);                   \
  }

OF_TYPE(float, f32)
OF_TYPE(double, f64)
