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

// Subtiles that come into STAGES stages of shared memory one after the other, are stepped there and
// go out again, each by its number from 0 on. Memory moves in both directions all the time: one
// thread calls copy_in for each of them, another copy_out, and the threads of a warpgroup, all of
// them, `arrived` before they step one and `stepped` after.
template <typename T, typename V, Stored STORED, int STAGES_>
struct SubtileRing {
  using At = Subtile<T, V, STORED>;
  using W = typename At::W;
  static constexpr int STAGES = STAGES_;
  static constexpr bool COPIED = STORED != Stored::ROUNDED;
  static constexpr int WEIGHT_BYTES = TILE * TILE * sizeof(W), VELOCITY_BYTES = TILE * TILE * sizeof(V), COPY_BYTES = COPIED ? TILE * TILE * 2 : 0;
  static constexpr int BYTES = WEIGHT_BYTES + VELOCITY_BYTES + COPY_BYTES;  // of a stage
  static constexpr int WEIGHT_LINE = BLOCK_LINE / sizeof(W), LINE = BLOCK_LINE / sizeof(V), BLOCK = TILE * BLOCK_LINE;
  struct Barriers {
    uint64_t here[STAGES], done[STAGES], free[STAGES];
  };
  Barriers& barriers;
  unsigned char* memory;
  const TensorMap &weights, &velocities, &copies;

  // One thread, before the block is synchronised.
  __device__ void init() const {
    for (int s = 0; s < STAGES; ++s) barrier_init(barriers.here + s, 1), barrier_init(barriers.done + s, 128), barrier_init(barriers.free + s, 1);
  }
  __device__ At at(int subtile) const {
    unsigned char* to = memory + subtile % STAGES * BYTES;
    return At{to, to + WEIGHT_BYTES, to + WEIGHT_BYTES + VELOCITY_BYTES};
  }
  // Asks for a subtile to be brought into the second-level cache.
  __device__ void prefetch(int row0, int col0) const {
#pragma unroll
    for (int c = 0; c < TILE / WEIGHT_LINE; ++c) prefetch_block(&weights, col0 + WEIGHT_LINE * c, row0);
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) prefetch_block(&velocities, col0 + LINE * c, row0);
  }
  __device__ void copy_in(int subtile, int row0, int col0) const {
    const int stage = subtile % STAGES, round = subtile / STAGES;
    if (round > 0) barrier_wait(barriers.free + stage, (round - 1) % 2);
    uint64_t* here = barriers.here + stage;
    barrier_expect(here, WEIGHT_BYTES + VELOCITY_BYTES + (STORED == Stored::HALVES ? COPY_BYTES : 0));
    const At to = at(subtile);
#pragma unroll
    for (int c = 0; c < TILE / WEIGHT_LINE; ++c) copy_block(to.weights + c * BLOCK, &weights, col0 + WEIGHT_LINE * c, row0, here);
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) copy_block(to.velocities + c * BLOCK, &velocities, col0 + LINE * c, row0, here);
    if (STORED == Stored::HALVES) copy_block(to.copies, &copies, col0, row0, here);
  }
  // store_wait follows the last one.
  __device__ void copy_out(int subtile, int row0, int col0) const {
    const int stage = subtile % STAGES;
    barrier_wait(barriers.done + stage, subtile / STAGES % 2);
    const At from = at(subtile);
#pragma unroll
    for (int c = 0; c < TILE / WEIGHT_LINE; ++c) store_block(&weights, col0 + WEIGHT_LINE * c, row0, from.weights + c * BLOCK);
#pragma unroll
    for (int c = 0; c < TILE / LINE; ++c) store_block(&velocities, col0 + LINE * c, row0, from.velocities + c * BLOCK);
    if (COPIED) store_block(&copies, col0, row0, from.copies);
    store_commit();
    store_wait_read();
    barrier_arrive(barriers.free + stage);
  }
  // The subtile before it in this stage may be another warpgroup's that is still to be stepped, from
  // which the parity of `here` does not tell it; the one before that has been.
  __device__ void arrived(int subtile, bool of_another) const {
    const int stage = subtile % STAGES, round = subtile / STAGES;
    if (of_another && round > 0) barrier_wait(barriers.done + stage, (round - 1) % 2);
    barrier_wait(barriers.here + stage, round % 2);
  }
  __device__ void stepped(int subtile) const {
    shared_fence();
    barrier_arrive(barriers.done + subtile % STAGES);
  }
};
