//! The best basis for given activations.
//!
//! ```text
//! min_B ½ Σ ‖x − a B‖² = ½ tr(BᵀAB) − tr(BᵀS) + constant    ‖b_j‖ ≤ 1 for every row of B,  A = Σ aᵀa,  S = Σ aᵀx
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `B` | argument `basis` | `[n_atoms, n_features]` |
//! | `A`, `S` | [`Statistics`] | `[n_atoms, n_atoms]`, `[n_atoms, n_features]` |
//!
//! | method | an iteration | cost of one, FLOP | device |
//! |---|---|---|---|
//! | [`ProjectedGradient`](BasisMethod::ProjectedGradient) | all atoms along their gradient, by a fixed step | `2n²p` | any |
//! | [`SpectralGradient`](BasisMethod::SpectralGradient) | the same by the longest steps that pay | `2n²p` | any |
//! | [`BlockCoordinate`](BasisMethod::BlockCoordinate) | one atom after the other to its minimum | `2n²p` | any |
//! | [`LagrangeDual`](BasisMethod::LagrangeDual) | a step of Newton's method on the dual, to convergence | about `2n³ + 4n²p`, f64 | CPU |
//!
//! Atoms that no signal uses (`A_jj` of 1e-30 or less) stay as they are.
//!
//! Sources: Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics
//! processors", ICML 2009, section 6 (projected gradient); Birgin, Martínez and Raydan, SIAM J.
//! Optimization 10(4), 2000 (spectral gradient); Mairal, Bach, Ponce and Sapiro, "Online
//! learning for matrix factorization and sparse coding", JMLR 11, 2010, algorithm 2 (block
//! coordinate descent); Lee, Battle, Raina and Ng, "Efficient sparse coding algorithms", NIPS 2006,
//! section 4 (Lagrange dual).
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use chandlery::sparse_coding::basis::{BasisMethod, BasisUpdate, Statistics};
//! # fn main() -> candle::Result<()> {
//! // Two signals and their activations; no signal uses both atoms, so that the best atoms are Σ a x / Σ a², or shorter.
//! let signals = Tensor::new(&[[0.5f64, 0.], [3., 4.]], &Cpu)?;
//! let activations = Tensor::new(&[[1f64, 0.], [0., 1.]], &Cpu)?;
//! let statistics = Statistics::none(2, 2, DType::F64, &Cpu)?.after(&activations, &signals, 0.)?;
//! let start = Tensor::new(&[[0f64, 1.], [0., 1.]], &Cpu)?;
//! for method in BasisMethod::ALL {
//!     let basis = BasisUpdate { method, iterations: 20 }.apply(&start, &statistics)?.to_vec2::<f64>()?;
//!     let want = [0.5, 0., 0.6, 0.8];
//!     assert!(basis.iter().flatten().zip(want).all(|(b, want)| (b - want).abs() < 1e-9), "{method:?}: {basis:?}");
//! }
//! # Ok(()) }
//! ```
mod lagrange_dual;
mod projected_gradient;
mod spectral_gradient;

pub use crate::dictionary::Statistics;

use crate::check::at_least_one;
use candle::{Result, Tensor};
use chandlery_ops::arrays::elementwise::{at_least, div, sqr, sqrt};
use chandlery_ops::codes::{AtomLength, descend_atoms_};
use serde::{Deserialize, Serialize};

/// `A_jj` at or below which an atom counts as unused, as for [`descend_atoms_`].
const UNUSED: f64 = 1e-30;

/// How the basis is found; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BasisMethod {
    /// Projected gradient with a fixed step, as Raina, Madhavan and Ng print it.
    ProjectedGradient,
    /// Projected gradient with the longest steps that pay.
    SpectralGradient,
    /// Block coordinate descent.
    #[default]
    BlockCoordinate,
    /// The Lagrange dual by Newton's method, exact to rounding.
    LagrangeDual,
}

impl BasisMethod {
    /// Every one.
    pub const ALL: [Self; 4] =
        [Self::ProjectedGradient, Self::SpectralGradient, Self::BlockCoordinate, Self::LagrangeDual];

    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::ProjectedGradient => "projected-gradient",
            Self::SpectralGradient => "spectral-gradient",
            Self::BlockCoordinate => "block-coordinate",
            Self::LagrangeDual => "lagrange-dual",
        }
    }
}

impl std::str::FromStr for BasisMethod {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("the method of basis updates must be one of {names}, got {name}")
        })
    }
}

/// A method with its number of iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BasisUpdate {
    /// Which method. Default block coordinate descent.
    pub method: BasisMethod,
    /// Iterations, at least 1; the Lagrange dual takes as many as it needs. Default 1, enough for a
    /// step of a trainer, whose next step goes on from there.
    pub iterations: usize,
}

impl Default for BasisUpdate {
    fn default() -> Self {
        Self { method: BasisMethod::default(), iterations: 1 }
    }
}

impl BasisUpdate {
    /// # Errors
    /// When `iterations` is 0.
    pub fn validate(&self) -> Result<()> {
        at_least_one("BasisUpdate", "iterations", self.iterations)
    }

    /// A better basis than `basis`, `[n_atoms, n_features]`, whose atoms have lengths of at most 1,
    /// as those of the new one have; `basis` stays. Types and devices are those of the statistics.
    /// Only the Lagrange dual waits for the device.
    ///
    /// # Errors
    /// When shapes, types or devices do not fit, `iterations` is 0, or, for the Lagrange dual, the
    /// statistics are not finite.
    pub fn apply(&self, basis: &Tensor, statistics: &Statistics) -> Result<Tensor> {
        const OP: &str = "BasisUpdate::apply";
        self.validate()?;
        let (want, got) = (statistics.signals.dims(), basis.dims());
        if want != got {
            candle::bail!("{OP}: basis must have shape {want:?}, that of the statistics, got {got:?}")
        }
        match self.method {
            BasisMethod::ProjectedGradient => projected_gradient::descend(basis, statistics, self.iterations),
            BasisMethod::SpectralGradient => spectral_gradient::descend(basis, statistics, self.iterations),
            BasisMethod::BlockCoordinate => {
                let basis = basis.copy()?;
                for _ in 0..self.iterations {
                    descend_atoms_(&basis, &statistics.gram, &statistics.signals, 0, AtomLength::AtMostOne)?;
                }
                Ok(basis)
            }
            BasisMethod::LagrangeDual => lagrange_dual::minimise(basis, statistics),
        }
    }
}

/// Rows that are longer than 1 scaled to length 1: the closest basis that is allowed.
pub(super) fn shortened(rows: &Tensor) -> Result<Tensor> {
    div(rows, &at_least(&sqrt(&sqr(rows)?.sum_keepdim(1)?)?, 1.)?)
}
