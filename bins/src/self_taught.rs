//! The command `self-taught` of several programs: [`chandlery::evaluation::self_taught`] with raw
//! pixels and principal components beside the features.
//!
//! The default classes are those of Ng et al., UFLDL.
use crate::device::describe;
use crate::options::{Common, ReadArgs, at_least_one};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::run_folder::{Existing, RunFolder};
use crate::stages::{self, Stage};
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::Encode;
use chandlery::evaluation::self_taught::{Accuracy, SelfTaught, rows_of};
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{Dataset, Preparation, Split, count};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

/// The experiment, whatever the features are.
#[derive(Debug, Clone, Args)]
pub struct TaskArgs {
    /// Data set: a name, a folder or a file. Its rows must have labels.
    #[arg(long, value_name = "DATA", default_value = "mnist-sample")]
    pub data: String,
    /// How the data set is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Classes whose training rows are used without their labels: one number, or the first and the
    /// last.
    #[arg(long, value_name = "FIRST-LAST", default_value = "5-9")]
    pub unlabelled_classes: Classes,
    /// Classes that classifiers tell apart, at least two.
    #[arg(long, value_name = "FIRST-LAST", default_value = "0-4")]
    pub labelled_classes: Classes,
    /// Number of labelled training rows to learn from, balanced over the classes. Several numbers,
    /// such as 10,100,1000, repeat the comparison for each. Default: all rows.
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    pub labelled: Vec<usize>,
    /// Maximum number of principal components in the PCA baseline.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = at_least_one)]
    pub components: usize,
    /// Number of runs, with seeds --seed, --seed + 1, …; prints means and standard deviations.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub seeds: usize,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    /// With --seeds, the first one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Classes that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    first: u32,
    last: u32,
}

impl FromStr for Classes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self { first, last }),
            _ => {
                Err("must be the number of a class, or the first and the last of several, as in 5-9"
                    .to_owned())
            }
        }
    }
}

impl Classes {
    fn len(self) -> usize {
        (self.last - self.first) as usize + 1
    }

    fn words(self) -> String {
        match self.len() {
            1 => format!("class {}", self.first),
            _ => format!("classes {} to {}", self.first, self.last),
        }
    }

    fn range(self) -> RangeInclusive<u32> {
        self.first..=self.last
    }
}

/// Compares the features that the models of `learn` make of unlabelled rows with a seed; `name` is
/// what a table calls them.
///
/// The model of the first seed and its figures go to `keep` with the folder `out`, if there is one,
/// and the fields for `--json`, which it adds to.
///
/// # Errors
/// When rows lack labels or classes, there are no test rows, the folder is not empty, or `learn` or
/// `keep` fails.
pub fn run<M: Encode<Codes = Tensor>, K>(
    args: &TaskArgs,
    out: Option<&Path>,
    name: &str,
    mut learn: impl FnMut(&Split, u64, &Device) -> Result<(M, K)>,
    keep: impl FnOnce(M, K, Option<&RunFolder>, &Split, &mut Map<String, Value>) -> Result<()>,
) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let folder = match out {
        Some(out) => Some(RunFolder::create("self-taught", Some(out), Existing::Refuse)?),
        None => None,
    };
    let dataset = args.read.open(&args.data)?;
    let unlabelled = rows_of(&dataset.train, &args.unlabelled_classes.range()).context("--data")?;
    let mut first = None;
    let mut results = compare(
        args,
        &report,
        &device,
        name,
        (&dataset, &unlabelled),
        |seed| {
            let _stage = stages::enter(Stage::Training);
            let _spinner = Spinner::new("learning features");
            learn(&unlabelled, seed, &device)
        },
        &mut first,
    )?;
    if let Some((model, figures)) = first {
        if let Some(folder) = &folder {
            folder.begin(&[])?;
        }
        keep(model, figures, folder.as_ref(), &unlabelled, &mut results)?;
    }
    if let Some(folder) = &folder {
        report.line(&format!("{}", folder.path().display()))?;
    }
    report.finish(Value::Object(results))?;
    Ok(Outcome::Done)
}

