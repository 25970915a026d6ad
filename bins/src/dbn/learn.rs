//! The loop: layers, epochs, minibatches, and what is said and kept on the way.
use super::args::Settings;
use super::rows;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::{Outcome, Report, seconds};
use crate::run::{self, CHECKPOINT, METRICS, Watch};
use crate::run_folder::RunFolder;
use anyhow::Result;
use candle::Tensor;
use chandlery::dbn::DbnTrainer;
use chandlery_datasets::{Feed, Split};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Steps after which the device is asked whether all is well.
const STEPS_BETWEEN_LOOKS: u64 = 1000;
/// Rows of each side that a layer is measured on after an epoch, at most.
const PROBE_ROWS: usize = 250;

/// What an epoch came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 1, the lowest.
    pub layer: usize,
    /// Counted from 1 in each layer.
    pub epoch: usize,
    /// Mean over training rows of the squared error of the layer's own reconstruction, summed over its visible units.
    pub reconstruction_error: f64,
    /// The same over held-out rows; none where no rows are held out.
    pub held_out_reconstruction_error: Option<f64>,
    /// Mean free energy of held-out rows minus that of training rows, in nats.
    pub free_energy_gap: Option<f64>,
    /// Step size.
    pub learning_rate: f64,
    /// Share of the last step that was kept.
    pub momentum: f64,
    /// Training rows a second.
    pub rows_per_second: f64,
    /// Training time.
    pub seconds: f64,
}

/// Where a run is, beside what its trainer knows; kept in the checkpoint.
pub type Place = run::Place<EpochReport>;

/// Asks the device whether training has diverged since the last look. Waits for it.
///
/// The error that a step measures is that of the model phase; with persistent chains it says nothing about the
/// rows of that step, but it stops being finite as any other would.
fn look(trainer: &mut DbnTrainer, since: &mut u64) -> Result<()> {
    if std::mem::take(since) > 0 {
        trainer.metrics()?;
    }
    Ok(())
}

/// Everything that the loop works on.
pub struct Learning<'a> {
    pub settings: &'a Settings,
    pub folder: &'a RunFolder,
    pub trainer: DbnTrainer,
    pub place: Place,
    /// Training rows, less those held out.
    pub train: &'a Split,
    /// Rows that training does not see.
    pub held_out: Option<&'a Split>,
    pub feed: Feed,
    pub watch: Watch,
}

