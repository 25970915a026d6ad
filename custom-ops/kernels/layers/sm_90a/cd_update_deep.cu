// sm_90a/cd_update_deep.cu: the weights of one update of contrastive learning, from states in one
// part or two of a minibatch of any number of rows, by the products of warpgroups of capability
// 9.0. The formulas are those of cd_update.cu; its kernel cd_biases updates the biases and the
// counter.
//
// cd_update.cu beside this keeps the states of visible units in shared memory, which holds both
// phases of up to 256 rows. Here both sides pass through a ring, and a tile of 128 x TN weights has
// sums as long as the minibatch: arithmetic binds, or the operands' way from the second-level
// cache. Of 128 columns two blocks share a multiprocessor, so that one multiplies while the other
// steps its weights; of 256 tensor cores wait less for operands, and longer sums make up for the
// steps. Weights were asked for into the second-level cache when a block began. A cluster of blocks
// shares a tile where there are few.
//
// Numbers in two parts have k-blocks half as deep, so that both parts have room. Tensor cores sum
// them, too: as phases take turns, sums stay small, and so does what is cut off.
//
// arrays   h: planes of [batch, rows] and x: of [batch, cols], T, as tensor maps of 128 and of TN
//          columns by 64 rows, of two parts by 32 with the part as their last dimension; plane 0 is
//          of the negative phase, plane 1 of the positive. weight: [rows, cols] f32, bf16, or 16
//          bits that are lower halves; velocity: the same, V; copy: PARTS of the same, T, copy_part
//          entries apart
// scalars  rows and cols multiples of 8; arrays begin on 16 bytes. scalars: [3] f32 on the device:
//          rate / batch, momentum, rate. counter: [1] i64, read by cd_update_deep_rounded_TN
// launch   1-D grid of `cluster` blocks for each tile, columns fastest; 288 threads
// shared   Deep::STAGES k-blocks of 32 or 48 KB, and 1 KB to align them; the tile of sums takes
//          their place
// cost     4 batch rows cols FLOP, 12 of two parts; 16 bytes a weight (12 with V of 16 bits) and 2
//          for each part of the copy, 12 with halves, or 8 with bf16 weights; operands once for
//          each tile, from the second-level cache
// NaN      propagates
// same     sums in one order on one device
// truth    cd_update_reference in src/layers/cd_update/mod.rs, round_stochastic and rounding_bits
//          in src/layers/rounding.rs

#include "core/stepped.cuh"
#include "layers/cd_numbers.cuh"
#include "layers/phases.cuh"
#include "layers/sm_90a/cd_subtile.cuh"
#include "layers/sm_90a/product_tile.cuh"

// Both operands lie along their outer dimension. Of 128 columns three stages leave room for a
// second block.
template <typename T, int PARTS_, int TN> struct Deep : Shape<2, TN, true, T, PARTS_, PARTS_> {
  using Base = Shape<2, TN, true, T, PARTS_, PARTS_>;
  static constexpr bool TRANSPOSED_A = true, EXACT = false, UNEVEN = false;
  static constexpr int PARTS = PARTS_, STAGES = TN == 128 ? 3 : 4, BLOCK = Base::THREADS + 32, AT_ONCE = TN == 128 ? 2 : 1;
  static constexpr int BLOCKS_OF_A = Base::TM / 64;
  static __device__ Room room(int, int) { return {Base::TM, Base::A_BYTES, Base::BYTES, STAGES}; }
};

// Four neighbours in memory, as pairs.
template <typename V> __device__ __forceinline__ void load_pairs(const V* at, Two<V> (&x)[2]) {
  using Both = std::conditional_t<sizeof(V) == 4, float4, uint2>;
  const Both both = *reinterpret_cast<const Both*>(at);
  if constexpr (sizeof(V) == 4) x[0] = make_float2(both.x, both.y), x[1] = make_float2(both.z, both.w);
  else x[0] = both.x, x[1] = both.y;
}
template <typename V> __device__ __forceinline__ void store_pairs(V* at, const Two<V> (&x)[2]) {
  if constexpr (sizeof(V) == 4) *reinterpret_cast<float4*>(at) = make_float4(x[0].x, x[0].y, x[1].x, x[1].y);
  else *reinterpret_cast<uint2*>(at) = make_uint2(x[0], x[1]);
}

