//! The command `train`: a run from its first iteration, or from its checkpoint, to its folder.
use super::args::{Settings, SignalArgs, TrainArgs};
use super::card::{Card, name_of};
use super::choices::StartArg;
use super::learn::{IterationReport, Learning, Trainer, feed};
use super::measure::{Measure, measure};
use super::signals::Signals;
use super::summary::Summary;
use super::{draw, streams};
use crate::curves::{self, Curve, Panel};
use crate::device::describe;
use crate::interrupt::Interrupt;
use crate::report::{Outcome, Report, seconds};
use crate::run::{CHECKPOINT, Kind, METRICS, Watch, same_rows};
use crate::run_folder::{RunFolder, command_line};
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainer, OnlineConfig, OnlineTrainer, Start, TrainConfig, start,
};
use chandlery_ops::ErrorTarget;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

const KIND: Kind = Kind {
    command: "dictionary-learning train",
    folder: "dictionary-learning",
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
    /// Where signals come from.
    pub signals: SignalArgs,
    /// What is made of them.
    pub settings: Settings,
    /// Signals there were, to notice when the data has changed.
    pub n_rows: usize,
}

/// Trains a dictionary, or goes on with it, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.device.open()?;
    let Run { folder, info, signals, trainer, reports } = match &args.resume {
        None => Run::begin(args, &device)?,
        Some(path) => Run::resume(path, &device)?,
    };
    report.line(&format!(
        "dictionary of {} atoms for {} ({}), codes of {} atoms, on {}, seed {}, into {}",
        info.settings.atoms,
        signals.name,
        signals.words(),
        info.settings.nonzero,
        describe(&device),
        info.settings.seed,
        folder.path().display()
    ))?;
    let interrupt = Interrupt::listen()?;
    let mut learning = Learning {
        settings: &info.settings,
        signals: &signals,
        folder: &folder,
        trainer,
        reports,
        watch: Watch::start(0., args.checkpoint_every, args.stop_after),
    };
    if learning.run(&report, &interrupt)? == Outcome::Interrupted {
        return KIND.interrupted(&report, &folder);
    }
    let Learning { trainer, reports, .. } = learning;
    let dictionary = trainer.dictionary().clone();
    drop(trainer);
    finish(&Finish { report, folder, info, signals, dictionary, reports, device })?;
    Ok(Outcome::Done)
}

/// A run at its first iteration, or at its checkpoint.
struct Run {
    folder: RunFolder,
    info: RunInfo,
    signals: Signals,
    trainer: Trainer,
    /// The iterations made.
    reports: Vec<IterationReport>,
}

impl Run {
    fn begin(args: &TrainArgs, device: &Device) -> Result<Self> {
        let settings = &args.settings;
        // All that can be refused is refused before the folder is touched.
        let signals = Signals::open(&args.signals, settings.seed)?;
        let dictionary = first_dictionary(settings, &signals, device)?;
        let trainer = new_trainer(settings, &signals, dictionary.clone())?;
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command_line("dictionary-learning"),
            signals: args.signals.clone(),
            settings: settings.clone(),
            n_rows: signals.split.n_samples(),
        };
        let folder = KIND.begin(&args.out, &info)?;
        Ok(Self { folder, info, signals, trainer, reports: Vec::new() })
    }

    /// Goes on where the checkpoint in a run folder stands.
    fn resume(path: &Path, device: &Device) -> Result<Self> {
        let at = || format!("--resume {}", path.display());
        let (folder, info): (_, RunInfo) = KIND.open(path)?;
        let signals = Signals::open(&info.signals, info.settings.seed)?;
        same_rows(&info.signals.data, "rows", info.n_rows, signals.split.n_samples())?;
        let checkpoint = folder.join(CHECKPOINT);
        let settings = &info.settings;
        let trainer = if !checkpoint.exists() {
            // Stopped before its first checkpoint: from the beginning.
            new_trainer(settings, &signals, first_dictionary(settings, &signals, device)?)?
        } else if let Some(batch) = settings.online {
            let config = online_config(settings, &signals);
            let trainer = OnlineTrainer::load_checkpoint(&checkpoint, config, device).with_context(at)?;
            let feed = feed(&signals, batch, settings.seed, device)?;
            Trainer::Online(Box::new(trainer), Box::new(feed))
        } else {
            let (config, rows) = (train_config(settings, &signals), signals.all(device)?);
            let trainer = DictionaryTrainer::load_checkpoint(&checkpoint, &rows, config).with_context(at)?;
            Trainer::Batch(Box::new(trainer))
        };
        let reports = reports_of(&folder, trainer.iterations()).with_context(at)?;
        Ok(Self { folder, info, signals, trainer, reports })
    }
}

