// affinities.cu: the conditional affinities of t-SNE, and their symmetric graph.
//
//   perplexity_search  p_e = c_e exp(-beta d_e^2) / sum, with beta such that the entropy of the
//                      row, -sum_e p_e log(p_e / c_e), is the target: Newton's method, kept within
//                      an interval that is halved where a step leaves it. c_e: 1, or counts, with
//                      perplexity_search_of_counts
//   sum_counts         their sums; NaN of a row where one is no finite number of at least 0
//   sort_rows          the edges of each row by column
//   count_edges        how many edges row i has: its own, and the reversed ones that are not among
//                      them
//   merge_edges        both in one row, ascending, p_ij = (p_j|i + p_i|j) scale
//   reorder_counts, reorder_rows  the graph with its points in another order: row i is row
//                                 order[i], columns are places in the order
//
// arrays   distances, counts, p: [n, k] float; sums: [n] double; indices: [n, k] unsigned below n,
//          none twice in a row;
//          starts [n + 1] and order [n k]: the edges that end at each row, by their source
//          (sort_by_key); fresh [n k]: the number of new reversed edges of the row before this one
//          order, places [n]: each point once, and its place; of the graph offsets [n + 1], columns
//          and values [n_edges]
// scalars  width, what a block sorts: a power of two of at least k, at most 8192
// launch   perplexity_search, sum_counts, count_edges, merge_edges: a warp for each row in blocks
//          of 256; sort_rows: a block of 256 for each row; reorder_counts: a thread for each row;
//          reorder_rows: a block of 128 for each row
// shared   sort_rows: 8 bytes for each of `width` edges; reorder_rows: 16 KiB
// bounds   of a graph, offsets beyond the edges are taken for their number, points beyond n for the
//          last
// cost     perplexity_search: k exponentials in double for each of about 6 steps; the others read
//          and write each edge a few times
// same     the only atomic is the least place of an index that is not below n, after which the host
//          stops
// truth    perplexity_search_reference, symmetrize_reference in src/tsne/affinities/reference.rs

#include "tsne/bitonic.cuh"
#include "core/warp.cuh"

typedef unsigned long long u64;
constexpr unsigned THREADS = 256, WARPS = THREADS / 32, MOST = 8, STEPS = 200, ALL = 0xffffffffu;
constexpr double TOLERANCE = 1e-6;
// The ratios of beta to that of the step before, e^-3 to e^3, and the largest beta, e^88, in units
// of the mean square: where more neighbours share the least distance than the perplexity asks for,
// none is large enough.
constexpr double FALL = 0.049787068367863944, RISE = 20.085536923187668, LARGEST = 1.6516362549940018e38;

struct Entropies {
  double target[MOST];
};

__device__ __forceinline__ double square(float d) { return (double)d * (double)d; }

