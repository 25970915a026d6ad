//! Many steps of a denoising autoencoder in one op: for networks that are so small that launches,
//! not arithmetic, take the time.
//!
//! ```text
//! corrupt        x̃  = corrupted x
//! hidden         y  = σ(W x̃ + b)
//! reconstruct    z  = σ(Wᵀ y + c),   LN = x − z
//! visible bias   c += ε/M Σ LN
//! hidden bias    b += ε/M Σ LH,      LH = y (1 − y) W LN
//! weights        W ← (1 − ελ) W + ε/M Σ (LH x̃ᵀ + y LNᵀ)
//! ```
//!
//! Sums run over the `M` rows of a minibatch; all gradients are those of the parameters before the
//! step. This descends on the cross-entropy `−Σ x ln z + (1 − x) ln(1 − z)`.
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `W b c` | `params`: [`DenoisingParams`] | `[n_hidden, n_visible]`, `[n_hidden]`, `[n_visible]`, f32 |
//! | `x` | `rows`, times [`scale`](DenoisingSteps::scale) | `[n_steps · M, n_visible]`, u8 or f32 |
//! | `ε` | [`learning_rate`](DenoisingSteps::learning_rate) | |
//! | `λ` | [`weight_decay`](DenoisingSteps::weight_decay) | |
//! | `M` | [`batch`](DenoisingSteps::batch) | |
//!
//! Step `t` draws from Philox block `offset + counter + t · ⌈M n_visible / 4⌉` on, numbered as in
//! [`corrupt`](crate::layers::corrupt()).
//!
//! On a GPU of capability 9.0 or later the weights stay in the registers of the multiprocessors
//! from the first step to the last, see the head of `kernels/layers/denoising_steps.cu`;
//! [`denoising_steps_fit`] says whether a network is small enough.
//!
//! Source: Kumar and Giaquinto, "Parallelizing denoising autoencoders", algorithm 1 and its six
//! modules.
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
mod shape;

pub use reference::denoising_steps_reference;

use crate::core::Draws;
use crate::core::check::{expect, expect_layout, matrix};
use crate::core::draw::Place;
use crate::core::op::{Io, Kernel, operands};
use crate::layers::Corruption;
use candle::{CpuStorage, DType, Device, Result, Tensor};

const OP: &str = "denoising_steps_";
/// Columns of the figures: the most blocks of a launch.
pub const DENOISING_FIGURES: usize = 1024;

/// The parameters of a denoising autoencoder with tied weights, in one buffer that begins with `W`.
#[derive(Debug, Clone, Copy)]
pub struct DenoisingParams<'a> {
    /// f32, contiguous, of one dimension.
    pub values: &'a Tensor,
    /// Visible units.
    pub n_visible: usize,
    /// Hidden units.
    pub n_hidden: usize,
    /// Where `b` begins, not before the end of `W`.
    pub bias_at: usize,
    /// Where `c` begins, not before the end of `b`.
    pub visible_bias_at: usize,
}

impl DenoisingParams<'_> {
    /// Refuses values that do not hold the parameters.
    pub(super) fn check(&self, op: &str) -> Result<()> {
        let Self { values, n_visible, n_hidden, bias_at, visible_bias_at } = *self;
        expect_layout(op, "params.values", values, &[DType::F32])?;
        let ends = [n_hidden * n_visible, bias_at + n_hidden, visible_bias_at + n_visible];
        let apart = ends[0] <= bias_at && ends[1] <= visible_bias_at && ends[2] <= values.elem_count();
        if values.rank() != 1 || !apart {
            candle::bail!(
                "{op}: params.values must hold W, b and c one after the other, got shape {:?} for [{n_hidden}, {n_visible}] with b at {bias_at} and c at {visible_bias_at}",
                values.dims()
            )
        }
        Ok(())
    }
}

/// What [`denoising_steps_`] does with each minibatch.
#[derive(Debug, Clone, Copy)]
pub struct DenoisingSteps {
    /// Rows of a minibatch, at least 1.
    pub batch: usize,
    /// Learning rate, divided by the rows of a minibatch in the op.
    pub learning_rate: f32,
    /// L2 decay of the weights, not of the biases; at least 0.
    pub weight_decay: f32,
    /// Factor that makes rows values in [0, 1]: 1/255 for bytes.
    pub scale: f32,
    /// What is done to the rows that the hidden units see.
    pub corruption: Corruption,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    n_visible: usize,
    n_hidden: usize,
    batch: usize,
    n_steps: usize,
}

