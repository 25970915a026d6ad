// tiles.cuh: what kernels that multiply 16-bit matrices share: copies to shared memory, blocks of it in registers, products.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

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

// Four 8 x 8 blocks as they lie, or turned on the way. Lane l names line l % 8 of block l / 8.
__device__ void straight(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at)));
}
__device__ void turned(uint32_t (&r)[4], const void* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at)));
}

// c += a b for a of 16 x 16 and b of 16 x 8 entries. The pointer only names the type.
#define MULTIPLY(T, NAME)                                                                                         \
  __device__ void multiply(const T*, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {           \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                           \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                     \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                 \
  }
MULTIPLY(__nv_bfloat16, "bf16")
MULTIPLY(__half, "f16")

#undef MULTIPLY

__device__ float wide(__half x) { return __half2float(x); }
__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(__half& y, float x) { y = __float2half_rn(x); }
__device__ void narrow(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }
