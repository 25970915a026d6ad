//! The lasso over a given dictionary: activations of many signals, to a duality gap, by a choice of
//! solvers.
//!
//! ```text
//! min_a ½ ‖x − a B‖² + β Σ wⱼ |aⱼ| + ½ λ ‖a‖²          for each signal x; with `nonnegative` over a ≥ 0
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `x` | `signals` | `[m, p]` f32 or f64 |
//! | `B` | `dictionary` | `[n, p]`, the type of `signals` |
//! | `a` | [`Activations::dense`] | `[m, n]` |
//! | `β`, `λ` | [`Lasso::beta`], [`Lasso::ridge`] | |
//! | `w` | [`Lasso::weights`] | `[n]` |
//!
//! All solvers work on the Gram matrix `B Bᵀ + λ I`, computed once, and the correlations `x Bᵀ` of
//! some thousand signals at a time. [`chandlery_ops::codes::lasso`] has the soft threshold, by
//! which a coordinate moves to its minimum, the formula of the gap, and what the gap means for
//! penalties of 0 and in f32.
//!
//! [`Solver::CoordinateParallel`] is the algorithm of Raina, Madhavan and Ng, "Large-scale deep
//! unsupervised learning using graphics processors", ICML 2009, section 6, and [`Solver::PRINTED`]
//! has its steps and its stop. Departures: a signal whose stop is reached leaves the batch, which
//! is looked at after every tenth iteration; the fixed steps, which the paper does not list, are 1,
//! ½, … 2⁻¹⁰. The default here is another algorithm ([`Solver::ActiveSet`]), and stops by the gap.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::sparse_coding::lasso::{Lasso, Status};
//! # fn main() -> candle::Result<()> {
//! // Two orthogonal atoms of length 1: a coefficient is the correlation, moved towards 0 by β.
//! let dictionary = Tensor::new(&[[1f64, 0.], [0., 1.]], &Cpu)?;
//! let signals = Tensor::new(&[[3f64, -0.5], [0., 2.]], &Cpu)?;
//! let lasso = Lasso::new(1.);
//! assert_eq!(lasso.lambda_max(&signals, &dictionary)?, 3.);
//! let activations = lasso.solve(&signals, &dictionary, None)?;
//! assert_eq!(activations.dense.to_vec2::<f64>()?, [[2., 0.], [0., 1.]]);
//! assert_eq!(activations.status()?, [Status::Converged; 2]);
//! assert_eq!(activations.to_sparse()?.indices.to_vec2::<u32>()?, [[0], [1]]);
//! # Ok(()) }
//! ```
mod activations;
mod active;
mod batch;
mod fista;
mod masked;
mod parallel;
mod part;
mod problem;

pub use activations::{Activations, Status};
pub use batch::Stop;
pub use chandlery_ops::codes::LineSearch;

use crate::check::{at_least_one, range};
use candle::{Result, Tensor};
use problem::Problem;
use serde::{Deserialize, Serialize};

const OP: &str = "Lasso";

/// How a [`Lasso`] is solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Solver {
    /// Greedy coordinate descent and Newton steps on the support
    /// ([`chandlery_ops::codes::LassoMethod::ActiveSet`]).
    #[default]
    ActiveSet,
    /// Cyclic coordinate descent ([`chandlery_ops::codes::LassoMethod::CoordinateDescent`]).
    CoordinateDescent,
    /// All coordinates at once, with a line search: one product with the Gram matrix an iteration.
    CoordinateParallel {
        /// How far an iteration goes.
        line_search: LineSearch,
        /// When a signal is done.
        stop: Stop,
    },
    /// The same for one block of coordinates after the other, each from what those before it left,
    /// with the exact line search. It takes about half the iterations of
    /// [`CoordinateParallel`](Self::CoordinateParallel), and for each a step for every block.
    CoordinateBlocks {
        /// Coordinates of a block, at least 1.
        block: usize,
    },
    /// FISTA with restart: one product with the Gram matrix an iteration.
    Fista,
}

impl Solver {
    /// The algorithm of Raina, Madhavan and Ng as printed: all coordinates at once, by the largest
    /// of a fixed set of steps that lowers the objective, until it falls by less than 1e-6 of
    /// itself.
    pub const PRINTED: Self = Self::CoordinateParallel { line_search: LineSearch::Steps, stop: Stop::Fall };

    /// # Errors
    /// When a block has no coordinates.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Self::CoordinateBlocks { block } => at_least_one(OP, "coordinates of a block", block),
            _ => Ok(()),
        }
    }

    /// Whether it is the default.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A lasso and how it is solved; see the [module](self).
