//! The lasso of signals with missing samples, from the dictionary itself.
use super::cpu::{MASKED as OP, Masked};
use super::{LassoOptions, LassoReport};
use crate::core::check::{expect, matrix};
use candle::{DType, Result, Tensor};

/// Signals with missing samples, and the dictionary that they are coded over.
#[derive(Debug, Clone, Copy)]
pub struct MaskedSignals<'a> {
    /// `B`, `[n, p]`, f32 or f64
    pub dictionary: &'a Tensor,
    /// `[m, p]`, of the same type; values that the mask leaves out are never read
    pub signals: &'a Tensor,
    /// u8 `[m, p]`: 0 where a sample is missing
    pub mask: &'a Tensor,
    /// `λ`, added to the diagonal of the Gram matrix, at least 0
    pub ridge: f64,
}

/// [`lasso_`](super::lasso_) of each signal with the Gram matrix of the samples that it has, on the
/// CPU.
///
/// `activations` `[m, n]` is the start and receives the solution; `penalties` is `[n]`, at least 0.
/// All are contiguous.
///
/// Cost for a signal of `k` observed samples, for whose solution `s` atoms come into the support:
/// `2 k n (s + 2)` FLOP and the solver, which makes no other row of the Gram matrix. Memory of each
/// thread: those rows, and both the dictionary and its squares once.
///
/// # Errors
/// As [`lasso_`](super::lasso_), and on another device than the CPU.
pub fn lasso_masked_(
    activations: &Tensor,
    of: MaskedSignals<'_>,
    penalties: &Tensor,
    options: &LassoOptions,
) -> Result<LassoReport> {
    let (m, n) = matrix(OP, "activations", "[n_samples, n_atoms]", activations, &[DType::F32, DType::F64])?;
    let (dtype, device) = (activations.dtype(), activations.device());
    let (_, p) = matrix(OP, "dictionary", "[n_atoms, n_features]", of.dictionary, &[dtype])?;
    expect(OP, "dictionary", of.dictionary, &[dtype], &[n, p])?;
    expect(OP, "signals", of.signals, &[dtype], &[m, p])?;
    expect(OP, "mask", of.mask, &[DType::U8], &[m, p])?;
    expect(OP, "penalties", penalties, &[dtype], &[n])?;
    options.check()?;
    if !device.is_cpu() {
        candle::bail!(
            "{OP}: activations must be on the CPU, got {:?}; make the Gram matrices and call lasso_",
            device.location()
        )
    }
    if n == 0 || p == 0 || !(of.ridge.is_finite() && of.ridge >= 0.) {
        candle::bail!(
            "{OP}: dictionary must have an atom and a feature, and ridge be a finite number of at least 0, got {n}, {p} and {}",
            of.ridge
        )
    }
    let report = LassoReport::new(OP, activations)?;
    if m > 0 {
        let written = report.operands(OP, activations);
        let read = written.read("dictionary", of.dictionary).read("signals", of.signals);
        let masked = Masked { n, p, ridge: of.ridge, dtype, options: *options };
        read.read("mask", of.mask).read("penalties", penalties).run(&masked)?;
    }
    Ok(report)
}
