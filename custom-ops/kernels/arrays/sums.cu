// sums.cu: sums over the rows of a matrix, in a fixed order.
//
//   lane[l][j] = x[l, j] + x[l + 32, j] + x[l + 64, j] + ...          l = 0..32, in this order,
//                                                                     from 0
//   sums[j]    = lanes added in halves: lane[l] += lane[l + 16], then + 8, + 4, + 2, + 1
//
// arrays   x: [rows, n_units] f32 or bf16, contiguous; sums: [n_units] f32, not overlapping
// scalars  rows >= 0 (none gives 0), n_units >= 1
// launch   blocks of (8, 32): 8 units, 32 lanes; one block for each 8 units
// shared   1 KiB
// cost     reads x once; n_units / 8 blocks, so a tall and narrow x leaves most of the GPU idle
// NaN      gives a NaN in its column
// same     the same bits as the CPU twin; no atomics
// truth    column_sums_reference in src/arrays/sums.rs

#include "core/numbers.cuh"

constexpr unsigned UNITS = 8, LANES = 32, AHEAD = 16;

template <typename T>
__device__ void column_sums(float* sums, const T* x, size_t rows, size_t n_units) {
  __shared__ float lanes[LANES][UNITS];
  const unsigned lane = threadIdx.y;
  const size_t unit = (size_t)blockIdx.x * UNITS + threadIdx.x;
  float sum = 0.f;
  if (unit < n_units) {
    size_t r = lane;
    // As many loads at a time as hide what one takes; the order of the sum is that of the rows.
    for (; r + (AHEAD - 1) * LANES < rows; r += AHEAD * LANES) {
      T ahead[AHEAD];
#pragma unroll
      for (unsigned i = 0; i < AHEAD; ++i) ahead[i] = x[(r + i * LANES) * n_units + unit];
#pragma unroll
      for (unsigned i = 0; i < AHEAD; ++i) sum = __fadd_rn(sum, wide(ahead[i]));
    }
    for (; r < rows; r += LANES) sum = __fadd_rn(sum, wide(x[r * n_units + unit]));
  }
  lanes[lane][threadIdx.x] = sum;
  for (unsigned half = LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) lanes[lane][threadIdx.x] = __fadd_rn(lanes[lane][threadIdx.x], lanes[lane + half][threadIdx.x]);
  }
  if (lane == 0 && unit < n_units) sums[unit] = lanes[0][threadIdx.x];
}

extern "C" __global__ void column_sums_f32(float* sums, const float* x, const size_t rows, const size_t n_units) {
  column_sums(sums, x, rows, n_units);
}

extern "C" __global__ void column_sums_bf16(float* sums, const __nv_bfloat16* x, const size_t rows,
                                            const size_t n_units) {
  column_sums(sums, x, rows, n_units);
}
