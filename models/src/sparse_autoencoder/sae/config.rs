//! What a sparse autoencoder with latents is.
use crate::check::at_least_one;
use crate::prepare::{check_inputs, n_inputs};
use candle::Result;
use candle_nn::Init;
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::codes::MOST_GROUPS;
use serde::{Deserialize, Serialize};

/// Which latents are active: `f` of the [module](super)'s equations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Those above 0. Few of them by a penalty on their sum, each times the length of its decoder
    /// row (Bricken et al. 2023; Conerly et al. 2024).
    Relu,
    /// The `k` largest of a row (Gao et al. 2024).
    TopK {
        /// At least 1, at most the latents.
        k: usize,
    },
    /// The `k · batch` largest of a minibatch; of new rows those above a threshold, which follows
    /// the smallest of them (Bussmann, Leask and Nanda 2024).
    BatchTopK {
        /// The mean number of a row, at least 1, at most the latents.
        k: usize,
    },
    /// Those above a threshold of their own, which is learned (Rajamanoharan et al., "Jumping
    /// ahead", 2024).
    JumpRelu,
    /// Those that a gate lets through, which has its own bias (Rajamanoharan et al., "Improving
    /// dictionary learning with gated sparse autoencoders", 2024).
    Gated,
    /// As [`BatchTopK`](Self::BatchTopK), where the first latents reconstruct the rows by
    /// themselves (Bussmann, Nabeshima, Karvonen and Nanda 2025).
    Matryoshka {
        /// The mean number of a row, at least 1, at most the latents.
        k: usize,
        /// How many of the first latents reconstruct by themselves, in ascending order; the last is
        /// all of them.
        prefixes: Vec<usize>,
    },
}

impl Kind {
    /// How many latents are chosen, where it is fixed: of each row, or in the mean of a minibatch.
    pub fn k(&self) -> Option<usize> {
        match self {
            Self::TopK { k } | Self::BatchTopK { k } | Self::Matryoshka { k, .. } => Some(*k),
            Self::Relu | Self::JumpRelu | Self::Gated => None,
        }
    }

    /// Nested prefixes as Bussmann et al. have them by custom: a sixteenth, an eighth, a quarter
    /// and a half of the latents, and all of them.
    pub fn matryoshka(k: usize, n_latents: usize) -> Self {
        let mut prefixes: Vec<usize> = [16, 8, 4, 2, 1].map(|part| n_latents / part).into();
        prefixes.retain(|&n| n > 0);
        prefixes.dedup();
        Self::Matryoshka { k, prefixes }
    }
}

/// What a [`Sae`](super::Sae) is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaeConfig {
    /// Values that it reads, at least 1.
    pub n_visible: usize,
    /// Latents, at least 1.
    pub n_latents: usize,
    /// Which of them are active.
    pub kind: Kind,
    /// Values that it gives back, of another matrix than the one that it reads: then it is a
    /// transcoder. None, the default, for the values that it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_targets: Option<usize>,
    /// Whether the decoder's bias is subtracted before the encoder reads a row. Default yes; no for
    /// transcoders, whose targets are others.
    #[serde(default = "yes")]
    pub subtract_bias: bool,
    /// Whether a linear map of the row is added to what is given back. Default no.
    #[serde(default)]
    pub skip: bool,
    /// What is done to raw rows before the model reads them. Default: floats as they are, bytes
    /// over 255.
    #[serde(default, skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

fn yes() -> bool {
    true
}

crate::model::model_config!(SaeConfig, |config: &SaeConfig| config.n_visible);

/// The threshold that JumpReLU starts with, by custom.
pub const START_THRESHOLD: f64 = 0.01;

/// A parameter beside the weights of encoder and decoder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub name: &'static str,
    pub shape: Vec<usize>,
    /// What all its entries start with.
    pub start: f64,
    /// Whether it has an entry for each latent.
    pub of_latents: bool,
}

