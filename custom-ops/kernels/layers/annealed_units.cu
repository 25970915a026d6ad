// annealed_units.cu: units of restricted Boltzmann machines at an inverse temperature, in double.
//
//   hidden    x = units[r, j] + bias[j]
//             log_weights[r] += (to - from) (slope . visible[r] + offset)
//                               + sum over j of softplus(to x) - softplus(from x)
//             units[r, j] = u < sigmoid(to x) ? 1 : 0
//   visible   x = to (units[r, i] + shift[i]) + base[i]
//             units[r, i] = u < sigmoid(x) ? 1 : 0, or x + stdev[i] z where there is a stdev
//
// arrays   units: [rows, n] double, read and then written; visible: [rows, n_visible]; bias, shift,
//          base, stdev: [n]; slope: [n_visible]; log_weights: [rows]; contiguous, not overlapping; stdev may be null
// scalars  from, to in [0, 1]; seed, stream, offset of the draws: any values, and a counter
//          added to the offset, or null. u and z: the uniform
//          and the normal draw of element r * n + j
// launch   a block of 256 for each row
// shared   64 bytes
// cost     reads and writes 8 bytes a unit; two exponentials, a logarithm and two quotients a hidden
//          unit: arithmetic in double limits, some 10 us for 2 million units
// NaN      in a row makes its weight NaN, and its units 0 (real ones NaN)
// same     bits in every run: each thread adds its units in order, then warps and block in a fixed
//          order. The CPU differs by rounding
// truth    annealed_hidden_reference, annealed_visible_reference in src/layers/annealed_units.rs

#include "core/math.cuh"
#include "core/philox.cuh"
#include "core/warp.cuh"

constexpr unsigned THREADS = 256;

// Calls each(element, column, draw) for the elements of a row that this thread takes: by blocks of
// Philox, of which the first and the last may belong to the next row too.
template <bool NORMAL, typename Each>
__device__ __forceinline__ void for_draws(const Philox& philox, size_t row, size_t n, Each each) {
  const size_t first = row * n, end = first + n;
  for (size_t g = first / 4 + threadIdx.x; 4 * g < end; g += THREADS) {
    const uint4 words = philox_block(philox, g);
    Rounded draws[4];
    if (NORMAL) normal_of(words, draws);
    else uniform_of(words, draws);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const size_t e = 4 * g + i;
      if (e >= first && e < end) each(e, e - first, (double)draws[i].v);
    }
  }
}

extern "C" __global__ void annealed_hidden(double* log_weights, double* units, const double* bias,
                                           const double* visible, const double* slope, const size_t n,
                                           const size_t n_visible, const double from, const double to,
                                           const double level, const unsigned long long seed,
                                           const unsigned long long stream, const unsigned long long offset,
                                           const long long* counter) {
  __shared__ double scratch[THREADS / 32];
  const size_t row = blockIdx.x;
  const double step = to - from;
  double rise = 0;
  for (size_t i = threadIdx.x; i < n_visible; i += THREADS) rise += visible[row * n_visible + i] * slope[i];
  rise *= step;
  for_draws<false>(philox_at(seed, stream, offset, counter), row, n, [&](size_t e, size_t column, double u) {
    const double x = units[e] + bias[column];
    const double reached = exp(-to * fabs(x)), left = exp(-from * fabs(x));
    // softplus(bx) = b max(x, 0) + ln(1 + e^-b|x|), so two logarithms become that of a ratio.
    rise += step * (x < 0 ? 0 : x) + log((1 + reached) / (1 + left));
    units[e] = u < (x < 0 ? reached : 1) / (1 + reached) ? 1 : 0;
  });
  rise = sum_of_block<THREADS / 32>(rise, scratch);
  if (threadIdx.x == 0) log_weights[row] += rise + step * level;
}

extern "C" __global__ void annealed_visible(double* units, const double* shift, const double* base,
                                            const double* stdev, const size_t n, const double to,
                                            const unsigned long long seed, const unsigned long long stream,
                                            const unsigned long long offset, const long long* counter) {
  const Philox philox = philox_at(seed, stream, offset, counter);
  const auto input = [=](size_t e, size_t column) { return to * (units[e] + shift[column]) + base[column]; };
  if (stdev) {
    for_draws<true>(philox, blockIdx.x, n, [=](size_t e, size_t column, double z) {
      units[e] = input(e, column) + stdev[column] * z;
    });
    return;
  }
  for_draws<false>(philox, blockIdx.x, n, [=](size_t e, size_t column, double u) {
    const double x = input(e, column), part = exp(-fabs(x));
    units[e] = u < (x < 0 ? part : 1) / (1 + part) ? 1 : 0;
  });
}
