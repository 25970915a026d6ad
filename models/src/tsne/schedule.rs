//! What the iterations of a descent with changes work with.
use super::TsneConfig;
use super::changes::{Objective, changed};
use candle::Result;

impl TsneConfig {
    /// Refuses perplexities of changes for which `k` neighbours are too few.
    pub(super) fn check_perplexities_of_changes(&self, k: usize) -> Result<()> {
        for change in &self.changes {
            let perplexities = change.to.perplexities.iter().flatten();
            if let Some(wrong) = perplexities.copied().find(|&p| p > k as f64) {
                candle::bail!(
                    "TsneTrainer: a perplexity must be at most {k}, the number of neighbours, got {wrong} in the change at iteration {}; take more neighbours",
                    change.iteration
                )
            }
        }
        Ok(())
    }

    /// Whether a run keeps its neighbours, to compute other affinities of them.
    pub(super) fn keeps_neighbours(&self) -> bool {
        self.keep_neighbours || self.changes.iter().any(|change| change.to.perplexities.is_some())
    }

    /// The first change after `iteration`.
    pub(super) fn next_change(&self, iteration: usize) -> Option<usize> {
        self.changes.iter().map(|change| change.iteration).find(|&at| at > iteration)
    }

    /// The last change at or before `iteration`.
    pub(super) fn last_change(&self, iteration: usize) -> Option<usize> {
        self.changes.iter().map(|change| change.iteration).rfind(|&at| at <= iteration)
    }

    /// Whether divergences after so many iterations are not of the same.
    pub(super) fn differs_between(&self, from: usize, to: usize) -> bool {
        let mut between = self.changes.iter().filter(|change| (from..to).contains(&change.iteration));
        between.any(|change| change.to.is_of_objective())
    }

    /// What iteration `iteration` makes small.
    pub(super) fn objective(&self, iteration: usize) -> Objective {
        let perplexities = changed(&self.changes, iteration, |to| to.perplexities.clone());
        Objective {
            perplexities: perplexities.unwrap_or_else(|| self.perplexities()),
            degrees_of_freedom: changed(&self.changes, iteration, |to| to.degrees_of_freedom)
                .unwrap_or(self.degrees_of_freedom),
        }
    }

    /// What was made small by the last of `made` iterations, of the first where there is none yet.
    pub(super) fn objective_after(&self, made: usize) -> Objective {
        match made.checked_sub(1) {
            Some(last) => self.objective(last),
            None => Self { changes: vec![], ..self.clone() }.objective(0),
        }
    }

    /// The same with the perplexities and degrees of freedom of `objective`.
    pub(super) fn of_objective(&self, objective: &Objective) -> Self {
        let (first, further) = objective.perplexities.split_first().unwrap_or((&self.perplexity, &[]));
        Self {
            perplexity: *first,
            further_perplexities: further.to_vec(),
            degrees_of_freedom: objective.degrees_of_freedom,
            ..self.clone()
        }
    }
}
