//! Whole commands, as a user types them: wall time from the command to the prompt, by stage.
use super::common::TimingArgs;
use super::table::{Column, Table};
use crate::interrupt;
use crate::report::Report;
use crate::stages::{FIELD, Seconds, Stage};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use std::env::consts::EXE_SUFFIX;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// Options of `bench runs`.
#[derive(Debug, Args)]
pub struct RunsArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Data set: a name, a folder or a file. Default: what each program reads when it is not told,
    /// the built-in digits or photographs.
    #[arg(long, value_name = "DATA")]
    data: Option<String>,
    /// Parts to run, several separated by commas. evaluate and fine-tune use the run of dbn, which
    /// is made before, untimed, if it is not among them. Default: all.
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

/// A command that is timed, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// `tsne`.
    Tsne,
    /// `dbn`.
    Dbn,
    /// `dbn evaluate` of the run of `dbn`.
    Evaluate,
    /// `dbn fine-tune --classify` of the run of `dbn`.
    FineTune,
    /// `dae`.
    Dae,
    /// `sparse-autoencoder`.
    SparseAutoencoder,
    /// `sparse-coding`.
    SparseCoding,
    /// `dictionary-learning`.
    DictionaryLearning,
}

/// The folder of the run that other commands use.
const NET: &str = "dbn";

impl Part {
    /// The program, what it is told to do, and the folder of its run where it makes one.
    fn command(self) -> (&'static str, &'static [&'static str], Option<&'static str>) {
        match self {
            Self::Tsne => ("tsne", &[], Some("tsne")),
            Self::Dbn => ("dbn", &[], Some(NET)),
            Self::Evaluate => ("dbn", &["evaluate", NET], None),
            Self::FineTune => ("dbn", &["fine-tune", NET, "--classify"], Some("fine-tune")),
            Self::Dae => ("dae", &[], Some("dae")),
            Self::SparseAutoencoder => ("sparse-autoencoder", &[], Some("sparse-autoencoder")),
            Self::SparseCoding => ("sparse-coding", &[], Some("sparse-coding")),
            Self::DictionaryLearning => ("dictionary-learning", &[], Some("dictionary-learning")),
        }
    }

    fn uses_net(self) -> bool {
        matches!(self, Self::Evaluate | Self::FineTune)
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    command: String,
    data: Option<String>,
    device: String,
    /// Median of the wall time, the least and the largest.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// Of the run of the median.
    stage_seconds: Seconds,
    /// The rest of it: before the program begins, and after it has written its results.
    outside_seconds: f64,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("command", -30, |row| row.command.clone()),
    Column("wall", 8, |row| format!("{:.3}", row.seconds)),
    Column("min", 8, |row| format!("{:.3}", row.seconds_min)),
    Column("max", 8, |row| format!("{:.3}", row.seconds_max)),
    Column("training", 8, |row| of(row, Stage::Training)),
    Column("start", 7, |row| of(row, Stage::Start)),
    Column("data", 7, |row| of(row, Stage::Data)),
    Column("prepar.", 7, |row| of(row, Stage::Preparation)),
    Column("checkp.", 7, |row| of(row, Stage::Checkpoints)),
    Column("measures", 8, |row| of(row, Stage::Measures)),
    Column("pictures", 8, |row| of(row, Stage::Pictures)),
    Column("files", 7, |row| of(row, Stage::Files)),
    Column("outside", 7, |row| format!("{:.3}", row.outside_seconds)),
];

fn of(row: &Row, stage: Stage) -> String {
    format!("{:.3}", row.stage_seconds.of(stage))
}

pub(super) fn run(args: &RunsArgs) -> Result<()> {
    let parts: &[Part] = if args.only.is_empty() { Part::value_variants() } else { &args.only };
    let programs = Programs::beside_this_one(parts)?;
    let folder = tempfile::Builder::new().prefix("chandlery-runs-").tempdir().context("temporary folder")?;
    let at = folder.path().to_owned();
    interrupt::say_at_end(move || drop(std::fs::remove_dir_all(at)));
    let runs = Runs { args, programs, folder: folder.path() };
    let report = Report::new(args.timing.common.json);
    report.line(&format!(
        "whole commands with default settings, seconds, on {}; stages are those of the run of the median, outside: before and after the program's own clock",
        args.timing.common.device
    ))?;
    let mut table = Table::new(&report, COLUMNS)?;
    for &part in parts {
        if part.uses_net() && !folder.path().join(NET).exists() {
            runs.once(Part::Dbn)?;
        }
        table.add(runs.timed(part)?)?;
    }
    table.finish()?;
    interrupt::take_words();
    Ok(folder.close()?)
}

/// The folder of the programs.
struct Programs(PathBuf);

impl Programs {
    /// That of this program, which must hold all that are needed.
    fn beside_this_one(parts: &[Part]) -> Result<Self> {
        let this = std::env::current_exe().context("the path of this program is not known")?;
        let programs = Self(this.parent().unwrap_or(Path::new("")).to_owned());
        for part in parts {
            let path = programs.path(part.command().0);
            ensure!(
                path.is_file(),
                "{}: this program must stand beside bench; build all of them with `cargo build --bins`",
                path.display()
            );
        }
        Ok(programs)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{EXE_SUFFIX}"))
    }
}

struct Runs<'a> {
    args: &'a RunsArgs,
    programs: Programs,
    /// Where the programs run.
    folder: &'a Path,
}

impl Runs<'_> {
    /// What so many runs of a command took.
    fn timed(&self, part: Part) -> Result<Row> {
        let (program, told, _) = part.command();
        let mut made = (0..self.args.timing.repeats).map(|_| self.once(part)).collect::<Result<Vec<_>>>()?;
        made.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let (seconds, stages) = made[made.len() / 2].clone();
        Ok(Row {
            command: [&[program], told].concat().join(" "),
            data: self.args.data.clone(),
            device: self.args.timing.common.device.to_string(),
            seconds,
            seconds_min: made[0].0,
            seconds_max: made[made.len() - 1].0,
            outside_seconds: seconds - stages.total(),
            stage_seconds: stages,
        })
    }

