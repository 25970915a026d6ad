//! The data of a run, cut up into rows that training sees, rows held out from it, and test rows.
use crate::options::{DataArgs, RowsArgs};
use crate::session::info::{Input, data_of};
use anyhow::Result;
use chandlery_datasets::preparation::{Preparation, RowStatistics};
use chandlery_datasets::{Dataset, RowType, Split, count};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Rows that training does not see are a twentieth of the training split, at most so many.
const MOST_HELD_OUT: usize = 1000;

/// What to do about rows without labels.
pub const LABEL_THEM: &str =
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
}

impl MeasuredOn {
    /// What the rows are called.
    pub fn rows(self) -> &'static str {
        match self {
            Self::Test => "test rows",
            Self::HeldOut => "held-out rows",
            Self::Training => "training rows",
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
    /// Opens the rows that a saved network is used on, cut up as in its training where they are those of its run; and the seed for
    /// measuring: the one asked for, else that of the run, else 0.
    pub fn of_model(rows: &RowsArgs, model: &str, seed: Option<u64>) -> Result<(Self, u64)> {
        // With --data, only the seed of the run is of interest, and a run is not needed for it.
        let run = match data_of(Path::new(model)) {
            Err(_) if rows.data.is_some() => None,
            run => run?,
        };
        let (data, of_run) = run.unzip();
        let seed = seed.or(of_run).unwrap_or(0);
        let held_out_by = if rows.data.is_none() { of_run.unwrap_or(seed) } else { seed };
        let data = Self::open(&rows.or_those_of(data), held_out_by);
        Ok((rows.named(model, data)?, seed))
    }

    /// Opens the data set and holds a seeded choice of rows out.
    pub fn open(args: &DataArgs, seed: u64) -> Result<Self> {
        let dataset: Dataset = args.open()?;
        let n_rows = dataset.train.n_samples();
        let n_held_out = (n_rows / 20).min(MOST_HELD_OUT);
        let (train, held_out) = match n_held_out {
            0 => (dataset.train.clone(), None),
            n => {
                let (train, held_out) = dataset.train.hold_out(n, seed)?;
                (train, Some(held_out))
            }
        };
        Ok(Self {
            n_rows,
            train,
            held_out,
            n_classes: dataset.n_classes(),
            name: dataset.name,
            test: dataset.test,
        })
    }

    /// Rows to measure a network on: test rows, else rows that were held out, else the training rows.
    pub fn measured_on(&self) -> (&Split, MeasuredOn) {
        match (&self.test, &self.held_out) {
            (Some(test), _) => (test, MeasuredOn::Test),
            (None, Some(held_out)) => (held_out, MeasuredOn::HeldOut),
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

/// A table with values outside of 0 to 1, which units that hold probabilities cannot read as they are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutsideUnit {
    /// The least and the largest value.
    pub range: (f32, f32),
    /// Whether its columns are on one scale, as counts and grey levels are: the widest is at most twice as wide as half of them.
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
