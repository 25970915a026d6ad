//! Dictionary learning: atoms such that each signal is a combination of few of them.
//!
//! ```text
//! min_{D, X} ‖Y − X D‖²    ‖x_i‖₀ ≤ s for every row of X,  ‖d_j‖ = 1 for every row of D
//!
//! X ← pursuit of Y over D                    sparse coding, see [`pursuit`]
//! D ← update of the atoms given X            K-SVD, AK-SVD, SGK, NSGK, MOD, see [`train`]; in minibatches, see [`online`]
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `Y` | argument `signals` | `[n_samples, n_features]`, f32 or f64 |
//! | `D` | [`Dictionary::atoms`] | `[n_atoms, n_features]` |
//! | `X` | [`SparseCodes`] | `[n_samples, n_atoms]`, at most `s` entries a row |
//! | `s` | [`DictionaryConfig::n_nonzero`]; fewer where [`DictionaryConfig::error`] is met before | |
//!
//! With [`DictionaryConfig::nonnegative_atoms`] and [`DictionaryConfig::nonnegative`] codes, both
//! factors are at least 0: a nonnegative matrix factorisation (NMF) with sparse codes. Each new
//! atom is projected: numbers below 0 become 0, then its length becomes 1. The rules SGK and NSGK
//! and [`online`] learning do so; with [`DictionaryTrainConfig::group`] 1, SGK is hierarchical
//! alternating least squares, where no update of an atom raises `‖Y − X D‖`. What may raise it:
//! groups of more atoms, which do not see each other change; NSGK, whose model is of first order; a
//! replacement of atoms; and a greedy pursuit, which may find worse codes than those before.
//!
//! What images gain by it is in [`image`]: denoising, and filling in missing pixels. Dictionaries
//! of classes tell rows apart in [`classify`].
//!
//! Rows become signals by the [preparation](DictionaryConfig::preparation) of the configuration;
//! without one they are taken as they are, in any unit: the same ones times a power of two give the
//! same atoms, to the bit. What should not be learned, such as the mean of a patch, is taken out
//! before or given to a fixed atom ([`DictionaryTrainConfig::n_fixed`]).
//!
//! Departures from Irofti 2016, whose algorithms these are:
//!
//! - Pursuits keep the inverse of the Cholesky factor that algorithm 1 keeps, and end early where
//!   only rounding is left or an error is met; as printed it is
//!   [`bomp_cholesky`](chandlery_ops::codes::bomp_cholesky). `m̃` is [`DictionaryConfig::chunk`].
//! - `ñ` is [`DictionaryTrainConfig::group`], all atoms by default (its P- methods). NSGK has the
//!   factors of equation 10 exchanged, see [`train`].
//! - An iteration also measures the error, replaces bad atoms, and keeps the best dictionary.
//! - K-SVD, MOD, a penalty on coherence, learning in minibatches and nonnegative factors are not in
//!   it; OpenCL, tables of occupancy and GPUs of other vendors are in it and not here.
//!
//! Sources: Aharon, Elad and Bruckstein, "K-SVD: an algorithm for designing overcomplete
//! dictionaries for sparse representation", IEEE Trans. Signal Processing 54(11), 2006; Irofti,
//! "Efficient dictionary learning implementation on the GPU using OpenCL", 2016; Dumitrescu and
//! Irofti, "Dictionary learning algorithms and applications", Springer 2018.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::Encode;
//! use chandlery::dictionary::{Dictionary, DictionaryConfig};
//! # fn main() -> candle::Result<()> {
//! // Three atoms in the plane: the axes and the diagonal. One atom a signal.
//! let half = 0.5f32.sqrt();
//! let atoms = Tensor::new(&[[1f32, 0.], [0., 1.], [half, half]], &Cpu)?;
//! let dictionary = Dictionary::from_tensor(DictionaryConfig::new(3, 2, 1), atoms)?;
//! let signals = Tensor::new(&[[0f32, -2.], [3., 3.]], &Cpu)?;
//! // The first is −2 times the second atom, the second 3√2 times the diagonal.
//! let codes = dictionary.encode(&signals)?.to_dense()?.to_vec2::<f32>()?;
//! assert_eq!(codes[0], [0., -2., 0.]);
//! assert!(codes[1][0] == 0. && (codes[1][2] - 3. * 2f32.sqrt()).abs() < 1e-6);
//! # Ok(()) }
//! ```
mod checkpoint;
pub mod classify;
mod coded;
pub(crate) mod config;
pub mod image;
pub mod init;
pub(crate) mod least_squares;
pub mod measure;
mod nonnegative;
pub mod online;
pub mod pixels;
pub mod pursuit;
mod ranks;
pub(crate) mod replace_atoms;
mod scaling;
pub(crate) mod statistics;
pub mod train;

