// fft.cuh: FFT of lines of N complex numbers by a block, in shared memory (Stockham): factors 4,
// then what is left, 2, 3 or both.
//
// N is 2^m or 3 2^m, from 128 on. A thread holds EACH numbers, a block LINES lines in N LINES /
// EACH threads.
#pragma once

#include "core/complex.cuh"

// How many lines of N numbers a block holds, and in how many threads. ACROSS: number i of all lines
// follow each other; otherwise the numbers of a line.
template <unsigned N, bool ACROSS>
struct Lines {
  static constexpr unsigned EACH = N % 3 ? 16 : 12;
  // Small blocks keep more multiprocessors busy; of columns, four neighbours are read at once where
  // they fit.
  static constexpr unsigned LEAST = EACH * 128, MOST = EACH * 512;
  static constexpr unsigned WANTED = ACROSS ? 4 * N : N;
  static constexpr unsigned HELD = WANTED < LEAST ? LEAST : WANTED > MOST ? MOST : WANTED;
  static constexpr unsigned COUNT = HELD / N, THREADS = HELD / EACH;
  // Blocks of a multiprocessor, for 64 registers a thread.
  static constexpr unsigned RESIDENT = 1024 / THREADS;
  static __device__ __forceinline__ unsigned place(unsigned i, unsigned line) { return ACROSS ? i * COUNT + line : line * N + i; }
};

// R numbers that are w^0, w^1, ... apart become their transform, number r times w1^r.
template <unsigned R, bool INVERSE>
__device__ __forceinline__ void butterfly(float2 (&x)[R], float2 w1) {
  if (R == 4) {
    const float2 w2 = times(w1, w1), w3 = times(w1, w2);
    const float2 a = plus(x[0], x[2]), b = minus(x[0], x[2]), c = plus(x[1], x[3 % R]), d = minus(x[1], x[3 % R]);
    const float2 turned = INVERSE ? float2{-d.y, d.x} : float2{d.y, -d.x};
    x[0] = plus(a, c), x[1] = times(w1, plus(b, turned));
    x[2 % R] = times(w2, minus(a, c)), x[3 % R] = times(w3, minus(b, turned));
  } else if (R == 3) {
    const float2 sum = plus(x[1], x[2 % R]), d = minus(x[1], x[2 % R]);
    const float2 middle = {fmaf(-.5f, sum.x, x[0].x), fmaf(-.5f, sum.y, x[0].y)};
    constexpr float SINE = INVERSE ? -.866025404f : .866025404f;
    x[0] = plus(x[0], sum);
    x[1] = times(w1, {fmaf(SINE, d.y, middle.x), fmaf(-SINE, d.x, middle.y)});
    x[2 % R] = times(times(w1, w1), {fmaf(-SINE, d.y, middle.x), fmaf(SINE, d.x, middle.y)});
  } else {
    const float2 a = x[0], b = x[1];
    x[0] = plus(a, b), x[1] = times(w1, minus(a, b));
  }
}

template <bool INVERSE, unsigned N, bool ACROSS, unsigned STRIDE = 1>
__device__ __forceinline__ void fft(float2* s, const float2* turns) {
  using Of = Lines<N, ACROSS>;
  // What is left of a line is LEFT numbers, STRIDE times.
  constexpr unsigned LEFT = N / STRIDE, R = LEFT % 4 == 0 ? 4 : LEFT % 2 == 0 ? 2 : 3, PART = N / R, PARTS = Of::EACH / R;
  if constexpr (LEFT == 1) {
    __syncthreads();
  } else {
    float2 x[PARTS][R];
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < PARTS; u++) {
      const unsigned all = u * Of::THREADS + threadIdx.x;
      const unsigned t = ACROSS ? all / Of::COUNT : all % PART, line = ACROSS ? all % Of::COUNT : all / PART;
#pragma unroll
      for (unsigned r = 0; r < R; r++) x[u][r] = s[Of::place(t + r * PART, line)];
    }
    __syncthreads();
#pragma unroll
    for (unsigned u = 0; u < PARTS; u++) {
      const unsigned all = u * Of::THREADS + threadIdx.x;
      const unsigned t = ACROSS ? all / Of::COUNT : all % PART, line = ACROSS ? all % Of::COUNT : all / PART;
      // t = q + STRIDE p reads numbers q + STRIDE (p + r LEFT / R) and writes q + STRIDE (R p + r).
      const unsigned q = t % STRIDE, p = t / STRIDE;
      float2 w1 = LEFT == R ? float2{1, 0} : turns[p * STRIDE];
      if (INVERSE) w1.y = -w1.y;
      butterfly<R, INVERSE>(x[u], w1);
#pragma unroll
      for (unsigned r = 0; r < R; r++) s[Of::place(q + STRIDE * (R * p + r), line)] = x[u][r];
    }
    fft<INVERSE, N, ACROSS, STRIDE * R>(s, turns);
  }
}
