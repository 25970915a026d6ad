//! What a dictionary is, and how it is learned.
use super::{PursuitMethod, SparseCoder};
use crate::check::{at_least_one, range};
use crate::prepare::{check_inputs, n_inputs};
use candle::Result;
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::codes::ErrorTarget;
use serde::{Deserialize, Serialize};

/// The error at which a code is good enough, whatever its number of atoms: an [`ErrorTarget`] that
/// a file can hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeError {
    /// `‖y − x D‖₂` of every signal, at least 0: a root mean square error times `√n_features`.
    Absolute(f64),
    /// `‖y − x D‖₂ / ‖y‖₂`, at least 0.
    Relative(f64),
}

impl From<CodeError> for ErrorTarget {
    fn from(error: CodeError) -> Self {
        match error {
            CodeError::Absolute(error) => Self::Absolute(error),
            CodeError::Relative(error) => Self::Relative(error),
        }
    }
}

/// What a [`Dictionary`](super::Dictionary) is and how signals are coded over it: `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DictionaryConfig {
    /// Atoms, at least 1; more than `n_features` for an overcomplete dictionary.
    pub n_atoms: usize,
    /// Numbers in a signal, at least 1.
    pub n_features: usize,
    /// The most atoms that a signal is made of, `1..=n_atoms`.
    pub n_nonzero: usize,
    /// The pursuit that finds them.
    #[serde(default)]
    pub method: PursuitMethod,
    /// The error that ends a pursuit before it has `n_nonzero` atoms; none: each has as many as it
    /// can use.
    #[serde(default)]
    pub error: Option<CodeError>,
    /// Whether coefficients must be at least 0; for OMP and OLS.
    #[serde(default)]
    pub nonnegative: bool,
    /// The most signals that are coded at a time (`m̃` of Irofti 2016), at least 1; codes do not
    /// depend on it. Default: none, as many as memory has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// Whether trainers keep the numbers of every atom at least 0; see the [module](super) for how.
    #[serde(default)]
    pub nonnegative_atoms: bool,
    /// How the values of a raw row make an image or a patch of one; none for other rows.
    #[serde(default)]
    pub image: Option<ImageShape>,
    /// What makes signals of raw rows. Default: floats as they are, bytes over 255.
    #[serde(default)]
    pub preparation: Preparation,
}

crate::model::model_config!(DictionaryConfig, |config: &DictionaryConfig| config.n_features);

impl DictionaryConfig {
    /// Sizes have no default; everything else does: orthogonal matching pursuit to `n_nonzero`
    /// atoms, coefficients of either sign.
    pub fn new(n_atoms: usize, n_features: usize, n_nonzero: usize) -> Self {
        Self {
            n_atoms,
            n_features,
            n_nonzero,
            method: PursuitMethod::default(),
            error: None,
            nonnegative: false,
            chunk: None,
            nonnegative_atoms: false,
            image: None,
            preparation: Preparation::default(),
        }
    }

    /// The pursuit that codes signals.
    pub fn coder(&self) -> SparseCoder {
        let &Self { n_nonzero, method, error, nonnegative, chunk, .. } = self;
        SparseCoder { method, n_nonzero, error: error.map(Into::into), nonnegative, chunk }
    }

    /// The pursuit of a trainer: `coder`, which becomes the configuration's, or without one the
    /// configuration's own. Targets of [single signals](ErrorTarget::PerSignal) are those of the
    /// signals at hand: the configuration keeps none.
    pub(super) fn take_coder(&mut self, coder: Option<&SparseCoder>) -> SparseCoder {
        let Some(coder) = coder else { return self.coder() };
        let SparseCoder { method, n_nonzero, ref error, nonnegative, chunk } = *coder;
        let error = match error {
            Some(ErrorTarget::Absolute(error)) => Some(CodeError::Absolute(*error)),
            Some(ErrorTarget::Relative(error)) => Some(CodeError::Relative(*error)),
            Some(ErrorTarget::PerSignal(_)) | None => None,
        };
        *self = Self { method, n_nonzero, error, nonnegative, chunk, ..self.clone() };
        coder.clone()
    }

