// sm_90a/contrast_square.cuh: how the kernels of an update that run on capability 9.0 step a square of 64 x 64 weights in shared memory.
//
// Weights, velocities and copies lie as copies by tensor maps with swizzling leave them. The formulas are in contrast_step.cu.
#pragma once

#include "../halves.cuh"
#include "../rounding.cuh"
#include "wgmma.cuh"

constexpr int TILE = 64;  // sides of a square

// Where entry (row, col) of a tile lies, in blocks of 128 bytes by TILE rows as copies with swizzling leave it.
template <typename V>
__device__ __forceinline__ V* entry(unsigned char* tile, int row, int col) {
  constexpr int LINE = BLOCK_LINE / sizeof(V), CHUNK = 16 / sizeof(V);
  const int chunk = col % LINE / CHUNK ^ row % 8;
  return reinterpret_cast<V*>(tile + (col / LINE * TILE + row) * BLOCK_LINE + chunk * 16) + col % CHUNK;
}

__device__ __forceinline__ void put(float* at, float2 v) { *reinterpret_cast<float2*>(at) = v; }
__device__ __forceinline__ void put(__nv_bfloat16* at, float2 v) {
  *reinterpret_cast<__nv_bfloat162*>(at) = __floats2bfloat162_rn(v.x, v.y);
}
__device__ __forceinline__ void put(__half* at, float2 v) { *reinterpret_cast<__half2*>(at) = __floats2half2_rn(v.x, v.y); }

// How weights are stored: in f32; in halves, of which the upper ones are the copy; or as bf16 numbers alone, rounded stochastically.
enum class Stored { WHOLE, HALVES, ROUNDED };

// Two neighbours as they are stored.
template <typename V> using Two = std::conditional_t<sizeof(V) == 4, float2, unsigned>;
template <typename V> __device__ __forceinline__ Two<V>& two(V* at) { return *reinterpret_cast<Two<V>*>(at); }
template <typename V> __device__ __forceinline__ float2 widened(const Two<V>& x) {
  if constexpr (sizeof(V) == 4) return x;
  else return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x));
}

// The places of a square. T: of the copy; V: of the velocities.
template <typename T, typename V, Stored STORED>
struct Square {
  using W = std::conditional_t<STORED == Stored::WHOLE, float, __nv_bfloat16>;
  unsigned char *weights, *velocities, *copies;

  // Steps COLS columns from col0 on: the weights of rows `row` and row + 8, columns pair_at and pair_at + 1 of each eight, from gradients that lie from
  // `first` on in `sum` as products leave them: decay(v, w, g) is the new velocity. `words` are the random bits of Stored::ROUNDED, `scale` is that of
  // copies of Stored::WHOLE.
  template <int COLS, int N, typename Decay>
  __device__ __forceinline__ void step(const float (&sum)[N], int first, const uint4 (&words)[2][2], int row, int col0, int pair_at, float scale,
                                       Decay decay) const {
    constexpr int AT_ONCE = 2;  // times eight columns
#pragma unroll
    for (int from = 0; from < COLS / 8; from += AT_ONCE) {
      // All are read before the first is written: the compiler does not know that they lie apart.
      Two<W> of_weights[AT_ONCE][2];
      Two<V> of_velocities[AT_ONCE][2];
      [[maybe_unused]] unsigned uppers[AT_ONCE][2];
      auto weight_at = [&](int c, int half) { return entry<W>(weights, row + 8 * half, col0 + 8 * (from + c) + pair_at); };
      auto velocity_at = [&](int c, int half) { return entry<V>(velocities, row + 8 * half, col0 + 8 * (from + c) + pair_at); };
      auto copy_at = [&](int c, int half) { return entry<T>(copies, row + 8 * half, col0 + 8 * (from + c) + pair_at); };
#pragma unroll
      for (int c = 0; c < AT_ONCE; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          of_weights[c][half] = two(weight_at(c, half));
          of_velocities[c][half] = two(velocity_at(c, half));
          if constexpr (STORED == Stored::HALVES) uppers[c][half] = two(copy_at(c, half));
        }
#pragma unroll
      for (int c = 0; c < AT_ONCE; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* g = sum + first + (from + c) * 4 + 2 * half;
          float2 x, v = widened<V>(of_velocities[c][half]);
          if constexpr (STORED == Stored::HALVES) x = joined_pair(uppers[c][half], of_weights[c][half]);
          else x = widened<W>(of_weights[c][half]);
          v.x = decay(v.x, x.x, g[0]), v.y = decay(v.y, x.y, g[1]);
          x.x = x.x + v.x, x.y = x.y + v.y;
          put(velocity_at(c, half), v);
          W* to = weight_at(c, half);
          T* copy = copy_at(c, half);
          if constexpr (STORED == Stored::WHOLE) {
            put(to, x);
            put(copy, make_float2(x.x * scale, x.y * scale));
          } else if constexpr (STORED == Stored::HALVES) {
            halve_pair(x, two(copy), two(to));
          } else {
            two(to) = rounded_pair(x.x, x.y, word_of(words[half][(from + c) / 4], (from + c) % 4));
          }
        }
    }
  }
};