// Asks for lines `begin` to `end` of a tile to be brought into the second-level cache, all threads.
template <typename H, typename V>
__device__ __forceinline__ void prefetch_lines(const V* matrix, const Numbers& n, int row0, int col0, int begin, int end) {
  constexpr int EACH = 128 / sizeof(V), ACROSS = H::TN / EACH;  // columns of 128 bytes
  for (int i = threadIdx.x; i < (end - begin) * ACROSS; i += H::BLOCK) {
    const int row = row0 + begin + i / ACROSS, col = col0 + i % ACROSS * EACH;
    if (row < n.rows && col < n.cols) asm volatile("prefetch.global.L2 [%0];" ::"l"(matrix + (size_t)row * n.cols + col));
  }
}

template <typename T, int PARTS, typename V, Stored STORED, int TN>
__device__ __forceinline__ void cd_update_deep(typename Subtile<T, V, STORED>::W* weight, V* velocity, T* copy, const float* scalars,
                                               const long long* counter, const TensorMap& h_map, const TensorMap& x_map, const Numbers& n,
                                               const Rounding& rounding, int cluster) {
  using H = Deep<T, PARTS, TN>;
  using Step = Subtile<T, V, STORED>;
  using W = typename Step::W;
  constexpr bool COPIED = STORED != Stored::ROUNDED;
  const int rank = blockIdx.x % cluster, tile = blockIdx.x / cluster, across = (n.cols + H::TN - 1) / H::TN;
  const TilePlace at(tile, across, (n.rows + H::TM - 1) / H::TM, 16);
  const int row0 = at.row * H::TM, col0 = at.col * H::TN;
  const int all = 2 * ((n.batch + H::DEPTH - 1) / H::DEPTH);
  const int first = all * rank / cluster, count = all * (rank + 1) / cluster - first;
  const int begin = H::TM * rank / cluster, end = H::TM * (rank + 1) / cluster;
  prefetch_lines<H>(weight, n, row0, col0, begin, end);
  prefetch_lines<H>(velocity, n, row0, col0, begin, end);
  if (STORED == Stored::HALVES) prefetch_lines<H>(copy, n, row0, col0, begin, end);

  auto copy_k_blocks = [&](const Ring& ring) {
    Stage<H::STAGES> stage;
#pragma unroll 1
    for (int s = first; s < first + count; ++s, stage.next()) {
      const KBlockOfPhases k_block(s);
      const int plane = k_block.phase, row = k_block.index * H::DEPTH;
      uint64_t* here = announce(ring.full, ring.empty, stage, H::BYTES);
      unsigned char* to = ring.k_blocks + stage.at * H::BYTES;
      auto copy_part = [&](unsigned char* of_h, unsigned char* of_x, auto... part) {
        copy_columns<H::BLOCKS_OF_A>(of_h, H::BLOCK_BYTES, &h_map, row0, row, n.rows % 64 == 0, here, plane, part...);
        copy_columns<H::BLOCKS>(of_x, H::BLOCK_BYTES, &x_map, col0, row, n.cols % 64 == 0, here, plane, part...);
      };
      unsigned char* of_x = to + PARTS * H::A_BYTES;
      if constexpr (PARTS == 1) copy_part(to, of_x);
      else copy_part(to, of_x, 0), copy_part(to + H::A_BYTES, of_x + H::B_BYTES, 1);
    }
  };
  sum_tile<H>(cluster, {count}, copy_k_blocks, [&](const Sums<H>& sums) {
    const float alpha = scalars[0], momentum = scalars[1], rate = scalars[2];
    const Philox draws = COPIED ? Philox{} : rounding_draws(rounding, counter);
    const int col = col0 + sums.along(), past = min(sums.end, n.rows - row0);
    if (col >= n.cols) return;
    auto step_all = [&](auto decay) {
      constexpr int AT_ONCE = sizeof(V) == 4 || !COPIED ? 2 : 4;  // lines whose reads are in flight together
#pragma unroll 1
      for (int from = sums.first(); from < past; from += AT_ONCE * sums.APART) {
        Two<W> w[AT_ONCE][2];
        Two<V> v[AT_ONCE][2];
        unsigned c[AT_ONCE][2] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const int line = from + i * sums.APART;
          if (line >= past) continue;
          const size_t place = (size_t)(row0 + line) * n.cols + col;
          load_pairs(weight + place, w[i]);
          load_pairs(velocity + place, v[i]);
          if constexpr (STORED == Stored::HALVES) load_pairs(copy + place, c[i]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const int line = from + i * sums.APART, row = row0 + line;
          if (line >= past) continue;
          const size_t place = (size_t)row * n.cols + col;
          float g[4];
          sums.read(line, g);
          unsigned words[2] = {};
          if constexpr (!COPIED) {
            const unsigned long long block = rounding_block(row, col, n.cols);
#pragma unroll
            for (int e = 0; e < 2; ++e) words[e] = word_of(philox_block(draws, block + e), col / 8 % 4);
          }
#pragma unroll
          for (int e = 0; e < 2; ++e) Step::step_two(w[i][e], v[i][e], c[i][e], g + 2 * e, words[e], n.scale, decay);
          store_pairs(weight + place, w[i]);
          store_pairs(velocity + place, v[i]);
          if constexpr (COPIED) store_pairs(copy + place, c[i]);
          if constexpr (PARTS == 2) {
#pragma unroll
            for (int e = 0; e < 2; ++e) c[i][e] = rest_of<T>(make_float2(w[i][e].x * n.scale, w[i][e].y * n.scale), c[i][e]);
            store_pairs(copy + n.copy_part + place, c[i]);
          }
        }
      }
    };
    if (n.l1 != 0.f) step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l1, n.l2); });
    else step_all([&](float v, float w, float g) { return stepped(v, w, g, alpha, momentum, rate, n.l2); });
  });
}

