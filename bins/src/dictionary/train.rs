//! The command `train`: a dictionary from all signals at once, or from minibatches.
use super::args::{Settings, SignalArgs, TrainArgs};
use super::plan::{self, START, first_dictionary};
use super::signals::Signals;
use super::{card, streams};
use crate::atoms::given::given_by;
use crate::atoms::summary::Summary;
use crate::atoms::{self, draw};
use crate::choices::name_of;
use crate::report::{Outcome, figure, of_data, seconds};
use crate::session::{
    self, Asked, Ended, Epochs, FeedArgs, Kind, Made, Nothing, Run, RunInfo, Session, Trained, check_more,
};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::dictionary::{Dictionary, DictionaryTrainer, OnlineDictionaryTrainer};
use chandlery::pictures::can_draw;
use chandlery::pictures::curves::{self, Curve, Panel};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Model, Philox};
use chandlery_datasets::count;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::marker::PhantomData;
use std::path::Path;
use std::time::Instant;

/// What an iteration came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationReport {
    /// Counted from 1.
    pub iteration: usize,
    /// Root mean square error in the unit of the signals: of new codes over the new atoms; for minibatches of each one's codes over the
    /// atoms before it, over the pass.
    pub rmse: f64,
    /// Mean number of atoms of these codes.
    pub mean_count: f64,
    /// Atoms in at least one code.
    pub used: usize,
    /// Atoms that were replaced.
    pub replaced: usize,
    /// Largest |cosine| of two atoms.
    pub coherence: f64,
    /// Time of the iteration.
    pub seconds: f64,
}

/// Where signals come from.
#[derive(Debug, Serialize, Deserialize)]
pub struct Input {
    pub signals: SignalArgs,
}

impl session::info::Input for Input {
    fn meant_from(&mut self, base: &Path) {
        self.signals.base = Some(base.to_owned());
    }
}

/// The command with the trainer `T`: of all signals at once, or of minibatches.
struct Train<T>(PhantomData<T>);

type Batch = Train<DictionaryTrainer>;
type Online = Train<OnlineDictionaryTrainer>;

const KIND: Kind = Kind { command: "dictionary-learning train", folder: "dictionary-learning" };

impl Run for Batch {
    type Input = Input;
    type Settings = Settings;
    type Trainer = DictionaryTrainer;
    type Line = IterationReport;
    type Extra = Nothing;
    const KIND: Kind = KIND;
}

impl Run for Online {
    type Input = Input;
    type Settings = Settings;
    type Trainer = OnlineDictionaryTrainer;
    type Line = IterationReport;
    type Extra = Nothing;
    const KIND: Kind = KIND;
}

/// Trains a dictionary, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Batch>::new(&args.session, || given(args))?;
    asked.extend_iterations(args.iterations, |settings, all| settings.iterations = all);
    let signals = Signals::open(&asked.input.signals, asked.settings.seed)?;
    match asked.settings.online {
        None => from_all(asked, &signals, args.iterations),
        Some(batch) => from_minibatches(asked.by(), &signals, args.iterations, batch),
    }
}

/// What the command line asks for.
fn given(args: &TrainArgs) -> Result<(Input, Settings)> {
    let (mut settings, mut signals) = (args.settings.clone(), args.signals.clone());
    settings.iterations = args.iterations.unwrap_or(settings.iterations);
    if let Some(name) = &settings.init {
        settings.atoms = given_by("--init", name, &Device::Cpu)?.config().n_atoms;
    }
    plan::check(&settings)?;
    if settings.fixed_dc {
        ensure!(
            signals.remove_mean != Some(true),
            "--fixed-dc: no row would use a constant atom with --remove-mean; leave out one of them"
        );
        signals.remove_mean = Some(false);
    }
    if settings.nonnegative_atoms {
        ensure!(
            signals.remove_mean != Some(true),
            "--nonnegative-atoms: rows without their means are not sums of such atoms; leave out --remove-mean"
        );
        signals.remove_mean = Some(false);
    }
    Ok((Input { signals }, settings))
}

