// sm_90a/narrow_subtile.cuh: subtiles of TILE x 32 parameters with several planes of f32 numbers,
// such as weights and velocities, and copies of 16 bits, for a SubtileRing.
#pragma once

#include "layers/sm_90a/cd_subtile.cuh"

// PLANES of lines of 32 numbers, which come and go, and COPIES of as many, which go: tensor maps of
// 128 and of 64 bytes by TILE rows.
template <int PLANES, int COPIES>
struct NarrowMaps {
  static constexpr int COLS = 32, PLANE = TILE * BLOCK_LINE, COPY_LINE = 2 * COLS, COPY = TILE * COPY_LINE;
  static constexpr int BYTES = PLANES * PLANE + COPIES * COPY, READ = PLANES * PLANE;
  const TensorMap* planes[PLANES];
  const TensorMap* copies[COPIES];

  struct At {
    unsigned char* stage;
    __device__ unsigned char* plane(int i) const { return stage + i * PLANE; }
    __device__ unsigned char* copy(int i) const { return stage + PLANES * PLANE + i * COPY; }
    // Two neighbours of a copy, in lines of 64 bytes as copies with swizzling take them.
    __device__ __forceinline__ unsigned& copied(int i, int row, int col) const {
      return *reinterpret_cast<unsigned*>(copy(i) + row * COPY_LINE + (col / 8 ^ row / 2 % 4) * 16 + col % 8 * 2);
    }
    // Steps the pairs of this thread, from gradients that lie from `first` on in `sum` as products
    // leave them: of(both numbers of each plane, of each copy, gradients).
    template <int N, typename Of>
    __device__ __forceinline__ void step(const float (&sum)[N], int first, Of of) const {
      const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, pair_at = threadIdx.x % 4 * 2;
#pragma unroll
      for (int from = 0; from < COLS / 8; from += 2) {
        // Four pairs are read before the first is written: the compiler does not know that they lie
        // apart.
        float2 x[4][PLANES];
        unsigned c[4][COPIES];
        auto each = [&](auto of_pair) {
#pragma unroll
          for (int i = 0; i < 4; ++i) of_pair(i, row + i % 2 * 8, 8 * (from + i / 2) + pair_at);
        };
        each([&](int i, int row, int col) {
#pragma unroll
          for (int p = 0; p < PLANES; ++p) x[i][p] = two(entry<float>(plane(p), row, col));
        });
#pragma unroll
        for (int i = 0; i < 4; ++i) of(x[i], c[i], sum + first + (from + i / 2) * 4 + i % 2 * 2);
        each([&](int i, int row, int col) {
#pragma unroll
          for (int p = 0; p < PLANES; ++p) two(entry<float>(plane(p), row, col)) = x[i][p];
#pragma unroll
          for (int p = 0; p < COPIES; ++p) copied(p, row, col) = c[i][p];
        });
      }
    }
  };
  static __device__ At at(unsigned char* stage) { return At{stage}; }
  __device__ void prefetch(int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < PLANES; ++i) prefetch_block(planes[i], col0, row0);
  }
  __device__ void load(const At& to, int row0, int col0, uint64_t* here) const {
#pragma unroll
    for (int i = 0; i < PLANES; ++i) copy_block(to.plane(i), planes[i], col0, row0, here);
  }
  __device__ void store(const At& from, int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < PLANES; ++i) store_block(planes[i], col0, row0, from.plane(i));
#pragma unroll
    for (int i = 0; i < COPIES; ++i) store_block(copies[i], col0, row0, from.copy(i));
  }
};
