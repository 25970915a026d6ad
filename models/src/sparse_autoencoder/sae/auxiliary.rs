//! AuxK: dead latents reconstruct what the others leave.
//!
//! ```text
//! L' = α/m Σ_rows ‖e − Σ_{j ∈ A} π_j d_j‖²,   e = y − x̂ without gradient
//! ```
//!
//! `A` are the `k'` largest of the dead latents of a row, those above 0. `α` is smaller in
//! proportion where fewer than `k'` are dead. Source: Gao et al. 2024, appendix A.2; the proportion
//! is sparsify's.
use super::pass::{Block, Pass, Terms};
use candle::{Result, Tensor};
use chandlery_ops::codes::top_k;

/// Adds the term of the latents `dead`, u32, ascending.
pub(super) fn add(pass: &Pass<'_>, terms: &mut Terms, dead: &Tensor) -> Result<()> {
    let (k, n) = (pass.config.aux_k, dead.elem_count());
    if k == 0 || n == 0 {
        return Ok(());
    }
    let weight = pass.config.aux_weight * (n as f64 / k as f64).min(1.);
    let codes = top_k(&pass.products, pass.bias()?, k, Some(dead))?;
    let all = [codes.n_atoms];
    let left = pass.left(&terms.residual, &codes, &all, weight)?;
    let pre = pass.at_values(&codes, &left.errors, &all)?;
    terms.loss = (&terms.loss + left.loss)?;
    terms.blocks.push(Block { codes, pre, errors: left.errors, fires: false, sums: vec![] });
    Ok(())
}
