//! The command `train`: a run from its first iteration, or from its checkpoint, to its folder.
use super::args::{Settings, SignalArgs, TrainArgs};
use super::card::{Card, name_of};
use super::choices::{Method, ReplaceArg, Rule, StartArg};
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
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainer, OnlineConfig, OnlineTrainer, Start, TrainConfig,
    distinct_signals, start,
};
use chandlery_ops::ErrorTarget;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// In a run folder, the dictionary that a run began with, where that was given.
const START: &str = "checkpoint/start";
/// The most rows that the first dictionary is drawn from.
const MOST_CANDIDATES: usize = 1 << 20;

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
        Some(path) => Run::resume(path, args.iterations, &device)?,
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
        let (mut settings, mut of_signals) = (args.settings.clone(), args.signals.clone());
        settings.iterations = args.iterations.unwrap_or(settings.iterations);
        if let Some(name) = &settings.init {
            settings.atoms = given(name, &Device::Cpu)?.config().n_atoms;
        }
        check(&settings)?;
        if settings.fixed_dc {
            ensure!(
                of_signals.remove_mean != Some(true),
                "--fixed-dc: no row would use a constant atom with --remove-mean; leave out one of them"
            );
            of_signals.remove_mean = Some(false);
        }
        // All that can be refused is refused before the folder is touched.
        let signals = Signals::open(&of_signals, settings.seed)?;
        let dictionary = first_dictionary(&settings, &signals, device, None)?;
        let trainer = new_trainer(&settings, &signals, dictionary.clone())?;
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: command_line("dictionary-learning"),
            signals: of_signals,
            settings,
            n_rows: signals.split.n_samples(),
        };
        let folder = KIND.begin(&args.out, &info)?;
        if info.settings.init.is_some() {
            dictionary.save_pretrained(&folder.join(START))?;
        }
        Ok(Self { folder, info, signals, trainer, reports: Vec::new() })
    }

    /// Goes on where the checkpoint in a run folder stands, to so many iterations in all, where another number is asked for.
    fn resume(path: &Path, iterations: Option<usize>, device: &Device) -> Result<Self> {
        let at = || format!("--resume {}", path.display());
        let (folder, mut info): (_, RunInfo) = KIND.open(path)?;
        let signals = Signals::open(&info.signals, info.settings.seed)?;
        same_rows(&info.signals.data, "rows", info.n_rows, signals.split.n_samples())?;
        let checkpoint = folder.join(CHECKPOINT);
        let settings = &info.settings;
        let trainer = if !checkpoint.exists() {
            // Stopped before its first checkpoint: from the beginning.
            let first = first_dictionary(settings, &signals, device, Some(folder.path()))?;
            new_trainer(settings, &signals, first)?
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
        if let Some(all) = iterations {
            let made = trainer.iterations();
            ensure!(all > made, "--iterations: must be above the {made} that this run has made, got {all}");
            info.settings.iterations = all;
            info.command = format!("{}\n{}", info.command, command_line("dictionary-learning"));
        }
        let reports = reports_of(&folder, trainer.iterations()).with_context(at)?;
        folder.write_json(KIND.file, &info)?;
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
        nonnegative: settings.nonnegative,
    }
}

/// Refuses options that contradict each other, or that would be taken no notice of.
fn check(settings: &Settings) -> Result<()> {
    let Settings { atoms, nonzero, replace, .. } = *settings;
    ensure!(nonzero <= atoms, "--nonzero: must be at most --atoms, {atoms}, got {nonzero}");
    if let Some(group) = settings.group {
        ensure!(group <= atoms, "--group: must be at most --atoms, {atoms}, got {group}");
        ensure!(
            settings.rule != Rule::Mod,
            "--group: has no say with --rule mod, which updates all atoms at once; leave out one of them"
        );
    }
    let flags = [
        ("--max-coherence", settings.max_coherence.is_some()),
        ("--min-uses", settings.min_uses.is_some()),
        ("--max-idle", settings.max_idle.is_some()),
    ];
    for (flag, given) in flags {
        ensure!(
            !given || replace != ReplaceArg::None,
            "{flag}: has no say with --replace none, which keeps every atom; leave out one of them"
        );
    }
    ensure!(
        !settings.nonnegative || matches!(settings.method(), Method::Omp | Method::Ols),
        "--nonnegative: --pursuit must be omp or ols with it, got {}",
        name_of(&settings.method())
    );
    Ok(())
}

/// A dictionary to start from.
fn given(name: &str, device: &Device) -> Result<Dictionary> {
    Dictionary::from_pretrained(name, device).with_context(|| format!("--init {name}"))
}

