//! The loop: epochs, minibatches, and what is said and kept on the way.
use super::args::FineTuneSettings;
use super::measure::Measured;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::{Outcome, Report, seconds};
use crate::run::{self, CHECKPOINT, METRICS, Watch};
use crate::run_folder::RunFolder;
use anyhow::Result;
use candle::Tensor;
use chandlery::feedforward::{EarlyStopping, FeedforwardTrainer};
use chandlery_datasets::Feed;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What an epoch came to: a line of `metrics.jsonl`. Errors are shares of rows for a classifier and squared errors a row for an
/// autoencoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean loss of a training row, with dropout as it was.
    pub loss: f64,
    /// Error of training rows in the steps of the epoch, with dropout as it was.
    pub training_error: f64,
    /// Error of held-out rows after the epoch; none where no rows are held out.
    pub held_out_error: Option<f64>,
    /// Step size.
    pub learning_rate: f64,
    /// Training rows a second.
    pub rows_per_second: f64,
    /// Training time.
    pub seconds: f64,
}

/// Where a run is, beside what its trainer knows; kept in the checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// How far its epochs are.
    #[serde(flatten)]
    pub at: run::Place<EpochReport>,
    /// Whether held-out rows have ended it early.
    pub stopped: bool,
}

/// Everything that the loop works on.
pub struct Learning<'a> {
    pub settings: &'a FineTuneSettings,
    pub folder: &'a RunFolder,
    pub trainer: FeedforwardTrainer,
    pub stopping: EarlyStopping,
    pub place: Place,
    pub feed: Feed,
    /// Rows that training does not see, and their labels.
    pub held_out: Option<(Tensor, Option<Tensor>)>,
    pub watch: Watch,
}

impl Learning<'_> {
    /// Trains the epochs that are left; on an interrupt it stops after a step and writes a checkpoint.
    pub fn run(&mut self, report: &Report, interrupt: &Interrupt) -> Result<Outcome> {
        let epochs = self.settings.n_epochs();
        let n_rows = self.feed.n_rows() as u64;
        let done = self.place.at.epoch as u64 * n_rows + (self.place.at.batch * self.settings.batch) as u64;
        let bar = Progress::rows(epochs as u64 * n_rows, done);
        while self.place.at.epoch < epochs && !self.place.stopped {
            bar.label(format!("epoch {}/{epochs}", self.place.at.epoch + 1));
            if self.epoch(&bar, interrupt)? == Outcome::Interrupted {
                bar.finish();
                return Ok(Outcome::Interrupted);
            }
            let line = self.end_epoch()?;
            self.folder.append_json_line(METRICS, &line)?;
            bar.suspend(|| report.line(&words(&line, epochs, self.settings.classify)))?;
            if self.watch.checkpoint_is_due() {
                self.save()?;
            }
        }
        bar.finish();
        self.save()?;
        Ok(Outcome::Done)
    }

    /// The minibatches that are left of the epoch under way.
    fn epoch(&mut self, bar: &Progress, interrupt: &Interrupt) -> Result<Outcome> {
        self.trainer.begin_epoch(self.place.at.epoch)?;
        self.feed.start_epoch(self.place.at.epoch as u64, self.place.at.batch)?;
        let (started, before) = (Instant::now(), self.place.at.epoch_seconds);
        while let Some(minibatch) = self.feed.next()? {
            self.trainer.step(&minibatch.rows, minibatch.labels.as_ref())?;
            self.place.at.batch += 1;
            bar.advance(self.settings.batch as u64);
            if self.watch.stops_after_step(interrupt) {
                self.place.at.epoch_seconds = before + started.elapsed().as_secs_f64();
                self.save()?;
                return Ok(Outcome::Interrupted);
            }
        }
        // The device may still be at it.
        self.trainer.device().synchronize()?;
        self.place.at.epoch_seconds = before + started.elapsed().as_secs_f64();
        Ok(Outcome::Done)
    }

    /// Measures the network, and moves the place to the next epoch.
    fn end_epoch(&mut self) -> Result<EpochReport> {
        // Before anything is kept: a diverged network must not replace a good one.
        let metrics = self.trainer.metrics()?;
        let model = self.trainer.model()?;
        let measure =
            |(rows, labels): &(Tensor, Option<Tensor>)| Measured::error(&model, rows, labels.as_ref());
        let place = &mut self.place;
        let line = EpochReport {
            epoch: place.at.epoch + 1,
            loss: metrics.loss,
            training_error: metrics.error.or(metrics.squared_error).unwrap_or(f64::NAN),
            held_out_error: self.held_out.as_ref().map(measure).transpose()?,
            learning_rate: self.trainer.config().learning_rate.at(place.at.epoch),
            rows_per_second: self.feed.n_rows() as f64 / place.at.epoch_seconds,
            seconds: place.at.epoch_seconds,
        };
        if self.settings.patience.is_some()
            && let Some(error) = line.held_out_error
        {
            place.stopped = self.stopping.observe(place.at.epoch, error, &model)?;
        }
        place.at.end_epoch(line.clone());
        Ok(line)
    }

    /// Writes the checkpoint; the old one stands until the new one is whole.
    fn save(&mut self) -> Result<()> {
        self.place.at.run_seconds = self.watch.run_seconds();
        self.trainer.save_checkpoint(&self.folder.join(CHECKPOINT), &self.stopping, &self.place)?;
        self.watch.checkpoint_written();
        Ok(())
    }
}

/// An epoch in one line.
fn words(line: &EpochReport, epochs: usize, classify: bool) -> String {
    let EpochReport { epoch, loss, training_error, held_out_error, rows_per_second, .. } = line;
    let width = epochs.to_string().len();
    let error = |error: f64| if classify { format!("{:.2} %", 100. * error) } else { format!("{error:.3}") };
    let held_out = held_out_error.map_or("–".to_owned(), error);
    format!(
        "epoch {epoch:>width$}/{epochs}  loss {loss:.4}  {} {} in training, {held_out} held-out  {rows_per_second:>8.0} rows/s  {}",
        if classify { "error" } else { "squared error" },
        error(*training_error),
        seconds(line.seconds)
    )
}
