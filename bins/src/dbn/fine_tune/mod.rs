//! The command `fine-tune`: a trained network becomes a classifier or a deep autoencoder.
//!
//! | module    | what                                                        |
//! |-----------|-------------------------------------------------------------|
//! | [`args`]  | the command line                                            |
//! | `plan`    | the rows, the network at its first step, and how it learns  |
//! | `learn`   | the loop over epochs and minibatches, and its checkpoint    |
//! | `measure` | test errors, and those of principal components              |
//! | `draw`    | learning curves, reconstructions, codes in the plane        |
//! | `card`    | the README.md of a run folder                               |
pub mod args;
mod card;
mod draw;
mod learn;
mod measure;
mod plan;

use super::plan::Data;
use super::{rows, streams};
use crate::device::describe;
use crate::interrupt::Interrupt;
use crate::options::DataArgs;
use crate::report::{Outcome, Report, seconds};
use crate::run::{CHECKPOINT, Kind, Watch, rewrite_metrics, same_rows};
use crate::run_folder::{RunFolder, command_line};
use anyhow::{Context, Result};
use args::{FineTuneArgs, FineTuneSettings};
use candle::Device;
use chandlery::Philox;
use chandlery::dbn::Dbn;
use chandlery::feedforward::{EarlyStopping, Feedforward, FeedforwardConfig, FeedforwardTrainer, Task};
use chandlery_datasets::{Feed, FeedConfig};
use learn::{Learning, Place};
use measure::Measured;
use plan::Rows;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

const KIND: Kind = Kind {
    command: "dbn fine-tune",
    folder: "dbn-fine-tune",
    file: "fine-tune.json",
    missing: "no fine-tuning was begun in this folder",
    unreadable: "cannot be read",
};

/// What a run was asked for: the content of `fine-tune.json`, from which a run can go on.
#[derive(Debug, Serialize, Deserialize)]
struct RunInfo {
    /// Version of this program.
    version: String,
    /// The command line.
    command: String,
    /// The network that the run began with.
    model: String,
    /// Where rows come from.
    data: DataArgs,
    /// What is made of them.
    settings: FineTuneSettings,
    /// Rows of the training split, to notice when the data has changed.
    n_rows: usize,
}

/// Fine-tunes a network, or goes on with it, and leaves a run folder.
pub fn fine_tune(args: &FineTuneArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.device.open()?;
    let Run { folder, info, data, rows, feed, trainer, stopping, place } = match &args.resume {
        None => Run::start(args, &device)?,
        Some(path) => Run::resume(path, &device)?,
    };
    report.line(&format!(
        "{} {}{} on {}: {} of {} training rows, on {}, seed {}, into {}",
        noun(trainer.model_config()),
        sizes(trainer.model_config()),
        if info.settings.from_scratch { " from random weights" } else { "" },
        data.name,
        rows.train.n_samples(),
        data.n_rows,
        describe(&device),
        info.settings.seed,
        folder.path().display()
    ))?;
    let interrupt = Interrupt::listen()?;
    let held_out = rows.held_out.as_ref().map(|split| {
        let labels = split.labels_tensor(&device)?;
        Ok::<_, anyhow::Error>((rows::all_of(split, trainer.model_config(), &device)?, labels))
    });
    let mut learning = Learning {
        settings: &info.settings,
        folder: &folder,
        trainer,
        stopping,
        watch: Watch::start(place.at.run_seconds, args.checkpoint_every, args.stop_after_steps),
        place,
        feed,
        held_out: held_out.transpose()?,
    };
    if learning.run(&report, &interrupt)? == Outcome::Interrupted {
        return KIND.interrupted(&report, &folder);
    }
    let Learning { trainer, stopping, place, .. } = learning;
    let model = match stopping.best() {
        Some(best) => best.clone(),
        None => trainer.model()?,
    };
    // Memory of the training goes before the evaluation comes.
    drop(trainer);
    finish(&Finish { report, folder, info, data, rows, model, stopping, place, device })
}

/// A run at its first step, or at its checkpoint.
struct Run {
    folder: RunFolder,
    info: RunInfo,
    data: Data,
    rows: Rows,
    feed: Feed,
    trainer: FeedforwardTrainer,
    stopping: EarlyStopping,
    place: Place,
}

