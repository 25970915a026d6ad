//! What training commands have in common: how a run begins, is interrupted and resumed, and what it
//! leaves behind.
//!
//! | module   | what                                                                          |
//! |----------|-------------------------------------------------------------------------------|
//! | [`args`] | options of every training command, and what `--resume` refuses                |
//! | [`info`] | `run.json`: what a run was asked for                                          |
//! | `checkpoints` | the last two checkpoints of a run |
//! | `epochs` | the loop over epochs and minibatches, or over iterations, with its checkpoints |
//! | [`card`] | the README.md of a run folder                                                 |
//!
//! A training command names its types by a [`Run`] and goes through four steps:
//!
//! ```text
//! Asked::new(args, given)        the input and settings of the command line, or those of the run to resume
//! asked.open(n_rows, new, load)  a Session: folder, run.json and first checkpoint, or the trainer of the last checkpoint
//! session.epochs(…)              trains; an interrupt ends it with a checkpoint
//! session.finish(results, card)  results.json, README.md and the last line
//! ```
//!
//! All that can be refused is refused before the folder is touched, so a command opens its data
//! between the first two steps.
pub mod args;
pub mod card;
pub mod checkpoints;
mod epochs;
pub mod info;
mod trained;

pub use args::{FeedArgs, SessionArgs};
pub use card::{Card, Picture};
pub use epochs::{Ended, Epochs, Made, Pace, Place};
pub use info::{Kind, RunInfo};
pub use trained::Trained;

use crate::device::describe;
use crate::ranks::{self, Ranks};
use crate::report::{Outcome, Report};
use crate::run_folder::{Existing, RunFolder, command_line};
use crate::stages::{self, Stage};
use anyhow::{Context, Result, anyhow, bail, ensure};
use candle::Device;
use chandlery::Trainer;
use chandlery_datasets::{Feed, Fingerprint, Split, count};
use chandlery_ops::Group;
use epochs::Watch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One line for each epoch or iteration.
pub const METRICS: &str = "metrics.jsonl";

/// The types of a training command.
pub trait Run {
    /// Where rows come from, and the model that the run begins with where there is one: fields of
    /// `run.json`.
    type Input: info::Input;
    /// What is made of them: the field `settings` of `run.json`.
    type Settings: Serialize + DeserializeOwned;
    /// What learns.
    type Trainer: Trainer;
    /// A line of `metrics.jsonl`.
    type Line: Clone + Serialize + DeserializeOwned;
    /// What a checkpoint holds beside the trainer and the place in the epochs; [`Nothing`] for
    /// most.
    type Extra: Default + Serialize + DeserializeOwned;
    /// Its names.
    const KIND: Kind;
}

/// Writes a checkpoint of a trainer that is so far.
fn store<R: Run>(trainer: &R::Trainer, path: &Path, place: &PlaceOf<R>) -> candle::Result<()> {
    trainer.save(path, &serde_json::to_value(place).map_err(candle::Error::wrap)?)
}

/// How far a run is.
pub type PlaceOf<R> = Place<<R as Run>::Line, <R as Run>::Extra>;

/// No extra state in checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// The rows that a run learns from.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    /// The data set, as the user named it.
    pub data: &'a str,
    /// How many there are, before any are held out.
    pub n: usize,
    /// What tells them from others.
    pub fingerprint: Fingerprint,
}

/// A command line that was read: what a new run is asked for, or what the run to resume was asked
/// for.
pub struct Asked<R: Run> {
    /// Where the program says how it goes.
    pub report: Report,
    /// Where it computes.
    pub device: Device,
    /// Where rows come from.
    pub input: R::Input,
    /// What is made of them.
    pub settings: R::Settings,
    args: SessionArgs,
    ranks: Ranks,
    resumed: Option<Resumed>,
}

struct Resumed {
    folder: RunFolder,
    version: String,
    command: String,
    directory: Option<PathBuf>,
    n_rows: usize,
    fingerprint: Fingerprint,
    /// Whether the settings were changed by an option that resuming allows.
    extended: bool,
}

