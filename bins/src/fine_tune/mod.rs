//! The command `fine-tune`, of every program that has a [`Base`]: a trained network becomes a
//! classifier or a deep autoencoder.
//!
//! | module    | what                                                        |
//! |-----------|-------------------------------------------------------------|
//! | `plan`    | the rows, the network at its first step, and how it learns  |
//! | `measure` | test errors, and those of principal components              |
//! | `draw`    | learning curves, reconstructions, codes in the plane        |
//! | `card`    | the model card                                              |
mod card;
mod draw;
pub mod measure;
mod plan;

use crate::args::fine_tune::{FineTuneArgs, FineTuneSettings};
use crate::ranks::Ranks;
use crate::report::{Outcome, seconds};
use crate::rows::{self, Data, OfModel};
use crate::session::{Asked, Ended, Epochs, Kind, Place, Run, RunInfo, Session};
use crate::sizes;
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainer};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_datasets::{Feed, count};
use measure::Measured;
use plan::{Rows, streams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::marker::PhantomData;

/// What an epoch came to: a line of `metrics.jsonl`. Errors are shares of rows for a classifier and
/// squared errors of a row for an autoencoder.
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

/// What checkpoints hold beside the place in the epochs.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stopping {
    /// Whether held-out rows have ended the training early.
    stopped: bool,
}

/// A program whose networks are fine-tuned.
pub trait Base {
    /// The names of its command.
    const KIND: Kind;
    /// What the hub calls its classifiers and its autoencoders.
    const TAGS: [&'static [&'static str]; 2];

    /// A pre-trained network with logits of `n_classes` on top, or unrolled to a deep autoencoder
    /// where there are none.
    ///
    /// # Errors
    /// When it cannot be loaded, or is another model.
    fn network(model: &str, n_classes: Option<usize>, device: &Device) -> Result<Feedforward>;
}

struct FineTune<B>(PhantomData<B>);

impl<B: Base> Run for FineTune<B> {
    type Input = OfModel;
    type Settings = FineTuneSettings;
    type Trainer = FeedforwardTrainer;
    type Line = EpochReport;
    type Extra = Stopping;
    const KIND: Kind = B::KIND;
}

/// Fine-tunes a network, or resumes that, and leaves a run folder.
pub fn fine_tune<B: Base>(args: &FineTuneArgs) -> Result<Outcome> {
    let mut asked = Asked::<FineTune<B>>::new(&args.session, || {
        let model = args.model.clone().context("MODEL: name the network to fine-tune")?;
        let data = args.data.of(&model)?;
        Ok((OfModel { model, data }, FineTuneSettings { epochs: args.epochs, ..args.settings.clone() }))
    })?;
    let set = |settings: &mut FineTuneSettings, n| settings.epochs = Some(n);
    let extended = asked.extend_epochs(args.epochs, FineTuneSettings::n_epochs, set)?;
    let data = Data::open(&asked.input.data, asked.settings.seed)?;
    let rows = Rows::choose(&data, &asked.settings)?;
    let is_new = asked.resumed().is_none();
    let note = is_new.then(|| asked.settings.choose(rows.train.n_samples())).flatten();
    let mut feed =
        asked.feed(args.feed, &rows.train, ("--batch", asked.settings.n_batch()), asked.settings.seed)?;
    asked.settings.batch = Some(feed.config().batch);
    let model = asked.input.model.clone();
    let mut session = asked.open(
        data.of_run()?,
        |settings, device, _| {
            let trained = B::network(&model, settings.classify.then_some(data.n_classes), device)?;
            let (network, training) = plan::network(&trained, &data, settings, device)?;
            let trainer =
                FeedforwardTrainer::new(&network, training, Philox::new(settings.seed, streams::DROPOUT))?;
            Ok(trainer.stop_early(settings.held_out_patience().unwrap_or(usize::MAX)))
        },
        |settings, path, device, _| {
            let (mut trainer, place) = FeedforwardTrainer::load(path, device)?;
            if extended {
                extend(&mut trainer, &place, settings)?;
            }
            Ok((trainer, place))
        },
    )?;
    let network = session.trainer.model_config();
    let words = format!(
        "{} {}{} on {}: {} of {}",
        sizes::noun(network),
        sizes::of_fine_tuned(network),
        if session.info.settings.from_scratch { " from random weights" } else { "" },
        data.name,
        rows.train.n_samples(),
        count(data.n_rows, "training row"),
    );
    session.announce(&words, session.info.settings.seed)?;
    note.iter().for_each(|note| session.report.note(note));
    if !session.place.extra.stopped && epochs(&mut session, &rows, &mut feed)? == Outcome::Interrupted {
        return session.interrupted();
    }
    finish(session, &data, &rows)
}

