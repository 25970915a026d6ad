// ranks.cu: how many rows are nearer to a query than others, distances in f64, and lists of the nearest.
//
//   low, high  bounds of the distance of row j: with halves, for a product v,
//                (g -+ (g share + lost) - v) unit with g = halves[own] + halves[j]
//              without, for a distance v, v -+ (v share + lost), and 0 and infinity where v is
//              not finite
//   beyond     edges whose far end is below low;  reached: edges whose near end is not above high
//   between[i, reached] counts the rows of which both are equal, by their weights (1 without them).
//   Of the others, if they are not more than `most`, the distance in f64 takes the place of both
//   bounds: between[i, reached] counts them, and as_far[i, e] for each edge of beyond to reached.
//   A row beyond all edges is passed over, and one of those at own[i], which is the query itself.
//
// count_nearer     as above
// exact_distances  distances[i, e] of rows own[i] and others[i, e] in f64
// merge_nearest    the k first of two ascending lists of each query, those of a before those of b among
//                  equals; rows of b are counted from `first` on
// row_angles       the mean of each row, or 0, and 1 over the length of what is left, 0 where there
//                  is none
//
// arrays   between, as_far: [m, k], list: [m, most], n_doubtful: [m] unsigned; values: [m, n]
//          float; halves: [n] double or null; weights: [n] unsigned, at least 1, or null; own: [m]
//          unsigned, below n; edges: [m, k, 2] double, ascending; rows: [n, d] float; angles: [n]
//          double2, for cosines and correlations; not overlapping
// scalars  k and most at least 1; n below 2^32; metric of exact.cuh
// launch   count_nearer: a block of any number of warps for each query; exact_distances, row_angles:
//          a warp for each distance or row
// shared   16 k bytes of edges, and 2 k + 1 counts of 4
// cost     reads values once, halves from the L2; and two rows of each distance in f64
// NaN      a product that is none counts before all edges, as it does on the CPU; infinite halves
//          leave a row in doubt
// same     counts are the same in every run, and those of the CPU where no end of an edge is within
//          the rounding of a distance
// truth    count_nearer_reference in src/tsne/ranks.rs, exact_distance in src/tsne/exact.rs
#include "tsne/exact.cuh"

// How many of k numbers of an order are passed, which are the first ones.
template <typename IsPassed>
__device__ __forceinline__ unsigned passed_of(unsigned k, IsPassed is_passed) {
  unsigned passed = 0;
  for (unsigned left = k; left > 0;) {
    const unsigned half = left / 2;
    if (is_passed(passed + half)) {
      passed += half + 1;
      left -= half + 1;
    } else {
      left = half;
    }
  }
  return passed;
}

