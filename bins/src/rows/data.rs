//! The data of a run, cut up into rows that training sees, rows held out from it, and test rows.
use crate::options::{DataArgs, RowsArgs, located};
use crate::report::note_later;
use crate::session;
use crate::session::info::{Input, data_of};
use crate::stages::{self, Stage};
use anyhow::Result;
use chandlery_datasets::preparation::{Preparation, RowStatistics};
use chandlery_datasets::{Dataset, Fingerprint, KnownClasses, RowType, Split, count};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Rows that training does not see are a twentieth of the training split, at most so many.
const MOST_HELD_OUT: usize = 1000;

/// What to do about rows without labels.
const LABEL_THEM: &str =
    "name their column with --label-column, or put the images of each class into a sub-folder of its own";

/// The data of a run, cut up.
pub struct Data {
    /// As it was asked for.
    pub name: String,
    /// Rows of the training split as it came.
    pub n_rows: usize,
    /// Rows that training sees.
    pub train: Split,
    /// Rows of the training split that training does not see; none where there are few.
    pub held_out: Option<Split>,
    /// Rows that the data set keeps for tests.
    pub test: Option<Split>,
    /// Classes of the labels, 0 without.
    pub n_classes: usize,
    /// Names of the classes, where they have some.
    pub class_names: Option<Vec<String>>,
    /// Why labels were left out, where they were.
    pub left_out_labels: Option<String>,
    /// Whether all rows are measured, as those of another data set than that of the training.
    all: bool,
    /// Of such a data set, rows that the model was trained on.
    of_training: Option<Split>,
}

/// Which rows a network is measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredOn {
    /// Those that the data set keeps for tests.
    Test,
    /// Those of the training split that training does not see.
    HeldOut,
    /// Those that training sees: there are no others.
    Training,
    /// All of a data set that was named for it.
    All,
}

impl MeasuredOn {
    /// What the rows are called.
    pub fn rows(self) -> &'static str {
        match self {
            Self::Test => "test rows",
            Self::HeldOut => "held-out rows",
            Self::Training => "training rows",
            Self::All => "rows",
        }
    }

    /// So many of them.
    pub fn count(self, n: usize) -> String {
        count(n, self.rows().trim_end_matches('s'))
    }

    /// The same with a warning where figures say nothing about new rows.
    pub fn count_with_warning(self, n: usize) -> String {
        self.count(n) + self.warning()
    }

    fn warning(self) -> &'static str {
        if self == Self::Training { " (no others; nothing was measured on new rows)" } else { "" }
    }
}

/// The same with a warning where figures say nothing about new rows.
impl std::fmt::Display for MeasuredOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.rows())?;
        f.write_str(self.warning())
    }
}

impl Data {
    /// Opens the rows that a saved network is used on, and the seed for measuring: the one asked
    /// for, else that of the run, else 0. Without --data they are those of its run, cut up as in
    /// its training. Of a data set that is named all rows are measured, or those that it keeps for
    /// tests; labels are matched by name with `classes`.
    pub fn of_model(
        rows: &RowsArgs,
        model: &str,
        classes: Option<KnownClasses<'_>>,
        seed: Option<u64>,
    ) -> Result<(Self, u64)> {
        // With --data, only the seed of the run is of interest, and a run is not needed for it.
        let run = match data_of(Path::new(model)) {
            Err(_) if rows.data.is_some() => None,
            run => run?,
        };
        let of_run = run.as_ref().map(|(_, seed)| *seed);
        let seed = seed.or(of_run).unwrap_or(0);
        let _stage = stages::enter(Stage::Data);
        let args = rows.or_those_of(run.as_ref().map(|(data, _)| data.clone()));
        let open = || {
            let dataset = of_classes(args.open()?, classes)?;
            match (&rows.data, run) {
                (None, _) => Self::cut(dataset, of_run.unwrap_or(seed)),
                (Some(_), Some((of_run, seed))) if classes.is_none() && dataset.test.is_none() => {
                    Ok(Self::beside_training(dataset, &args, &of_run, seed))
                }
                (Some(_), _) => Ok(Self::whole(dataset)),
            }
        };
        Ok((rows.named(model, open())?, seed))
    }

    /// A data set with the rows that a run was trained on, in the classes of the run; without them
    /// where they are the same, differ in shape or classes, or cannot be opened.
    fn beside_training(dataset: Dataset, args: &DataArgs, of_run: &DataArgs, seed: u64) -> Self {
        let place = |args: &DataArgs| {
            let data = located(&args.data, args.base.as_deref());
            std::fs::canonicalize(&data).unwrap_or_else(|_| data.into())
        };
        if place(args) == place(of_run) {
            return Self::whole(dataset);
        }
        let of_training = match Self::open(of_run, seed) {
            Ok(of_training) => of_training,
            Err(err) => {
                note_later(format!(
                    "the data of the run cannot be opened, so nothing is compared with it: {err:#}"
                ));
                return Self::whole(dataset);
            }
        };
        let shape = |split: &Split| (split.n_features(), split.row_type());
        if shape(&of_training.train) != shape(&dataset.train) {
            return Self::whole(dataset);
        }
        if of_training.train.labels.is_none() || dataset.train.labels.is_none() {
            return Self { of_training: Some(of_training.train), ..Self::whole(dataset) };
        }
        let classes = KnownClasses { names: of_training.class_names.as_deref(), n: of_training.n_classes };
        match dataset.clone().with_classes(classes) {
            Ok(dataset) => Self {
                n_classes: of_training.n_classes,
                of_training: Some(of_training.train),
                ..Self::whole(dataset)
            },
            Err(err) => {
                note_later(format!("its labels are not compared with those of the run: {err}"));
                Self::whole(dataset)
            }
        }
    }

