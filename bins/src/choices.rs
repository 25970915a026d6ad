//! Choices that several programs have on their command lines, and their names.
use chandlery::dictionary::{PursuitMethod, UpdateRule};
use chandlery::tsne::{Method as RepulsionMethod, Metric};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};

/// How a code's atoms are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Orthogonal matching pursuit: takes the atom most correlated with the residual. The fastest.
    Omp,
    /// Orthogonal least squares: takes the atom that lowers the residual most.
    Ols,
    /// Subspace pursuit: takes all atoms at once and exchanges them until the error stops falling.
    SubspacePursuit,
    /// Projection-based OMP: tries some candidates and takes the one with the largest coefficient.
    ProjectionOmp,
    /// Look-ahead OLS: tries some candidates and takes the one from which OLS ends best;
    /// by far the slowest.
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

/// The name of a choice on the command line.
pub fn name_of(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Which rows of a data set are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitsArg {
    /// Training rows, then test rows where there are any.
    #[default]
    All,
    /// Training rows.
    Train,
    /// Test rows.
    Test,
}

/// How rows are compared: the metrics of the library, by their names there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MetricArg(pub Metric);

impl ValueEnum for MetricArg {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [MetricArg; Metric::ALL.len()] = {
            let mut all = [MetricArg(Metric::Euclidean); Metric::ALL.len()];
            let mut i = 0;
            while i < all.len() {
                all[i] = MetricArg(Metric::ALL[i]);
                i += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.words()))
    }
}

/// How repulsion is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodArg {
    /// Chosen by the number of rows and dimensions.
    #[default]
    Auto,
    /// Every pair of points.
    Exact,
    /// A tree whose cells stand for the points in them.
    BarnesHut,
    /// Interpolation on a grid; 2 dimensions.
    Fft,
}

impl MethodArg {
    /// The same as the library takes it.
    pub fn method(self) -> Option<RepulsionMethod> {
        match self {
            Self::Auto => None,
            Self::Exact => Some(RepulsionMethod::Exact),
            Self::BarnesHut => Some(RepulsionMethod::BarnesHut),
            Self::Fft => Some(RepulsionMethod::Fft),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_and_command_lines_name_the_metrics_of_the_library_alike() {
        for metric in Metric::ALL {
            let arg = MetricArg::from_str(metric.name(), false).unwrap();
            assert_eq!(arg, MetricArg(metric));
            assert_eq!(serde_json::to_value(arg).unwrap(), metric.name());
            assert_eq!(serde_json::from_value::<MetricArg>(metric.name().into()).unwrap(), arg);
        }
    }
}
