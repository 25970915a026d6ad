//! JumpReLU: thresholds that are learned by straight-through estimators.
//!
//! ```text
//! z = π H(π − θ),   K(u) = 1 for |u| < ½, else 0
//! ∂z/∂π := H(π − θ),   ∂z/∂θ := −θ/ε K((π − θ)/ε),   ∂H(π − θ)/∂θ := −1/ε K((π − θ)/ε)
//! step   L = 1/m Σ_rows ‖x̂ − y‖² + λ Σ_j H(π_j − θ_j)
//! tanh   L = 1/m Σ_rows ‖x̂ − y‖² + λ Σ_j tanh(c z_j ‖d_j‖)
//! ```
//!
//! Sources: Rajamanoharan et al., "Jumping ahead: improving reconstruction fidelity with JumpReLU
//! sparse autoencoders", 2024, equations 9 to 12; Conerly et al., "Dictionary learning optimization
//! techniques", 2025 (tanh).
use super::config::THRESHOLD;
use super::loss_config::Penalty;
use super::pass::{Block, LENGTHS, Pass, Terms};
use candle::Result;
use chandlery_ops::codes::SparseCodes;

/// Of all that are above their thresholds, and of those within half a bandwidth of them.
pub(super) fn terms(pass: &Pass<'_>) -> Result<Terms> {
    let (threshold, width) = (pass.sae.other(THRESHOLD)?, pass.config.bandwidth);
    let near = pass.active(&(threshold - 0.5 * width)?)?;
    let dtype = near.values.dtype();
    let theta = pass.at(threshold, &near)?;
    let there = pass.there(&near)?;
    let is_on = (near.values.gt(&theta)?.to_dtype(dtype)? * &there)?;
    let in_window = ((&near.values - &theta)?.abs()?.lt(0.5 * width)?.to_dtype(dtype)? * &there)?;
    let codes = SparseCodes { values: (&near.values * &is_on)?, ..near };

    let left = pass.left_by_all(&codes)?;
    let mut at_values = pass.at_values(&codes, &left.errors, &[codes.n_atoms])?;
    let factor = pass.moment.sparsity / pass.batch();
    let mut sums = vec![];
    let (penalty, at_step) = match pass.config.penalty {
        Penalty::Step => (pass.mean(&is_on)?, factor),
        Penalty::Tanh { scale } => {
            let lengths = pass.lengths(&codes)?;
            let scales = match &lengths {
                Some(lengths) => (lengths * scale)?,
                None => there.affine(0., scale)?,
            };
            let tanh = (&codes.values * &scales)?.tanh()?;
            let slope = (tanh.sqr()?.affine(-factor, factor)? * &there)?;
            if lengths.is_some() {
                sums.push((LENGTHS, ((&slope * &codes.values)? * scale)?));
            }
            at_values = (at_values + (slope * scales)?)?;
            (pass.mean(&tanh)?, 0.)
        }
    };
    let at_threshold = ((&at_values * theta)? + at_step)?;
    sums.push((THRESHOLD, ((at_threshold * in_window)? * (-1. / width))?));
    let loss = (&left.loss + (penalty * pass.moment.sparsity)?)?;
    let block = Block { pre: (at_values * is_on)?, codes, errors: left.errors.clone(), fires: true, sums };
    Ok(Terms {
        blocks: vec![block],
        squares: left.squares,
        beside: left.errors,
        residual: left.residual,
        loss,
        cut: None,
    })
}
