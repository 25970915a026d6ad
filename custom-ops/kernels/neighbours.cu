// neighbours.cu: the k nearest rows of each query.
//
//   key(i, j) = |x_j|^2 - 2 q_i . x_j         orders the rows as their Euclidean distances from q_i do; for distances that no product gives
//                                             it is the distance: distances.cu writes "products" of which it is -2 times, and |x_j|^2 is 0
//   nearest rows by key, more than k, are the candidates; their distances from the rows themselves decide
//
// means     sums of columns over stretches of rows, then means from the stretches in order
// centre    rows minus their own means (correlation, which is the cosine of these)
// ready     what products take: rows minus the means (Euclidean), rows of length 1 (cosine), or rows as they are, and |x_j|^2 (0 but for
//           Euclidean)
// select_nearest  a block for each query of a block of products [queries, columns]: candidates whose key is below the limit enter its list;
//           where the list is nearly full, a sort keeps the `keep` best, and the limit becomes the worst of them
// rank_nearest    a block for each query: distances to all candidates, a sort by distance and index, the first k, and whether they are in doubt
//
// arrays   rows: [n, d] float; queries: [m, d] float; list: [queries, room] of (key, row), counts: [queries], limits: [queries]
//          products: [queries, columns] float of a block; doubts: [queries] u8; all contiguous
// launch   blocks of 256, see each kernel
// shared   select_nearest: room entries of 8 bytes; rank_nearest: width entries of 8 bytes and d floats
// cost     select_nearest reads each product once, from the L2 where the block of products fits; rank_nearest reads every candidate's row
// NaN      ready notes the first entry that is not finite; the host refuses the rows then
// same     the set of the `keep` best by (key, row) does not depend on the order in which threads append; no other order shows
// truth    knn_reference in src/neighbours/reference.rs

#include "bitonic.cuh"
#include "warp.cuh"

typedef unsigned long long u64;
constexpr unsigned THREADS = 256, WARPS = THREADS / 32, EACH = 8, TILE = EACH * THREADS;

// Keys are ordered as unsigned integers, the lower row first among equals.
__device__ __forceinline__ u64 entry(float key, unsigned row) {
  const unsigned bits = __float_as_uint(key);
  return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | row;
}
__device__ __forceinline__ float key_of(u64 entry) {
  const unsigned bits = (unsigned)(entry >> 32);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// A block for each 32 columns (x) and stretch of rows (y); 8 rows of threads.
extern "C" __global__ void column_parts(double* parts, const float* rows, const size_t n, const size_t d,
                                        const size_t stretch) {
  __shared__ double sums[WARPS][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t c = (size_t)blockIdx.x * 32 + lane, first = blockIdx.y * stretch;
  const size_t end = n < first + stretch ? n : first + stretch;
  double sum = 0;
  if (c < d)
    for (size_t i = first + warp; i < end; i += WARPS) sum += rows[i * d + c];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && c < d) {
    for (unsigned w = 1; w < WARPS; w++) sum += sums[w][lane];
    parts[blockIdx.y * d + c] = sum;
  }
}

extern "C" __global__ void column_means(float* means, const double* parts, const size_t n, const size_t d,
                                        const unsigned stretches) {
  const size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x;
  if (c >= d) return;
  double sum = 0;
  for (unsigned s = 0; s < stretches; s++) sum += parts[s * d + c];
  means[c] = (float)(sum / (double)n);
}

// A warp for each row. One with an entry that is not finite stays as it is, so that `ready` finds the entry.
extern "C" __global__ void centre(float* out, const float* rows, const size_t n, const size_t d) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  double sum = 0;
  for (size_t c = lane; c < d; c += 32) sum += rows[i * d + c];
  sum = sum_of_warp(sum);
  const double mean = isfinite(sum) ? sum / (double)d : 0;
  for (size_t c = lane; c < d; c += 32) out[i * d + c] = (float)(rows[i * d + c] - mean);
}

