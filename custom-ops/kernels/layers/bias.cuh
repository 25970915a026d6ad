// bias.cuh: the bias update of one side from the states of both phases, for cd_update.cu and
// bias_step.cu, which has the formulas. From sums of its own sm_90a/cd_update.cu updates a unit
// by apply_bias, too.
//
// The same bits as the CPU twin in src/layers/bias_step.rs, without -ffast-math and with
// -fmad=false: sums run in the order row lane, then a tree over the lanes. bias_step.cu adds more
// than 4096 rows in stretches of so many, the others in one.
#pragma once

#include "core/numbers.cuh"

struct BiasRule {
  float sign;      // of the sums over neg; 0: pos alone
  float of_pos;    // factor on the sums over pos: 1, or 0 for neg alone
  float target;    // mean activation wanted
  float cost;      // 0: no sparsity
  float decay;     // of the running mean activation
  unsigned error;  // 1: gather the squared error in planes 2 and 3
};

constexpr unsigned BIAS_UNITS = 32, BIAS_LANES = 16;       // a block takes 32 units, if it is not told otherwise; a lane takes every 16th row
constexpr unsigned BIAS_FLOATS = BIAS_LANES * BIAS_UNITS;  // of shared memory

// N neighbours of a row, read at once.
template <typename T, int N>
struct alignas(N * sizeof(T)) Neighbours {
  T v[N];
  Neighbours() = default;
  __device__ Neighbours(const T* from) { *this = *reinterpret_cast<const Neighbours*>(from); }
};

// Sums over `rows` rows of both planes, `plane` entries apart, for units first .. first + UNITS of
// `units`, by a block of THREADS: thread i gets those of unit first + i: positive, negative and, if
// asked for, squared differences. A number of the states is the sum of PARTS, `part` entries apart.
// `plane`, `part` and `units` are multiples of the LANES * UNITS / THREADS neighbours that a thread
// sums, and `planes` begins on as many. `memory` is LANES * UNITS floats, through which the three
// sums go one after the other.
template <int THREADS, int PARTS, int UNITS, typename T>
__device__ __forceinline__ void sum_biases(const T* planes, size_t plane, size_t part, unsigned rows, unsigned units, unsigned first,
                                           bool squares, float* memory, float (&sums)[3]) {
  constexpr int EACH = UNITS * BIAS_LANES / THREADS;
  static_assert(EACH * THREADS == UNITS * BIAS_LANES, "whole units");
  float(*lanes)[UNITS] = reinterpret_cast<float(*)[UNITS]>(memory);
  const unsigned x = threadIdx.x % (UNITS / EACH) * EACH, y = threadIdx.x / (UNITS / EACH);
  float of[3][EACH] = {};  // pos, neg, err
  if (first + x < units) {
    const T* of_neg = planes + first + x;
    const T* of_pos = of_neg + plane;
    auto add = [&](const Neighbours<T, EACH>* p, const Neighbours<T, EACH>* q) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const float a = PARTS == 2 ? wide(p[0].v[i]) + wide(p[1].v[i]) : wide(p[0].v[i]);
        const float b = PARTS == 2 ? wide(q[0].v[i]) + wide(q[1].v[i]) : wide(q[0].v[i]);
        of[0][i] = of[0][i] + a;
        of[1][i] = of[1][i] + b;
        of[2][i] = of[2][i] + (a - b) * (a - b);
      }
    };
    auto read = [&](Neighbours<T, EACH>* to, const T* from, unsigned r) {
#pragma unroll
      for (int of_part = 0; of_part < PARTS; ++of_part) to[of_part] = from + of_part * part + (size_t)r * units;
    };
    // Rows whose reads are in flight together; they are added one after the other.
    constexpr int AHEAD = PARTS == 1 ? 12 : 6;
    unsigned r = y;
    for (; r + (AHEAD - 1) * BIAS_LANES < rows; r += AHEAD * BIAS_LANES) {
      Neighbours<T, EACH> p[AHEAD][PARTS], q[AHEAD][PARTS];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) read(p[i], of_pos, r + i * BIAS_LANES), read(q[i], of_neg, r + i * BIAS_LANES);
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) add(p[i], q[i]);
    }
    for (; r < rows; r += BIAS_LANES) {
      Neighbours<T, EACH> p[PARTS], q[PARTS];
      read(p, of_pos, r), read(q, of_neg, r);
      add(p, q);
    }
  }
