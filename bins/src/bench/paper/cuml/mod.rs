//! t-SNE on a GPU, as Han-Chen tells of cuML's: "Accelerating TSNE with GPUs: from hours to
//! seconds", RAPIDS, 2019.
//!
//! The tables of the source are pictures, of which its text says the figures that stand in
//! [`KNOWN`]. The faithful form is Barnes-Hut, whose points are pushed back where a step throws
//! them far out; ours is FFT interpolation with a limit on steps.
//!
//! | section | what |
//! |---|---|
//! | `table-1`, `table-2`, `table-3` | whole runs: ours, scikit-learn's, how many times as fast |
//! | `sizes` | seconds by rows, and from how many the GPU is faster |
//! | `table-4` | the stages of a run apart |
//! | `error` | the error of Barnes-Hut by θ, beside the grid's |
//! | `pca` | 204,800 rows of 80 and of 50, by PCA |
//! | `optimisation-1` | the symmetric graph: pairs of writes, and merged rows |
//! | `optimisation-3` | attraction for both ends of an edge at once |
//! | `outliers` | pushing points back against a limit on steps |
//! | `figure-3`, `figure-4`, `figure-7` | a layout, its images, the crowding of a kernel without tails |
mod attraction;
mod data;
mod error;
mod outliers;
mod pictures;
mod runs;
mod stages;
mod symmetrisation;

use super::{Cell, Paper, Table};
use anyhow::Result;
use chandlery::tsne::{Method, Start, TsneConfig};

/// The sections, in the order in which they are printed.
pub(super) const SECTIONS: &[&str] = &[
    "table-1",
    "table-2",
    "table-3",
    "sizes",
    "pca",
    "table-4",
    "error",
    "optimisation-1",
    "optimisation-3",
    "outliers",
    "figure-3",
    "figure-4",
    "figure-7",
];

/// What the source says of a data set.
struct Known {
    name: &'static str,
    n: usize,
    n_features: usize,
    /// Seconds of scikit-learn on a Xeon E5-2698 v4 of 20 cores, of which it uses one.
    scikit_learn: Option<f64>,
    /// Seconds of cuML on a V100, with the transfers of data.
    cuml: Option<f64>,
    /// How many times as fast, as printed; at least, where no seconds are.
    factor: Option<f64>,
    place: &'static str,
}

/// Rows of tables 1 to 3, and of the text around them.
const KNOWN: [Known; 6] = [
    Known {
        name: "204,800 × 80",
        n: 204_800,
        n_features: 80,
        scikit_learn: Some(3. * 3600.),
        cuml: Some(5.4),
        factor: Some(2000.),
        place: "tables 1 to 3 (nearly 3 hours)",
    },
    Known {
        name: "204,800 × 50, after PCA",
        n: 204_800,
        n_features: 50,
        scikit_learn: None,
        cuml: None,
        factor: Some(1000.),
        place: "text (more than 1,000 times)",
    },
    Known {
        name: "Fashion-MNIST",
        n: 60_000,
        n_features: 784,
        scikit_learn: Some(3600.),
        cuml: Some(3.),
        factor: Some(1000.),
        place: "figure 1 (1 hour), table 2",
    },
    Known {
        name: "MNIST",
        n: 60_000,
        n_features: 784,
        scikit_learn: None,
        cuml: None,
        factor: None,
        place: "figure 3",
    },
    Known {
        name: "digits",
        n: 1797,
        n_features: 64,
        scikit_learn: None,
        cuml: None,
        factor: None,
        place: "the call in the text",
    },
    Known {
        name: "breast cancer",
        n: 569,
        n_features: 30,
        scikit_learn: None,
        cuml: Some(1.),
        factor: None,
        place: "figure 5",
    },
];

/// Beyond this coordinate points are pushed back; the source has a bound, but does not say which.
const BOUND: f32 = 200.;
/// The seed of all runs.
const SEED: u64 = 15;

/// As the source: Barnes-Hut with θ = .5 from a random start, 1,000 iterations in all, outliers
/// pushed back.
fn faithful() -> TsneConfig {
    TsneConfig {
        method: Some(Method::BarnesHut),
        theta: 0.5,
        iterations: 750,
        start: Start::Random,
        push_back: Some(BOUND),
        ..TsneConfig::default()
    }
}

/// As this library does it.
fn best() -> TsneConfig {
    TsneConfig::default()
}

/// A table of these parts.
fn table(title: &str, heads: &[&str], rows: Vec<Vec<Cell>>, notes: Vec<String>) -> Table {
    Table { rows, notes, ..Table::new(title, heads) }
}

/// All sections that are asked for.
pub(super) fn run(paper: &mut Paper) -> Result<()> {
    runs::run(paper)?;
    stages::run(paper)?;
    error::run(paper)?;
    symmetrisation::run(paper)?;
    attraction::run(paper)?;
    outliers::run(paper)?;
    pictures::run(paper)
}
