// nearest.cu: the k nearest rows of each query.
//
//   bound(q, j) <= d(q, j)                     a lower bound of each distance, from a product or a distance in f32
//   nearest rows by bound, more than k, are the candidates; their distances in f64, from the rows themselves, decide
//   a query is certain   if the distance of its k-th candidate is below the bound of every row that
//                        is no candidate
//   of any other query   every row is looked at whose bound does not exceed the distance of the
//                        k-th nearest so far
//
// Distances are compared in the units of the bounds: squared and scaled (Euclidean), twice the
// distance (cosine), scaled (Manhattan, Chebyshev), where the scale is that of `normalise` in
// neighbours.cu. With products p of normalised rows, what rounding may take from them is in
// `error`:
//
//   Euclidean  |q|^2 + |x_j|^2 - 2 p - error |q| |x_j| - slack         cosine  2 - 2 p - error |q| |x_j| - slack
//
// The part of the query, |q|^2 or 2, is left out of bounds in lists: it orders no rows. By
// distances, in f32 from differences of scaled rows:
//
//   share * d - slack                                                  2 for the cosine where
//                                                                      either row is zero
//
// select_nearest   a block for each query of a block of products [queries, columns]: rows whose
//                  bound is below the limit enter its list; where the list is nearly full, a sort
//                  keeps the `keep` best, and the limit becomes the worst of them. In a search in
//                  cells (`by_query`) a block of products is of the queries that look at one cell,
//                  about its centre: the list is that of the query, not of the block, and bounds
//                  have the query's part
// rank_nearest     a block for each query: distances of all candidates in f64, the first k by
//                  distance and row, and whether they are certain
// refine_nearest   a block for each query that is not certain and block of products: the rows to
//                  look at, and their distances in f64
//
// arrays   rows: [n, d] float; queries: [m, d] float; lengths: |x| in f64 for the cosine, of all;
//          points, query_points: rows and the queries of a block as `normalise` makes them, for
//          form ROWS; products: [queries, columns] float; squares, magnitudes: of the rows and of
//          the queries of a block; list: [queries, room] of (bound, row), counts, limits:
//          [queries]; picks: query b of a search of some is query picks[b] of all, where not null;
//          left_out: the row that is no neighbour of a query of all, the query's number where null;
//          all contiguous
// launch   blocks of 256, see each kernel
// shared   select_nearest: room entries of 8 bytes; rank_nearest, refine_nearest: width entries of
//          12 bytes
// cost     select_nearest and refine_nearest read each product once, from the L2 where the block of
//          products fits; candidates are rows of d floats
// NaN      the caller refuses rows that are not finite
// same     the set of the `keep` best by (bound, row) does not depend on the order in which threads
//          append; no other order shows
// truth    knn_reference in src/tsne/neighbours/reference.rs

#include "tsne/bitonic.cuh"
#include "tsne/nearest.cuh"

constexpr unsigned EACH = 8, TILE = EACH * THREADS;

enum Metric { EUCLIDEAN, COSINE, MANHATTAN, CHEBYSHEV };
// What stands in the place of products: products; distances, -1/2 times; nothing: squared distances
// of at most FEW features are taken here.
enum Form { PRODUCTS, DISTANCES, ROWS };
constexpr unsigned FEW = 8;

// A search, and where its block of products lies.
struct Search {
  u64 d, first_query, first_column;
  unsigned columns, k, metric, form, without_self;
  float error, share, slack;
  unsigned by_query;
};

// A block of products, null without them, and what bounds take besides.
struct Block {
  const float *products, *squares, *magnitudes, *points, *query_points, *query_magnitudes;
};

// What distances are measured from; lengths are null but for the cosine.
struct Source {
  const float *queries, *rows;
  const double *query_lengths, *lengths;
  const float* query_squares;
  const unsigned* largest;
};

