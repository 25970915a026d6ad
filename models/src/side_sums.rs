//! Biases of one side of an RBM, or of a layer, that the ranks of a group learn together, each from
//! its own rows of a minibatch.
//!
//! ```text
//! g ← Σᵣ gᵣ/B,   q ← Σᵣ qᵣ/B,   v ← μ v + ε (g + κ(ρ − q)),   b ← b + v
//! ```
use crate::flat;
use crate::share::Share;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::set_scalars_;
use chandlery_ops::layers::{BiasStep, Factors, Phases, bias_step_, gemm_};

/// Rows of the state of a side, see [`bias_step_`]: the second is a gradient after a step from 0
/// without momentum, and the third the squared error.
const ROWS: usize = 4;
const GRADIENT: usize = 1;
const ERROR: usize = 2;

/// A rank's part in the mean over the rows of all.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// `[_, 0, rows/B]`
    scalars: Tensor,
    /// `[1, 1]`
    one: Tensor,
}

impl Part {
    pub fn of(share: &Share, device: &Device) -> Result<Self> {
        let scalars = Tensor::zeros(3, DType::F32, device)?;
        set_scalars_(&scalars, &[0., 0., share.rows().len() as f32 / share.of() as f32])?;
        Ok(Self { scalars, one: Tensor::ones((1, 1), DType::F32, device)? })
    }
}

/// What rows give to the biases of a side. It must be 0 before a rank's rows are added.
#[derive(Debug, Clone)]
pub(crate) struct SideSums {
    /// `[4, n_units]`
    own: Tensor,
    /// Of both phases apart, where the mean of the positive one has a target; then `own` is of the
    /// negative one.
    apart: Option<Apart>,
}

/// Phases of which each has a gradient of its own.
#[derive(Debug, Clone)]
struct Apart {
    /// `[4, n_units]` of the positive phase.
    positive: Tensor,
    /// Both gradients, the negative one first, `[2, 1, n_units]`: planes with one row.
    planes: Tensor,
}

impl SideSums {
    /// Entries for `n_units`.
    pub fn len(n_units: usize, has_target: bool) -> usize {
        if has_target { 2 * ROWS * n_units } else { ROWS * n_units }
    }

    /// Those that begin at `start` of `sums`.
    pub fn of(sums: &Tensor, start: usize, n_units: usize, has_target: bool) -> Result<Self> {
        let of = |start: usize| flat::view(sums, start, &[ROWS, n_units]);
        let apart = || {
            let planes = Tensor::zeros((2, 1, n_units), DType::F32, sums.device())?;
            Ok::<_, candle::Error>(Apart { positive: of(start + ROWS * n_units)?, planes })
        };
        Ok(Self { own: of(start)?, apart: has_target.then(apart).transpose()? })
    }

    /// Adds this rank's rows, `planes` `[2, rows, n_units]`, at least one of each.
    pub fn add(&self, planes: &Tensor, part: &Part, step: BiasStep<'_>) -> Result<()> {
        let plain = BiasStep { sparsity: None, scale: None, ..step };
        let Some(Apart { positive, .. }) = &self.apart else {
            return bias_step_(&self.own, planes, &part.scalars, plain);
        };
        let of = |phases| BiasStep { phases, ..plain };
        bias_step_(&self.own, planes, &part.scalars, of(Phases::Negative))?;
        bias_step_(positive, planes, &part.scalars, of(Phases::Positive))
    }

    /// The step of all ranks on `state`, `[4, n_units]`, once these are summed over them. `rates`
    /// are those of [`bias_step_`].
    pub fn learn(&self, state: &Tensor, part: &Part, rates: &Tensor, step: BiasStep<'_>) -> Result<()> {
        let of_sums = BiasStep { gather_error: false, sums: None, ..step };
        if let Some(Apart { positive, planes }) = &self.apart {
            for (plane, sums) in [&self.own, positive].into_iter().enumerate() {
                scale_into_(&planes.get(plane)?, &sums.narrow(0, GRADIENT, 1)?, 1.)?;
            }
            return bias_step_(state, planes, rates, of_sums);
        }
        // The gradient is the only row of the positive plane.
        let planes = self.own.narrow(0, GRADIENT - 1, 2)?.unsqueeze(1)?;
        bias_step_(state, &planes, rates, BiasStep { phases: Phases::Positive, ..of_sums })?;
        if step.gather_error {
            let (error, add) = (self.own.narrow(0, ERROR, 1)?, Factors::Host { alpha: 1., beta: 1. });
            gemm_(&state.narrow(0, ERROR, 1)?, &part.one, &error, add, Precision::F32)?;
        }
        Ok(())
    }
}
