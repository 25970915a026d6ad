// atom_statistics.cu: the statistics of codes for a least-squares dictionary.
//
//   a[j][l] <- beta a[j][l] + sum over the list of j, in 8 warps of each block and 256 entries a
//   warp, of (c x_j) (c x_l)
//   b[j]    <- beta b[j]    + sum over the list of j of (c x_j) (c y)
//
// arrays   a: [n, n], b: [n, p], x: [m, s], y: [m, p], T float or double; indices: [m, s], count:
//          [m], offsets: [n + 1], entries: lists of places i * s + k, u32. figures: [2 parts]
//          double or null. Contiguous, none overlap
// scalars  beta finite; with 0 the old content is not read; c a power of two; n, s, p >= 1; 1 <=
//          columns <= n: columns of a that a block sums. With figures: parts <= 512; nothing is
//          written unless every one of the first `parts` is at most most_error and every one of the
//          others at most most_square
// launch   blocks of 512, (n * team, tiles), clusters of `team` blocks along x, of capability 9.0:
//          of atom j the tiles y < gram_tiles = ceil(n / columns) of a, then the ceil(p / 128) of b
// shared   the larger of 8 columns T and 16 * 128 T, dynamic
// cost     2 s FLOP per use and tile of a, 2 p FLOP per use for b, which reads a row of y from L2
// bounds   a count above s counts as s; an index of n or more is skipped
// same     each sum has one order for each size of team; no atomics. Entries of a code with the
//          same atom are added one after the other, in the code's order
// truth    Statistics::sum in src/codes/atoms/statistics.rs

#include "codes/atoms.cuh"

// Entries that a warp sums by themselves before they join the sum: what is added stays of the size
// of what it is added to.
constexpr unsigned BLOCK = 256;
// Warps that sum rows of a, each a row of its own.
constexpr unsigned GRAM_WARPS = 8;

// Columns from .. from + columns of row j of a.
template <typename T>
__device__ void gram(T* a, T beta, T scale, const unsigned* indices, const T* x, const unsigned* count,
                     const unsigned* list, unsigned length, unsigned j, unsigned from, unsigned columns, unsigned n,
                     unsigned s, const Team& team) {
  extern __shared__ double shared[];
  T* rows = (T*)shared;
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, width = min(columns, n - from);
  const unsigned all = team.blocks * GRAM_WARPS * BLOCK;  // entries at a time
  for (size_t first = 0;; first += all) {
    for (unsigned l = threadIdx.x; l < GRAM_WARPS * columns; l += THREADS) rows[l] = 0;
    __syncthreads();
    const unsigned here = min(length - (unsigned)first, all);
    T* const row = rows + (size_t)warp * columns;  // for the first GRAM_WARPS
    for (unsigned k = team.rank * GRAM_WARPS + warp; warp < GRAM_WARPS && k < here; k += team.blocks * GRAM_WARPS) {
      const unsigned e = list[first + k], i = e / s, used = min(count[i], s);
      const T mine = x[e] * scale;
      for (unsigned at = 0; at < used; at += WARP) {
        const size_t place = (size_t)i * s + at + lane;
        const unsigned l = at + lane < used ? indices[place] : ~0u;
        const bool here_too = l >= from && l - from < width;  // so that l < n
        const T product = here_too ? mine * (x[place] * scale) : T(0);
        // Lanes that name one atom take turns; as a rule there is one turn.
        const unsigned same = __match_any_sync(ALL_LANES, here_too ? l : ~0u);
        const unsigned mine_at = __popc(same & ((1u << lane) - 1));
        for (unsigned turn = 0; __any_sync(ALL_LANES, here_too && mine_at >= turn); turn++) {
          if (here_too && mine_at == turn) row[l - from] += product;
          __syncwarp();
        }
      }
    }
    team.sync();
    for (unsigned l = team.rank * THREADS + threadIdx.x; l < width; l += team.blocks * THREADS) {
      T sum = 0;
      for (unsigned r = 0; r < team.blocks; r++) {
        const T* of_block = team.of(rows, r);
        for (unsigned w = 0; w < GRAM_WARPS; w++) sum += of_block[(size_t)w * columns + l];
      }
      T* to = a + (size_t)j * n + from + l;
      if (first > 0)
        *to += sum;
      else
        *to = beta == T(0) ? sum : beta * *to + sum;
    }
    team.sync();
    if (length - (unsigned)first <= all) break;  // the same for all threads of all blocks
  }
}

// Whether the figures are within their bounds, for all threads of the block.
__device__ bool within(const double* figures, unsigned parts, double most_error, double most_square) {
  if (figures == nullptr) return true;
  const unsigned t = threadIdx.x;
  const bool good = t >= parts || (figures[t] <= most_error && figures[parts + t] <= most_square);
  return __syncthreads_and(good);
}

template <typename T>
__device__ void statistics(T* a, T* b, T beta, T scale, const unsigned* indices, const T* x, const T* y,
                           const unsigned* count, const unsigned* offsets, const unsigned* entries,
                           const double* figures, unsigned parts, double most_error, double most_square, unsigned n,
                           unsigned s, unsigned p, unsigned columns, unsigned gram_tiles) {
  extern __shared__ double shared[];
  if (!within(figures, parts, most_error, most_square)) return;
  const Team team;
  const unsigned j = blockIdx.x / team.blocks, length = offsets[j + 1] - offsets[j];
  const unsigned* list = entries + offsets[j];
  if (blockIdx.y < gram_tiles) {
    gram(a, beta, scale, indices, x, count, list, length, j, blockIdx.y * columns, columns, n, s, team);
    return;
  }
  const unsigned at = (blockIdx.y - gram_tiles) * COLUMNS;
  const T sum = weighted_tile<T, true>(y, x, list, length, s, p, at, (T*)shared, team, scale);
  if (team.rank == 0 && threadIdx.x < COLUMNS && at + threadIdx.x < p) {
    T* to = b + (size_t)j * p + at + threadIdx.x;
    *to = beta == T(0) ? sum : beta * *to + sum;
  }
}

#define OF_TYPE(T, NAME)                                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS) atom_statistics_##NAME(                                        \
      T* a, T* b, const T beta, const T scale, const unsigned* indices, const T* x, const T* y, const unsigned* count, \
      const unsigned* offsets, const unsigned* entries, const double* figures, const unsigned parts,                   \
      const double most_error, const double most_square, const unsigned n, const unsigned s, const unsigned p,         \
      const unsigned columns, const unsigned gram_tiles) {                                                             \
    statistics<T>(a, b, beta, scale, indices, x, y, count, offsets, entries, figures, parts, most_error, most_square,  \
                  n, s, p, columns, gram_tiles);                                                                       \
  }

OF_TYPE(float, f32)
OF_TYPE(double, f64)