impl<R: Run> Asked<R> {
    /// Meets the other processes where there are several, opens the device, and reads `run.json` of the run to resume; `given` is what the command
    /// line says.
    ///
    /// # Errors
    /// When the device is missing, `given` is refused, or the folder holds no run of this command.
    pub fn new(args: &SessionArgs, given: impl FnOnce() -> Result<(R::Input, R::Settings)>) -> Result<Self> {
        let report = Report::new(args.common.json);
        let (ranks, device) = ranks::join(&args.ranks, &args.common)?;
        let (input, settings, resumed) = match &args.resume {
            None => {
                let (input, settings) = given()?;
                (input, settings, None)
            }
            Some(path) => {
                let (folder, info) = R::KIND.open::<R::Input, R::Settings>(path)?;
                let RunInfo { version, command, directory, input, settings, n_rows, fingerprint, .. } = info;
                (
                    input,
                    settings,
                    Some(Resumed {
                        folder,
                        version,
                        command,
                        directory,
                        n_rows,
                        fingerprint,
                        extended: false,
                    }),
                )
            }
        };
        stages::from_here_on(Stage::Preparation);
        Ok(Self { report, device, input, settings, args: args.clone(), ranks, resumed })
    }

    /// The folder of the run to resume; none for a new run.
    pub fn resumed(&self) -> Option<&RunFolder> {
        self.resumed.as_ref().map(|resumed| &resumed.folder)
    }

    /// The same for another trainer.
    pub fn by<Q: Run<Input = R::Input, Settings = R::Settings>>(self) -> Asked<Q> {
        let Self { report, device, input, settings, args, ranks, resumed } = self;
        Asked { report, device, input, settings, args, ranks, resumed }
    }