impl Run {
    /// Begins a run, with a checkpoint of its first step.
    fn start(args: &FineTuneArgs, device: &Device) -> Result<Self> {
        let settings = &args.settings;
        let model = args.model.as_deref().context("MODEL: a network to begin with must be named")?;
        // All that can be refused is refused before the folder is touched.
        let dbn = Dbn::from_pretrained(model, device)?;
        let data = Data::open(&args.data, settings.seed)?;
        let rows = Rows::choose(&data, settings)?;
        let feed = feed(&rows, settings, device)?;
        let (network, training) = plan::network(&dbn, &data, settings, device)?;
        let philox = Philox::new(settings.seed, streams::DROPOUT);
        let trainer = FeedforwardTrainer::new(&network, training, philox)?;
        let stopping = EarlyStopping::new(settings.patience.unwrap_or(usize::MAX));
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command_line("dbn"),
            model: model.to_owned(),
            data: args.data.clone(),
            settings: settings.clone(),
            n_rows: data.n_rows,
        };
        let folder = KIND.begin(&args.out, &info)?;
        let place = Place::default();
        trainer.save_checkpoint(&folder.join(CHECKPOINT), &stopping, &place)?;
        Ok(Self { folder, info, data, rows, feed, trainer, stopping, place })
    }

    /// Goes on where the checkpoint in a run folder stands.
    fn resume(path: &Path, device: &Device) -> Result<Self> {
        let (folder, info): (_, RunInfo) = KIND.open(path)?;
        let data = Data::open(&info.data, info.settings.seed)?;
        same_rows(&info.data.data, "training rows", info.n_rows, data.n_rows)?;
        let rows = Rows::choose(&data, &info.settings)?;
        let feed = feed(&rows, &info.settings, device)?;
        let (trainer, stopping, place) =
            FeedforwardTrainer::load_checkpoint::<Place>(&folder.join(CHECKPOINT), device)
                .with_context(|| format!("--resume {}", path.display()))?;
        rewrite_metrics(&folder, &place.at.reports)?;
        Ok(Self { folder, info, data, rows, feed, trainer, stopping, place })
    }
}

/// Minibatches of the training rows.
fn feed(rows: &Rows, settings: &FineTuneSettings, device: &Device) -> Result<Feed> {
    Feed::new(&rows.train, device, FeedConfig::new(settings.batch, settings.seed)).context("--batch")
}

/// A run whose epochs are done.
struct Finish {
    report: Report,
    folder: RunFolder,
    info: RunInfo,
    data: Data,
    rows: Rows,
    model: Feedforward,
    stopping: EarlyStopping,
    place: Place,
    device: Device,
}

/// Weights, figures, pictures, curves, and the model card.
fn finish(run: &Finish) -> Result<Outcome> {
    let Finish { report, folder, info, data, rows, model, stopping, place, device } = run;
    let started = Instant::now();
    model.save(folder.path())?;
    let test = data.test_rows();
    let train: Vec<_> = [&rows.train].into_iter().chain(&rows.held_out).collect();
    let measured = Measured::of(model, &train, test)?;
    let pictures = draw::pictures(model, test, &place.at.reports, info.settings.classify, folder)?;
    report.line(&measured.words())?;
    let total = place.at.run_seconds + started.elapsed().as_secs_f64();
    let last = place.at.reports.last();
    let mut result = json!({
        "out": folder.path(),
        "model": info.model,
        "data": data.name,
        "layers": sizes(model.config()),
        "device": describe(device),
        "seed": info.settings.seed,
        "from_scratch": info.settings.from_scratch,
        "n_train": rows.train.n_samples(),
        "epochs": place.at.epoch,
        "best_epoch": stopping.best_epoch().map(|epoch| epoch + 1),
        "held_out_error": stopping.best_figure().or(last.and_then(|line| line.held_out_error)),
        "training_error": last.map(|line| line.training_error),
        "seconds_per_epoch": last.map(|line| line.seconds),
        "training_seconds": place.at.run_seconds,
        "seconds": total,
    });
    if let (Some(result), serde_json::Value::Object(measured)) =
        (result.as_object_mut(), serde_json::to_value(&measured)?)
    {
        result.extend(measured.into_iter().filter(|(_, value)| !value.is_null()));
    }
    folder.write_json("results.json", &result)?;
    let card = card::Card {
        info,
        network: model.config(),
        data: &data.words(),
        n_train: rows.train.n_samples(),
        device: &describe(device),
        seconds: total,
        epochs: place.at.epoch,
        best_epoch: stopping.best_epoch(),
        measured: &measured,
        pictures: &pictures,
    };
    folder.write("README.md", card.text().as_bytes())?;
    report.line(&format!("{} in {}", folder.path().display(), seconds(total)))?;
    report.finish(&result)?;
    Ok(Outcome::Done)
}

/// `784-500-10`: the sizes of a network's layers, the input's first.
fn sizes(network: &FeedforwardConfig) -> String {
    let sizes = [network.n_inputs()].into_iter().chain(network.layers.iter().map(|layer| layer.n_outputs));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}

fn noun(network: &FeedforwardConfig) -> &'static str {
    match network.task {
        Task::Classify => "classifier",
        Task::Autoencode { .. } => "autoencoder",
    }
}