impl Part {
    pub(super) fn init(&self) -> Init {
        Init::Const(self.start)
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl SaeConfig {
    /// Sizes and kind have no default; everything else does.
    pub fn new(n_visible: usize, n_latents: usize, kind: Kind) -> Self {
        Self {
            n_visible,
            n_latents,
            kind,
            n_targets: None,
            subtract_bias: true,
            skip: false,
            preparation: Preparation::default(),
            image: None,
        }
    }

    /// One whose targets are `n_targets` values of another matrix.
    pub fn transcoder(n_visible: usize, n_latents: usize, n_targets: usize, kind: Kind) -> Self {
        Self { n_targets: Some(n_targets), subtract_bias: false, ..Self::new(n_visible, n_latents, kind) }
    }

    /// # Errors
    /// When a size is 0 or does not fit another, or the preparation or the image is for rows of
    /// another width.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SaeConfig";
        at_least_one(OP, "n_visible", self.n_visible)?;
        at_least_one(OP, "n_latents", self.n_latents)?;
        at_least_one(OP, "n_targets", self.n_targets.unwrap_or(1))?;
        let n = self.n_latents;
        if let Some(k) = self.kind.k()
            && !(1..=n).contains(&k)
        {
            candle::bail!("{OP}: k must be 1 to {n}, the number of latents, got {k}")
        }
        if let Kind::Matryoshka { prefixes, .. } = &self.kind
            && (prefixes.first().is_none_or(|&first| first == 0)
                || prefixes.last() != Some(&n)
                || prefixes.len() > MOST_GROUPS
                || !prefixes.is_sorted_by(|a, b| a < b))
        {
            candle::bail!(
                "{OP}: prefixes must be 1 to {MOST_GROUPS} and ascend from 1 or more to {n}, the latents, got {prefixes:?}"
            )
        }
        if self.subtract_bias && self.n_targets.is_some() {
            candle::bail!(
                "{OP}: subtract_bias must be false for a transcoder, whose bias is one of its targets, got true"
            )
        }
        check_inputs(OP, &self.preparation, self.n_visible, self.image).map(drop)
    }

    /// Values in a raw row.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.n_visible)
    }

    /// Ends of the groups of latents that have reconstructions of their own.
    pub(super) fn ends(&self) -> Vec<usize> {
        match &self.kind {
            Kind::Matryoshka { prefixes, .. } => prefixes.clone(),
            _ => vec![self.n_latents],
        }
    }

    /// Values that it gives back.
    pub fn n_outputs(&self) -> usize {
        self.n_targets.unwrap_or(self.n_visible)
    }

    /// The parameters beside the weights of encoder and decoder.
    pub(super) fn parts(&self) -> Vec<Part> {
        let part =
            |name, shape: &[usize], start| Part { name, shape: shape.to_vec(), start, of_latents: false };
        let latents = |name, start| Part { of_latents: true, ..part(name, &[self.n_latents], start) };
        let mut parts = vec![latents(BIAS, 0.), part(DECODER_BIAS, &[self.n_outputs()], 0.)];
        match self.kind {
            Kind::Relu | Kind::TopK { .. } => {}
            Kind::BatchTopK { .. } | Kind::Matryoshka { .. } => parts.push(part(THRESHOLD, &[1], 0.)),
            Kind::JumpRelu => parts.push(latents(THRESHOLD, START_THRESHOLD)),
            Kind::Gated => parts.extend([latents(MAGNITUDE_BIAS, 0.), latents(MAGNITUDE_SCALE, 0.)]),
        }
        if self.skip {
            parts.push(part(SKIP, &[self.n_outputs(), self.n_visible], 0.));
        }
        parts
    }
}

/// Names of parameters in files: those of sparsify and SAELens.
pub(super) const ENCODER: &str = "encoder.weight";
pub(super) const BIAS: &str = "encoder.bias";
pub(super) const DECODER: &str = "W_dec";
pub(super) const DECODER_BIAS: &str = "b_dec";
pub(super) const THRESHOLD: &str = "threshold";
pub(super) const MAGNITUDE_BIAS: &str = "b_mag";
pub(super) const MAGNITUDE_SCALE: &str = "r_mag";
pub(super) const SKIP: &str = "W_skip";
