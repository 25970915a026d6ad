//! Training of a stack of layers, one after another from the lowest.
use crate::report::Outcome;
use crate::session::{Ended, Epochs, Pace, Run, Session};
use crate::stages::{self, Stage};
use anyhow::Result;
use chandlery::Convergence;
use chandlery::layerwise::{LayerwiseTrainer, MetricsOf, StackLayer};
use chandlery_datasets::Feed;

/// Trains the epochs that are left, `n` for each layer. `probe` reads what a layer is measured on,
/// and `line` gives what an epoch came to, for files and for people, and its loss; a layer ends
/// where that converges by `until`.
///
/// # Errors
/// As [`Session::epochs`], and those of `probe` and `line`.
pub fn train<L: StackLayer, R: Run<Trainer = LayerwiseTrainer<L>>, P>(
    session: &mut Session<R>,
    feed: &mut Feed,
    (n, until): (usize, Option<Convergence>),
    probe: impl Fn(&R::Trainer) -> Result<P>,
    line: impl Fn(&R::Trainer, MetricsOf<L>, Pace, &P) -> Result<(R::Line, String, f64)>,
) -> Result<Outcome> {
    loop {
        let (layer, n_layers) = (session.trainer.layer(), session.trainer.n_layers());
        let measuring = stages::enter(Stage::Measures);
        let probe = probe(&session.trainer)?;
        drop(measuring);
        let label = |epoch| format!("layer {}/{n_layers} epoch {}/{n}", layer + 1, epoch + 1);
        let mut made = session.trainer.feed_of_layer(feed)?;
        let epochs = Epochs {
            feed: made.as_mut().unwrap_or(feed),
            n,
            earlier: layer * n,
            report_every: None,
            until,
            label: &label,
        };
        let ended = session.epochs(epochs, |trainer, metrics, pace, _| {
            let (line, words, loss) = line(trainer, metrics, pace, &probe)?;
            Ok(Ended { line, words, loss, stop: false })
        })?;
        if ended == Outcome::Interrupted || !session.trainer.next_layer()? {
            return Ok(ended);
        }
        session.place.begin_stage();
        session.save()?;
    }
}
