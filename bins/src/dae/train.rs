//! The command `train`: a denoising autoencoder, or a stack of them layer by layer.
use super::args::{Settings, TrainArgs};
use super::measure::{self, EpochReport, Errors, Noise};
use super::plan::{choose, corruptions, new_trainer};
use super::{card, draw, saved, streams};
use crate::layerwise;
use crate::ranks::Ranks;
use crate::readout::{self, Rows};
use crate::report::{Outcome, figure, seconds};
use crate::rows::{self, Data, OfRows};
use crate::session::{Asked, Kind, Nothing, Run, RunInfo, Session};
use anyhow::Result;
use candle::Tensor;
use chandlery::dae::StackedDaeTrainer;
use chandlery::{Layered, MinibatchTrainer, Philox, Trainer};
use chandlery_datasets::Split;
use chandlery_ops::layers::corrupt;
use serde_json::json;

/// Held-out rows that a layer is measured on after an epoch, at most.
const PROBE_ROWS: usize = 250;

struct Train;

impl Run for Train {
    type Input = OfRows;
    type Settings = Settings;
    type Trainer = StackedDaeTrainer;
    type Line = EpochReport;
    type Extra = Nothing;
    const KIND: Kind = Kind { command: "dae train", folder: "dae" };
}

/// Trains a model, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let given = || Ok((OfRows { data: args.data.clone() }, args.settings()));
    let mut asked = Asked::<Train>::new(&args.session, given)?;
    // The learning rate is constant, so that a run that is extended needs no other schedule.
    asked.extend_epochs(args.epochs, Settings::n_epochs, |settings, n| settings.epochs = Some(n))?;
    let data = Data::open(&asked.input.data, asked.settings.seed)?;
    let is_new = asked.resumed().is_none();
    let notes = if is_new { choose(&data.train, &mut asked.settings)? } else { Vec::new() };
    let mut feed =
        asked.feed(args.feed, &data.train, ("--batch", asked.settings.n_batch()), asked.settings.seed)?;
    asked.settings.batch = Some(feed.config().batch);
    let mut session = asked.open(
        data.of_run()?,
        |settings, device, _| new_trainer(&data, settings, device),
        |_, path, device, _| Ok(StackedDaeTrainer::load(path, device)?),
    )?;
    let sizes = saved::sizes(session.trainer.model_config());
    let seed = session.info.settings.seed;
    session.announce(&format!("dae {sizes} on {}: {}", data.name, data.words()), seed)?;
    notes.iter().for_each(|note| session.report.note(note));
    let n = session.info.settings.n_epochs();
    let ends = (n, session.info.settings.converge.rule());
    let probe = |trainer: &StackedDaeTrainer| Probe::of(trainer, &data, seed);
    let ended = layerwise::train(&mut session, &mut feed, ends, probe, |trainer, metrics, pace, probe| {
        let layer = trainer.layer();
        let line = EpochReport {
            layer: layer + 1,
            epoch: pace.epoch + 1,
            loss: metrics.loss,
            rmse: metrics.rmse,
            held_out_rmse: probe.as_ref().map(|probe| probe.rmse(trainer)).transpose()?,
            learning_rate: trainer.training()[layer].learning_rate.at(pace.epoch),
            rows_per_second: pace.rows_per_second,
            seconds: pace.seconds,
        };
        let words = words(&line, trainer.n_layers(), n);
        let loss = line.loss;
        Ok((line, words, loss))
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    finish(session, &data)
}

/// Held-out rows as the layer in training reads them, `[_, n_visible]` of the layer, clean and with
/// the same noise each time.
struct Probe {
    clean: Tensor,
    corrupted: Tensor,
}

impl Probe {
    fn of(trainer: &StackedDaeTrainer, data: &Data, seed: u64) -> Result<Option<Self>> {
        let Some(held_out) = &data.held_out else { return Ok(None) };
        let (stack, layer) = (trainer.model()?, trainer.layer());
        let read = |split: &Split| {
            rows::through(split, stack.config(), trainer.device(), |rows| stack.features(rows, layer))
        };
        let clean = read(&held_out.take(PROBE_ROWS.min(held_out.n_samples()))?)?.contiguous()?;
        let draws = Philox::new(seed, streams::HELD_OUT + layer as u64);
        let corrupted = corrupt(&clean, trainer.training()[layer].corruption, draws)?;
        Ok(Some(Self { clean, corrupted }))
    }

    fn rmse(&self, trainer: &StackedDaeTrainer) -> candle::Result<f64> {
        Ok(trainer.layer_model()?.errors_prepared(&self.corrupted, &self.clean)?.rmse)
    }
}

/// An epoch in one line.
fn words(line: &EpochReport, n_layers: usize, epochs: usize) -> String {
    let EpochReport { layer, epoch, loss, rmse, held_out_rmse, rows_per_second, .. } = line;
    let width = epochs.to_string().len();
    let held_out = held_out_rmse.map_or("–".to_owned(), |rmse| figure(rmse, 4));
    format!(
        "layer {layer}/{n_layers}  epoch {epoch:>width$}/{epochs}  loss {:>8}  RMSE {} in training, {held_out} held-out  \
         {rows_per_second:>8.0} rows/s  {}",
        figure(*loss, 3),
        figure(*rmse, 4),
        seconds(line.seconds)
    )
}

/// Weights, errors, pictures, curves, and the model card.
fn finish(session: Session<Train>, data: &Data) -> Result<Outcome> {
    let (trainer, run) = session.trained();
    let stack = trainer.model()?;
    // Memory of the training goes before the evaluation comes.
    drop(trainer);
    let RunInfo { input, settings, .. } = &run.info;
    run.folder.save_model("", |path| saved::save(&stack, path))?;
    let (test, measured_on) = data.measured_on();
    let corruption = corruptions(settings)?[0];
    let noise = Noise { corruption, seed: settings.seed };
    let errors = Errors::of(&Ranks::default(), &stack, test, noise, &run.device)?;
    run.draw_curves(&draw::learning_curves(&run.place.reports, stack.layers().len()))?;
    let pictures = draw::run_pictures(&stack, (test, measured_on), noise, &run.device, &run.folder)?;
    run.report.line(&errors.words(&measured_on.count_with_warning(errors.n_samples), corruption))?;
    let rows = Rows { train: Some(&data.train), test, measured_on, n_classes: data.n_classes };
    let readout = measure::readout(&stack, &rows, &run.device)?;
    let mut warning = None;
    if let Some(readout) = &readout {
        run.report.line(&readout::words(readout, measured_on, "hidden unit"))?;
        warning = readout::warning(readout);
        warning.iter().for_each(|warning| run.report.note(warning));
    }
    let last = run.place.reports.last();
    let results = json!({
        "data": data.name,
        "layers": saved::sizes(stack.config()),
        "n_train": data.train.n_samples(),
        "epochs": settings.n_epochs(),
        "corruption": settings.corruption,
        "measured_on": measured_on,
        "n_test": errors.n_samples,
        "loss": last.map(|line| line.loss),
        "seconds_per_epoch": last.map(|line| line.seconds),
        "rmse_of_noise": errors.rmse_of_noise,
        "rmse_test_clean": errors.rmse_clean,
        "rmse_test": errors.rmse,
        "accuracy_features": readout.as_ref().map(|r| r.accuracy_features),
        "accuracy_pixels": readout.as_ref().map(|r| r.accuracy_pixels),
        "readout": readout,
        "warning": warning,
        "settings": settings,
    });
    let card = card::of(stack.config(), &input.data, data, settings, &errors, &pictures)?;
    run.finish(settings.seed, results, &card)
}