#pragma unroll
  for (int kind = 0; kind < 3; ++kind) {
    sums[kind] = 0.f;
    if (kind == 2 && !squares) break;
    if (kind > 0) __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) lanes[y][x + i] = of[kind][i];
    for (unsigned half = BIAS_LANES / 2; half > 0; half /= 2) {
      __syncthreads();
      if (y < half)
#pragma unroll
        for (unsigned i = x; i < x + EACH; ++i) lanes[y][i] = lanes[y][i] + lanes[y + half][i];
    }
    __syncthreads();
    if (threadIdx.x < UNITS) sums[kind] = lanes[0][threadIdx.x];
  }
}

// The state of a unit before its update: bias, velocity, and mean activation or squared error.
struct BiasBefore {
  float bias, velocity, third;
  BiasBefore() = default;
  __device__ BiasBefore(const float* state, const BiasRule& rule, unsigned units, unsigned unit)
      : bias(state[unit]), velocity(state[units + unit]), third(rule.cost != 0.f || rule.error ? state[2 * (size_t)units + unit] : 0.f) {}
};

// The update of the biases of one unit from its sums over `batch` rows; `scale` may be null.
__device__ __forceinline__ void apply_bias(float* state, const BiasBefore& before, float pos_all, float neg_all, float err_all,
                                           float momentum, float rate, const float* scale, const BiasRule& rule, unsigned batch,
                                           unsigned units, unsigned unit) {
  float* bias = state + unit;
  float* velocity = bias + units;
  float* third = velocity + units;
  float* fourth = third + units;
  float g = (rule.of_pos * pos_all + rule.sign * neg_all) / (float)batch;
  if (rule.cost != 0.f) {
    const float q = rule.decay * before.third + (1.f - rule.decay) * (pos_all / (float)batch);
    *third = q;
    g = g + rule.cost * (rule.target - q);
  }
  if (scale) g = g * scale[unit];
  const float v = momentum * before.velocity + rate * g;
  *velocity = v;
  *bias = before.bias + v;
  if (rule.error) {  // two-sum: what the addition rounds away goes to the fourth plane
    const float a = before.third, b = err_all;
    const float s = a + b, bb = s - a;
    *fourth = *fourth + ((a - (s - bb)) + (b - bb));
    *third = s;
  }
}

// The same of a unit whose state was not read before, from `sums` as sum_biases gives them.
__device__ __forceinline__ void step_bias(float* state, const float (&sums)[3], const float* scalars, const float* scale, const BiasRule& rule,
                                          unsigned batch, unsigned units, unsigned unit) {
  const BiasBefore before(state, rule, units, unit);
  apply_bias(state, before, sums[0], sums[1], sums[2], scalars[1], scalars[2], scale, rule, batch, units, unit);
}

// Biases of units first .. first + UNITS of `units` from planes of `batch` rows, see sum_biases.
template <int THREADS, int PARTS, int UNITS = BIAS_UNITS, typename T>
__device__ __forceinline__ void step_biases(float* state, const T* planes, size_t part, const float* scalars,
                                            const float* scale, const BiasRule& rule, unsigned batch, unsigned units,
                                            unsigned first, float* memory) {
  float sums[3];
  sum_biases<THREADS, PARTS, UNITS>(planes, (size_t)batch * units, part, batch, units, first, rule.error, memory, sums);
  const unsigned unit = first + threadIdx.x;
  if (threadIdx.x < UNITS && unit < units) step_bias(state, sums, scalars, scale, rule, batch, units, unit);
}