/// Gives a trainer the schedules of a run that is extended. More epochs change nothing in a run
/// that stopped early.
fn extend(trainer: &mut FeedforwardTrainer, place: &Value, settings: &FineTuneSettings) -> Result<()> {
    let place: Place<EpochReport, Stopping> = serde_json::from_value(place.clone())?;
    ensure!(
        !place.extra.stopped,
        "--epochs: this run must not have been stopped by --patience, and it was after {}; start a new run with a larger --patience",
        count(place.epoch, "epoch")
    );
    Ok(trainer.set_schedules(&plan::training(trainer.model_config(), settings)?)?)
}

/// Trains the epochs that are left.
fn epochs<B: Base>(session: &mut Session<FineTune<B>>, rows: &Rows, feed: &mut Feed) -> Result<Outcome> {
    let n = session.info.settings.n_epochs();
    let settings = &session.info.settings;
    let (classify, patience) = (settings.classify, settings.held_out_patience());
    let until = settings.converge().rule();
    let held_out = held_out(rows, session.trainer.model_config(), &session.device)?;
    let epochs = Epochs {
        feed,
        n,
        earlier: 0,
        report_every: None,
        until,
        label: &|epoch| format!("epoch {}/{n}", epoch + 1),
    };
    session.epochs(epochs, |trainer, metrics, pace, place| {
        let model = &trainer.network()?;
        let measure =
            |(rows, labels): &(Tensor, Option<Tensor>)| Measured::error(model, rows, labels.as_ref());
        let line = EpochReport {
            epoch: pace.epoch + 1,
            loss: metrics.loss,
            training_error: metrics.error.or(metrics.squared_error).unwrap_or(f64::NAN),
            held_out_error: held_out.as_ref().map(measure).transpose()?,
            learning_rate: trainer.config().learning_rate.at(pace.epoch),
            rows_per_second: pace.rows_per_second,
            seconds: pace.seconds,
        };
        if let (Some(_), Some(error)) = (patience, line.held_out_error) {
            place.extra.stopped = trainer.observe(pace.epoch, error)?;
        }
        let words = words(&line, n, classify);
        Ok(Ended { loss: line.loss, line, words, stop: place.extra.stopped })
    })
}

/// The held-out rows as the network reads them, and their labels.
fn held_out(
    rows: &Rows,
    network: &FeedforwardConfig,
    device: &Device,
) -> Result<Option<(Tensor, Option<Tensor>)>> {
    let read = |split| Ok((rows::all(split, network, device)?, split.labels_tensor(device)?));
    rows.held_out.as_ref().map(read).transpose()
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

/// Weights, figures, pictures, curves, and the model card.
fn finish<B: Base>(session: Session<FineTune<B>>, data: &Data, rows: &Rows) -> Result<Outcome> {
    let (trainer, run) = session.trained();
    let stopping = trainer.stopping();
    let (best_epoch, best_figure) = (stopping.best_epoch(), stopping.best_figure());
    let model = match stopping.best() {
        Some(best) => best.clone(),
        None => trainer.model()?,
    };
    // Memory of the training goes before the evaluation comes.
    drop(trainer);
    let RunInfo { input, settings, .. } = &run.info;
    run.folder.save_model("", |path| model.save_pretrained(path))?;
    let test = data.measured_on();
    let train: Vec<_> = [&rows.train].into_iter().chain(&rows.held_out).collect();
    let measured = Measured::of(&Ranks::default(), &model, &train, test)?;
    run.draw_curves(&draw::learning_curves(&run.place.reports, settings.classify))?;
    let pictures = draw::pictures(&model, test, settings.classify, &run.folder)?;
    run.report.line(&measured.words())?;
    let last = run.place.reports.last();
    let mut results = json!({
        "model": input.model,
        "data": data.name,
        "layers": sizes::of_fine_tuned(model.config()),
        "from_scratch": settings.from_scratch,
        "n_train": rows.train.n_samples(),
        "epochs": run.place.epoch,
        "best_epoch": best_epoch.map(|epoch| epoch + 1),
        "held_out_error": best_figure.or(last.and_then(|line| line.held_out_error)),
        "training_error": last.map(|line| line.training_error),
        "seconds_per_epoch": last.map(|line| line.seconds),
        "settings": settings,
    });
    if let (Some(results), Value::Object(measured)) =
        (results.as_object_mut(), serde_json::to_value(&measured)?)
    {
        results.extend(measured.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let learned = card::Learned { data, n_rows: rows.train.n_samples(), epochs: run.place.epoch, best_epoch };
    let card = card::of(B::TAGS, model.config(), input, settings, &learned, &measured, &pictures)?;
    run.finish(settings.seed, results, &card)
}
