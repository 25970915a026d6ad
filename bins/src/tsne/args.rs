//! The command line of `tsne`.
use super::changes::ChangeArg;
use super::choices::{AffinityArg, StartArg, one_or_more};
use super::descent::DescentArgs;
use super::given::Given;
use crate::args::prepare::PrepareArgs;
use crate::args::used::UseArgs;
use crate::choices::{MetricArg, SplitsArg};
use crate::completions::CompletionsArgs;
use crate::options::{Common, DataArgs, RowsArgs, above_zero, at_least_one, at_most_one, not_negative};
use crate::session::SessionArgs;
use anyhow::{Context, Result, ensure};
use chandlery::tsne::{Affinity, Change, Metric, Start, TransformConfig, TsneConfig};
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{ImageShape, Preparation};
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  tsne --data mnist --out runs/TSNE
  tsne evaluate runs/TSNE
  tsne transform runs/TSNE --data DATA --out points.npy
  tsne draw points.npy --data DATA --out pictures";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  tsne train --data mnist --animation --thumbnails
  tsne train --dims 3 --perplexity 10,50
  tsne train --data DATA --prepare pca=50 --metric cosine --exaggeration 4
  tsne train --resume runs/TSNE --iterations 1000";
/// The same of `evaluate`.
const EVALUATE: &str = "\
Examples:
  tsne evaluate runs/TSNE
  tsne evaluate points.npy --data DATA --split test";

/// The same of `neighbours`.
const NEIGHBOURS: &str = "\
Examples:
  tsne neighbours --data DATA --out neighbours
  tsne neighbours --data DATA --neighbours 15 --metric cosine --recall 0.99 --out neighbours
  tsne --data DATA --neighbours-from neighbours/indices.npy --distances neighbours/distances.npy";

