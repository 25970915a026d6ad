// elementwise.cu: arithmetic of two tensors, functions of one, and copies, by strides.
//
//   binary   out[i] = x[p] op y[q]       add, sub, mul, div, maximum, minimum, equal (1 or 0)
//   unary    out[i] = f(x[p])            abs, exp, ln, neg, recip, relu, sigmoid, sqr, sqrt
//   copy     out[i] = x[p]
//   p and q are the places of entry i of the result in x and y: with i as digits i_d in base
//   size[d], the first the lowest, p = sum of i_d x_stride[d]
//
// arrays   out: [n], contiguous, apart from x and y; x, y: up to the last place of the walk; float
//          or double, for copies numbers of 1, 2, 4 or 8 bytes
// scalars  walk: 1 <= rank <= 4, sizes >= 1 whose product is n; strides of 0 repeat an entry
// launch   1-D grid of 1-D blocks, any size: the loop strides over the grid
// cost     reads each operand and writes the result once; bandwidth-bound, the launch where small
// NaN      propagates, but maximum and minimum give x where either is NaN, and relu gives 0
// same     the same bits as candle's ops on the CPU; exp, ln and sigmoid to rounding
// truth    candle's own ops, which the functions in src/arrays/elementwise.rs are on the CPU

constexpr int RANK = 4;

struct Walk {
  size_t rank, size[RANK], x[RANK], y[RANK];
};

// Where entry i lies in x and y; I is as wide as n needs.
template <typename I> __device__ __forceinline__ void places(const Walk& walk, I i, size_t& x, size_t& y) {
  x = y = 0;
#pragma unroll
  for (int d = 0; d < RANK; ++d) {
    const bool last = d + 1 == walk.rank;
    const I size = (I)walk.size[d], rest = last ? 0 : i / size, digit = last ? i : i - rest * size;
    x += digit * walk.x[d];
    y += digit * walk.y[d];
    if (last) break;
    i = rest;
  }
}

template <typename T, typename F>
__device__ __forceinline__ void each(T* out, const T* x, const T* y, const Walk& walk, size_t n, F f) {
  const size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    size_t p, q;
    if (n >> 32) places<size_t>(walk, i, p, q);
    else places<unsigned>(walk, (unsigned)i, p, q);
    out[i] = f(x + p, y + q);
  }
}

#define BINARY_OF(NAME, T, VALUE)                                                                              \
  extern "C" __global__ void NAME(T* out, const T* x, const T* y, const Walk walk, const size_t n) {            \
    each(out, x, y, walk, n, [](const T* at_x, const T* at_y) -> T {                                            \
      const T a = *at_x, b = *at_y;                                                                             \
      return VALUE;                                                                                             \
    });                                                                                                         \
  }
#define UNARY_OF(NAME, T, VALUE)                                                                               \
  extern "C" __global__ void NAME(T* out, const T* x, const Walk walk, const size_t n) {                        \
    each(out, x, x, walk, n, [](const T* at, const T*) -> T {                                                   \
      const T a = *at;                                                                                          \
      return VALUE;                                                                                             \
    });                                                                                                         \
  }
#define BINARY(NAME, VALUE) BINARY_OF(NAME##_f32, float, VALUE) BINARY_OF(NAME##_f64, double, VALUE)
#define UNARY(NAME, VALUE) UNARY_OF(NAME##_f32, float, VALUE) UNARY_OF(NAME##_f64, double, VALUE)

BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a * b)
BINARY(div, a / b)
BINARY(maximum, a < b ? b : a)
BINARY(minimum, a > b ? b : a)
BINARY(equal, a == b ? 1 : 0)

UNARY(abs, fabs(a))
UNARY(exp, exp(a))
UNARY(ln, log(a))
UNARY(neg, -a)
UNARY(recip, 1 / a)
UNARY(relu, fmax(a, decltype(a)(0)))
UNARY(sigmoid, 1 / (1 + exp(-a)))
UNARY(sqr, a * a)
UNARY(sqrt, sqrt(a))

UNARY_OF(copy_8, unsigned char, a)
UNARY_OF(copy_16, unsigned short, a)
UNARY_OF(copy_32, unsigned, a)
UNARY_OF(copy_64, unsigned long long, a)
