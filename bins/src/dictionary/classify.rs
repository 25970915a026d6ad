//! The command `classify`: classes told by sparse codes.
use super::signals::fitted;
use super::streams;
use crate::args::prepare::PrepareArgs;
use crate::choices::{Method, Rule, name_of};
use crate::options::{Common, ReadArgs, at_least_one};
use crate::progress::Spinner;
use crate::report::{Outcome, Report, of_data};
use crate::restore::check_group;
use crate::stages::{self, Stage};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::dictionary::classify::ClassDictionaries;
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{Dictionary, DictionaryConfig, DictionaryTrainConfig};
use chandlery::evaluation::readout::{Features, Readout, Rows};
use chandlery::{Encode, Philox};
use chandlery_datasets::{Dataset, Split, count};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use std::time::Instant;

/// What tells the class of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// A dictionary for each class: the class is that whose dictionary leaves the least of the row.
    Residual,
    /// One dictionary for all rows, and a linear classifier of their codes.
    Readout,
}

/// Arguments of `dictionary-learning classify`.
#[derive(Debug, Args)]
pub struct ClassifyArgs {
    /// Data set: a name, a folder or a file. Its rows must have labels.
    #[arg(long, value_name = "DATA", default_value = "mnist-sample")]
    pub data: String,
    /// How the data set is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// What tells the class of a row.
    #[arg(long, value_enum, default_value_t = By::Residual)]
    pub by: By,
    /// Number of atoms. With --by residual, of each class's dictionary.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub atoms: usize,
    /// Largest number of atoms in a code.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = at_least_one)]
    pub nonzero: usize,
    /// Epochs: passes over the training rows.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub epochs: usize,
    /// Pursuit that chooses a code's atoms.
    #[arg(long, value_enum, default_value_t = Method::Omp)]
    pub pursuit: Method,
    /// Rule that updates the atoms.
    #[arg(long, value_enum, default_value_t = Rule::AkSvd)]
    pub rule: Rule,
    /// Atoms updated together from one error matrix, 1 to --atoms; default: all. Not with --rule
    /// mod.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub group: Option<usize>,
    /// Rows that are coded at a time; fewer need less memory and give the same codes. Default: as
    /// many as memory has room for.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub chunk_rows: Option<usize>,
    /// How rows are prepared.
    #[command(flatten)]
    pub prepare: PrepareArgs,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

impl ClassifyArgs {
    fn check(&self) -> Result<()> {
        ensure!(
            self.nonzero <= self.atoms,
            "--nonzero: must be at most --atoms, {}, got {}",
            self.atoms,
            self.nonzero
        );
        check_group(self.group, self.atoms, self.rule)
    }

    /// How a dictionary is learned.
    fn training(&self) -> DictionaryTrainConfig {
        let coder =
            SparseCoder { chunk: self.chunk_rows, ..SparseCoder::new(self.pursuit.into(), self.nonzero) };
        DictionaryTrainConfig {
            rule: self.rule.into(),
            group: self.group.unwrap_or(self.atoms),
            iterations: self.epochs,
            coder: Some(coder),
            ..DictionaryTrainConfig::default()
        }
    }

    /// What a dictionary is.
    fn config(&self, train: &Split) -> Result<DictionaryConfig> {
        let preparation = fitted(train, self.prepare.steps(), self.seed)?;
        let n_features = preparation.n_outputs(train.n_features())?;
        Ok(DictionaryConfig {
            image: train.image,
            preparation,
            ..DictionaryConfig::new(self.atoms, n_features, self.nonzero)
        })
    }