/// The lines of `metrics.jsonl` up to the checkpoint; those after it were written by iterations that are made again, and go.
fn reports_of(folder: &RunFolder, made: usize) -> Result<Vec<IterationReport>> {
    if made == 0 {
        folder.write(METRICS, b"")?;
        return Ok(Vec::new());
    }
    let file = folder.join(METRICS);
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("{}: cannot be read", file.display()))?;
    let lines: Vec<&str> = text.lines().take(made).collect();
    ensure!(
        lines.len() == made,
        "{}: must have a line for each of the {made} iterations of the checkpoint, has {}",
        file.display(),
        lines.len()
    );
    let reports = lines.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>();
    folder.write(METRICS, (lines.join("\n") + "\n").as_bytes())?;
    reports.with_context(|| format!("{}: cannot be read", file.display()))
}

/// How signals are coded.
fn coder(settings: &Settings, n_features: usize) -> SparseCoder {
    let root = (n_features as f64).sqrt();
    SparseCoder {
        method: settings.method().into(),
        n_nonzero: settings.nonzero,
        error: settings.error.map(|rms| ErrorTarget::Absolute(rms * root)),
        nonnegative: false,
    }
}

/// The dictionary that training starts from.
fn first_dictionary(settings: &Settings, signals: &Signals, device: &Device) -> Result<Dictionary> {
    ensure!(
        settings.nonzero <= settings.atoms,
        "--nonzero: must be at most --atoms, {}, got {}",
        settings.atoms,
        settings.nonzero
    );
    let n_features = signals.split.n_features();
    let config = DictionaryConfig {
        method: settings.method().into(),
        image: signals.image.map(|image| [image.height, image.width, image.channels]),
        remove_mean: signals.remove_mean,
        ..DictionaryConfig::new(settings.atoms, n_features, settings.nonzero)
    };
    let philox = Philox::new(settings.seed, streams::START);
    let (how, rows) = match settings.start {
        StartArg::Dct => (Start::Dct, Tensor::zeros((1, n_features), candle::DType::F32, device)?),
        StartArg::Random => (Start::RandomSignals, signals.some(settings.atoms, settings.seed, device)?),
    };
    let atoms = start(&how, settings.atoms, &rows, philox).context("--start")?;
    Ok(Dictionary::from_tensor(config, atoms)?)
}

/// A trainer at its first iteration.
fn new_trainer(settings: &Settings, signals: &Signals, dictionary: Dictionary) -> Result<Trainer> {
    let philox = Philox::new(settings.seed, streams::TRAINER);
    let device = dictionary.atoms().device().clone();
    Ok(match settings.online {
        Some(batch) => {
            let config = online_config(settings, signals);
            let feed = feed(signals, batch, settings.seed, &device)?;
            Trainer::Online(Box::new(OnlineTrainer::new(dictionary, config, philox)?), Box::new(feed))
        }
        None => {
            let (config, rows) = (train_config(settings, signals), signals.all(&device)?);
            Trainer::Batch(Box::new(DictionaryTrainer::new(dictionary, &rows, config, philox)?))
        }
    })
}

/// How a dictionary is learned from all signals.
fn train_config(settings: &Settings, signals: &Signals) -> TrainConfig {
    TrainConfig {
        rule: settings.rule.into(),
        group: settings.group.unwrap_or(settings.atoms),
        iterations: settings.iterations,
        coder: coder(settings, signals.split.n_features()),
        replace: settings.replace.into(),
        min_uses: settings.min_uses,
        max_coherence: Some(settings.max_coherence),
        coherence_penalty: settings.coherence_penalty,
        ..TrainConfig::default()
    }
}

/// How a dictionary is learned from minibatches.
fn online_config(settings: &Settings, signals: &Signals) -> OnlineConfig {
    OnlineConfig {
        coder: coder(settings, signals.split.n_features()),
        replace: settings.replace.into(),
        max_coherence: Some(settings.max_coherence),
        ..OnlineConfig::default()
    }
}