/// t-SNE: lay rows out in one to three dimensions such that near rows are near.
///
/// Without a sub-command it trains: `tsne --data mnist` is `tsne train --data mnist`.
#[derive(Debug, Parser)]
#[command(name = "tsne", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do; default: `train`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The sub-commands of `tsne`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compute a layout of the rows of a data set, and write it with pictures and an interactive
    /// page.
    #[command(after_help = TRAIN)]
    Train(Box<TrainArgs>),
    /// Place new rows in a saved layout, whose points stay, and write the new points to a .npy,
    /// .csv or .safetensors file.
    Transform(TransformArgs),
    /// Measure a layout made by any program: divergence, trustworthiness, recall of neighbours,
    /// accuracy of labels by neighbours.
    #[command(after_help = EVALUATE)]
    Evaluate(EvaluateArgs),
    /// Draw a layout made by any program: a scatter and an interactive page, as after training.
    Draw(DrawArgs),
    /// Find the nearest rows of each row, and write them with their distances to .npy files.
    #[command(after_help = NEIGHBOURS)]
    Neighbours(NeighboursArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// How neighbours are searched; of `train` and of `neighbours`.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct SearchArgs {
    /// Search neighbours approximately: only in the clusters of rows nearest to each row, which
    /// finds most of them. Default: true for more than 150,000 rows.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub approximate: Option<bool>,
    /// Share of the nearest rows that an approximate search must find, above 0 and at most 1. It is
    /// measured on 512 rows drawn at random.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = at_most_one)]
    pub recall: f64,
}

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Rows to use; default: all.
    #[arg(long, value_enum, default_value_t)]
    pub split: SplitsArg,
    /// Effective number of neighbours of a row, at least 1; lowered to a third of the rows where
    /// these are few. Several values, such as 10,50, average their affinities.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "30", value_parser = one_or_more)]
    pub perplexity: Vec<f64>,
    /// What the neighbours of a row weigh: perplexity, uniform or fixed-width=SIGMA. A Gaussian
    /// that is as wide in each row as --perplexity says, all the same, or a Gaussian of the width
    /// SIGMA in all rows, above 0, in the unit of distances between prepared rows.
    #[arg(long, value_name = "KIND", default_value_t)]
    pub affinity: AffinityArg,
    /// How rows are compared.
    #[arg(long, value_enum, default_value_t)]
    pub metric: MetricArg,
    /// Draw equal rows as one point, which pulls and pushes as so many rows: the layout of all rows
    /// with equal ones held together. Neighbours are searched among rows that differ. In one
    /// process.
    #[arg(long, conflicts_with = "neighbours_from")]
    pub unique: bool,
    /// Number of neighbours of each row. At least the largest perplexity; default: three times the
    /// largest perplexity.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub neighbours: Option<usize>,
    /// Whether all rows are searched.
    #[command(flatten)]
    #[serde(flatten)]
    pub search: SearchArgs,
    /// Neighbours that were found elsewhere: a .npy file of integers from 0, [n, k]. The row itself
    /// is left out. Needs --distances.
    #[arg(long, value_name = "FILE", requires = "distances", conflicts_with_all = ["neighbours", "approximate", "recall"])]
    pub neighbours_from: Option<PathBuf>,
    /// The distances (not squared) of --neighbours-from: a .npy file of floats, [n, k].
    #[arg(long, value_name = "FILE", requires = "neighbours_from")]
    pub distances: Option<PathBuf>,
    /// Distances of all pairs of rows (not squared) that were computed elsewhere: a .npy file of
    /// floats, [n, n]. A line is how far the others are from its row. Rows then give labels and
    /// pictures alone: all measures are of these distances, and `transform` is refused.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["neighbours_from", "approximate", "recall", "metric", "prepare"])]
    pub distance_matrix: Option<PathBuf>,
    /// Iterations after the early ones, from the option `--iterations` of [`TrainArgs`].
    #[arg(skip = 500usize)]
    pub iterations: usize,
    /// The layout, and how it is found.
    #[command(flatten)]
    #[serde(flatten)]
    pub descent: DescentArgs,
    /// Change settings from an iteration on, counted from 0, the early ones included. Names are
    /// exaggeration, learning-rate, momentum, degrees-of-freedom and perplexity (several with +
    /// between them); a value lasts until the next change of the same name or to the end, also
    /// beyond the early iterations. May be given several times: --change 250:exaggeration=4
    /// --change 500:perplexity=10.
    #[arg(long, value_name = "ITERATION:NAME=VALUE,...")]
    pub change: Vec<ChangeArg>,
    /// Start of training. The initial layout; with --neighbours-from or --distance-matrix it is
    /// random in place of pca.
    #[arg(long, value_enum, default_value_t)]
    pub start: StartArg,
    /// What to start from. A file of the initial layout, in place of --start: .npy, .csv or
    /// .safetensors, [n, dims].
    #[arg(long, value_name = "FILE", conflicts_with = "start")]
    pub start_from: Option<PathBuf>,
    /// End when the norm of the gradient is at most this, at least 0.
    #[arg(long, value_name = "NORM", default_value_t = 1e-7, value_parser = not_negative)]
    pub gradient_tolerance: f64,
    /// How rows are prepared.
    #[command(flatten)]
    #[serde(flatten)]
    pub prepare: PrepareArgs,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Draw the layout during the descent, and write an animation, history.gif.
    #[arg(long)]
    pub animation: bool,
    /// Skip the measures of quality, whose time grows with the square of the number of rows. Of more
    /// than 300,000 rows a sample is measured, and the error told. Without measures the divergence is
    /// the approximation that --method computes during the descent.
    #[arg(long)]
    pub skip_measures: bool,
    /// What is drawn of the layout.
    #[command(flatten)]
    #[serde(flatten)]
    pub pictures: PicturesArgs,
}

/// What is drawn of a layout besides the scatter.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct PicturesArgs {
    /// Draw rows that are images at their points, thumbnails.png, PIXELS wide or high, 4 to 512;
    /// one that would cover another is left out.
    #[arg(long, value_name = "PIXELS", num_args = 0..=1, require_equals = true, default_missing_value = "32", value_parser = clap::value_parser!(u32).range(4..=512))]
    pub thumbnails: Option<u32>,
    /// Leave the pictures of rows out of the page if they take more MiB than this.
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = at_least_one)]
    pub page_limit: usize,
}

impl Settings {
    /// The same as the library takes it.
    pub fn config(&self, preparation: Preparation, image: Option<ImageShape>) -> TsneConfig {
        let (first, further) = self.perplexity.split_first().unwrap_or((&30., &[]));
        let mut changes: Vec<Change> = self.change.iter().map(|change| change.0.clone()).collect();
        changes.sort_by_key(|change| change.iteration);
        TsneConfig {
            perplexity: *first,
            further_perplexities: further.to_vec(),
            affinity: self.affinity.0,
            changes,
            metric: self.metric.0,
            unique: self.unique,
            neighbours: self.neighbours,
            approximate: self.search.approximate,
            recall: self.search.recall,
            start: match self.start {
                StartArg::Pca => Start::Pca,
                StartArg::Random => Start::Random,
                StartArg::Spectral => Start::Spectral,
            },
            gradient_tolerance: self.gradient_tolerance,
            preparation,
            centre: vec![],
            image,
            ..self.descent.config(self.iterations)
        }
    }

