//! Several minibatches of one step: where they are loaded to, and which of them a step takes; and
//! one that is not full.
use super::super::variance::Variance;
use super::super::{Rbm, RbmTrainConfig, VisibleUnit};
use super::{Buffers, H_DRAWN, V_POS};
use crate::masters::store;
use crate::share::Share;
use candle::{D, Result, Tensor};
use chandlery_ops::core::set_scalars_;
use chandlery_ops::images::cells_into_;

/// Most minibatches, and visible states of them, that are loaded at once. A load and the start of a
/// recording take 4 µs of a GPU.
const MINIBATCHES_AT_ONCE: usize = 16;
const STATES_AT_ONCE: usize = 1 << 25;
/// The same on the CPU, where the way to the threads of kernels and back takes 20 µs and states
/// should stay in the caches.
const STATES_ON_CPU: usize = 1 << 16;

impl Buffers {
    /// Buffers for minibatches of `rows`, fewer than these have, on the same parameters,
    /// velocities, running means and counter. Rates are their own, since the mean of a gradient is
    /// over the rows. `lower` and `rbm` are those that these buffers are for.
    pub(in super::super) fn of_fewer(&self, lower: &[Rbm], rbm: &Rbm, rows: usize) -> Result<Self> {
        let config = RbmTrainConfig { batch: rows, ..self.config.clone() };
        let share = Share::new(self.divided.share.group(), rows);
        let own = Self::new(lower, rbm, self.cells, &config, self.philox, self.share.clone(), share)?;
        let variance = match (&self.variance, own.variance) {
            (Some(shared), Some(own)) => Some(Variance { state: shared.state.clone(), ..own }),
            _ => None,
        };
        Ok(Self {
            weights: own.weights.sharing(&self.weights),
            divided: self.divided.of_fewer(rows)?,
            hidden_state: self.hidden_state.clone(),
            visible_state: self.visible_state.clone(),
            counter: self.counter.clone(),
            variance,
            ..own
        })
    }

    /// Sets what steps go by.
    pub(in super::super) fn set_rates(&self, rate: f32, momentum: f32) -> Result<()> {
        let rate_of_term = rate / self.n_terms() as f32;
        self.divided.set_rates(rate_of_term, momentum)?;
        set_scalars_(&self.scalars, &[rate_of_term, momentum, rate])
    }

    /// Where the persistent chains of these buffers are, `[rows, n_hidden]`.
    pub(in super::super) fn chains(&self) -> Result<Tensor> {
        self.hidden.get(H_DRAWN)
    }

    /// Loads `scale · rows`, of one minibatch or several, from minibatch `first` on, in as many
    /// parts as the states have.
    pub(in super::super) fn load(&self, first: usize, rows: &Tensor, scale: f32) -> Result<()> {
        let to = self.rows.narrow(1, first * self.divided.len(), rows.dim(0)?)?;
        let to = if to.dim(0)? == 1 { to.squeeze(0)? } else { to };
        let rows = &self.share.rows(rows)?;
        match (&self.lowest, &self.cells) {
            (Some(grid), _) => store(&to, &grid.channels_last(rows)?, scale),
            (None, Some(cells)) => cells_into_(&to, rows, cells.lines(), scale),
            // Units beside those that rows have stay as they were made, 0.
            (None, None) => store(&to.narrow(D::Minus1, 0, rows.dim(1)?)?, rows, scale),
        }
    }

    /// These buffers for another of the minibatches that are loaded.
    fn of(&self, minibatch: usize) -> Result<Self> {
        let input = match self.lower.is_empty() {
            true => input_of(&self.visible, self.weights.parts(), minibatch + V_POS)?,
            false => self.input.clone(),
        };
        Ok(Self { minibatch, input, ..self.clone() })
    }

    /// A step for each of the first `n` minibatches that are loaded, at least one.
    pub(in super::super) fn run(&self, n: usize) -> Result<()> {
        self.step()?; // of the first
        (1..n).try_for_each(|minibatch| self.of(minibatch)?.step())
    }

    /// Of this step's rows, where they are drawn.
    pub(super) fn probabilities(&self) -> Result<Tensor> {
        let batch = self.divided.len();
        self.rows.squeeze(0)?.narrow(0, self.minibatch * batch, batch)
    }

    /// Where a plane of this step's visible states lies among those of all.
    pub(super) fn plane(&self, plane: usize) -> usize {
        self.minibatch + plane
    }

    /// `n` planes of this step's visible states from one on, `[parts, n, batch, n_visible]`.
    pub(super) fn visible_by_part(&self, visible: &Tensor, first: usize, n: usize) -> Result<Tensor> {
        self.by_part(visible, self.at_once + 1)?.narrow(1, self.plane(first), n)
    }

    /// Planes as `[parts, n, batch, units]`.
    pub(super) fn by_part(&self, planes: &Tensor, n: usize) -> Result<Tensor> {
        planes.reshape((self.weights.parts(), n, self.divided.len(), planes.dim(2)?))
    }
}

/// Minibatches that are loaded, and whose steps are recorded, together. Layers below, convolutions
/// and learned variances take one at a time. So do drawn visible states in two parts: draws leave
/// the second part alone, which must stay 0 and would be that of the minibatch before. Ranks take
/// as many as one another: by the `n_visible` units of all of them. Those that divide rows take
/// one.
pub(super) fn minibatches_at_once(
    lower: &[Rbm],
    rbm: &Rbm,
    config: &RbmTrainConfig,
    parts: usize,
    n_visible: usize,
) -> usize {
    let own = rbm.config();
    let on_cpu = rbm.weight().device().is_cpu();
    let one = !lower.is_empty()
        || own.filter_grid().is_some()
        || own.visible == VisibleUnit::GaussianLearned
        || parts == 2 && (config.sample_visible || config.persistent || config.binarize);
    let states = if on_cpu { STATES_ON_CPU } else { STATES_AT_ONCE };
    let most = states / config.batch.saturating_mul(n_visible).max(1);
    if one { 1 } else { most.clamp(1, MINIBATCHES_AT_ONCE) }
}

/// A plane of visible states, in two parts `[2, batch, n_visible]`.
pub(super) fn input_of(visible: &Tensor, parts: usize, plane: usize) -> Result<Tensor> {
    match parts {
        1 => visible.get(plane),
        _ => {
            let (planes, batch, n_visible) = visible.dims3()?;
            visible.reshape((parts, planes / parts, batch, n_visible))?.narrow(1, plane, 1)?.squeeze(1)
        }
    }
}

/// The planes of all minibatches, in lines, `[parts, at_once · batch, n_visible]`.
pub(super) fn inputs_of(visible: &Tensor, parts: usize) -> Result<Tensor> {
    let (planes, batch, n_visible) = visible.dims3()?;
    let lines = planes / parts * batch;
    visible.reshape((parts, lines, n_visible))?.narrow(1, V_POS * batch, lines - V_POS * batch)
}
