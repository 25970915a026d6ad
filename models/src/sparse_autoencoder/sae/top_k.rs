//! TopK and BatchTopK.
//!
//! ```text
//! L = 1/m Σ_rows ‖x̂ − y‖²,   ∂L/∂π_j = ∂L/∂x̂ · d_j  for active j
//! ```
//!
//! With multi-TopK, `1/8` of the loss of the `4k` largest is added, so that codes of more latents
//! than `k` are good ones too (Gao et al. 2024, section 4.1 and appendix A).
use super::largest::MULTI;
use super::pass::{Block, Left, Pass, Terms};
use candle::Result;
use chandlery_ops::codes::SparseCodes;

/// The weight of the loss of multi-TopK.
const MULTI_WEIGHT: f64 = 1. / 8.;

/// The block of codes that all are above 0, and what they leave.
fn block(pass: &Pass<'_>, codes: SparseCodes, weight: f64, fires: bool) -> Result<(Block, Left)> {
    let all = [codes.n_atoms];
    let left = pass.left(&pass.y, &codes, &all, weight)?;
    let pre = pass.at_values(&codes, &left.errors, &all)?;
    let errors = left.errors.clone();
    Ok((Block { codes, pre, errors, fires, sums: vec![] }, left))
}

/// Of the `k` largest of each row.
pub(super) fn of_rows(pass: &Pass<'_>) -> Result<Terms> {
    let k = pass.moment.k;
    let (first, left) = block(pass, pass.largest(k)?, 1., true)?;
    let mut terms = Terms {
        blocks: vec![first],
        squares: left.squares,
        beside: left.errors,
        residual: left.residual,
        loss: left.loss,
        cut: None,
    };
    if pass.config.multi_top_k {
        let (more, left) = block(pass, pass.largest(MULTI * k)?, MULTI_WEIGHT, false)?;
        terms.blocks.push(more);
        terms.beside = (terms.beside + left.errors)?;
        terms.loss = (terms.loss + left.loss)?;
    }
    Ok(terms)
}

/// Of the largest of the minibatch.
pub(super) fn of_batch(pass: &Pass<'_>) -> Result<Terms> {
    let (codes, cut) = pass.largest_of_batch()?;
    let (block, left) = block(pass, codes, 1., true)?;
    Ok(Terms {
        blocks: vec![block],
        squares: left.squares,
        beside: left.errors,
        residual: left.residual,
        loss: left.loss,
        cut: Some(cut),
    })
}
