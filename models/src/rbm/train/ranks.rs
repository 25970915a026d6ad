//! The hidden units of an [`RbmTrainer`], or the rows of its minibatches, divided over the ranks of
//! a group.
use super::super::step::{Buffers, HiddenShare};
use super::super::{Division, Rbm, VisibleUnit, WeightStorage};
use super::state::CHAIN;
use super::{RbmTrainer, replays_of};
use crate::patch_rbm::Cells;
use crate::share::Share;
use crate::trainer::Trainer;
use candle::{Result, Tensor};
use chandlery_ops::Group;

impl RbmTrainer {
    /// The cells in which the lowest RBM has its visible units, of all ranks.
    fn lowest_cells(&self) -> Option<Cells> {
        match self.lower.first() {
            Some(lowest) => lowest.config().patch_grid().as_ref().and_then(Cells::of),
            None => self.cells,
        }
    }

    /// The RBMs below as steps take them, of all ranks.
    pub(super) fn below(&self) -> Result<Vec<Rbm>> {
        if let Some(padding) = &self.padding {
            return padding.lower(&self.lower);
        }
        let mut lower = self.lower.clone();
        if let (Some(cells), Some(lowest)) = (self.lowest_cells(), lower.first_mut()) {
            *lowest = cells.rbm(lowest)?;
        }
        Ok(lower)
    }

    /// Sets what ranks divide, before they do: a checkpoint of either division, of any number of
    /// ranks, goes on with the other.
    pub fn set_division(&mut self, division: Division) {
        self.config.division = division;
    }

    /// Whether there are no other ranks.
    pub(super) fn is_alone(&self) -> bool {
        self.buffers.share.group.is_single() && self.buffers.divided.share.group().is_single()
    }

    /// The state of this rank alone, which has become that of rank 0.
    fn broadcast_state(&self, group: &Group) -> Result<Vec<(&'static str, Tensor)>> {
        let is_plain = self.own.visible != VisibleUnit::GaussianLearned
            && self.config.weights != WeightStorage::Bf16Stochastic;
        if !is_plain {
            candle::bail!(
                "RbmTrainer: several ranks need weights with f32 copies and no learned variances; train this one on one rank"
            )
        }
        let whole = self.own_state()?;
        whole.iter().try_for_each(|(_, t)| group.broadcast_(t, 0))?;
        Ok(whole)
    }

    /// Takes some of the rows of minibatches, those of this rank; all ranks begin with the state of
    /// rank 0.
    pub(super) fn dividing_rows(mut self, group: &Group) -> Result<Self> {
        Share::check("RbmTrainer", group, "batch", self.config.batch)?;
        let whole = self.broadcast_state(group)?;
        let rbm = self.buffers.rbm(&self.own)?;
        let (cells, units) = (self.lowest_cells(), HiddenShare::whole(&self.own));
        let rows = Share::new(group, self.config.batch);
        let philox = self.buffers.philox;
        let buffers = Buffers::new(&self.below()?, &rbm, cells, &self.config, philox, units, rows.clone())?;
        self.take_up(buffers, |name| match whole.iter().find(|(of, _)| *of == name) {
            Some((_, t)) if name == CHAIN => rows.own(t),
            Some((_, t)) => Ok(t.clone()),
            None => candle::bail!("RbmTrainer: the state has no {name}"),
        })?;
        self.range.iter_mut().for_each(|range| range.in_group(group));
        Ok(self)
    }

    /// Goes on with other buffers and their part of the state.
    fn take_up(&mut self, buffers: Buffers, part: impl Fn(&str) -> Result<Tensor>) -> Result<()> {
        self.replays = replays_of(&buffers, self.device());
        (self.buffers, self.partial) = (buffers, None);
        self.put_back(part)?;
        self.buffers.set_rates(self.rates.0, self.rates.1)
    }

    /// Takes some of the hidden units, those of this rank; all ranks begin with the state of rank
    /// 0.
    pub(super) fn sharing(mut self, group: &Group) -> Result<Self> {
        let (whole, below) = (self.broadcast_state(group)?, self.below()?);
        let share = HiddenShare::of(group, &below, &self.own, self.lowest_cells())?;
        let part = |name: &str| match whole.iter().find(|(of, _)| *of == name) {
            Some((_, t)) => share.part(name, t),
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
            &share.below(below)?,
            &rbm,
            share.cells(self.lowest_cells()),
            &self.config,
            self.buffers.philox,
            share.clone(),
            Share::new(&Group::single(), self.config.batch),
        )?;
        self.take_up(buffers, part)?;
        Ok(self)
    }

    /// The state of all ranks; none where there is one.
    pub(super) fn gathered(&self) -> Result<Option<Vec<(&'static str, Tensor)>>> {
        if self.is_alone() {
            return Ok(None);
        }
        let (share, divided) = (&self.buffers.share, &self.buffers.divided.share);
        let of_all = |(name, t): (&'static str, Tensor)| match share.group.is_single() {
            false => Ok((name, share.gathered(name, &t)?)),
            true if name == CHAIN => Ok((name, divided.gathered(&t)?)),
            true => Ok((name, t)),
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
        self.as_given(&Rbm::from_tensors(self.own.clone(), weight, hidden, visible, None)?)
    }
}
