//! Choices of the command line that no other program has.
use chandlery::dictionary::Replace;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The initial dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartArg {
    /// Distinct non-zero rows drawn at random, scaled to norm 1; random directions if too few rows
    /// differ.
    Random,
    /// The overcomplete cosine transform, lowest frequencies first; for square patches and any
    /// number of atoms.
    Dct,
}

/// What replaces an atom that few rows use or that nearly equals another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplaceArg {
    /// Nothing: the atom stays.
    None,
    /// A row drawn at random.
    Random,
    /// The row that the dictionary represents worst.
    WorstRepresented,
}

impl From<ReplaceArg> for Replace {
    fn from(replace: ReplaceArg) -> Self {
        match replace {
            ReplaceArg::None => Self::None,
            ReplaceArg::Random => Self::Random,
            ReplaceArg::WorstRepresented => Self::WorstRepresented,
        }
    }
}

/// Arrays of a `.npz` file of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum SparseFormat {
    /// A row of --nonzero atoms and coefficients for each row, and how many count.
    #[default]
    Padded,
    /// A compressed sparse row matrix of scipy.
    Csr,
}