    /// # Errors
    /// When a size or `chunk` is 0, `n_nonzero` above `n_atoms`, the error is negative or not
    /// finite, the preparation gives signals of another size, or the image is not of the size of
    /// raw rows.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "DictionaryConfig";
        at_least_one(OP, "n_atoms", self.n_atoms)?;
        at_least_one(OP, "n_features", self.n_features)?;
        check_nonzero(OP, self.n_nonzero, self.n_atoms)?;
        at_least_one(OP, "chunk", self.chunk.unwrap_or(1))?;
        match self.error {
            Some(CodeError::Absolute(error) | CodeError::Relative(error)) => {
                range(OP, "error", error, "at least 0", |x| x >= 0.)?;
            }
            None => {}
        }
        check_inputs(OP, &self.preparation, self.n_features, self.image).map(drop)
    }

    /// Values in a raw row; those of a signal where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.n_features)
    }
}

/// How atoms follow from codes; equations in [`train`](super::train).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateRule {
    /// An atom and its coefficients are the best rank-one matrix: the power method to convergence.
    Ksvd,
    /// One step of the power method.
    #[default]
    AkSvd,
    /// The best atom for the coefficients, which stay.
    Sgk,
    /// The best atom for the codes of the iteration before, in a first-order model of the product
    /// of both factors.
    Nsgk,
    /// All atoms at once by least squares, for comparison: `D = (XᵀX)⁻¹XᵀY`, solved on the CPU in
    /// f64.
    Mod,
}

impl UpdateRule {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Ksvd, Self::AkSvd, Self::Sgk, Self::Nsgk, Self::Mod];

    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ksvd => "ksvd",
            Self::AkSvd => "ak-svd",
            Self::Sgk => "sgk",
            Self::Nsgk => "nsgk",
            Self::Mod => "mod",
        }
    }
}

impl std::str::FromStr for UpdateRule {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("the rule of update must be one of {names}, got {name}")
        })
    }
}

/// What takes the place of an atom that is hardly used or too much like another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replace {
    /// Atoms are never replaced.
    None,
    /// A signal at random.
    Random,
    /// The signal that is represented worst; of several for several atoms none is like another.
    #[default]
    WorstRepresented,
}

impl Replace {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::None, Self::Random, Self::WorstRepresented];

    /// The lower-case name that command lines and files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Random => "random",
            Self::WorstRepresented => "worst-represented",
        }
    }
}

impl std::str::FromStr for Replace {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|it| it.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("what replaces atoms must be one of {names}, got {name}")
        })
    }
}

/// How [`DictionaryTrainer`](super::DictionaryTrainer) learns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct DictionaryTrainConfig {
    /// How atoms follow from codes. Default AK-SVD; [nonnegative
    /// atoms](DictionaryConfig::nonnegative_atoms) need SGK or NSGK.
    pub rule: UpdateRule,
    /// Atoms updated at once (ñ), at least 1; 1 is the exact sequential sweep, `n_atoms` or more
    /// all at once. Default all, which is as good (Irofti 2016, section 3) and keeps every core
    /// busy. MOD takes no notice. Nonnegative atoms, many of which a signal uses, want 1.
    pub group: usize,
    /// Iterations. Default 50.
    pub iterations: usize,
    /// How signals are coded, in training and by the dictionary that it gives, whose configuration
    /// takes it; files have it there. Default: as the dictionary's configuration says.
    #[serde(skip)]
    pub coder: Option<SparseCoder>,
    /// What takes the place of bad atoms. Default the worst represented signals.
    pub replace: Replace,
    /// An atom that fewer signals use is replaced, unless [`replace`](Self::replace) is none.
    /// Default 4.
    pub min_uses: usize,
    /// An atom is replaced when its `|d_i·d_j|` with an earlier one is above this, in (0, 1],
    /// unless [`replace`](Self::replace) is none. Default 0.99.
    pub max_coherence: Option<f64>,
    /// `γ` of the penalty `γ Σ_{i≠j} (d_i·d_j)²` on the atoms, in squared units of the signals, at
    /// least 0. Not for MOD. Default 0.
    pub coherence_penalty: f64,
    /// The first atoms, which are used but never changed: a constant one for the mean, say. Default
    /// 0.
    pub n_fixed: usize,
}

impl Default for DictionaryTrainConfig {
    fn default() -> Self {
        Self {
            rule: UpdateRule::AkSvd,
            group: usize::MAX,
            iterations: 50,
            coder: None,
            replace: Replace::WorstRepresented,
            min_uses: 4,
            max_coherence: Some(0.99),
            coherence_penalty: 0.,
            n_fixed: 0,
        }
    }
}

