//! Greedy pursuits behind one interface: they choose the atoms of a signal and their coefficients.
//!
//! ```text
//! min ‖y − x D‖    ‖x‖₀ ≤ s, or ‖x‖₀ as small as ‖y − x D‖ ≤ ε allows
//! ```
//!
//! | method | a step chooses | cost | device |
//! |---|---|---|---|
//! | [`Omp`](PursuitMethod::Omp) | the atom most correlated with the residual | 1 | CPU, CUDA |
//! | [`Ols`](PursuitMethod::Ols) | the atom whose addition leaves the smallest residual | 1.25 | CPU, CUDA |
//! | [`SubspacePursuit`](PursuitMethod::SubspacePursuit) | `s` atoms at once, exchanged for better ones | 15 | CPU, CUDA |
//! | [`ProjectionOmp`](PursuitMethod::ProjectionOmp) | the one of `s` candidates with the largest coefficient when all are fitted together | 20 | CPU, CUDA |
//! | [`LookAheadOls`](PursuitMethod::LookAheadOls) | the one of `s` candidates from which OLS ends best | 160 | CPU, CUDA |
//!
//! Cost is the time relative to OMP, for 8 atoms of 128 or 512 and 8×8 patches; the cost of
//! look-ahead OLS grows with `s³`.
//!
//! Which method is better depends on the goal (`tests/dictionary_pursuit.rs` measures it). To
//! recover the atoms that generated a signal, the other three methods are far better than OMP and
//! OLS, subspace pursuit most of all if coefficients have similar magnitudes. To approximate a
//! signal that is not exactly sparse, such as an image patch, the residual of OLS is about 4 %
//! lower than that of OMP, that of projection-based OMP .4 %, and that of look-ahead OLS, which is
//! never worse than OLS, 11 to 15 %; subspace pursuit is worse than OMP.
//!
//! OMP and OLS are [`chandlery_ops::codes::bomp`] and [`chandlery_ops::codes::ols`]; their rules
//! (scale of atoms, ties, dependent atoms, zero signals) hold for all methods. The other methods
//! compute in f64 with the Gram matrix of the dictionary (`8n²` bytes), and return codes on the
//! device of the signals: on all cores of the CPU, one signal after the other in each, and on a GPU
//! with candle's ops for all signals at once, over fewer than 65,536 atoms. That is worth it for many
//! signals: beside 16 cores, one H200 takes .4 of the time for projection-based OMP of 65,536
//! signals over 256 atoms, and as long for the other two; for 8,192 over 128 it takes 2 to 4 times
//! as long (`bench dictionary --what pursuit --pursuit …`).
//! They have no non-negative form.
//!
//! Sources: Dai and Milenkovic, "Subspace pursuit for compressive sensing signal reconstruction",
//! IEEE Trans. Information Theory 55(5), 2009; Chatterjee, Sundman, Vehkaperä and Skoglund,
//! "Projection-based and look-ahead strategies for atom selection", IEEE Trans. Signal Processing
//! 60(2), 2012.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
//! # fn main() -> candle::Result<()> {
//! // Two axes and an atom between them that looks best to OMP, which then needs a second.
//! let dictionary = Tensor::new(&[[1f32, 0., 0.], [0., 1., 0.], [0.7, 0.7, 0.1]], &Cpu)?;
//! let signals = Tensor::new(&[[1f32, 1., 0.]], &Cpu)?;
//! let coder = |method| SparseCoder::new(method, 2);
//! let omp = coder(PursuitMethod::Omp).encode(&signals, &dictionary)?;
//! assert_eq!(omp.indices.to_vec2::<u32>()?[0][0], 2);
//! // Looking ahead finds the two axes, which leave nothing.
//! let ahead = coder(PursuitMethod::LookAheadOls).encode(&signals, &dictionary)?;
//! assert_eq!(ahead.to_dense()?.to_vec2::<f32>()?, [[1., 1., 0.]]);
//! # Ok(()) }
//! ```
mod batched;
mod look_ahead;
mod path;
mod problem;
mod projection;
mod subspace;

use candle::{Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, Pursuit, SparseCodes, bomp, bomp_masked, ols, ols_masked};
use serde::{Deserialize, Serialize};

