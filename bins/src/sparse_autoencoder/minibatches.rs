//! Runs that learn from minibatches in a seeded order, whatever the model is.
use super::args::{Settings, TrainArgs};
use crate::patch_rows::Input;
use crate::report::Outcome;
use crate::rows::Rows;
use crate::session::{Asked, Ended, Epochs, FeedArgs, Pace, Run, Session, Trained};
use anyhow::Result;
use candle::Device;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::{MinibatchTrainer, Trainer};
use chandlery_ops::Group;
use serde_json::Value;
use std::path::Path;

/// What a report says.
pub struct Said<L> {
    /// The line of `metrics.jsonl`.
    pub line: L,
    /// What falls as training goes on.
    pub loss: f64,
    /// What is said of the metrics, after the epoch.
    pub words: String,
}

/// What kinds of models do in their own way.
pub struct Own<N, L, B, S> {
    /// The trainer of a new run, for so many steps in all.
    pub new: N,
    /// That of a checkpoint, and what was kept with it.
    pub load: L,
    /// What is done and said before the first step.
    pub begin: B,
    /// What a report says of metrics.
    pub say: S,
}

/// Trains in minibatches of `batch` rows, or those of the run that is resumed. Gives the trainer and
/// what is left of the session; nothing where the run was interrupted, which is said.
///
/// # Errors
/// When options are refused, training diverges, a minibatch cannot be read, or the disk refuses.
pub fn train<R>(
    mut asked: Asked<R>,
    args: &TrainArgs,
    rows: &Rows,
    batch: usize,
    own: Own<
        impl FnOnce(&Settings, u64, &Device, &Group) -> Result<R::Trainer>,
        impl Fn(&Settings, u64, &Path, &Device, &Group) -> Result<(R::Trainer, Value)>,
        impl FnOnce(&Session<R>) -> Result<()>,
        impl Fn(<R::Trainer as Trainer>::Metrics, Pace) -> Said<R::Line>,
    >,
) -> Result<Option<(R::Trainer, Trained<R>)>>
where
    R: Run<Input = Input, Settings = Settings>,
    R::Trainer: MinibatchTrainer,
{
    let Own { new, load, begin, say } = own;
    asked.extend_epochs(args.epochs, |settings| settings.epochs, |settings, all| settings.epochs = all)?;
    let Settings { seed, latents, .. } = &asked.settings;
    let feed_args = FeedArgs { mix: latents.mix, ..args.feed };
    let mut feed = asked.feed(feed_args, &rows.split, ("--batch", batch), *seed)?;
    asked.settings.batch = Some(feed.config().batch);
    let a_pass = feed.n_batches();
    let steps = |settings: &Settings| (settings.epochs * a_pass) as u64;
    let mut session = asked.open(
        rows.of_run()?,
        |settings, device, group| new(settings, steps(settings), device, group),
        |settings, path, device, group| load(settings, steps(settings), path, device, group),
    )?;
    begin(&session)?;
    let settings = &session.info.settings;
    let (n, until) = (settings.epochs, settings.converge.rule());
    let report_every = settings.latents.report_every(n, a_pass);
    let label = |epoch| format!("epoch {}/{n}", epoch + 1);
    let epochs = Epochs { feed: &mut feed, n, earlier: 0, report_every, until, label: &label };
    let width = n.to_string().len();
    let all = rows.split.n_samples();
    let ended = session.epochs(epochs, |_, metrics, pace, _| {
        let Said { line, loss, words } = say(metrics, pace);
        let part = match pace.rows == all {
            true => format!("{:>width$}", pace.epoch + 1),
            false => format!("{:>width$.2}", pace.epoch as f64 + pace.rows as f64 / all as f64),
        };
        Ok(Ended { loss, line, words: format!("epoch {part}/{n}  {words}"), stop: false })
    })?;
    match ended {
        Outcome::Interrupted => session.interrupted().map(|_| None),
        _ => Ok(Some(session.trained())),
    }
}

/// A panel with one curve, of so many lines.
pub fn panel<L>(lines: &[L], title: &str, unit: &str, xy: fn(&L) -> (f64, f64)) -> Panel {
    Panel::new(title, unit, title, vec![Curve::new(title, lines.iter().map(xy))])
}