/// Rows to draw the first dictionary from: enough that as many as there are atoms differ, or all.
fn candidates(settings: &Settings, signals: &Signals, device: &Device, philox: Philox) -> Result<Tensor> {
    let all = signals.split.n_samples().min(MOST_CANDIDATES);
    // Many a row is flat, or like others.
    let mut n = 16 * settings.atoms + 1024;
    loop {
        let rows = signals.some(n.min(all), settings.seed, device)?;
        if n >= all || distinct_signals(&rows, settings.atoms, philox)?.dim(0)? == settings.atoms {
            return Ok(rows);
        }
        n = n.saturating_mul(8);
    }
}

/// The dictionary that training starts from. A given one is read from `folder`, once a run has kept it there.
fn first_dictionary(
    settings: &Settings,
    signals: &Signals,
    device: &Device,
    folder: Option<&Path>,
) -> Result<Dictionary> {
    let n_features = signals.split.n_features();
    let config = DictionaryConfig {
        method: settings.method().into(),
        image: signals.image.map(|image| [image.height, image.width, image.channels]),
        remove_mean: signals.remove_mean,
        ..DictionaryConfig::new(settings.atoms, n_features, settings.nonzero)
    };
    let philox = Philox::new(settings.seed, streams::START);
    let none = Tensor::zeros((1, n_features), DType::F32, device)?;
    let (how, rows) = match (&settings.init, settings.start) {
        (Some(name), _) => {
            let name = folder.map_or(name.clone(), |folder| folder.join(START).display().to_string());
            let atoms = given(&name, device)?.atoms().clone();
            let values = atoms.dim(1)?;
            ensure!(
                values == n_features,
                "--init {name}: its atoms must have the {n_features} values of a row, got {values}"
            );
            (Start::Given(atoms), none)
        }
        (None, StartArg::Dct) => (Start::Dct, none),
        (None, StartArg::Random) => (Start::RandomSignals, candidates(settings, signals, device, philox)?),
    };
    let mut atoms = start(&how, settings.atoms, &rows, philox).context("--start")?;
    if settings.fixed_dc {
        let constant = Tensor::full(1. / (n_features as f32).sqrt(), (1, n_features), device)?;
        atoms = Tensor::cat(&[constant, atoms.narrow(0, 1, settings.atoms - 1)?], 0)?;
    }
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
    let usual = TrainConfig::default();
    TrainConfig {
        rule: settings.rule.into(),
        group: settings.group.unwrap_or(settings.atoms),
        iterations: settings.iterations,
        coder: coder(settings, signals.split.n_features()),
        replace: settings.replace.into(),
        min_uses: settings.min_uses.unwrap_or(usual.min_uses),
        max_coherence: max_coherence(settings, usual.max_coherence),
        coherence_penalty: settings.coherence_penalty,
        n_fixed: usize::from(settings.fixed_dc),
    }
}

/// The limit on the cosine of two atoms; 1 is none, which a rounding must not pass.
fn max_coherence(settings: &Settings, usual: Option<f64>) -> Option<f64> {
    settings.max_coherence.or(usual).filter(|&limit| limit < 1.)
}

/// How a dictionary is learned from minibatches.
fn online_config(settings: &Settings, signals: &Signals) -> OnlineConfig {
    let usual = OnlineConfig::default();
    OnlineConfig {
        coder: coder(settings, signals.split.n_features()),
        forgetting: settings.forgetting.unwrap_or(usual.forgetting),
        sweeps: settings.sweeps.unwrap_or(usual.sweeps),
        replace: settings.replace.into(),
        max_idle: settings.max_idle.unwrap_or(usual.max_idle),
        max_coherence: max_coherence(settings, usual.max_coherence),
        n_fixed: usize::from(settings.fixed_dc),
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
    let first = first_dictionary(settings, signals, device, Some(folder.path()))?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dictionary::args::Cli;
    use clap::Parser;

    #[test]
    fn no_first_atom_is_noise_where_enough_rows_differ() {
        // Patches of digits: four of ten are flat, and many strokes are alike.
        let flags = ["dictionary-learning", "--data", "mnist-sample", "--side", "8", "--patches", "5000"];
        let args = Cli::try_parse_from(flags).unwrap().train;
        let signals = Signals::open(&args.signals, 0).unwrap();
        let atoms = first_dictionary(&args.settings, &signals, &Device::Cpu, None).unwrap().atoms().clone();
        let rows = signals.all(&Device::Cpu).unwrap();
        let lengths = rows.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
        let cosines =
            rows.broadcast_div(&(lengths + 1e-9).unwrap()).unwrap().matmul(&atoms.t().unwrap()).unwrap();
        let like = cosines.max(0).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(like.len(), 256);
        assert!(like.iter().all(|&like| like > 0.9999), "atoms that are no rows: {like:?}");
    }
}
