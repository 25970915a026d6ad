// bomp.cu: Batch-OMP, orthogonal matching pursuit for many signals; the equations are in
// src/codes/pursuit/mod.rs, what the kernels compute in pursuit.cuh.
//
//   i = argmax |alpha_j|, for codes of at least 0 argmax alpha_j; ties go to the lowest
//
// arrays   a Problem (pursuit.cuh), by value; none overlaps another
// forms    by size, from smallest (src/codes/pursuit/plan/mod.rs chooses)
//            bomp_T_ATOMS_STEPS    one or more warps per signal, all in registers  pursuit_registers.cuh
//            bomp_f32_split_TEAMxCLUSTER  a block per signal, or a cluster of blocks, directions in registers and shared memory
//                                  pursuit_split.cuh
//            bomp_T_shared         a block per signal, directions in shared memory   pursuit_blocks.cuh
//            bomp_T_global         the same with directions in global memory
//            bomp_T_rows_*         the same with rows of G made from the atoms: missing samples,
//                                  few signals
//            pursuit_steps.cu      many signals of f32, where neither these nor the split form fits
// launch   in registers: blocks of one team of warps, or of two of a warp each; split: clusters of
//          blocks of TEAM warps; else persistent blocks of up to 256 threads
// cost     per signal: s rows of G and n s^2 / 2 multiply-adds, s n to choose; latency limits
// ends     at s atoms, at the target, or when only rounding error is left, see
//          src/codes/pursuit/mod.rs; a signal that is not finite sets `refused` and gets an empty
//          code
// order    every sum has a fixed order: the same bits on every run, and in every batch for which
//          the form is the same; the form depends on the number of signals
// truth    omp_reference, ols_reference and bomp_masked_reference in
//          src/codes/pursuit/reference.rs; tests/parity/pursuit

#include "codes/pursuit_kernels.cuh"

IN_REGISTERS(bomp_f32_128_8, false, float, 1, 4, 8, 12)
IN_REGISTERS(bomp_f32_128_16, false, float, 1, 4, 16, 8)
IN_REGISTERS(bomp_f32_128_32, false, float, 1, 4, 32, 4)
IN_REGISTERS(bomp_f32_256_8, false, float, 1, 8, 8, 10)
IN_REGISTERS(bomp_f32_256_16, false, float, 1, 8, 16, 6)
IN_REGISTERS(bomp_f32_256_24, false, float, 2, 4, 24, 6)
IN_REGISTERS(bomp_f32_256_32, false, float, 2, 4, 32, 4)
IN_REGISTERS(bomp_f32_512_8, false, float, 1, 16, 8, 6)
IN_REGISTERS(bomp_f32_512_12, false, float, 1, 16, 12, 4)
IN_REGISTERS(bomp_f32_512_16, false, float, 2, 8, 16, 6)
IN_REGISTERS(bomp_f32_512_20, false, float, 4, 4, 20, 3)
IN_REGISTERS(bomp_f32_1024_8, false, float, 2, 16, 8, 6)
IN_REGISTERS(bomp_f32_1024_12, false, float, 4, 8, 12, 3)
IN_REGISTERS(bomp_f32_1024_16, false, float, 4, 8, 16, 3)
IN_REGISTERS(bomp_f64_128_8, false, double, 1, 4, 8, 8)
IN_REGISTERS(bomp_f64_128_16, false, double, 1, 4, 16, 4)
IN_REGISTERS(bomp_f64_256_8, false, double, 1, 8, 8, 4)
SPLIT(bomp, false)
IN_BLOCKS(bomp, false)
