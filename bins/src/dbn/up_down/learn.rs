//! The loop: stages, epochs, minibatches, and what is said and kept on the way.
use super::args::UpDownSettings;
use super::plan::{STAGES, epochs, name, reads, trainer};
use crate::dbn::rows;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::{Outcome, Report, seconds};
use crate::run::{self, CHECKPOINT, METRICS, Watch};
use crate::run_folder::RunFolder;
use anyhow::{Context, Result};
use candle::Tensor;
use chandlery::labelled::{LabelledDbn, UpDownMetrics, UpDownTrainer};
use chandlery_datasets::{Feed, Split};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Steps after which the device is asked whether all is well.
const STEPS_BETWEEN_LOOKS: u64 = 1000;
/// Rows of each side that are classified after an epoch, at most.
const PROBE_ROWS: usize = 1000;

/// What an epoch came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// `top` or `up-down`.
    pub stage: String,
    /// Counted from 1 in each stage.
    pub epoch: usize,
    /// Share of training rows that free energies classify rightly.
    pub accuracy: f64,
    /// The same of held-out rows; none where no rows are held out.
    pub held_out_accuracy: Option<f64>,
    /// Mean over training rows of the squared error of recognition up and generation down, summed over the inputs.
    pub reconstruction_error: f64,
    /// What the steps of the epoch gathered.
    #[serde(flatten)]
    pub gathered: Gathered,
    /// Step size.
    pub learning_rate: f64,
    /// Gibbs steps in the top layer.
    pub k: usize,
    /// Training rows a second.
    pub rows_per_second: f64,
    /// Training time.
    pub seconds: f64,
}

/// Means of what the trainer measured, over the steps of an epoch; see [`UpDownMetrics`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gathered {
    /// Steps so far.
    pub steps: u64,
    /// Of the lowest generative layer.
    pub generation_error: Option<f64>,
    /// Of the lowest recognition layer on fantasies.
    pub recognition_error: Option<f64>,
    /// Of the top layer's chain.
    pub top_error: f64,
    /// Share of labels that the chain lost.
    pub label_error: f64,
}

impl Gathered {
    fn add(&mut self, more: &UpDownMetrics) {
        let steps = self.steps + more.steps;
        let mean = |old: f64, new: f64| (old * self.steps as f64 + new * more.steps as f64) / steps as f64;
        let maybe = |old: Option<f64>, new: Option<f64>| new.map(|new| mean(old.unwrap_or(0.), new));
        *self = Self {
            steps,
            generation_error: maybe(self.generation_error, more.generation_error),
            recognition_error: maybe(self.recognition_error, more.recognition_error),
            top_error: mean(self.top_error, more.top_error),
            label_error: mean(self.label_error, more.label_error),
        };
    }
}

/// Where a run is, beside what its trainer knows; kept in the checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Stages that are done.
    pub stage: usize,
    /// How far its epochs are.
    #[serde(flatten)]
    pub at: run::Place<EpochReport>,
    /// What the minibatches of the epoch under way gathered.
    pub gathered: Gathered,
}

/// Everything that the loop works on.
pub struct Learning<'a> {
    pub settings: &'a UpDownSettings,
    pub folder: &'a RunFolder,
    pub trainer: UpDownTrainer,
    pub place: Place,
    /// Training rows, less those held out.
    pub train: &'a Split,
    /// Rows that training does not see.
    pub held_out: Option<&'a Split>,
    pub feed: Feed,
    pub watch: Watch,
}