/// A greedy pursuit; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PursuitMethod {
    /// Orthogonal matching pursuit (Pati, Rezaiifar and Krishnaprasad 1993), as Batch-OMP.
    #[default]
    Omp,
    /// Orthogonal least squares (Chen, Billings and Luo 1989).
    Ols,
    /// Subspace pursuit (Dai and Milenkovic 2009).
    SubspacePursuit,
    /// Projection-based OMP (Chatterjee and others 2012).
    ProjectionOmp,
    /// Look-ahead orthogonal least squares (Chatterjee and others 2012).
    LookAheadOls,
}

impl PursuitMethod {
    /// Every method.
    pub const ALL: [Self; 5] =
        [Self::Omp, Self::Ols, Self::SubspacePursuit, Self::ProjectionOmp, Self::LookAheadOls];

    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Omp => "omp",
            Self::Ols => "ols",
            Self::SubspacePursuit => "subspace-pursuit",
            Self::ProjectionOmp => "projection-omp",
            Self::LookAheadOls => "look-ahead-ols",
        }
    }
}

impl std::str::FromStr for PursuitMethod {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|method| method.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("the pursuit must be one of {names}, got {name}")
        })
    }
}

/// A pursuit with its limits.
#[derive(Debug, Clone)]
pub struct SparseCoder {
    /// Which pursuit.
    pub method: PursuitMethod,
    /// The most atoms of a signal and the width of the codes, `1..=n_atoms`.
    pub n_nonzero: usize,
    /// Error target that ends a pursuit before it has `n_nonzero` atoms. Subspace pursuit, which
    /// chooses all atoms at once, then runs with 1, 2, … atoms.
    pub error: Option<ErrorTarget>,
    /// Whether every coefficient must be at least 0; for OMP and OLS.
    pub nonnegative: bool,
    /// The most signals that are coded at a time (`m̃` of Irofti 2016), at least 1: fewer need less
    /// memory besides the codes, which do not depend on it. None: as many as memory has room for.
    pub chunk: Option<usize>,
}

impl SparseCoder {
    /// Up to `n_nonzero` atoms by `method`, without an error target, coefficients of either sign.
    pub fn new(method: PursuitMethod, n_nonzero: usize) -> Self {
        Self { method, n_nonzero, error: None, nonnegative: false, chunk: None }
    }

    /// The same as ops take it.
    fn pursuit(&self) -> Pursuit {
        let &Self { n_nonzero, ref error, nonnegative, chunk, .. } = self;
        Pursuit { n_nonzero, error: error.clone(), nonnegative, chunk }
    }

    /// The codes of `signals` `[m, p]` over `dictionary` `[n, p]`, both f32 or both f64.
    ///
    /// # Errors
    /// When shapes, types or devices do not fit, a limit is out of range, a number is not finite,
    /// or `nonnegative` is set for a method other than OMP and OLS.
    pub fn encode(&self, signals: &Tensor, dictionary: &Tensor) -> Result<SparseCodes> {
        let pursuit = self.pursuit();
        match self.method {
            PursuitMethod::Omp => bomp(signals, dictionary, &pursuit),
            PursuitMethod::Ols => ols(signals, dictionary, &pursuit),
            method if signals.device().is_cuda() && batched::is_for(method, dictionary) => {
                batched::encode(self, signals, dictionary)
            }
            PursuitMethod::SubspacePursuit => problem::encode(self, signals, dictionary, subspace::pursue),
            PursuitMethod::ProjectionOmp => problem::encode(self, signals, dictionary, projection::pursue),
            PursuitMethod::LookAheadOls => problem::encode(self, signals, dictionary, look_ahead::pursue),
        }
    }

    /// The codes of signals with missing samples, by OMP or OLS: only samples where `mask`, u8
    /// `[m, p]`, is not 0 are used.
    ///
    /// Entries of `signals` where the mask is 0 are never read; a signal without observed samples
    /// has an empty code.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode), and for other methods.
    pub fn encode_masked(&self, signals: &Tensor, mask: &Tensor, dictionary: &Tensor) -> Result<SparseCodes> {
        let pursuit = self.pursuit();
        match self.method {
            PursuitMethod::Omp => bomp_masked(signals, mask, dictionary, &pursuit),
            PursuitMethod::Ols => ols_masked(signals, mask, dictionary, &pursuit),
            method => candle::bail!(
                "encode_masked: missing samples are for omp and ols, got {}; fill them in first or take one of those",
                method.name()
            ),
        }
    }
}