impl DictionaryTrainConfig {
    /// # Errors
    /// When a field is out of its range for a dictionary of `n_atoms`; the message names it.
    pub fn validate(&self, n_atoms: usize) -> Result<()> {
        const OP: &str = "DictionaryTrainConfig";
        at_least_one(OP, "group", self.group)?;
        check_coder(OP, self.coder.as_ref(), n_atoms)?;
        check_care(OP, self.max_coherence, self.n_fixed, n_atoms)?;
        range(OP, "coherence_penalty", self.coherence_penalty, "at least 0", |x| x >= 0.)?;
        if self.rule == UpdateRule::Mod && self.coherence_penalty > 0. {
            candle::bail!(
                "{OP}: coherence_penalty must be 0 with mod, which has none, got {}; take another rule",
                self.coherence_penalty
            )
        }
        Ok(())
    }
}

/// How [`OnlineDictionaryTrainer`](super::OnlineDictionaryTrainer) learns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct OnlineDictionaryTrainConfig {
    /// How signals are coded, in training and by the dictionary that it gives, whose configuration
    /// takes it; files have it there. Default: as the dictionary's configuration says. [Orthogonal
    /// least squares](PursuitMethod::Ols) learns better atoms for either pursuit.
    #[serde(skip)]
    pub coder: Option<SparseCoder>,
    /// How fast what was seen is forgotten (`ρ`), at least 0: with batch `t` the statistics of
    /// those before weigh `(1 − 1/t)^ρ`, so that the last `t/ρ` batches or so count. 0 never
    /// forgets. Default 20: the best of 0 to 40 after ten passes over 12,288 image patches, in
    /// batches of 32 to 2,048; a single pass wants 5.
    pub forgetting: f64,
    /// Sweeps over the atoms for a batch, at least 1. Default 1.
    pub sweeps: usize,
    /// What takes the place of bad atoms, from the batch at hand. Default the worst represented
    /// signals.
    pub replace: Replace,
    /// An atom that this many signals in a row did not use is replaced, at least 1, unless
    /// [`replace`](Self::replace) is none. Default 10,000.
    pub max_idle: usize,
    /// An atom is replaced when its `|d_i·d_j|` with an earlier one is above this, in (0, 1],
    /// unless [`replace`](Self::replace) is none. Default 0.99.
    pub max_coherence: Option<f64>,
    /// The first atoms, which are used but never changed. Default 0.
    pub n_fixed: usize,
}

impl Default for OnlineDictionaryTrainConfig {
    fn default() -> Self {
        Self {
            coder: None,
            forgetting: 20.,
            sweeps: 1,
            replace: Replace::WorstRepresented,
            max_idle: 10_000,
            max_coherence: Some(0.99),
            n_fixed: 0,
        }
    }
}

impl OnlineDictionaryTrainConfig {
    /// # Errors
    /// When a field is out of its range for a dictionary of `n_atoms`; the message names it.
    pub fn validate(&self, n_atoms: usize) -> Result<()> {
        const OP: &str = "OnlineDictionaryTrainConfig";
        check_coder(OP, self.coder.as_ref(), n_atoms)?;
        range(OP, "forgetting", self.forgetting, "at least 0", |x| x >= 0.)?;
        at_least_one(OP, "sweeps", self.sweeps)?;
        at_least_one(OP, "max_idle", self.max_idle)?;
        check_care(OP, self.max_coherence, self.n_fixed, n_atoms)
    }
}

fn check_coder(op: &str, coder: Option<&SparseCoder>, n_atoms: usize) -> Result<()> {
    let Some(coder) = coder else { return Ok(()) };
    at_least_one(op, "chunk", coder.chunk.unwrap_or(1))?;
    check_nonzero(op, coder.n_nonzero, n_atoms)
}

fn check_nonzero(op: &str, n_nonzero: usize, n_atoms: usize) -> Result<()> {
    if n_nonzero == 0 || n_nonzero > n_atoms {
        candle::bail!("{op}: n_nonzero must be in 1..={n_atoms}, the number of atoms, got {n_nonzero}")
    }
    Ok(())
}

pub(crate) fn check_care(op: &str, max_coherence: Option<f64>, n_fixed: usize, n_atoms: usize) -> Result<()> {
    if let Some(limit) = max_coherence {
        range(op, "max_coherence", limit, "in (0, 1]", |x| x > 0. && x <= 1.)?;
    }
    if n_fixed > n_atoms {
        candle::bail!("{op}: n_fixed must be at most {n_atoms}, the number of atoms, got {n_fixed}")
    }
    Ok(())
}