template <bool COUNTED>
__device__ void search(float* p, const float* distances, const float* all_counts, size_t n, unsigned k, unsigned count,
                       const Entropies& entropies) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  const float* row = distances + i * k;
  const float* counts = COUNTED ? all_counts + i * k : nullptr;
  float* out = p + i * k;
  double least = INFINITY, mean = 0, all = 0;
  for (unsigned e = lane; e < k; e += 32)
    if (!COUNTED || counts[e] > 0) least = fmin(least, square(row[e]));
  for (int step = 16; step; step /= 2) least = fmin(least, __shfl_xor_sync(ALL, least, step));
  // Of neighbours of which there are none, which may be nearer, nothing is added.
  const auto shifted = [&](unsigned e) {
    const double d = square(row[e]) - least;
    return COUNTED ? fmax(d, 0.) : d;
  };
  const auto count_of = [&](unsigned e) { return COUNTED ? (double)counts[e] : 1.; };
  for (unsigned e = lane; e < k; e += 32) {
    all += count_of(e);
    if (!COUNTED || counts[e] > 0) mean += count_of(e) * shifted(e);
  }
  mean = sum_of_warp(mean) / sum_of_warp(all);
  const auto weight = [&](unsigned e, double beta, double d) {
    const double w = exp(-beta * d);
    return COUNTED ? count_of(e) * w : w;
  };
  const double largest = LARGEST / mean;
  for (unsigned t = 0; t < count; t++) {
    double low = 0, high = INFINITY, beta = mean > 0 ? 1 / mean : 1, sum = 1;
    for (unsigned step = 0; step < STEPS; step++) {
      double first = 0, second = 0;
      sum = 0;
      for (unsigned e = lane; e < k; e += 32) {
        const double d = shifted(e), w = weight(e, beta, d);
        sum += w;
        first += w * d;
        second += w * d * d;
      }
      sum = sum_of_warp(sum);
      first = sum_of_warp(first) / sum;
      second = sum_of_warp(second) / sum;
      const double excess = log(sum) + beta * first - entropies.target[t];
      if (!(mean > 0) || fabs(excess) < TOLERANCE || (beta == largest && excess > 0)) break;
      if (excess > 0)
        low = beta;
      else
        high = beta;
      // The derivative of the entropy is -beta times the variance of the squares. Where that is 0,
      // or less by rounding, the step is the longest to the side of the excess.
      const double variance = fmax(second - first * first, 0.), newton = beta + excess / (beta * variance);
      const double bounded = fmin(fmax(newton, beta * FALL), beta * RISE);
      beta = bounded > low && bounded < high ? fmin(bounded, largest) : sqrt(low) * sqrt(high);
    }
    for (unsigned e = lane; e < k; e += 32) {
      const double one = weight(e, beta, shifted(e)) / sum / count;
      out[e] = t == 0 ? (float)one : out[e] + (float)one;
    }
  }
}

extern "C" __global__ void perplexity_search(float* p, const float* distances, const float* counts, const size_t n,
                                             const unsigned k, const unsigned count, const Entropies entropies) {
  search<false>(p, distances, counts, n, k, count, entropies);
}

extern "C" __global__ void perplexity_search_of_counts(float* p, const float* distances, const float* counts, const size_t n,
                                                       const unsigned k, const unsigned count, const Entropies entropies) {
  search<true>(p, distances, counts, n, k, count, entropies);
}

extern "C" __global__ void sum_counts(double* sums, const float* counts, const size_t n, const unsigned k) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  double sum = 0;
  for (unsigned e = lane; e < k; e += 32) {
    const float count = counts[i * k + e];
    sum += count >= 0 && count < INFINITY ? (double)count : NAN;
  }
  sum = sum_of_warp(sum);
  if (lane == 0) sums[i] = sum;
}

// The edges of each row by column: (column, place in the row).
extern "C" __global__ void sort_rows(u64* sorted, unsigned* bad, const unsigned* indices, const size_t n,
                                     const unsigned k, const unsigned width) {
  extern __shared__ u64 entries[];
  const size_t i = blockIdx.x;
  for (unsigned e = threadIdx.x; e < width; e += THREADS) {
    const unsigned j = e < k ? indices[i * k + e] : ~0u;
    if (e < k && j >= n) atomicMin(bad, (unsigned)(i * k + e));
    entries[e] = (u64)j << 32 | e;
  }
  sort_entries(entries, width);
  for (unsigned e = threadIdx.x; e < k; e += THREADS) sorted[i * k + e] = entries[e];
}