    /// Refuses a perplexity that nothing has, and a change that is never made.
    pub fn check(&self) -> Result<()> {
        let n = self.descent.early_iterations + self.iterations;
        for ChangeArg(Change { iteration, to }) in &self.change {
            ensure!(*iteration < n, "--change: must be at an iteration below {n}, got {iteration}");
            check_affinity(to.perplexities.as_ref(), self.affinity).context("--change")?;
        }
        let is_default = self.perplexity == [TsneConfig::default().perplexity];
        check_affinity((!is_default).then_some(&self.perplexity), self.affinity)
    }

    /// Neighbours, or distances that they are found by, that were computed elsewhere.
    pub fn given(&self) -> Option<Given> {
        match (&self.neighbours_from, &self.distances, &self.distance_matrix) {
            (Some(indices), Some(distances), _) => {
                Some(Given::Neighbours([indices.clone(), distances.clone()]))
            }
            (_, _, Some(matrix)) => Some(Given::Distances(matrix.clone())),
            _ => None,
        }
    }

    /// Whether rows without the means of their columns have the same layout.
    pub fn takes_centre(&self) -> bool {
        takes_centre(self.metric.0, self.prepare.steps())
    }
}

/// Refuses perplexities beside a kind of affinities that has none.
pub fn check_affinity(perplexity: Option<&Vec<f64>>, affinity: AffinityArg) -> Result<()> {
    ensure!(
        perplexity.is_none() || affinity.0 == Affinity::Perplexity,
        "--perplexity: --affinity {affinity} has none; say how many neighbours have an affinity by --neighbours"
    );
    Ok(())
}

/// Whether rows that are prepared and compared so may first lose the means of their columns.
pub fn takes_centre(metric: Metric, prepare: &[StepConfig]) -> bool {
    let by_differences =
        matches!(metric, Metric::Euclidean | Metric::Manhattan | Metric::Chebyshev | Metric::Hamming);
    let keeps_differences = |step: &StepConfig| {
        matches!(
            step,
            StepConfig::Scale(_)
                | StepConfig::UnitVariance
                | StepConfig::MeanNorm
                | StepConfig::Center
                | StepConfig::Standardise
                | StepConfig::MinMax
                | StepConfig::Robust
                | StepConfig::Pca { .. }
                | StepConfig::Whiten(_)
        )
    };
    by_differences && prepare.iter().all(keeps_differences)
}

/// Arguments of `tsne train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub data: DataArgs,
    /// How they are laid out.
    #[command(flatten)]
    pub settings: Settings,
    /// Iterations, which are no epochs: each computes the gradient from all rows at least once.
    /// Default: 500, after the early ones. With --resume, a larger number extends the run, even a
    /// finished one.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub iterations: Option<usize>,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Arguments of `tsne transform`.
#[derive(Debug, Args)]
pub struct TransformArgs {
    /// The layout, and the new rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// File to write their points to: .npy, .csv or .safetensors, or - for CSV on standard output.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Effective number of neighbours of a row, at least 1; lowered to a third of the rows in the
    /// layout where these are few.
    #[arg(long, value_name = "P", default_value_t = 5., value_parser = one_or_more)]
    pub perplexity: f64,
    /// Iterations, which are no epochs: each computes the gradient from all rows at least once.
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = at_least_one)]
    pub iterations: usize,
    /// Factor on the attraction, above 0.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, value_parser = above_zero)]
    pub exaggeration: f64,
    /// Learning rate, above 0.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = above_zero)]
    pub learning_rate: f64,
}

impl TransformArgs {
    /// The same as the library takes it.
    pub fn config(&self) -> TransformConfig {
        TransformConfig {
            perplexity: self.perplexity,
            iterations: self.iterations,
            exaggeration: self.exaggeration,
            learning_rate: self.learning_rate,
            ..TransformConfig::default()
        }
    }
}

