//! Kinds of affinities.
use serde::{Deserialize, Serialize};

/// How much each of its neighbours weighs for a row.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// A Gaussian whose width in each row gives the perplexity; of several perplexities the mean of
    /// their normalised Gaussians, which is the multiscale mixture of Kobak and Berens (2019).
    #[default]
    Perplexity,
    /// The same for all neighbours: `1 / k`. With 10 to 15 neighbours the layout is much as of the
    /// usual perplexities (Böhm et al., "Attraction-repulsion spectrum in neighbor embeddings",
    /// 2022).
    Uniform,
    /// A Gaussian of this standard deviation, above 0, in the unit of the distances between
    /// prepared rows. Rows in dense places then weigh many neighbours, others few.
    FixedWidth(f64),
}
