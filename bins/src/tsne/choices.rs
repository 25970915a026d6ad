//! Choices of the command line that no other program has.
use super::figures::words_of_list;
use crate::options::above_zero;
use chandlery::tsne::{Affinity, TsneConfig};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;

/// Where points begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartArg {
    /// The principal components of the rows.
    #[default]
    Pca,
    /// Drawn at random.
    Random,
    /// The directions in which a random walk over the affinities mixes slowest.
    Spectral,
}

/// A kind of affinities.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AffinityArg(pub Affinity);

impl FromStr for AffinityArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let affinity = match text.split_once('=') {
            None if text == "perplexity" => Affinity::Perplexity,
            None if text == "uniform" => Affinity::Uniform,
            Some(("fixed-width", width)) => Affinity::FixedWidth(above_zero(width)?),
            _ => return Err("must be perplexity, uniform or fixed-width=SIGMA".to_owned()),
        };
        Ok(Self(affinity))
    }
}

impl fmt::Display for AffinityArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Affinity::Perplexity => write!(f, "perplexity"),
            Affinity::Uniform => write!(f, "uniform"),
            Affinity::FixedWidth(width) => write!(f, "fixed-width={width}"),
        }
    }
}

/// A perplexity.
pub fn one_or_more(text: &str) -> Result<f64, String> {
    above_zero(text).ok().filter(|&x| x >= 1.).ok_or_else(|| "must be a number of at least 1".to_owned())
}

/// The affinities of a layout of so many points, in words: rows, or those that differ where equal
/// ones are one.
pub fn words_of_affinity(config: &TsneConfig, n_points: usize) -> String {
    match config.affinity {
        Affinity::Perplexity => format!("perplexity {}", words_of_list(&config.perplexities())),
        Affinity::Uniform => format!("{} neighbours that weigh the same", config.neighbours_of(n_points)),
        Affinity::FixedWidth(width) => format!("a Gaussian of width {width} for every row"),
    }
}

/// The perplexities of a layout, for programs: a number, several, or null where there is none.
pub fn perplexity_of(config: &TsneConfig) -> Value {
    match (config.affinity, &config.perplexities()[..]) {
        (Affinity::Perplexity, &[one]) => json!(one),
        (Affinity::Perplexity, several) => json!(several),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn affinities_are_read_as_they_are_shown() {
        for text in ["perplexity", "uniform", "fixed-width=0.25", "fixed-width=1e-30"] {
            let read: AffinityArg = text.parse().unwrap();
            let shown: AffinityArg = read.to_string().parse().unwrap();
            assert_eq!(shown, read, "{text}");
            assert_eq!(serde_json::from_value::<AffinityArg>(json!(read)).unwrap(), read);
        }
        for (text, want) in [
            ("fixed-width", "fixed-width=SIGMA"),
            ("uniform=3", "fixed-width=SIGMA"),
            ("fixed-width=0", "above 0"),
            ("fixed-width=inf", "above 0"),
        ] {
            let error = text.parse::<AffinityArg>().unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
