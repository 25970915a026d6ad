//! Vectors of f32 and f64 numbers, written out: loops over arrays keep their sums in memory.
use candle::WithDType;

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
    /// f32 or f64, which is a vector of one.
    type Number: Vector<Number = Self::Number> + WithDType;
    const LANES: usize;
    const ZERO: Self::Number;
    const ONE: Self::Number;
    fn splat(x: Self::Number) -> Self;
    /// `self · b + c`, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
    fn times(self, b: Self) -> Self;
    /// # Safety
    /// So many numbers can be read there.
    unsafe fn load(at: *const Self::Number) -> Self;
    /// # Safety
    /// So many numbers can be written there.
    unsafe fn store(self, at: *mut Self::Number);

    #[inline(always)]
    fn zeros() -> Self {
        Self::splat(Self::ZERO)
    }

    /// The sum of all, in pairs.
    #[inline(always)]
    fn sum(self) -> Self::Number {
        let mut of = [Self::ZERO; MOST_LANES];
        // SAFETY: no vector has more numbers.
        unsafe { self.store(of.as_mut_ptr()) };
        let mut n = Self::LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                of[i] += of[i + n];
            }
        }
        of[0]
    }
}

/// Numbers of the widest vector.
const MOST_LANES: usize = 16;

macro_rules! number {
    ($t:ident) => {
        impl Vector for $t {
            type Number = $t;
            const ZERO: $t = 0.;
            const ONE: $t = 1.;
            const LANES: usize = 1;
            #[inline(always)]
            fn splat(x: $t) -> Self {
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
            unsafe fn load(at: *const $t) -> Self {
                // SAFETY: what the caller answers for.
                unsafe { *at }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $t) {
                // SAFETY: what the caller answers for.
                unsafe { *at = self }
            }
        }
    };
}
number!(f32);
number!(f64);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($t:ident, $number:ident, $lanes:literal, $splat:ident, $fused:ident, $times:ident, $load:ident, $store:ident) => {
            impl Vector for $t {
                type Number = $number;
                const ZERO: $number = 0.;
                const ONE: $number = 1.;
                const LANES: usize = $lanes;
                #[inline(always)]
                fn splat(x: $number) -> Self {
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
                unsafe fn load(at: *const $number) -> Self {
                    // SAFETY: what the caller answers for, and as in `splat`.
                    unsafe { $load(at) }
                }
                #[inline(always)]
                unsafe fn store(self, at: *mut $number) {
                    // SAFETY: what the caller answers for, and as in `splat`.
                    unsafe { $store(at, self) }
                }
            }
        };
    }
    vector!(
        __m256,
        f32,
        8,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_mul_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps
    );
    vector!(
        __m512,
        f32,
        16,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_mul_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps
    );
    vector!(
        __m256d,
        f64,
        4,
        _mm256_set1_pd,
        _mm256_fmadd_pd,
        _mm256_mul_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd
    );
    vector!(
        __m512d,
        f64,
        8,
        _mm512_set1_pd,
        _mm512_fmadd_pd,
        _mm512_mul_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd
    );
}