    /// Minibatches of the rows that are trained on, in the order of `seed`: of as many rows as
    /// `option` says, or of all where there are fewer, which is said. The feed's configuration has
    /// how many it became.
    ///
    /// # Errors
    /// When the device has no room for a minibatch, or standard output refuses.
    pub fn feed(
        &self,
        args: FeedArgs,
        train: &Split,
        (option, batch): (&'static str, usize),
        seed: u64,
    ) -> Result<Feed> {
        let _stage = stages::enter(Stage::Data);
        let n = train.n_samples();
        if batch > n {
            let words = format!("minibatches of {n}, all rows that are trained on, in place of {batch}");
            self.report.line(&words)?;
        }
        Feed::new(train, &self.device, args.config(batch.min(n), seed)).context(option)
    }

    /// Changes the settings of a run that is resumed, by an option that resuming allows.
    pub fn extend(&mut self, change: impl FnOnce(&mut R::Settings)) {
        if let Some(resumed) = &mut self.resumed {
            resumed.extended = true;
            change(&mut self.settings);
        }
    }

    /// Extends a run that is resumed to the number of iterations that `--iterations` gives, which
    /// [`check_more`] refuses if it has made them.
    pub fn extend_iterations(
        &mut self,
        iterations: Option<usize>,
        change: impl FnOnce(&mut R::Settings, usize),
    ) {
        if let Some(all) = iterations {
            self.extend(|settings| change(settings, all));
        }
    }

    /// Extends a run that is resumed to the number of epochs that `--epochs` gives; `planned` is
    /// that of the run. Returns whether it was extended.
    ///
    /// # Errors
    /// When the number is not above that of the run.
    pub fn extend_epochs(
        &mut self,
        epochs: Option<usize>,
        planned: impl FnOnce(&R::Settings) -> usize,
        change: impl FnOnce(&mut R::Settings, usize),
    ) -> Result<bool> {
        let (Some(all), Some(_)) = (epochs, &self.resumed) else {
            return Ok(false);
        };
        let planned = planned(&self.settings);
        ensure!(
            all > planned,
            "--epochs: must be above the {planned} of this run, got {all}; leave it out to finish these {planned}"
        );
        self.extend(|settings| change(settings, all));
        Ok(true)
    }

    /// Begins the run with the trainer that `new` makes, of this rank of a group or to be taken into
    /// it, or goes on with the one that `load` reads from the path of a checkpoint.
    ///
    /// # Errors
    /// When the data is not what it was when the run began, the folder is not empty, a trainer is
    /// refused, or the disk refuses.
    pub fn open(
        self,
        rows: Rows<'_>,
        new: impl FnOnce(&R::Settings, &Device, &Group) -> Result<R::Trainer>,
        load: impl Fn(&R::Settings, &Path, &Device, &Group) -> Result<(R::Trainer, Value)>,
    ) -> Result<Session<R>> {
        let Self { report, device, input, settings, args, ranks, resumed } = self;
        ranks.agree(|| asked_for::<R>(&input, &settings, &rows, resumed.is_some()))?;
        let group = ranks.group(&device)?;
        let began = Instant::now();
        let (folder, info, trainer, place, before) = match resumed {
            None => {
                let existing = if args.overwrite { Existing::Overwrite } else { Existing::Refuse };
                if ranks.is_first() {
                    RunFolder::check(args.out.as_deref(), existing)?;
                }
                let mut trainer = new(&settings, &device, &group)?.in_group(&group)?;
                trainer.gather()?;
                let info = RunInfo {
                    kind: R::KIND.command.to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    command: command_line(R::KIND.program()),
                    directory: std::env::current_dir().ok(),
                    input,
                    settings,
                    n_rows: rows.n,
                    fingerprint: rows.fingerprint,
                };
                // What comes before the first step, such as a search for neighbours, counts too.
                let place = Place { run_seconds: began.elapsed().as_secs_f64(), ..Place::default() };
                let folder = if ranks.is_first() {
                    let folder = RunFolder::create(R::KIND.folder, args.out.as_deref(), existing)?;
                    checkpoints::begin(
                        &folder,
                        |path| store::<R>(&trainer, path, &place),
                        || folder.write_json(info::FILE, &info),
                    )?;
                    folder
                } else {
                    trainer.join_save()?;
                    RunFolder::of_another(args.out.as_deref().unwrap_or(Path::new("runs")))
                };
                (folder, info, trainer, place, 0.)
            }
            Some(Resumed { folder, version, mut command, directory, n_rows, fingerprint, extended }) => {
                ensure!(
                    n_rows == rows.n,
                    "{} had {} at the start of the run, by {}, and now has {}",
                    rows.data,
                    count(n_rows, "row"),
                    folder.join(info::FILE).display(),
                    rows.n
                );
                if let Some(what) = fingerprint.difference(&rows.fingerprint) {
                    bail!(
                        "--data {}: {what} changed since the start of the run; give back the data that it began with, or begin a new run",
                        rows.data
                    )
                }
                let load = |path: &Path| {
                    let (trainer, place) = load(&settings, path, &device, &group)?;
                    let place: PlaceOf<R> = serde_json::from_value(place)
                        .map_err(|e| anyhow!("{}: not a checkpoint: {e}", path.display()))?;
                    Ok((trainer, place))
                };
                let (trainer, place) = ranks.first_then(
                    || checkpoints::read(&folder, &report, load),
                    || load(&folder.join(checkpoints::CHECKPOINT)),
                )?;
                let mut trainer = trainer.in_group(&group)?;
                trainer.gather()?;
                ensure!(
                    !(extended && place.converging.converged()),
                    "--epochs: this run must not have been ended by --tolerance, and it was after {}; start a new run with a smaller --tolerance",
                    count(place.epoch, "epoch")
                );
                if extended {
                    command = format!("{command}\n{}", command_line(R::KIND.program()));
                }
                let kind = R::KIND.command.to_owned();
                let info =
                    RunInfo { kind, version, command, directory, input, settings, n_rows, fingerprint };
                if extended && !ranks.is_first() {
                    trainer.join_save()?;
                }
                if extended && ranks.is_first() {
                    // The checkpoint has the schedules of the extended run, so it comes first.
                    checkpoints::write(&folder, |path| store::<R>(&trainer, path, &place))?;
                    folder.write_json(info::FILE, &info)?;
                }
                if ranks.is_first() {
                    // Lines after the checkpoint were written by steps that are made again.
                    folder.write_json_lines(METRICS, &place.reports)?;
                }
                let before = place.run_seconds;
                (folder, info, trainer, place, before)
            }
        };
        let spent = before + began.elapsed().as_secs_f64();
        R::KIND.say_if_interrupted(report, &folder);
        stages::from_here_on(Stage::Training);
        Ok(Session {
            report,
            device,
            data: rows.data.to_owned(),
            folder,
            info,
            watch: Watch::start(spent, args.checkpoint_every, args.stop_after_steps, ranks),
            trainer,
            place,
            group,
            earlier: before,
        })
    }
}

/// What the processes of a run must have been asked for alike, a line each.
fn asked_for<R: Run>(
    input: &R::Input,
    settings: &R::Settings,
    rows: &Rows<'_>,
    resumes: bool,
) -> Result<String> {
    let mut lines = format!("version: {}\ncommand: {}\n", env!("CARGO_PKG_VERSION"), R::KIND.command);
    for (of, value) in
        [("input", serde_json::to_value(input)?), ("settings", serde_json::to_value(settings)?)]
    {
        let fields = value.as_object().into_iter().flatten();
        fields.for_each(|(name, value)| lines += &format!("{of} {name}: {value}\n"));
    }
    lines += &format!("--resume: {resumes}\nrows: {} of {}\n", rows.n, rows.data);
    lines += &format!("content of the data: {}\n", serde_json::to_string(&rows.fingerprint)?);
    Ok(lines)
}

/// Refuses to extend a run to fewer iterations than it has made; `which` says which are counted.
///
/// # Errors
/// When it has made as many.
pub fn check_more(all: Option<usize>, made: usize, which: &str) -> Result<()> {
    match all {
        Some(all) if all <= made => {
            bail!("--iterations: must be above the {made} that this run has made{which}, got {all}")
        }
        _ => Ok(()),
    }
}

/// A run with its trainer.
pub struct Session<R: Run> {
    /// Where the program says how it goes.
    pub report: Report,
    /// Where it computes.
    pub device: Device,
    /// Where it leaves its files.
    pub folder: RunFolder,
    /// What it was asked for.
    pub info: RunInfo<R::Input, R::Settings>,
    /// What learns.
    pub trainer: R::Trainer,
    /// How far it is.
    pub place: PlaceOf<R>,
    /// The data set, as the user named it.
    data: String,
    watch: Watch,
    /// Of the ranks that train.
    group: Group,
    /// Seconds of the processes before this one.
    earlier: f64,
}

impl<R: Run> Session<R> {
    /// Goes on with another trainer, which comes into the group.
    ///
    /// # Errors
    /// When a rank is gone, or memory is short.
    pub fn go_on_with(&mut self, trainer: R::Trainer) -> Result<()> {
        self.trainer = trainer.in_group(&self.group)?;
        Ok(())
    }

