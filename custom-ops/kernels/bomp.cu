// bomp.cu: batch orthogonal matching pursuit for many signals; the equations are in src/pursuit/mod.rs, what the kernels compute in pursuit.cuh.
//
//   i = argmax |alpha_j|, of nonnegative codes argmax alpha_j; the lowest of level ones
//
// arrays   a Problem (pursuit.cuh), by value; none overlaps another
// forms    by size, from smallest (src/pursuit/cuda/plan.rs chooses)
//            bomp_T_ATOMS_STEPS    a warp a signal, all in registers         pursuit_registers.cuh
//            bomp_T_shared         a block a signal, directions in shared memory   pursuit_blocks.cuh
//            bomp_T_global         the same with directions in global memory
//            bomp_T_rows_*         the same with rows of G made from the atoms: missing samples, few signals
// launch   in registers: blocks of 32 WARPS threads, a warp for each signal; else persistent blocks of up to 256 threads
// cost     a signal: s rows of G and n s^2 / 2 multiply-adds, s n to choose; latency binds
// ends     at s atoms, at the target, or where rounding is all that is left, as src/pursuit/mod.rs says; a signal that is
//          not finite sets `refused` and gets an empty code
// order    every sum has a fixed order: the same bits on every run, whatever else is in the batch
// truth    omp_reference, ols_reference and bomp_masked_reference in src/pursuit/reference.rs; tests/parity/pursuit.rs

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