// The first of `k` sorted edges whose column is not below j.
__device__ unsigned lower(const u64* sorted, unsigned k, unsigned j) {
  unsigned low = 0, high = k;
  while (low < high) {
    const unsigned middle = (low + high) / 2;
    if ((unsigned)(sorted[middle] >> 32) < j)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

extern "C" __global__ void count_edges(unsigned* counts, unsigned* fresh, const u64* sorted, const unsigned* starts,
                                       const unsigned* order, const size_t n, const unsigned k) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  const u64* own = sorted + i * k;
  const unsigned end = starts[i + 1];
  unsigned before = 0;
  for (unsigned r = starts[i]; r < end; r += 32) {
    bool is_fresh = false;
    if (r + lane < end) {
      const unsigned from = order[r + lane] / k, at = lower(own, k, from);
      is_fresh = at == k || (unsigned)(own[at] >> 32) != from;
    }
    const unsigned mask = __ballot_sync(ALL, is_fresh);
    // The top bit says that the edge is one of the row's own as well.
    if (r + lane < end) fresh[r + lane] = before + __popc(mask & ((1u << lane) - 1)) | (is_fresh ? 0 : 0x80000000u);
    before += __popc(mask);
  }
  if (lane == 0) counts[i] = k + before;
}

extern "C" __global__ void merge_edges(unsigned* columns, float* values, unsigned* offsets, const unsigned* before,
                                       const u64* sorted, const unsigned* fresh, const unsigned* starts,
                                       const unsigned* order, const float* p, const size_t n, const unsigned k,
                                       const unsigned n_edges, const float scale) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  const u64* own = sorted + i * k;
  const unsigned start = starts[i], end = starts[i + 1], first = before[i];
  const unsigned next = i + 1 < n ? before[i + 1] : n_edges, all = next - first - k;
  if (lane == 0) offsets[i] = first;
  if (lane == 0 && i + 1 == n) offsets[n] = n_edges;
  for (unsigned a = lane; a < k; a += 32) {
    const unsigned j = (unsigned)(own[a] >> 32);
    // The first reversed edge whose source is not below j.
    unsigned low = start, high = end;
    while (low < high) {
      const unsigned middle = low + (high - low) / 2;
      if (order[middle] / k < j)
        low = middle + 1;
      else
        high = middle;
    }
    const bool both = low < end && order[low] / k == j;
    const unsigned ahead = low < end ? fresh[low] & 0x7fffffffu : all;
    const float sum = p[i * k + (unsigned)own[a]] + (both ? p[order[low]] : 0.f);
    columns[first + a + ahead] = j;
    values[first + a + ahead] = sum * scale;
  }
  for (unsigned r = start + lane; r < end; r += 32) {
    if (fresh[r] & 0x80000000u) continue;
    const unsigned from = order[r] / k, at = first + fresh[r] + lower(own, k, from);
    columns[at] = from;
    values[at] = p[order[r]] * scale;
  }
}

extern "C" __global__ void reorder_counts(unsigned* counts, unsigned* places, const unsigned* order, const unsigned* offsets,
                                          const size_t n, const unsigned n_edges) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const size_t from = order[i] < n ? order[i] : n - 1;
  const unsigned begin = min(offsets[from], n_edges), end = min(offsets[from + 1], n_edges);
  counts[i] = end > begin ? end - begin : 0;
  places[from] = (unsigned)i;
}

// Columns ascend in stretches of 2048.
constexpr unsigned SORTED = 2048;
extern "C" __global__ void __launch_bounds__(128)
    reorder_rows(unsigned* columns, float* values, unsigned* offsets, const unsigned* before, const unsigned* order,
                 const unsigned* places, const unsigned* from_offsets, const unsigned* from_columns,
                 const float* from_values, const size_t n, const unsigned n_edges) {
  __shared__ u64 entries[SORTED];
  const size_t i = blockIdx.x, from = order[i] < n ? order[i] : n - 1;
  const unsigned begin = min(from_offsets[from], n_edges), end = min(from_offsets[from + 1], n_edges);
  const unsigned to = min(before[i], n_edges);
  if (threadIdx.x == 0) offsets[i] = to;
  if (threadIdx.x == 0 && i + 1 == n) offsets[n] = n_edges;
  for (unsigned at = begin; at < end; at += SORTED) {
    const unsigned count = min(SORTED, end - at);
    unsigned width = 2;
    while (width < count) width *= 2;
    for (unsigned e = threadIdx.x; e < width; e += blockDim.x) {
      const unsigned column = e < count ? from_columns[at + e] : 0;
      entries[e] = e < count ? (u64)places[column < n ? column : n - 1] << 32 | __float_as_uint(from_values[at + e]) : ~0ull;
    }
    sort_entries(entries, width);
    for (unsigned e = threadIdx.x; e < count && to + (at - begin) + e < n_edges; e += blockDim.x) {
      columns[to + (at - begin) + e] = (unsigned)(entries[e] >> 32);
      values[to + (at - begin) + e] = __uint_as_float((unsigned)entries[e]);
    }
    __syncthreads();
  }
}
