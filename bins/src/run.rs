//! What runs have in common, whatever they train: how one begins, goes on after an interrupt, and when it writes checkpoints.
use crate::interrupt::Interrupt;
use crate::report::{Outcome, Report};
use crate::run_folder::{Existing, RunFolder};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The checkpoint of a run, in its folder.
pub const CHECKPOINT: &str = "checkpoint/trainer.safetensors";
/// One line an epoch, or an iteration.
pub const METRICS: &str = "metrics.jsonl";

/// Where a run goes.
#[derive(Debug, Clone, Args)]
pub struct OutArgs {
    /// Folder of the run; a new one under runs/, named by the time, when left out.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Start over in an --out folder that holds a former run.
    #[arg(long)]
    pub overwrite: bool,
}

/// What tells one kind of run from another: the names it goes by and what is said of folders that hold none.
#[derive(Debug)]
pub struct Kind {
    /// What one types to begin such a run: the program and its sub-command.
    pub command: &'static str,
    /// What the name of a new folder begins with.
    pub folder: &'static str,
    /// The file of what a run was asked for, from which it can go on.
    pub file: &'static str,
    /// Said where that file is missing.
    pub missing: &'static str,
    /// Said where it holds something else.
    pub unreadable: &'static str,
}

impl Kind {
    /// Makes the folder of a new run, with what it was asked for and a place for its checkpoint.
    ///
    /// # Errors
    /// As [`RunFolder::create`], and when the disk refuses.
    pub fn begin(&self, out: &OutArgs, info: &impl Serialize) -> Result<RunFolder> {
        let existing = if out.overwrite { Existing::Overwrite } else { Existing::Refuse };
        let folder = RunFolder::create(self.folder, out.out.as_deref(), existing)?;
        folder.write_json(self.file, info)?;
        let checkpoints = folder.join("checkpoint");
        std::fs::create_dir_all(&checkpoints)
            .with_context(|| format!("{}: cannot make", checkpoints.display()))?;
        Ok(folder)
    }

    /// The folder of a former run and what it was asked for.
    ///
    /// # Errors
    /// When there is no such folder, or it holds no run of this kind.
    pub fn open<Info: DeserializeOwned>(&self, path: &Path) -> Result<(RunFolder, Info)> {
        let at = || format!("--resume {}", path.display());
        let folder = RunFolder::open(path).with_context(at)?;
        let file = folder.join(self.file);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{}: {}: {}", at(), self.missing, file.display()))?;
        let info = serde_json::from_str(&text)
            .with_context(|| format!("{}: {}", file.display(), self.unreadable))?;
        Ok((folder, info))
    }

    /// Says how to go on with a run that was interrupted.
    ///
    /// # Errors
    /// When standard output refuses.
    pub fn interrupted(&self, report: &Report, folder: &RunFolder) -> Result<Outcome> {
        let resume = format!("{} --resume {}", self.command, folder.path().display());
        eprintln!("interrupted; go on with: {resume}");
        report.finish(&json!({ "interrupted": true, "out": folder.path(), "resume": resume }))?;
        Ok(Outcome::Interrupted)
    }
}

/// Refuses to go on with data that has other rows (`what`) than when the run began.
///
/// # Errors
/// When the numbers differ.
pub fn same_rows(data: &str, what: &str, began: usize, now: usize) -> Result<()> {
    ensure!(began == now, "--resume: {data} had {began} {what} when the run began, now it has {now}");
    Ok(())
}

/// Leaves in `metrics.jsonl` the lines of the checkpoint alone: those after it were written by steps that are made again.
///
/// # Errors
/// When the disk refuses.
pub fn rewrite_metrics(folder: &RunFolder, reports: &[impl Serialize]) -> Result<()> {
    let mut lines = String::new();
    for report in reports {
        lines += &serde_json::to_string(report)?;
        lines.push('\n');
    }
    folder.write(METRICS, lines.as_bytes())
}

/// How far a run of epochs is, beside what its trainer knows; kept in the checkpoint. `R` is a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place<R> {
    /// Epochs that are done, of the layer or stage under way where there are several.
    pub epoch: usize,
    /// Minibatches of the epoch under way that are done.
    pub batch: usize,
    /// Seconds spent on them.
    pub epoch_seconds: f64,
    /// Seconds spent on the run.
    pub run_seconds: f64,
    /// The epochs done so far, of all layers and stages.
    pub reports: Vec<R>,
}

impl<R> Default for Place<R> {
    fn default() -> Self {
        Self { epoch: 0, batch: 0, epoch_seconds: 0., run_seconds: 0., reports: Vec::new() }
    }
}

impl<R> Place<R> {
    /// Moves to the first minibatch of the next epoch.
    pub fn end_epoch(&mut self, report: R) {
        self.reports.push(report);
        self.epoch += 1;
        (self.batch, self.epoch_seconds) = (0, 0.);
    }
}

/// Clocks of a training loop: how long it has run, when it stops, and when a checkpoint is due.
#[derive(Debug)]
pub struct Watch {
    started: Instant,
    saved: Instant,
    /// Seconds of the run before this process.
    before: f64,
    /// Steps of this process.
    steps: usize,
    checkpoint_seconds: f64,
    stop_after: Option<usize>,
}

