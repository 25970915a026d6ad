//! The likelihood of rows under an RBM, and the partition function that it needs.
//!
//! ```text
//! p(v) = e^−F(v) / Z          Z = Σ_v e^−F(v), an integral over real-valued units
//! ⟨ln p(v)⟩ = −⟨F(v)⟩ − ln Z
//! ```
//!
//! | `ln Z` | by | costs |
//! |---|---|---|
//! | exact, [`Rbm::exact_log_z`] | a sum over the states of the smaller side | `2^units`, at most 25 units |
//! | from below, [`Ais::forward`] | annealing from independent units to the RBM | chains × temperatures |
//! | from above, [`Ais::reverse`] | annealing from samples of the RBM back to independent units | the same |
//!
//! The mean of a forward run's weights is an unbiased estimate of `Z/Z_A`, so its logarithm is too
//! low on average (Jensen) and the likelihood too high; chains that miss a mode have the same
//! effect. A reverse run has the opposite error if its starting states are samples of the RBM. If
//! the two intervals overlap, both estimates are credible.
//!
//! All of it is computed in f64; hidden units must be binary.
//!
//! Sources: Neal, "Annealed importance sampling", Statistics and Computing 11, 2001; Salakhutdinov
//! and Murray, "On the quantitative analysis of deep belief networks", ICML 2008; Burda, Grosse and
//! Salakhutdinov, "Accurate and conservative estimates of MRF log-likelihood using reverse
//! annealing", AISTATS 2015.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use chandlery::rbm::likelihood::{Ais, AisConfig, Estimate};
//! use chandlery::rbm::{Rbm, RbmConfig};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! // Without weights the units are independent: Z = (1 + e^0)² (1 + e^1)³.
//! let weight = Tensor::zeros((2, 3), DType::F32, &Cpu)?;
//! let (bias, visible_bias) = (Tensor::zeros(2, DType::F32, &Cpu)?, Tensor::ones(3, DType::F32, &Cpu)?);
//! let rbm = Rbm::from_tensors(RbmConfig::new(3, 2), weight, bias, visible_bias, None)?;
//! let exact = rbm.exact_log_z(&mut |_, _| {})?;
//! assert!((exact - 2. * 2f64.ln() - 3. * 1f64.exp().ln_1p()).abs() < 1e-12);
//! // The row 111 has p = sigmoid(1)³.
//! let likelihood = rbm.log_likelihood(&Tensor::ones((1, 3), DType::F32, &Cpu)?, &Estimate::exact(exact))?;
//! assert!((likelihood.value + 3. * (-1f64).exp().ln_1p()).abs() < 1e-12);
//! // Annealing from other biases arrives at the same Z.
//! let config = AisConfig { n_chains: 500, stages: AisConfig::stages(200), ..AisConfig::default() };
//! let ais = Ais::new(&rbm, &Tensor::zeros(3, DType::F32, &Cpu)?, config)?;
//! let run = ais.forward(Philox::new(1, 0), &mut |_, _| {})?;
//! assert!(run.log_z.lower < exact && exact < run.log_z.upper);
//! # Ok(()) }
//! ```
mod ais;
mod exact;
mod path;

pub use ais::{Ais, AisConfig, AisRun, Stage};
pub use exact::MAX_EXACT_UNITS;

use super::{HiddenUnit, Rbm};
use crate::check::batch_of;
use crate::model::Model;
use candle::{DType, Result, Tensor};
use serde::Serialize;

/// Rows whose free energies are computed at once.
const BLOCK: usize = 4096;

/// Progress callback of a long computation: the number of steps queued or done, and their total.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// An estimate and its interval of three standard errors to each side. In nats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Lower end; `value` if it is exact, and −∞ if three standard errors exceed the estimated
    /// mean.
    pub lower: f64,
    /// Upper end; `value` if it is exact. It can be +∞ for the same reason as `lower`.
    pub upper: f64,
}

impl Estimate {
    /// A number without error.
    pub const fn exact(value: f64) -> Self {
        Self { value, lower: value, upper: value }
    }

    /// Whether the two intervals overlap.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.lower <= other.upper && other.lower <= self.upper
    }

    /// `x −` this: the bounds change sides.
    pub(crate) fn subtracted_from(&self, x: f64) -> Self {
        Self { value: x - self.value, lower: x - self.upper, upper: x - self.lower }
    }
}

impl Rbm {
    /// The average log-likelihood of rows, `−⟨F(v)⟩ − ln Z`, in nats per row, with the interval of
    /// `log_z`. In f64.
    ///
    /// `v` is `[batch, n_visible]`. For binary units it should hold 0 and 1; for grey levels the
    /// result is not the logarithm of a probability. For real-valued units the result is the
    /// logarithm of a density of the rows as the RBM reads them.
    ///
    /// # Errors
    /// When `v` has another shape or no row, or the hidden units are not binary.
    pub fn log_likelihood(&self, v: &Tensor, log_z: &Estimate) -> Result<Estimate> {
        const OP: &str = "Rbm::log_likelihood";
        crate::check::at_least_one(OP, "rows", batch_of(OP, "v", v, self.config.n_visible)?)?;
        let energies = self.wide_free_energies(OP, v)?;
        let mut sum = 0.;
        for block in &energies {
            sum += block.sum_all()?.to_scalar::<f64>()?;
        }
        Ok(log_z.subtracted_from(-sum / v.dim(0)? as f64))
    }

    /// The log-likelihood of each raw row, `−F(v) − ln Z` in nats: `[batch, n_inputs]` to f64
    /// `[batch]`, given `ln Z`.
    ///
    /// # Errors
    /// As [`log_likelihood`](Self::log_likelihood), and when `rows` have another type or device.
    pub fn score_samples(&self, rows: &Tensor, log_z: f64) -> Result<Tensor> {
        const OP: &str = "Rbm::score_samples";
        let v = self.prepare(rows)?;
        crate::check::at_least_one(OP, "rows", batch_of(OP, "v", &v, self.config.n_visible)?)?;
        Tensor::cat(&self.wide_free_energies(OP, &v)?, 0)?.affine(-1., -log_z)
    }

    /// The free energies of rows in f64, in blocks.
    fn wide_free_energies(&self, op: &str, v: &Tensor) -> Result<Vec<Tensor>> {
        self.must_be_binary(op)?;
        let (n, wide) = (v.dim(0)?, self.to_dtype(DType::F64)?);
        let block =
            |start: usize| wide.free_energy(&v.narrow(0, start, BLOCK.min(n - start))?.to_dtype(DType::F64)?);
        (0..n).step_by(BLOCK).map(block).collect()
    }

    /// Sums over hidden units have a closed form only where they are binary and each other's
    /// equals.
    pub(crate) fn must_be_binary(&self, op: &str) -> Result<()> {
        if let Some(grid) = self.config.filter_grid() {
            candle::bail!(
                "{op}: hidden units must not be those of a convolution, got {} maps; without pooling Rbm::dense makes one matrix of its filters",
                grid.n_filters
            )
        }
        if self.config.hidden != HiddenUnit::Bernoulli {
            candle::bail!("{op}: hidden units must be bernoulli, got {}", self.config.hidden)
        }
        Ok(())
    }
}
