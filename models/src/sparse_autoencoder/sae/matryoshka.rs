//! Matryoshka: nested prefixes of the latents, each with its own reconstruction.
//!
//! ```text
//! L = 1/mP Σ_rows Σ_p ‖x̂_p − y‖²,   x̂_p = Σ_{j < m_p} z_j d_j
//! ∂L/∂z_j = g_p · d_j,   g_p = Σ_{q ≥ p} ∂L/∂x̂_q,   p the first prefix with latent j
//! ```
use super::pass::{Block, Pass, Terms};
use candle::Result;

/// Of the largest of the minibatch, by prefixes.
pub(super) fn terms(pass: &Pass<'_>, prefixes: &[usize]) -> Result<Terms> {
    let (codes, cut) = pass.largest_of_batch()?;
    let left = pass.left(&pass.y, &codes, prefixes, 1. / prefixes.len() as f64)?;
    let pre = pass.at_values(&codes, &left.errors, prefixes)?;
    // The bias is in all of them, as the first group of latents is.
    let beside = left.errors.narrow(0, 0, pass.x.dim(0)?)?;
    Ok(Terms {
        blocks: vec![Block { codes, pre, errors: left.errors, fires: true, sums: vec![] }],
        squares: left.squares,
        beside,
        residual: left.residual,
        loss: left.loss,
        cut: Some(cut),
    })
}
