//! Choices of the command line that no other program has.
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where points begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartArg {
    /// The principal components of the rows.
    #[default]
    Pca,
    /// Drawn at random.
    Random,
}
