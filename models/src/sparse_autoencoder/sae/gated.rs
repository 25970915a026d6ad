//! Gated latents: which are active, and how much, by two biases of one product.
//!
//! ```text
//! a = W_enc (x − b_dec),   π = a + b_enc,   z = H(π) ReLU(e^r a + b)
//! L = 1/m Σ_rows ‖x̂(z) − y‖² + λ Σ_j ReLU(π_j) ‖d_j‖ + ‖x̂'(ReLU(π)) − y‖²
//! ```
//!
//! `x̂'` has the decoder as it is, without a gradient. Source: Rajamanoharan et al., "Improving
//! dictionary learning with gated sparse autoencoders", 2024, equations 5 to 8.
use super::Sae;
use super::config::{BIAS, MAGNITUDE_BIAS, MAGNITUDE_SCALE};
use super::pass::{Block, Pass, Terms};
use super::relu::{Penalised, penalised};
use candle::{Result, Tensor};
use chandlery_ops::codes::SparseCodes;

/// `e^r a + b` at the entries of codes whose values are `π`.
pub(super) fn magnitudes(sae: &Sae, codes: &SparseCodes) -> Result<Tensor> {
    let at = |name| -> Result<Tensor> {
        let of_latents = sae.other(name)?;
        of_latents.index_select(&codes.indices.flatten_all()?, 0)?.reshape(codes.indices.shape())
    };
    let a = (&codes.values - at(BIAS)?)?;
    let there = codes.mask()?.to_dtype(a.dtype())?;
    ((at(MAGNITUDE_SCALE)?.exp()? * a)? + at(MAGNITUDE_BIAS)?)? * there
}

/// Of all that their gates let through.
pub(super) fn terms(pass: &Pass<'_>) -> Result<Terms> {
    let open = pass.active(&pass.numbers(&[0.])?)?;
    let magnitudes = magnitudes(pass.sae, &open)?;
    let codes = SparseCodes { values: magnitudes.relu()?, ..open.clone() };

    let left = pass.left_by_all(&codes)?;
    let is_on = magnitudes.gt(0f64)?.to_dtype(magnitudes.dtype())?;
    let at_magnitude = (pass.at_values(&codes, &left.errors, &[codes.n_atoms])? * is_on)?;
    let through_gate = pass.left_by_all(&open)?;
    let Penalised { gradient, mut sums, loss } = penalised(pass, &open, &open.values)?;
    let at_gate = (pass.at_values(&open, &through_gate.errors, &[open.n_atoms])? + gradient)?;

    let scale = pass.at(&pass.sae.other(MAGNITUDE_SCALE)?.exp()?, &open)?;
    let of_product = (&at_magnitude * scale)?;
    let a = (&open.values - pass.at(pass.bias()?, &open)?)?;
    sums.push((MAGNITUDE_SCALE, (&of_product * a)?));
    sums.push((MAGNITUDE_BIAS, at_magnitude));
    // The bias of the gate has the gradient at the gate alone, the product both.
    sums.push((BIAS, at_gate.clone()));
    let loss = ((&left.loss + through_gate.loss)? + loss)?;
    let block = Block { pre: (at_gate + of_product)?, codes, errors: left.errors.clone(), fires: true, sums };
    Ok(Terms {
        blocks: vec![block],
        squares: left.squares,
        beside: left.errors,
        residual: left.residual,
        loss,
        cut: None,
    })
}
