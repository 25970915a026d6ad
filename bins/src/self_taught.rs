//! Self-taught learning: what features that were learned without labels are worth where labels are few.
//!
//! Features are learned from rows of some classes without their labels. Linear classifiers of other classes learn from these features, from
//! raw pixels and from coordinates along principal components of the unlabelled rows, all from the same labelled rows, and are measured on
//! the same test rows. Everything is repeated with other seeds: other draws of labelled rows, other features.
//!
//! Source: Raina, Battle, Lee, Packer and Ng, "Self-taught learning", ICML 2007; the default classes are those of Ng et al., UFLDL.
use crate::device::describe;
use crate::options::{Common, ReadArgs, at_least_one};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::run_folder::{Existing, RunFolder};
use anyhow::{Context, Result, ensure};
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::softmax::{FitConfig, Softmax};
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{Preparation, Split, count};
use chandlery_ops::arrays::gather_rows;
use clap::Args;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

/// Most iterations of a classifier.
const CLASSIFIER_ITERATIONS: usize = 300;
/// The place of the draws of labelled rows in the random sequence of a seed.
const ORDER: u64 = 1 << 33;

/// The experiment, whatever the features are.
#[derive(Debug, Clone, Args)]
pub struct TaskArgs {
    /// Data set: a name, a folder or a file. Its rows must have labels.
    #[arg(long, value_name = "DATA", default_value = "mnist-sample")]
    pub data: String,
    /// How the data set is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Classes whose training rows are used without their labels: one number, or the first and the last.
    #[arg(long, value_name = "FIRST-LAST", default_value = "5-9")]
    pub unlabelled_classes: Classes,
    /// Classes that classifiers tell apart, at least two.
    #[arg(long, value_name = "FIRST-LAST", default_value = "0-4")]
    pub labelled_classes: Classes,
    /// Number of labelled training rows to learn from, balanced over the classes. Several numbers, such as 10,100,1000, repeat the comparison for
    /// each. Default: all rows.
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

    /// The rows of these classes.
    fn of(self, split: &Split) -> Result<Split> {
        let labels = split.labels.as_deref().context("--data: rows must have labels")?;
        let places = labels.iter().zip(0..).filter(|(label, _)| (self.first..=self.last).contains(label));
        let places: Vec<u32> = places.map(|(_, place)| place).collect();
        ensure!(!places.is_empty(), "--data: there must be rows of {}, got none", self.words());
        Ok(split.select(&places)?)
    }

    /// Labels of rows of these classes, counted from the first class.
    fn labels(self, split: &Split) -> Result<Vec<u32>> {
        let labels = split.labels.as_deref().context("--data: rows must have labels")?;
        Ok(labels.iter().map(|label| label - self.first).collect())
    }
}

/// What makes features of raw rows, `[n, n_features]`.
pub type Features = Box<dyn Fn(&Tensor) -> candle::Result<Tensor>>;

/// Compares the features that `learn` makes of unlabelled rows with a seed; `name` is what a table calls them.
///
/// What `learn` keeps of the first seed, a model and its figures, goes to `keep` with the folder `out`, if there is one, and the fields for
/// `--json`, which it adds to.
///
/// # Errors
/// When rows lack labels or classes, there are no test rows, the folder is not empty, or `learn` or `keep` fails.
pub fn run<K>(
    args: &TaskArgs,
    out: Option<&Path>,
    name: &str,
    mut learn: impl FnMut(&Split, u64, &Device) -> Result<(K, Features)>,
    keep: impl FnOnce(K, Option<&RunFolder>, &Device, &mut Map<String, Value>) -> Result<()>,
) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let folder = match out {
        Some(out) => Some(RunFolder::create("self-taught", Some(out), Existing::Refuse)?),
        None => None,
    };
    let mut first = None;
    let mut results = compare(args, &report, &device, name, |rows, seed| {
        let (kept, features) = learn(rows, seed, &device)?;
        first.get_or_insert(kept);
        Ok(features)
    })?;
    if let Some(first) = first {
        if let Some(folder) = &folder {
            folder.begin(&[])?;
        }
        keep(first, folder.as_ref(), &device, &mut results)?;
    }
    if let Some(folder) = &folder {
        report.line(&format!("{}", folder.path().display()))?;
    }
    report.finish(&Value::Object(results))?;
    Ok(Outcome::Done)
}

