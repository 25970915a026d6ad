//! The loop over epochs and minibatches, or over iterations: progress, checkpoints, interrupts.
use super::{METRICS, PlaceOf, Run, Session};
use crate::args::converge;
use crate::interrupt::{self, Orderly};
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::report::{Outcome, of_data};
use crate::stages::{self, Stage};
use anyhow::Result;
use chandlery::{Convergence, Converging, MinibatchTrainer, Trainer};
use chandlery_datasets::{Feed, count};
use chandlery_ops::group::Wish;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Steps after which the trainer is asked whether all is finite.
const STEPS_BETWEEN_CHECKS: usize = 1000;

/// How far a run is, beside what its trainer knows; kept in the checkpoint. `L` is a line of
/// `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place<L, E = super::Nothing> {
    /// Epochs (or iterations) that are done, of the layer or stage under way where there are
    /// several.
    pub epoch: usize,
    /// Minibatches of the epoch under way that are done.
    pub batch: usize,
    /// Seconds spent on them.
    pub epoch_seconds: f64,
    /// Seconds spent on the run.
    pub run_seconds: f64,
    /// The lines so far, of all layers and stages.
    pub reports: Vec<L>,
    /// What the losses of the layer or stage under way came to, where training is to end when they
    /// converge.
    #[serde(default, skip_serializing_if = "Converging::is_new")]
    pub converging: Converging,
    /// Of the command's own.
    #[serde(flatten)]
    pub extra: E,
}

impl<L, E: Default> Default for Place<L, E> {
    fn default() -> Self {
        let extra = E::default();
        let converging = Converging::default();
        Self {
            epoch: 0,
            batch: 0,
            epoch_seconds: 0.,
            run_seconds: 0.,
            reports: Vec::new(),
            converging,
            extra,
        }
    }
}

impl<L, E> Place<L, E> {
    /// Moves to the first minibatch of the next epoch, or past so many iterations.
    fn end(&mut self, epochs: usize) {
        self.epoch += epochs;
        (self.batch, self.epoch_seconds) = (0, 0.);
    }

    /// Moves to the first epoch of the next layer or stage.
    pub fn begin_stage(&mut self) {
        (self.epoch, self.batch, self.epoch_seconds) = (0, 0, 0.);
        self.converging = Converging::default();
    }

    /// Records the loss of the epoch that ended just now, of `n`; says so if it ends the training.
    fn converges(&mut self, loss: f64, rule: Option<Convergence>, n: usize) -> Option<String> {
        let rule = rule?;
        self.converging.observe(loss, rule).then(|| {
            let what = converge::words(rule);
            format!("converged after {} of {n}: {what}", count(self.epoch, "epoch"))
        })
    }
}

/// Epochs to train.
pub struct Epochs<'a> {
    /// The minibatches.
    pub feed: &'a mut Feed,
    /// How many epochs there are, with those that are done.
    pub n: usize,
    /// Epochs of layers or stages before: each epoch has an order of its own.
    pub earlier: usize,
    /// Minibatches from one report within an epoch to the next; none for one at its end alone.
    pub report_every: Option<usize>,
    /// When they end before the last one.
    pub until: Option<Convergence>,
    /// What stands left of the progress bar.
    pub label: &'a dyn Fn(usize) -> String,
}

/// What an epoch came to.
pub struct Ended<L> {
    /// For `metrics.jsonl`.
    pub line: L,
    /// For people.
    pub words: String,
    /// What falls as training goes on.
    pub loss: f64,
    /// Whether training ends here, whatever the loss.
    pub stop: bool,
}

/// Iterations over all rows that were made.
pub struct Made<L> {
    /// How many, at least 1.
    pub iterations: usize,
    /// For `metrics.jsonl`.
    pub line: L,
    /// For people; nothing is said where they are empty.
    pub words: String,
    /// What falls as training goes on, where training may end by it.
    pub loss: Option<f64>,
}

/// What an epoch took, as far as it came.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Counted from 0.
    pub epoch: usize,
    /// Rows of it that were trained on.
    pub rows: usize,
    /// Training time.
    pub seconds: f64,
    /// Training rows a second.
    pub rows_per_second: f64,
}

impl Pace {
    fn new(epoch: usize, rows: usize, seconds: f64) -> Self {
        Self { epoch, rows, seconds, rows_per_second: rows as f64 / seconds }
    }
}

