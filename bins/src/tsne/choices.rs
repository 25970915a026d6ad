//! Choices of the command line and their names.
use chandlery::tsne::{Method, Metric};
use clap::ValueEnum;
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

/// How rows are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricArg {
    /// The Euclidean distance.
    #[default]
    Euclidean,
    /// 1 minus the cosine of the angle between rows.
    Cosine,
    /// 1 minus the correlation of rows: the cosine of rows minus their own means.
    Correlation,
    /// The sum of the magnitudes of the differences (L1).
    Manhattan,
    /// The largest magnitude of a difference (L-infinity).
    Chebyshev,
}

impl MetricArg {
    /// The same as the library takes it.
    pub fn metric(self) -> Metric {
        match self {
            Self::Euclidean => Metric::Euclidean,
            Self::Cosine => Metric::Cosine,
            Self::Correlation => Metric::Correlation,
            Self::Manhattan => Metric::Manhattan,
            Self::Chebyshev => Metric::Chebyshev,
        }
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