#[derive(Debug, Clone)]
pub struct Lasso {
    /// Penalty `β` on magnitudes, at least 0, in units of correlations `x·b`. No default.
    pub beta: f64,
    /// Factors `w` on the penalty for each atom, `[n]`, at least 0; default: 1.
    pub weights: Option<Tensor>,
    /// Penalty `λ` on squares (elastic net), at least 0; default 0. It counts in the objective of
    /// the gap.
    pub ridge: f64,
    /// Whether every coefficient must be at least 0; default: no.
    pub nonnegative: bool,
    /// Relative duality gap at which a signal is done, at least 0; default 1e-4.
    pub tolerance: f64,
    /// The most iterations of a signal, at least 1: updates of all coefficients, or as many updates
    /// of single ones. Default 1000.
    pub max_iterations: usize,
    /// Default: [`Solver::ActiveSet`].
    pub solver: Solver,
}

impl Lasso {
    /// The lasso with this `β` and the defaults.
    pub fn new(beta: f64) -> Self {
        Self {
            beta,
            weights: None,
            ridge: 0.,
            nonnegative: false,
            tolerance: 1e-4,
            max_iterations: 1000,
            solver: Solver::default(),
        }
    }

    /// The activations of `signals` `[m, p]` over `dictionary` `[n, p]`, both f32 or both f64; from
    /// `start` `[m, n]`, or from zeros. `start` is not changed.
    ///
    /// Cost: `n²p + 2mnp` FLOP and the solver; memory `n²`, the result, and matrices of some
    /// thousand signals.
    ///
    /// # Errors
    /// When a field is out of range, shapes, types or devices do not fit, or a number is not
    /// finite.
    pub fn solve(
        &self,
        signals: &Tensor,
        dictionary: &Tensor,
        start: Option<&Tensor>,
    ) -> Result<Activations> {
        self.validate()?;
        Problem::new(self, signals, dictionary)?.solve(self.beta, start)
    }

    /// The activations of signals with missing samples: those where `mask`, u8 `[m, p]`, is 0 are
    /// never read and do not count,
    ///
    /// ```text
    /// min_a ½ ‖M (x − a B)‖² + β Σ wⱼ |aⱼ| + ½ λ ‖a‖²          M: the diagonal of 1 for each observed sample and 0 for the others
    /// ```
    ///
    /// A signal without observed samples has no activations.
    ///
    /// Cost: on the CPU `2nps` FLOP for a signal in whose solution `s` atoms take part, and the
    /// solver; on a GPU `n²p` FLOP and the solver. Signals that miss the same samples share a Gram
    /// matrix; on a GPU the others have one each, some hundred MiB of them at a time.
    ///
    /// # Errors
    /// As for [`solve`](Self::solve), and for solvers other than [`Solver::ActiveSet`] and
    /// [`Solver::CoordinateDescent`].
    pub fn solve_masked(&self, signals: &Tensor, mask: &Tensor, dictionary: &Tensor) -> Result<Activations> {
        self.validate()?;
        masked::solve(self, signals, mask, dictionary)
    }

    /// The activations for each of `betas` in place of [`beta`](Self::beta), each from those of the
    /// one before: pass them from large to small.
    ///
    /// # Errors
    /// As for [`solve`](Self::solve), and when a number of `betas` is negative or not finite.
    pub fn path(&self, signals: &Tensor, dictionary: &Tensor, betas: &[f64]) -> Result<Vec<Activations>> {
        self.validate()?;
        let problem = Problem::new(self, signals, dictionary)?;
        let mut path: Vec<Activations> = Vec::with_capacity(betas.len());
        for &beta in betas {
            range(OP, "betas", beta, "at least 0", |beta| beta >= 0.)?;
            let start = path.last().map(|last| last.dense.clone());
            path.push(problem.solve(beta, start.as_ref())?);
        }
        Ok(path)
    }

    /// The least `β` for which all activations are 0: the largest `|x·bⱼ| / wⱼ` (`nonnegative`:
    /// `x·bⱼ / wⱼ`, at least 0), over the atoms with a weight above 0. Waits for the device.
    ///
    /// # Errors
    /// As for [`solve`](Self::solve).
    pub fn lambda_max(&self, signals: &Tensor, dictionary: &Tensor) -> Result<f64> {
        self.validate()?;
        Problem::new(self, signals, dictionary)?.lambda_max()
    }

    fn validate(&self) -> Result<()> {
        let at_least_0 = |x: f64| x >= 0.;
        range(OP, "beta", self.beta, "at least 0", at_least_0)?;
        range(OP, "ridge", self.ridge, "at least 0", at_least_0)?;
        range(OP, "tolerance", self.tolerance, "at least 0", at_least_0)?;
        self.solver.validate()?;
        at_least_one(OP, "max_iterations", self.max_iterations)
    }
}