/// Arguments of `tsne evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// The layout: the folder of a run, or a .npy, .csv or .safetensors file, [n, 1] to [n, 3]. It
    /// has one point for each row that --split selects, in the same order.
    #[arg(value_name = "LAYOUT")]
    pub layout: PathBuf,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// Rows to use; default: those of the run if LAYOUT is the folder of a run, else all.
    #[arg(long, value_enum)]
    pub split: Option<SplitsArg>,
    /// How rows are compared; default: as in the run if LAYOUT is the folder of a run, else by the
    /// Euclidean distance.
    #[arg(long, value_enum)]
    pub metric: Option<MetricArg>,
    /// Effective number of neighbours of a row, at least 1; lowered to a third of the rows where
    /// these are few. Several average their affinities. Default: as in the run if LAYOUT is the
    /// folder of a run, else 30.
    #[arg(long, value_name = "P,...", value_delimiter = ',', value_parser = one_or_more)]
    pub perplexity: Vec<f64>,
    /// What the neighbours of a row weigh: perplexity, uniform or fixed-width=SIGMA. Default: as in
    /// the run if LAYOUT is the folder of a run, else perplexity.
    #[arg(long, value_name = "KIND")]
    pub affinity: Option<AffinityArg>,
    /// Number of neighbours of each row. So many get an affinity; default: as in the run if LAYOUT
    /// is the folder of a run, else three times the largest perplexity.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub neighbours: Option<usize>,
    /// Degrees of freedom A of the kernel (1 + d^2/A)^-A, above 0; default: as in the run if LAYOUT
    /// is the folder of a run, else 1.
    #[arg(long, value_name = "ALPHA", value_parser = above_zero)]
    pub degrees_of_freedom: Option<f64>,
    /// How rows are prepared.
    #[command(flatten)]
    pub prepare: PrepareArgs,
    /// Where it computes, and how it reports.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `tsne draw`.
#[derive(Debug, Args)]
pub struct DrawArgs {
    /// The layout: the folder of a run, or a .npy, .csv or .safetensors file, [n, 1] to [n, 3]. A
    /// file without --data is drawn with the labels that it has; with --data it has one point for
    /// each row that --split selects, in the same order.
    #[arg(value_name = "LAYOUT")]
    pub layout: PathBuf,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// Rows to use; default: those of the run if LAYOUT is the folder of a run, else all.
    #[arg(long, value_enum)]
    pub split: Option<SplitsArg>,
    /// What is drawn.
    #[command(flatten)]
    pub pictures: PicturesArgs,
    /// Folder to write scatter.png and page.html to; default: LAYOUT if it is the folder of a run.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Where it computes, and how it reports.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `tsne neighbours`.
#[derive(Debug, Args)]
pub struct NeighboursArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub data: DataArgs,
    /// Rows to use; default: all.
    #[arg(long, value_enum, default_value_t)]
    pub split: SplitsArg,
    /// Number of neighbours of each row. The row itself is left out.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = at_least_one)]
    pub neighbours: usize,
    /// How rows are compared.
    #[arg(long, value_enum, default_value_t)]
    pub metric: MetricArg,
    /// Whether all rows are searched.
    #[command(flatten)]
    pub search: SearchArgs,
    /// Folder to write indices.npy (i64, rows from 0, the nearest first) and distances.npy (f32,
    /// not squared) to, both [n, N].
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// How rows are prepared.
    #[command(flatten)]
    pub prepare: PrepareArgs,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Where it computes, and how it reports.
    #[command(flatten)]
    pub common: Common,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(flags: &[&str]) -> std::result::Result<Cli, clap::Error> {
        crate::session::args::parse(["tsne"].iter().chain(flags))
    }

    #[test]
    fn the_command_line_is_sound_and_every_flag_has_a_sentence() {
        crate::session::args::assert_sound::<Cli>();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        let train = parse(&[]).unwrap().train;
        assert_eq!(train.settings.config(Preparation::default(), None), TsneConfig::default());
        let text = serde_json::to_string(&train.settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), train.settings);
        let Some(Command::Transform(transform)) =
            parse(&["transform", "m", "--out", "x.npy"]).unwrap().command
        else {
            panic!("no transform")
        };
        assert_eq!(transform.config(), TransformConfig::default());
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        for (flags, text) in [
            (["--perplexity", "0.5"], "must be a number of at least 1"),
            (["--perplexity", "30,x"], "must be a number of at least 1"),
            (["--dims", "4"], "must be 1, 2 or 3"),
            (["--theta", "1.5"], "must be a number from 0 to 1"),
            (["--exaggeration", "0"], "above 0"),
            (["--momentum", "1"], "below 1"),
            (["--neighbours-from", "a.npy"], "--distances"),
            (["--recall", "0"], "above 0 and at most 1"),
        ] {
            let err = parse(&flags).unwrap_err();
            assert!(err.to_string().contains(text), "{flags:?}: {err}");
            assert_eq!(err.exit_code(), 2);
        }
        let several = parse(&["--perplexity", "30,100"]).unwrap().train.settings.perplexity;
        assert_eq!(several, [30., 100.]);
        assert!(parse(&["--resume", "runs/a", "--iterations", "900"]).is_ok());
        assert!(parse(&["--resume", "runs/a", "--perplexity", "9"]).is_err());
    }
}
