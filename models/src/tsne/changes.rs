//! Settings that change during a descent.
use super::{Affinity, TsneConfig};
use crate::check::range;
use candle::Result;
use serde::{Deserialize, Serialize};

/// New values of settings; none: as before.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NewValues {
    /// The factor on the attraction, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exaggeration: Option<f64>,
    /// Above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// In `[0, 1)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// `α` of the kernel, above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrees_of_freedom: Option<f32>,
    /// All perplexities, 1 to 8 of them, each at least 1 and at most the number of neighbours. The
    /// affinities are computed anew, of the same neighbours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexities: Option<Vec<f64>>,
}

/// A change of settings on the way.
///
/// It takes effect before an iteration and lasts until the next change of the same setting, or to
/// the end: what a change has set no longer follows the phases, so that an exaggeration that was
/// set in an early iteration is that of the late ones too. A learning rate that neither the
/// configuration nor a change has set is the number of points over the exaggeration in force.
///
/// A check falls on each change; the divergence there is still that of the settings before it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Change {
    /// Iterations made before it, the early ones too; below those of the whole descent.
    pub iteration: usize,
    /// What changes.
    #[serde(flatten)]
    pub to: NewValues,
}

/// What the divergence that a descent makes small is of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Objective {
    pub perplexities: Vec<f64>,
    pub degrees_of_freedom: f32,
}

impl Change {
    /// The same with perplexities of at most `most`.
    pub(super) fn lowered_to(&self, most: f64) -> Self {
        let lowered = |all: &Vec<f64>| all.iter().map(|p| p.min(most)).collect();
        let perplexities = self.to.perplexities.as_ref().map(lowered);
        Self { to: NewValues { perplexities, ..self.to.clone() }, ..*self }
    }
}

impl NewValues {
    fn check(&self, affinity: Affinity) -> Result<()> {
        const OP: &str = "TsneConfig: a change";
        if *self == Self::default() {
            candle::bail!("{OP}: a value must be given, got none")
        }
        range(OP, "exaggeration", self.exaggeration.unwrap_or(1.), "above 0", |x| x > 0.)?;
        range(OP, "learning_rate", self.learning_rate.unwrap_or(1.), "above 0", |x| x > 0.)?;
        range(OP, "momentum", self.momentum.unwrap_or(0.), "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        let alpha = self.degrees_of_freedom.unwrap_or(1.).into();
        range(OP, "degrees_of_freedom", alpha, "above 0", |x| x > 0.)?;
        let Some(perplexities) = &self.perplexities else { return Ok(()) };
        if affinity != Affinity::Perplexity {
            candle::bail!("{OP}: perplexities are for affinities of perplexities, got {affinity:?}")
        }
        if perplexities.is_empty() || perplexities.len() > 8 {
            candle::bail!("{OP}: there must be 1 to 8 perplexities, got {}", perplexities.len())
        }
        perplexities.iter().try_for_each(|&p| range(OP, "perplexity", p, "at least 1", |x| x >= 1.))
    }

    /// Whether the divergence is of something else.
    fn is_of_objective(&self) -> bool {
        self.perplexities.is_some() || self.degrees_of_freedom.is_some()
    }
}

impl TsneConfig {
    pub(super) fn check_changes(&self) -> Result<()> {
        const OP: &str = "TsneConfig";
        self.changes.iter().try_for_each(|change| change.to.check(self.affinity))?;
        if let Some(pair) = self.changes.windows(2).find(|pair| pair[0].iteration > pair[1].iteration) {
            candle::bail!(
                "{OP}: changes must ascend by iteration, got {} before {}",
                pair[0].iteration,
                pair[1].iteration
            )
        }
        let n = self.iterations_in_all();
        match self.changes.last().filter(|last| last.iteration >= n) {
            Some(last) => candle::bail!(
                "{OP}: changes must be at iterations below {n}, those of the whole descent, got {}",
                last.iteration
            ),
            None => Ok(()),
        }
    }

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

    /// What a change at or before `iteration` has set, the last of several.
    pub(super) fn changed<T>(&self, iteration: usize, of: impl Fn(&NewValues) -> Option<T>) -> Option<T> {
        let so_far = self.changes.iter().rev().filter(|change| change.iteration <= iteration);
        so_far.map(|change| of(&change.to)).find_map(|value| value)
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
        let perplexities = self.changed(iteration, |to| to.perplexities.clone());
        Objective {
            perplexities: perplexities.unwrap_or_else(|| self.perplexities()),
            degrees_of_freedom: self
                .changed(iteration, |to| to.degrees_of_freedom)
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
