//! Training of a stack of layers, one after another from the lowest.
use crate::report::Outcome;
use crate::session::{Ended, Epochs, Pace, Run, Session};
use anyhow::Result;
use chandlery::{MinibatchTrainer, Trainer};
use chandlery_datasets::Feed;

/// A trainer of layers.
pub trait Layerwise: MinibatchTrainer {
    /// The layer in training, counted from 0, and how many there are.
    fn at(&self) -> (usize, usize);

    /// Goes on to the next layer; false where there is none.
    fn up(&mut self) -> candle::Result<bool>;
}

impl Layerwise for chandlery::dbn::DbnTrainer {
    fn at(&self) -> (usize, usize) {
        (self.layer(), self.n_layers())
    }

    fn up(&mut self) -> candle::Result<bool> {
        self.next_layer()
    }
}

impl Layerwise for chandlery::dae::StackedDaeTrainer {
    fn at(&self) -> (usize, usize) {
        (self.layer(), self.n_layers())
    }

    fn up(&mut self) -> candle::Result<bool> {
        self.next_layer()
    }
}

/// Trains the epochs that are left, `n` for each layer. `probe` reads what a layer is measured on,
/// and `line` gives what an epoch came to, for files and for people.
///
/// # Errors
/// As [`Session::epochs`], and those of `probe` and `line`.
pub fn train<R: Run, P>(
    session: &mut Session<R>,
    feed: &mut Feed,
    n: usize,
    probe: impl Fn(&R::Trainer) -> Result<P>,
    line: impl Fn(&R::Trainer, <R::Trainer as Trainer>::Metrics, Pace, &P) -> Result<(R::Line, String)>,
) -> Result<Outcome>
where
    R::Trainer: Layerwise,
{
    loop {
        let (layer, n_layers) = session.trainer.at();
        let probe = probe(&session.trainer)?;
        let label = |epoch| format!("layer {}/{n_layers} epoch {}/{n}", layer + 1, epoch + 1);
        let epochs = Epochs { feed, n, earlier: layer * n, label: &label };
        let ended = session.epochs(epochs, |trainer, metrics, pace, _| {
            let (line, words) = line(trainer, metrics, pace, &probe)?;
            Ok(Ended { line, words, stop: false })
        })?;
        if ended == Outcome::Interrupted || !session.trainer.up()? {
            return Ok(ended);
        }
        session.place.begin_stage();
        session.save()?;
    }
}
