//! Matryoshka: nested prefixes of the latents, each with its own reconstruction.
//!
//! ```text
//! L = 1/mP Σ_rows Σ_p ‖x̂_p − y‖²,   x̂_p = Σ_{j < m_p} z_j d_j
//! ∂L/∂z_j = g_p · d_j,   g_p = Σ_{q ≥ p} ∂L/∂x̂_q,   p the first prefix with latent j
//! ```
use super::pass::{Block, Left, Pass, Terms};
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
    let mut sums: Option<Left> = None;
    let mut squares = None;
    let of_y = left.first().map(|left| left.squares.get(1)).transpose()?;
    for (codes, left) in parts.into_iter().zip(left).rev() {
        squares.get_or_insert_with(|| left.squares.clone());
        let left = match sums {
            Some(sums) => {
                Left { errors: (sums.errors + left.errors)?, loss: (sums.loss + left.loss)?, ..left }
            }
            None => left,
        };
        let pre = pass.at_values(&codes, &left.errors)?;
        blocks.push(Block { codes, pre, errors: left.errors.clone(), fires: true, sums: vec![] });
        sums = Some(left);
    }
    let (Some(Left { errors, loss, .. }), Some(squares), Some(of_y)) = (sums, squares, of_y) else {
        candle::bail!("Sae: there must be at least one prefix")
    };
    let squares = [squares.get(0)?, of_y];
    Ok(Terms { blocks, beside: errors, residual, squares, loss, cut: Some(cut) })
}
