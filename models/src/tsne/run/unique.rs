//! Rows, of which equal ones may be one point.
use super::super::line::from_ops;
use super::super::measure::{Estimate, kl_of_rows};
use super::super::{TsneConfig, TsneTrainer};
use candle::{Result, Tensor};

impl TsneConfig {
    /// Refuses unique rows where nothing tells which rows are equal.
    pub(super) fn check_not_unique(&self) -> Result<()> {
        match self.unique {
            true => candle::bail!(
                "TsneTrainer: unique is for rows and for distances of all pairs, got neighbours or affinities, which do not tell equal rows; leave it out"
            ),
            false => Ok(()),
        }
    }
}

impl TsneTrainer {
    /// Points of the descent: as many as rows, or as distinct rows with [`TsneConfig::unique`].
    pub fn n_points(&self) -> usize {
        self.affinities.n()
    }

    /// The divergence of a layout of the rows, f32 `[n, n_dims]`, from the affinities as they are
    /// now, with the sum over the pairs of `sample` evenly spaced rows with all others; over all
    /// pairs where it is `n` or more.
    ///
    /// Cost: `sample · n` pairs.
    ///
    /// # Errors
    /// When shapes or devices do not fit, equal rows that are one point have several places, or
    /// memory is short.
    pub fn kl_estimate(&self, layout: &Tensor, sample: usize) -> Result<Estimate> {
        let alpha = self.objective.degrees_of_freedom;
        kl_of_rows(&self.affinities, self.unique.as_ref(), layout, alpha, sample)
    }

    pub(super) fn n_rows(&self) -> usize {
        self.unique.as_ref().map_or(self.n_points(), |unique| unique.n_rows())
    }

    /// A copy of the layout of the points as they were given.
    pub(super) fn layout_of_points(&self) -> Result<Tensor> {
        from_ops(self.points.as_given_of(&self.state.layout)?, self.config.n_dims)
    }

    /// What rows have of what points have.
    pub(super) fn of_rows(&self, of_points: Tensor) -> Result<Tensor> {
        match &self.unique {
            Some(unique) => unique.spread(&of_points),
            None => Ok(of_points),
        }
    }
}
