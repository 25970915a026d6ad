//! Vectors of f32 numbers, written out: loops over arrays keep their sums in memory.

/// Whether this processor has the vectors of x86 below, of 8 numbers at least, with fused sums.
pub(crate) fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether it has those of 16 numbers, with all of AVX-512 that the functions written with them
/// enable.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "functions written with them are for x86"))]
pub(crate) fn is_widest() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        is_wide() && has!("avx512f") && has!("avx512vl") && has!("avx512dq") && has!("avx512bw")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Neighbouring numbers that are computed at once. The methods of a type are for processors that
/// have its instructions.
pub(crate) trait Vector: Copy {
    const LANES: usize;
    fn splat(x: f32) -> Self;
    /// `self · b + c`, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
    fn times(self, b: Self) -> Self;
    /// # Safety
    /// So many numbers can be read there.
    unsafe fn load(at: *const f32) -> Self;
    /// # Safety
    /// So many numbers can be written there.
    unsafe fn store(self, at: *mut f32);
}

impl Vector for f32 {
    const LANES: usize = 1;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn fused(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn times(self, b: Self) -> Self {
        self * b
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: what the caller answers for.
        unsafe { *at }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: what the caller answers for.
        unsafe { *at = self }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($t:ident, $lanes:literal, $splat:ident, $fused:ident, $times:ident, $load:ident, $store:ident) => {
            impl Vector for $t {
                const LANES: usize = $lanes;
                #[inline(always)]
                fn splat(x: f32) -> Self {
                    // SAFETY: callers come here only where the processor has the instructions, see
                    // `is_wide` and `is_widest`.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                fn fused(self, b: Self, c: Self) -> Self {
                    // SAFETY: as in `splat`.
                    unsafe { $fused(self, b, c) }
                }
                #[inline(always)]
                fn times(self, b: Self) -> Self {
                    // SAFETY: as in `splat`.
                    unsafe { $times(self, b) }
                }
                #[inline(always)]
                unsafe fn load(at: *const f32) -> Self {
                    // SAFETY: what the caller answers for, and as in `splat`.
                    unsafe { $load(at) }
                }
                #[inline(always)]
                unsafe fn store(self, at: *mut f32) {
                    // SAFETY: what the caller answers for, and as in `splat`.
                    unsafe { $store(at, self) }
                }
            }
        };
    }
    vector!(__m256, 8, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_mul_ps, _mm256_loadu_ps, _mm256_storeu_ps);
    vector!(__m512, 16, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_loadu_ps, _mm512_storeu_ps);
}
