// pursuit_kernels.cuh: the kernels of a rule, RULE_FORM, from the bodies in pursuit_registers.cuh
// and pursuit_blocks.cuh.
#pragma once

#include "codes/pursuit_blocks.cuh"
#include "codes/pursuit_registers.cuh"
#include "codes/pursuit_split.cuh"

// TEAM warps per signal, SLOTS atoms per lane, at most STEPS atoms per code, BLOCKS blocks per
// multiprocessor.
#define IN_REGISTERS(NAME, OLS, T, TEAM, SLOTS, STEPS, BLOCKS)                                                    \
  extern "C" __global__ void __launch_bounds__(32 * WARPS_OF_BLOCK<TEAM>, BLOCKS)                                 \
      NAME(const __grid_constant__ Problem<T> of) {                                                               \
    pursue_in_registers<T, SLOTS, STEPS, TEAM, OLS>(of);                                                          \
  }

// A cluster of CLUSTER blocks per signal, TEAM warps each; BLOCKS of them on a multiprocessor.
#define IN_CLUSTER(NAME, OLS, TEAM, CLUSTER, BLOCKS)                                                              \
  extern "C" __global__ void __launch_bounds__(32 * TEAM, BLOCKS) NAME(const __grid_constant__ Problem<float> of) { \
    extern __shared__ __align__(16) unsigned char shared[];                                                       \
    Split<TEAM, CLUSTER, OLS>(of, reinterpret_cast<float*>(shared)).pursue(blockIdx.x / CLUSTER);                 \
  }

// Clusters of more than one block are of capability 9.0 on.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_CLUSTERS(RULE, OLS)                                                                                    \
  IN_CLUSTER(RULE##_f32_split_4x2, OLS, 4, 2, 3)                                                                  \
  IN_CLUSTER(RULE##_f32_split_4x4, OLS, 4, 4, 3)                                                                  \
  IN_CLUSTER(RULE##_f32_split_4x8, OLS, 4, 8, 3)
#else
#define IN_CLUSTERS(RULE, OLS)
#endif

#define SPLIT(RULE, OLS)                                                                                          \
  IN_CLUSTER(RULE##_f32_split_1x1, OLS, 1, 1, 12)                                                                 \
  IN_CLUSTER(RULE##_f32_split_2x1, OLS, 2, 1, 6)                                                                  \
  IN_CLUSTER(RULE##_f32_split_4x1, OLS, 4, 1, 3)                                                                  \
  IN_CLUSTER(RULE##_f32_split_8x1, OLS, 8, 1, 1)                                                                  \
  IN_CLUSTERS(RULE, OLS)

// One block per signal; BLOCKS of them on a multiprocessor.
#define IN_BLOCK(NAME, OLS, T, SHARED, ROWS_MADE, BLOCKS)                                                         \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) NAME(const __grid_constant__ Problem<T> of) {         \
    extern __shared__ __align__(16) unsigned char shared[];                                                       \
    pursue_in_block<T, OLS, ROWS_MADE>(                                                                           \
        of, SHARED ? reinterpret_cast<T*>(shared) : of.memory + blockIdx.x * of.memory_of_block);                 \
  }

#define IN_BLOCKS(RULE, OLS)                                                                                      \
  IN_BLOCK(RULE##_f32_shared, OLS, float, true, false, 5)                                                         \
  IN_BLOCK(RULE##_f32_global, OLS, float, false, false, 4)                                                        \
  IN_BLOCK(RULE##_f64_shared, OLS, double, true, false, 5)                                                        \
  IN_BLOCK(RULE##_f64_global, OLS, double, false, false, 5)                                                       \
  IN_BLOCK(RULE##_f32_rows_shared, OLS, float, true, true, 5)                                                     \
  IN_BLOCK(RULE##_f32_rows_global, OLS, float, false, true, 5)                                                    \
  IN_BLOCK(RULE##_f64_rows_shared, OLS, double, true, true, 5)                                                    \
  IN_BLOCK(RULE##_f64_rows_global, OLS, double, false, true, 4)
