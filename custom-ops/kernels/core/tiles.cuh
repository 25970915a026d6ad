// tiles.cuh: the shared parts of kernels that multiply 16-bit matrices: copies to shared memory,
// blocks in registers, products.
#pragma once

#include <stdint.h>

#include "core/numbers.cuh"

constexpr int DEPTH = 32;  // of one k-block
constexpr int PAD = 8;     // eight lines of 16-bit or four of 32-bit entries then fall in different banks

__device__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

template <int BYTES>
__device__ void copy(void* to, const void* from, bool inside) {
  const int bytes = inside ? BYTES : 0;  // the rest is filled with zeros
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "n"(BYTES));
}
__device__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }

// Starts the copy of LINES x WIDTH entries of a matrix whose rows are `row` entries long, from
// (line0, col0) on, to lines LINE apart. What lies beyond line `lines` and column `cols`, a
// multiple of CHUNK, becomes 0.
template <int CHUNK, int LINES, int WIDTH, int LINE, int THREADS, typename T>
__device__ void fetch(T* k_block, const T* from, size_t row, int line0, int lines, int col0, int cols) {
  constexpr int CHUNKS = WIDTH / CHUNK, ALL = LINES * CHUNKS;
#pragma unroll
  for (int i = 0; i < (ALL + THREADS - 1) / THREADS; ++i) {
    const int at = i * THREADS + threadIdx.x;
    if (ALL % THREADS != 0 && at >= ALL) break;
    const int line = at / CHUNKS, col = at % CHUNKS * CHUNK;
    const bool inside = line0 + line < lines && col0 + col < cols;
    copy<2 * CHUNK>(k_block + line * LINE + col, inside ? from + (size_t)(line0 + line) * row + col0 + col : from, inside);
  }
}

// The same for lines whose entries do not follow each other: `row(line)` is where a line begins,
// null beyond the last, and `column` where this thread's CHUNK entries lie from there on, those of
// column threadIdx.x % (WIDTH / CHUNK) * CHUNK of the k-block, below 0 for zeros.
template <int CHUNK, int LINES, int WIDTH, int LINE, int THREADS, typename T, typename Row>
__device__ void fetch_mapped(T* k_block, const T* any, Row row, long long column) {
  constexpr int CHUNKS = WIDTH / CHUNK, AT_ONCE = THREADS / CHUNKS;
  static_assert(THREADS % CHUNKS == 0, "a thread keeps to one column");
  const int first = threadIdx.x / CHUNKS, col = threadIdx.x % CHUNKS * CHUNK;
#pragma unroll
  for (int i = 0; i < (LINES + AT_ONCE - 1) / AT_ONCE; ++i) {
    const int line = i * AT_ONCE + first;
    if (LINES % AT_ONCE != 0 && line >= LINES) break;
    const T* from = row(line);
    const bool inside = from != nullptr && column >= 0;
    copy<2 * CHUNK>(k_block + line * LINE + col, inside ? from + column : any, inside);
  }
}

// Calls use(s) for k-blocks 0 .. count once start(s) has copied them, with STAGES - 1 copies in
// flight.
template <int STAGES, typename Start, typename Use>
__device__ __forceinline__ void pipeline(int count, Start start, Use use) {
  // The first rounds only start copies: the code is there once, since most blocks make few rounds
  // and wait for their code.
#pragma unroll 1
  for (int s = 1 - STAGES; s < count; ++s) {
    if (s >= 0) {
      wait<STAGES - 2>();  // k-block s is here ...
      __syncthreads();     // ... for all, and all are done with k-block s - 1, whose place the next one takes
    }
    if (s + STAGES - 1 < count) start(s + STAGES - 1);
    commit();
    if (s >= 0) use(s);
  }
  wait<0>();
}

// Four 8 x 8 blocks as they lie, or transposed on the way. Lane l names line l % 8 of block l / 8.
__device__ void load_blocks(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at)));
}
__device__ void load_blocks_transposed(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at)));
}

// c += a b for a of 16 x 16 and b of 16 x 8 entries.
template <typename T> __device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#define MULTIPLY(T, NAME)                                                                                         \
  template <>                                                                                                     \
  __device__ void multiply<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                           \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                     \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                 \
  }
MULTIPLY(__nv_bfloat16, "bf16")
MULTIPLY(__half, "f16")
#undef MULTIPLY
