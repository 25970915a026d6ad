//! The cost of a small sparse autoencoder and its gradient over all rows in one op: for networks
//! that are so small that launches and passes over memory, not arithmetic, take the time.
//!
//! ```text
//! A = σ(X Wᵀ + b)                       features                  ρ̂ = 1/m Σ_rows A
//! H = f(A W'ᵀ + c)                      outputs                   s = β ((1 − ρ)/(1 − ρ̂) − ρ/ρ̂)
//!                                       of ρ̂ and 1 − ρ̂ in KL and s: what is below 1e-30 counts as 1e-30, and has no slope
//! E = (H − X) ∘ f'(H)
//! D = (E W' + s) ∘ A ∘ (1 − A)
//!
//! J  = 1/m Σ ½ (H − X)² + λ/2 (Σ W² + Σ W'²) + β Σ_features KL(ρ‖ρ̂)
//! ∂J/∂W = Dᵀ X/m + λ W,   ∂J/∂W' = Eᵀ A/m + λ W',   ∂J/∂b = Σ_rows D/m,   ∂J/∂c = Σ_rows E/m
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `X` | `rows` | `[m, n_visible]` f32 |
//! | `W W' b c` | `theta`, one after the other | `[n_hidden, n_visible]`, `[n_visible, n_hidden]`, `[n_hidden]`, `[n_visible]`, f32 |
//! | `f` | [`decoder`](SparseCost::decoder) | |
//! | `λ β ρ` | [`weight_decay`](SparseCost::weight_decay), [`sparsity_weight`](SparseCost::sparsity_weight), [`sparsity_target`](SparseCost::sparsity_target) | |
//!
//! On a GPU this is one launch, in which each multiprocessor keeps its rows and both weight
//! matrices in shared memory, see the head of `kernels/layers/sparse_cost.cu`. On the CPU each
//! thread takes some rows through all products while they are in its cache. [`sparse_cost_fits`]
//! says whether a network is small enough.
//!
//! Source: Ng, "Sparse autoencoder", CS294A lecture notes, 2011, section 3.
mod begin;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod parameters;
mod product;
mod reference;
mod shape;
mod terms;

pub use begin::{sparse_begin_, square_parts};
pub use parameters::SparseParameters;
pub use reference::sparse_cost_reference;
pub use terms::{
    SparseParts, divergence_parts, sparse_figures, sparse_figures_of_lines, sparse_figures_of_products,
    sparsity_pull_,
};

use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, operands};
use crate::layers::activation::Activation;
use candle::{CpuStorage, DType, Device, Result, Tensor};

const OP: &str = "sparse_cost_";
/// Entries of [`sparse_cost_`]'s figures.
const FIGURES: usize = 4;

/// A mean activation `ρ̂`, or what it lacks of 1, that is below this counts as this in `KL(ρ‖ρ̂)`,
/// so that a feature that is always off, or always on, does not make the cost infinite; the term
/// then has no slope. Far below what an f32 sigmoid gives of inputs above −69.
pub const LEAST_ACTIVATION: f64 = 1e-30;

/// A sparse autoencoder, and what [`sparse_cost_`] weighs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseCost {
    /// Values of a row, at least 1.
    pub n_visible: usize,
    /// Features, at least 1.
    pub n_hidden: usize,
    /// `f`: [`Activation::Sigmoid`] or [`Activation::Identity`].
    pub decoder: Activation,
    /// `λ`
    pub weight_decay: f64,
    /// `β`
    pub sparsity_weight: f64,
    /// `ρ`, in (0, 1).
    pub sparsity_target: f64,
}

impl SparseCost {
    /// Entries of one weight matrix.
    fn n_weights(&self) -> usize {
        self.n_visible * self.n_hidden
    }

    fn n_parameters(&self) -> usize {
        2 * self.n_weights() + self.n_hidden + self.n_visible
    }

    /// `J`, from `1/m Σ ½ (H − X)²`, `Σ W² + Σ W'²` and `Σ KL`.
    pub fn value(&self, squared_error: f64, squares: f64, divergence: f64) -> f64 {
        squared_error + 0.5 * self.weight_decay * squares + self.sparsity_weight * divergence
    }