/// Prints what features are worth, and gives the fields for `--json`.
fn compare<M: Encode<Codes = Tensor>, K>(
    args: &TaskArgs,
    report: &Report,
    device: &Device,
    name: &str,
    (dataset, unlabelled): (&Dataset, &Split),
    mut learn: impl FnMut(u64) -> Result<(M, K)>,
    first: &mut Option<(M, K)>,
) -> Result<Map<String, Value>> {
    let classes = args.labelled_classes;
    ensure!(classes.len() >= 2, "--labelled-classes: must be at least 2 classes, got {}", classes.words());
    let test = dataset.test.as_ref().context("--data: there must be test rows")?;
    let task = SelfTaught::new(&dataset.train, test, classes.range(), &args.labelled).context("--data")?;
    let n_labelled = task.numbers();
    let most = n_labelled.last().copied().unwrap_or_default();
    report.line(&format!(
        "features of {} of the {}, classifiers of {} of the {}, measured on {}, on {}",
        count(unlabelled.n_samples(), "row"),
        args.unlabelled_classes.words(),
        n_labelled.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        classes.words(),
        task.n_test(),
        describe(device)
    ))?;
    let components = args.components.min(unlabelled.n_features()).min(unlabelled.n_samples());
    let mut seconds = 0.;
    // For each seed the accuracies by each number of labels.
    let mut by = [vec![], vec![], vec![]];
    for seed in (0..args.seeds as u64).map(|i| args.seed.wrapping_add(i)) {
        let draw = task.draw(seed)?;
        let pca = Preparation::fit(unlabelled, &[StepConfig::Pca { n_components: components }], seed)?;
        let started = Instant::now();
        let made = learn(seed)?;
        seconds += started.elapsed().as_secs_f64();
        let pca = pca.to_device(device)?;
        let _spinner = Spinner::new("learning to classify");
        let [of_pixels, of_pca, of_features] = &mut by;
        let prepared = |by: &Preparation, rows: &Tensor| by.apply(rows).map_err(candle::Error::wrap);
        let pixels = Preparation::default();
        of_pixels.push(task.accuracies(&draw, device, &|rows| prepared(&pixels, rows))?);
        of_pca.push(task.accuracies(&draw, device, &|rows| prepared(&pca, rows))?);
        of_features.push(task.accuracies(&draw, device, &|rows| made.0.encode(rows))?);
        first.get_or_insert(made);
    }
    let names = ["raw pixels".to_owned(), format!("{components} PCA coordinates"), name.to_owned()];
    let by = by.map(|of_seeds| Accuracy::of_each(&of_seeds, n_labelled.len()));
    let header: String = names.iter().map(|name| format!("  {name:>20}")).collect();
    report.line(&format!("{:>13}{header}", "labelled rows"))?;
    for (i, n) in n_labelled.iter().enumerate() {
        let cells: String = by.iter().map(|by| format!("  {:>20}", words(&by[i]))).collect();
        report.line(&format!("{n:>13}{cells}"))?;
    }
    let [pixels, pca, features] = &by;
    let rows: Vec<Value> = n_labelled
        .iter()
        .enumerate()
        .map(|(i, n)| {
            json!({
                "n_labelled": n,
                "pixels": pixels[i],
                "pca": pca[i],
                "features": features[i],
            })
        })
        .collect();
    let last = |by: &[Accuracy]| by.last().map(|accuracy| accuracy.mean);
    let results = json!({
        "data": args.data,
        "n_unlabelled": unlabelled.n_samples(),
        "n_labelled": most,
        "n_test": task.n_test(),
        "n_components": components,
        "seeds": args.seeds,
        "training_seconds": seconds / args.seeds as f64,
        "accuracy_pixels": last(pixels),
        "accuracy_pca": last(pca),
        "accuracy_features": last(features),
        "accuracies": rows,
    });
    Ok(match results {
        Value::Object(fields) => fields,
        _ => Map::new(),
    })
}

/// An accuracy over seeds, in words.
fn words(accuracy: &Accuracy) -> String {
    let mean = format!("{:.2} %", 100. * accuracy.mean);
    match accuracy.standard_deviation {
        Some(deviation) => format!("{mean} ± {:.2}", 100. * deviation),
        None => mean,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn classes_are_a_number_or_two() {
        assert_eq!("5-9".parse(), Ok(Classes { first: 5, last: 9 }));
        assert_eq!("3".parse::<Classes>().unwrap().len(), 1);
        for text in ["", "9-5", "a", "1-", "-1", "1-2-3"] {
            assert!(text.parse::<Classes>().is_err(), "{text}");
        }
    }
}
