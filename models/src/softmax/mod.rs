//! Multinomial logistic regression: the linear classifier that measures the quality of features.
//!
//! ```text
//! z = x Wᵀ + b                                     logits
//! p(y = c | x) = exp(z_c) / Σ_k exp(z_k)           softmax
//! J = -1/n Σ_i ln p(y_i | x_i) + l2/2 · Σ W²       objective; b is not decayed
//! ```
//!
//! | symbol | field      | shape                     |
//! |--------|------------|---------------------------|
//! | `x`    | argument   | `[n_samples, n_features]` |
//! | `y`    | `labels`   | `[n_samples]`, u32        |
//! | `W`    | `weight`   | `[n_classes, n_features]` |
//! | `b`    | `bias`     | `[n_classes]`             |
//! | `l2`   | `l2`       | scalar                    |
//!
//! Source: Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4; minimised by
//! [L-BFGS](crate::optim::lbfgs) on all samples, over features that are standardised first, so that
//! one `l2` suits features of any units.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::softmax::Softmax;
//! # fn main() -> candle::Result<()> {
//! // Three classes in the plane: right, up, and everything that is neither.
//! let weight = Tensor::new(&[[1f32, 0.], [0., 1.], [0., 0.]], &Cpu)?;
//! let bias = Tensor::new(&[0f32, 0., 0.5], &Cpu)?;
//! let softmax = Softmax::from_tensors(weight, bias)?;
//! let x = Tensor::new(&[[2f32, 1.], [0., 3.], [0.25, 0.25]], &Cpu)?;
//! // Logits 2, 1, 0.5; then 0, 3, 0.5; then 0.25, 0.25, 0.5.
//! assert_eq!(softmax.predict(&x)?.to_vec1::<u32>()?, [0, 1, 2]);
//! let labels = Tensor::new(&[0u32, 1, 1], &Cpu)?;
//! assert_eq!(softmax.accuracy(&x, &labels)?, 2. / 3.);
//! # Ok(()) }
//! ```
mod fit;
#[cfg(test)]
mod tests;

pub use fit::{Fit, SoftmaxTrainConfig};

use crate::check::{at_least_one, check_names};
use crate::feedforward::{Activation, Connections, LayerConfig};
use crate::model::Model;
use crate::prepare::check_inputs;
use crate::pretrained::ModelType;
use candle::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{Linear, VarBuilder};
use chandlery_datasets::Preparation;
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{add, equal, exp, ln, sub};
use serde::{Deserialize, Serialize};

/// What a [`Softmax`] is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxConfig {
    /// Values of a row that it reads, at least 1.
    pub n_features: usize,
    /// Classes, at least 2.
    pub n_classes: usize,
    /// What is done to raw rows before it reads them. Default: floats as they are, bytes over 255.
    #[serde(default, skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
    /// Names of the classes in the order of their numbers; none where they go by these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
}

crate::model::model_config!(SoftmaxConfig, |config: &SoftmaxConfig| config.n_features);

impl SoftmaxConfig {
    /// Sizes have no default; everything else does.
    pub fn new(n_features: usize, n_classes: usize) -> Self {
        Self { n_features, n_classes, preparation: Preparation::default(), class_names: None }
    }

    /// # Errors
    /// When there are fewer than 2 classes or no features, the preparation gives rows of another
    /// width, or there are not as many names as classes.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SoftmaxConfig";
        at_least_one(OP, "n_features", self.n_features)?;
        if self.n_classes < 2 {
            candle::bail!("{OP}: n_classes must be at least 2, got {}", self.n_classes)
        }
        check_names(OP, self.class_names.as_deref(), self.n_classes)?;
        check_inputs(OP, &self.preparation, self.n_features, None).map(drop)
    }

    /// The classifier as a layer of a network.
    fn layer(&self) -> LayerConfig {
        LayerConfig {
            n_inputs: self.n_features,
            n_outputs: self.n_classes,
            activation: Activation::Identity,
            connections: Connections::Dense,
        }
    }
}

/// A linear classifier; see the [module](self) for the equations.
///
/// `weight` and `bias` are those of a [`Linear`], so it loads anywhere one does.
#[derive(Debug, Clone)]
pub struct Softmax {
    config: SoftmaxConfig,
    weight: Tensor,
    bias: Tensor,
}

impl Softmax {
    /// A classifier with random weights, uniform as those of a [linear
    /// layer](crate::feedforward::Feedforward::init), and biases 0, in f32. A [fit](Self::fit)
    /// needs none.
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn init(config: SoftmaxConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let weight = config.layer().random_weight(philox, device)?;
        Ok(Self { weight, bias: Tensor::zeros(config.n_classes, DType::F32, device)?, config })
    }

    /// A classifier from its weights, `[n_classes, n_features]`, and bias, `[n_classes]`.
    ///
    /// # Errors
    /// When the shapes disagree, or there are fewer than 2 classes or no features.
    pub fn from_tensors(weight: Tensor, bias: Tensor) -> Result<Self> {
        let (n_classes, n_features) = weight.dims2()?;
        if n_classes < 2 || n_features == 0 {
            candle::bail!(
                "softmax: there must be at least 2 classes and 1 feature, got weight {:?}",
                weight.dims()
            )
        }
        if bias.dims() != [n_classes] {
            candle::bail!("softmax: bias must have shape [{n_classes}], got {:?}", bias.dims())
        }
        Ok(Self { config: SoftmaxConfig::new(n_features, n_classes), weight, bias })
    }

