//! Choices of the command line and their names.
use chandlery::dictionary::{PursuitMethod, Replace, UpdateRule};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How a code's atoms are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Orthogonal matching pursuit: takes the atom most correlated with the residual. The fastest.
    Omp,
    /// Orthogonal least squares: takes the atom that lowers the residual most.
    Ols,
    /// Subspace pursuit: takes all atoms at once and exchanges them until the error stops falling; CPU only.
    SubspacePursuit,
    /// Projection-based OMP: tries some candidates and takes the one with the largest coefficient; CPU only.
    ProjectionOmp,
    /// Look-ahead OLS: tries some candidates and takes the one from which OLS ends best; CPU only, by far the slowest.
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

/// How the atoms of a code are chosen where pixels are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MaskedMethod {
    /// Orthogonal matching pursuit: takes the atom most correlated with the residual. The fastest.
    Omp,
    /// Orthogonal least squares: takes the atom that lowers the residual most.
    Ols,
}

impl From<MaskedMethod> for PursuitMethod {
    fn from(method: MaskedMethod) -> Self {
        match method {
            MaskedMethod::Omp => Self::Omp,
            MaskedMethod::Ols => Self::Ols,
        }
    }
}

/// How atoms are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// K-SVD: the best atom and coefficients for the rows that use it.
    Ksvd,
    /// Approximate K-SVD: K-SVD with one power iteration per atom.
    AkSvd,
    /// SGK: the best atom for fixed coefficients.
    Sgk,
    /// NSGK: SGK with the previous codes, corrected for their change.
    Nsgk,
    /// MOD: the best dictionary for fixed codes.
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

/// The initial dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartArg {
    /// Distinct non-zero rows drawn at random, scaled to norm 1; random directions if too few rows differ.
    Random,
    /// The overcomplete cosine transform, lowest frequencies first; for square patches and any number of atoms.
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

/// The name of a choice on the command line.
pub fn name_of(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