impl<R: Run> Session<R>
where
    R::Trainer: MinibatchTrainer,
{
    /// Trains the epochs that are left; `end` measures after each. An interrupt ends the loop after
    /// a step, with a checkpoint.
    ///
    /// A checkpoint is written only when the trainer says that all it learned is finite, so that
    /// one of a diverged model never replaces a good one.
    ///
    /// # Errors
    /// When training diverges, a minibatch cannot be read, or the disk refuses.
    pub fn epochs(
        &mut self,
        epochs: Epochs<'_>,
        mut end: impl FnMut(
            &mut R::Trainer,
            <R::Trainer as Trainer>::Metrics,
            Pace,
            &mut PlaceOf<R>,
        ) -> Result<Ended<R::Line>>,
    ) -> Result<Outcome> {
        let Epochs { feed, n, earlier, report_every, until, label } = epochs;
        let (rows, batch) = (feed.n_rows() as u64, feed.config().batch as u64);
        let done = self.place.epoch as u64 * rows + self.place.batch as u64 * batch;
        let bar = Progress::rows(n as u64 * rows, done);
        let orderly = interrupt::orderly();
        let mut stopped = self.place.converging.converged();
        while self.place.epoch < n && !stopped {
            bar.label(label(self.place.epoch));
            self.trainer.begin_epoch(self.place.epoch)?;
            let epoch = (earlier + self.place.epoch) as u64;
            feed.start_epoch_of(&self.trainer.rows_group(), epoch, self.place.batch)?;
            let (started, before) = (Instant::now(), self.place.epoch_seconds);
            let mut since_check = 0;
            while let Some(minibatch) = feed.next_of(self.watch.at_most(self.trainer.steps_at_once()))? {
                let taken = minibatch.rows.dim(0)?.div_ceil(feed.config().batch);
                let made = self.trainer.steps_of(&minibatch.rows, minibatch.labels.as_ref(), taken);
                of_data(&self.data, made.map_err(Into::into))?;
                self.place.batch += taken;
                since_check += taken;
                bar.advance(taken as u64 * batch);
                let is_due = |every: usize| self.place.batch / every > (self.place.batch - taken) / every;
                if self.place.batch < feed.n_batches() && report_every.is_some_and(is_due) {
                    let metrics = self.trainer.metrics()?;
                    self.trainer.gather()?;
                    let seconds = before + started.elapsed().as_secs_f64();
                    let pace = Pace::new(self.place.epoch, self.place.batch * feed.config().batch, seconds);
                    let measuring = stages::enter(Stage::Measures);
                    let Ended { line, words, .. } = end(&mut self.trainer, metrics, pace, &mut self.place)?;
                    drop(measuring);
                    self.report(line, &words, &bar)?;
                }
                let Wish { save, stop } = self.watch.after(taken, &orderly)?;
                let save = save || stop;
                if save || since_check >= STEPS_BETWEEN_CHECKS {
                    self.trainer.check()?;
                    since_check = 0;
                }
                if save {
                    self.place.epoch_seconds = before + started.elapsed().as_secs_f64();
                    self.save()?;
                }
                if stop {
                    bar.finish();
                    return Ok(Outcome::Interrupted);
                }
            }
            // Waits for the device, and fails when training has diverged: before anything is kept
            // of the epoch.
            let metrics = self.trainer.metrics()?;
            self.trainer.gather()?;
            let seconds = before + started.elapsed().as_secs_f64();
            let pace = Pace::new(self.place.epoch, feed.n_rows(), seconds);
            let measuring = stages::enter(Stage::Measures);
            let ended = end(&mut self.trainer, metrics, pace, &mut self.place)?;
            drop(measuring);
            let Ended { line, words, loss, stop } = ended;
            self.keep(Made { iterations: 1, line, words, loss: Some(loss) }, &bar)?;
            stopped = stop | self.converged(loss, until, n, &bar)?;
            if self.watch.checkpoint_is_due_alone() {
                self.trainer.check()?;
                self.save()?;
            }
        }
        bar.finish();
        self.trainer.check()?;
        self.save()?;
        self.watch.ended(orderly)
    }
}

