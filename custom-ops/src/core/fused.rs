//! `a·b + c` in the inner loops of the CPU: rounded once, in one instruction, where the processor
//! has it.
//!
//! A loop is compiled for several processors by `multiversion`; [`fused!`] says inside such a
//! function whether the version at hand is for processors with the instruction, if its list of
//! features names `fma`. Without the question, `mul_add` would call a slow function on those that
//! lack it.
//!
//! The CPU ops that have a CUDA twin with the same bits do not use it
//! ([`math`](crate::core::math)).
use candle::WithDType;

/// f32 or f64.
pub(crate) trait Fused: WithDType {
    /// `self · factor + term`, rounded once.
    fn fused(self, factor: Self, term: Self) -> Self;
}

impl Fused for f32 {
    #[inline(always)]
    fn fused(self, factor: Self, term: Self) -> Self {
        self.mul_add(factor, term)
    }
}

impl Fused for f64 {
    #[inline(always)]
    fn fused(self, factor: Self, term: Self) -> Self {
        self.mul_add(factor, term)
    }
}

/// `a·b + c`; `FUSED` is what [`fused!`] says in the calling function.
#[inline(always)]
pub(crate) fn fma<T: Fused, const FUSED: bool>(a: T, b: T, c: T) -> T {
    if FUSED { a.fused(b, c) } else { a * b + c }
}

/// Whether the version of a `multiversion` function that is being compiled is for processors with a
/// fused `a·b + c`: a constant.
macro_rules! fused {
    () => {
        multiversion::target::target_cfg_f!(target_feature = "fma") || cfg!(target_arch = "aarch64")
    };
}
pub(crate) use fused;

#[cfg(test)]
mod tests {
    use super::fma;
    use multiversion::multiversion;

    #[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
    fn is_fused() -> (bool, f32) {
        const FUSED: bool = fused!();
        let x = 1. + f32::EPSILON;
        (FUSED, fma::<f32, FUSED>(x, x, -1. - 2. * f32::EPSILON))
    }

    #[test]
    fn products_keep_their_last_bits_where_the_processor_can() {
        let (fused, rest) = is_fused();
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            fused,
            std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        );
        // (1 + ε)² = 1 + 2ε + ε²
        assert_eq!(rest, if fused { f32::EPSILON * f32::EPSILON } else { 0. });
    }

    #[test]
    fn two_roundings_are_what_other_processors_get() {
        assert_eq!(fma::<f64, false>(3., 5., 7.), 22.);
        let x = 1. + f64::EPSILON;
        assert_eq!(fma::<f64, false>(x, x, -1. - 2. * f64::EPSILON), 0.);
    }
}
