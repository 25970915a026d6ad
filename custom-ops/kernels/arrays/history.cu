// history.cu: the vectors of a quasi-Newton method as rows of one matrix: a direction from all
// rows, a step along it, a new gradient.
//
//   combine_rows     x[to, c]  <- sum of coefficient[i] * x[i, c] over rows i with a coefficient other than 0, in their order
//   moved_along      out[c]     = from[c] + step * x[row, c]
//   put_difference   x[difference, c] <- values[c] - x[old, c],   x[to, c] <- values[c]
//   Each product and sum is rounded to double by itself, and the result once to the type of x
//
// arrays   x: [rows, n], float or double; out, from, values: [n] of the same type; coefficients:
//          [rows] double; contiguous, none overlap
// scalars  to, row, old, difference: rows of x, of which difference is neither of the others
// launch   1-D grid of 1-D blocks, any size: a thread takes a column and strides over the grid
// cost     reads the rows with a coefficient once; memory limits, and at the sizes of small
//          networks the launch
// NaN      propagates, but not from a row with coefficient 0
// same     the same bits as the CPU twin
// truth    the references in src/arrays/history.rs

template <typename T>
__device__ void combine_rows(T* x, const double* coefficients, size_t rows, size_t n, size_t to) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x; c < n; c += stride) {
    double sum = 0.;
#pragma unroll 4
    for (size_t i = 0; i < rows; ++i) {
      const double coefficient = __ldg(coefficients + i);
      if (coefficient != 0.) sum = __dadd_rn(sum, __dmul_rn(coefficient, (double)x[i * n + c]));
    }
    x[to * n + c] = (T)sum;
  }
}

template <typename T>
__device__ void moved_along(T* out, const T* from, const T* along, double step, size_t n) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x; c < n; c += stride)
    out[c] = (T)__dadd_rn((double)from[c], __dmul_rn(step, (double)along[c]));
}

template <typename T>
__device__ void put_difference(T* x, const T* values, size_t n, size_t to, size_t old, size_t difference) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x; c < n; c += stride) {
    const T value = values[c];
    x[difference * n + c] = value - x[old * n + c];
    x[to * n + c] = value;
  }
}

#define HISTORY(NAME, T)                                                                                             \
  extern "C" __global__ void combine_rows_##NAME(T* x, const double* coefficients, const size_t rows, const size_t n,  \
                                                 const size_t to) {                                                  \
    combine_rows(x, coefficients, rows, n, to);                                                                      \
  }                                                                                                                  \
  extern "C" __global__ void moved_along_##NAME(T* out, const T* from, const T* along, const double step,            \
                                                const size_t n) {                                                    \
    moved_along(out, from, along, step, n);                                                                          \
  }                                                                                                                  \
  extern "C" __global__ void put_difference_##NAME(T* x, const T* values, const size_t n, const size_t to,           \
                                                   const size_t old, const size_t difference) {                      \
    put_difference(x, values, n, to, old, difference);                                                               \
  }
HISTORY(f32, float)
HISTORY(f64, double)