impl<R: Run> Session<R> {
    /// Makes the iterations over all rows that are left, up to `n` or to the convergence `until`;
    /// `step` makes some, or none when there are none left to make. An interrupt ends the loop
    /// after such a step, with a checkpoint.
    ///
    /// # Errors
    /// When a step fails, or the disk refuses.
    pub fn iterations(
        &mut self,
        n: usize,
        until: Option<Convergence>,
        step: impl FnMut(&mut R::Trainer, usize) -> Result<Option<Made<R::Line>>>,
    ) -> Result<Outcome> {
        self.iterate((n, until), step, Self::save)
    }

    /// As [`iterations`](Self::iterations) up to `n`, without the last checkpoint, which
    /// [`Trained::save`](super::Trained::save) writes beside other work.
    ///
    /// # Errors
    /// As there.
    pub fn iterations_unsaved(
        &mut self,
        n: usize,
        step: impl FnMut(&mut R::Trainer, usize) -> Result<Option<Made<R::Line>>>,
    ) -> Result<Outcome> {
        self.iterate((n, None), step, |_| Ok(()))
    }

    fn iterate(
        &mut self,
        (n, until): (usize, Option<Convergence>),
        mut step: impl FnMut(&mut R::Trainer, usize) -> Result<Option<Made<R::Line>>>,
        save_last: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Outcome> {
        let bar = Progress::iterations(n as u64, self.place.epoch as u64);
        bar.label("learning".to_owned());
        let orderly = interrupt::orderly();
        let mut converged = self.place.converging.converged();
        while self.place.epoch < n && !converged {
            let made = of_data(&self.data, step(&mut self.trainer, self.place.epoch))?;
            let Some(made) = made else { break };
            let (iterations, loss) = (made.iterations, made.loss);
            self.keep(made, &bar)?;
            if let Some(loss) = loss {
                converged = self.converged(loss, until, n, &bar)?;
            }
            bar.advance(iterations as u64);
            let Wish { save, stop } = self.watch.after(iterations, &orderly)?;
            if save || stop {
                self.save()?;
            }
            if stop {
                bar.finish();
                return Ok(Outcome::Interrupted);
            }
        }
        bar.finish();
        save_last(self)?;
        self.watch.ended(orderly)
    }

    /// Whether the loss of the epoch that ended just now ends the training, which is then said.
    fn converged(&mut self, loss: f64, until: Option<Convergence>, n: usize, bar: &Progress) -> Result<bool> {
        match self.place.converges(loss, until, n) {
            Some(words) => bar.suspend(|| self.report.line(&words)).map(|()| true),
            None => Ok(false),
        }
    }

    /// Keeps the line of an epoch or of iterations, and says it unless there are no words for it.
    fn keep(&mut self, made: Made<R::Line>, bar: &Progress) -> Result<()> {
        self.report(made.line, &made.words, bar)?;
        self.place.end(made.iterations);
        Ok(())
    }

    /// Keeps a line, and says it unless there are no words for it.
    fn report(&mut self, line: R::Line, words: &str, bar: &Progress) -> Result<()> {
        if self.watch.ranks.is_first() {
            self.folder.append_json_line(METRICS, &line)?;
        }
        self.place.reports.push(line);
        if words.is_empty() { Ok(()) } else { bar.suspend(|| self.report.line(words)) }
    }
}

/// Clocks of a training loop: how long it has run, when it stops, and when a checkpoint is due.
#[derive(Debug)]
pub(super) struct Watch {
    started: Instant,
    saved: Instant,
    /// Seconds of the run before this process.
    before: f64,
    /// Steps of this process.
    steps: usize,
    checkpoint_seconds: f64,
    /// What the last checkpoint took.
    save_seconds: f64,
    stop_after: Option<usize>,
    pub(super) ranks: Ranks,
}

/// Largest share of the time that checkpoints take.
const CHECKPOINT_SHARE: f64 = 0.01;

impl Watch {
    /// Starts the clocks of a run that has lasted `before` seconds already: a checkpoint is due
    /// every `checkpoint_seconds`, and the loop stops after `stop_after` steps of this process, or
    /// never.
    pub(super) fn start(
        before: f64,
        checkpoint_seconds: f64,
        stop_after: Option<usize>,
        ranks: Ranks,
    ) -> Self {
        let (now, save_seconds) = (Instant::now(), 0.);
        Self {
            started: now,
            saved: now,
            before,
            steps: 0,
            checkpoint_seconds,
            save_seconds,
            stop_after,
            ranks,
        }
    }

