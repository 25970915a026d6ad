//! The command `train`: a dictionary from all signals at once, or from minibatches.
use super::args::{Settings, TrainArgs};
use super::plan::{self, START, first_dictionary};
use super::signals::Signals;
use super::{card, streams};
use crate::atoms::given::given_by;
use crate::atoms::summary::Summary;
use crate::atoms::{self, draw};
use crate::choices::name_of;
use crate::patch_rows::Input;
use crate::report::{Outcome, figure, of_data, seconds};
use crate::session::{Asked, Ended, Epochs, FeedArgs, Kind, Made, Nothing, Run, RunInfo, Session, Trained};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::dictionary::{Dictionary, DictionaryTrainer, OnlineDictionaryTrainer};
use chandlery::pictures::can_draw;
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::{FullBatchTrainer, MinibatchTrainer, Model, Philox};
use chandlery_datasets::count;
use chandlery_datasets::preparation::StepConfig;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::marker::PhantomData;
use std::time::Instant;

/// What an epoch came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: usize,
    /// Root mean square error in the unit of the signals: of new codes over the new atoms; for
    /// minibatches of each one's codes over the atoms before it, over the pass.
    pub rmse: f64,
    /// Mean number of atoms of these codes.
    pub mean_count: f64,
    /// Atoms in at least one code.
    pub used: usize,
    /// Atoms that were replaced.
    pub replaced: usize,
    /// Largest |cosine| of two atoms.
    pub coherence: f64,
    /// Time of the epoch.
    pub seconds: f64,
}

/// The command with the trainer `T`: of all signals at once, or of minibatches.
struct Train<T>(PhantomData<T>);

type Batch = Train<DictionaryTrainer>;
type Online = Train<OnlineDictionaryTrainer>;

/// Its names.
pub const KIND: Kind = Kind { command: "dictionary-learning train", folder: "dictionary-learning" };

impl Run for Batch {
    type Input = Input;
    type Settings = Settings;
    type Trainer = DictionaryTrainer;
    type Line = EpochReport;
    type Extra = Nothing;
    const KIND: Kind = KIND;
}

impl Run for Online {
    type Input = Input;
    type Settings = Settings;
    type Trainer = OnlineDictionaryTrainer;
    type Line = EpochReport;
    type Extra = Nothing;
    const KIND: Kind = KIND;
}

/// Trains a dictionary, or resumes that, and leaves a run folder.
pub fn train(args: &TrainArgs) -> Result<Outcome> {
    let mut asked = Asked::<Batch>::new(&args.session, || given(args))?;
    asked.extend_epochs(args.epochs, |settings| settings.epochs, |settings, all| settings.epochs = all)?;
    let signals = Signals::open(&asked.input.rows, &asked.settings.prepare, asked.settings.seed)?;
    if asked.settings.online { from_minibatches(asked.by(), &signals) } else { from_all(asked, &signals) }
}

/// What the command line asks for.
fn given(args: &TrainArgs) -> Result<(Input, Settings)> {
    let mut settings = args.settings.clone();
    settings.epochs = args.epochs.unwrap_or(settings.epochs);
    if let Some(name) = &settings.start_from {
        settings.atoms = given_by("--start-from", name, &Device::Cpu)?.config().n_atoms;
    }
    plan::check(&settings)?;
    let takes_mean = settings.prepare.steps().contains(&StepConfig::RowMean);
    if settings.fixed_dc {
        ensure!(
            !takes_mean,
            "--fixed-dc: no row would use a constant atom with --prepare row-mean; leave out one of them"
        );
        settings.prepare.choose([]);
    }
    if settings.nonnegative_atoms {
        ensure!(
            !takes_mean,
            "--nonnegative-atoms: rows without their means are not sums of such atoms; leave out row-mean of --prepare"
        );
        settings.prepare.choose([]);
    }
    Ok((Input { rows: args.input.clone() }, settings))
}

/// Learns from all signals at once; an epoch is a step.
fn from_all(asked: Asked<Batch>, signals: &Signals) -> Result<Outcome> {
    let new = |settings: &Settings, device: &Device| {
        let first = first_dictionary(settings, signals, device, None)?;
        let philox = Philox::new(settings.seed, streams::TRAINER);
        let config = plan::train_config(settings, signals)?;
        Ok(DictionaryTrainer::new(first, &signals.rows.raw(device)?, config, philox)?)
    };
    let rows = signals.rows.of_run()?;
    let mut session = asked.open(
        rows,
        |settings, device, _| of_data(&signals.rows.name, new(settings, device)),
        |settings, path, device, _| {
            let raw = signals.rows.raw(device)?;
            let (mut trainer, place) = DictionaryTrainer::load(path, &raw, device)?;
            trainer.set_iterations(settings.epochs)?;
            Ok((trainer, place))
        },
    )?;
    begin(&session, signals)?;
    let (n, to_error) = (session.info.settings.epochs, session.info.settings.error.is_some());
    let until = session.info.settings.converge.rule();
    let ended = session.iterations(n, until, |trainer, done| {
        let started = Instant::now();
        let made = trainer.step().with_context(|| format!("epoch {}", done + 1))?;
        let Some(made) = made else { return Ok(None) };
        let line = EpochReport {
            epoch: made.iteration,
            rmse: made.rmse,
            mean_count: made.mean_count,
            used: made.used,
            replaced: made.replaced,
            coherence: made.coherence,
            seconds: started.elapsed().as_secs_f64(),
        };
        let words = words(&line, n, signals.unit(), to_error);
        Ok(Some(Made { iterations: 1, loss: Some(loss(&line, to_error)), line, words }))
    })?;
    if ended == Outcome::Interrupted {
        return session.interrupted();
    }
    let (trainer, run) = session.trained();
    let dictionary = trainer.best().clone();
    drop(trainer);
    finish(&run, signals, &dictionary)
}

