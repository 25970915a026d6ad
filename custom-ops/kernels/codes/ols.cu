// ols.cu: orthogonal least squares for many signals; the equations are in src/codes/pursuit/mod.rs,
// what the kernels compute in pursuit.cuh.
//
//   i = argmax |alpha_j| / sqrt(E_j) over E_j > 1024 eps; ties go to the lowest.  E_j: what is left
//                                                                                 of atom j,
//                                                                                 squared
//
// forms    those of bomp.cu, named ols_*, but for pursuit_steps.cu; arrays, launches, ends and
//          order as there
// cost     per signal: s rows of G and n s^2 / 2 multiply-adds, s n to choose, with a root each;
//          latency limits
// truth    ols_reference and ols_masked_reference in src/codes/pursuit/reference.rs;
//          tests/parity/pursuit

#include "codes/pursuit_kernels.cuh"

IN_REGISTERS(ols_f32_128_8, true, float, 1, 4, 8, 12)
IN_REGISTERS(ols_f32_128_16, true, float, 1, 4, 16, 8)
IN_REGISTERS(ols_f32_128_32, true, float, 1, 4, 32, 4)
IN_REGISTERS(ols_f32_256_8, true, float, 1, 8, 8, 9)
IN_REGISTERS(ols_f32_256_16, true, float, 1, 8, 16, 5)
IN_REGISTERS(ols_f32_256_24, true, float, 2, 4, 24, 6)
IN_REGISTERS(ols_f32_256_32, true, float, 2, 4, 32, 4)
IN_REGISTERS(ols_f32_512_8, true, float, 1, 16, 8, 6)
IN_REGISTERS(ols_f32_512_12, true, float, 1, 16, 12, 4)
IN_REGISTERS(ols_f32_512_16, true, float, 2, 8, 16, 6)
IN_REGISTERS(ols_f32_512_20, true, float, 4, 4, 20, 3)
IN_REGISTERS(ols_f32_1024_8, true, float, 2, 16, 8, 6)
IN_REGISTERS(ols_f32_1024_12, true, float, 4, 8, 12, 3)
IN_REGISTERS(ols_f32_1024_16, true, float, 4, 8, 16, 3)
IN_REGISTERS(ols_f64_128_8, true, double, 1, 4, 8, 8)
IN_REGISTERS(ols_f64_128_16, true, double, 1, 4, 16, 4)
IN_REGISTERS(ols_f64_256_8, true, double, 1, 8, 8, 4)
SPLIT(ols, true)
IN_BLOCKS(ols, true)