extern "C" __global__ void count_nearer(unsigned* between, unsigned* as_far, unsigned* n_doubtful, unsigned* list,
                                        const float* values, const double* halves, const unsigned* weights,
                                        const unsigned* own, const double* edges, const float* rows, const double2* angles,
                                        const size_t n, const size_t d, const unsigned k, const unsigned most,
                                        const unsigned metric, const double share, const double lost, const double unit) {
  extern __shared__ double ends[];
  unsigned* counts = (unsigned*)(ends + 2 * (size_t)k);
  unsigned *within = counts + k, *doubtful = within + k;
  const size_t i = blockIdx.x;
  for (unsigned e = threadIdx.x; e < 2 * k; e += blockDim.x) ends[e] = edges[i * 2 * k + e];
  for (unsigned e = threadIdx.x; e < 2 * k + 1; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  const double farthest = ends[2 * k - 1];
  const size_t self = own[i];
  const double own_half = halves ? halves[self] : 0;
  const auto beyond_of = [=](double low) { return passed_of(k, [=](unsigned e) { return ends[2 * e + 1] < low; }); };
  const auto reached_of = [=](double high) { return passed_of(k, [=](unsigned e) { return ends[2 * e] <= high; }); };
  const auto others_of = [=](size_t j) { return (weights ? weights[j] : 1u) - (j == self ? 1u : 0u); };
  list += i * most;
  for (size_t j = threadIdx.x; j < n; j += blockDim.x) {
    const double value = values[i * n + j];
    double low = 0, high = INFINITY;
    if (halves) {
      const double sum = own_half + halves[j], error = sum * share + lost;
      low = (sum - value - error) * unit;
      high = (sum - value + error) * unit;
    } else if (isfinite(value)) {
      const double error = value * share + lost;
      low = value - error;
      high = value + error;
    }
    if (low > farthest) continue;
    const unsigned others = others_of(j);
    if (others == 0) continue;
    const unsigned beyond = beyond_of(low), reached = reached_of(high);
    // Both are below k: the row is not beyond the last edge.
    if (beyond == reached) {
      atomicAdd(&counts[beyond], others);
      continue;
    }
    const unsigned at = atomicAdd(doubtful, 1u);
    if (at < most) list[at] = (unsigned)j;
  }
  __syncthreads();
  const unsigned listed = *doubtful;
  if (listed <= most) {
    for (unsigned at = threadIdx.x / 32; at < listed; at += blockDim.x / 32) {
      const size_t j = list[at];
      const double distance = exact_distance(rows, angles, self, j, d, metric);
      if (threadIdx.x % 32) continue;
      const unsigned others = others_of(j), beyond = beyond_of(distance), reached = reached_of(distance);
      for (unsigned e = beyond; e < reached; e++) atomicAdd(&within[e], others);
      if (reached < k) atomicAdd(&counts[reached], others);
    }
  }
  __syncthreads();
  for (unsigned e = threadIdx.x; e < k; e += blockDim.x) {
    between[i * k + e] = counts[e];
    as_far[i * k + e] = within[e];
  }
  if (threadIdx.x == 0) n_doubtful[i] = listed;
}

extern "C" __global__ void exact_distances(double* distances, const float* rows, const double2* angles, const unsigned* own,
                                           const unsigned* others, const size_t n, const size_t d, const unsigned k,
                                           const unsigned metric) {
  const size_t at = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / 32;
  if (at >= n) return;
  const double distance = exact_distance(rows, angles, own[at / k], others[at], d, metric);
  if (threadIdx.x % 32 == 0) distances[at] = distance;
}

extern "C" __global__ void row_angles(double2* angles, const float* rows, const size_t n, const size_t d,
                                      const unsigned is_centred) {
  const size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / 32;
  if (i >= n) return;
  const float* row = rows + i * d;
  double mean = 0, squares = 0;
  if (is_centred) {
    for (size_t c = threadIdx.x % 32; c < d; c += 32) mean += row[c];
    mean = sum_of_warp(mean) / (double)d;
  }
  for (size_t c = threadIdx.x % 32; c < d; c += 32) squares += (row[c] - mean) * (row[c] - mean);
  const double length = sqrt(sum_of_warp(squares));
  if (threadIdx.x % 32 == 0) angles[i] = make_double2(mean, length > 0 ? 1 / length : 0);
}

extern "C" __global__ void merge_nearest(unsigned* indices, float* distances, const unsigned* a, const float* of_a,
                                         const unsigned* b, const float* of_b, const size_t n, const unsigned k,
                                         const unsigned first) {
  const size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (at >= n) return;
  const size_t list = at / (2 * k) * k;
  const unsigned e = (unsigned)(at % (2 * k));
  const bool is_of_a = e < k;
  const unsigned own = is_of_a ? e : e - k;
  const float distance = is_of_a ? of_a[list + own] : of_b[list + own];
  const float* others = (is_of_a ? of_b : of_a) + list;
  const unsigned place =
      own + passed_of(k, [=](unsigned i) { return is_of_a ? others[i] < distance : others[i] <= distance; });
  if (place >= k) return;
  indices[list + place] = is_of_a ? a[list + own] : first + b[list + own];
  distances[list + place] = distance;
}
