// sm_90a/product_tile.cuh: the tile of a product of 16-bit numbers, or of numbers in two parts, by the products of warpgroups of capability 9.0, and
// what is done with its entries, in one kernel.
//
// A block sums a tile of 64 WGS x TN entries: a further warpgroup copies slices of both operands, DEPTH entries of the depth at a time, through a
// ring of STAGES places; WGS warpgroups multiply them. Blocks of a cluster share a tile: each sums a stretch of the depth, then each finishes a
// part of the rows from everyone's sums, read from their shared memory.
//
// A number in two parts is the sum of two f16 ones, and the product of both second parts is left out. Tensor cores cut off what lies below
// 2^-24 of a sum or so, where f32 rounds, and over a long sum that adds up: the sums of a slice, those with second parts first, are added to f32
// ones outside. Numbers in one part are summed in the tensor cores.
#pragma once

#include "../cluster.cuh"
#include "../order.cuh"
#include "wgmma.cuh"

constexpr int RING = 216 * 1024;  // at most

// PA and PB: parts of a and of b.
template <int WGS_, int TN_, bool TURNED_, typename T_, int PA_, int PB_>
struct Shape {
  using T = T_;
  static constexpr int WGS = WGS_, TN = TN_, TM = 64 * WGS, PA = PA_, PB = PB_;
  static constexpr bool TURNED = TURNED_, EXACT = PB == 2;  // sums are added outside the tensor cores
  static constexpr int THREADS = 128 * WGS;  // that multiply; as many as a warpgroup more copy
  // Of four parts, slices half as deep leave more places in the ring.
  static constexpr int DEPTH = PA == 2 ? 32 : 64, LINE = 2 * DEPTH;
  static constexpr int A_BYTES = TM * LINE, B_BYTES = TN * LINE, BYTES = PA * A_BYTES + PB * B_BYTES;  // of a slice
  static constexpr int STAGES = RING / BYTES < 8 ? RING / BYTES : 8;
  static constexpr int TILE_LINE = TN + 4;
  static constexpr int N = TURNED ? 64 : TN, BLOCKS = TN / N;  // columns of one product: those of a block where the operand is turned
  static constexpr int BLOCK_BYTES = DEPTH * BLOCK_LINE;       // of a turned block
  // Both sums of a warpgroup of three take more registers than a quarter of all.
  static constexpr bool UNEVEN = EXACT && WGS == 3 && TN > 64;
  static_assert(!TURNED || TN % 64 == 0 && DEPTH == 64, "a turned operand comes in blocks of 64 columns");
};

// The ring as those who copy see it.
struct Ring {
  unsigned char* slices;
  uint64_t *full, *empty;
};

// How many slices there are for every block of columns, and before and after these for the first and for the last one alone.
struct Slices {
  int all, first = 0, last = 0;
};

// A number that the compiler knows.
template <int I> struct Number {
  static constexpr int value = I;
};

