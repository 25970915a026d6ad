//! ReLU with a penalty on the sum of latents, each times the length of its decoder row.
//!
//! ```text
//! L = 1/m Σ_rows ‖x̂ − y‖² + λ Σ_j z_j ‖d_j‖
//! ∂L/∂π_j = ∂L/∂x̂ · d_j + λ/m ‖d_j‖  for active j,   ∂L/∂‖d_j‖ = λ/m Σ_rows z_j
//! ```
use super::pass::{Block, LENGTHS, Pass, Terms};
use candle::{Result, Tensor};
use chandlery_ops::codes::SparseCodes;

/// Of all that are above 0.
pub(super) fn terms(pass: &Pass<'_>) -> Result<Terms> {
    let codes = pass.active(&pass.numbers(&[0.])?)?;
    let left = pass.left_by_all(&codes)?;
    let Penalised { gradient, sums, loss } = penalised(pass, &codes, &codes.values)?;
    let pre = (pass.at_values(&codes, &left.errors, &[codes.n_atoms])? + gradient)?;
    let block = Block { codes, pre, errors: left.errors.clone(), fires: true, sums };
    Ok(Terms {
        blocks: vec![block],
        squares: left.squares,
        beside: left.errors,
        residual: left.residual,
        loss: (left.loss + loss)?,
        cut: None,
    })
}

/// The penalty `λ Σ_j v_j ‖d_j‖` of values at entries that all are above 0.
pub(super) struct Penalised {
    /// At the values, 0 beyond the counts.
    pub gradient: Tensor,
    /// At the lengths of decoder rows, where they are free.
    pub sums: Vec<(&'static str, Tensor)>,
    pub loss: Tensor,
}

pub(super) fn penalised(pass: &Pass<'_>, codes: &SparseCodes, values: &Tensor) -> Result<Penalised> {
    let factor = pass.moment.sparsity / pass.batch();
    let there = pass.there(codes)?;
    let lengths = pass.lengths(codes)?;
    let gradient = match &lengths {
        Some(lengths) => (&there * lengths)?,
        None => there,
    };
    let loss = (pass.mean(&(values * &gradient)?)? * pass.moment.sparsity)?;
    let sums = match lengths {
        Some(_) => vec![(LENGTHS, (values * factor)?)],
        None => vec![],
    };
    Ok(Penalised { gradient: (gradient * factor)?, sums, loss })
}
