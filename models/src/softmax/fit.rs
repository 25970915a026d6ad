//! Minimising the objective of [`Softmax`].
use super::{Softmax, check_samples};
use crate::optim::{Lbfgs, LbfgsConfig, Outcome};
use candle::{D, DType, Result, Tensor, Var};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use chandlery_ops::{Philox, gather_rows};
use serde::{Deserialize, Serialize};

/// What minimises the objective of a [`Softmax`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Minimiser {
    /// Adam on minibatches: some epochs over many samples, to an accuracy at which features can be compared.
    #[default]
    Adam,
    /// [`Lbfgs`] on all samples at once: features of any scale, and the minimum itself where there are few samples. It reads no
    /// `learning_rate`, `batch`, `tolerance` or `halvings`, and an epoch is an iteration.
    Lbfgs,
}

/// Settings for fitting a [`Softmax`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FitConfig {
    /// Factor on half the sum of squared weights, at least 0. The default, 1e-4, matters only if there are many features for the
    /// number of samples.
    pub l2: f64,
    /// The method.
    pub minimiser: Minimiser,
    /// Adam's initial learning rate, above 0; it halves when an epoch lowers the objective too little. 0.005 suits features
    /// between 0 and 1.
    pub learning_rate: f64,
    /// Samples per step of Adam, at least 1; the last step of an epoch may have fewer.
    pub batch: usize,
    /// Largest number of epochs, or of iterations of L-BFGS, at least 1.
    pub max_epochs: usize,
    /// An epoch of Adam that lowers the objective by less than this share halves the learning rate; at least 0.
    pub tolerance: f64,
    /// Adam ends when the learning rate would be halved more often than this.
    pub halvings: usize,
    /// Whether features are standardised to mean 0 and variance 1 for the fit. The resulting weights apply to the original
    /// features; a constant feature gets the weight 0.
    pub standardise: bool,
}

impl Default for FitConfig {
    fn default() -> Self {
        Self {
            l2: 1e-4,
            minimiser: Minimiser::default(),
            learning_rate: 0.005,
            batch: 100,
            max_epochs: 100,
            tolerance: 0.01,
            halvings: 4,
            standardise: false,
        }
    }
}

impl FitConfig {
    fn validate(&self) -> Result<()> {
        let Self { l2, learning_rate, batch, max_epochs, tolerance, .. } = self;
        for (name, value) in [("l2", l2), ("tolerance", tolerance)] {
            if !(value.is_finite() && *value >= 0.) {
                candle::bail!("FitConfig: {name} must be a finite number of at least 0, got {value}")
            }
        }
        if !(learning_rate.is_finite() && *learning_rate > 0.) {
            candle::bail!("FitConfig: learning_rate must be a finite number above 0, got {learning_rate}")
        }
        if *batch == 0 || *max_epochs == 0 {
            candle::bail!(
                "FitConfig: batch and max_epochs must be at least 1, got batch = {batch}, max_epochs = {max_epochs}"
            )
        }
        Ok(())
    }
}

/// The result of a fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// Number of epochs run; of L-BFGS, iterations.
    pub epochs: usize,
    /// Mean objective over the last epoch, in nats; of L-BFGS, the objective at the end.
    pub objective: f64,
}

pub(super) fn fit(
    x: &Tensor,
    labels: &Tensor,
    n_classes: usize,
    config: &FitConfig,
    philox: Philox,
) -> Result<(Softmax, Fit)> {
    config.validate()?;
    check_samples("softmax.fit", x, labels)?;
    x.dims2()?;
    if x.dtype() != DType::F32 {
        candle::bail!("softmax.fit: x must be f32, got {:?}", x.dtype())
    }
    if let Some(label) = labels.to_vec1::<u32>()?.iter().find(|&&l| l as usize >= n_classes) {
        candle::bail!("softmax.fit: labels must be below n_classes = {n_classes}, got {label}")
    }
    let scaling = if config.standardise { Some(Scaling::of(x)?) } else { None };
    let (weight, bias, done) = match config.minimiser {
        Minimiser::Adam => by_adam(x, labels, n_classes, scaling.as_ref(), config, philox)?,
        Minimiser::Lbfgs => {
            let scaled = scaling.as_ref().map(|scaling| scaling.apply(x)).transpose()?;
            by_lbfgs(scaled.as_ref().unwrap_or(x), labels, n_classes, config)?
        }
    };
    let (weight, bias) = match scaling {
        Some(scaling) => scaling.fold(&weight, &bias)?,
        None => (weight, bias),
    };
    Ok((Softmax::from_tensors(weight, bias)?, done))
}

