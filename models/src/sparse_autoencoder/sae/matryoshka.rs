//! Matryoshka: nested prefixes of the latents, each with its own reconstruction.
//!
//! ```text
//! L = 1/mP Σ_rows Σ_p ‖x̂_p − y‖²,   x̂_p = Σ_{j < m_p} z_j d_j
//! ∂L/∂z_j = g_p · d_j,   g_p = Σ_{q ≥ p} ∂L/∂x̂_q,   p the first prefix with latent j
//! ```
use super::pass::{Block, Pass, Terms};
use super::top_k::codes_of_batch;
use candle::Result;

/// Of the largest of the minibatch, by prefixes.
pub(super) fn terms(pass: &Pass<'_>, prefixes: &[usize]) -> Result<Terms> {
    let (codes, cut) = codes_of_batch(pass)?;
    let weight = 1. / prefixes.len() as f64;
    let mut residual = pass.y.clone();
    let mut left = Vec::with_capacity(prefixes.len());
    let parts = codes.parted(prefixes)?;
    for part in &parts {
        let this = pass.left(&residual, part, weight)?;
        residual = this.residual.clone();
        left.push(this);
    }
    // From the last prefix to the first, the gradient at the reconstructions with its latents.
    let mut blocks = Vec::with_capacity(parts.len());
    let (mut errors, mut loss) =
        (pass.y.zeros_like()?, pass.numbers(&[0.])?.to_dtype(candle::DType::F64)?.squeeze(0)?);
    for (codes, left) in parts.into_iter().zip(left).rev() {
        errors = (errors + left.errors)?;
        loss = (loss + left.loss)?;
        let pre = pass.at_values(&codes, &errors)?;
        blocks.push(Block { codes, pre, errors: errors.clone(), fires: true, sums: vec![] });
    }
    Ok(Terms { blocks, beside: errors, residual, loss, cut: Some(cut) })
}
