// row_squares.cu: the squares of rows, in double.
//
//   out[i] = sum_c x[i, c]^2          lane l of 32 sums c = l, l + 32, ... in this order, then the
//                                     lanes in halves
//
// arrays   x: [rows, cols] float or double, out: [rows] double, contiguous, not overlapping
// scalars  any; no rows or columns are allowed
// launch   a warp for each row, blocks of 256
// shared   none
// cost     reads x once, which limits
// NaN      gives a NaN in its row
// same     one order; no atomics
// truth    row_squares in src/codes/atoms/squares.rs

constexpr unsigned WARP = 32;

template <typename T>
__device__ void row_squares(double* out, const T* x, size_t rows, size_t cols) {
  const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  const unsigned lane = threadIdx.x % WARP;
  if (i >= rows) return;
  double sum = 0;
  for (size_t c = lane; c < cols; c += WARP) sum += (double)x[i * cols + c] * (double)x[i * cols + c];
  for (unsigned half = WARP / 2; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  if (lane == 0) out[i] = sum;
}

extern "C" __global__ void row_squares_f32(double* out, const float* x, const size_t rows, const size_t cols) {
  row_squares(out, x, rows, cols);
}

extern "C" __global__ void row_squares_f64(double* out, const double* x, const size_t rows, const size_t cols) {
  row_squares(out, x, rows, cols);
}
