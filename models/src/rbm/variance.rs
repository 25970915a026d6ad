//! Learned variances of visible units in a step of contrastive divergence (Cho et al. 2011).
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::images::{PatchDirection, PatchGrid, patch_product};

/// Log-variances learn at this share of the rate (Cho et al. 2011 lower it too) and stay above
/// this.
const VARIANCE_RATE: f64 = 0.1;
const MIN_LOG_VARIANCE: f64 = -9.21;

/// The state of learned variances: `[2, n_visible]`, log-variances and their velocity.
#[derive(Clone)]
pub(super) struct Variance {
    pub(super) state: Tensor,
    /// The visible states over their variance, `[2, batch, n_visible]`.
    pub(super) scaled: Tensor,
}

/// What a step needs of the variances as they are at its beginning, `[n_visible]` each.
pub(super) struct Moments {
    /// `1/σ²`
    pub(super) inverse: Tensor,
    /// `σ`
    pub(super) stdev: Tensor,
}

impl Variance {
    pub(super) fn moments(&self) -> Result<Moments> {
        let log_variance = self.state.get(0)?;
        Ok(Moments { inverse: log_variance.neg()?.exp()?, stdev: (log_variance * 0.5)?.exp()? })
    }

    /// `scaled ← states / σ²` in one plane, for hidden units and the gradient; `states` are
    /// `[batch, n_visible]`.
    pub(super) fn scale(&self, plane: usize, states: &Tensor, moments: &Moments) -> Result<()> {
        scale_into_(&self.scaled.get(plane)?, &states.broadcast_mul(&moments.inverse)?, 1.)
    }

    /// One step of the log-variances `z`:
    /// `∂ ln p/∂z = ½ e^−z (⟨(v₀ − b)²⟩ − ⟨(v_k − b)²⟩) − Σ_j W_j ∘ gradient_j`.
    ///
    /// `scalars` are those of the weights.
    pub(super) fn step(&self, moments: &Moments, phases: &Phases<'_>, scalars: &Tensor) -> Result<()> {
        let Phases { positive, negative, bias, weight, gradient, patches } = *phases;
        let spread = |states: &Tensor| states.broadcast_sub(bias)?.sqr()?.mean(0);
        let own = ((spread(positive)? - spread(negative)?)? * (&moments.inverse * 0.5)?)?;
        let products = (weight * gradient)?;
        let shared = match patches {
            None => products.sum(0)?,
            Some(grid) => {
                // What each window gives to its values, added up by a product of ones.
                let of_windows = products.sum_keepdim(1)?;
                let ones = Tensor::ones((1, grid.n_patches()), DType::F32, products.device())?;
                patch_product(&ones, &of_windows, grid, PatchDirection::Down)?.squeeze(0)?
            }
        };
        let scalars = scalars.to_vec1::<f32>()?;
        let (momentum, rate) = (f64::from(scalars[1]), f64::from(scalars[2]) * VARIANCE_RATE);
        let velocity = ((self.state.get(1)? * momentum)? + ((own - shared)? * rate)?)?;
        let log_variance = (self.state.get(0)? + &velocity)?.maximum(MIN_LOG_VARIANCE)?;
        scale_into_(&self.state, &Tensor::stack(&[&log_variance, &velocity], 0)?, 1.)
    }
}

/// What a step of the variances reads of both phases.
pub(super) struct Phases<'a> {
    /// `v₀` and `v_k`, `[batch, n_visible]`.
    pub(super) positive: &'a Tensor,
    pub(super) negative: &'a Tensor,
    /// `[n_visible]`.
    pub(super) bias: &'a Tensor,
    /// `[n_hidden, n_visible]`, or that of patches.
    pub(super) weight: &'a Tensor,
    /// The mean of `h₀ᵀ v₀/σ² − h_kᵀ v_k/σ²`, of the same shape.
    pub(super) gradient: &'a Tensor,
    pub(super) patches: Option<&'a PatchGrid>,
}
