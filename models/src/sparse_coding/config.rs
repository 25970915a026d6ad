//! What a model of sparse coding is, and how it is learned.
use super::basis::BasisUpdate;
use super::lasso::{Lasso, Solver};
use crate::check::{at_least_one, range};
use crate::dictionary::Replace;
use crate::dictionary::config::check_care;
use crate::prepare::{check_inputs, n_inputs};
use candle::Result;
use chandlery_datasets::{ImageShape, Preparation};
use serde::{Deserialize, Serialize};

/// What a [`SparseCoding`](super::SparseCoding) is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseCodingConfig {
    /// Atoms of the basis, at least 1; more than `n_features` for an overcomplete basis.
    pub n_atoms: usize,
    /// Numbers in a signal, at least 1.
    pub n_features: usize,
    /// `β`, the penalty on the sum of the magnitudes of activations, at least 0, in the unit of the
    /// signals: activations of a signal `x` are all 0 where `β ≥ max_j |x·b_j|`.
    pub beta: f64,
    /// Whether activations must be at least 0. Default `false`.
    #[serde(default)]
    pub nonnegative: bool,
    /// The relative duality gap at which the activations of a signal are good enough, above 0.
    /// Default 1e-4.
    #[serde(default = "tolerance")]
    pub tolerance: f64,
    /// How activations are found, in training and after it. Default the active set. Solvers that
    /// stop by the fall of the objective do not look at [`tolerance`](Self::tolerance).
    #[serde(default, skip_serializing_if = "Solver::is_default")]
    pub solver: Solver,
    /// What makes signals of raw rows. Default: floats as they are, bytes over 255.
    #[serde(default, skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

crate::model::model_config!(SparseCodingConfig, |config: &SparseCodingConfig| config.n_features);

fn tolerance() -> f64 {
    1e-4
}

impl SparseCodingConfig {
    /// Sizes and the penalty, which depends on the unit of the signals, have no default; everything
    /// else does.
    pub fn new(n_atoms: usize, n_features: usize, beta: f64) -> Self {
        Self {
            n_atoms,
            n_features,
            beta,
            nonnegative: false,
            tolerance: tolerance(),
            solver: Solver::default(),
            preparation: Preparation::default(),
            image: None,
        }
    }

    /// # Errors
    /// When a size is 0, `beta`, `tolerance` or `solver` is out of range, or the preparation or the
    /// image is for rows of another width.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SparseCodingConfig";
        at_least_one(OP, "n_atoms", self.n_atoms)?;
        at_least_one(OP, "n_features", self.n_features)?;
        range(OP, "beta", self.beta, "at least 0", |x| x >= 0.)?;
        range(OP, "tolerance", self.tolerance, "above 0", |x| x > 0.)?;
        self.solver.validate()?;
        check_inputs(OP, &self.preparation, self.n_features, self.image).map(drop)
    }

    /// The lasso that gives activations.
    pub fn lasso(&self) -> Lasso {
        let &Self { beta, nonnegative, tolerance, solver, .. } = self;
        Lasso { nonnegative, tolerance, solver, ..Lasso::new(beta) }
    }

    /// Values in a raw row; those of a signal where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.n_features)
    }
}

/// How a [`SparseCodingTrainer`](super::SparseCodingTrainer) learns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SparseCodingTrainConfig {
    /// How the basis follows from the statistics of activations. Default one iteration of block
    /// coordinate descent.
    pub basis: BasisUpdate,
    /// How fast earlier batches are forgotten (`ρ`), at least 0: with batch `t` the statistics of
    /// those before weigh `(1 − 1/t)^ρ`, so that the last `t/ρ` batches or so count. 0 never
    /// forgets. Default 5: over 20,000 whitened patches in batches of 500 the objective is 3.19
    /// during the first pass and 2.959 after ten, with 2 it is 3.17 and 2.977, with 20 3.29 and
    /// 2.954.
    pub forgetting: f64,
    /// What takes the place of unused atoms, from the batch at hand. Default the worst represented
    /// signals.
    pub replace: Replace,
    /// An atom that this many signals in a row did not use is replaced, at least 1, unless
    /// [`replace`](Self::replace) is none. Default 10,000.
    pub max_idle: usize,
    /// An atom is replaced when its `|b_i·b_j| / (‖b_i‖ ‖b_j‖)` with an earlier one is above this,
    /// in (0, 1], unless [`replace`](Self::replace) is none. Default 0.99.
    pub max_coherence: Option<f64>,
}

impl Default for SparseCodingTrainConfig {
    fn default() -> Self {
        Self {
            basis: BasisUpdate::default(),
            forgetting: 5.,
            replace: Replace::default(),
            max_idle: 10_000,
            max_coherence: Some(0.99),
        }
    }
}

impl SparseCodingTrainConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SparseCodingTrainConfig";
        self.basis.validate()?;
        range(OP, "forgetting", self.forgetting, "at least 0", |x| x >= 0.)?;
        at_least_one(OP, "max_idle", self.max_idle)?;
        check_care(OP, self.max_coherence, 0, 0)
    }
}
