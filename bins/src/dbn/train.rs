//! The command `train`: a run from its first step, or from its checkpoint, to its folder.
use super::args::{Settings, TrainArgs};
use super::evaluate::{Evaluation, Rows};
use super::learn::{Learning, Place};
use super::plan::{Data, new_trainer};
use super::{card, draw, learning_curves, sizes};
use crate::device::describe;
use crate::interrupt::Interrupt;
use crate::options::DataArgs;
use crate::report::{Outcome, Report, seconds};
use crate::run::{CHECKPOINT, Kind, Watch, rewrite_metrics, same_rows};
use crate::run_folder::{RunFolder, command_line};
use anyhow::{Context, Result};
use candle::Device;
use chandlery::dbn::{Dbn, DbnTrainer};
use chandlery_datasets::{Feed, FeedConfig};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

const KIND: Kind = Kind {
    command: "dbn train",
    folder: "dbn",
    file: "run.json",
    missing: "no run was begun in this folder",
    unreadable: "cannot be read",
};

/// What a run was asked for: the content of `run.json`, from which it can go on.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of this program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// Where rows come from.
    pub data: DataArgs,
    /// What is made of them.
    pub settings: Settings,
    /// Rows of the training split, to notice when the data has changed.
    pub n_rows: usize,
}

/// Trains a network, or goes on with it, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.device.open()?;
    let Run { folder, info, data, feed, trainer, place } = match &args.resume {
        None => Run::start(args, &device)?,
        Some(path) => Run::resume(path, &device)?,
    };
    report.line(&format!(
        "dbn {} on {}: {}, on {}, seed {}, into {}",
        sizes(trainer.config()),
        data.name,
        data.words(),
        describe(&device),
        info.settings.seed,
        folder.path().display()
    ))?;
    let interrupt = Interrupt::listen()?;
    let mut learning = Learning {
        settings: &info.settings,
        folder: &folder,
        trainer,
        watch: Watch::start(place.run_seconds, args.checkpoint_every, args.stop_after_steps),
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
    finish(&Finish { report, folder, info, data, dbn, place, device }, &interrupt)
}

/// A run at its first step, or at its checkpoint.
struct Run {
    folder: RunFolder,
    info: RunInfo,
    data: Data,
    feed: Feed,
    trainer: DbnTrainer,
    place: Place,
}

impl Run {
    /// Begins a run, with a checkpoint of its first step.
    fn start(args: &TrainArgs, device: &Device) -> Result<Self> {
        let settings = &args.settings;
        // All that can be refused is refused before the folder is touched.
        let data = Data::open(&args.data, settings.seed)?;
        let feed = feed(&data, settings, device)?;
        let trainer = new_trainer(&data, settings, feed.scale(), device)?;
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command_line("dbn"),
            data: args.data.clone(),
            settings: settings.clone(),
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
        let data = Data::open(&info.data, info.settings.seed)?;
        same_rows(&info.data.data, "training rows", info.n_rows, data.n_rows)?;
        let feed = feed(&data, &info.settings, device)?;
        let (trainer, place) = DbnTrainer::load_checkpoint::<Place>(&folder.join(CHECKPOINT), device)
            .with_context(|| format!("--resume {}", path.display()))?;
        rewrite_metrics(&folder, &place.reports)?;
        Ok(Self { folder, info, data, feed, trainer, place })
    }
}

/// Minibatches of the training rows.
fn feed(data: &Data, settings: &Settings, device: &Device) -> Result<Feed> {
    Feed::new(&data.train, device, FeedConfig::new(settings.batch, settings.seed)).context("--batch")
}

/// A run whose layers are all trained.
struct Finish {
    report: Report,
    folder: RunFolder,
    info: RunInfo,
    data: Data,
    dbn: Dbn,
    place: Place,
    device: Device,
}

/// Weights, pictures, curves, the classifier, and the model card.
fn finish(run: &Finish, interrupt: &Interrupt) -> Result<Outcome> {
    let Finish { report, folder, info, data, dbn, place, device } = run;
    let started = Instant::now();
    dbn.save(folder.path())?;
    folder.write("curves.svg", learning_curves::draw(&place.reports, dbn.config())?.as_bytes())?;
    let test = data.test_rows();
    let pictures = draw::run_pictures(dbn, test, info.settings.seed, folder)?;
    if interrupt.asked() {
        return KIND.interrupted(report, folder);
    }
    let rows = Rows { train: &data.train, test, n_classes: data.n_classes };
    let evaluation = Evaluation::of(dbn, &rows, info.settings.seed, device)?;
    for line in evaluation.lines() {
        report.line(&line)?;
    }
    let total = place.run_seconds + started.elapsed().as_secs_f64();
    let result = json!({
        "out": folder.path(),
        "data": data.name,
        "layers": sizes(dbn.config()),
        "device": describe(device),
        "seed": info.settings.seed,
        "seconds": total,
        "accuracy_features": evaluation.readout.as_ref().map(|r| r.accuracy_features),
        "accuracy_pixels": evaluation.readout.as_ref().map(|r| r.accuracy_pixels),
        "evaluation": evaluation,
    });
    folder.write_json("results.json", &result)?;
    let card = card::Card {
        info,
        dbn: dbn.config(),
        data: &data.words(),
        device: &describe(device),
        seconds: total,
        evaluation: &evaluation,
        pictures: &pictures,
    };
    folder.write("README.md", card.text().as_bytes())?;
    report.line(&format!("{} in {}", folder.path().display(), seconds(total)))?;
    report.finish(&result)?;
    Ok(Outcome::Done)
}
