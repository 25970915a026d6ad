//! Minimising the objective of [`Softmax`].
use super::{Softmax, check_samples, log_softmax};
use crate::optim::{Descent, LbfgsConfig, Outcome};
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::elementwise::{add, equal, exp, mul, sqr, sub};
use chandlery_ops::layers::{product, softmax_objective};
use serde::{Deserialize, Serialize};

/// Settings for fitting a [`Softmax`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SoftmaxTrainConfig {
    /// Factor on half the sum of squared weights, at least 0. None, the default, is one over the
    /// number of samples: the posterior mode where each weight has a normal prior of variance 1,
    /// which suits standardised features and weighs less the more samples there are. Other programs
    /// call it `C = 1`.
    pub l2: Option<f64>,
    /// Most iterations of L-BFGS, at least 1. Default 200.
    pub iterations: usize,
    /// Whether features are standardised to mean 0 and variance 1 for the fit, by default. The
    /// resulting weights apply to the original features; a constant feature gets the weight 0.
    pub standardise: bool,
}

impl Default for SoftmaxTrainConfig {
    fn default() -> Self {
        Self { l2: None, iterations: 200, standardise: true }
    }
}

impl SoftmaxTrainConfig {
    fn validate(&self) -> Result<()> {
        if let Some(l2) = self.l2.filter(|l2| !(l2.is_finite() && *l2 >= 0.)) {
            candle::bail!("SoftmaxTrainConfig: l2 must be a finite number of at least 0, got {l2}")
        }
        crate::check::at_least_one("SoftmaxTrainConfig", "iterations", self.iterations)
    }
}

/// The result of a fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fit {
    /// Iterations made.
    pub iterations: usize,
    /// The objective at the end, in nats.
    pub objective: f64,
    /// The factor on half the sum of squared weights.
    pub l2: f64,
}

/// Values of `x` up to which the fit computes in f64: the minimum is then the same on every device.
const F64_VALUES: usize = 1 << 22;
/// Norm of the gradient at which the minimum counts as reached, and the decrease, in nats, of which
/// an iteration is the last: in f64 the minimum itself, in f32 far below what moves an accuracy and
/// above rounding.
const TOLERANCES: [(f64, f64); 2] = [(1e-7, 1e-10), (1e-5, 5e-5)];

pub(super) fn fit(
    x: &Tensor,
    labels: &Tensor,
    n_classes: usize,
    config: &SoftmaxTrainConfig,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Softmax, Fit)> {
    config.validate()?;
    let n_samples = check_samples("softmax.fit", x, labels)?;
    let (_, n_features) = x.dims2()?;
    if x.dtype() != DType::F32 {
        candle::bail!("softmax.fit: x must be f32, got {:?}", x.dtype())
    }
    if let Some(label) = labels.to_vec1::<u32>()?.iter().find(|&&l| l as usize >= n_classes) {
        candle::bail!("softmax.fit: labels must be below n_classes = {n_classes}, got {label}")
    }
    let dtype = if n_samples.saturating_mul(n_features) <= F64_VALUES { DType::F64 } else { DType::F32 };
    let scaling = if config.standardise { Some(Scaling::of(x)?) } else { None };
    let x = match &scaling {
        Some(scaling) => scaling.apply(x, dtype)?,
        None => x.to_dtype(dtype)?,
    };
    let l2 = config.l2.unwrap_or(1. / n_samples as f64);
    let (weight, bias, done) = minimum(&x, labels, n_classes, l2, config.iterations, progress)?;
    let (weight, bias) = match scaling {
        Some(scaling) => scaling.fold(&weight, &bias)?,
        None => (weight, bias),
    };
    let single = |t: Tensor| t.to_dtype(DType::F32)?.copy();
    Ok((Softmax::from_tensors(single(weight)?, single(bias)?)?, done))
}

