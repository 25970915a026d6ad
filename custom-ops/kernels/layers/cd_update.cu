// cd_update.cu: one update of contrastive learning: weights, velocity, biases and the copies
// that products read.
//
//   g = sum_k h[k][j] * x[k][i]
//   v <- momentum * v + rate / batch * g - rate * (l2 * w + l1 * sign(w))
//   w <- w + v;   copy[0] <- T(s * w), copy[1] <- T(s * w - copy[0])
//   biases as in bias_step.cu; counter <- counter + by
//
// k goes over both phases; the negative phase carries its minus sign in h.
//
// With two parts an operand is the sum of two f16 numbers, 22 bits, and g = hi hi + hi lo + lo hi.
// The k-blocks of both phases take turns, so that what has been summed stays small: tensor cores
// cut off what lies below 2^-24 of it or so.
//
// Weights of bf16 (the kernels named rounded) are what products read: w <- round(w + v),
// stochastically, by the bits that rounding.cuh gives the place of a weight and the counter; v <-
// bf16(v). They have no copy, and move 8 bytes per weight.
//
// A product followed by weight_step.cu moves the velocity twice and the weights once more than this
// does: at [16000, 2304] 860 MB against 590 MB.
//
// arrays   weight: [rows, cols] f32 or bf16. velocity: [rows, cols] f32 or bf16. h: PARTS of [2,
//          batch, rows], x: PARTS of [2, batch, cols], T (bf16 or f16), parts h_part and x_part
//          entries apart, plane 0 the negative phase. copy: PARTS of [rows, cols] T, copy_part
//          entries apart. scalars: [3] f32: rate / batch, momentum, rate. hidden_state,
//          visible_state: [4, rows] and [4, cols] f32. counter: [1] i64. Rows contiguous; none
//          overlap
// scalars  rows and cols multiples of the Shape's CHUNK, and 16-bit arrays and their parts begin on
//          as many entries, f32 ones on four: the kernels named any take all sizes and places. l1,
//          l2 >= 0; s a power of two
// launch   1-D: a block for each tile of the weights, columns fastest, then one for each 32 hidden
//          and each 32 visible units; 256 threads. Any: a thread for each weight, in blocks of 512
// shared   Shape::SHARED bytes, dynamic: STAGES k-blocks of h and x, then the tile of g in their
//          place
// cost     2 * depth * rows * cols FLOP (three times that with two parts); 16 bytes per weight with
//          f32 velocity, 12 with bf16, and 2 for each part of the copy, or 8 with bf16 weights,
//          which limits if the weights do not fit into the cache
// NaN      propagates
// same     sums have one order on one device; no atomics
// truth    cd_update_reference in src/layers/cd_update/mod.rs, bias_step_reference in
//          src/layers/bias_step.rs; round_stochastic and rounding_bits in src/layers/rounding.rs

#include "layers/cd_update.cuh"

// The weights of one matrix.
template <typename S, typename T, typename V, typename W>
__device__ __forceinline__ void cd_update_whole(const Arguments<T, V, W>& a, const Numbers& n) {
  const Whole whole{n.rows, n.cols};
  cd_update<S>(a, n, 1, n.rows, n.cols, [&](int) { return whole; });
}

// A thread sums the gradient of one weight, in f32 without tensor cores; each block beyond these
// steps 32 biases.
constexpr int ANY_THREADS = BIAS_UNITS * BIAS_LANES;  // so that each sums single units

