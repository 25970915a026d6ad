//! The loss of a network in training, in place: replaces the product of the output layer by the
//! derivative of the loss with respect to it.
//!
//! ```text
//! x = pre + b
//! classes    p_j = e^{x_j} / Σ_k e^{x_k}     J = −1/B Σ ln p_label          ∂J/∂x = (p − onehot)/B
//! squares    y = f(x)                        J = 1/B Σ ½ ‖y − t‖²           ∂J/∂x = (y − t) ∘ f'(x)/B
//! bits       y = sigmoid(x)                  J = 1/B Σ softplus(x) − t x    ∂J/∂x = (y − t)/B
//! ```
//!
//! | symbol | argument   | shape                                                                    |
//! |--------|------------|--------------------------------------------------------------------------|
//! |        | `pre`      | `[batch, n]` f32: the product before, `∂J/∂x` after; or that in bf16, in `out` |
//! | `b`    | `bias`     | `[n]` f32                                                                |
//! | `t`    | `target`   | `[batch, n]` f32                                                         |
//! |        | `labels`   | `[batch]` u32 below `n`                                                  |
//! | `B`    | `of`       | rows of the whole minibatch, of which these are all or a rank's part    |
//! |        | `gathered` | `[2, batch]` f64: each row's loss, and its hits or its squared error     |
//!
//! Each row of the minibatch adds to its own entry, so the sums need no atomics and are the same
//! bits in every run and on every device. The caller reads their total, over as many steps as it
//! likes.
//!
//! Source: Bishop, "Pattern Recognition and Machine Learning", 2006, section 5.2. The cross-entropy
//! of grey levels is that of Hinton and Salakhutdinov, "Reducing the dimensionality of data with
//! neural networks", Science 313, 2006; it can reach 0 only if all targets are 0 or 1.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use chandlery_ops::layers::softmax_loss_;
//! # fn main() -> candle::Result<()> {
//! // Two classes that seem equally likely; the first is right.
//! let pre = Tensor::new(&[[1f32, 3.]], &Cpu)?;
//! let bias = Tensor::new(&[2f32, 0.], &Cpu)?;
//! let gathered = Tensor::zeros((2, 1), DType::F64, &Cpu)?;
//! softmax_loss_(&pre, &bias, &Tensor::new(&[0u32], &Cpu)?, 1, &gathered)?;
//! assert_eq!(pre.to_vec2::<f32>()?, [[-0.5, 0.5]]);
//! let [loss, hits] = [0, 1].map(|i| gathered.to_vec2::<f64>().map(|g| g[i][0]));
//! assert!((loss? - 2f64.ln()).abs() < 1e-7 && hits? == 1.);
//! # Ok(()) }
//! ```
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

pub(crate) use cpu::cross_row;

use crate::core::check::{expect, lines, matrix};
use crate::core::op::{Io, Kernel, operands};
use crate::layers::activation::Activation;
use candle::{CpuStorage, D, DType, Result, Tensor};

/// The loss between outputs and targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutputLoss {
    /// Half the squared distance of `f(x)` from the target.
    SquaredError(Activation),
    /// The cross-entropy of targets in `[0, 1]` under `sigmoid(x)`.
    CrossEntropy,
}

/// The loss of a classifier: `pre ← (softmax(pre + bias) − onehot(labels))/of`, and
/// `gathered[0] += −ln p_label`, `gathered[1] += 1` if the label has the largest `p` (ties go to
/// the lowest class).
///
/// A NaN makes the row's loss and derivatives NaN; on a GPU, so does a label that is not below `n`,
/// see [`raise_to_largest_`](crate::core::raise_to_largest_). The result is the same bits on CPU
/// and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, `of` is 0 or, on the CPU, a label is not below `n`.
pub fn softmax_loss_(
    pre: &Tensor,
    bias: &Tensor,
    labels: &Tensor,
    of: usize,
    gathered: &Tensor,
) -> Result<()> {
    const OP: &str = "softmax_loss_";
    let (batch, n) = check(OP, pre, bias, of, gathered)?;
    expect(OP, "labels", labels, &[DType::U32], &[batch])?;
    let io = operands(OP).write("pre", pre).write("gathered", gathered).read("bias", bias);
    io.read("labels", labels).run(&SoftmaxLoss { batch, of, n })
}

/// The loss of a regression or an autoencoder: `pre ← ∂J/∂x`, `gathered[0] +=` the loss of each row
/// and, for either loss, `gathered[1] +=` its squared error.
///
/// A NaN makes the row's sums NaN. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or `of` is 0.
pub fn output_loss_(
    pre: &Tensor,
    bias: &Tensor,
    target: &Tensor,
    loss: OutputLoss,
    of: usize,
    gathered: &Tensor,
) -> Result<()> {
    const OP: &str = "output_loss_";
    let (batch, n) = check(OP, pre, bias, of, gathered)?;
    expect(OP, "target", target, &[DType::F32], &[batch, n])?;
    let op = OutputLossOp { op: OP, loss, batch, of, n, out_line: n, pre_line: None };
    let io = operands(OP).write("pre", pre).write("gathered", gathered).read("bias", bias);
    io.read("target", target).maybe("pre", None).run(&op)
}

