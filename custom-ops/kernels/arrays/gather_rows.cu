// gather_rows.cu: rows of a matrix in any order.
//
//   out[i, :] = x[rows[i], :], or all bits set where x has no such row
//
// arrays   x: [n_rows, row], out: [n, row], in units of 1, 2, 4, 8 or 16 bytes, each array on a
//          multiple of one; rows: [n] u32; not overlapping
// scalars  lanes: threads for a row, a power of two up to 256
// launch   1-D, a block of 256 threads for each 256 / lanes rows of out
// shared   none
// cost     reads and writes each row of out once, so memory should bind (not timed alone)
// NaN      bits are copied
// same     the same bits everywhere
// truth    gather_rows_reference in src/arrays/gather_rows.rs

constexpr unsigned THREADS = 256;

template <typename Unit>
__device__ Unit all_set() { return Unit(~0u); }
template <>
__device__ uint2 all_set<uint2>() { return make_uint2(~0u, ~0u); }
template <>
__device__ uint4 all_set<uint4>() { return make_uint4(~0u, ~0u, ~0u, ~0u); }

template <typename Unit>
__device__ void gather_rows(Unit* __restrict__ out, const Unit* __restrict__ x, const unsigned* __restrict__ rows, size_t n,
                            size_t n_rows, size_t row, unsigned lanes) {
  const size_t i = (size_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
  if (i >= n) return;
  Unit* to = out + i * row;
  if (rows[i] >= n_rows) {
    for (size_t u = threadIdx.x % lanes; u < row; u += lanes) to[u] = all_set<Unit>();
    return;
  }
  const Unit* from = x + rows[i] * row;
#pragma unroll 4
  for (size_t u = threadIdx.x % lanes; u < row; u += lanes) to[u] = from[u];
}

#define GATHER_ROWS(BYTES, UNIT)                                                                                              \
  extern "C" __global__ void gather_rows_##BYTES(UNIT* out, const UNIT* x, const unsigned* rows, const size_t n,              \
                                                 const size_t n_rows, const size_t row, const unsigned lanes) {               \
    gather_rows(out, x, rows, n, n_rows, row, lanes);                                                                         \
  }
GATHER_ROWS(1, unsigned char)
GATHER_ROWS(2, unsigned short)
GATHER_ROWS(4, unsigned)
GATHER_ROWS(8, uint2)
GATHER_ROWS(16, uint4)