// A warp for each row. `means` for Euclidean distances, `unit` for rows of length 1.
extern "C" __global__ void ready(float* out, float* squares, u64* bad, const float* rows, const float* means,
                                 const size_t n, const size_t d, const size_t pitch, const unsigned unit) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  float sum = 0;
  bool finite = true;
  for (size_t c = lane; c < d; c += 32) {
    const float x = rows[i * d + c];
    finite &= isfinite(x);
    const float shifted = means ? x - means[c] : x;
    if (means) out[i * pitch + c] = shifted;
    sum = fmaf(shifted, shifted, sum);
  }
  if (__any_sync(0xffffffffu, !finite)) {
    for (size_t c = lane; c < d; c += 32)
      if (!isfinite(rows[i * d + c])) {
        atomicMin(bad, (u64)(i * d + c));
        break;
      }
  }
  sum = sum_of_warp(sum);
  if (!means) {
    const float scale = !unit ? 1 : sum > 0 ? rsqrtf(sum) : 0;
    for (size_t c = lane; c < d; c += 32) out[i * pitch + c] = rows[i * d + c] * scale;
  }
  for (size_t c = d + lane; c < pitch; c += 32) out[i * pitch + c] = 0;
  if (lane == 0) squares[i] = means ? sum : 0;
}

// The best `keep` of `count` entries come first; returns how many there are.
__device__ unsigned best(u64* entries, unsigned count, unsigned keep) {
  unsigned width = 2;
  while (width < count) width *= 2;
  __syncthreads();
  for (unsigned e = count + threadIdx.x; e < width; e += THREADS) entries[e] = ~0ull;
  sort_entries(entries, width);
  return count < keep ? count : keep;
}

// Without products, keys are squared distances of at most DIRECT features, from the rows themselves.
constexpr unsigned DIRECT = 8;
extern "C" __global__ void __launch_bounds__(THREADS)
    select_nearest(u64* lists, unsigned* counts, float* limits, const float* products, const float* squares,
                   const float* queries, const float* rows, const unsigned* picks, const size_t d,
                   const size_t first_query, const size_t first_column, const unsigned columns, const unsigned room,
                   const unsigned keep, const unsigned stored, const unsigned without_self) {
  extern __shared__ u64 entries[];  // [room]
  __shared__ unsigned count;
  const size_t q = blockIdx.x;
  u64* list = lists + q * stored;
  const float* row = products + q * columns;
  float query[DIRECT];
  if (!products)
#pragma unroll
    for (unsigned c = 0; c < DIRECT; c++) query[c] = c < d ? queries[q * d + c] : 0;
  const unsigned had = counts[q];
  float limit = limits[q];
  for (unsigned e = threadIdx.x; e < had; e += THREADS) entries[e] = list[e];
  if (threadIdx.x == 0) count = had;
  __syncthreads();
  // Query q of a search of some rows is row picks[first_query + q].
  const u64 self = !without_self ? ~0ull : picks ? picks[first_query + q] : first_query + q;
  const bool fours = products && columns % 4 == 0 && first_column % 4 == 0;
  for (unsigned tile = 0; tile < columns; tile += TILE) {
    float keys[EACH];
    unsigned places[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; u += 4) {
      const unsigned c = tile + u * THREADS + threadIdx.x * 4;
      float key[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
      if (fours) {
        if (c < columns) {
          const float4 product = *reinterpret_cast<const float4*>(row + c);
          const float4 square = *reinterpret_cast<const float4*>(squares + first_column + c);
          key[0] = fmaf(-2.f, product.x, square.x), key[1] = fmaf(-2.f, product.y, square.y);
          key[2] = fmaf(-2.f, product.z, square.z), key[3] = fmaf(-2.f, product.w, square.w);
        }
      } else {
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
          if (c + k >= columns) continue;
          const size_t j = first_column + c + k;
          if (products) {
            key[k] = fmaf(-2.f, row[c + k], squares[j]);
          } else {
            float sum = 0;
#pragma unroll
            for (unsigned f = 0; f < DIRECT; f++)
              if (f < d) sum = fmaf(query[f] - rows[j * d + f], query[f] - rows[j * d + f], sum);
            key[k] = sum;
          }
        }
      }
#pragma unroll
      for (unsigned k = 0; k < 4; k++) keys[u + k] = key[k], places[u + k] = c + k;
    }
#pragma unroll
    for (unsigned u = 0; u < EACH; u++) {
      const size_t j = first_column + places[u];
      if (keys[u] < limit && j != self) entries[atomicAdd(&count, 1)] = entry(keys[u], (unsigned)j);
    }
    // The thread that was last to append sees all of them. Room for the next tile:
    if (__syncthreads_or(*(volatile unsigned*)&count + TILE > room)) {
      const unsigned left = best(entries, count, keep);
      if (left == keep) limit = key_of(entries[keep - 1]);
      __syncthreads();
      if (threadIdx.x == 0) count = left;
      __syncthreads();
    }
  }
  __syncthreads();
  unsigned now = count;
  __syncthreads();
  if (now > stored) {
    now = best(entries, now, keep);
    if (now == keep) limit = key_of(entries[keep - 1]);
  }
  __syncthreads();
  for (unsigned e = threadIdx.x; e < now; e += THREADS) list[e] = entries[e];
  if (threadIdx.x == 0) {
    counts[q] = now;
    limits[q] = limit;
  }
}

