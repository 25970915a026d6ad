//! Choices of the command line, as it names them.
use chandlery::dictionary::{PursuitMethod, Replace, UpdateRule};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How a code's atoms are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Orthogonal matching pursuit: the atom most like the residual. The fastest.
    Omp,
    /// Orthogonal least squares: the atom that lowers the residual most.
    Ols,
    /// Subspace pursuit: as many atoms as wanted at once, exchanged until nothing is gained; on the CPU.
    SubspacePursuit,
    /// Projection-based OMP: of some candidates the one with the largest coefficient beside all others; on the CPU.
    ProjectionOmp,
    /// Look-ahead OLS: of some candidates the one from which OLS ends best; on the CPU, and the slowest by far.
    LookAheadOls,
}

impl From<Method> for PursuitMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Omp => Self::Omp,
            Method::Ols => Self::Ols,
            Method::SubspacePursuit => Self::SubspacePursuit,
            Method::ProjectionOmp => Self::ProjectionOmp,
            Method::LookAheadOls => Self::LookAheadOls,
        }
    }
}

/// How atoms are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// K-SVD: the best atom and coefficients for the rows that use it.
    Ksvd,
    /// Approximate K-SVD: one power iteration of that.
    AkSvd,
    /// SGK: the best atom for the coefficients as they are.
    Sgk,
    /// NSGK: SGK for the codes of the iteration before, on what both codes differ by besides.
    Nsgk,
    /// MOD: the best dictionary for the codes as they are.
    Mod,
}

impl From<Rule> for UpdateRule {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Ksvd => Self::Ksvd,
            Rule::AkSvd => Self::AkSvd,
            Rule::Sgk => Self::Sgk,
            Rule::Nsgk => Self::Nsgk,
            Rule::Mod => Self::Mod,
        }
    }
}

/// The first dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartArg {
    /// Rows drawn at random, made unit vectors, none zero or like another; random directions where too few differ.
    Random,
    /// The overcomplete cosine transform, its lowest frequencies first; for square patches and any number of atoms.
    Dct,
}

/// What takes the place of an atom that is hardly used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplaceArg {
    /// Nothing: it stays.
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

/// A choice as the command line has it.
pub fn name_of(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