/// Weights, bias and how the fit went.
type Fitted = (Tensor, Tensor, Fit);

fn by_adam(
    x: &Tensor,
    labels: &Tensor,
    n_classes: usize,
    scaling: Option<&Scaling>,
    config: &FitConfig,
    philox: Philox,
) -> Result<Fitted> {
    let (n_samples, n_features) = x.dims2()?;
    let (x, labels) = (&x.contiguous()?, &labels.contiguous()?);
    let weight = Var::zeros((n_classes, n_features), DType::F32, x.device())?;
    let bias = Var::zeros(n_classes, DType::F32, x.device())?;
    // Decay belongs to the objective here; AdamW's own would also shrink the bias.
    let params = ParamsAdamW { lr: config.learning_rate, weight_decay: 0., ..ParamsAdamW::default() };
    let mut adam = AdamW::new(vec![weight.clone(), bias.clone()], params)?;

    let mut done = Fit { epochs: 0, objective: f64::INFINITY };
    let mut halvings = 0;
    let mut step = 0u64;
    while done.epochs < config.max_epochs {
        // A stream of its own for each epoch: an epoch's order depends on nothing before it.
        let order = Philox { stream: philox.stream.wrapping_add(done.epochs as u64), ..philox };
        let order = order.permutation(n_samples);
        let mut total = 0.;
        for start in (0..n_samples).step_by(config.batch) {
            let rows = config.batch.min(n_samples - start);
            let picked = &order[start..][..rows];
            let mut batch = gather_rows(x, picked)?;
            if let Some(scaling) = scaling {
                batch = scaling.apply(&batch)?;
            }
            let targets = gather_rows(labels, picked)?.unsqueeze(1)?;
            let logits = batch.matmul(&weight.t()?)?.broadcast_add(&bias)?;
            let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1)?;
            let nll = log_p.gather(&targets, 1)?.mean_all()?.neg()?;
            let objective = (nll + (weight.sqr()?.sum_all()? * (config.l2 / 2.))?)?;
            let value = f64::from(objective.to_scalar::<f32>()?);
            step += 1;
            if !value.is_finite() {
                candle::bail!(
                    "softmax.fit: the objective must be finite, got {value} at step {step}; check the features for NaN or lower learning_rate"
                )
            }
            adam.backward_step(&objective)?;
            total += value * rows as f64;
        }
        let objective = total / n_samples as f64;
        let improved = done.objective - objective > config.tolerance * done.objective.min(1e300);
        done = Fit { epochs: done.epochs + 1, objective };
        if !improved {
            halvings += 1;
            if halvings > config.halvings {
                break;
            }
            adam.set_learning_rate(adam.learning_rate() / 2.);
        }
    }
    Ok((weight.as_detached_tensor(), bias.as_detached_tensor(), done))
}

/// Norm of the gradient at which the minimum counts as reached.
const GRADIENT_TOLERANCE: f64 = 1e-4;