    /// How many of `n` steps may be made before the loop must stop, at least one.
    fn at_most(&self, n: usize) -> usize {
        self.stop_after.map_or(n, |all| n.min(all.saturating_sub(self.steps))).max(1)
    }

    /// Counts steps, and says what is to be done after them: on all ranks the same.
    ///
    /// # Errors
    /// When another rank is gone.
    fn after(&mut self, steps: usize, orderly: &Orderly) -> Result<Wish> {
        self.steps += steps;
        let save = self.ranks.is_first() && self.checkpoint_is_due();
        let wish = self.ranks.after_step(Wish { save, stop: orderly.asked() })?;
        Ok(Wish { stop: wish.stop || self.stop_after.is_some_and(|n| self.steps >= n), ..wish })
    }

    /// The loop has come to its own end.
    ///
    /// # Errors
    /// When another rank is gone.
    fn ended(&self, orderly: Orderly) -> Result<Outcome> {
        if !self.ranks.are_several() {
            orderly.done();
            return Ok(Outcome::Done);
        }
        let stops = self.ranks.any_stops(orderly.asked())?;
        Ok(if stops { Outcome::Interrupted } else { Outcome::Done })
    }

    /// Whether a checkpoint is due where there is nobody to agree with.
    fn checkpoint_is_due_alone(&self) -> bool {
        !self.ranks.are_several() && self.checkpoint_is_due()
    }

    /// Whether so long has passed since the last checkpoint that another is due. Where they were
    /// asked for after every step they are; else one that takes long is written less often.
    fn checkpoint_is_due(&self) -> bool {
        let least = match self.checkpoint_seconds {
            0. => 0.,
            seconds => seconds.max(self.save_seconds * (1. / CHECKPOINT_SHARE - 1.)),
        };
        self.saved.elapsed().as_secs_f64() >= least
    }

    /// A checkpoint that was begun then was written just now.
    pub(super) fn checkpoint_written(&mut self, began: Instant) {
        self.saved = Instant::now();
        self.save_seconds = began.elapsed().as_secs_f64();
    }

    /// Seconds spent on the run, in this process and before it.
    pub(super) fn run_seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_place_is_read_whatever_a_command_keeps_beside_it() {
        #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
        struct Extra {
            stage: usize,
        }
        // As checkpoints have it, in any order, with fields of other versions.
        let text = r#"{"epoch":0,"batch":4,"stage":1,"epoch_seconds":0.5,"gathered":{},"run_seconds":2.0,"reports":[]}"#;
        let mut place: Place<f64, Extra> = serde_json::from_str(text).unwrap();
        place.end(1);
        let want = Place { epoch: 1, run_seconds: 2., extra: Extra { stage: 1 }, ..Place::default() };
        assert_eq!(place, want);
        let again: Place<f64, Extra> = serde_json::from_str(&serde_json::to_string(&place).unwrap()).unwrap();
        assert_eq!(again, want);
        let plain: Place<f64> = serde_json::from_str(text).unwrap();
        assert_eq!((plain.batch, plain.run_seconds), (4, 2.));
    }

    #[test]
    fn numbers_come_back_from_files_to_the_last_bit() {
        // Of doubles of all magnitudes a parser that rounds in passing gets about one in ten wrong.
        let numbers: Vec<f64> = (0..2000u64)
            .map(|i| f64::from_bits(0x3ff0_0000_0000_0000 + i * 0x0123_4567_89ab % (1 << 58)))
            .collect();
        let place: Place<f64> = Place { reports: numbers, ..Place::default() };
        assert_eq!(
            serde_json::from_str::<Place<f64>>(&serde_json::to_string(&place).unwrap()).unwrap(),
            place
        );
    }

    #[test]
    fn a_loop_stops_after_the_steps_it_was_given_and_never_without() {
        let orderly = interrupt::orderly();
        let mut watch = Watch::start(5., 0., Some(2), Ranks::default());
        assert_eq!([(); 3].map(|()| watch.after(1, &orderly).unwrap().stop), [false, true, true]);
        assert!(watch.checkpoint_is_due() && watch.run_seconds() >= 5.);
        let mut watch = Watch::start(0., f64::MAX, None, Ranks::default());
        assert!(watch.after(1, &orderly).unwrap().is_none() && !watch.checkpoint_is_due());
    }
}
