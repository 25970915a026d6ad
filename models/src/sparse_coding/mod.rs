//! Sparse coding: a basis such that each signal is a combination of few of its atoms, by a penalty
//! on the activations.
//!
//! ```text
//! min_{B, a} Σ ½ ‖x − a B‖² + β Σ_j |a_j|    ‖b_j‖ ≤ 1 for every row of B
//!
//! a ← the minimum given B                    for each signal, see [`lasso`]
//! B ← a better basis given a                 see [`basis`]; in minibatches, see [`train`]
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `x` | a prepared row | `[n_samples, n_features]`, f32 or f64 |
//! | `B` | [`SparseCoding::basis`] | `[n_atoms, n_features]` |
//! | `a` | result of `encode` | `[n_samples, n_atoms]` |
//! | `β` | [`SparseCodingConfig::beta`] | |
//!
//! Sources: Olshausen and Field, "Emergence of simple-cell receptive field properties by learning a
//! sparse code for natural images", Nature 381, 1996; Lee, Battle, Raina and Ng, "Efficient sparse
//! coding algorithms", NIPS 2006; Raina, Madhavan and Ng, "Large-scale deep unsupervised learning
//! using graphics processors", ICML 2009, section 6.
//!
//! Departures from Raina, Madhavan and Ng, unless they are asked for: activations are found by an
//! active set to a duality gap; theirs are found by moving all coordinates at once until the
//! objective falls by less than 1e-6 of itself ([`Solver::PRINTED`](lasso::Solver::PRINTED) in
//! [`SparseCodingConfig::solver`]). The basis follows from the statistics of all minibatches, of
//! which earlier ones weigh less, by one sweep of block coordinate descent; theirs is the best for
//! one minibatch, by projected gradient
//! ([`BasisMethod::ProjectedGradient`](basis::BasisMethod::ProjectedGradient) with many iterations
//! and a large [`forgetting`](SparseCodingTrainConfig::forgetting)). Atoms that no signal uses are
//! replaced.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::Encode;
//! use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
//! # fn main() -> candle::Result<()> {
//! // Two orthogonal atoms: an activation is the product with its atom, less β, or 0.
//! let basis = Tensor::new(&[[1f32, 0.], [0., 1.]], &Cpu)?;
//! let model = SparseCoding::from_tensor(SparseCodingConfig::new(2, 2, 0.5), basis)?;
//! let signals = Tensor::new(&[[2f32, 0.25], [-1., 0.75]], &Cpu)?;
//! let a = model.encode(&signals)?.to_vec2::<f32>()?;
//! assert!(a.iter().flatten().zip([1.5, 0., -0.5, 0.25]).all(|(a, want)| (a - want).abs() < 1e-3), "{a:?}");
//! # Ok(()) }
//! ```
pub mod basis;
mod checkpoint;
mod coder;
mod config;
pub mod lasso;
pub mod train;

pub use coder::Figures;
pub use config::{SparseCodingConfig, SparseCodingTrainConfig};
pub use train::{Metrics, SparseCodingStep, SparseCodingTrainer};

use crate::check::{at_least_one, is_finite, values_of};
use crate::dictionary::{Init, init};
use crate::model::{Decode, Encode, Model, WIDE};
use crate::pretrained::ModelType;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_ops::arrays::elementwise::sqr;
use chandlery_ops::{Group, Philox};
use coder::{Coded, Sums};
use lasso::Activations;

/// A basis and the penalty on activations over it; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct SparseCoding {
    config: SparseCodingConfig,
    basis: Tensor,
}

impl SparseCoding {
    /// A model whose atoms are random directions of length 1, in f32.
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn init(config: SparseCodingConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let basis = init::random(config.n_atoms, config.n_features, philox, device)?;
        Self::from_tensor(config, basis)
    }

    /// A model with this basis, `[n_atoms, n_features]`, f32 or f64. Atoms of any length are taken
    /// as they are.
    ///
    /// # Errors
    /// When `config` is out of range, the basis has another shape or type, or the square of an
    /// atom's length does not fit it.
    pub fn from_tensor(config: SparseCodingConfig, basis: Tensor) -> Result<Self> {
        config.validate()?;
        let want = [config.n_atoms, config.n_features];
        if basis.dims() != want || !matches!(basis.dtype(), DType::F32 | DType::F64) {
            candle::bail!(
                "SparseCoding: basis must be {want:?} f32 or f64, got {:?} {:?}",
                basis.dims(),
                basis.dtype()
            )
        }
        if !is_finite(&sqr(&basis)?.sum(1)?)? {
            candle::bail!(
                "SparseCoding: the atoms of the basis must have lengths whose squares are finite in {:?}; scale them down",
                basis.dtype()
            )
        }
        Ok(Self { config, basis: basis.contiguous()? })
    }

