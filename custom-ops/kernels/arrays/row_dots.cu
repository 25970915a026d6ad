// row_dots.cu: inner products of every row of a matrix with a few of its rows, in double.
//
//   parts[s, p, i] = sum over columns c of segment s of x[pick_p, c] * x[i, c] lane l of 256 adds
//   the columns l, l + 256, ... of the segment in this order, then the lanes in halves
//
// arrays   x: [rows, cols] float or double; parts: [segments, n_picks, rows] double; contiguous,
//          not overlapping
// scalars  n_picks 1 to 4; picks below rows; segments = ceil(cols / 16384), at least 1 (no columns
//          give 0)
// launch   a block of 256 for each segment (x) and row (y)
// shared   8 KiB
// cost     reads x once, and the picked rows from the L2 for every other row; memory limits
// NaN      gives a NaN in the products of its row
// same     the same bits as the CPU twin: every product and sum is rounded by itself; no atomics
// truth    row_dots_reference in src/arrays/row_dots.rs

constexpr unsigned LANES = 256, PICKS = 4;
constexpr size_t SEGMENT = 16384;

template <typename T>
__device__ void row_dots(double* parts, const T* x, size_t rows, size_t cols, size_t n_picks, const size_t* picks) {
  __shared__ double lanes[PICKS][LANES];
  const unsigned lane = threadIdx.x;
  const size_t row = blockIdx.y, start = (size_t)blockIdx.x * SEGMENT;
  const size_t end = cols < start + SEGMENT ? cols : start + SEGMENT;
  double sum[PICKS] = {0, 0, 0, 0};
  for (size_t c = start + lane; c < end; c += LANES) {
    const double own = (double)x[row * cols + c];
    for (unsigned p = 0; p < PICKS; ++p)
      if (p < n_picks) sum[p] = __dadd_rn(sum[p], __dmul_rn((double)x[picks[p] * cols + c], own));
  }
  for (unsigned p = 0; p < PICKS; ++p) lanes[p][lane] = sum[p];
  for (unsigned half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half)
      for (unsigned p = 0; p < PICKS; ++p) lanes[p][lane] = __dadd_rn(lanes[p][lane], lanes[p][lane + half]);
  }
  if (lane == 0)
    for (unsigned p = 0; p < n_picks; ++p) parts[((size_t)blockIdx.x * n_picks + p) * rows + row] = lanes[p][0];
}

extern "C" __global__ void row_dots_f32(double* parts, const float* x, const size_t rows, const size_t cols,
                                        const size_t n_picks, const size_t p0, const size_t p1, const size_t p2,
                                        const size_t p3) {
  const size_t picks[PICKS] = {p0, p1, p2, p3};
  row_dots(parts, x, rows, cols, n_picks, picks);
}

extern "C" __global__ void row_dots_f64(double* parts, const double* x, const size_t rows, const size_t cols,
                                        const size_t n_picks, const size_t p0, const size_t p1, const size_t p2,
                                        const size_t p3) {
  const size_t picks[PICKS] = {p0, p1, p2, p3};
  row_dots(parts, x, rows, cols, n_picks, picks);
}
