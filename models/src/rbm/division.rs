//! What the ranks of a group divide.
use serde::{Deserialize, Serialize};

/// What each rank of a [group](crate::Trainer::in_group) has of the work of a minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Division {
    /// All rows, and some of the hidden units, lines of windows or maps with their weights. Ranks
    /// exchange `4 batch n_visible` bytes for each Gibbs step, so that minibatches of few rows
    /// gain.
    #[default]
    Units,
    /// Some of the rows, and all weights. Ranks exchange 4 bytes a weight once a step, whatever its
    /// rows: for minibatches that grow with the ranks. Products on a GPU in f32 are then without
    /// tensor cores, which those in TF32 and bf16 use.
    Rows,
}

impl Division {
    pub(super) fn is_units(&self) -> bool {
        *self == Self::Units
    }
}