/// A run whose iterations are all made.
struct Finish {
    report: Report,
    folder: RunFolder,
    info: RunInfo,
    signals: Signals,
    dictionary: Dictionary,
    reports: Vec<IterationReport>,
    device: Device,
}

/// The dictionary, its measure, pictures, curves and the model card.
fn finish(run: &Finish) -> Result<()> {
    let Finish { report, folder, info, signals, dictionary, reports, device } = run;
    let started = Instant::now();
    let settings = &info.settings;
    dictionary.save_pretrained(folder.path())?;
    let curves = learning_curves(reports, signals.unit(), settings.error.is_some())?;
    folder.write("curves.svg", curves.as_bytes())?;
    let coder = dictionary.config().coder();
    let first = first_dictionary(settings, signals, device)?;
    let before = measure(signals, &coder, first.atoms())?;
    let after = measure(signals, &coder, dictionary.atoms())?;
    let pictured = match signals.image.filter(draw::can_draw) {
        Some(tile) => {
            Some(draw::atoms(dictionary.atoms(), &after.energy, tile, &folder.join("dictionary.png"))?)
        }
        None => None,
    };
    let training: f64 = reports.iter().map(|line| line.seconds).sum();
    let total = training + started.elapsed().as_secs_f64();
    let coherence = dictionary.mutual_coherence()?;
    let result = results(run, &before, &after, coherence, total)?;
    folder.write_json("results.json", &result)?;
    let card = Card {
        info,
        config: dictionary.config(),
        data: &signals.words(),
        unit: signals.unit(),
        device: &describe(device),
        seconds: total,
        before: &before,
        after: &after,
        coherence,
        pictured,
    };
    folder.write("README.md", card.text().as_bytes())?;
    report.line(&format!(
        "RMSE {:.4} → {:.4} {}, {:.2} atoms a code, {} of {} atoms used",
        before.rmse,
        after.rmse,
        signals.unit(),
        after.mean_count,
        after.used,
        settings.atoms
    ))?;
    report.line(&format!("{} in {}", folder.path().display(), seconds(total)))?;
    report.finish(&result)
}

/// What programs read.
fn results(
    run: &Finish,
    before: &Measure,
    after: &Measure,
    coherence: f64,
    total: f64,
) -> Result<serde_json::Value> {
    let Finish { folder, info, signals, dictionary, reports, device, .. } = run;
    let settings = &info.settings;
    let training: f64 = reports.iter().map(|line| line.seconds).sum();
    let summary = Summary {
        mean_count: after.mean_count,
        seconds: Some(training),
        seconds_total: total,
        ..Summary::new(folder.path(), dictionary.config(), signals.unit(), device)
    };
    summary.with(json!({
        "data": signals.name,
        "n_rows": info.n_rows,
        "error": settings.error,
        "rule": settings.online.map_or_else(|| name_of(&settings.rule), |_| "online".to_owned()),
        "iterations": settings.iterations,
        "rmse_start": before.rmse,
        "rmse": after.rmse,
        "used": after.used,
        "coherence": coherence,
        "seconds_iteration": training / reports.len().max(1) as f64,
        "seed": settings.seed,
    }))
}

/// Errors, coherence and, where codes end at an error, their lengths by iteration, as SVG.
fn learning_curves(reports: &[IterationReport], unit: &str, to_error: bool) -> Result<String> {
    let panel = |title: &str, y_label: &str, name: &str, y: &dyn Fn(&IterationReport) -> f64| Panel {
        title: title.to_owned(),
        x_label: "iteration".to_owned(),
        y_label: y_label.to_owned(),
        log_y: false,
        curves: vec![Curve {
            name: name.to_owned(),
            points: reports.iter().map(|line| (line.iteration as f64, y(line))).collect(),
        }],
    };
    let rmse = format!("root mean square, {unit}");
    let mut panels = vec![panel("error of the codes", &rmse, "RMSE", &|line| line.rmse)];
    if to_error {
        panels.push(panel("length of the codes", "atoms a code", "mean", &|line| line.mean_count));
    }
    panels.push(panel("coherence", "largest cosine of two atoms", "coherence", &|line| line.coherence));
    curves::draw(&panels)
}
