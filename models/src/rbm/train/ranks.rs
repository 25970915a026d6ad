//! The hidden units of an [`RbmTrainer`] divided over the ranks of a group.
use super::super::step::{Buffers, HiddenShare};
use super::super::{Rbm, VisibleUnit, WeightStorage};
use super::{RbmTrainer, replays_of};
use candle::{Result, Tensor};
use chandlery_ops::Group;

/// Which dimension of a tensor of the state is that of hidden units.
fn hidden_dim(name: &str) -> Option<usize> {
    match name {
        "params" | "hidden_state" | "chain" => Some(1),
        "velocity" => Some(0),
        _ => None,
    }
}

impl RbmTrainer {
    /// The same with some of the hidden units, those of this rank; all ranks begin with the state of
    /// rank 0.
    pub(super) fn sharing(mut self, group: &Group) -> Result<Self> {
        let is_plain = self.own.patch_grid().is_none()
            && self.own.filter_grid().is_none()
            && self.own.visible != VisibleUnit::GaussianLearned
            && self.config.weights != WeightStorage::Bf16Stochastic;
        if !is_plain {
            candle::bail!(
                "RbmTrainer: several ranks need a layer of dense weights with f32 copies and without learned variances; train this one on one rank"
            )
        }
        let share = HiddenShare::of(group, &self.own)?;
        let whole = self.own_state()?;
        whole.iter().try_for_each(|(_, t)| group.broadcast_(t, 0))?;
        let part = |name: &str| match whole.iter().find(|(of, _)| *of == name) {
            Some((_, t)) => hidden_dim(name).map_or(Ok(t.clone()), |dim| share.part(t, dim)),
            None => candle::bail!("RbmTrainer: the state has no {name}"),
        };
        let rbm = Rbm::from_tensors(
            share.config(&self.own),
            part("params")?.get(0)?,
            part("hidden_state")?.get(0)?,
            part("visible_state")?.get(0)?,
            None,
        )?;
        let buffers = Buffers::new(
            &self.below()?,
            &rbm,
            self.buffers.lowest_cells(),
            &self.config,
            self.buffers.philox,
            share.clone(),
        )?;
        self.replays = replays_of(&buffers, rbm.weight().device());
        (self.buffers, self.partial) = (buffers, None);
        self.put_back(part)?;
        self.buffers.set_rates(self.rates.0, self.rates.1)?;
        Ok(self)
    }

    /// The state of all ranks; none where there is one.
    pub(super) fn gathered(&self) -> Result<Option<Vec<(&'static str, Tensor)>>> {
        let share = &self.buffers.share;
        if share.group.is_single() {
            return Ok(None);
        }
        let of_all = |(name, t): (&'static str, Tensor)| {
            Ok((name, hidden_dim(name).map_or(Ok(t.clone()), |dim| share.gathered(&t, dim))?))
        };
        self.own_state()?.into_iter().map(of_all).collect::<Result<_>>().map(Some)
    }

    /// The same of the state that was gathered.
    pub(super) fn gathered_rbm(&self) -> Result<Rbm> {
        let state = self.state()?;
        let first = |wanted: &str| match state.iter().find(|(name, _)| *name == wanted) {
            Some((_, t)) => t.get(0),
            None => candle::bail!("RbmTrainer: the state has no {wanted}"),
        };
        let [weight, hidden, visible] = [first("params")?, first("hidden_state")?, first("visible_state")?];
        Rbm::from_tensors(self.own.clone(), weight, hidden, visible, None)
    }
}
