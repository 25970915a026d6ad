//! What a sparse autoencoder is, and what its cost weighs.
use crate::check::{at_least_one, range};
use crate::prepare::{check_inputs, n_inputs};
use crate::rbm::precision_name;
use candle::Result;
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::Precision;
use chandlery_ops::layers::Activation;
use serde::{Deserialize, Serialize};

/// What the outputs are of their input `z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decoder {
    /// `1 / (1 + e⁻ᶻ)`, for rows in `[0, 1]`.
    #[default]
    Sigmoid,
    /// `z`, for real-valued rows such as whitened ones.
    Linear,
}

impl From<Decoder> for Activation {
    fn from(decoder: Decoder) -> Self {
        match decoder {
            Decoder::Sigmoid => Self::Sigmoid,
            Decoder::Linear => Self::Identity,
        }
    }
}

/// How the first weights are drawn; biases are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Uniform in `±√(6 / (n_visible + n_hidden + 1))`, as in Ng's exercise.
    #[default]
    Uniform,
    /// Normal with mean 0 and standard deviation [`START_STDEV`], as in Klaus and Welles.
    Gaussian,
}

impl Start {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The standard deviation of [`Start::Gaussian`].
pub const START_STDEV: f64 = 0.01;

/// What a [`SparseAutoencoder`](super::SparseAutoencoder) is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseAutoencoderConfig {
    /// Values that it reads and gives back, at least 1.
    pub n_visible: usize,
    /// Features, at least 1.
    pub n_hidden: usize,
    /// What the outputs are. Default sigmoid.
    #[serde(default)]
    pub decoder: Decoder,
    /// How the first weights are drawn. Default uniform.
    #[serde(default, skip_serializing_if = "Start::is_default")]
    pub start: Start,
    /// What is done to raw rows before the model reads them. Default: floats as they are, bytes
    /// over 255.
    #[serde(default, skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

crate::model::model_config!(SparseAutoencoderConfig, |config: &SparseAutoencoderConfig| config.n_visible);

impl SparseAutoencoderConfig {
    /// Sizes have no default; everything else does.
    pub fn new(n_visible: usize, n_hidden: usize) -> Self {
        Self {
            n_visible,
            n_hidden,
            decoder: Decoder::default(),
            start: Start::default(),
            preparation: Preparation::default(),
            image: None,
        }
    }

    /// # Errors
    /// When a size is 0, or the preparation or the image is for rows of another width.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SparseAutoencoderConfig";
        at_least_one(OP, "n_visible", self.n_visible)?;
        at_least_one(OP, "n_hidden", self.n_hidden)?;
        check_inputs(OP, &self.preparation, self.n_visible, self.image).map(drop)
    }

    /// Values in a raw row.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.n_visible)
    }

    /// The largest magnitude of a weight that is drawn by [`Start::Uniform`].
    pub(super) fn limit(&self) -> f64 {
        (6. / (self.n_visible + self.n_hidden + 1) as f64).sqrt()
    }

    /// Entries of one weight matrix.
    pub(super) fn n_weights(&self) -> usize {
        self.n_visible * self.n_hidden
    }

    /// Entries of all parameters.
    pub fn n_parameters(&self) -> usize {
        2 * self.n_weights() + self.n_visible + self.n_hidden
    }
}

/// What the cost weighs; the defaults are those of the tutorial for patches of natural images.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CostConfig {
    /// `λ`, the factor on half the sum of squared weights, at least 0. Default 1e-4.
    pub weight_decay: f64,
    /// `β`, the factor on the sparsity penalty, at least 0. Default 3.
    pub sparsity_weight: f64,
    /// `ρ`, the mean activation that is wanted of each feature, in (0, 1). Default 0.01; 0.1 for
    /// digits.
    pub sparsity_target: f64,
    /// Of the matrix products of f32 rows. Default f32, on a GPU also by numbers in two parts, with
    /// the precision of f32 ([`product_of_split_`](chandlery_ops::layers::product_of_split_),
    /// [`gemm_split_`](chandlery_ops::layers::gemm_split_)); small networks have f32 products in place
    /// of TF32 ones.
    #[serde(with = "precision_name")]
    pub precision: Precision,
}

impl Default for CostConfig {
    fn default() -> Self {
        Self { weight_decay: 1e-4, sparsity_weight: 3., sparsity_target: 0.01, precision: Precision::F32 }
    }
}

impl CostConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "CostConfig";
        range(OP, "weight_decay", self.weight_decay, "at least 0", |x| x >= 0.)?;
        range(OP, "sparsity_weight", self.sparsity_weight, "at least 0", |x| x >= 0.)?;
        range(OP, "sparsity_target", self.sparsity_target, "in (0, 1)", |x| x > 0. && x < 1.)
    }
}