pub use chandlery_ops::codes::SparseCodes;
pub use config::{
    CodeError, DictionaryConfig, DictionaryTrainConfig, OnlineDictionaryTrainConfig, Replace, UpdateRule,
};
pub use init::{Init, distinct_signals, init, overcomplete_dct};
pub use measure::Measure;
pub use online::{OnlineDictionaryTrainer, OnlineMetrics, OnlineStep};
pub use pursuit::{PursuitMethod, SparseCoder};
pub use statistics::Statistics;
pub use train::{DictionaryTrainer, Iteration};

use crate::model::{Decode, Encode, Model, WIDE};
use crate::pretrained::ModelType;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_ops::Philox;
use chandlery_ops::codes::atom_coherence;

/// Atoms and how signals are coded over them; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct Dictionary {
    config: DictionaryConfig,
    atoms: Tensor,
}

impl Dictionary {
    /// A dictionary of random directions: atoms of length 1 in f32. To begin with signals see
    /// [`init`](init()).
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn init(config: DictionaryConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let atoms = init::random(config.n_atoms, config.n_features, philox, device)?;
        Self::from_tensor(config, atoms)
    }

    /// A dictionary with these atoms, `[n_atoms, n_features]` f32 or f64. They need not have length
    /// 1.
    ///
    /// # Errors
    /// When `config` is out of range or the shape or type differs.
    pub fn from_tensor(config: DictionaryConfig, atoms: Tensor) -> Result<Self> {
        config.validate()?;
        let want = [config.n_atoms, config.n_features];
        if atoms.dims() != want || !matches!(atoms.dtype(), DType::F32 | DType::F64) {
            candle::bail!(
                "Dictionary: atoms must be f32 or f64 of shape {want:?}, got {:?} of shape {:?}",
                atoms.dtype(),
                atoms.dims()
            )
        }
        Ok(Self { config, atoms: atoms.contiguous()? })
    }

    /// The atoms, `[n_atoms, n_features]`.
    pub fn atoms(&self) -> &Tensor {
        &self.atoms
    }

    /// What the dictionary is.
    pub fn config(&self) -> &DictionaryConfig {
        &self.config
    }

    /// The largest `|d_i·d_j| / (‖d_i‖ ‖d_j‖)` of two atoms: 0 when all are orthogonal, 1 when two
    /// are parallel.
    ///
    /// # Errors
    /// When the device fails.
    pub fn mutual_coherence(&self) -> Result<f64> {
        replace_atoms::largest(&atom_coherence(&self.atoms)?.to_vec1()?)
    }
}

impl Model for Dictionary {
    type Config = DictionaryConfig;
    const TYPE: ModelType = ModelType::Dictionary;

    fn dtypes(_: &DictionaryConfig) -> &'static [DType] {
        &WIDE
    }

    /// `dictionary`, `[n_atoms, n_features]`; a new `VarMap` draws normal atoms of length 1 on
    /// average.
    fn build(config: DictionaryConfig, vb: &VarBuilder) -> Result<Self> {
        let shape = (config.n_atoms, config.n_features);
        let atoms = vb.get_with_hints(shape, "dictionary", init::drawn(config.n_features))?;
        Self::from_tensor(config, atoms)
    }

    fn init(config: DictionaryConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &DictionaryConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.atoms
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        vec![("dictionary".to_owned(), self.atoms.clone())]
    }
}

/// Sparse codes by the pursuit of the configuration, for another see [`SparseCoder`]; there is no
/// gradient. Dense ones are [`to_dense`](SparseCodes::to_dense) of these. Rows must be finite.
impl Encode for Dictionary {
    type Codes = SparseCodes;

    fn encode_prepared(&self, x: &Tensor) -> Result<SparseCodes> {
        self.config.coder().encode(&x.to_dtype(self.dtype())?, &self.atoms)
    }
}

/// The signals that codes stand for, `X D`, `[n_samples, n_features]`.
impl Decode for Dictionary {
    fn decode(&self, codes: &SparseCodes) -> Result<Tensor> {
        codes.reconstruct(&self.atoms)
    }
}