    /// `KL(ρ‖mean)` of a mean activation.
    fn divergence(&self, mean: f64) -> f64 {
        let rho = self.sparsity_target;
        // Not `max`, which would lose NaN.
        let bounded = |mean: f64| if mean < LEAST_ACTIVATION { LEAST_ACTIVATION } else { mean };
        rho * (rho / bounded(mean)).ln() + (1. - rho) * ((1. - rho) / bounded(1. - mean)).ln()
    }

    /// `s` of a feature, by its mean activation. A term that is bounded has no slope.
    fn pull(&self, mean: f64) -> f64 {
        let rho = self.sparsity_target;
        let slope = |share: f64, mean: f64| if mean < LEAST_ACTIVATION { 0. } else { share / mean };
        self.sparsity_weight * (slope(1. - rho, 1. - mean) - slope(rho, mean))
    }
}

/// Whether [`sparse_cost_`] is the way for these sizes on `device`: on a GPU, whether the weights
/// and some rows fit the shared memory of a multiprocessor; on a CPU, which takes all, whether the
/// weights fit the cache of a core.
///
/// # Errors
/// When the device fails.
pub fn sparse_cost_fits(device: &Device, n_visible: usize, n_hidden: usize) -> Result<bool> {
    match device {
        Device::Cpu => Ok(cpu::is_fast(n_visible, n_hidden)),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let limits = crate::core::cuda::Gpu::of(device)?.limits();
            Ok(shape::Shape::of(limits, n_visible, n_hidden, 1).is_some())
        }
        _ => Ok(false),
    }
}

/// Writes `J`, `1/m Σ ½ (H − X)²`, `Σ W² + Σ W'²` and `Σ KL` to `figures`, `[4]` f64, and `∂J` to
/// `gradient`, which is laid out as `theta`.
///
/// `rows` is `[m, n_visible]` with at least one row, `theta` and `gradient`
/// `[2 n_visible n_hidden + n_hidden + n_visible]`, all contiguous f32. The same operands give the
/// same bits on one device; CPU and GPU agree to rounding.
///
/// Cost: `10 n_visible n_hidden` FLOP a row; allocates as much as the features of all rows take,
/// and a gradient for each block.
///
/// # Errors
/// When shapes, types or devices do not fit, the decoder is another, or the network is too large
/// for this op on the GPU ([`sparse_cost_fits`]).
pub fn sparse_cost_(
    figures: &Tensor,
    gradient: &Tensor,
    theta: &Tensor,
    rows: &Tensor,
    cost: SparseCost,
) -> Result<()> {
    let (m, n_visible) = matrix(OP, "rows", "[m, n_visible]", rows, &[DType::F32])?;
    if m == 0 || cost.n_hidden == 0 || n_visible == 0 || n_visible != cost.n_visible {
        candle::bail!(
            "{OP}: rows must be [m, {}] with at least one row, for at least one feature, got {:?} for {} features",
            cost.n_visible,
            rows.dims(),
            cost.n_hidden
        )
    }
    if !matches!(cost.decoder, Activation::Sigmoid | Activation::Identity) {
        candle::bail!("{OP}: decoder must be Sigmoid or Identity, got {:?}", cost.decoder)
    }
    expect(OP, "figures", figures, &[DType::F64], &[FIGURES])?;
    for (name, t) in [("theta", theta), ("gradient", gradient)] {
        expect(OP, name, t, &[DType::F32], &[cost.n_parameters()])?;
    }
    let op = OfRows { cost, m };
    let written = operands(OP).write("figures", figures).write("gradient", gradient);
    written.read("theta", theta).read("rows", rows).run(&op)
}

/// A checked [`sparse_cost_`] over `m` rows.
struct OfRows {
    cost: SparseCost,
    m: usize,
}

impl Kernel for OfRows {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([figures, gradient], [theta, rows]) = io.parts()?;
        cpu::run(self, figures.elements()?, gradient.elements()?, theta.elements()?, rows.elements()?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        cuda::run(self, gpu, io)
    }
}