// Keys are ordered as unsigned integers, the lower row first among equals.
__device__ __forceinline__ u64 entry(float key, unsigned row) {
  const unsigned bits = __float_as_uint(key);
  return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | row;
}
__device__ __forceinline__ float key_of(u64 entry) {
  const unsigned bits = (unsigned)(entry >> 32);
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Bounds of the rows of a tile of a query's row of products.
struct Bounds {
  const Search& search;
  const float *products, *squares, *magnitudes, *points;
  float own;   // the length of the query
  float base;  // what all bounds have more
  bool fours;
  float point[FEW];

  __device__ Bounds(const Search& search, const Block& block)
      : search(search), squares(block.squares), magnitudes(block.magnitudes), points(block.points) {
    const size_t q = blockIdx.x;
    products = block.products + q * search.columns;
    own = block.query_magnitudes[q];
    base = search.by_query && search.form == PRODUCTS ? own * own : 0;
    fours = search.form != ROWS && search.columns % 4 == 0 && search.first_column % 4 == 0;
    if (search.form == ROWS)
#pragma unroll
      for (unsigned c = 0; c < FEW; c++) point[c] = block.query_points[q * FEW + c];
  }

  __device__ __forceinline__ float bound(float product, float square, float magnitude) const {
    if (search.form == PRODUCTS) return fmaf(-search.error * own, magnitude, fmaf(-2.f, product, square)) + (base - search.slack);
    if (search.metric == COSINE && (own == 0 || magnitude == 0)) return 2;
    return fmaf(search.share, -2.f * product, -search.slack);
  }

  // Column c of the block.
  __device__ __forceinline__ float at(unsigned c) const {
    const size_t j = search.first_column + c;
    if (search.form != ROWS) return bound(products[c], squares[j], magnitudes[j]);
    float sum = 0;
#pragma unroll
    for (unsigned f = 0; f < FEW; f++)
      if (f < search.d) sum = fmaf(point[f] - points[j * FEW + f], point[f] - points[j * FEW + f], sum);
    return fmaf(search.share, sum, -search.slack);
  }

  // EACH columns for each thread, infinite beyond the last.
  __device__ __forceinline__ void of_tile(unsigned tile, float (&bounds)[EACH], unsigned (&columns)[EACH]) const {
#pragma unroll
    for (unsigned u = 0; u < EACH; u += 4) {
      const unsigned c = tile + u * THREADS + threadIdx.x * 4;
      float four[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
      if (fours) {
        if (c < search.columns) {
          const float4 product = *reinterpret_cast<const float4*>(products + c);
          const float4 square = *reinterpret_cast<const float4*>(squares + search.first_column + c);
          const float4 magnitude = *reinterpret_cast<const float4*>(magnitudes + search.first_column + c);
          four[0] = bound(product.x, square.x, magnitude.x), four[1] = bound(product.y, square.y, magnitude.y);
          four[2] = bound(product.z, square.z, magnitude.z), four[3] = bound(product.w, square.w, magnitude.w);
        }
      } else {
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
          if (c + k < search.columns) four[k] = at(c + k);
      }
#pragma unroll
      for (unsigned k = 0; k < 4; k++) bounds[u + k] = four[k], columns[u + k] = c + k;
    }
  }
};

// What a distance as `measure` gives it is in the units of bounds.
__device__ __forceinline__ double unit_of(unsigned metric, const unsigned* largest) {
  const double scale = scale_of(largest);
  return metric == EUCLIDEAN ? scale * scale : metric == COSINE ? 2 : scale;
}

// The query's part of its bounds, which lists leave out.
__device__ __forceinline__ double base_of(const Search& search, const float* query_squares) {
  return search.form != PRODUCTS ? 0 : search.metric == COSINE ? 2 : query_squares[blockIdx.x];
}

// Which of all queries a block is for.
__device__ __forceinline__ size_t query_of(const Search& search, const unsigned* picks) {
  const size_t b = search.first_query + blockIdx.x;
  return picks ? picks[b] : b;
}

// The row that is left out for query q of all; none where it is above all rows.
__device__ __forceinline__ u64 left_out_of(const Search& search, const unsigned* left_out, size_t q) {
  return !search.without_self ? ~0ull : left_out ? left_out[q] : q;
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

extern "C" __global__ void __launch_bounds__(THREADS)
    select_nearest(u64* lists, unsigned* counts, float* limits, const __grid_constant__ Block block, const unsigned* picks,
                   const unsigned* left_out, const Search search, const unsigned room, const unsigned keep, const unsigned stored) {
  extern __shared__ u64 entries[];  // [room]
  __shared__ unsigned count;
  const size_t asked = query_of(search, picks), q = search.by_query ? asked : blockIdx.x;
  u64* list = lists + q * stored;
  const Bounds from(search, block);
  const unsigned had = counts[q];
  float limit = limits[q];
  for (unsigned e = threadIdx.x; e < had; e += THREADS) entries[e] = list[e];
  if (threadIdx.x == 0) count = had;
  __syncthreads();
  const u64 self = left_out_of(search, left_out, asked);
  for (unsigned tile = 0; tile < search.columns; tile += TILE) {
    float bounds[EACH];
    unsigned columns[EACH];
    from.of_tile(tile, bounds, columns);
#pragma unroll
    for (unsigned u = 0; u < EACH; u++) {
      const size_t j = search.first_column + columns[u];
      if (bounds[u] < limit && j != self) entries[atomicAdd(&count, 1)] = entry(bounds[u], (unsigned)j);
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

// Features that are measured at a time.
constexpr unsigned FEATURES = 1024;

// The raw query and rows, and their lengths, which are null but for the cosine.
struct Given {
  const float *query, *rows;
  const double *length, *lengths;
};

__device__ __forceinline__ Given given_of(const Source& source, size_t q, size_t d) {
  return {source.queries + q * d, source.rows, source.query_lengths + q, source.lengths};
}

template <unsigned METRIC>
__device__ __forceinline__ double joined(double sum, double q, double x) {
  if (METRIC == COSINE) return fma(q, x, sum);
  if (METRIC == MANHATTAN) return sum + fabs(q - x);
  if (METRIC == CHEBYSHEV) return fmax(sum, fabs(q - x));
  return fma(q - x, q - x, sum);
}

template <unsigned METRIC>
__device__ __forceinline__ void measure_by(double* distances, const unsigned* picked, unsigned count, const Given& given, size_t d) {
  __shared__ double part[FEATURES];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (size_t first = 0; first == 0 || first < d; first += FEATURES) {
    const unsigned width = (unsigned)(d - first < FEATURES ? d - first : FEATURES);
    __syncthreads();
    for (unsigned c = threadIdx.x; c < width; c += THREADS) part[c] = given.query[first + c];
    __syncthreads();
    for (unsigned e = warp; e < count; e += WARPS) {
      const float* row = given.rows + picked[e] * d + first;
      double sum = 0;
      unsigned c = lane;
      // Loads that do not wait for each other.
      for (; c + 7 * 32 < width; c += 8 * 32) {
        float x[8];
#pragma unroll
        for (unsigned u = 0; u < 8; u++) x[u] = row[c + u * 32];
#pragma unroll
        for (unsigned u = 0; u < 8; u++) sum = joined<METRIC>(sum, part[c + u * 32], x[u]);
      }
      for (; c < width; c += 32) sum = joined<METRIC>(sum, part[c], row[c]);
      sum = METRIC == CHEBYSHEV ? largest_of_warp(sum) : sum_of_warp(sum);
      if (lane == 0) {
        if (first) sum = METRIC == CHEBYSHEV ? fmax(sum, distances[e]) : sum + distances[e];
        distances[e] = sum;
      }
    }
  }
  __syncthreads();
}

// Distances of the query and the rows `picked`, in f64: squared ones (Euclidean). All threads take
// part, and wait for each other first and last.
__device__ void measure(double* distances, const unsigned* picked, unsigned count, const Given& given, size_t d, unsigned metric) {
  if (metric == EUCLIDEAN) return measure_by<EUCLIDEAN>(distances, picked, count, given, d);
  if (metric == MANHATTAN) return measure_by<MANHATTAN>(distances, picked, count, given, d);
  if (metric == CHEBYSHEV) return measure_by<CHEBYSHEV>(distances, picked, count, given, d);
  measure_by<COSINE>(distances, picked, count, given, d);
  for (unsigned e = threadIdx.x; e < count; e += THREADS) {
    const double both = *given.length * given.lengths[picked[e]], apart = both > 0 ? 1 - distances[e] / both : 1;
    distances[e] = apart > 0 ? apart : 0;
  }
  __syncthreads();
}

// Distances that are not negative are ordered as their bits are; sorts by them and by row. Entries
// from `count` on come last.
__device__ void sort_measured(u64* distances, unsigned* rows, unsigned count, unsigned width) {
  for (unsigned e = count + threadIdx.x; e < width; e += THREADS) distances[e] = ~0ull, rows[e] = ~0u;
  sort_pairs(distances, rows, width);
}

__device__ __forceinline__ void write_nearest(unsigned* indices, float* distances, const u64* measured, const unsigned* rows, unsigned k,
                                              unsigned metric) {
  for (unsigned e = threadIdx.x; e < k; e += THREADS) {
    const double distance = __longlong_as_double((long long)measured[e]);
    indices[e] = rows[e];
    distances[e] = (float)(metric == EUCLIDEAN ? sqrt(distance) : distance);
  }
}

// `width` is a power of two of at least `stored`. `farthest` is the distance of the last of the k.
// Rows of lists are places where `numbers`, [n], is not null: place p is row numbers[p].
extern "C" __global__ void __launch_bounds__(THREADS)
    rank_nearest(unsigned* indices, float* distances, double* farthest, unsigned char* uncertain, const u64* lists, const unsigned* counts,
                 const float* limits, const __grid_constant__ Source source, const unsigned* picks, const unsigned* numbers,
                 const Search search, const unsigned stored, const unsigned width, const unsigned keep) {
  extern __shared__ u64 entries[];  // [width], then as many rows
  unsigned* picked = (unsigned*)(entries + width);
  const size_t b = blockIdx.x, q = query_of(search, picks);
  unsigned count = counts[b];
  float limit = limits[b];
  for (unsigned e = threadIdx.x; e < width; e += THREADS) entries[e] = e < count ? lists[b * stored + e] : ~0ull;
  if (count > keep) {
    sort_entries(entries, width);
    limit = fminf(limit, key_of(entries[keep]));
    count = keep;
  }
  __syncthreads();
  for (unsigned e = threadIdx.x; e < count; e += THREADS) {
    const unsigned row = (unsigned)entries[e];
    picked[e] = numbers ? numbers[row] : row;
  }
  const Given given = given_of(source, q, search.d);
  measure((double*)entries, picked, count, given, search.d, search.metric);
  sort_measured(entries, picked, count, width);
  write_nearest(indices + q * search.k, distances + q * search.k, entries, picked, search.k, search.metric);
  if (threadIdx.x == 0) {
    const double last = __longlong_as_double((long long)entries[search.k - 1]);
    farthest[q] = last;
    // The limit is infinite where no row was left out.
    uncertain[q] = limit < INFINITY && !(last * unit_of(search.metric, source.largest) < base_of(search, source.query_squares) + limit);
  }
}

// Rows that wait to be measured, beside those of a tile; how many are measured at a time.
constexpr unsigned WAITING = 1024, AT_ONCE = 256;

// `width` is a power of two of at least k + AT_ONCE. What is kept between blocks of products: the
// nearest rows so far and their distances, [queries, k], and how many; the rows that wait,
// [queries, WAITING], and how many. `first` and `last` tell the first and the last block of
// products.
extern "C" __global__ void __launch_bounds__(THREADS)
    refine_nearest(unsigned* indices, float* distances, double* farthest, u64* near, unsigned* near_rows, unsigned* near_counts,
                   unsigned* waiting, unsigned* waiting_counts, const __grid_constant__ Block block,
                   const __grid_constant__ Source source, const unsigned* picks, const unsigned* left_out, const Search search,
                   const unsigned width, const unsigned first, const unsigned last) {
  extern __shared__ u64 measured[];  // [width], then as many rows, then the rows that wait
  unsigned *measured_rows = (unsigned*)(measured + width), *waits = measured_rows + width;
  __shared__ unsigned count;
  const size_t b = blockIdx.x, q = query_of(search, picks);
  const Bounds from(search, block);
  const Given given = given_of(source, q, search.d);
  const double unit = unit_of(search.metric, source.largest), base = base_of(search, source.query_squares);
  const u64 self = left_out_of(search, left_out, q);
  unsigned have = first ? 0 : near_counts[b];
  const unsigned waited = first ? 0 : waiting_counts[b];
  for (unsigned e = threadIdx.x; e < waited; e += THREADS) waits[e] = waiting[b * WAITING + e];
  // The k-th nearest so far: rows that come after it by distance and row are not looked at.
  double reach = farthest[q], most = reach * unit;
  unsigned most_row = indices[q * search.k + search.k - 1];
  if (threadIdx.x == 0) count = waited;
  __syncthreads();
  for (unsigned tile = 0;; tile += TILE) {
    const bool all = tile >= search.columns;
    if (!all) {
      float bounds[EACH];
      unsigned columns[EACH];
      from.of_tile(tile, bounds, columns);
      const float about = __double2float_ru(most - base);
#pragma unroll
      for (unsigned u = 0; u < EACH; u++) {
        const size_t j = search.first_column + columns[u];
        if (!(bounds[u] <= about) || j == self) continue;
        const double bound = fmax(base + bounds[u], 0.);
        if (bound < most || (bound == most && j <= most_row)) waits[atomicAdd(&count, 1)] = (unsigned)j;
      }
    }
    __syncthreads();
    const unsigned now = count;
    __syncthreads();
    if (all ? last : now > WAITING) {
      for (unsigned e = threadIdx.x; e < have; e += THREADS) {
        measured[e] = near[b * search.k + e];
        measured_rows[e] = near_rows[b * search.k + e];
      }
      __syncthreads();  // where no row waits, nothing below does it
      for (unsigned start = 0; start < now; start += AT_ONCE) {
        const unsigned more = min(AT_ONCE, now - start);
        for (unsigned e = threadIdx.x; e < more; e += THREADS) measured_rows[have + e] = waits[start + e];
        measure((double*)measured + have, waits + start, more, given, search.d, search.metric);
        sort_measured(measured, measured_rows, have + more, width);
        have = min(search.k, have + more);
      }
      for (unsigned e = threadIdx.x; e < have; e += THREADS) {
        near[b * search.k + e] = measured[e];
        near_rows[b * search.k + e] = measured_rows[e];
      }
      if (have == search.k) {
        reach = __longlong_as_double((long long)measured[search.k - 1]);
        most = reach * unit, most_row = measured_rows[search.k - 1];
      }
      if (threadIdx.x == 0) count = 0;
      __syncthreads();
    }
    if (all) break;
  }
  const unsigned left = count;
  for (unsigned e = threadIdx.x; e < left; e += THREADS) waiting[b * WAITING + e] = waits[e];
  if (last) write_nearest(indices + q * search.k, distances + q * search.k, measured, measured_rows, search.k, search.metric);
  if (threadIdx.x == 0) {
    near_counts[b] = have, waiting_counts[b] = left;
    farthest[q] = reach;
    indices[q * search.k + search.k - 1] = most_row;
  }
}