template <int PARTS, typename T, typename V, typename W>
__device__ void cd_update_any(const Arguments<T, V, W>& a, const Numbers& n) {
  __shared__ float memory[BIAS_FLOATS];
  constexpr bool MASTERS = sizeof(W) == 4;
  const size_t weights = (size_t)n.rows * n.cols, e = (size_t)blockIdx.x * ANY_THREADS + threadIdx.x;
  const unsigned blocks = (unsigned)((weights + ANY_THREADS - 1) / ANY_THREADS);
  wait_for_previous();
  if (blockIdx.x >= blocks) {
    const int of_hidden = (n.rows + BIAS_UNITS - 1) / BIAS_UNITS, at = blockIdx.x - blocks;
    const bool hidden = at < of_hidden;
    step_biases<ANY_THREADS, PARTS>(hidden ? a.hidden_state : a.visible_state, hidden ? a.h : a.x, hidden ? n.h_part : n.x_part, a.scalars,
                                    nullptr, hidden ? n.hidden : n.visible, n.batch, hidden ? n.rows : n.cols,
                                    (hidden ? at : at - of_hidden) * BIAS_UNITS, memory);
    if (MASTERS && at == 0 && threadIdx.x == 0) *a.counter += n.by;
    return;
  }
  if (e >= weights) return;
  const int row = (int)(e / n.cols), col = (int)(e - (size_t)row * n.cols);
  float g = 0.f;
#pragma unroll 4
  for (int k = 0; k < n.batch; ++k)
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      const size_t line = (size_t)plane * n.batch + k;
      const T *h = a.h + line * n.rows + row, *x = a.x + line * n.cols + col;
      if (PARTS == 2) g = fused(wide(h[0]), wide(x[n.x_part]), fused(wide(h[n.h_part]), wide(x[0]), g));
      g = fused(wide(h[0]), wide(x[0]), g);
    }
  float w = wide(a.weight[e]), v = wide(a.velocity[e]);
  v = stepped(v, w, g, a.scalars[0], a.scalars[1], a.scalars[2], n.l1, n.l2);
  w = w + v;
  a.velocity[e] = narrow<V>(v);
  if constexpr (MASTERS) {
    a.weight[e] = w;
    const float copied = w * n.scale;
    const T high = narrow<T>(copied);
    a.copy[e] = high;
    if (PARTS == 2) a.copy[n.copy_part + e] = narrow<T>(copied - wide(high));
  } else {
    a.weight[e] = rounded_one(w, rounding_draws(a.rounding, a.counter), row, col, n.cols);
  }
}

// Without a velocity of its own, that of f32 lies behind the weights.
#define CONTRAST_STEP(NAME, S, T, V)                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                        \
  NAME(float* weight, V* velocity, const T* h, const T* x, T* copy, float* hidden_state, float* visible_state,    \
       const float* scalars, long long* counter, const __grid_constant__ Numbers n) {                             \
    V* own = velocity ? velocity : reinterpret_cast<V*>(weight + (size_t)n.rows * n.cols);                        \
    const Arguments<T, V> all{weight, own, h, x, copy, hidden_state, visible_state, scalars, counter};            \
    cd_update_whole<S>(all, n);                                                                               \
  }
