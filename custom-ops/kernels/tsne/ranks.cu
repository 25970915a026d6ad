// ranks.cu: how many rows are surely nearer to a query than others, and which are in doubt.
//
//   low, high  bounds of the distance of row j: with halves, for a product v,
//                (g -+ (g share + lost) - v) unit with g = halves[own] + halves[j]
//              without, for a distance v, v -+ (v share + lost), and 0 and infinity where v is
//              not finite
//   beyond     edges whose far end is below low;  reached: edges whose near end is not above high
//   between[i, beyond] counts the rows of which both are equal, by their weights (1 without them);
//   the others are listed in `doubtful`. A row beyond all edges is passed over, and one of those at
//   own[i], which is the query itself.
//
// arrays   between: [m, k], doubtful: [m, room], n_doubtful: [m] unsigned; values: [m, n] float;
//          halves: [n] double or null; weights: [n] unsigned, at least 1, or null; own: [m]
//          unsigned, below n; edges: [m, k, 2] double, ascending; not overlapping
// scalars  k at least 1; n below 2^32
// launch   a block of any number of threads for each query
// shared   16 k bytes of edges, and k + 1 counts of 4
// cost     reads values once, halves from the L2; bandwidth-bound
// NaN      a product that is none counts before all edges, as it does on the CPU; infinite halves
//          leave a row in doubt
// same     counts are the same in every run and those of the CPU; the order of `doubtful` is not
// truth    count_nearer_reference in src/tsne/ranks.rs

extern "C" __global__ void count_nearer(unsigned* between, unsigned* doubtful, unsigned* n_doubtful, const float* values,
                                        const double* halves, const unsigned* weights, const unsigned* own,
                                        const double* edges, const size_t n, const unsigned k, const unsigned room,
                                        const double share, const double lost, const double unit) {
  extern __shared__ double ends[];
  unsigned* counts = (unsigned*)(ends + 2 * (size_t)k);
  const size_t i = blockIdx.x;
  for (unsigned e = threadIdx.x; e < 2 * k; e += blockDim.x) ends[e] = edges[i * 2 * k + e];
  for (unsigned e = threadIdx.x; e < k + 1; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  const double farthest = ends[2 * k - 1];
  const size_t self = own[i];
  const double own_half = halves ? halves[self] : 0;
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
    const unsigned others = (weights ? weights[j] : 1u) - (j == self ? 1u : 0u);
    if (others == 0) continue;
    unsigned beyond = 0, reached = 0;
    for (unsigned step = k; step > 0;) {
      const unsigned half = step / 2;
      if (ends[2 * (beyond + half) + 1] < low) {
        beyond += half + 1;
        step -= half + 1;
      } else {
        step = half;
      }
    }
    for (unsigned step = k; step > 0;) {
      const unsigned half = step / 2;
      if (ends[2 * (reached + half)] <= high) {
        reached += half + 1;
        step -= half + 1;
      } else {
        step = half;
      }
    }
    // Both are below k: the row is not beyond the last edge.
    if (beyond == reached) {
      atomicAdd(&counts[beyond], others);
      continue;
    }
    const unsigned at = atomicAdd(&counts[k], 1u);
    if (at < room) doubtful[i * room + at] = (unsigned)j;
  }
  __syncthreads();
  for (unsigned e = threadIdx.x; e < k; e += blockDim.x) between[(size_t)i * k + e] = counts[e];
  if (threadIdx.x == 0) n_doubtful[i] = counts[k];
}
