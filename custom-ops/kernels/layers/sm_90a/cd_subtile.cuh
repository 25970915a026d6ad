// sm_90a/cd_subtile.cuh: how the kernels of an update that run on capability 9.0 step a
// subtile of 64 x 64 weights in shared memory.
//
// Weights, velocities and copies lie as copies by tensor maps with swizzling leave them. The
// formulas are in cd_update.cu.
#pragma once

#include "arrays/halves.cuh"
#include "layers/rounding.cuh"
#include "core/sm_90a/wgmma.cuh"

constexpr int TILE = 64;  // sides of a subtile

// Where entry (row, col) of a tile lies, in blocks of 128 bytes by TILE rows as copies with
// swizzling leave it.
template <typename V>
__device__ __forceinline__ V* entry(unsigned char* tile, int row, int col) {
  constexpr int LINE = BLOCK_LINE / sizeof(V), CHUNK = 16 / sizeof(V);
  const int chunk = col % LINE / CHUNK ^ row % 8;
  return reinterpret_cast<V*>(tile + (col / LINE * TILE + row) * BLOCK_LINE + chunk * 16) + col % CHUNK;
}

// How weights are stored: in f32; in halves, of which the upper ones are the copy; or as bf16
// numbers alone, rounded stochastically.
enum class Stored { WHOLE, HALVES, ROUNDED };

// Two neighbours as they are stored.
template <typename V> using Two = std::conditional_t<sizeof(V) == 4, float2, unsigned>;
template <typename V> __device__ __forceinline__ Two<V>& two(V* at) { return *reinterpret_cast<Two<V>*>(at); }
template <typename V> __device__ __forceinline__ float2 widened(const Two<V>& x) {
  if constexpr (sizeof(V) == 4) return x;
  else if constexpr (std::is_same_v<V, __half>) return __half22float2(reinterpret_cast<const __half2&>(x));
  else return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x));
}
template <typename V> __device__ __forceinline__ Two<V> narrowed(float2 x) {
  if constexpr (sizeof(V) == 4) {
    return x;
  } else if constexpr (std::is_same_v<V, __half>) {
    const __half2 both = __floats2half2_rn(x.x, x.y);
    return reinterpret_cast<const unsigned&>(both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x.x, x.y);
    return reinterpret_cast<const unsigned&>(both);
  }
}

// What rounding two neighbours to `copied` took off them.
template <typename T> __device__ __forceinline__ Two<T> rest_of(float2 x, unsigned copied) {
  const float2 rounded = widened<T>(copied);
  return narrowed<T>(make_float2(x.x - rounded.x, x.y - rounded.y));
}

// Writes four blocks of 8 x 8 numbers of 16 bits, which `load_blocks` of tiles.cuh reads.
__device__ __forceinline__ void store_blocks(void* at, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address(at)), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}

// Where a subtile lies. T: of the copy; V: of the velocities.
template <typename T, typename V, Stored STORED>
struct Subtile {
  using W = std::conditional_t<STORED == Stored::WHOLE, float, __nv_bfloat16>;
  unsigned char *weights, *velocities, *copies;

  // Steps two neighbours in registers: decay(v, w, g) is the new velocity; `word` are the random
  // bits of Stored::ROUNDED, `scale` is that of copies of Stored::WHOLE.
  template <typename Decay>
  static __device__ __forceinline__ void step_two(Two<W>& weights, Two<V>& velocities, unsigned& copies, const float* g, unsigned word, float scale,
                                                  Decay decay) {
    float2 x, v = widened<V>(velocities);
    if constexpr (STORED == Stored::HALVES) x = joined_pair(copies, weights);
    else x = widened<W>(weights);
    v.x = decay(v.x, x.x, g[0]), v.y = decay(v.y, x.y, g[1]);
    x.x = x.x + v.x, x.y = x.y + v.y;
    velocities = narrowed<V>(v);
    if constexpr (STORED == Stored::WHOLE) {
      weights = x;
      copies = narrowed<T>(make_float2(x.x * scale, x.y * scale));
    } else if constexpr (STORED == Stored::HALVES) {
      halve_pair(x, copies, weights);
    } else {
      weights = rounded_pair(x.x, x.y, word);
    }
  }