    fn philox(&self) -> Philox {
        Philox::new(self.seed, streams::START)
    }
}

/// Learns from the training rows, and tells the classes of the test rows.
pub fn classify(args: &ClassifyArgs) -> Result<Outcome> {
    args.check()?;
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let dataset = args.read.open(&args.data)?;
    let (train, n_classes) = (&dataset.train, dataset.n_classes());
    let test = dataset.test.as_ref().context("--data: there must be test rows")?;
    ensure!(
        n_classes >= 2,
        "--data {}: rows must have labels of at least 2 classes, got {n_classes}",
        args.data
    );
    let started = Instant::now();
    let told = of_data(
        &args.data,
        match args.by {
            By::Residual => by_residual(args, &dataset, test, &device),
            By::Readout => by_readout(args, &dataset, test, &device),
        },
    )?;
    let n_test = test.n_samples();
    let how = match args.by {
        By::Residual => format!("{} of {}", count(n_classes, "dictionary"), count(args.atoms, "atom")),
        By::Readout => format!("a linear classifier of codes over {}", count(args.atoms, "atom")),
    };
    report.line(&format!(
        "{:.2} % of {} right by {how}, codes of up to {} by {}",
        100. * told.accuracy,
        count(n_test, "test row"),
        args.nonzero,
        name_of(&args.pursuit)
    ))?;
    if let Some(pixels) = told.accuracy_pixels {
        report.line(&format!("{:.2} % by a linear classifier of the rows themselves", 100. * pixels))?;
    }
    report.finish(json!({
        "data": args.data,
        "by": args.by,
        "accuracy": told.accuracy,
        "accuracy_pixels": told.accuracy_pixels,
        "class_accuracies": told.of_classes,
        "n_classes": n_classes,
        "n_samples": train.n_samples(),
        "n_test": n_test,
        "n_atoms": args.atoms,
        "n_nonzero": args.nonzero,
        "seconds": started.elapsed().as_secs_f64(),
    }))?;
    Ok(Outcome::Done)
}

/// How well classes were told.
struct Told {
    accuracy: f64,
    /// Of each class's rows; none where only the whole is known.
    of_classes: Option<Vec<f64>>,
    /// Of a linear classifier of the rows.
    accuracy_pixels: Option<f64>,
}

/// Rows of the test set that are coded at once.
const BLOCK: usize = 8192;

fn by_residual(args: &ClassifyArgs, dataset: &Dataset, test: &Split, device: &Device) -> Result<Told> {
    let train = &dataset.train;
    let stage = stages::enter(Stage::Training);
    let spinner = Spinner::new("learning a dictionary for each class");
    let labels = train.labels.as_deref().context("rows must have labels")?;
    let config = args.config(train)?;
    let config = DictionaryConfig { preparation: config.preparation.to_device(device)?, ..config };
    let classes = ClassDictionaries::fit(
        &config,
        &train.raw(device)?,
        labels,
        dataset.n_classes(),
        &args.training(),
        args.philox(),
    )?;
    drop((spinner, stage));
    let _spinner = Spinner::new("telling the classes of test rows");
    let (rows, want) = (test.raw(device)?, test.labels.as_deref().context("test rows must have labels")?);
    let mut got = Vec::with_capacity(want.len());
    for first in (0..want.len()).step_by(BLOCK) {
        let block = rows.narrow(0, first, BLOCK.min(want.len() - first))?;
        got.extend(classes.predict(&block)?.to_vec1::<u32>()?);
    }
    let share = |of: &dyn Fn(u32) -> bool| {
        let all = want.iter().zip(&got).filter(|(want, _)| of(**want));
        let (n, right) =
            all.fold((0, 0), |(n, right), (want, got)| (n + 1, right + usize::from(want == got)));
        right as f64 / f64::from(n.max(1))
    };
    let of_classes = (0..dataset.n_classes() as u32).map(|class| share(&|label| label == class)).collect();
    Ok(Told { accuracy: share(&|_| true), of_classes: Some(of_classes), accuracy_pixels: None })
}

fn by_readout(args: &ClassifyArgs, dataset: &Dataset, test: &Split, device: &Device) -> Result<Told> {
    let train = &dataset.train;
    let stage = stages::enter(Stage::Training);
    let spinner = Spinner::new("learning a dictionary");
    let config = args.config(train)?;
    let dictionary = Dictionary::fit(config, &train.raw(device)?, args.training(), args.philox())?;
    drop((spinner, stage));
    let _spinner = Spinner::new("learning to classify");
    let raw = |split: &Split| split.raw(device).map_err(candle::Error::wrap);
    let codes = |split: &Split| dictionary.encode(&raw(split)?)?.to_dense();
    let inputs = |split: &Split| chandlery::Model::prepare(&dictionary, &raw(split)?);
    let features =
        Features::<candle::Error> { features: &codes, inputs: &inputs, n: args.atoms, n_top: args.atoms };
    let rows = Rows { train: Some(train), test, n_classes: dataset.n_classes() };
    let readout =
        Readout::of(&features, &rows, device, &mut |_, _, _| {})?.context("rows must have labels")?;
    let accuracy_pixels = Some(readout.accuracy_pixels);
    Ok(Told { accuracy: readout.accuracy_features, of_classes: None, accuracy_pixels })
}