/// Learns from minibatches in a seeded order.
fn from_minibatches(mut asked: Asked<Online>, signals: &Signals) -> Result<Outcome> {
    let Settings { batch, seed, .. } = asked.settings;
    let mut feed = asked.feed(FeedArgs::default(), &signals.rows.split, ("--batch", batch), seed)?;
    asked.settings.batch = feed.config().batch;
    let new = |settings: &Settings, device: &Device| {
        let first = first_dictionary(settings, signals, device, None)?;
        let philox = Philox::new(settings.seed, streams::TRAINER);
        Ok(OnlineDictionaryTrainer::new(first, plan::online_config(settings, signals)?, philox)?)
    };
    let rows = signals.rows.of_run()?;
    let mut session = asked.open(
        rows,
        |settings, device, _| of_data(&signals.rows.name, new(settings, device)),
        |_, path, device, _| Ok(OnlineDictionaryTrainer::load(path, device)?),
    )?;
    begin(&session, signals)?;
    let (n, to_error) = (session.info.settings.epochs, session.info.settings.error.is_some());
    let until = session.info.settings.converge.rule();
    let epochs = Epochs {
        feed: &mut feed,
        n,
        earlier: 0,
        report_every: None,
        until,
        label: &|epoch| format!("epoch {}/{n}", epoch + 1),
    };
    let ended = session.epochs(epochs, |trainer, metrics, pace, _| {
        let line = EpochReport {
            epoch: pace.epoch + 1,
            rmse: metrics.rmse,
            mean_count: metrics.mean_count,
            used: metrics.used,
            replaced: metrics.replaced as usize,
            coherence: trainer.dictionary().mutual_coherence()?,
            seconds: pace.seconds,
        };
        let words = words(&line, n, signals.unit(), to_error);
        Ok(Ended { loss: loss(&line, to_error), line, words, stop: false })
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
    if settings.start_from.is_some() && !session.folder.join(START).join("config.json").exists() {
        let first = first_dictionary(settings, signals, &session.device, None)?;
        session.folder.save_model(START, |path| first.save_pretrained(path))?;
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

/// What falls as a dictionary is learned: the error, or the atoms of a code where codes end at an
/// error.
fn loss(line: &EpochReport, to_error: bool) -> f64 {
    if to_error { line.mean_count } else { line.rmse }
}

/// An epoch in one line; where codes end at an error, how many atoms that takes is what is learned.
fn words(line: &EpochReport, total: usize, unit: &str, to_error: bool) -> String {
    let width = total.to_string().len();
    let EpochReport { epoch, rmse, mean_count, used, replaced, coherence, .. } = line;
    let length = if to_error { format!("  {mean_count:>6.2} atoms per code") } else { String::new() };
    format!(
        "epoch {epoch:>width$}/{total}  RMSE {:>8} {unit}{length}  {used:>4} atoms used  {replaced:>3} replaced  \
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
    R: Run<Input = Input, Settings = Settings, Line = EpochReport>,
{
    let RunInfo { settings, n_rows, .. } = &run.info;
    let reports = &run.place.reports;
    run.folder.save_model("", |path| dictionary.save_pretrained(path))?;
    run.draw_curves(&learning_curves(reports, signals.unit(), settings.error.is_some()))?;
    let coder = dictionary.config().coder();
    let first = first_dictionary(settings, signals, &run.device, Some(run.folder.path()))?;
    let before = signals.measure(&coder, first.atoms())?;
    let after = signals.measure(&coder, dictionary.atoms())?;
    let config = dictionary.config();
    let pictured = match config.image.filter(|tile| can_draw(tile) && tile.n_features() == config.n_features)
    {
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
    let in_epochs: f64 = reports.iter().map(|line| line.seconds).sum();
    let results = summary.with(json!({
        "data": signals.rows.name,
        "n_rows": n_rows,
        "error": settings.error,
        "rule": if settings.online { "online".to_owned() } else { name_of(&settings.rule()) },
        "epochs": settings.epochs,
        "rmse_start": before.rmse,
        "rmse": after.rmse,
        "used": after.used,
        "coherence": coherence,
        "seconds_epoch": in_epochs / reports.len().max(1) as f64,
    }))?;
    let measured = card::Measured { before: &before, after: &after, coherence };
    let pictures: Vec<_> = pictured.into_iter().map(atoms::card::picture).collect();
    let card = card::of(dictionary.config(), signals, settings, &measured, &pictures)?;
    run.finish(settings.seed, results, &card)
}

/// Errors, coherence and, where codes end at an error, their lengths by epoch.
fn learning_curves(reports: &[EpochReport], unit: &str, to_error: bool) -> Vec<Panel> {
    let panel = |title: &str, y_label: &str, name: &str, y: &dyn Fn(&EpochReport) -> f64| {
        let points = reports.iter().map(|line| (line.epoch as f64, y(line)));
        Panel::new(title, "epoch", y_label, vec![Curve::new(name, points)])
    };
    let rmse = format!("root mean square, {unit}");
    let mut panels = vec![panel("error of the codes", &rmse, "RMSE", &|line| line.rmse)];
    if to_error {
        panels.push(panel("length of the codes", "atoms per code", "mean", &|line| line.mean_count));
    }
    panels.push(panel("coherence", "largest cosine of two atoms", "coherence", &|line| line.coherence));
    panels
}
