//! The loop: iterations, or passes of minibatches, and what is said and kept on the way.
use super::args::Settings;
use super::signals::Signals;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::{Outcome, Report, seconds};
use crate::run::{CHECKPOINT, METRICS, Watch};
use crate::run_folder::RunFolder;
use anyhow::{Context, Result};
use candle::Device;
use chandlery::dictionary::{Dictionary, DictionaryTrainer, OnlineTrainer};
use chandlery_datasets::{Feed, FeedConfig};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What an iteration came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationReport {
    /// Counted from 1.
    pub iteration: usize,
    /// Root mean square error in the unit of the signals: of new codes over the new atoms; for minibatches of each one's codes over the
    /// atoms before it, over the pass.
    pub rmse: f64,
    /// Mean number of atoms of these codes; 0 in lines from before it was kept.
    #[serde(default)]
    pub mean_count: f64,
    /// Atoms in at least one code.
    pub used: usize,
    /// Atoms that were replaced.
    pub replaced: usize,
    /// Largest |cosine| of two atoms.
    pub coherence: f64,
    /// Time of the iteration.
    pub seconds: f64,
}

/// A dictionary in the making.
pub enum Trainer {
    /// From all signals at once.
    Batch(Box<DictionaryTrainer>),
    /// From minibatches, in a seeded order.
    Online(Box<OnlineTrainer>, Box<Feed>),
}

impl Trainer {
    /// The best dictionary so far (by its error, or to an error target by the atoms of a code), or of an online trainer the newest.
    pub fn dictionary(&self) -> &Dictionary {
        match self {
            Self::Batch(trainer) => trainer.best(),
            Self::Online(trainer, _) => trainer.dictionary(),
        }
    }

    /// Iterations that are made; those of an online trainer are passes.
    pub fn iterations(&self) -> usize {
        match self {
            Self::Batch(trainer) => trainer.last().iteration,
            Self::Online(trainer, feed) => trainer.batches() / feed.n_batches(),
        }
    }

    /// Writes the checkpoint; the old one stands until the new one is whole. An online trainer's is written between passes.
    fn save(&self, folder: &RunFolder) -> Result<()> {
        let path = folder.join(CHECKPOINT);
        match self {
            Self::Batch(trainer) => trainer.save_checkpoint(&path)?,
            Self::Online(trainer, _) => trainer.save_checkpoint(&path)?,
        }
        Ok(())
    }
}

/// Everything that the loop works on.
pub struct Learning<'a> {
    pub settings: &'a Settings,
    pub signals: &'a Signals,
    pub folder: &'a RunFolder,
    pub trainer: Trainer,
    /// The iterations made so far: the lines of `metrics.jsonl`.
    pub reports: Vec<IterationReport>,
    pub watch: Watch,
}

impl Learning<'_> {
    /// Makes the iterations that are left; on an interrupt it stops after one and writes a checkpoint.
    pub fn run(&mut self, report: &Report, interrupt: &Interrupt) -> Result<Outcome> {
        let total = self.settings.iterations;
        let bar = Progress::iterations(total as u64, self.reports.len() as u64);
        bar.label("learning".to_owned());
        while self.reports.len() < total {
            let began = Instant::now();
            let mut line = self.iteration()?;
            line.seconds = began.elapsed().as_secs_f64();
            self.folder.append_json_line(METRICS, &line)?;
            let to_error = self.settings.error.is_some();
            bar.suspend(|| report.line(&words(&line, total, self.signals.unit(), to_error)))?;
            bar.advance(1);
            self.reports.push(line);
            let stop = self.watch.stops_after_step(interrupt);
            if stop || self.watch.checkpoint_is_due() {
                self.trainer.save(self.folder)?;
                self.watch.checkpoint_written();
            }
            if stop {
                bar.finish();
                return Ok(Outcome::Interrupted);
            }
        }
        bar.finish();
        self.trainer.save(self.folder)?;
        Ok(Outcome::Done)
    }

    /// One iteration over all signals.
    fn iteration(&mut self) -> Result<IterationReport> {
        let iteration = self.reports.len() + 1;
        let at = || format!("iteration {iteration}");
        match &mut self.trainer {
            Trainer::Batch(trainer) => {
                let made = trainer.step().with_context(at)?;
                Ok(IterationReport {
                    iteration,
                    rmse: made.rmse,
                    mean_count: made.mean_count,
                    used: made.used,
                    replaced: made.replaced,
                    coherence: made.coherence,
                    seconds: 0.,
                })
            }
            Trainer::Online(trainer, feed) => {
                feed.start_epoch(iteration as u64 - 1, 0)?;
                let (mut squares, mut count, mut rows, mut replaced, mut last) = (0., 0., 0, 0, None);
                while let Some(minibatch) = feed.next()? {
                    let batch = self.signals.prepare(&minibatch.rows)?;
                    let made = trainer.partial_fit(&batch).with_context(at)?;
                    let n = batch.dim(0)?;
                    squares += made.rmse * made.rmse * n as f64;
                    count += made.mean_count * n as f64;
                    rows += n;
                    replaced += made.replaced;
                    last = Some(made);
                }
                let last = last.context("a pass without minibatches")?;
                Ok(IterationReport {
                    iteration,
                    rmse: (squares / rows as f64).sqrt(),
                    mean_count: count / rows as f64,
                    used: last.used,
                    replaced,
                    coherence: trainer.dictionary().mutual_coherence()?,
                    seconds: 0.,
                })
            }
        }
    }
}

/// Minibatches of signals, in a seeded order.
pub fn feed(signals: &Signals, batch: usize, seed: u64, device: &Device) -> Result<Feed> {
    Feed::new(&signals.split, device, FeedConfig::new(batch, seed)).context("--online")
}

/// An iteration in one line; where codes end at an error, how many atoms that takes is what is learned.
fn words(line: &IterationReport, total: usize, unit: &str, to_error: bool) -> String {
    let width = total.to_string().len();
    let IterationReport { iteration, rmse, mean_count, used, replaced, coherence, .. } = line;
    let count = if to_error { format!("  {mean_count:>6.2} atoms a code") } else { String::new() };
    format!(
        "iteration {iteration:>width$}/{total}  RMSE {rmse:>8.4} {unit}{count}  {used:>4} atoms used  {replaced:>3} replaced  \
         coherence {coherence:.3}  {}",
        milliseconds(line.seconds)
    )
}

/// A short duration for people.
fn milliseconds(s: f64) -> String {
    if s < 1. { format!("{:.1} ms", 1e3 * s) } else { seconds(s) }
}