/// The same with `out ← ∂J/∂x`, rounded to bf16 for the products that read it, to nearest and ties
/// to even; `pre` keeps the product.
///
/// `out` is bf16 of the shape of `pre`; lines of both are contiguous and may lie apart. The rest is
/// as in [`output_loss_`].
///
/// # Errors
/// When shapes, types or devices do not fit, or `of` is 0.
pub fn output_loss_into_(
    out: &Tensor,
    pre: &Tensor,
    bias: &Tensor,
    target: &Tensor,
    loss: OutputLoss,
    of: usize,
    gathered: &Tensor,
) -> Result<()> {
    const OP: &str = "output_loss_into_";
    let (batch, n) = shape(OP, pre)?;
    check_rest(OP, (batch, n), bias, of, gathered)?;
    expect(OP, "target", target, &[DType::F32], &[batch, n])?;
    let out_line = lines(OP, "out", out, &[DType::BF16], [batch, n])?;
    let pre_line = Some(lines(OP, "pre", pre, &[DType::F32], [batch, n])?);
    let op = OutputLossOp { op: OP, loss, batch, of, n, out_line, pre_line };
    let io = operands(OP).write("out", out).write("gathered", gathered).read("bias", bias);
    io.read("target", target).read("pre", pre).run(&op)
}

/// Derivative, and loss and hits of each row (`[2, batch]` f64), computed with candle's own ops;
/// returns new tensors.
///
/// # Errors
/// When shapes do not fit or a label is not below `n`.
pub fn softmax_loss_reference(pre: &Tensor, bias: &Tensor, labels: &Tensor) -> Result<(Tensor, Tensor)> {
    let (batch, n) = pre.dims2()?;
    let x = pre.broadcast_add(bias)?.to_dtype(DType::F64)?;
    let x = x.broadcast_sub(&x.max_keepdim(1)?)?;
    let e = x.exp()?;
    let sum = e.sum_keepdim(1)?;
    let classes = Tensor::arange(0u32, n as u32, pre.device())?.unsqueeze(0)?;
    let onehot = labels.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(DType::F64)?;
    let delta = ((e.broadcast_div(&sum)? - &onehot)? / batch as f64)?;
    let loss = (sum.log()?.squeeze(1)? - (x.clone() * onehot)?.sum(1)?)?;
    let hits = x.argmax(D::Minus1)?.eq(labels)?.to_dtype(DType::F64)?;
    Ok((delta.to_dtype(DType::F32)?, Tensor::stack(&[loss, hits], 0)?))
}

/// Derivative, and loss and squared error of each row (`[2, batch]` f64), computed with candle's
/// own ops; returns new tensors.
///
/// # Errors
/// When shapes do not fit.
pub fn output_loss_reference(
    pre: &Tensor,
    bias: &Tensor,
    target: &Tensor,
    loss: OutputLoss,
) -> Result<(Tensor, Tensor)> {
    let batch = pre.dim(0)? as f64;
    let x = pre.broadcast_add(bias)?.to_dtype(DType::F64)?;
    let t = target.to_dtype(DType::F64)?;
    let activation = match loss {
        OutputLoss::SquaredError(activation) => activation,
        OutputLoss::CrossEntropy => Activation::Sigmoid,
    };
    let y = activation.apply(&x)?;
    let d = (&y - &t)?;
    let square = d.sqr()?.sum(1)?;
    let (delta, loss) = match loss {
        OutputLoss::SquaredError(_) => ((&d * activation.derivative(&y)?)?, (&square * 0.5)?),
        OutputLoss::CrossEntropy => {
            let softplus = (x.relu()? + (x.abs()?.neg()?.exp()? + 1.)?.log()?)?;
            (d, (softplus - (t * x)?)?.sum(1)?)
        }
    };
    Ok(((delta / batch)?.to_dtype(DType::F32)?, Tensor::stack(&[loss, square], 0)?))
}

/// Checks what both losses share and returns `(batch, n)`, each at least 1.
fn check(op: &str, pre: &Tensor, bias: &Tensor, of: usize, gathered: &Tensor) -> Result<(usize, usize)> {
    let sizes = shape(op, pre)?;
    matrix(op, "pre", "[batch, n]", pre, &[DType::F32])?;
    check_rest(op, sizes, bias, of, gathered)?;
    Ok(sizes)
}

/// `(batch, n)`, each at least 1.
fn shape(op: &str, pre: &Tensor) -> Result<(usize, usize)> {
    match *pre.dims() {
        [batch, n] if batch > 0 && n > 0 => Ok((batch, n)),
        ref got => candle::bail!("{op}: pre must be [batch, n] with at least one entry, got shape {got:?}"),
    }
}

fn check_rest(
    op: &str,
    (batch, n): (usize, usize),
    bias: &Tensor,
    of: usize,
    gathered: &Tensor,
) -> Result<()> {
    if of == 0 {
        candle::bail!("{op}: of must be at least 1, got 0")
    }
    expect(op, "bias", bias, &[DType::F32], &[n])?;
    expect(op, "gathered", gathered, &[DType::F64], &[2, batch])
}

/// A checked [`softmax_loss_`].
struct SoftmaxLoss {
    batch: usize,
    of: usize,
    n: usize,
}

/// A checked [`output_loss_`] or [`output_loss_into_`].
struct OutputLossOp {
    op: &'static str,
    loss: OutputLoss,
    batch: usize,
    of: usize,
    n: usize,
    /// How far lines of what is written are from each other.
    out_line: usize,
    /// The same of the product, where that is kept and what is written is bf16.
    pre_line: Option<usize>,
}

impl Kernel for SoftmaxLoss {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        self.run_cpu(io)
    }

    fn is_serial(&self, _: usize) -> bool {
        self.batch * self.n < cpu::GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.run_cuda(gpu, io)
    }
}

impl Kernel for OutputLossOp {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        self.run_cpu(io)
    }

    fn is_serial(&self, _: usize) -> bool {
        self.batch * self.n < cpu::GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.run_cuda(gpu, io)
    }
}
