//! AuxK: dead latents reconstruct what the others leave.
//!
//! ```text
//! L' = α/m Σ_rows ‖e − Σ_{j ∈ A} π_j d_j‖²,   e = y − x̂ without gradient
//! ```
//!
//! `A` are the `k'` largest of the dead latents of a row, those above 0. `α` is smaller in
//! proportion where fewer than `k'` are dead. Source: Gao et al. 2024, appendix A.2; the proportion
//! is sparsify's.
use super::largest::Dead;
use super::pass::{Block, Pass, Terms};
use candle::Result;

/// Adds the term of latents that are dead.
pub(super) fn add(pass: &Pass<'_>, terms: &mut Terms, dead: &Dead) -> Result<()> {
    let (k, n) = (pass.config.aux_k, dead.n);
    if k == 0 || n == 0 {
        return Ok(());
    }
    let weight = pass.config.aux_weight * (n as f64 / k as f64).min(1.);
    let codes = pass.largest_of_dead(dead)?;
    let all = [codes.n_atoms];
    let left = pass.left(&terms.residual, &codes, &all, weight)?;
    let pre = pass.at_values(&codes, &left.errors, &all)?;
    terms.loss = (&terms.loss + left.loss)?;
    terms.blocks.push(Block { codes, pre, errors: left.errors, fires: false, sums: vec![] });
    Ok(())
}
