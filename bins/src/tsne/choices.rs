//! Choices of the command line and their names.
use chandlery::tsne::{Method, Metric};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};

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
    pub fn method(self) -> Option<Method> {
        match self {
            Self::Auto => None,
            Self::Exact => Some(Method::Exact),
            Self::BarnesHut => Some(Method::BarnesHut),
            Self::Fft => Some(Method::Fft),
        }
    }
}

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