    /// A model that begins with atoms of length 1 made of prepared `signals`,
    /// `[n_samples, n_features]`, or without them; see [`init`](crate::dictionary::init()). The
    /// draws start at `philox`.
    ///
    /// # Errors
    /// When `config` is out of range, the signals do not fit, or memory is short.
    pub fn start(config: SparseCodingConfig, from: &Init, signals: &Tensor, philox: Philox) -> Result<Self> {
        config.validate()?;
        let basis = init(from, config.n_atoms, signals, philox)?;
        Self::from_tensor(config, basis)
    }

    /// The activations of prepared rows `x`, `[batch, n_features]`, with their relative duality
    /// gaps.
    ///
    /// # Errors
    /// When `x` has another shape, type or device, or is not finite.
    pub fn activations_prepared(&self, x: &Tensor) -> Result<Activations> {
        let x = values_of("SparseCoding", "x", x, self.config.n_features, self.basis.dtype())?;
        self.config.lasso().solve(&x, &self.basis, None)
    }

    /// How well activations represent raw rows, `[n_samples, n_inputs]`, at least one. Waits for
    /// the device.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device, there are none, or they are not finite.
    pub fn figures(&self, rows: &Tensor) -> Result<Figures> {
        let mut measure = self.measure();
        measure.add(rows)?;
        measure.figures()
    }

    /// Figures of rows that come in parts.
    pub fn measure(&self) -> Measure<'_> {
        Measure { model: self, sums: Sums::default() }
    }

    /// What the model is.
    pub fn config(&self) -> &SparseCodingConfig {
        &self.config
    }

    /// The atoms, `[n_atoms, n_features]`.
    pub fn basis(&self) -> &Tensor {
        &self.basis
    }
}

/// The name of the basis in files.
const BASIS: &str = "basis";

impl Model for SparseCoding {
    type Config = SparseCodingConfig;
    const TYPE: ModelType = ModelType::SparseCoding;

    fn dtypes(_: &SparseCodingConfig) -> &'static [DType] {
        &WIDE
    }

    /// `basis`, `[n_atoms, n_features]`; a new `VarMap` draws normal atoms of length 1 on average.
    fn build(config: SparseCodingConfig, vb: &VarBuilder) -> Result<Self> {
        let shape = (config.n_atoms, config.n_features);
        let basis = vb.get_with_hints(shape, BASIS, init::drawn(config.n_features))?;
        Self::from_tensor(config, basis)
    }

    fn init(config: SparseCodingConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &SparseCodingConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.basis
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        vec![(BASIS.to_owned(), self.basis.clone())]
    }
}

/// Activations, `[batch, n_atoms]`; there is no gradient. Rows must be finite.
impl Encode for SparseCoding {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.activations_prepared(x)?.dense)
    }
}

/// The signals that activations stand for, `a B`.
impl Decode for SparseCoding {
    fn decode(&self, activations: &Tensor) -> Result<Tensor> {
        values_of("SparseCoding", "activations", activations, self.config.n_atoms, self.basis.dtype())?
            .matmul(&self.basis)
    }
}

/// [`Figures`] of rows that come in parts.
#[derive(Debug, Clone)]
pub struct Measure<'a> {
    model: &'a SparseCoding,
    sums: Sums,
}

impl Measure<'_> {
    /// Adds raw rows, `[n_samples, n_inputs]`. Waits for the device.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device, or are not finite.
    pub fn add(&mut self, rows: &Tensor) -> Result<()> {
        let x = self.model.prepare(rows)?.contiguous()?;
        if x.dim(0)? > 0 {
            self.sums.add(&Sums::of(&Coded::of(self.model, &x)?.report()?.to_vec1()?, x.dim(0)?));
        }
        Ok(())
    }

    /// What all ranks of a group have measured, each of its own rows, on every rank. Waits for the
    /// device.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn joined(mut self, group: &Group) -> Result<Self> {
        self.sums = self.sums.joined(group, self.model.basis.device())?;
        Ok(self)
    }

    /// The figures of all rows.
    ///
    /// # Errors
    /// When there were none.
    pub fn figures(&self) -> Result<Figures> {
        at_least_one("SparseCoding::figures", "rows", self.sums.signals as usize)?;
        Ok(self.sums.figures(self.model))
    }
}