    /// Runs a command to its end: wall time, and what it says of its stages. Its run replaces the
    /// one before.
    fn once(&self, part: Part) -> Result<(f64, Seconds)> {
        let (program, told, out) = part.command();
        let mut command = self.command(part)?;
        if let Some(before) = out.map(|out| self.folder.join(out)).filter(|before| before.exists()) {
            std::fs::remove_dir_all(&before).with_context(|| before.display().to_string())?;
        }
        let at = || [&[program], told].concat().join(" ");
        let started = Instant::now();
        let Output { status, stdout, stderr } = command.output().with_context(at)?;
        let wall = started.elapsed().as_secs_f64();
        if !status.success() {
            let stderr = String::from_utf8_lossy(&stderr);
            bail!("{}: {status}: {}", at(), stderr.lines().last().unwrap_or_default())
        }
        let results: Value = serde_json::from_slice(&stdout).with_context(at)?;
        let stages = serde_json::from_value::<Seconds>(results.get(FIELD).cloned().unwrap_or_default());
        Ok((wall, stages.with_context(|| format!("{}: {FIELD} of its --json", at()))?))
    }

    fn command(&self, part: Part) -> Result<Command> {
        let RunsArgs { timing: TimingArgs { common, .. }, data, .. } = self.args;
        let (program, told, out) = part.command();
        let mut command = Command::new(self.programs.path(program));
        command.current_dir(self.folder).args(told).arg("--json");
        command.args(["--device", &common.device.to_string()]);
        if let Some(threads) = common.threads.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        if let Some(data) = data {
            // Names are no paths; programs run in another folder.
            let is_path = !chandlery_datasets::is_name(data);
            let data = if is_path { std::path::absolute(data)? } else { data.into() };
            command.arg("--data").arg(data);
        }
        if let Some(out) = out {
            command.args(["--out", out]);
        }
        Ok(command)
    }
}