/// Learns from all signals at once; an iteration is a step.
fn from_all(asked: Asked<Batch>, signals: &Signals, all: Option<usize>) -> Result<Outcome> {
    let new = |settings: &Settings, device: &Device| {
        let first = first_dictionary(settings, signals, device, None)?;
        let philox = Philox::new(settings.seed, streams::TRAINER);
        let config = plan::train_config(settings, signals);
        Ok(DictionaryTrainer::new(first, &signals.rows.split.raw(device)?, config, philox)?)
    };
    let rows = signals.rows.of_run()?;
    let mut session = asked.open(
        rows,
        |settings, device| of_data(&signals.rows.name, new(settings, device)),
        |settings, path, device| {
            let raw = signals.rows.split.raw(device)?;
            let (mut trainer, place) = DictionaryTrainer::load(path, &raw, device)?;
            check_more(all, trainer.last().iteration, "")?;
            trainer.set_iterations(settings.iterations)?;
            Ok((trainer, place))
        },
    )?;
    begin(&session, signals)?;
    let (n, to_error) = (session.info.settings.iterations, session.info.settings.error.is_some());
    let ended = session.iterations(n, |trainer, done| {
        let started = Instant::now();
        let made = trainer.step().with_context(|| format!("iteration {}", done + 1))?;
        let Some(made) = made else { return Ok(None) };
        let line = IterationReport {
            iteration: made.iteration,
            rmse: made.rmse,
            mean_count: made.mean_count,
            used: made.used,
            replaced: made.replaced,
            coherence: made.coherence,
            seconds: started.elapsed().as_secs_f64(),
        };
        let words = words(&line, n, signals.unit(), to_error);
        Ok(Some(Made { iterations: 1, line, words }))
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (trainer, run) = session.trained();
    let dictionary = trainer.best().clone();
    drop(trainer);
    finish(&run, signals, &dictionary)
}

/// Learns from minibatches in a seeded order; an iteration is a pass.
fn from_minibatches(
    mut asked: Asked<Online>,
    signals: &Signals,
    all: Option<usize>,
    batch: usize,
) -> Result<Outcome> {
    let mut feed =
        asked.feed(FeedArgs::default(), &signals.rows.split, ("--online", batch), asked.settings.seed)?;
    asked.settings.online = Some(feed.config().batch);
    let new = |settings: &Settings, device: &Device| {
        let first = first_dictionary(settings, signals, device, None)?;
        let philox = Philox::new(settings.seed, streams::TRAINER);
        Ok(OnlineDictionaryTrainer::new(first, plan::online_config(settings, signals), philox)?)
    };
    let rows = signals.rows.of_run()?;
    let mut session = asked.open(
        rows,
        |settings, device| of_data(&signals.rows.name, new(settings, device)),
        |_, path, device| {
            let (trainer, place) = OnlineDictionaryTrainer::load(path, device)?;
            check_more(all, trainer.batches() / feed.n_batches(), "")?;
            Ok((trainer, place))
        },
    )?;
    begin(&session, signals)?;
    let (n, to_error) = (session.info.settings.iterations, session.info.settings.error.is_some());
    let epochs = Epochs { feed: &mut feed, n, earlier: 0, label: &|pass| format!("pass {}/{n}", pass + 1) };
    let ended = session.epochs(epochs, |trainer, metrics, pace, _| {
        let line = IterationReport {
            iteration: pace.epoch + 1,
            rmse: metrics.rmse,
            mean_count: metrics.mean_count,
            used: metrics.used,
            replaced: metrics.replaced as usize,
            coherence: trainer.dictionary().mutual_coherence()?,
            seconds: pace.seconds,
        };
        let words = words(&line, n, signals.unit(), to_error);
        Ok(Ended { line, words, stop: false })
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (trainer, run) = session.trained();
    let dictionary = trainer.dictionary().clone();
    drop(trainer);
    finish(&run, signals, &dictionary)
}

/// Says what is learned, and keeps a given dictionary that the run begins with.
fn begin<R: Run<Input = Input, Settings = Settings>>(session: &Session<R>, signals: &Signals) -> Result<()> {
    let settings = &session.info.settings;
    // A run that was killed before it kept it does so now.
    if settings.init.is_some() && !session.folder.join(START).join("config.json").exists() {
        let first = first_dictionary(settings, signals, &session.device, None)?;
        first.save_pretrained(&session.folder.of_model(START)?)?;
    }
    let words = format!(
        "dictionary of {} for {} ({}), codes of {}",
        count(settings.atoms, "atom"),
        signals.rows.name,
        signals.words(),
        count(settings.nonzero, "atom")
    );
    session.announce(&words, settings.seed)
}

/// An iteration in one line; where codes end at an error, how many atoms that takes is what is learned.
fn words(line: &IterationReport, total: usize, unit: &str, to_error: bool) -> String {
    let width = total.to_string().len();
    let IterationReport { iteration, rmse, mean_count, used, replaced, coherence, .. } = line;
    let length = if to_error { format!("  {mean_count:>6.2} atoms per code") } else { String::new() };
    format!(
        "iteration {iteration:>width$}/{total}  RMSE {:>8} {unit}{length}  {used:>4} atoms used  {replaced:>3} replaced  \
         coherence {coherence:.3}  {}",
        figure(*rmse, 4),
        milliseconds(line.seconds)
    )
}

/// A short duration for people.
fn milliseconds(s: f64) -> String {
    if s < 1. { format!("{:.1} ms", 1e3 * s) } else { seconds(s) }
}

/// The dictionary, its measure, pictures, curves and the model card.
fn finish<R>(run: &Trained<R>, signals: &Signals, dictionary: &Dictionary) -> Result<Outcome>
where
    R: Run<Input = Input, Settings = Settings, Line = IterationReport>,
{
    let RunInfo { input, settings, n_rows, .. } = &run.info;
    let reports = &run.place.reports;
    dictionary.save_pretrained(&run.folder.of_model("")?)?;
    let curves = learning_curves(reports, signals.unit(), settings.error.is_some())?;
    run.folder.write("curves.svg", curves.as_bytes())?;
    let coder = dictionary.config().coder();
    let first = first_dictionary(settings, signals, &run.device, Some(run.folder.path()))?;
    let before = signals.measure(&coder, first.atoms())?;
    let after = signals.measure(&coder, dictionary.atoms())?;
    let pictured = match signals.rows.split.image.filter(can_draw) {
        Some(tile) => {
            let file = run.folder.file("dictionary.png")?;
            Some(draw::atoms(dictionary.atoms(), &after.energy, tile, &file)?)
        }
        None => None,
    };
    let coherence = dictionary.mutual_coherence()?;
    run.report.line(&format!(
        "RMSE {} → {} {}, {:.2} atoms per code, {} of {} used",
        figure(before.rmse, 4),
        figure(after.rmse, 4),
        signals.unit(),
        after.mean_count,
        after.used,
        count(settings.atoms, "atom")
    ))?;
    let summary = Summary {
        mean_count: after.mean_count,
        ..Summary::new(run.folder.path(), dictionary.config(), signals.unit(), &run.device)
    };
    let in_iterations: f64 = reports.iter().map(|line| line.seconds).sum();
    let results = summary.with(json!({
        "data": signals.rows.name,
        "n_rows": n_rows,
        "error": settings.error,
        "rule": settings.online.map_or_else(|| name_of(&settings.rule()), |_| "online".to_owned()),
        "iterations": settings.iterations,
        "rmse_start": before.rmse,
        "rmse": after.rmse,
        "used": after.used,
        "coherence": coherence,
        "seconds_iteration": in_iterations / reports.len().max(1) as f64,
    }))?;
    let measured = card::Measured { before: &before, after: &after, coherence };
    let pictures: Vec<_> = pictured.into_iter().map(atoms::card::picture).collect();
    let card = card::of(dictionary.config(), &input.signals, signals, settings, &measured, &pictures)?;
    run.finish(settings.seed, results, &card)
}

/// Errors, coherence and, where codes end at an error, their lengths by iteration, as SVG.
fn learning_curves(reports: &[IterationReport], unit: &str, to_error: bool) -> Result<String> {
    let panel = |title: &str, y_label: &str, name: &str, y: &dyn Fn(&IterationReport) -> f64| {
        let points = reports.iter().map(|line| (line.iteration as f64, y(line)));
        Panel::new(title, "iteration", y_label, vec![Curve::new(name, points)])
    };
    let rmse = format!("root mean square, {unit}");
    let mut panels = vec![panel("error of the codes", &rmse, "RMSE", &|line| line.rmse)];
    if to_error {
        panels.push(panel("length of the codes", "atoms per code", "mean", &|line| line.mean_count));
    }
    panels.push(panel("coherence", "largest cosine of two atoms", "coherence", &|line| line.coherence));
    Ok(curves::draw(&panels)?)
}
