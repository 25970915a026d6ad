//! The command `train`: layer by layer by contrastive divergence.
use super::args::{Settings, TrainArgs};
use super::learning_curves::EpochReport;
use super::measure::{Evaluation, reconstruction_error};
use super::plan::{choose, new_trainer, training_of};
use super::{card, draw, learning_curves};
use crate::layerwise;
use crate::ranks::Ranks;
use crate::readout::{self, Rows};
use crate::report::{Outcome, figure, seconds};
use crate::rows::{self, Data, OfRows};
use crate::session::{Asked, Kind, Nothing, Run, RunInfo, Session};
use crate::sizes;
use anyhow::Result;
use candle::Tensor;
use chandlery::dbn::DbnTrainer;
use chandlery::rbm::Division;
use chandlery::{Layered, MinibatchTrainer, Model, Trainer};
use chandlery_datasets::{Split, count};
use serde_json::json;

/// Rows of each side that a layer is measured on after an epoch, at most.
const PROBE_ROWS: usize = 250;

struct Train;

impl Run for Train {
    type Input = OfRows;
    type Settings = Settings;
    type Trainer = DbnTrainer;
    type Line = EpochReport;
    type Extra = Nothing;
    const KIND: Kind = Kind { command: "dbn train", folder: "dbn" };
}

/// Trains a network, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let given = || Ok((OfRows { data: args.data.clone() }, args.settings()));
    let mut asked = Asked::<Train>::new(&args.session, given)?;
    let extended =
        asked.extend_epochs(args.epochs, Settings::n_epochs, |settings, n| settings.epochs = Some(n))?;
    let data = Data::open(&asked.input.data, asked.settings.seed)?;
    let is_new = asked.resumed().is_none();
    asked.settings.divide = args.divide.or(asked.settings.divide);
    let notes = if is_new { choose(&data.train, &mut asked.settings)? } else { Vec::new() };
    let mut feed =
        asked.feed(args.feed, &data.train, ("--batch", asked.settings.n_batch()), asked.settings.seed)?;
    asked.settings.batch = Some(feed.config().batch);
    let mut session = asked.open(
        data.of_run()?,
        |settings, device, _| new_trainer(&data, settings, device),
        |settings, path, device, _| {
            let (mut trainer, place) = DbnTrainer::load(path, device)?;
            trainer.set_division(settings.divide.map(Division::from).unwrap_or_default());
            if extended {
                trainer.set_schedules(&training_of(trainer.model_config(), settings)?)?;
            }
            Ok((trainer, place))
        },
    )?;
    let network = session.trainer.model_config();
    let (layers, n) = (sizes::of_network(network), count(sizes::n_parameters_of(network), "parameter"));
    let seed = session.info.settings.seed;
    session.announce(&format!("dbn {layers} ({n}) on {}: {}", data.name, data.words()), seed)?;
    notes.iter().for_each(|note| session.report.note(note));
    for line in sizes::of_layers(session.trainer.model_config()) {
        session.report.line(&line)?;
    }
    let n = session.info.settings.n_epochs();
    let ends = (n, session.info.settings.converge.rule());
    let probe = |trainer: &DbnTrainer| Probe::of(trainer, &data);
    let ended = layerwise::train(&mut session, &mut feed, ends, probe, |trainer, _, pace, probe| {
        let (layer, rbm) = (trainer.layer(), trainer.rbm()?);
        let [error, energy] = rbm.error_and_free_energy(&probe.train)?;
        let held_out = probe.held_out.as_ref().map(|rows| rbm.error_and_free_energy(rows)).transpose()?;
        let config = &trainer.training()[layer];
        let line = EpochReport {
            layer: layer + 1,
            epoch: pace.epoch + 1,
            reconstruction_error: error,
            held_out_reconstruction_error: held_out.map(|[error, _]| error),
            free_energy_gap: held_out.map(|[_, of_held_out]| of_held_out - energy),
            learning_rate: config.learning_rate.at(pace.epoch),
            momentum: config.momentum.at(pace.epoch),
            rows_per_second: pace.rows_per_second,
            seconds: pace.seconds,
        };
        let words = words(&line, trainer.n_layers(), n);
        let loss = line.reconstruction_error;
        Ok((line, words, loss))
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    finish(session, &data)
}

/// Rows that a layer is measured on, `[_, n_visible]` of the layer: training rows, and as many
/// held-out ones.
struct Probe {
    train: Tensor,
    held_out: Option<Tensor>,
}

impl Probe {
    fn of(trainer: &DbnTrainer, data: &Data) -> Result<Self> {
        let dbn = trainer.model()?;
        let held_out = data.held_out.as_ref();
        let n = held_out.map_or(PROBE_ROWS, |rows| rows.n_samples().min(PROBE_ROWS));
        let read = |split: &Split| {
            let split = split.take(n)?;
            rows::through(&split, dbn.config(), trainer.device(), |rows| dbn.features(rows, trainer.layer()))
        };
        Ok(Self { train: read(&data.train)?, held_out: held_out.map(read).transpose()? })
    }
}

/// An epoch in one line.
fn words(line: &EpochReport, n_layers: usize, epochs: usize) -> String {
    let EpochReport { layer, epoch, reconstruction_error, free_energy_gap, rows_per_second, .. } = line;
    let width = epochs.to_string().len();
    let gap = free_energy_gap.map_or("–".to_owned(), |gap| format!("{gap:.2} nats"));
    format!(
        "layer {layer}/{n_layers}  epoch {epoch:>width$}/{epochs}  reconstruction error {:>7}  \
         free-energy gap {gap:>11}  {rows_per_second:>8.0} rows/s  {}",
        figure(*reconstruction_error, 3),
        seconds(line.seconds)
    )
}

/// Weights, pictures, curves, the classifier, and the model card.
fn finish(session: Session<Train>, data: &Data) -> Result<Outcome> {
    let (trainer, run) = session.trained();
    let dbn = trainer.model()?;
    // Memory of the training goes before the evaluation comes.
    drop(trainer);
    let RunInfo { input, settings, .. } = &run.info;
    run.folder.save_model("", |path| dbn.save_pretrained(path))?;
    run.draw_curves(&learning_curves::panels(&run.place.reports, dbn.config()))?;
    let (test, measured_on) = data.measured_on();
    let pictures = draw::run_pictures(&dbn, (test, measured_on), settings.seed, &run.folder)?;
    let rows = Rows { train: Some(&data.train), test, measured_on, n_classes: data.n_classes };
    let error = reconstruction_error(&Ranks::default(), &dbn, rows.test, &run.device)?;
    let evaluation = Evaluation::of(&dbn, &rows, error, settings.seed, &run.device)?;
    for line in evaluation.lines() {
        run.report.line(&line)?;
    }
    let warning = evaluation.readout.as_ref().and_then(readout::warning);
    if let Some(warning) = &warning {
        run.report.note(warning);
    }
    let results = json!({
        "data": data.name,
        "layers": sizes::of_network(dbn.config()),
        "n_parameters": sizes::n_parameters_of(dbn.config()),
        "accuracy_features": evaluation.readout.as_ref().map(|r| r.accuracy_features),
        "accuracy_pixels": evaluation.readout.as_ref().map(|r| r.accuracy_pixels),
        "evaluation": evaluation,
        "warning": warning,
        "settings": settings,
    });
    let card = card::of(dbn.config(), &input.data, data, settings, &evaluation, &pictures)?;
    run.finish(settings.seed, results, &card)
}
