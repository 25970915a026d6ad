//! Settings that change on the way.
use super::super::conditional::affinities_of;
use super::super::{Change, NewValues, TsneConfig};
use super::TsneTrainer;
use super::seconds::timed;
use candle::Result;

impl TsneTrainer {
    /// Changes settings from the next iteration on, as a [`Change`] of the configuration at
    /// [`iteration`](Self::iteration) does: a run that has it from the start comes to the same
    /// bits, and a checkpoint keeps it. Between steps, as in the callback of
    /// [`fit_with`](crate::FullBatchTrainer::fit_with).
    ///
    /// ```
    /// use candle::Device::Cpu;
    /// use chandlery::tsne::{NewValues, TsneConfig, TsneTrainer};
    /// use chandlery::{FullBatchTrainer, Philox};
    /// use std::ops::ControlFlow;
    /// # fn main() -> candle::Result<()> {
    /// let rows = chandlery_ops::core::uniform((50, 6), &Cpu, Philox::new(1, 0))?;
    /// let config = TsneConfig { perplexity: 8., iterations: 100, ..TsneConfig::default() };
    /// let mut run = TsneTrainer::new(config, Philox::new(1, 1), &rows)?;
    /// run.fit_with(|run, seen| {
    ///     if seen.iteration == 250 {
    ///         run.change(NewValues { degrees_of_freedom: Some(0.5), ..NewValues::default() })?;
    ///     }
    ///     Ok(ControlFlow::Continue(()))
    /// })?;
    /// assert_eq!(run.config().changes.len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When a value is out of range, all iterations are made, or perplexities are to change and the
    /// run has not kept its neighbours ([`TsneConfig::keep_neighbours`]) or too few of them.
    pub fn change(&mut self, to: NewValues) -> Result<()> {
        let mut config = self.config.clone();
        let place = config.changes.partition_point(|change| change.iteration <= self.iteration);
        config.changes.insert(place, Change { iteration: self.iteration, to });
        config.validate()?;
        self.check_neighbours_for(&config)?;
        self.config = config;
        Ok(())
    }

    /// Refuses changes of perplexities for which there are no neighbours, or too few.
    pub(super) fn check_neighbours_for(&self, config: &TsneConfig) -> Result<()> {
        let Some(change) = config.changes.iter().find(|change| change.to.perplexities.is_some()) else {
            return Ok(());
        };
        match &self.neighbours {
            Some(neighbours) => {
                let k = neighbours.indices.dim(1)?;
                let most = self.unique.as_ref().map_or(k, |unique| unique.rows_of_neighbours(k));
                config.check_perplexities_of_changes(most)
            }
            None => candle::bail!(
                "TsneTrainer: perplexities can change where the run has its neighbours, got none at iteration {}; begin it from rows or neighbours, with keep_neighbours",
                change.iteration
            ),
        }
    }

    /// Makes what the iterations from here on work with.
    pub(super) fn take_changes(&mut self) -> Result<()> {
        let objective = self.config.objective(self.iteration);
        if objective.degrees_of_freedom != self.objective.degrees_of_freedom {
            (self.repulsion, self.replay) = (None, None);
        }
        if objective.perplexities != self.objective.perplexities
            && let Some(neighbours) = &self.neighbours
        {
            let config = self.config.of_objective(&objective);
            let device = self.state.layout.device().clone();
            // Perplexities know no unit.
            let unique = self.unique.as_ref();
            let make = || affinities_of(&config, neighbours, 1., unique);
            self.affinities = timed(&mut self.seconds.perplexity, &device, make)?;
            self.of_pairs = unique.map_or(Ok(0.), |unique| unique.of_pairs(&self.affinities))?;
            self.points.follow(&self.affinities)?;
            self.replay = None;
        }
        self.objective = objective;
        Ok(())
    }

    /// The configuration with the perplexities and degrees of freedom that the layout has now.
    pub(super) fn config_of_layout(&self) -> Result<TsneConfig> {
        let config = self.config.of_objective(&self.objective);
        Ok(match &self.neighbours {
            // These perplexities alone might have fewer. Of few points there are no more than all.
            Some(neighbours) => {
                let k = neighbours.indices.dim(1)?.max(config.least_neighbours());
                TsneConfig { neighbours: Some(k), ..config }
            }
            None => config,
        })
    }
}