/// Weights, bias and how the fit went.
fn minimum(
    x: &Tensor,
    labels: &Tensor,
    n_classes: usize,
    l2: f64,
    iterations: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(Tensor, Tensor, Fit)> {
    let (n_samples, n_features) = x.dims2()?;
    let (n_weights, dtype) = (n_classes * n_features, x.dtype());
    // Samples are columns: sums over few rows are those that the product reads `x` for once, as it
    // lies.
    let classes = Tensor::arange(0u32, n_classes as u32, x.device())?.unsqueeze(1)?;
    let onehot = equal(&classes.to_dtype(dtype)?, &labels.unsqueeze(0)?.to_dtype(dtype)?)?;
    let parts = |theta: &Tensor| -> Result<Softmax> {
        let weight = theta.narrow(0, 0, n_weights)?.reshape((n_classes, n_features))?;
        Softmax::from_tensors(weight, theta.narrow(0, n_weights, n_classes)?)
    };
    let columns = x.t()?;
    let mut evaluations = 0;
    let objective = |theta: &Tensor| {
        evaluations += 1;
        progress(evaluations.min(iterations), iterations);
        let softmax = parts(theta)?;
        let decay = (sqr(softmax.weight())?.to_dtype(DType::F64)?.sum_all()? * (0.5 * l2))?;
        let decayed = (softmax.weight() * l2)?;
        if x.device().is_cpu() {
            let of = softmax_objective(x, labels, softmax.weight(), softmax.bias())?;
            let gradient = Tensor::cat(&[add(&of.weight, &decayed)?.flatten_all()?, of.bias], 0)?;
            return Ok((add(&decay, &of.value.get(0)?)?, gradient));
        }
        let z = product(softmax.weight(), &columns, dtype, Precision::F32)?;
        let log_p = log_softmax(&add(&z, &softmax.bias().unsqueeze(1)?)?, 0)?;
        // In f64: an f32 sum over many samples would hide the last decreases.
        let log_p_labels = mul(&log_p, &onehot)?.sum(0)?.to_dtype(DType::F64)?.sum_all()?;
        let value = sub(&decay, &(log_p_labels / n_samples as f64)?)?;
        let delta = (sub(&exp(&log_p)?, &onehot)? / n_samples as f64)?;
        let weight = add(&product(&delta, x, dtype, Precision::F32)?, &decayed)?;
        Ok((value, Tensor::cat(&[weight.flatten_all()?, delta.sum(1)?], 0)?))
    };
    let [of_f64, of_f32] = TOLERANCES;
    let (gradient_tolerance, decrease_tolerance) = if dtype == DType::F64 { of_f64 } else { of_f32 };
    let lbfgs = LbfgsConfig { iterations, gradient_tolerance, decrease_tolerance, ..LbfgsConfig::default() };
    let start = Tensor::zeros(n_weights + n_classes, dtype, x.device())?;
    let mut lbfgs = Descent::new(&start, lbfgs)?;
    if let Outcome::NonFinite { evaluation } = lbfgs.minimize(objective)? {
        candle::bail!(
            "softmax.fit: the objective must be finite, got NaN or infinity at evaluation {evaluation}; check the features for NaN"
        )
    }
    let softmax = parts(lbfgs.x())?;
    let done = Fit { iterations: lbfgs.iterations(), objective: lbfgs.value().unwrap_or(f64::NAN), l2 };
    Ok((softmax.weight().clone(), softmax.bias().clone(), done))
}

/// `(x - mean) · scale` for each feature, both `[n_features]` f64; the scale is one over the
/// standard deviation, or 0 where nothing varies.
struct Scaling {
    mean: Tensor,
    scale: Tensor,
}

/// Rows that are held in f64 at a time.
const ROWS: usize = 4096;

impl Scaling {
    fn of(x: &Tensor) -> Result<Self> {
        // In f64 and about the mean: f32 sums would lose what varies little. A block of rows at a
        // time.
        let mean = mean_of(x, Ok)?;
        let variance = mean_of(x, |rows| sqr(&sub(&rows, &mean)?))?.to_vec1::<f64>()?;
        let scale = |(variance, mean): (&f64, f64)| {
            let stdev = variance.sqrt();
            if stdev > f64::from(f32::EPSILON) * mean.abs() { 1. / stdev } else { 0. }
        };
        let scale: Vec<f64> = variance.iter().zip(mean.to_vec1::<f64>()?).map(scale).collect();
        Ok(Self { scale: Tensor::from_vec(scale, mean.dims(), x.device())?, mean })
    }

    fn apply(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        let n_samples = x.dim(0)?;
        let block = |start: usize| {
            let rows = x.narrow(0, start, ROWS.min(n_samples - start))?.to_dtype(DType::F64)?;
            mul(&sub(&rows, &self.mean)?, &self.scale)?.to_dtype(dtype)
        };
        Tensor::cat(&(0..n_samples).step_by(ROWS).map(block).collect::<Result<Vec<_>>>()?, 0)
    }

    /// The weights and bias, in f64, that do to raw features what the given ones do to scaled ones.
    fn fold(&self, weight: &Tensor, bias: &Tensor) -> Result<(Tensor, Tensor)> {
        let weight = mul(&weight.to_dtype(DType::F64)?, &self.scale)?;
        let shift = weight.matmul(&self.mean.unsqueeze(1)?)?.squeeze(1)?;
        let bias = sub(&bias.to_dtype(DType::F64)?, &shift)?;
        Ok((weight, bias))
    }
}

/// The mean over rows of what `f` makes of them, in f64.
fn mean_of(x: &Tensor, f: impl Fn(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (n_samples, n_features) = x.dims2()?;
    let mut sum = Tensor::zeros(n_features, DType::F64, x.device())?;
    for start in (0..n_samples).step_by(ROWS) {
        let rows = x.narrow(0, start, ROWS.min(n_samples - start))?.to_dtype(DType::F64)?;
        sum = add(&sum, &f(rows)?.sum(0)?)?;
    }
    sum / n_samples as f64
}