// Waits for the threads that multiply.
template <int THREADS>
__device__ __forceinline__ void all_multiplied() {
  asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// sum += a b, or sum = a b without ADD, for blocks FROM to TO over the depth of a slice; a and b: where 64 rows and TN columns of one part lie.
template <typename H, int FROM, int TO, bool ADD>
__device__ __forceinline__ void multiply_slice(float (&sum)[H::BLOCKS][H::N / 2], uint32_t a, uint32_t b) {
  using Product = Wgmma<typename H::T, H::N, false, H::TURNED>;
#pragma unroll
  for (int k = 0; k < H::DEPTH / 16; ++k) {
    // 16 entries are 32 bytes of a line, or 16 lines.
    const uint64_t of_a = operand<H::LINE>(a + 32 * k);
#pragma unroll
    for (int c = FROM; c < TO; ++c) {
      const uint64_t of_b = operand<H::LINE>(b + c * H::BLOCK_BYTES + (H::TURNED ? 16 * BLOCK_LINE : 32) * k);
      if (ADD || k > 0) Product::template run<true>(sum[c], of_a, of_b);
      else Product::template run<false>(sum[c], of_a, of_b);
    }
  }
}

// The tile of this block's cluster. The last warpgroup calls copy(ring), which copies the slices in turn; the others multiply them, then call
// finish(each) once, and each(Number<Q>(), entries) calls entries(line, along, x) for Q times four neighbours of a line of the tile at a time, line
// -1 for none (of the first there is one). Every entry is finished by one block of the cluster. Every thread has waited for the launch before when
// copy and finish are called.
template <typename H, typename Copy, typename Finish>
__device__ __forceinline__ void tile_of_product(int cluster, Slices count, Copy copy, Finish finish) {
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t full[H::STAGES], empty[H::STAGES];
  unsigned char* slices = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int rank = blockIdx.x % cluster, warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < H::STAGES; ++s) barrier_init(full + s, 1), barrier_init(empty + s, H::WGS);
    barriers_made();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();

  if (warp >= 4 * H::WGS) {
    if (H::UNEVEN) give_registers<32>();
    copy(Ring{slices, full, empty});
    return;  // all copies are waited for by others
  }
  if (H::UNEVEN) take_registers<160>();
  float sum[H::BLOCKS][H::N / 2] = {}, exact[H::EXACT ? H::BLOCKS : 1][H::N / 2] = {};
  const uint32_t group = warp / 4 * 64 * H::LINE;
  auto release = [&](int stage) {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + stage);
  };
  int s = 0;
  auto multiply_to = [&](auto from, auto to, int end) {
    constexpr int FROM = decltype(from)::value, TO = decltype(to)::value;
#pragma unroll 1
    for (; s < end; ++s) {
      const int stage = s % H::STAGES;
      barrier_wait(full + stage, s / H::STAGES % 2);
      const uint32_t a = shared_address(slices + stage * H::BYTES) + group, b = a - group + H::PA * H::A_BYTES;
      wgmma_fence();
      if constexpr (H::EXACT) {
        // The products with second parts first: less is cut off while the sum is small.
        multiply_slice<H, FROM, TO, false>(sum, a, b + H::B_BYTES);
        if constexpr (H::PA == 2) multiply_slice<H, FROM, TO, true>(sum, a + H::A_BYTES, b);
        multiply_slice<H, FROM, TO, true>(sum, a, b);
        wgmma_commit();
        wgmma_wait<0>();
        release(stage);
#pragma unroll
        for (int c = FROM; c < TO; ++c) {
          summed(sum[c]);
#pragma unroll
          for (int i = 0; i < H::N / 2; ++i) exact[c][i] += sum[c][i];
        }
      } else {
        multiply_slice<H, FROM, TO, true>(sum, a, b);
        wgmma_commit();
        // The products of the slice before are done: its place is free.
        wgmma_wait<1>();
        if (s > 0) release((s - 1) % H::STAGES);
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int c = FROM; c < TO; ++c) summed(sum[c]);
  };
  constexpr Number<0> zero;
  constexpr Number<H::BLOCKS> all;
  if constexpr (H::BLOCKS == 2) multiply_to(zero, Number<1>(), count.first);
  multiply_to(zero, all, count.first + count.all);
  if constexpr (H::BLOCKS == 2) multiply_to(Number<1>(), all, count.first + count.all + count.last);
  all_multiplied<H::THREADS>();

  float* tile = reinterpret_cast<float*>(slices);
#pragma unroll
  for (int c = 0; c < H::TN / 8; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2* at = reinterpret_cast<float2*>(tile + (16 * warp + lane / 4 + 8 * half) * H::TILE_LINE + 8 * c + lane % 4 * 2);
      const float* of = (H::EXACT ? exact : sum)[c / (H::N / 8)] + c % (H::N / 8) * 4 + 2 * half;
      *at = make_float2(of[0], of[1]);
    }
  if (cluster > 1) cluster_sync();
  else all_multiplied<H::THREADS>();

  constexpr int FOURS = H::TN / 4;
  const int begin = H::TM * rank / cluster, rows = H::TM * (rank + 1) / cluster - begin;
  finish([&](auto at_once, auto entries) {
    constexpr int Q = decltype(at_once)::value;
#pragma unroll 1
    for (int first = threadIdx.x; first < rows * FOURS; first += Q * H::THREADS) {
      int line[Q], along[Q];
      float x[Q][4] = {};
#pragma unroll
      for (int q = 0; q < Q; ++q) {
        const int i = first + q * H::THREADS;
        line[q] = i < rows * FOURS ? begin + i / FOURS : -1, along[q] = i % FOURS * 4;
        const float* at = tile + (Q > 1 ? max(line[q], 0) : line[q]) * H::TILE_LINE + along[q];
        if (cluster > 1) {
#pragma unroll 2
          for (int r = 0; r < cluster; ++r) {
            const float4 of = read_of(at, r);
            x[q][0] += of.x, x[q][1] += of.y, x[q][2] += of.z, x[q][3] += of.w;
          }
        } else {
          load4(at, x[q]);
        }
      }
      entries(line, along, x);
    }
  });
  if (cluster > 1) cluster_sync();  // nobody leaves while its tile is read
}
