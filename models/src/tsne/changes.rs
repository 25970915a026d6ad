//! Settings that change during a descent.
use super::Affinity;
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
    pub(super) fn is_of_objective(&self) -> bool {
        self.perplexities.is_some() || self.degrees_of_freedom.is_some()
    }
}

/// Refuses changes that make no sense in a descent of `n` iterations.
pub(super) fn check(changes: &[Change], affinity: Affinity, n: usize) -> Result<()> {
    const OP: &str = "TsneConfig";
    changes.iter().try_for_each(|change| change.to.check(affinity))?;
    if let Some(pair) = changes.windows(2).find(|pair| pair[0].iteration > pair[1].iteration) {
        candle::bail!(
            "{OP}: changes must ascend by iteration, got {} before {}",
            pair[0].iteration,
            pair[1].iteration
        )
    }
    match changes.last().filter(|last| last.iteration >= n) {
        Some(last) => candle::bail!(
            "{OP}: changes must be at iterations below {n}, those of the whole descent, got {}",
            last.iteration
        ),
        None => Ok(()),
    }
}

/// What a change at or before `iteration` has set, the last of several.
pub(super) fn changed<T>(
    changes: &[Change],
    iteration: usize,
    of: impl Fn(&NewValues) -> Option<T>,
) -> Option<T> {
    changes.iter().rev().filter(|change| change.iteration <= iteration).find_map(|change| of(&change.to))
}
