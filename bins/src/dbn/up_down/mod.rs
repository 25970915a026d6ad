//! The command `up-down`: a trained network is given labels and generative weights, and all of it is trained.
//!
//! | module  | what                                                       |
//! |---------|------------------------------------------------------------|
//! | `args`  | the command line                                           |
//! | `plan`  | the network with labels, and how it learns in each stage   |
//! | `learn` | the loop over stages, epochs and minibatches               |
//! | `apply` | accuracy and pictures; `sample` and `evaluate` with labels |
//! | `card`  | the README.md of its run folder                            |
pub(super) mod apply;
mod args;
mod card;
mod learn;
mod plan;

pub use args::{UpDownArgs, UpDownSettings};

use super::plan::Data;
use crate::device::describe;
use crate::interrupt::Interrupt;
use crate::options::DataArgs;
use crate::report::{Outcome, Report, seconds};
use crate::run::{CHECKPOINT, Kind, Watch, rewrite_metrics, same_rows};
use crate::run_folder::{RunFolder, command_line};
use anyhow::{Context, Result};
use candle::Device;
use chandlery::labelled::{LabelledDbn, LabelledDbnConfig, UpDownTrainer};
use chandlery_datasets::{Feed, FeedConfig};
use learn::{Learning, Place};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

const KIND: Kind = Kind {
    command: "dbn up-down",
    folder: "dbn-up-down",
    file: "run.json",
    missing: "no run was begun in this folder",
    unreadable: "not a run of `dbn up-down`",
};

/// What a run was asked for: the content of `run.json`, from which it can go on.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// The network that it began with.
    pub model: String,
    /// Where rows come from.
    pub data: DataArgs,
    /// What is made of them.
    pub up_down: UpDownSettings,
    /// Rows of the training split, to notice when the data has changed.
    pub n_rows: usize,
}

/// Trains a network with labels, or goes on with it, and leaves a run folder.
pub fn up_down(args: &UpDownArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.device.open()?;
    let Run { folder, info, data, feed, trainer, place } = match &args.resume {
        None => Run::start(args, &device)?,
        Some(path) => Run::resume(path, &device)?,
    };
    report.line(&format!(
        "dbn up-down {} on {}: {}, on {}, seed {}, into {}",
        sizes(trainer.model()),
        data.name,
        data.words(),
        describe(&device),
        info.up_down.seed,
        folder.path().display()
    ))?;
    let interrupt = Interrupt::listen()?;
    let mut learning = Learning {
        settings: &info.up_down,
        folder: &folder,
        trainer,
        watch: Watch::start(place.at.run_seconds, args.checkpoint_every, args.stop_after_steps),
        place,
        train: &data.train,
        held_out: data.held_out.as_ref(),
        feed,
    };
    if learning.run(&report, &interrupt)? == Outcome::Interrupted {
        return KIND.interrupted(&report, &folder);
    }
    // Memory of the training goes before the evaluation comes.
    let Learning { trainer, place, .. } = learning;
    let dbn = trainer.dbn()?;
    drop(trainer);
    finish(&Finish { report, folder, info, data, dbn, place, device })
}

/// A run at its first step, or at its checkpoint.
struct Run {
    folder: RunFolder,
    info: RunInfo,
    data: Data,
    feed: Feed,
    trainer: UpDownTrainer,
    place: Place,
}

impl Run {
    /// Begins a run, with a checkpoint of its first step.
    fn start(args: &UpDownArgs, device: &Device) -> Result<Self> {
        let settings = &args.settings;
        let model = args.model.as_deref().context("MODEL: name the folder of a run of `dbn train`")?;
        // All that can be refused is refused before the folder is touched.
        let data = Data::open(&args.data, settings.seed)?;
        let dbn = plan::with_labels(model, &data, device)?;
        let feed = feed(&data, settings, device)?;
        let trainer = plan::trainer(&dbn, settings, 0)?;
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command_line("dbn"),
            model: model.to_owned(),
            data: args.data.clone(),
            up_down: settings.clone(),
            n_rows: data.n_rows,
        };
        let folder = KIND.begin(&args.out, &info)?;
        let place = Place::default();
        trainer.save_checkpoint(&folder.join(CHECKPOINT), &place)?;
        Ok(Self { folder, info, data, feed, trainer, place })
    }

    /// Goes on where the checkpoint in a run folder stands.
    fn resume(path: &Path, device: &Device) -> Result<Self> {
        let (folder, info): (_, RunInfo) = KIND.open(path)?;
        let data = Data::open(&info.data, info.up_down.seed)?;
        same_rows(&info.data.data, "training rows", info.n_rows, data.n_rows)?;
        let feed = feed(&data, &info.up_down, device)?;
        let (trainer, place) = UpDownTrainer::load_checkpoint::<Place>(&folder.join(CHECKPOINT), device)
            .with_context(|| format!("--resume {}", path.display()))?;
        rewrite_metrics(&folder, &place.at.reports)?;
        Ok(Self { folder, info, data, feed, trainer, place })
    }
}

/// Minibatches of the training rows.
fn feed(data: &Data, settings: &UpDownSettings, device: &Device) -> Result<Feed> {
    Feed::new(&data.train, device, FeedConfig::new(settings.batch, settings.seed)).context("--batch")
}

/// A run whose stages are all done.
struct Finish {
    report: Report,
    folder: RunFolder,
    info: RunInfo,
    data: Data,
    dbn: LabelledDbn,
    place: Place,
    device: Device,
}

/// Weights, picture, accuracy, and the model card.
fn finish(run: &Finish) -> Result<Outcome> {
    let Finish { report, folder, info, data, dbn, place, device } = run;
    let started = Instant::now();
    dbn.save(folder.path())?;
    let picture = apply::run_picture(dbn, info.up_down.seed, folder)?;
    let evaluation = apply::Evaluation::of(dbn, data.test_rows())?;
    report.line(&evaluation.line())?;
    let total = place.at.run_seconds + started.elapsed().as_secs_f64();
    let result = json!({
        "out": folder.path(),
        "model": info.model,
        "data": data.name,
        "layers": sizes(dbn.config()),
        "device": describe(device),
        "seed": info.up_down.seed,
        "seconds": total,
        "accuracy": evaluation.accuracy,
        "evaluation": evaluation,
    });
    folder.write_json("results.json", &result)?;
    let card = card::Card {
        info,
        config: dbn.config(),
        data: &data.words(),
        device: &describe(device),
        seconds: total,
        evaluation: &evaluation,
        picture: picture.as_ref(),
    };
    folder.write("README.md", card.text().as_bytes())?;
    report.line(&format!("{} in {}", folder.path().display(), seconds(total)))?;
    report.finish(&result)?;
    Ok(Outcome::Done)
}

/// `784-500-[500+10]-2000`: the sizes of a network's layers, the labels beside the layer that they stand with.
fn sizes(config: &LabelledDbnConfig) -> String {
    let m = config.n_lower();
    let size = |(l, n): (usize, &usize)| match l == m {
        true => format!("[{n}+{}]", config.n_classes),
        false => n.to_string(),
    };
    config.sizes.iter().enumerate().map(size).collect::<Vec<_>>().join("-")
}