// 1 / |x|, 0 for a zero vector; for all lanes of a warp.
__device__ __forceinline__ float inverse_length(const float* x, size_t d) {
  float sum = 0;
  for (size_t c = threadIdx.x % 32; c < d; c += 32) sum = fmaf(x[c], x[c], sum);
  sum = sum_of_warp(sum);
  return sum > 0 ? rsqrtf(sum) : 0;
}

enum Metric { EUCLIDEAN, COSINE, MANHATTAN, CHEBYSHEV };

// `width` is a power of two of at least `stored`; for the cosine a and b are to be of length 1. A query is in doubt where a row that is no
// candidate may be as near as the last of the k: keys are off by at most error |q| largest. No query is for a negative error.
extern "C" __global__ void __launch_bounds__(THREADS)
    rank_nearest(unsigned* indices, float* distances, unsigned char* doubts, const u64* lists, const unsigned* counts,
                 const float* limits, const float* queries, const float* rows, const float* squares,
                 const float* largest, const size_t d, const unsigned k, const unsigned stored, const unsigned width,
                 const unsigned keep, const unsigned metric, const float error) {
  extern __shared__ u64 entries[];  // [width], then the query
  float* query = (float*)(entries + width);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool cosine = metric == COSINE;
  const size_t q = blockIdx.x;
  const unsigned all = counts[q];
  for (size_t c = threadIdx.x; c < d; c += THREADS) query[c] = queries[q * d + c];
  for (unsigned e = threadIdx.x; e < width; e += THREADS) entries[e] = e < all ? lists[q * stored + e] : ~0ull;
  __syncthreads();
  unsigned count = all;
  if (all > keep) {
    sort_entries(entries, width);
    count = keep;
  }
  const float own = cosine ? inverse_length(query, d) : 1;
  for (unsigned e = warp; e < width; e += WARPS) {
    u64 ranked = ~0ull;
    if (e < count) {
      const unsigned j = (unsigned)entries[e];
      const float* row = rows + (size_t)j * d;
      const float other = cosine ? inverse_length(row, d) : 1;
      float sum = 0;
      for (size_t c = lane; c < d; c += 32) {
        const float difference = own * query[c] - other * row[c];
        if (metric == MANHATTAN) sum += fabsf(difference);
        else if (metric == CHEBYSHEV) sum = fmaxf(sum, fabsf(difference));
        else sum = fmaf(difference, difference, sum);
      }
      sum = metric == CHEBYSHEV ? largest_of_warp(sum) : sum_of_warp(sum);
      const float distance = metric == EUCLIDEAN ? sqrtf(sum) : !cosine ? sum : own > 0 && other > 0 ? .5f * sum : 1.f;
      ranked = entry(distance, j);
    }
    __syncwarp();
    if (lane == 0) entries[e] = ranked;
  }
  sort_entries(entries, width);
  for (unsigned e = threadIdx.x; e < k; e += THREADS) {
    indices[q * k + e] = (unsigned)entries[e];
    distances[q * k + e] = key_of(entries[e]);
  }
  if (threadIdx.x == 0) {
    const float last = key_of(entries[k - 1]);
    const float square = cosine ? 2 * last : last * last, base = cosine ? 2 : squares[q];
    const float off = error * (cosine ? 1 : sqrtf(squares[q] * *largest));
    doubts[q] = error >= 0 && all >= keep && !(square - base <= limits[q] - off);
  }
}
