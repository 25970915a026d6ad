// lasso_step.cu: one iteration of the coordinate-parallel lasso without its product, a block for
// each signal.
//
//   t   the minimiser of P(a + t d), a piecewise quadratic, or the largest of 1, 1/2 .. 2^-10 that
//       lowers P, else 0
//   a <- a + t d,  q <- q - t gd,  d <- a* - a,  figures <- objective and gap of a
//
// The derivative along d is at + sum of b |d|, with the sign of d where a has the sign of d or has
// crossed zero. It rises with t and jumps where a coefficient crosses: the search goes from one
// crossing to the next, and halves the rest of the interval at each step.
//
// arrays   a, q, d: [m, n], written; gd, c: [m, n]; figures: [m, 2], written; diagonal, penalties:
//          [n]; energies: [m]; all of one type T
// scalars  halving: 1 for the fixed set of steps; nonnegative: coefficients must not cross zero
// launch   a block of 256 threads for each signal
// shared   static
// cost     reads five and writes three matrices; the search reads d and a again from the cache,
//          twice for each halving
// NaN      gives figures of NaN
// same     the same bits in every run
// truth    lasso_step_reference in src/codes/lasso/step.rs

#include "codes/lasso.cuh"

constexpr int THREADS = 256;

template <typename T>
struct Line {
  const T *a, *d, *penalties;
  unsigned n;
  bool nonnegative;
  double square, slope;  // d'Gd, -d.q

  // The derivative right of t, and the next crossing.
  __device__ void at(double t, double* room, double& derivative, double& next) const {
    double sum[2] = {0, infinity<double>()};
    for (unsigned j = threadIdx.x; j < n; j += THREADS) {
      const double to = d[j], from = a[j];
      if (to == 0) continue;
      double jump = penalties[j] * absolute(to);
      if (from * to < 0) {
        const double crossing = -from / to;
        if (crossing > t) jump = -jump, sum[1] = smaller(sum[1], crossing);
        else if (nonnegative) jump = infinity<double>();
      } else if (nonnegative && from == 0 && to < 0) {
        jump = infinity<double>();
      }
      sum[0] += jump;
    }
    over_block<THREADS>(sum, room, [](int i, double x, double y) { return i == 0 ? x + y : smaller(x, y); });
    derivative = slope + square * t + sum[0], next = sum[1];
  }

  __device__ double minimiser(double* room) const {
    double derivative, next, low = 0, high = infinity<double>();
    at(0, room, derivative, next);
    if (!(derivative < 0)) return 0;
    for (int step = 0; step < 128; ++step) {
      const double end = square > 0 ? low - derivative / square : infinity<double>();
      if (end <= next) return end;
      if (next == infinity<double>()) return low;
      double there, after;
      at(next, room, there, after);
      if (!(there < 0)) return next;
      low = next, derivative = there, next = after;
      const double middle = 0.5 * (low + smaller(smaller(end, high), 2 * low + 1));
      if (!(middle > next)) continue;
      at(middle, room, there, after);
      if (there < 0) low = middle, derivative = there, next = after;
      else high = middle;
    }
    return low;
  }

  __device__ double largest(const T* q, const T* gd, double* room) const {
    for (int k = 0; k <= 10; ++k) {
      const double t = ldexp(1., -k);
      double change[1] = {0};
      for (unsigned j = threadIdx.x; j < n; j += THREADS) {
        const double to = d[j], from = a[j];
        change[0] += t * to * (0.5 * t * gd[j] - q[j]) + penalties[j] * (absolute(from + t * to) - absolute(from));
      }
      over_block<THREADS>(change, room, [](int, double x, double y) { return x + y; });
      if (change[0] < 0) return t;
    }
    return 0;
  }
};

template <typename T>
__device__ void lasso_step(T* activations, T* residuals, T* directions, T* figures, const T* products, const T* diagonal,
                           const T* correlations, const T* energies, const T* penalties, unsigned n, bool halving,
                           bool nonnegative) {
  __shared__ double room[6 * THREADS / 32];
  const size_t row = (size_t)blockIdx.x * n;
  T *const a = activations + row, *const q = residuals + row, *const d = directions + row;
  const T *const gd = products + row, *const c = correlations + row;
  double along[2] = {0, 0};
  for (unsigned j = threadIdx.x; j < n; j += THREADS) {
    along[0] += (double)d[j] * gd[j];
    along[1] -= (double)d[j] * q[j];
  }
  const auto sum = [](int, double x, double y) { return x + y; };
  over_block<THREADS>(along, room, sum);
  const Line<T> line{a, d, penalties, n, nonnegative, along[0], along[1]};
  const double t = halving ? line.largest(q, gd, room) : line.minimiser(room);
  __syncthreads();
  double joined[5] = {0, 0, 0, 0, 0};
  for (unsigned j = threadIdx.x; j < n; j += THREADS) {
    const double from = a[j], to = d[j], square = diagonal[j], b = penalties[j];
    const bool zero = !halving && from * to < 0 && -from / to == t;
    double x = zero ? 0 : from + t * to;
    if (nonnegative && x < 0) x = 0;
    const T stored = x, left = q[j] - t * gd[j];
    a[j] = stored, q[j] = left;
    const double r = left, y = stored;
    const double best = square > 0 ? shrunk(r + square * y, b, nonnegative) / square : 0;
    d[j] = best - y;
    joined[0] += b * absolute(y) + 0 * r, joined[1] += c[j] * y, joined[2] += r * y;
    const double far = nonnegative ? r : absolute(r);
    if (square <= 0) continue;
    if (b > 0) joined[3] = larger(joined[3], far / b);
    else joined[4] = larger(joined[4], far / sqrt(square));
  }
  over_block<THREADS>(joined, room, [](int i, double x, double y) { return i < 3 ? x + y : larger(x, y); });
  if (threadIdx.x != 0) return;
  double objective, gap;
  certify<T>(energies[blockIdx.x], joined[1], joined[2], joined[0], joined[3], joined[4], objective, gap);
  figures[2 * blockIdx.x] = objective, figures[2 * blockIdx.x + 1] = gap;
}

#define LASSO_STEP(NAME, T)                                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                            \
  NAME(T* activations, T* residuals, T* directions, T* figures, const T* products, const T* diagonal,              \
       const T* correlations, const T* energies, const T* penalties, const unsigned n, const unsigned halving,     \
       const unsigned nonnegative) {                                                                               \
    lasso_step<T>(activations, residuals, directions, figures, products, diagonal, correlations, energies,         \
                  penalties, n, halving, nonnegative);                                                             \
  }
LASSO_STEP(lasso_step_f32, float)
LASSO_STEP(lasso_step_f64, double)