impl Learning<'_> {
    /// Runs the stages that are left; on an interrupt it stops after a step and writes a checkpoint.
    pub fn run(&mut self, report: &Report, interrupt: &Interrupt) -> Result<Outcome> {
        let probe = self.probe()?;
        loop {
            if self.stage(&probe, report, interrupt)? == Outcome::Interrupted {
                return Ok(Outcome::Interrupted);
            }
            if self.place.stage + 1 == STAGES.len() {
                return Ok(Outcome::Done);
            }
            self.place.stage += 1;
            self.place.at.epoch = 0;
            self.trainer = trainer(&self.trainer.dbn()?, self.settings, self.place.stage)?;
            self.save()?;
        }
    }

    /// The epochs that are left of the stage under way.
    fn stage(&mut self, probe: &Probe, report: &Report, interrupt: &Interrupt) -> Result<Outcome> {
        let stage = STAGES[self.place.stage];
        let epochs = epochs(self.settings, stage);
        let epoch_rows = self.feed.n_rows() as u64;
        let done =
            self.place.at.epoch as u64 * epoch_rows + (self.place.at.batch * self.settings.batch) as u64;
        let bar = Progress::rows(epochs as u64 * epoch_rows, done);
        while self.place.at.epoch < epochs {
            bar.label(format!("{} epoch {}/{epochs}", name(stage), self.place.at.epoch + 1));
            if self.epoch(&bar, interrupt)? == Outcome::Interrupted {
                bar.finish();
                return Ok(Outcome::Interrupted);
            }
            let line = self.end_epoch(probe)?;
            self.folder.append_json_line(METRICS, &line)?;
            bar.suspend(|| report.line(&words(&line, epochs)))?;
        }
        bar.finish();
        self.save()?;
        Ok(Outcome::Done)
    }

    /// The minibatches that are left of the epoch under way.
    fn epoch(&mut self, bar: &Progress, interrupt: &Interrupt) -> Result<Outcome> {
        let earlier: usize = STAGES[..self.place.stage].iter().map(|&s| epochs(self.settings, s)).sum();
        self.trainer.begin_epoch(self.place.at.epoch)?;
        self.feed.start_epoch((earlier + self.place.at.epoch) as u64, self.place.at.batch)?;
        let (started, before) = (Instant::now(), self.place.at.epoch_seconds);
        let mut since = 0;
        while let Some(minibatch) = self.feed.next()? {
            let labels = minibatch.labels.context("rows must have labels")?;
            self.trainer.step(&minibatch.rows, &labels)?;
            self.place.at.batch += 1;
            since += 1;
            bar.advance(self.settings.batch as u64);
            let stop = self.watch.stops_after_step(interrupt);
            let save = stop || self.watch.checkpoint_is_due();
            if save || since >= STEPS_BETWEEN_LOOKS {
                // Before a checkpoint above all: a checkpoint of a diverged network would replace a good one.
                self.look(&mut since)?;
            }
            if save {
                self.place.at.epoch_seconds = before + started.elapsed().as_secs_f64();
                self.save()?;
            }
            if stop {
                return Ok(Outcome::Interrupted);
            }
        }
        self.look(&mut since)?;
        self.place.at.epoch_seconds = before + started.elapsed().as_secs_f64();
        Ok(Outcome::Done)
    }

    /// Asks the device what it gathered and whether training has diverged since the last look. Waits for it.
    fn look(&mut self, since: &mut u64) -> Result<()> {
        if std::mem::take(since) > 0 {
            let stage = name(STAGES[self.place.stage]);
            let metrics = self.trainer.metrics().with_context(|| stage.to_owned())?;
            self.place.gathered.add(&metrics);
        }
        Ok(())
    }

    /// Measures the network, and moves the place to the next epoch.
    fn end_epoch(&mut self, probe: &Probe) -> Result<EpochReport> {
        let dbn = self.trainer.dbn()?;
        let (config, place) = (self.trainer.config(), &mut self.place);
        let accuracy = |(rows, labels): &(Tensor, Tensor)| dbn.accuracy(rows, labels);
        let line = EpochReport {
            stage: name(config.stage).to_owned(),
            epoch: place.at.epoch + 1,
            accuracy: accuracy(&probe.train)?,
            held_out_accuracy: probe.held_out.as_ref().map(accuracy).transpose()?,
            reconstruction_error: dbn.reconstruction_error(&probe.train.0)?,
            gathered: std::mem::take(&mut place.gathered),
            learning_rate: config.learning_rate.at(place.at.epoch),
            k: config.k_at(place.at.epoch),
            rows_per_second: self.feed.n_rows() as f64 / place.at.epoch_seconds,
            seconds: place.at.epoch_seconds,
        };
        place.at.end_epoch(line.clone());
        Ok(line)
    }

    /// Writes the checkpoint; the old one stands until the new one is whole.
    fn save(&mut self) -> Result<()> {
        self.place.at.run_seconds = self.watch.run_seconds();
        self.trainer.save_checkpoint(&self.folder.join(CHECKPOINT), &self.place)?;
        self.watch.checkpoint_written();
        Ok(())
    }

    /// Some training rows and as many held-out ones, with their labels.
    fn probe(&self) -> Result<Probe> {
        let dbn = self.trainer.dbn()?;
        let n = self.held_out.map_or(PROBE_ROWS, |rows| rows.n_samples().min(PROBE_ROWS));
        let read = |split: &Split| labelled_rows(&split.take(n)?, &dbn);
        Ok(Probe { train: read(self.train)?, held_out: self.held_out.map(read).transpose()? })
    }
}

/// All rows of a split as the network reads them, and their labels.
fn labelled_rows(split: &Split, dbn: &LabelledDbn) -> Result<(Tensor, Tensor)> {
    let labels = split.labels_tensor(dbn.device())?.context("--data: rows must have labels, got none")?;
    Ok((rows::all(split, &reads(dbn.config()), dbn.device())?, labels))
}

/// Rows and labels that the network is measured on.
struct Probe {
    train: (Tensor, Tensor),
    held_out: Option<(Tensor, Tensor)>,
}

/// An epoch in one line.
fn words(line: &EpochReport, epochs: usize) -> String {
    let EpochReport { stage, epoch, accuracy, held_out_accuracy, reconstruction_error, .. } = line;
    let width = epochs.to_string().len();
    let percent = |share: f64| format!("{:.2} %", 100. * share);
    format!(
        "{stage:<7}  epoch {epoch:>width$}/{epochs}  accuracy {}, held-out {}  reconstruction error {reconstruction_error:>7.3}  \
         k {}  {:>8.0} rows/s  {}",
        percent(*accuracy),
        held_out_accuracy.map_or("–".to_owned(), percent),
        line.k,
        line.rows_per_second,
        seconds(line.seconds)
    )
}
