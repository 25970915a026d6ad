// wgmma.cuh: products of warpgroups from shared memory, copies by tensor maps and the barriers
// between both, of capability 9.0 alone.
//
// Operands lie in shared memory as copies with swizzling leave them, in blocks of 64 entries of 16
// bits (128 bytes), or of 32, by any number of lines, each block on a multiple of 1024 bytes: lines
// of an operand whose depth is its inner dimension (K-major), or of the depth (transposed). Source:
// NVIDIA, "PTX ISA", sections on wgmma and cp.async.bulk.tensor.
#pragma once

#include "core/sm_90a/wgmma_registers.cuh"
#include "core/tiles.cuh"

constexpr int BLOCK_LINE = 128;  // bytes of a line of a block of 64 entries

// What threads wrote to shared memory before is seen by the copies that they begin.
__device__ __forceinline__ void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Where an operand lies within a block with lines of so many bytes, 128 or 64. A transposed one may
// go on in blocks that begin `apart` bytes from each other. Above its 18 bits an address has the
// number of the block in its cluster.
template <int LINE = BLOCK_LINE> __device__ __forceinline__ uint64_t operand(uint32_t at, uint32_t apart = 0) {
  return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)(8 * LINE >> 4) << 32 | (uint64_t)(LINE == 128 ? 1 : 2) << 62;
}

// Where an operand lies whose eights of lines of 16 bytes follow each other anywhere, without
// swizzling: eights are `eights` bytes apart, the next 16 bytes of the depth `depth` bytes.
__device__ __forceinline__ uint64_t scattered(uint32_t at, uint32_t depth, uint32_t eights) {
  return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(depth >> 4) << 16 | (uint64_t)(eights >> 4) << 32;
}

// An operand so many bytes further on, within the 18 bits of its address.
__device__ __forceinline__ uint64_t advance(uint64_t operand, uint32_t bytes) {
  return operand >> 32 << 32 | ((uint32_t)operand + (bytes >> 4));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// After the wait for the products of these sums, or of some: they are not read before.
template <int N> __device__ __forceinline__ void summed(float (&d)[N], int from = 0, int to = N) {
#pragma unroll
  for (int i = from; i < to; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Waits for all threads that multiply, THREADS of them.
template <int THREADS> __device__ __forceinline__ void all_multiplied() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// Where the sums of warpgroups below each other lie in registers once lanes have exchanged them: a
// lane has columns 2t and 2t + 1 of each eight, and neighbouring lanes give each other those of
// every other eight. Of every 16 columns a thread then has four neighbours, from `along` on, of
// `line` and of eight lines further.
struct Exchanged {
  static __device__ int line() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
  static __device__ int along() { return threadIdx.x % 2 * 8 + threadIdx.x / 2 % 2 * 4; }
  // Those four, from two sums of a line of an even eight and of the odd one behind it.
  static __device__ __forceinline__ void four(const float* even, const float* odd, float (&x)[4]) {
    const bool second = threadIdx.x % 2;
    const float a = __shfl_xor_sync(~0u, second ? even[0] : odd[0], 1), b = __shfl_xor_sync(~0u, second ? even[1] : odd[1], 1);
    x[0] = second ? a : even[0], x[1] = second ? b : even[1], x[2] = second ? odd[0] : a, x[3] = second ? odd[1] : b;
  }
};

// d += a b, or d = a b without ADD, for a of 64 x 16 and b of 16 x N, each K-major or transposed; d
// is N / 2 sums from FROM on. A broad product reads a once, where narrow ones side by side read it
// each time, and shared memory gives just enough for those of 64 columns.
template <typename T, int N, bool TRANSPOSED_A, bool TRANSPOSED_B> struct Wgmma;

#define WGMMA(T, NAME, N, TRANSPOSED_A, TRANSPOSED_B)                                                       \
  template <> struct Wgmma<T, N, TRANSPOSED_A, TRANSPOSED_B> {                                              \
    template <int FROM = 0, bool ADD = true, int ALL>                                               \
    static __device__ __forceinline__ void run(float (&d)[ALL], uint64_t a, uint64_t b) {           \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " " WGMMA_OPERANDS_##N \
                   ", 1, 1, " #TRANSPOSED_A ", " #TRANSPOSED_B ";"                                          \
                   : WGMMA_SUMS_##N                                                                       \
                   : "l"(a), "l"(b), "n"(ADD));                                                     \
    }                                                                                               \
  };
#define OF_WIDTH(T, NAME, N) \
  WGMMA(T, NAME, N, 0, 0)    \
  WGMMA(T, NAME, N, 0, 1)    \
  WGMMA(T, NAME, N, 1, 0)    \
  WGMMA(T, NAME, N, 1, 1)
#define OF_EVERY_WIDTH(T, NAME)                                                                    \
  OF_WIDTH(T, NAME, 8) OF_WIDTH(T, NAME, 16) OF_WIDTH(T, NAME, 32) OF_WIDTH(T, NAME, 48)             \
  OF_WIDTH(T, NAME, 64) OF_WIDTH(T, NAME, 80) OF_WIDTH(T, NAME, 96) OF_WIDTH(T, NAME, 112)           \
  OF_WIDTH(T, NAME, 128) OF_WIDTH(T, NAME, 144) OF_WIDTH(T, NAME, 160) OF_WIDTH(T, NAME, 176)        \
  OF_WIDTH(T, NAME, 192) OF_WIDTH(T, NAME, 208) OF_WIDTH(T, NAME, 224) OF_WIDTH(T, NAME, 240)        \
  OF_WIDTH(T, NAME, 256)
OF_EVERY_WIDTH(__half, "f16")
OF_EVERY_WIDTH(__nv_bfloat16, "bf16")
#undef OF_WIDTH
#undef OF_EVERY_WIDTH

// The same of TF32 numbers, a of 64 x 8 and b of 8 x N, both K-major, or a in registers: a lane has
// lines g and g + 8 of a column t, then those of column t + 4 (tf32.cuh).
template <int N> struct Tf32;
#define WGMMA_TF32(N)                                                                                                      \
  template <> struct Tf32<N> {                                                                                            \
    static __device__ __forceinline__ void run(float (&d)[N / 2], uint64_t a, uint64_t b) {                               \
      constexpr int FROM = 0;                                                                                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 " WGMMA_OPERANDS_##N ", 1, 1;"                      \
                   : WGMMA_SUMS_##N                                                                                             \
                   : "l"(a), "l"(b), "n"(1));                                                                             \
    }                                                                                                                     \
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {                    \
      constexpr int FROM = 0;                                                                                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 " WGMMA_OPERANDS_##N##_OF_REGISTERS ", 1, 1;"        \
                   : WGMMA_SUMS_##N                                                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));                                         \
    }                                                                                                                     \
  };
WGMMA_TF32(32)
WGMMA_TF32(64)
#undef WGMMA_TF32

// The same for b transposed and N = 32, and bf16 numbers a in registers, four pairs of 64 x 16: a
// lane has columns 2t and 2t + 1 of a row, of the eighth below it, and then the same of the next
// eight columns.
template <bool ADD = true>
__device__ __forceinline__ void wgmma_of_registers(float (&d)[16], const unsigned (&a)[4], uint64_t b) {
  constexpr int FROM = 0;
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " WGMMA_OPERANDS_32_OF_REGISTERS ", 1, 1, 1;"
               : WGMMA_SUMS_32
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}
#undef WGMMA

// Most registers of a thread of this warpgroup from here on.
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// A barrier in shared memory: phases end when `count` arrivals and all announced bytes have come.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, unsigned times = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier, unsigned times = 1) { barrier_arrive(shared_address(barrier), times); }
// After all barriers are made, by the thread that made them: copies see them. The block is then
// synchronized.
__device__ __forceinline__ void barriers_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  shared_fence();
}
// Waits for the end of a phase of this parity.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, unsigned parity) { barrier_wait(shared_address(barrier), parity); }
// The number of this warp, which the compiler then knows to be the same for all lanes: addresses
// and descriptors by it take uniform registers.
__device__ __forceinline__ int warp_of_block() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }

// An address in shared memory, the same for all lanes of a warp, which all ask for it. The compiler
// keeps it, where it would make that of an array again at each use, which in a loop over k-blocks
// takes longer than their products.
__device__ __forceinline__ uint32_t kept_address(const void* p) { return __shfl_sync(~0u, shared_address(p), 0); }

// Barriers side by side, for loops over k-blocks.
struct Barriers {
  uint32_t first;
  __device__ explicit Barriers(const uint64_t* barriers) : first(kept_address(barriers)) {}
  __device__ void wait(int i, unsigned parity) const { barrier_wait(first + 8 * i, parity); }
  __device__ void arrive(int i) const { barrier_arrive(first + 8 * i); }
};

// A stage of a ring of STAGES, and the parity of its round.
template <int STAGES>
struct Stage {
  int at;
  unsigned parity;
  __device__ explicit Stage(int item = 0) : at(item % STAGES), parity(item / STAGES % 2) {}
  __device__ void next() {
    if (++at == STAGES) at = 0, parity ^= 1;
  }
};

// The same of as many stages as the launch has room for.
template <>
struct Stage<0> {
  int stages, at;
  unsigned parity;
  __device__ explicit Stage(int stages, int item = 0) : stages(stages), at(item % stages), parity(item / stages % 2) {}
  __device__ void next() {
    if (++at == stages) at = 0, parity ^= 1;
  }
};

// Waits until the stage is free and announces so many bytes there, one thread; returns the barrier
// that counts them. A stage is free when the round before is used; in the first round, for a
// barrier that nobody has arrived at yet, that parity counts as over.
template <int STAGES>
__device__ __forceinline__ uint64_t* announce(uint64_t* full, uint64_t* empty, const Stage<STAGES>& stage, unsigned bytes) {
  barrier_wait(empty + stage.at, stage.parity ^ 1);
  uint64_t* here = full + stage.at;
  barrier_expect(here, bytes);
  return here;
}

// A matrix in memory as the copies see it; made by the host.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// Starts the copy of the block whose first entry is (x, y), x along a row, of a matrix among
// several; the barrier counts its bytes. What lies beyond the matrix is 0.
__device__ __forceinline__ void copy_block(void* to, const TensorMap* map, int x, int y, int z, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void copy_block(void* to, const TensorMap* map, int x, int y, int z, int w, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void copy_block(void* to, const TensorMap* map, int x, int y, int z, int w, int v, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(shared_address(barrier))
      : "memory");
}
// The same of one matrix.
__device__ __forceinline__ void copy_block(void* to, const TensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}
// Starts the copies of BLOCKS blocks of 64 columns by DEPTH rows, beside each other from column
// `first` on, a multiple of 64, of an operand that lies along its outer dimension, to places that
// lie `apart`. Where all blocks are `whole`, as the width is a multiple of 64, they are one copy,
// which takes less time than theirs; see TensorMap::of_columns. `matrix` is one among several: its
// plane, and its part where the map has parts.
template <int BLOCKS, typename... Of>
__device__ __forceinline__ void copy_columns(unsigned char* to, int apart, const TensorMap* map, int first, int row, bool whole,
                                             uint64_t* barrier, Of... matrix) {
  if (whole) return copy_block(to, map, 0, row, first / 64, matrix..., barrier);
#pragma unroll
  for (int c = 0; c < BLOCKS; ++c) copy_block(to + c * apart, map, first + 64 * c, row, 0, matrix..., barrier);
}
// Asks for a block of one matrix to be brought into the second-level cache: allowed before
// `wait_for_previous`.
__device__ __forceinline__ void prefetch_block(const TensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}
// Starts the copy of a block to memory, as far as it lies within the matrix; what threads wrote to
// it was fenced by `shared_fence`.
__device__ __forceinline__ void store_block(const TensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"(shared_address(from))
               : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until stores have read shared memory, or are done.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