  // Steps COLS columns from col0 on: the weights of rows `row` and row + 8, columns pair_at and
  // pair_at + 1 of each eight, from gradients that lie from `first` on in `sum` as products leave
  // them. `words`: random bits for both rows and twice 32 columns. A warp steps 16 rows together.
  template <int COLS, int N, typename Decay>
  __device__ __forceinline__ void step(const float (&sum)[N], int first, const uint4 (&words)[2][2], int row, int col0, int pair_at, float scale,
                                       Decay decay) const {
    constexpr bool BLOCKS = sizeof(W) == 2 && sizeof(V) == 2;  // of 8 x 8 numbers, of which a lane names a line
    const int lane = threadIdx.x % 32, line = row - lane / 4 + lane % 16, eight = lane / 16;
#pragma unroll
    for (int from = 0; from < COLS / 8; from += 2) {
      // Four pairs are read before the first is written: the compiler does not know that they lie
      // apart.
      Two<W> of_weights[4];
      Two<V> of_velocities[4];
      unsigned of_copies[4];
      const int along = col0 + 8 * (from + eight);
      auto each = [&](auto of) {
#pragma unroll
        for (int i = 0; i < 4; ++i) of(i, row + i % 2 * 8, col0 + 8 * (from + i / 2) + pair_at);
      };
      if constexpr (BLOCKS) {
        load_blocks(of_weights, entry<W>(weights, line, along));
        load_blocks(of_velocities, entry<V>(velocities, line, along));
        if constexpr (STORED == Stored::HALVES) load_blocks(of_copies, entry<T>(copies, line, along));
      } else {
        each([&](int i, int row, int col) {
          of_weights[i] = two(entry<W>(weights, row, col));
          of_velocities[i] = two(entry<V>(velocities, row, col));
        });
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = from + i / 2, half = i % 2;
        unsigned word = 0;
        if constexpr (STORED == Stored::ROUNDED) word = word_of(words[half][c / 4], c % 4);  // others have none
        step_two(of_weights[i], of_velocities[i], of_copies[i], sum + first + c * 4 + 2 * half, word, scale, decay);
      }
      if constexpr (BLOCKS) {
        store_blocks(entry<W>(weights, line, along), of_weights);
        store_blocks(entry<V>(velocities, line, along), of_velocities);
        if constexpr (STORED == Stored::HALVES) store_blocks(entry<T>(copies, line, along), of_copies);
      } else {
        each([&](int i, int row, int col) {
          two(entry<W>(weights, row, col)) = of_weights[i];
          two(entry<V>(velocities, row, col)) = of_velocities[i];
          two(entry<T>(copies, row, col)) = of_copies[i];
        });
      }
    }
  }
};

// How subtiles lie in memory, as tensor maps of 128 bytes by TILE rows, and in a stage of a
// SubtileRing: weights, velocities and copies.
template <typename T, typename V, Stored STORED>
struct SubtileMaps {
  using At = Subtile<T, V, STORED>;
  using W = typename At::W;
  static constexpr bool COPIED = STORED != Stored::ROUNDED;
  static constexpr int WEIGHT_BYTES = TILE * TILE * sizeof(W), VELOCITY_BYTES = TILE * TILE * sizeof(V), COPY_BYTES = COPIED ? TILE * TILE * 2 : 0;
  static constexpr int BYTES = WEIGHT_BYTES + VELOCITY_BYTES + COPY_BYTES, READ = BYTES - (STORED == Stored::WHOLE ? COPY_BYTES : 0);
  static constexpr int WEIGHT_LINE = BLOCK_LINE / sizeof(W), LINE = BLOCK_LINE / sizeof(V), BLOCK = TILE * BLOCK_LINE;
  const TensorMap &weights, &velocities, &copies;

  static __device__ At at(unsigned char* stage) { return At{stage, stage + WEIGHT_BYTES, stage + WEIGHT_BYTES + VELOCITY_BYTES}; }
  __device__ void prefetch(int row0, int col0) const {
#pragma unroll
    for (int c = 0; c < TILE / WEIGHT_LINE; ++c) prefetch_block(&weights, col0 + WEIGHT_LINE * c, row0);
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) prefetch_block(&velocities, col0 + LINE * c, row0);
  }
  __device__ void load(const At& to, int row0, int col0, uint64_t* here) const {
#pragma unroll
    for (int c = 0; c < TILE / WEIGHT_LINE; ++c) copy_block(to.weights + c * BLOCK, &weights, col0 + WEIGHT_LINE * c, row0, here);
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) copy_block(to.velocities + c * BLOCK, &velocities, col0 + LINE * c, row0, here);
    if (STORED == Stored::HALVES) copy_block(to.copies, &copies, col0, row0, here);
  }
  __device__ void store(const At& from, int row0, int col0) const {
#pragma unroll
    for (int c = 0; c < TILE / WEIGHT_LINE; ++c) store_block(&weights, col0 + WEIGHT_LINE * c, row0, from.weights + c * BLOCK);
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) store_block(&velocities, col0 + LINE * c, row0, from.velocities + c * BLOCK);
    if (COPIED) store_block(&copies, col0, row0, from.copies);
  }
};