    /// Fits a classifier to features `x`, `[n_samples, n_features]` f32 and finite, and their
    /// labels, `[n_samples]` u32 below `n_classes`, starting from zero weights.
    ///
    /// The objective has one minimum where `l2` is above 0, so that devices agree to rounding; the
    /// same arguments on the same device give the same bits. Cost: an iteration is
    /// `4 n_samples · n_features · n_classes` FLOP, and a copy of the features stands beside them:
    /// in f64 up to 4 million values, in f32 above.
    ///
    /// # Errors
    /// When shapes, types or labels are not as said, `config` is out of range, or the objective
    /// is not finite (the message names the evaluation).
    pub fn fit(
        x: &Tensor,
        labels: &Tensor,
        n_classes: usize,
        config: &SoftmaxTrainConfig,
    ) -> Result<(Self, Fit)> {
        fit::fit(x, labels, n_classes, config, &mut |_, _| {})
    }

    /// [`fit`](Self::fit) that tells `progress` after each evaluation of the objective how many
    /// there were, and of how many: about as many as iterations, and fewer where the minimum is
    /// reached before.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn fit_with_progress(
        x: &Tensor,
        labels: &Tensor,
        n_classes: usize,
        config: &SoftmaxTrainConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Self, Fit)> {
        fit::fit(x, labels, n_classes, config, progress)
    }

    /// `ln p(y = c | x)`: `[n_samples, n_features]` in, `[n_samples, n_classes]` out, all at most
    /// 0.
    ///
    /// # Errors
    /// When `x` has another width, type or device.
    pub fn log_probabilities(&self, x: &Tensor) -> Result<Tensor> {
        log_softmax(&self.forward(x)?, 1)
    }

    /// The most probable class of each row, `[n_samples]` u32; of equals the lowest.
    ///
    /// # Errors
    /// As [`log_probabilities`](Self::log_probabilities).
    pub fn predict(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x)?.argmax(D::Minus1)
    }

    /// The share of rows whose most probable class is the label, in `[0, 1]`.
    ///
    /// # Errors
    /// When `x` does not fit, or `labels` is not `[n_samples]` u32 with at least one sample.
    pub fn accuracy(&self, x: &Tensor, labels: &Tensor) -> Result<f64> {
        let n_samples = check_samples("softmax.accuracy", x, labels)?;
        let number = |t: &Tensor| t.to_dtype(DType::F64);
        let hits = equal(&number(&self.predict(x)?)?, &number(labels)?)?.sum_all()?;
        Ok(hits.to_scalar::<f64>()? / n_samples as f64)
    }

    /// The same classifier as a candle layer.
    pub fn linear(&self) -> Linear {
        Linear::new(self.weight.clone(), Some(self.bias.clone()))
    }

    /// The weights, `[n_classes, n_features]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[n_classes]`.
    pub fn bias(&self) -> &Tensor {
        &self.bias
    }

    /// What the classifier is.
    pub fn config(&self) -> &SoftmaxConfig {
        &self.config
    }

    /// Inputs a row must have.
    pub fn n_features(&self) -> usize {
        self.config.n_features
    }

    /// Classes, at least 2.
    pub fn n_classes(&self) -> usize {
        self.config.n_classes
    }
}

impl Model for Softmax {
    type Config = SoftmaxConfig;
    const TYPE: ModelType = ModelType::Softmax;

    /// `weight` `[n_classes, n_features]` and `bias` `[n_classes]`.
    fn build(config: SoftmaxConfig, vb: &VarBuilder) -> Result<Self> {
        let weight =
            vb.get_with_hints((config.n_classes, config.n_features), "weight", config.layer().drawn())?;
        Ok(Self { weight, bias: vb.get(config.n_classes, "bias")?, config })
    }

    fn init(config: SoftmaxConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &SoftmaxConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.weight
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        vec![("weight".to_owned(), self.weight.clone()), ("bias".to_owned(), self.bias.clone())]
    }
}

impl Module for Softmax {
    /// The logits of raw rows, `[n_samples, n_inputs]` to `[n_samples, n_classes]`.
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        let x = self.prepare(rows)?;
        match x.dims() {
            [_, width] if *width == self.n_features() => {}
            got => {
                candle::bail!("softmax: x must have shape [n_samples, {}], got {got:?}", self.n_features())
            }
        }
        add(&x.matmul(&self.weight.t()?)?, &self.bias)
    }
}

/// `z − max z − ln Σ exp(z − max z)` along a dimension.
fn log_softmax(z: &Tensor, dim: usize) -> Result<Tensor> {
    let below = sub(z, &z.max_keepdim(dim)?)?;
    let total = exp(&below)?.sum_keepdim(dim)?;
    sub(&below, &ln(&total)?)
}

/// Checks that `labels` is `[n_samples]` u32 for the rows of `x`, and returns `n_samples`, at least
/// 1.
fn check_samples(op: &str, x: &Tensor, labels: &Tensor) -> Result<usize> {
    let n_samples = x.dim(0)?;
    if labels.dims() != [n_samples] || labels.dtype() != DType::U32 {
        candle::bail!(
            "{op}: labels must have shape [{n_samples}] and type u32, got {:?} {:?}",
            labels.dims(),
            labels.dtype()
        )
    }
    if n_samples == 0 {
        candle::bail!("{op}: there must be at least 1 sample, got none")
    }
    Ok(n_samples)
}
