#include "pursuit_blocks.cuh"
#include "pursuit_registers.cuh"

#define IN_REGISTERS(NAME, T, SLOTS, STEPS, BLOCKS)                                                   \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) NAME(const __grid_constant__ Problem<T> of) { \
    pursue_in_registers<T, SLOTS, STEPS, false>(of);                                                  \
  }
IN_REGISTERS(bomp_f32_128_8, float, 4, 8, 12)
IN_REGISTERS(bomp_f32_128_16, float, 4, 16, 8)
IN_REGISTERS(bomp_f32_128_32, float, 4, 32, 4)
IN_REGISTERS(bomp_f32_256_8, float, 8, 8, 10)
IN_REGISTERS(bomp_f32_256_16, float, 8, 16, 6)
IN_REGISTERS(bomp_f32_512_8, float, 16, 8, 6)
IN_REGISTERS(bomp_f32_512_12, float, 16, 12, 4)
IN_REGISTERS(bomp_f64_128_8, double, 4, 8, 8)
IN_REGISTERS(bomp_f64_128_16, double, 4, 16, 4)
IN_REGISTERS(bomp_f64_256_8, double, 8, 8, 4)

#define IN_BLOCKS(NAME, T, SHARED, ROWS_MADE)                                            \
  extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ Problem<T> of) { \
    extern __shared__ __align__(16) unsigned char shared[];                              \
    pursue_in_block<T, false, ROWS_MADE>(                                                \
        of, SHARED ? reinterpret_cast<T*>(shared) : of.memory + blockIdx.x * of.memory_of_block); \
  }
IN_BLOCKS(bomp_f32_shared, float, true, false)
IN_BLOCKS(bomp_f32_global, float, false, false)
IN_BLOCKS(bomp_f64_shared, double, true, false)
IN_BLOCKS(bomp_f64_global, double, false, false)
IN_BLOCKS(bomp_f32_rows_shared, float, true, true)
IN_BLOCKS(bomp_f32_rows_global, float, false, true)
IN_BLOCKS(bomp_f64_rows_shared, double, true, true)
IN_BLOCKS(bomp_f64_rows_global, double, false, true)