CONTRAST_STEP(cd_update_large_bf16, Large1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP(cd_update_large_f16, Large1, __half, float)
CONTRAST_STEP(cd_update_large_f16x2, Large2, __half, float)
CONTRAST_STEP(cd_update_small_bf16, Small1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP(cd_update_small_f16, Small1, __half, float)
CONTRAST_STEP(cd_update_small_f16x2, Small2, __half, float)
CONTRAST_STEP(cd_update_deep_f16x2, Deep2, __half, float)
CONTRAST_STEP(cd_update_odd_bf16, Odd1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP(cd_update_odd_f16, Odd1, __half, float)
CONTRAST_STEP(cd_update_odd_f16x2, Odd2, __half, float)

// Sizes and places that the copies above cannot take.
#define CONTRAST_STEP_ANY(NAME, PARTS, T, V)                                                                      \
  extern "C" __global__ void __launch_bounds__(ANY_THREADS)                                                       \
  NAME(float* weight, V* velocity, const T* h, const T* x, T* copy, float* hidden_state, float* visible_state,    \
       const float* scalars, long long* counter, const __grid_constant__ Numbers n) {                             \
    V* own = velocity ? velocity : reinterpret_cast<V*>(weight + (size_t)n.rows * n.cols);                        \
    const Arguments<T, V> all{weight, own, h, x, copy, hidden_state, visible_state, scalars, counter};            \
    cd_update_any<PARTS>(all, n);                                                                             \
  }
CONTRAST_STEP_ANY(cd_update_any_bf16, 1, __nv_bfloat16, __nv_bfloat16)
CONTRAST_STEP_ANY(cd_update_any_f16, 1, __half, float)
CONTRAST_STEP_ANY(cd_update_any_f16x2, 2, __half, float)

// Of bf16 weights; a launch after this one advances the counter.
#define CONTRAST_STEP_ROUNDED(NAME, THREADS, MOST, STEP)                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS, MOST)                                                           \
  NAME(__nv_bfloat16* weight, __nv_bfloat16* velocity, const __nv_bfloat16* h, const __nv_bfloat16* x,                  \
       float* hidden_state, float* visible_state, const float* scalars, long long* counter,                             \
       const __grid_constant__ Numbers n, const __grid_constant__ Rounding rounding) {                                  \
    const Arguments<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16> all{                                                   \
        weight, velocity, h, x, nullptr, hidden_state, visible_state, scalars, counter, rounding};                      \
    STEP(all, n);                                                                                                       \
  }
CONTRAST_STEP_ROUNDED(cd_update_large_rounded, THREADS, 2, cd_update_whole<Large1>)
CONTRAST_STEP_ROUNDED(cd_update_small_rounded, THREADS, 2, cd_update_whole<Small1>)
CONTRAST_STEP_ROUNDED(cd_update_odd_rounded, THREADS, 2, cd_update_whole<Odd1>)
CONTRAST_STEP_ROUNDED(cd_update_any_rounded, ANY_THREADS, 1, cd_update_any<1>)

// The biases and the counter alone, of states in PARTS, beside the kernel of weights in sm_90a:
// that is the launch before, and lets this one start when all before it has ended. So it begins at
// once, and its first block waits for the weights at its end, for the launches after it; the others
// make room for the next, since one at a time fits beside. Sums of 64 units read whole lines of 128
// bytes. Behind the kernel of long minibatches there is room for all, and blocks of 32 units, twice
// as many, have more reads in flight.
constexpr int BESIDE_UNITS = 64, BEHIND_UNITS = 32;

template <int PARTS, int UNITS, typename T>
__device__ void cd_biases(const T* h, const T* x, float* hidden_state, float* visible_state, const float* scalars,
                                long long* counter, const Numbers& n) {
  __shared__ float memory[BIAS_LANES * UNITS];
  const int of_hidden = (n.rows + UNITS - 1) / UNITS, at = blockIdx.x;
  const bool hidden = at < of_hidden;
  step_biases<THREADS, PARTS, UNITS>(hidden ? hidden_state : visible_state, hidden ? h : x, hidden ? n.h_part : n.x_part, scalars,
                                            nullptr, hidden ? n.hidden : n.visible, n.batch, hidden ? n.rows : n.cols,
                                            (hidden ? at : at - of_hidden) * UNITS, memory);
  if (at > 0) return;
  wait_for_previous();
  if (threadIdx.x == 0) *counter += n.by;  // the weights are rounded by what it was
}

#define CONTRAST_BIASES(NAME, T, PARTS, UNITS)                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                                    \
  NAME(const T* h, const T* x, float* hidden_state, float* visible_state, const float* scalars, long long* counter,        \
       const __grid_constant__ Numbers n) {                                                                                \
    cd_biases<PARTS, UNITS>(h, x, hidden_state, visible_state, scalars, counter, n);                                        \
  }
CONTRAST_BIASES(cd_biases_bf16, __nv_bfloat16, 1, BESIDE_UNITS)
CONTRAST_BIASES(cd_biases_f16, __half, 1, BESIDE_UNITS)
CONTRAST_BIASES(cd_biases_f16x2, __half, 2, BESIDE_UNITS)
CONTRAST_BIASES(cd_biases_behind_bf16, __nv_bfloat16, 1, BEHIND_UNITS)
CONTRAST_BIASES(cd_biases_behind_f16, __half, 1, BEHIND_UNITS)
CONTRAST_BIASES(cd_biases_behind_f16x2, __half, 2, BEHIND_UNITS)
