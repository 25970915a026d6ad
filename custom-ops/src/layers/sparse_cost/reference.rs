//! The same computed with candle's own ops.
use super::{LEAST_ACTIVATION, SparseCost};
use crate::layers::activation::Activation;
use candle::{DType, Result, Tensor};

/// Figures, `[4]` f64, and gradient, f64, of [`sparse_cost_`](super::sparse_cost_), computed with
/// candle's own ops in f64.
///
/// # Errors
/// When shapes do not fit.
pub fn sparse_cost_reference(theta: &Tensor, rows: &Tensor, cost: SparseCost) -> Result<(Tensor, Tensor)> {
    let SparseCost { n_visible: v, n_hidden: h, .. } = cost;
    let (theta, x) = (theta.to_dtype(DType::F64)?, rows.to_dtype(DType::F64)?);
    let (n, m) = (v * h, x.dim(0)? as f64);
    let weight = theta.narrow(0, 0, n)?.reshape((h, v))?;
    let decoder = theta.narrow(0, n, n)?.reshape((v, h))?;
    let a = x.matmul(&weight.t()?)?.broadcast_add(&theta.narrow(0, 2 * n, h)?)?;
    let a = Activation::Sigmoid.apply(&a)?;
    let out = a.matmul(&decoder.t()?)?.broadcast_add(&theta.narrow(0, 2 * n + h, v)?)?;
    let out = cost.decoder.apply(&out)?;

    let rho = cost.sparsity_target;
    let mean = (a.sum(0)? / m)?;
    let rest = mean.affine(-1., 1.)?;
    let log = |t: &Tensor| t.maximum(LEAST_ACTIVATION)?.log();
    let slope =
        |t: &Tensor| t.maximum(LEAST_ACTIVATION)?.recip()? * t.ge(LEAST_ACTIVATION)?.to_dtype(DType::F64)?;
    let divergence = log(&mean)?.affine(-rho, rho * rho.ln())?;
    let divergence = (divergence + log(&rest)?.affine(rho - 1., (1. - rho) * (1. - rho).ln())?)?.sum_all()?;
    let pull = ((slope(&rest)? * (1. - rho))? - (slope(&mean)? * rho)?)?;
    let pull = (pull * cost.sparsity_weight)?;

    let apart = (&out - &x)?;
    let error = (&apart * cost.decoder.derivative(&out)?)?;
    let delta = error.matmul(&decoder)?.broadcast_add(&pull)?;
    let delta = (delta * Activation::Sigmoid.derivative(&a)?)?;
    let decayed = |of_rows: Tensor, w: &Tensor| (of_rows / m)? + (w * cost.weight_decay)?;
    let parts = [
        decayed(delta.t()?.matmul(&x)?, &weight)?.flatten_all()?,
        decayed(error.t()?.matmul(&a)?, &decoder)?.flatten_all()?,
        (delta.sum(0)? / m)?,
        (error.sum(0)? / m)?,
    ];

    let squares = (apart.sqr()?.sum_all()? * (0.5 / m))?;
    let weights = theta.narrow(0, 0, 2 * n)?.sqr()?.sum_all()?;
    let value =
        ((&squares + (&weights * (0.5 * cost.weight_decay))?)? + (&divergence * cost.sparsity_weight)?)?;
    Ok((Tensor::stack(&[value, squares, weights, divergence], 0)?, Tensor::cat(&parts, 0)?))
}