impl Learning<'_> {
    /// Trains the layers that are left; on an interrupt it stops after a step and writes a checkpoint.
    pub fn run(&mut self, report: &Report, interrupt: &Interrupt) -> Result<Outcome> {
        loop {
            if self.layer(report, interrupt)? == Outcome::Interrupted {
                return Ok(Outcome::Interrupted);
            }
            if !self.trainer.next_layer()? {
                return Ok(Outcome::Done);
            }
            self.place.epoch = 0;
            self.save()?;
        }
    }

    /// The epochs that are left of the layer in training.
    fn layer(&mut self, report: &Report, interrupt: &Interrupt) -> Result<Outcome> {
        let (layer, n_layers, epochs) = (self.trainer.layer(), self.trainer.n_layers(), self.settings.epochs);
        let probe = self.probe()?;
        let epoch_rows = self.feed.n_rows() as u64;
        let done = self.place.epoch as u64 * epoch_rows + (self.place.batch * self.settings.batch) as u64;
        let bar = Progress::rows(epochs as u64 * epoch_rows, done);
        while self.place.epoch < epochs {
            bar.label(format!("layer {}/{n_layers} epoch {}/{epochs}", layer + 1, self.place.epoch + 1));
            if self.epoch(&bar, interrupt)? == Outcome::Interrupted {
                bar.finish();
                return Ok(Outcome::Interrupted);
            }
            let line = self.end_epoch(&probe)?;
            self.folder.append_json_line(METRICS, &line)?;
            bar.suspend(|| report.line(&words(&line, n_layers, epochs)))?;
        }
        bar.finish();
        self.save()?;
        Ok(Outcome::Done)
    }

    /// The minibatches that are left of the epoch under way.
    fn epoch(&mut self, bar: &Progress, interrupt: &Interrupt) -> Result<Outcome> {
        let number = self.trainer.layer() * self.settings.epochs + self.place.epoch;
        self.trainer.begin_epoch(self.place.epoch)?;
        self.feed.start_epoch(number as u64, self.place.batch)?;
        let (started, before) = (Instant::now(), self.place.epoch_seconds);
        let mut since = 0;
        while let Some(minibatch) = self.feed.next()? {
            self.trainer.step(&minibatch.rows)?;
            self.place.batch += 1;
            since += 1;
            bar.advance(self.settings.batch as u64);
            let stop = self.watch.stops_after_step(interrupt);
            let save = stop || self.watch.checkpoint_is_due();
            if save || since >= STEPS_BETWEEN_LOOKS {
                // Before a checkpoint above all: a checkpoint of a diverged network would replace a good one.
                look(&mut self.trainer, &mut since)?;
            }
            if save {
                self.place.epoch_seconds = before + started.elapsed().as_secs_f64();
                self.save()?;
            }
            if stop {
                return Ok(Outcome::Interrupted);
            }
        }
        look(&mut self.trainer, &mut since)?;
        self.place.epoch_seconds = before + started.elapsed().as_secs_f64();
        Ok(Outcome::Done)
    }

    /// Measures the layer, and moves the place to the next epoch.
    fn end_epoch(&mut self, probe: &Probe) -> Result<EpochReport> {
        let (layer, rbm) = (self.trainer.layer(), self.trainer.rbm()?);
        let gap = |held_out| rbm.free_energy_gap(&probe.train, held_out);
        let held_out = probe.held_out.as_ref();
        let config = &self.trainer.training()[layer];
        let place = &mut self.place;
        let line = EpochReport {
            layer: layer + 1,
            epoch: place.epoch + 1,
            reconstruction_error: rbm.reconstruction_error(&probe.train)?,
            held_out_reconstruction_error: held_out.map(|rows| rbm.reconstruction_error(rows)).transpose()?,
            free_energy_gap: held_out.map(gap).transpose()?,
            learning_rate: config.learning_rate.at(place.epoch),
            momentum: config.momentum.at(place.epoch),
            rows_per_second: self.feed.n_rows() as f64 / place.epoch_seconds,
            seconds: place.epoch_seconds,
        };
        place.end_epoch(line.clone());
        Ok(line)
    }

    /// Writes the checkpoint; the old one stands until the new one is whole.
    fn save(&mut self) -> Result<()> {
        self.place.run_seconds = self.watch.run_seconds();
        self.trainer.save_checkpoint(&self.folder.join(CHECKPOINT), &self.place)?;
        self.watch.checkpoint_written();
        Ok(())
    }

    /// What the layer in training reads of some training rows and of as many held-out ones.
    fn probe(&self) -> Result<Probe> {
        let dbn = self.trainer.dbn()?;
        let device = dbn.layers()[0].weight().device();
        let n = self.held_out.map_or(PROBE_ROWS, |rows| rows.n_samples().min(PROBE_ROWS));
        let read = |split: &Split| {
            let split = split.take(n)?;
            rows::through(&split, dbn.config(), device, |rows| dbn.features(rows, self.trainer.layer()))
        };
        Ok(Probe { train: read(self.train)?, held_out: self.held_out.map(read).transpose()? })
    }
}

/// Rows that a layer is measured on, `[_, n_visible]` of the layer.
struct Probe {
    train: Tensor,
    held_out: Option<Tensor>,
}

/// An epoch in one line.
fn words(line: &EpochReport, n_layers: usize, epochs: usize) -> String {
    let EpochReport { layer, epoch, reconstruction_error, free_energy_gap, rows_per_second, .. } = line;
    let width = epochs.to_string().len();
    let gap = free_energy_gap.map_or("–".to_owned(), |gap| format!("{gap:.2}"));
    format!(
        "layer {layer}/{n_layers}  epoch {epoch:>width$}/{epochs}  reconstruction error {reconstruction_error:>7.3}  \
         free-energy gap {gap:>6}  {rows_per_second:>8.0} rows/s  {}",
        seconds(line.seconds)
    )
}