    /// Opens the data set and holds a seeded choice of rows out.
    pub fn open(args: &DataArgs, seed: u64) -> Result<Self> {
        let _stage = stages::enter(Stage::Data);
        Self::cut(args.open()?, seed)
    }

    fn cut(dataset: Dataset, seed: u64) -> Result<Self> {
        let n_held_out = (dataset.train.n_samples() / 20).min(MOST_HELD_OUT);
        let held_out = match n_held_out {
            0 => None,
            n => Some(dataset.train.hold_out(n, seed)?),
        };
        let mut data = Self::whole(dataset);
        data.all = false;
        if let Some((train, held_out)) = held_out {
            (data.train, data.held_out) = (train, Some(held_out));
        }
        Ok(data)
    }

    /// A data set of which no rows are held out.
    fn whole(dataset: Dataset) -> Self {
        Self {
            n_rows: dataset.train.n_samples(),
            n_classes: dataset.n_classes(),
            name: dataset.name,
            train: dataset.train,
            held_out: None,
            test: dataset.test,
            class_names: dataset.class_names,
            left_out_labels: dataset.left_out_labels,
            all: true,
            of_training: None,
        }
    }

    /// What a run keeps of the rows, to know them again.
    pub fn of_run(&self) -> Result<session::Rows<'_>> {
        let _stage = stages::enter(Stage::Data);
        let splits = [&self.train].into_iter().chain(&self.held_out).chain(&self.test);
        let fingerprint = Fingerprint::of(splits, self.class_names.as_deref())?;
        Ok(session::Rows { data: &self.name, n: self.n_rows, fingerprint })
    }

    /// Rows that are not measured, for what compares with training rows; none where there are none.
    pub fn not_measured(&self) -> Option<&Split> {
        match self.all && self.test.is_none() {
            true => self.of_training.as_ref(),
            false => Some(&self.train),
        }
    }

    /// What to do about rows without labels, or without labels that are classes.
    pub fn label_them(&self) -> &str {
        self.left_out_labels.as_deref().unwrap_or(LABEL_THEM)
    }

    /// Rows to measure a network on: test rows, else rows that were held out, else the training
    /// rows.
    pub fn measured_on(&self) -> (&Split, MeasuredOn) {
        match (&self.test, &self.held_out) {
            (Some(test), _) => (test, MeasuredOn::Test),
            (None, Some(held_out)) => (held_out, MeasuredOn::HeldOut),
            (None, None) if self.all => (&self.train, MeasuredOn::All),
            (None, None) => (&self.train, MeasuredOn::Training),
        }
    }

    /// How many rows of what there are.
    pub fn words(&self) -> String {
        let rows = |split: &Option<Split>| split.as_ref().map_or(0, Split::n_samples);
        format!(
            "{} training, {} held-out and {} of {}",
            self.train.n_samples(),
            rows(&self.held_out),
            count(rows(&self.test), "test row"),
            self.train.n_features()
        )
    }
}

/// A data set with its labels in the classes of a model; unchanged where the model has none.
pub fn of_classes(dataset: Dataset, classes: Option<KnownClasses<'_>>) -> Result<Dataset> {
    let Some(classes) = classes else { return Ok(dataset) };
    let n = count(classes.n, "class");
    let fix = "give rows of the classes of the model, or leave their labels out with --label-column none";
    let dataset = dataset.with_classes(classes);
    dataset.map_err(|err| anyhow::anyhow!("--data {err} (the model has {n}); {fix}"))
}

/// A table with values outside of 0 to 1, which units that hold probabilities cannot read as they
/// are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutsideUnit {
    /// The least and the largest value.
    pub range: (f32, f32),
    /// Whether its columns are on one scale, as counts and grey levels are: the widest is at most
    /// twice as wide as half of them.
    pub one_scale: bool,
}

impl OutsideUnit {
    /// None for rows within 0 to 1, and for images, whose values stand for grey levels.
    pub fn of(split: &Split, seed: u64) -> Result<Option<Self>> {
        // Bytes stand for 0 to 1.
        if split.image.is_some() || split.row_type() == RowType::U8 {
            return Ok(None);
        }
        let RowStatistics { least: min, most: max, .. } =
            RowStatistics::of(split, &Preparation::default(), seed)?;
        let least = min.iter().copied().fold(f32::INFINITY, f32::min);
        let most = max.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if least >= 0. && most <= 1. {
            return Ok(None);
        }
        let mut widths: Vec<f32> = min.iter().zip(&max).map(|(min, max)| max - min).collect();
        widths.sort_by(f32::total_cmp);
        let median = widths.get(widths.len() / 2).copied().unwrap_or(0.);
        let one_scale = widths.last().is_some_and(|widest| *widest <= 2. * median);
        Ok(Some(Self { range: (least, most), one_scale }))
    }
}

/// What a run of rows is asked for: where they come from.
#[derive(Debug, Serialize, Deserialize)]
pub struct OfRows {
    /// The rows.
    pub data: DataArgs,
}

/// The same of a run that begins with a saved model.
#[derive(Debug, Serialize, Deserialize)]
pub struct OfModel {
    /// The model, as the user named it.
    pub model: String,
    /// The rows.
    pub data: DataArgs,
}

impl Input for OfRows {
    fn meant_from(&mut self, base: &Path) {
        self.data.base = Some(base.to_owned());
    }
}

impl Input for OfModel {
    fn meant_from(&mut self, base: &Path) {
        self.data.base = Some(base.to_owned());
    }
}
