// codes.cu: sparse codes as dense rows, and their product with a dictionary.
//
//   to_dense      dense[i][j] = value of atom j in the code of signal i, else 0
//   reconstruct   out[i][f] = sum_k values[i][k] dictionary[indices[i][k]][f], or signals[i][f]
//                 less that
//
// arrays   indices: [m, s] u32, values: [m, s] f32 or f64, in order of selection, with value 0
//          beyond the end of a code; dictionary: [n, p]; signals: [m, p] or null; dense: [m, n],
//          out: [m, p]; contiguous, out overlaps nothing
// scalars  lanes: of a signal in reconstruct, a power of two up to 32
// launch   1-D blocks of whole warps: a warp for a row of dense; for reconstruct a warp for 32 /
//          lanes signals
// cost     to_dense: every entry written once, bandwidth-bound. reconstruct: 2 m s p FLOP; s rows
//          of the dictionary a signal, from the second cache, which binds
// order    sums run over k in the order of the code: the same bits whatever the launch
// indices  at or above n are ignored
// truth    src/codes/pursuit/cpu/combine.rs; tests/parity/pursuit/codes.rs

template <typename T>
__device__ __forceinline__ void to_dense(const unsigned* indices, const T* values, T* dense, size_t m, unsigned n,
                                         unsigned s) {
  const size_t row = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const unsigned lane = threadIdx.x & 31;
  if (row >= m) return;
  T* const to = dense + row * n;
  for (unsigned j = lane; j < n; j += 32) to[j] = 0;
  __syncwarp();
  for (unsigned k = lane; k < s; k += 32) {
    const T value = values[row * s + k];
    const unsigned j = indices[row * s + k];
    // What follows the end of a code names atom 0, with the value 0.
    if (value != 0 && j < n) to[j] = value;
  }
}

template <typename T>
__device__ __forceinline__ void reconstruct(const unsigned* __restrict__ indices, const T* __restrict__ values,
                                            const T* __restrict__ dictionary, const T* __restrict__ signals,
                                            T* __restrict__ out, size_t m, unsigned n, unsigned s, unsigned p,
                                            unsigned lanes) {
  const unsigned lane = threadIdx.x & 31, of_signal = lane % lanes;
  const size_t warp = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const size_t row = warp * (32 / lanes) + lane / lanes;
  if (warp * (32 / lanes) >= m) return;
  const bool inside = row < m;
  for (unsigned f = of_signal; f < p + of_signal; f += 2 * lanes) {
    // Two samples at a time, a row of lanes apart.
    T sum[2] = {};
    for (unsigned first = 0; first < s; first += lanes) {
      const unsigned mine = first + of_signal;
      const bool there = inside && mine < s;
      T value = there ? values[row * s + mine] : T(0);
      unsigned atom = there ? indices[row * s + mine] : 0;
      if (atom >= n) atom = 0, value = 0;
      const unsigned end = min(lanes, s - first);
      for (unsigned k = 0; k < end; ++k) {
        const T x = __shfl_sync(0xffffffffu, value, k, lanes);
        const T* const from = dictionary + (size_t)__shfl_sync(0xffffffffu, atom, k, lanes) * p;
#pragma unroll
        for (unsigned half = 0; half < 2; ++half)
          if (f + half * lanes < p) sum[half] = fma(x, __ldg(from + f + half * lanes), sum[half]);
      }
    }
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned at = f + half * lanes;
      if (inside && at < p) out[row * p + at] = signals ? signals[row * p + at] - sum[half] : sum[half];
    }
  }
}

#define CODES(SUFFIX, T)                                                                                               \
  extern "C" __global__ void to_dense_##SUFFIX(const unsigned* indices, const T* values, T* dense, const size_t m,     \
                                               const unsigned n, const unsigned s) {                                   \
    to_dense<T>(indices, values, dense, m, n, s);                                                                      \
  }                                                                                                                    \
  extern "C" __global__ void reconstruct_##SUFFIX(const unsigned* indices, const T* values, const T* dictionary,       \
                                                  const T* signals, T* out, const size_t m, const unsigned n,          \
                                                  const unsigned s, const unsigned p, const unsigned lanes) {          \
    reconstruct<T>(indices, values, dictionary, signals, out, m, n, s, p, lanes);                                      \
  }
CODES(f32, float)
CODES(f64, double)
