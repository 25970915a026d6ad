//! What a network with labels is, and how it is trained.
use super::labelled_rbm::check_classes;
use crate::check::{at_least_one, check_names, range};
use crate::prepare::{check_inputs, n_inputs};
use crate::schedule::Schedule;
use candle::Result;
use chandlery_datasets::{ImageShape, KnownClasses, Preparation};
use chandlery_ops::Precision;
use serde::{Deserialize, Serialize};

/// What a [`LabelledDbn`](super::LabelledDbn) is, the content of `config.json`. All units are
/// binary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelledDbnConfig {
    /// Units of each layer, the input's first, the hidden ones of the RBM on top last; at least two
    /// layers.
    pub sizes: Vec<usize>,
    /// Label units beside the last layer but one, at least 2.
    pub n_classes: usize,
    /// What is done to raw rows before the network reads them. Default: floats as they are, bytes
    /// over 255.
    #[serde(default)]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
    /// Names of the classes in the order of the label units; none where they go by their numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
}

crate::model::model_config!(LabelledDbnConfig, |config: &LabelledDbnConfig| config
    .sizes
    .first()
    .copied()
    .unwrap_or(0));

impl LabelledDbnConfig {
    /// The classes of the labels.
    pub fn classes(&self) -> KnownClasses<'_> {
        KnownClasses { names: self.class_names.as_deref(), n: self.n_classes }
    }

    /// Sizes have no default; everything else does.
    pub fn new(sizes: &[usize], n_classes: usize) -> Self {
        let (preparation, image, class_names) = (Preparation::default(), None, None);
        Self { sizes: sizes.to_vec(), n_classes, preparation, image, class_names }
    }

    /// Layers below the RBM on top, the input not counted.
    pub fn n_lower(&self) -> usize {
        self.sizes.len().saturating_sub(2)
    }

    /// # Errors
    /// When there are fewer than two layers or classes, a size is 0, the preparation gives rows of
    /// another width, the image is not of the size of raw rows, or there are not as many names as
    /// classes.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "LabelledDbnConfig";
        if self.sizes.len() < 2 {
            candle::bail!("{OP}: sizes must hold the input's and at least one layer's, got {:?}", self.sizes)
        }
        self.sizes.iter().enumerate().try_for_each(|(i, n)| at_least_one(OP, &format!("sizes[{i}]"), *n))?;
        check_classes(OP, self.n_classes)?;
        check_names(OP, self.class_names.as_deref(), self.n_classes)?;
        check_inputs(OP, &self.preparation, self.sizes[0], self.image).map(drop)
    }

    /// Values in a raw row; those that the network reads where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.sizes.first().copied().unwrap_or(0))
    }
}

/// Which weights learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The RBM on top alone, from the means of the layers below: how it comes to know the labels.
    Top,
    /// All weights, by the up-down algorithm.
    #[default]
    UpDown,
}

/// How a network with labels is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelledDbnTrainConfig {
    /// Which weights learn. Default all.
    pub stage: Stage,
    /// Rows of a minibatch, at least 1; also the number of persistent chains. Default 100.
    pub batch: usize,
    /// Step along the mean gradient of a minibatch, at least 0. Default 0.1, that of contrastive
    /// divergence; it should fall, since recognition must keep up with generation and the other way
    /// round.
    pub learning_rate: Schedule,
    /// What the step of the labels' weights and biases is multiplied by, above 0. Default 10: of
    /// ten classes a label is on in one row of ten, so that its weights see a tenth of what those
    /// of the features do. The paper has 1.
    pub label_rate: f64,
    /// Share of the last step that is kept, in [0, 1). Default 0.
    pub momentum: Schedule,
    /// Gibbs steps of the RBM on top, whole numbers of at least 1. Default 3; the paper goes on to
    /// 6 and 10.
    pub k: Schedule,
    /// Whether the chains of the RBM on top go on from step to step instead of starting at the
    /// data. Default `false`, as in the paper; `true` makes a model that can be sampled from random
    /// states, where few Gibbs steps from the data leave modes that no row is near.
    pub persistent: bool,
    /// L2 decay of all weights, at least 0. Default 0.
    pub l2: f64,
    /// Of the matrix products: f32 or tf32.
    #[serde(with = "crate::rbm::precision_name")]
    pub precision: Precision,
}

impl Default for LabelledDbnTrainConfig {
    fn default() -> Self {
        Self {
            stage: Stage::UpDown,
            batch: 100,
            learning_rate: Schedule::constant(0.1),
            label_rate: 10.,
            momentum: Schedule::constant(0.),
            k: Schedule::constant(3.),
            persistent: false,
            l2: 0.,
            precision: Precision::F32,
        }
    }
}

impl LabelledDbnTrainConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "LabelledDbnTrainConfig";
        at_least_one(OP, "batch", self.batch)?;
        self.learning_rate.validate(OP, "learning_rate", "at least 0", |x| x >= 0.)?;
        self.momentum.validate(OP, "momentum", "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "label_rate", self.label_rate, "above 0", |x| x > 0.)?;
        let whole = |x: f64| x >= 1. && x.fract() == 0. && x <= f64::from(u32::MAX);
        if matches!(self.k, Schedule::Linear { .. }) {
            candle::bail!(
                "{OP}: k must be constant or in steps, since it is a whole number, got {:?}",
                self.k
            )
        }
        self.k.validate(OP, "k", "a whole number of at least 1", whole)?;
        range(OP, "l2", self.l2, "at least 0", |x| x >= 0.)?;
        if self.precision == Precision::Bf16 {
            candle::bail!("{OP}: precision must be f32 or tf32, got bf16")
        }
        Ok(())
    }

    /// Gibbs steps in `epoch`, counted from 0.
    pub fn k_at(&self, epoch: usize) -> usize {
        self.k.at(epoch) as usize
    }
}