fn by_lbfgs(x: &Tensor, labels: &Tensor, n_classes: usize, config: &FitConfig) -> Result<Fitted> {
    let ((n_samples, n_features), l2) = (x.dims2()?, config.l2);
    let n_weights = n_classes * n_features;
    let classes = Tensor::arange(0u32, n_classes as u32, x.device())?.unsqueeze(0)?;
    let onehot = labels.unsqueeze(1)?.broadcast_eq(&classes)?.to_dtype(DType::F32)?;
    let parts = |theta: &Tensor| -> Result<Softmax> {
        let weight = theta.narrow(0, 0, n_weights)?.reshape((n_classes, n_features))?;
        Softmax::from_tensors(weight, theta.narrow(0, n_weights, n_classes)?)
    };
    let objective = |theta: &Tensor| {
        let softmax = parts(theta)?;
        let log_p = softmax.log_probabilities(x)?;
        let decay = (softmax.weight().sqr()?.sum_all()? * (0.5 * l2))?;
        let value = (decay - ((&log_p * &onehot)?.sum_all()? / n_samples as f64)?)?;
        let delta = ((log_p.exp()? - &onehot)? / n_samples as f64)?;
        let weight = (delta.t()?.matmul(x)? + (softmax.weight() * l2)?)?;
        Ok((value, Tensor::cat(&[weight.flatten_all()?, delta.sum(0)?], 0)?))
    };
    let lbfgs = LbfgsConfig {
        iterations: config.max_epochs,
        gradient_tolerance: GRADIENT_TOLERANCE,
        ..LbfgsConfig::default()
    };
    let start = Tensor::zeros(n_weights + n_classes, DType::F32, x.device())?;
    let mut lbfgs = Lbfgs::new(&start, lbfgs)?;
    if let Outcome::NonFinite { evaluation } = lbfgs.minimize(objective)? {
        candle::bail!(
            "softmax.fit: the objective must be finite, got NaN or infinity at evaluation {evaluation}; check the features for NaN"
        )
    }
    let softmax = parts(lbfgs.x())?;
    let done = Fit { epochs: lbfgs.iterations(), objective: lbfgs.value().unwrap_or(f64::NAN) };
    Ok((softmax.weight().copy()?, softmax.bias().copy()?, done))
}

/// `(x - mean) · scale` for each feature, both `[n_features]`; the scale is one over the standard
/// deviation, or 0 where nothing varies.
struct Scaling {
    mean: Tensor,
    scale: Tensor,
}

impl Scaling {
    fn of(x: &Tensor) -> Result<Self> {
        // In f64 and about the mean: f32 sums would lose what varies little. A block of rows at a time.
        let mean = mean_of(x, Ok)?;
        let variance = mean_of(x, |rows| rows.broadcast_sub(&mean)?.sqr())?.to_vec1::<f64>()?;
        let scale = |(variance, mean): (&f64, f64)| {
            let stdev = variance.sqrt();
            if stdev > f64::from(f32::EPSILON) * mean.abs() { (1. / stdev) as f32 } else { 0. }
        };
        let scale: Vec<f32> = variance.iter().zip(mean.to_vec1::<f64>()?).map(scale).collect();
        Ok(Self {
            scale: Tensor::from_vec(scale, mean.dims(), x.device())?,
            mean: mean.to_dtype(DType::F32)?,
        })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.broadcast_sub(&self.mean)?.broadcast_mul(&self.scale)
    }

    /// The weights and bias that do to raw features what the given ones do to scaled ones.
    fn fold(&self, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor)> {
        let weight = weight.broadcast_mul(&self.scale)?;
        let shift = weight.matmul(&self.mean.unsqueeze(1)?)?.squeeze(1)?;
        Ok((weight, (bias - shift)?))
    }
}

/// The mean over rows of what `f` makes of them, in f64.
fn mean_of(x: &Tensor, f: impl Fn(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    const ROWS: usize = 4096;
    let (n_samples, n_features) = x.dims2()?;
    let mut sum = Tensor::zeros(n_features, DType::F64, x.device())?;
    for start in (0..n_samples).step_by(ROWS) {
        let rows = x.narrow(0, start, ROWS.min(n_samples - start))?.to_dtype(DType::F64)?;
        sum = (sum + f(rows)?.sum(0)?)?;
    }
    sum / n_samples as f64
}