/// The op with what was checked.
struct Steps<'a> {
    sizes: Sizes,
    bias_at: usize,
    visible_bias_at: usize,
    rate: f32,
    /// Share of a weight that the decay leaves.
    keep: f32,
    scale: f32,
    corruption: Corruption,
    place: Place<'a>,
    dtype: DType,
}

/// Whether [`denoising_steps_`] is the way for these sizes on `device`: on a GPU, whether it takes
/// them; on a CPU, which takes all, whether it is faster than general products, which is so with
/// AVX2 and FMA for minibatches of up to 64 rows.
///
/// # Errors
/// When the device fails.
pub fn denoising_steps_fit(device: &Device, n_visible: usize, n_hidden: usize, batch: usize) -> Result<bool> {
    match device {
        Device::Cpu => Ok(crate::core::vector::is_wide() && (1..=64).contains(&batch)),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let sizes = Sizes { n_visible, n_hidden, batch, n_steps: 1 };
            Ok(cuda::shape(&crate::core::cuda::Gpu::of(device)?, sizes)?.is_some())
        }
        _ => {
            let _ = (n_visible, n_hidden, batch);
            Ok(false)
        }
    }
}

/// Updates the parameters by a step for each minibatch of `rows`, in their order, and adds the
/// cross-entropy and the squared error of all reconstructions to the rows of `figures`,
/// `[2, `[`DENOISING_FIGURES`]`]` f64, of which the sums are what counts.
///
/// The same operands give the same bits on one device; CPU and GPU agree to rounding.
///
/// Cost: `10 · n_hidden · n_visible` FLOP a row.
///
/// # Errors
/// When shapes, types or devices do not fit, the number of rows is no multiple of the batch, or the
/// network is too large for this op on the GPU ([`denoising_steps_fit`]), or `draws` is
/// [`Draws::Mode`].
pub fn denoising_steps_(
    params: DenoisingParams<'_>,
    rows: &Tensor,
    figures: &Tensor,
    steps: DenoisingSteps,
    draws: Draws<'_>,
) -> Result<()> {
    let DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at } = params;
    let (n, width) = matrix(OP, "rows", "[n_steps · batch, n_visible]", rows, &[DType::U8, DType::F32])?;
    params.check(OP)?;
    if width != n_visible {
        candle::bail!("{OP}: rows must have {n_visible} columns, one for each visible unit, got {width}")
    }
    expect(OP, "figures", figures, &[DType::F64], &[2, DENOISING_FIGURES])?;
    steps.corruption.validate()?;
    let Some(place) = draws.place(OP, values.device())? else {
        candle::bail!("{OP}: draws must be At or Counter, got Mode, which draws nothing")
    };
    let batch = steps.batch;
    if batch == 0 || !n.is_multiple_of(batch) || n_hidden == 0 || n_visible == 0 {
        candle::bail!(
            "{OP}: rows must be whole minibatches of a network with units, got {n} rows for a batch of {batch} and weights [{n_hidden}, {n_visible}]"
        )
    }
    let sizes = Sizes { n_visible, n_hidden, batch, n_steps: n / batch };
    if sizes.n_steps == 0 {
        return Ok(());
    }
    let op = Steps {
        sizes,
        bias_at,
        visible_bias_at,
        rate: steps.learning_rate,
        keep: 1. - steps.learning_rate * steps.weight_decay,
        scale: steps.scale,
        corruption: steps.corruption,
        place,
        dtype: rows.dtype(),
    };
    let io = operands(OP).write("params.values", values).write("figures", figures);
    io.read("rows", rows).maybe("counter", place.counter).run(&op)
}

impl Kernel for Steps<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([values, figures], [rows, _]) = io.parts()?;
        let (values, figures) = (values.elements::<f32>()?, figures.elements::<f64>()?);
        let mut work = cpu::Work::new(self, values);
        match self.dtype {
            DType::U8 => work.run(rows.elements::<u8>()?, figures),
            _ => work.run(rows.elements::<f32>()?, figures),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        cuda::run(self, gpu, io)
    }
}
