//! Greedy pursuits behind one interface: which atoms, and how much of each.
//!
//! ```text
//! min ‖y − x D‖    ‖x‖₀ ≤ s, or as few as ‖y − x D‖ ≤ ε takes
//! ```
//!
//! | method | a step | cost | device |
//! |---|---|---|---|
//! | [`Omp`](PursuitMethod::Omp) | the atom most correlated with the residual | 1 | CPU, CUDA |
//! | [`Ols`](PursuitMethod::Ols) | the atom whose addition leaves the least | 1.25 | CPU, CUDA |
//! | [`SubspacePursuit`](PursuitMethod::SubspacePursuit) | `s` atoms at once, exchanged for better ones | 15 | CPU |
//! | [`ProjectionOmp`](PursuitMethod::ProjectionOmp) | of `s` candidates the one with the largest coefficient beside all others | 20 | CPU |
//! | [`LookAheadOls`](PursuitMethod::LookAheadOls) | of `s` candidates the one from which OLS ends best | 160 | CPU |
//!
//! Cost is the time to that of OMP for 8 atoms of 128 or 512 and 8×8 patches; that of looking ahead grows with `s³`.
//!
//! Where which is better (`tests/dictionary_pursuit.rs` measures it): to find the very atoms that a signal was made of, all three
//! others beat OMP and OLS by far, subspace pursuit most where coefficients are of one size. To leave little of a signal that
//! no few atoms give, such as a patch of an image, OLS is better than OMP by some 4 %, projection by .4 %, looking ahead, which is
//! never worse than OLS, by 11 to 15 %; subspace pursuit is worse than OMP.
//!
//! OMP and OLS are [`chandlery_ops::bomp`] and [`chandlery_ops::ols`]; their rules (scale of atoms, ties, dependent atoms,
//! zero signals) hold for all. The others compute in f64 on the CPU, wherever the signals are, with all cores and the Gram
//! matrix of the dictionary (`8n²` bytes), and give codes on the device of the signals; they have no non-negative form.
//!
//! Sources: Dai and Milenkovic, "Subspace pursuit for compressive sensing signal reconstruction", IEEE Trans. Information Theory
//! 55(5), 2009; Chatterjee, Sundman, Vehkaperä and Skoglund, "Projection-based and look-ahead strategies for atom selection",
//! IEEE Trans. Signal Processing 60(2), 2012.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
//! # fn main() -> candle::Result<()> {
//! // Two axes and an atom between them that looks best to OMP, which then needs a second.
//! let dictionary = Tensor::new(&[[1f32, 0., 0.], [0., 1., 0.], [0.7, 0.7, 0.1]], &Cpu)?;
//! let signals = Tensor::new(&[[1f32, 1., 0.]], &Cpu)?;
//! let coder = |method| SparseCoder { method, n_nonzero: 2, error: None, nonnegative: false };
//! let omp = coder(PursuitMethod::Omp).encode(&signals, &dictionary)?;
//! assert_eq!(omp.indices.to_vec2::<u32>()?[0][0], 2);
//! // Looking ahead finds the two axes, which leave nothing.
//! let ahead = coder(PursuitMethod::LookAheadOls).encode(&signals, &dictionary)?;
//! assert_eq!(ahead.to_dense()?.to_vec2::<f32>()?, [[1., 1., 0.]]);
//! # Ok(()) }
//! ```
mod look_ahead;
mod path;
mod problem;
mod projection;
mod subspace;

use candle::{Result, Tensor};
use chandlery_ops::{ErrorTarget, Pursuit, SparseCodes, bomp, bomp_masked, ols, ols_masked};
use serde::{Deserialize, Serialize};

/// Which greedy pursuit finds the codes; see the [module](self).
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
    /// Ends a pursuit before it has `n_nonzero` atoms. Subspace pursuit, which chooses all its atoms at once, is then run
    /// with 1, 2, … of them.
    pub error: Option<ErrorTarget>,
    /// Whether every coefficient must be at least 0; for OMP and OLS.
    pub nonnegative: bool,
}

impl SparseCoder {
    /// The codes of `signals` `[m, p]` over `dictionary` `[n, p]`, both f32 or both f64.
    ///
    /// # Errors
    /// When shapes, types or devices do not fit, a limit is out of range, a number is not finite, or a method other than OMP and
    /// OLS is asked for coefficients of at least 0.
    pub fn encode(&self, signals: &Tensor, dictionary: &Tensor) -> Result<SparseCodes> {
        let pursuit =
            Pursuit { n_nonzero: self.n_nonzero, error: self.error.clone(), nonnegative: self.nonnegative };
        match self.method {
            PursuitMethod::Omp => bomp(signals, dictionary, &pursuit),
            PursuitMethod::Ols => ols(signals, dictionary, &pursuit),
            PursuitMethod::SubspacePursuit => problem::encode(self, signals, dictionary, subspace::pursue),
            PursuitMethod::ProjectionOmp => problem::encode(self, signals, dictionary, projection::pursue),
            PursuitMethod::LookAheadOls => problem::encode(self, signals, dictionary, look_ahead::pursue),
        }
    }

    /// The codes of signals with missing samples: only those where `mask`, u8 `[m, p]`, is not 0 count. By OMP or OLS.
    ///
    /// What `signals` hold where the mask is 0 is never looked at; a signal without any sample has an empty code.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode), and for other methods.
    pub fn encode_masked(&self, signals: &Tensor, mask: &Tensor, dictionary: &Tensor) -> Result<SparseCodes> {
        let pursuit =
            Pursuit { n_nonzero: self.n_nonzero, error: self.error.clone(), nonnegative: self.nonnegative };
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
