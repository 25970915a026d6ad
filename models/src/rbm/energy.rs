//! The free energy, and measures that use it.
use super::{HiddenUnit, Rbm, RbmConfig, VisibleUnit};
#[cfg(doc)]
use crate::Decode;
use crate::model::squared_error;
use candle::{D, DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{
    abs, add, clamp, contiguous, equal, exp, ln, mul, neg, relu, sqr, sub,
};

impl Rbm {
    /// The free energy of each row, `[batch]`, in nats: `p(v) ∝ exp(−F(v))`.
    ///
    /// For rectified hidden units the sum over replicas stops at the first term below 1e-8 of the
    /// first term.
    ///
    /// # Errors
    /// When `v` is not `[batch, n_visible]`.
    pub fn free_energy(&self, v: &Tensor) -> Result<Tensor> {
        let v = &self.values("v", v, self.config.n_visible)?;
        self.free_energy_from(v, &self.hidden_input(v)?)
    }

    /// The same from what goes into the hidden units.
    fn free_energy_from(&self, v: &Tensor, x: &Tensor) -> Result<Tensor> {
        let hidden = match self.config.hidden {
            HiddenUnit::Bernoulli => match self.config.filter_grid().filter(|grid| grid.pool > 1) {
                Some(grid) => grid.softplus_of_blocks(x)?,
                None => softplus(x)?.sum(D::Minus1)?,
            },
            HiddenUnit::Rectified => replicas(x)?.sum(D::Minus1)?,
            HiddenUnit::Gaussian => (sqr(x)?.sum(D::Minus1)? / 2.)?,
        };
        let bias = self.bias_of_each_visible()?;
        let visible = match (self.config.visible, &self.log_variance) {
            (VisibleUnit::Bernoulli, _) => neg(&mul(v, &bias)?.sum(D::Minus1)?)?,
            (_, log_variance) => {
                let squares = sqr(&sub(v, &bias)?)?;
                let scaled = match log_variance {
                    Some(log_variance) => mul(&squares, &exp(&neg(log_variance)?)?)?,
                    None => squares,
                };
                (scaled.sum(D::Minus1)? / 2.)?
            }
        };
        sub(&visible, &hidden)
    }

    /// Mean free energy of held-out rows minus that of training rows, in nats.
    ///
    /// It is near 0 while the RBM generalises, and grows when the RBM overfits (Hinton 2010,
    /// section 6). Both are `[_, n_visible]`.
    ///
    /// # Errors
    /// When a shape differs.
    pub fn free_energy_gap(&self, training: &Tensor, held_out: &Tensor) -> Result<f64> {
        Ok(mean(&self.free_energy(held_out)?)? - mean(&self.free_energy(training)?)?)
    }

    /// Reconstruction error and mean free energy of prepared rows, `[batch, n_visible]`: those of
    /// [`reconstruction_error_prepared`](Decode::reconstruction_error_prepared) and
    /// [`free_energy`](Self::free_energy), by one product less.
    ///
    /// # Errors
    /// When `v` has another shape, or there are no rows.
    pub fn error_and_free_energy(&self, v: &Tensor) -> Result<[f64; 2]> {
        let v = &self.values("v", v, self.config.n_visible)?;
        let x = self.hidden_input(v)?;
        let back = || self.mean_of_visible(self.visible_input_of_units(&self.mean_of_units(&x)?)?);
        Ok([squared_error::<Self>(v, back)?, mean(&self.free_energy_from(v, &x)?)?])
    }

    /// The pseudo-log-likelihood of binary rows, in nats per row, estimated from one unit drawn for
    /// each row: `n_visible · ln sigmoid(F(ṽ) − F(v))`, where `ṽ` is `v` with that unit flipped. At
    /// most 0.
    ///
    /// `v` is `[batch, n_visible]` of 0 and 1; grey levels `g` are flipped to `1 − g`.
    ///
    /// # Errors
    /// When `v` has another shape or the visible units are real-valued, for which it is not
    /// defined.
    pub fn pseudo_likelihood(&self, v: &Tensor, philox: Philox) -> Result<f64> {
        let n_visible = self.config.n_visible;
        let v = &self.values("v", v, n_visible)?;
        let batch = v.dim(0)?;
        if self.config.visible.is_gaussian() {
            candle::bail!(
                "Rbm::pseudo_likelihood: visible units must be bernoulli, got {}",
                self.config.visible
            )
        }
        let unit = |row: usize| {
            let word = u64::from(philox.bits(row as u64));
            ((word * n_visible as u64) >> 32) as u32
        };
        let units: Vec<u32> = (0..batch).map(unit).collect();
        // Whole numbers below 2²⁴ are exact.
        let number = |units: Tensor| units.to_dtype(DType::F32)?.to_device(v.device());
        let units = number(Tensor::from_vec(units, (batch, 1), &Device::Cpu)?)?;
        let each = number(Tensor::arange(0u32, n_visible as u32, &Device::Cpu)?)?;
        let chosen = equal(&units, &each)?.to_dtype(v.dtype())?;
        // v + chosen · (1 − 2v): the chosen unit becomes 1 − v, the others stay.
        let flipped = add(v, &mul(&chosen, &v.affine(-2., 1.)?)?)?;
        let rise = sub(&self.free_energy(&flipped)?, &self.free_energy(v)?)?;
        // ln sigmoid(x) = −softplus(−x)
        Ok(-(n_visible as f64) * mean(&softplus(&neg(&rise)?)?)?)
    }

    /// The bias of each visible unit, `[n_visible]`: of a convolution that of its channel.
    pub(super) fn bias_of_each_visible(&self) -> Result<Tensor> {
        let Some(grid) = self.config.filter_grid() else { return Ok(self.visible_bias.clone()) };
        let each = self.visible_bias.broadcast_left(grid.n_places())?;
        grid.planes_first(&contiguous(&each)?.reshape((1, ()))?)?.squeeze(0)
    }

    /// The visible biases, `[n_visible]`, that give units without weights the mean `mean`: its
    /// log-odds (Hinton 2010, section 8), or `mean` itself for real-valued units. Of a convolution
    /// `[channels]`, from the mean over the places of the image.
    ///
    /// Means of binary units are first clipped to `[0.01, 0.99]`, so that a unit that is always off
    /// can still turn on.
    ///
    /// # Errors
    /// When `mean` has another shape.
    pub fn base_rate_bias(&self, mean: &Tensor) -> Result<Tensor> {
        self.config.base_rate_bias(mean)
    }
}

/// `ln(1 + eˣ)` without overflow: `max(x, 0) + ln(1 + e^−|x|)`.
pub(crate) fn softplus(x: &Tensor) -> Result<Tensor> {
    add(&relu(x)?, &ln(&exp(&neg(&abs(x)?)?)?.affine(1., 1.)?)?)
}

/// `Σ_{i ≥ 1} softplus(x − i + ½)`, each term of which falls like `e^(x − i)` once `i` is above
/// `x`.
fn replicas(x: &Tensor) -> Result<Tensor> {
    const TAIL: f64 = 20.;
    let top = x.flatten_all()?.max(0)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    if !top.is_finite() || top > 1e4 {
        candle::bail!("Rbm::free_energy: inputs of rectified units must be finite and below 1e4, got {top}")
    }
    let terms = (top.max(0.) + TAIL).ceil() as usize;
    let mut sum = x.zeros_like()?;
    for i in 1..=terms {
        sum = add(&sum, &softplus(&x.affine(1., 0.5 - i as f64)?)?)?;
    }
    Ok(sum)
}

/// In f64: candle's f32 mean over many rows is off in the fourth digit.
fn mean(x: &Tensor) -> Result<f64> {
    x.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()
}

impl RbmConfig {
    /// [`Rbm::base_rate_bias`], which depends on no parameter.
    pub(super) fn base_rate_bias(&self, mean: &Tensor) -> Result<Tensor> {
        if mean.dims() != [self.n_visible] {
            let want = [self.n_visible];
            candle::bail!("Rbm::base_rate_bias: mean must have shape {want:?}, got {:?}", mean.dims())
        }
        let mean = &match self.filter_grid() {
            None => mean.clone(),
            Some(grid) => {
                let last =
                    grid.channels_last(&mean.unsqueeze(0)?)?.reshape((grid.n_places(), grid.channels()))?;
                last.to_dtype(DType::F64)?.mean(0)?.to_dtype(mean.dtype())?
            }
        };
        match self.visible {
            VisibleUnit::Bernoulli => {
                let p = clamp(mean, 0.01, 0.99)?;
                sub(&ln(&p)?, &ln(&p.affine(-1., 1.)?)?)
            }
            VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => Ok(mean.clone()),
        }
    }
}
