//! The rows of a minibatch that this rank has where ranks divide these, and the step that all make
//! together, of one sum over ranks.
//!
//! ```text
//! Vᵣ ← [r = 0] μ V + ε/B Gᵣ,   V ← Σᵣ Vᵣ        Gᵣ = h₀ᵀ v₀ − h_kᵀ v_k over the rows of rank r
//! V ← V − ε(λ₂ W + λ₁ sign W),   W ← W + V       on every rank
//! ```
//!
//! and biases by [`SideSums`].
use super::weights::Weights;
use super::{Buffers, States};
use crate::flat::{Flat, Places};
use crate::share::Share;
use crate::side_sums::{Part, SideSums};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::{advance_, set_scalars_};
use chandlery_ops::layers::CdUpdate;

/// This rank's rows of a minibatch, and what it sums with others that have the rest.
#[derive(Clone)]
pub(in super::super) struct RowShare {
    pub share: Share,
    together: Option<Together>,
}

/// Memory of what ranks learn together. Clones share it.
#[derive(Clone)]
struct Together {
    flat: Flat,
    zeros: Tensor,
    hidden: SideSums,
    visible: SideSums,
    part: Part,
    /// Of the product that makes the velocity, `[2]`: rate over the terms of the mean, and the
    /// momentum on the first rank.
    factors: Tensor,
}

impl RowShare {
    /// Memory for so many weights, and biases of so many hidden and visible units, of which the
    /// hidden ones may have a target; none where a rank has all rows.
    pub fn new(
        share: Share,
        n_weights: usize,
        units: [usize; 2],
        like: &Tensor,
        target: bool,
    ) -> Result<Self> {
        if share.group().is_single() {
            return Ok(Self { share, together: None });
        }
        let (device, mut at) = (like.device(), Places::default());
        let [n_hidden, n_visible] = units;
        let hidden = at.take(SideSums::len(n_hidden, target));
        let visible = at.take(SideSums::len(n_visible, false));
        let flat = Flat::new(n_weights, at.len(), device)?;
        let sums = flat.sums()?;
        let together = Together {
            zeros: sums.zeros_like()?,
            hidden: SideSums::of(&sums, hidden, n_hidden, target)?,
            visible: SideSums::of(&sums, visible, n_visible, false)?,
            part: Part::of(&share, device)?,
            factors: Tensor::zeros(2, DType::F32, device)?,
            flat,
        };
        Ok(Self { share, together: Some(together) })
    }

    /// Those of minibatches of `batch` rows, with the same memory.
    pub fn of_fewer(&self, batch: usize) -> Result<Self> {
        let share = Share::new(self.share.group(), batch);
        let of = |together: &Together| {
            let part = Part::of(&share, together.zeros.device())?;
            Ok::<_, candle::Error>(Together {
                part,
                factors: together.factors.zeros_like()?,
                ..together.clone()
            })
        };
        Ok(Self { together: self.together.as_ref().map(of).transpose()?, share })
    }

    /// Weights and velocity in one piece of memory, `[2, n_weights]`, where several ranks have
    /// rows.
    pub fn params(&self) -> Result<Option<Tensor>> {
        self.together.as_ref().map(|together| together.flat.params()).transpose()
    }

    /// Rows of this rank.
    pub fn len(&self) -> usize {
        self.share.rows().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the draws of this rank's rows begin, of a sequence with `n` for each row of all ranks.
    pub fn first(&self, all: Philox, n: usize) -> Philox {
        // Rows of a rank begin with a block of draws.
        all.advanced(self.share.rows().start * n)
    }

    /// Takes over the rates that [`Buffers::set_rates`] sets.
    pub fn set_rates(&self, rate_of_term: f32, momentum: f32) -> Result<()> {
        let Some(together) = &self.together else { return Ok(()) };
        let momentum = if self.share.group().rank() == 0 { momentum } else { 0. };
        set_scalars_(&together.factors, &[rate_of_term, momentum])
    }
}

impl Buffers {
    /// The step of all ranks, where these divide rows; else `false`, and nothing is done. `states`
    /// are read where this rank has rows.
    pub(super) fn learn_together(
        &self,
        weights: &Weights,
        states: impl FnOnce() -> Result<States>,
        step: CdUpdate<'_>,
    ) -> Result<bool> {
        let Some(Together { flat, zeros, hidden, visible, part, factors }) = &self.divided.together else {
            return Ok(false);
        };
        let ([of_hidden, of_visible], summed) = (weights.bias_steps(step.sparsity), flat.summed()?);
        if self.divided.is_empty() {
            scale_into_(&summed, &summed.zeros_like()?, 1.)?;
        } else {
            let states = states()?;
            scale_into_(&flat.sums()?, zeros, 1.)?;
            weights.add_gradient(&states, factors)?;
            let [h, x] = weights.planes_of_biases(&states)?;
            hidden.add(&h, part, of_hidden)?;
            visible.add(&x, part, of_visible)?;
        }
        self.divided.share.group().all_reduce_(&summed)?;
        weights.step_by_velocity(&self.scalars, step.weights, self.config.max_norm)?;
        hidden.learn(&self.hidden_state, part, &self.scalars, of_hidden)?;
        visible.learn(&self.visible_state, part, &self.scalars, of_visible)?;
        advance_(&self.counter, step.advance)?;
        Ok(true)
    }
}
