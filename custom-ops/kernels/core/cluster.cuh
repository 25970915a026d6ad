// cluster.cuh: blocks of a cluster that share a tile of sums; for capability 9.0 and above.
#pragma once

#include "core/tiles.cuh"

// Waits for every block of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Four neighbours of the tile of block `rank` of the cluster.
__device__ __forceinline__ float4 read_of(const float* at, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

// Writes to where `at` lies in block `rank` of the cluster; seen there behind the next
// cluster_sync.
__device__ __forceinline__ void write_of(float* at, int rank, float x) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}
