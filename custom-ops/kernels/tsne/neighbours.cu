// neighbours.cu: rows as the search of neighbours takes them; the search itself is nearest.cu.
//
// column_parts, column_means   the mean of each column: sums in f64 over stretches of rows, then
//                              over the stretches in order
// half_squares     half the squared length of each row, in f64
// centre           rows minus their own means (correlation, which is the cosine of these)
// largest_entry    the largest |x - mean| / 2 of rows and queries, which the scale comes from
// normalise        out, and for the bounds of products its squared length, rounded down, and its
//                  length, rounded up, for each row:
//                    CENTRED  (x - means) * scale     Euclidean distances by products; rounded to TF32 where `rounded`
//                    SCALED   x * scale               distances by differences: both lengths are 0
//                    UNIT     x / |x|, 0 for zeros    the cosine; its length is 1, or 0 for zeros; lengths: |x| in f64
//                  scale is a power of two that brings the largest entry to 1..2: no square
//                  overflows, and none that counts vanishes
//
// arrays   rows: [n, d] float; means: [d] float; parts: [stretches, d] double; largest: one float
//          as bits, 0 at first; out: [n, pitch] float, columns beyond d are 0; squares, magnitudes:
//          [n] float; lengths: [n] double; bad: one word, ~0 at first
// launch   blocks of 256: a warp for each row, but column_parts: each 32 columns (x) and stretch of
//          rows (y)
// cost     each reads the rows once; bandwidth-bound
// NaN      normalise notes the first entry that is not finite; the host refuses the rows then
// same     f64 sums in a fixed order
// truth    knn_reference in src/tsne/neighbours/reference.rs

#include "tsne/nearest.cuh"
#include "core/tf32.cuh"

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

extern "C" __global__ void half_squares(double* halves, const float* rows, const size_t n, const size_t d) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  double sum = 0;
  for (size_t c = lane; c < d; c += 32) sum = fma((double)rows[i * d + c], (double)rows[i * d + c], sum);
  sum = sum_of_warp(sum);
  if (lane == 0) halves[i] = .5 * sum;
}

// A warp for each row. One with an entry that is not finite stays as it is, so that `ready` finds
// the entry.
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

// A warp for each row, in turn. A NaN is passed over.
extern "C" __global__ void largest_entry(unsigned* largest, const float* rows, const float* means, const size_t n, const size_t d) {
  const unsigned lane = threadIdx.x % 32;
  float most = 0;
  for (size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32; i < n; i += (size_t)gridDim.x * WARPS)
    for (size_t c = lane; c < d; c += 32) most = fmaxf(most, fabsf(.5f * rows[i * d + c] - (means ? .5f * means[c] : 0)));
  most = largest_of_warp(most);
  // Floats that are not negative are ordered as their bits are.
  if (lane == 0) atomicMax(largest, __float_as_uint(most));
}

enum Form { CENTRED, SCALED, UNIT };

extern "C" __global__ void normalise(float* out, float* squares, float* magnitudes, double* lengths, u64* bad, const float* rows,
                                     const float* means, const unsigned* largest, const size_t n, const size_t d,
                                     const size_t pitch, const unsigned form, const unsigned rounded) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (i >= n) return;
  const float scale = (float)scale_of(largest);
  double inverse = 0, sum = 0;
  if (form == UNIT) {
    for (size_t c = lane; c < d; c += 32) sum = fma((double)rows[i * d + c], (double)rows[i * d + c], sum);
    const double length = sqrt(sum_of_warp(sum));
    if (lane == 0) lengths[i] = length;
    inverse = length > 0 ? 1 / length : 0;
    sum = 0;
  }
  bool finite = true;
  for (size_t c = lane; c < pitch; c += 32) {
    const float x = c < d ? rows[i * d + c] : 0;
    finite &= isfinite(x);
    // In double: a large number may be that of a whole column.
    const float y = c >= d         ? 0
                    : form == UNIT ? (float)(x * inverse)
                    : form == SCALED
                        ? x * scale
                        : (float)((double)x * (double)scale - (double)means[c] * (double)scale);
    sum = fma((double)y, (double)y, sum);
    uint32_t high = __float_as_uint(y), low;
    if (rounded) in_tf32_parts(y, high, low);
    out[i * pitch + c] = __uint_as_float(high);
  }
  if (__any_sync(0xffffffffu, !finite)) {
    for (size_t c = lane; c < d; c += 32)
      if (!isfinite(rows[i * d + c])) {
        atomicMin(bad, (u64)(i * d + c));
        break;
      }
  }
  sum = sum_of_warp(sum);
  if (lane == 0) {
    // Entries were rounded once, by 2^-24 of each at most.
    constexpr double SHARE = 1. / (1 << 20);
    squares[i] = form == CENTRED ? __double2float_rd(sum * (1 - SHARE)) : 0;
    magnitudes[i] = form == SCALED ? 0 : form == UNIT ? (inverse > 0 ? (float)(1 + SHARE) : 0) : __double2float_ru(sqrt(sum) * (1 + SHARE));
  }
}
