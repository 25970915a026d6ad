// distances.cu: distances of all pairs of rows by differences, where no product gives them or it
// loses too much.
//
//   Manhattan  d(i, j) = sum_c |q_i[c] - x_j[c]|
//   Chebyshev  d(i, j) = max_c |q_i[c] - x_j[c]|
//   squared    d(i, j) = sum_c (q_i[c] - x_j[c])^2
//   out[i][j] = -d(i, j) / 2            as a product of which -2 times is the distance
//
// A block makes a tile of SIDE x SIDE distances, a thread 8 x 8 of them in registers: 4 x 4 in each
// quarter of the tile. Features come DEEP at a time through shared memory, the next ones while
// these are used.
//
// arrays   out: [m, n] float; queries: [m, depth], rows: [n, depth] float, contiguous from 16 bytes
//          on; none overlap
// scalars  depth: a multiple of DEEP, of which features beyond those of the rows are 0 in both
// launch   blocks of 256: tiles of rows (x) and of queries (y)
// shared   static, 16.5 KiB
// cost     2 m n depth operations at full rate (a subtraction and an addition or a maximum of a
//          magnitude); these bind
// NaN      the caller refuses rows that are not finite
// same     each distance is summed from the first feature to the last: the same bits wherever its
//          pair stands
// truth    knn_reference in src/tsne/neighbours/reference.rs

constexpr unsigned SIDE = 128, DEEP = 8, THREADS = 256;

struct Manhattan {
  static __device__ __forceinline__ float join(float d, float x) { return d + fabsf(x); }
};
struct Chebyshev {
  static __device__ __forceinline__ float join(float d, float x) { return fmaxf(d, fabsf(x)); }
};
struct Squared {
  static __device__ __forceinline__ float join(float d, float x) { return fmaf(x, x, d); }
};

// Features of the rows of a tile, those of a feature beside each other; 4 more keep transposing
// stores in different banks.
typedef float Strip[DEEP][SIDE + 4];

// The four features that a thread takes of a strip: of row threadIdx.x / 2 of the tile.
__device__ __forceinline__ float4 load(const float* rows, unsigned first, unsigned count, unsigned depth, unsigned feature) {
  const unsigned row = first + threadIdx.x / 2;
  if (row >= count) return make_float4(0, 0, 0, 0);
  return *reinterpret_cast<const float4*>(rows + (size_t)row * depth + feature + threadIdx.x % 2 * 4);
}
__device__ __forceinline__ void store(Strip& strip, const float4 x) {
  const unsigned row = threadIdx.x / 2, feature = threadIdx.x % 2 * 4;
  strip[feature][row] = x.x, strip[feature + 1][row] = x.y, strip[feature + 2][row] = x.z, strip[feature + 3][row] = x.w;
}

// Eight of a feature: four from `at` on, and four half a tile further.
__device__ __forceinline__ void take(float (&to)[8], const float* feature, unsigned at) {
  const float4 low = *reinterpret_cast<const float4*>(feature + at);
  const float4 high = *reinterpret_cast<const float4*>(feature + SIDE / 2 + at);
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

template <typename Distance>
__device__ __forceinline__ void distances(float* out, const float* queries, const float* rows, unsigned m, unsigned n,
                                          unsigned depth) {
  __shared__ __align__(16) Strip of_queries[2], of_rows[2];
  const unsigned top = blockIdx.y * SIDE, left = blockIdx.x * SIDE;
  const unsigned down = threadIdx.x / 16 * 4, across = threadIdx.x % 16 * 4;
  float d[8][8] = {};
  store(of_queries[0], load(queries, top, m, depth, 0));
  store(of_rows[0], load(rows, left, n, depth, 0));
  __syncthreads();
  unsigned now = 0;
  for (unsigned feature = 0; feature < depth; feature += DEEP, now ^= 1) {
    const bool more = feature + DEEP < depth;
    float4 next_query, next_row;
    if (more) {
      next_query = load(queries, top, m, depth, feature + DEEP);
      next_row = load(rows, left, n, depth, feature + DEEP);
    }
#pragma unroll
    for (unsigned f = 0; f < DEEP; ++f) {
      float q[8], x[8];
      take(q, of_queries[now][f], down);
      take(x, of_rows[now][f], across);
#pragma unroll
      for (unsigned i = 0; i < 8; ++i)
#pragma unroll
        for (unsigned j = 0; j < 8; ++j) d[i][j] = Distance::join(d[i][j], q[i] - x[j]);
    }
    if (more) {
      store(of_queries[now ^ 1], next_query);
      store(of_rows[now ^ 1], next_row);
      __syncthreads();
    }
  }
  const bool fours = n % 4 == 0;
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned row = top + i / 4 * (SIDE / 2) + down + i % 4;
    if (row >= m) continue;
#pragma unroll
    for (unsigned j = 0; j < 8; j += 4) {
      const unsigned column = left + j / 4 * (SIDE / 2) + across;
      float* const to = out + (size_t)row * n + column;
      const float4 four = make_float4(-.5f * d[i][j], -.5f * d[i][j + 1], -.5f * d[i][j + 2], -.5f * d[i][j + 3]);
      if (fours) {
        if (column < n) *reinterpret_cast<float4*>(to) = four;
      } else {
        if (column < n) to[0] = four.x;
        if (column + 1 < n) to[1] = four.y;
        if (column + 2 < n) to[2] = four.z;
        if (column + 3 < n) to[3] = four.w;
      }
    }
  }
}

#define DISTANCES(NAME, DISTANCE)                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                      \
  NAME(float* out, const float* queries, const float* rows, const unsigned m, const unsigned n, const unsigned depth) { \
    distances<DISTANCE>(out, queries, rows, m, n, depth);                                                       \
  }
DISTANCES(manhattan, Manhattan)
DISTANCES(chebyshev, Chebyshev)
DISTANCES(squared, Squared)