impl Watch {
    /// Starts the clocks of a run that has lasted `before` seconds already: a checkpoint is due every `checkpoint_seconds`,
    /// and it stops after `stop_after` steps of this process, or never.
    pub fn start(before: f64, checkpoint_seconds: f64, stop_after: Option<usize>) -> Self {
        let now = Instant::now();
        Self { started: now, saved: now, before, steps: 0, checkpoint_seconds, stop_after }
    }

    /// Counts a step, and says whether the loop must stop after it.
    pub fn stops_after_step(&mut self, interrupt: &Interrupt) -> bool {
        self.steps += 1;
        interrupt.asked() || self.stop_after.is_some_and(|n| self.steps >= n)
    }

    /// Whether so long has passed since the last checkpoint that another is due.
    pub fn checkpoint_is_due(&self) -> bool {
        self.saved.elapsed().as_secs_f64() >= self.checkpoint_seconds
    }

    /// A checkpoint was written just now.
    pub fn checkpoint_written(&mut self) {
        self.saved = Instant::now();
    }

    /// Seconds spent on the run, in this process and before it.
    pub fn run_seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const KIND: Kind = Kind {
        command: "bin sub",
        folder: "bin-sub",
        file: "run.json",
        missing: "no run was begun in this folder",
        unreadable: "cannot be read",
    };

    #[test]
    fn a_run_that_was_begun_is_opened_with_what_it_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let out = OutArgs { out: Some(dir.path().join("a")), overwrite: false };
        let folder = KIND.begin(&out, &vec![2, 3]).unwrap();
        assert!(folder.join(CHECKPOINT).parent().unwrap().is_dir());
        let (opened, info) = KIND.open::<Vec<usize>>(folder.path()).unwrap();
        assert_eq!((opened.path(), info), (folder.path(), vec![2, 3]));

        let text = |path: &Path| KIND.open::<Vec<usize>>(path).unwrap_err().to_string();
        let (path, file) = (folder.path().display(), folder.join("run.json"));
        folder.write("run.json", b"{}").unwrap();
        assert_eq!(text(folder.path()), format!("{}: cannot be read", file.display()));
        std::fs::remove_file(&file).unwrap();
        let missing = format!("--resume {path}: no run was begun in this folder: {}", file.display());
        assert_eq!(text(folder.path()), missing);
    }

    #[test]
    fn other_rows_are_refused_with_both_numbers() {
        assert!(same_rows("mnist", "rows", 7, 7).is_ok());
        assert_eq!(
            same_rows("mnist", "rows", 7, 8).unwrap_err().to_string(),
            "--resume: mnist had 7 rows when the run began, now it has 8"
        );
    }

    #[test]
    fn lines_after_the_checkpoint_go() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(dir.path()).unwrap();
        (1..=3).for_each(|n| folder.append_json_line(METRICS, &n).unwrap());
        rewrite_metrics(&folder, &[1, 2]).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join(METRICS)).unwrap(), "1\n2\n");
    }

    #[test]
    fn a_place_within_another_is_read_as_if_its_fields_were_the_others() {
        #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
        struct Outer {
            stage: usize,
            #[serde(flatten)]
            at: Place<f64>,
        }
        // As checkpoints have it, in any order.
        let text = r#"{"epoch":0,"batch":4,"stage":1,"epoch_seconds":0.5,"run_seconds":2.0,"reports":[]}"#;
        let mut outer: Outer = serde_json::from_str(text).unwrap();
        outer.at.end_epoch(0.25);
        let at = Place { epoch: 1, run_seconds: 2., reports: vec![0.25], ..Place::default() };
        assert_eq!(outer, Outer { stage: 1, at });
        assert_eq!(serde_json::from_str::<Outer>(&serde_json::to_string(&outer).unwrap()).unwrap(), outer);
    }

    #[test]
    fn numbers_come_back_from_files_to_the_last_bit() {
        // Of doubles of all magnitudes a parser that rounds in passing gets about one in ten wrong.
        let numbers: Vec<f64> = (0..2000u64)
            .map(|i| f64::from_bits(0x3ff0_0000_0000_0000 + i * 0x0123_4567_89ab % (1 << 58)))
            .collect();
        let at = Place { reports: numbers, ..Place::default() };
        assert_eq!(serde_json::from_str::<Place<f64>>(&serde_json::to_string(&at).unwrap()).unwrap(), at);
    }

    #[test]
    fn a_loop_stops_after_the_steps_it_was_given_and_never_without() {
        let interrupt = Interrupt::default();
        let mut watch = Watch::start(5., 0., Some(2));
        assert_eq!([(); 3].map(|()| watch.stops_after_step(&interrupt)), [false, true, true]);
        assert!(watch.checkpoint_is_due() && watch.run_seconds() >= 5.);
        let mut watch = Watch::start(0., f64::MAX, None);
        assert!(!watch.stops_after_step(&interrupt) && !watch.checkpoint_is_due());
    }
}