// Without a velocity of its own, that of f32 lies behind the weights.
#define CONTRAST_STEP(NAME, T, PARTS, V, W, STORED, TN)                                                                        \
  extern "C" __global__ void __launch_bounds__(Deep<T, PARTS, TN>::BLOCK, Deep<T, PARTS, TN>::AT_ONCE)                         \
  NAME##_##TN(W* weight, V* velocity, T* copy, const float* scalars, const __grid_constant__ TensorMap h_map,                  \
              const __grid_constant__ TensorMap x_map, const __grid_constant__ Numbers n, int cluster) {                       \
    V* own = velocity ? velocity : reinterpret_cast<V*>(weight + (size_t)n.rows * n.cols);                                     \
    cd_update_deep<T, PARTS, V, STORED, TN>(weight, own, copy, scalars, nullptr, h_map, x_map, n, Rounding{}, cluster);        \
  }
// Of bf16 weights, which have no copy.
#define CONTRAST_STEP_ROUNDED(NAME, TN)                                                                                        \
  extern "C" __global__ void __launch_bounds__(Deep<__nv_bfloat16, 1, TN>::BLOCK, Deep<__nv_bfloat16, 1, TN>::AT_ONCE)         \
  NAME##_##TN(__nv_bfloat16* weight, __nv_bfloat16* velocity, const float* scalars, const long long* counter,                  \
              const __grid_constant__ TensorMap h_map, const __grid_constant__ TensorMap x_map,                                \
              const __grid_constant__ Numbers n, const __grid_constant__ Rounding rounding, int cluster) {                     \
    cd_update_deep<__nv_bfloat16, 1, __nv_bfloat16, Stored::ROUNDED, TN>(weight, velocity, nullptr, scalars, counter, h_map,   \
                                                                         x_map, n, rounding, cluster);                         \
  }
#define OF_COLUMNS(TN)                                                                                                         \
  CONTRAST_STEP(cd_update_deep_f16, __half, 1, float, float, Stored::WHOLE, TN)                                                \
  CONTRAST_STEP(cd_update_deep_f16x2, __half, 2, float, float, Stored::WHOLE, TN)                                              \
  CONTRAST_STEP(cd_update_deep_bf16, __nv_bfloat16, 1, __nv_bfloat16, float, Stored::WHOLE, TN)                                \
  CONTRAST_STEP(cd_update_deep_halves, __nv_bfloat16, 1, __nv_bfloat16, __nv_bfloat16, Stored::HALVES, TN)                     \
  CONTRAST_STEP_ROUNDED(cd_update_deep_rounded, TN)
OF_COLUMNS(128)
OF_COLUMNS(256)