/// Prints what features are worth, and gives the fields for `--json`.
fn compare(
    args: &TaskArgs,
    report: &Report,
    device: &Device,
    name: &str,
    mut learn: impl FnMut(&Split, u64) -> Result<Features>,
) -> Result<Map<String, Value>> {
    let classes = args.labelled_classes;
    ensure!(classes.len() >= 2, "--labelled-classes: must be at least 2 classes, got {}", classes.words());
    let dataset = args.read.open(&args.data)?;
    let unlabelled = args.unlabelled_classes.of(&dataset.train)?;
    let task = Task {
        train: classes.of(&dataset.train)?,
        test: classes.of(dataset.test.as_ref().context("--data: there must be test rows")?)?,
        classes,
        device,
    };
    let n_labelled = numbers(&args.labelled, task.train.n_samples());
    let most = n_labelled.last().copied().unwrap_or_default();
    report.line(&format!(
        "features of {} of the {}, classifiers of {} of the {}, measured on {}, on {}",
        count(unlabelled.n_samples(), "row"),
        args.unlabelled_classes.words(),
        n_labelled.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        classes.words(),
        task.test.n_samples(),
        describe(device)
    ))?;
    let components = args.components.min(unlabelled.n_features()).min(unlabelled.n_samples());
    let mut seconds = 0.;
    // For each seed the accuracies by each number of labels.
    let mut by = [vec![], vec![], vec![]];
    for seed in (0..args.seeds as u64).map(|i| args.seed.wrapping_add(i)) {
        let draw = task.draw(&n_labelled, seed)?;
        let pca = Preparation::fit(&unlabelled, &[StepConfig::Pca { n_components: components }], seed)?;
        let started = Instant::now();
        let features = learn(&unlabelled, seed)?;
        seconds += started.elapsed().as_secs_f64();
        let (pixels, pca) = (Preparation::default(), pca.to_device(device)?);
        let prepared = |by: Preparation| -> Features {
            Box::new(move |rows| by.apply(rows).map_err(candle::Error::wrap))
        };
        for (by, features) in by.iter_mut().zip([prepared(pixels), prepared(pca), features]) {
            by.push(task.accuracies(&draw, &features)?);
        }
    }
    let names = ["raw pixels".to_owned(), format!("{components} PCA coordinates"), name.to_owned()];
    let by = by.map(|of_seeds| Accuracy::of_each(&of_seeds, n_labelled.len()));
    let header: String = names.iter().map(|name| format!("  {name:>20}")).collect();
    report.line(&format!("{:>13}{header}", "labelled rows"))?;
    for (i, n) in n_labelled.iter().enumerate() {
        let cells: String = by.iter().map(|by| format!("  {:>20}", by[i].words())).collect();
        report.line(&format!("{n:>13}{cells}"))?;
    }
    let [pixels, pca, features] = &by;
    let rows: Vec<Value> = n_labelled
        .iter()
        .enumerate()
        .map(|(i, n)| {
            json!({
                "n_labelled": n,
                "pixels": pixels[i].json(),
                "pca": pca[i].json(),
                "features": features[i].json(),
            })
        })
        .collect();
    let last = |by: &[Accuracy]| by.last().map(|accuracy| accuracy.mean);
    let results = json!({
        "data": args.data,
        "n_unlabelled": unlabelled.n_samples(),
        "n_labelled": most,
        "n_test": task.test.n_samples(),
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

/// The numbers of labelled rows, ascending, each once, of `all` at most.
fn numbers(asked: &[usize], all: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = asked.iter().map(|&n| n.min(all)).collect();
    if numbers.is_empty() {
        numbers.push(all);
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Places of rows with these labels such that the first n have as many of each class as there can be, for each n.
fn balanced(labels: &[u32], n_classes: usize, philox: Philox) -> Vec<u32> {
    let mut seen = vec![0usize; n_classes];
    let mut order: Vec<(usize, u32)> = Vec::with_capacity(labels.len());
    for place in philox.permutation(labels.len()) {
        let seen = &mut seen[labels[place as usize] as usize];
        order.push((*seen, place));
        *seen += 1;
    }
    // Stable: within a round the classes come in the order of the permutation.
    order.sort_by_key(|(round, _)| *round);
    order.into_iter().map(|(_, place)| place).collect()
}

/// The labelled part.
struct Task<'a> {
    train: Split,
    test: Split,
    classes: Classes,
    device: &'a Device,
}

/// Labelled rows of a seed.
struct Draw {
    rows: Split,
    /// Places in `rows` for each number of labels.
    places: Vec<Vec<u32>>,
}

impl Task<'_> {
    fn draw(&self, numbers: &[usize], seed: u64) -> Result<Draw> {
        let order =
            balanced(&self.classes.labels(&self.train)?, self.classes.len(), Philox::new(seed, ORDER));
        let sorted = |n: usize| {
            let mut places = order[..n].to_vec();
            places.sort_unstable();
            places
        };
        let most = sorted(numbers.last().copied().unwrap_or_default());
        let inside = |place: &u32| most.partition_point(|p| p < place) as u32;
        let places = numbers.iter().map(|&n| sorted(n).iter().map(inside).collect()).collect();
        Ok(Draw { rows: self.train.select(&most)?, places })
    }

    /// The shares of test rows that classifiers of what `f` makes of rows get right, one for each number of labels.
    fn accuracies(&self, draw: &Draw, f: &Features) -> Result<Vec<f64>> {
        let _spinner = Spinner::new("learning to classify");
        let of = |split: &Split| -> Result<(Tensor, Tensor)> {
            let x = f(&split.raw(self.device)?)?.to_dtype(DType::F32)?.contiguous()?;
            Ok((x, Tensor::new(self.classes.labels(split)?, self.device)?))
        };
        let ((x, labels), (test_x, test_labels)) = (of(&draw.rows)?, of(&self.test)?);
        // The classifier of the published experiments.
        let config = FitConfig { l2: Some(1e-4), iterations: CLASSIFIER_ITERATIONS, standardise: false };
        let accuracy = |places: &Vec<u32>| {
            let (x, labels) = (gather_rows(&x, places)?, gather_rows(&labels, places)?);
            let (softmax, _) = Softmax::fit(&x, &labels, self.classes.len(), &config)?;
            Ok(softmax.accuracy(&test_x, &test_labels)?)
        };
        draw.places.iter().map(accuracy).collect()
    }
}

/// Shares of test rows that are right, over seeds.
struct Accuracy {
    each: Vec<f64>,
    mean: f64,
    /// Of one seed, none.
    deviation: Option<f64>,
}

impl Accuracy {
    fn of(each: Vec<f64>) -> Self {
        let n = each.len() as f64;
        let mean = each.iter().sum::<f64>() / n;
        let squares = each.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        let deviation = (each.len() > 1).then(|| (squares / (n - 1.)).sqrt());
        Self { each, mean, deviation }
    }

    /// One for each number of labels.
    fn of_each(of_seeds: &[Vec<f64>], n: usize) -> Vec<Self> {
        (0..n).map(|i| Self::of(of_seeds.iter().map(|of_seed| of_seed[i]).collect())).collect()
    }

    fn words(&self) -> String {
        let mean = format!("{:.2} %", 100. * self.mean);
        match self.deviation {
            Some(deviation) => format!("{mean} ± {:.2}", 100. * deviation),
            None => mean,
        }
    }

    fn json(&self) -> Value {
        json!({ "mean": self.mean, "standard_deviation": self.deviation, "each": self.each })
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

    #[test]
    fn the_first_rows_of_a_draw_have_as_many_of_each_class_as_there_can_be() {
        // Six of class 0, three of class 1, one of class 2.
        let labels = [0, 0, 1, 0, 0, 2, 1, 0, 1, 0];
        let order = balanced(&labels, 3, Philox::new(4, 0));
        let counts = |n: usize| {
            let mut counts = [0; 3];
            order[..n].iter().for_each(|&place| counts[labels[place as usize] as usize] += 1);
            counts
        };
        assert_eq!(
            [counts(3), counts(5), counts(7), counts(10)],
            [[1, 1, 1], [2, 2, 1], [3, 3, 1], [6, 3, 1]]
        );
        let mut places = order.clone();
        places.sort_unstable();
        assert_eq!(places, (0..10).collect::<Vec<u32>>());
        assert_ne!(order, balanced(&labels, 3, Philox::new(5, 0)));
    }

    #[test]
    fn numbers_of_labels_ascend_and_end_at_all() {
        assert_eq!(numbers(&[], 70), [70]);
        assert_eq!(numbers(&[100, 10, 1000, 10], 70), [10, 70]);
    }

    #[test]
    fn the_spread_is_that_of_a_sample() {
        let accuracy = Accuracy::of(vec![0.5, 0.7]);
        assert!((accuracy.mean - 0.6).abs() < 1e-12);
        // √(0.01 + 0.01)
        assert!((accuracy.deviation.unwrap() - 0.02f64.sqrt()).abs() < 1e-12);
        assert_eq!(Accuracy::of(vec![0.5]).words(), "50.00 %");
    }
}
