//! The objective of a linear classifier and its gradient over all samples, in one pass through them.
//!
//! ```text
//! z_i = W x_i + b      p_i = softmax(z_i)
//! J = −1/n Σ_i ln p_i[y_i]
//! ∂J/∂W = 1/n Σ_i (p_i − onehot(y_i)) x_iᵀ      ∂J/∂b = 1/n Σ_i (p_i − onehot(y_i))
//! ```
//!
//! | symbol | argument                    | shape                                     |
//! |--------|-----------------------------|-------------------------------------------|
//! | `x`    | `x`                         | `[n, n_features]` f32 or f64, as `W`, `b` |
//! | `y`    | `labels`                    | `[n]` u32 below `n_classes`               |
//! | `W`    | `weight`                    | `[n_classes, n_features]`                 |
//! | `b`    | `bias`                      | `[n_classes]`                             |
//! | `J`    | [`SoftmaxObjective::value`] | `[1]` f64                                 |
//!
//! Samples are read once, a block of them at a time, which stays in the cache between the two
//! products. Exponentials and sums over samples of `J` are f64. The same bits on any number of
//! threads.
//!
//! Source: Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::layers::softmax_objective;
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f64, 2.]], &Cpu)?;
//! let (weight, bias) = (Tensor::zeros((2, 2), candle::DType::F64, &Cpu)?, Tensor::new(&[0f64, 0.], &Cpu)?);
//! let of = softmax_objective(&x, &Tensor::new(&[1u32], &Cpu)?, &weight, &bias)?;
//! // Both classes are as likely.
//! assert!((of.value.to_vec1::<f64>()?[0] - 2f64.ln()).abs() < 1e-15);
//! assert_eq!(of.weight.to_vec2::<f64>()?, [[0.5, 1.], [-0.5, -1.]]);
//! assert_eq!(of.bias.to_vec1::<f64>()?, [0.5, -0.5]);
//! # Ok(()) }
//! ```
mod cpu;

use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "softmax_objective";

/// The objective and its gradient.
#[derive(Debug, Clone)]
pub struct SoftmaxObjective {
    /// `J`, f64 `[1]`.
    pub value: Tensor,
    /// `∂J/∂W`, `[n_classes, n_features]`.
    pub weight: Tensor,
    /// `∂J/∂b`, `[n_classes]`.
    pub bias: Tensor,
}

/// The objective of a classifier over rows of the CPU; see the [module](self).
///
/// Cost: `4 n n_features n_classes` FLOP, with classes in fives; reads `x` once. Memory: at most 64
/// gradients.
///
/// # Errors
/// When shapes or types do not fit, there is no sample or no class, a label is not below
/// `n_classes`, or the operands are not on the CPU.
pub fn softmax_objective(
    x: &Tensor,
    labels: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<SoftmaxObjective> {
    let (n, n_features) = matrix(OP, "x", "[n, n_features]", x, &[DType::F32, DType::F64])?;
    let (n_classes, _) = matrix(OP, "weight", "[n_classes, n_features]", weight, &[x.dtype()])?;
    expect(OP, "weight", weight, &[x.dtype()], &[n_classes, n_features])?;
    expect(OP, "bias", bias, &[x.dtype()], &[n_classes])?;
    expect(OP, "labels", labels, &[DType::U32], &[n])?;
    if n == 0 || n_classes == 0 {
        candle::bail!("{OP}: there must be a sample and a class, got {n} and {n_classes}")
    }
    if !x.device().is_cpu() {
        candle::bail!("{OP}: x must be on the CPU, got {:?}; multiply by gemm_ there", x.device().location())
    }
    let of = SoftmaxObjective {
        value: new_tensor(OP, 1, DType::F64, x.device())?,
        weight: new_tensor(OP, (n_classes, n_features), x.dtype(), x.device())?,
        bias: new_tensor(OP, n_classes, x.dtype(), x.device())?,
    };
    let io = operands(OP).write("value", &of.value).write("weight gradient", &of.weight);
    let io = io.write("bias gradient", &of.bias).read("x", x).read("labels", labels);
    let io = io.read("weight", weight).read("bias", bias);
    io.run(&Objective { n_features, n_classes, dtype: x.dtype() })?;
    Ok(of)
}

/// The same by candle's own ops, in f64.
///
/// # Errors
/// When shapes do not fit.
pub fn softmax_objective_reference(
    x: &Tensor,
    labels: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<SoftmaxObjective> {
    let [x, weight, bias] = [x, weight, bias].map(|t| t.to_dtype(DType::F64));
    let (x, n) = (x?, labels.dim(0)? as f64);
    let z = x.matmul(&weight?.t()?)?.broadcast_add(&bias?)?;
    let z = z.broadcast_sub(&z.max_keepdim(1)?)?;
    let log_p = z.broadcast_sub(&z.exp()?.sum_keepdim(1)?.log()?)?;
    let classes = Tensor::arange(0u32, z.dim(1)? as u32, x.device())?.unsqueeze(0)?;
    let onehot = labels.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(DType::F64)?;
    let delta = ((log_p.exp()? - &onehot)? / n)?;
    let value = ((log_p * onehot)?.sum_all()?.reshape(1)? / -n)?;
    Ok(SoftmaxObjective { value, weight: delta.t()?.matmul(&x)?, bias: delta.sum(0)? })
}

/// A checked call.
struct Objective {
    n_features: usize,
    n_classes: usize,
    dtype: DType,
}

impl Kernel for Objective {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            DType::F64 => cpu::run::<f64, 8>(self, io),
            _ => cpu::run::<f32, 16>(self, io),
        }
    }
}