    /// Says what is trained on what, where, and into which folder.
    ///
    /// # Errors
    /// When standard output refuses.
    pub fn announce(&self, what: &str, seed: u64) -> Result<()> {
        self.report.line(&format!(
            "{what}, on {}, seed {seed}, into {}",
            describe(&self.device),
            self.folder.path().display()
        ))
    }

    /// Writes the checkpoint; the old one stands until the new one is whole, and then as the
    /// previous one.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn save(&mut self) -> Result<()> {
        self.place.run_seconds = self.watch.run_seconds();
        let began = Instant::now();
        self.trainer.gather()?;
        if self.watch.ranks.is_first() {
            checkpoints::write(&self.folder, |path| store::<R>(&self.trainer, path, &self.place))?;
        } else {
            self.trainer.join_save()?;
        }
        self.watch.checkpoint_written(began);
        Ok(())
    }

    /// Ends the training: the trainer, whose memory the caller can free, and what is left of the
    /// session. Of several processes rank 0 goes on alone, and the others wait for it.
    pub fn trained(self) -> (R::Trainer, Trained<R>) {
        let Self { report, device, folder, info, trainer, mut place, earlier, watch, .. } = self;
        watch.ranks.first_goes_on();
        place.run_seconds = watch.run_seconds();
        stages::from_here_on(Stage::Measures);
        (trainer, Trained { report, device, folder, info, place, earlier })
    }

    /// Says how to resume the run, which was interrupted.
    ///
    /// # Errors
    /// When standard output refuses.
    pub fn interrupted(&self) -> Result<Outcome> {
        R::KIND.interrupted(&self.report, &self.folder)
    }
}
