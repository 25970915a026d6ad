//! Processes that are killed without warning.
use super::{CHECKPOINT, TRAININGS, Training, figures, folder, has_leftovers};
use crate::common::weights;
use std::path::Path;
use std::process::Stdio;

/// Starts a command and kills it once it has written so many checkpoints, or has ended; whether it
/// was killed.
fn kill_after(training: &Training, at: &Path, args: &[&str], checkpoints: usize) -> bool {
    let file = at.join("killed").join(CHECKPOINT);
    // A checkpoint is another file each time.
    let stamp = || std::fs::metadata(&file).and_then(|found| found.modified()).ok();
    let (mut last, mut seen) = (stamp(), 0);
    let mut command = training.program.command(at, args);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while seen < checkpoints && process.try_wait().unwrap().is_none() {
        let now = stamp();
        seen += usize::from(now != last);
        last = now;
    }
    let ended = process.try_wait().unwrap().is_some();
    process.kill().unwrap();
    process.wait().unwrap();
    !ended
}

/// A run that is killed again and again, and goes on each time, ends in the bits of one that was
/// left alone. Each step writes a checkpoint, so that most moments lie within one.
#[test]
fn a_run_that_was_killed_at_any_moment_goes_on_from_there() {
    for training in &TRAININGS {
        let (folder, name) = (folder(), training.name());
        let at = folder.path();
        training.program.succeed(at, &training.args(&["--out", "whole"]));
        let first = training.args(&["--out", "killed", "--checkpoint-every", "0"]);
        assert!(kill_after(training, at, &first, 1), "{name}: ended before its first checkpoint");
        for checkpoints in 1..4 {
            kill_after(training, at, &training.resume("killed", &["--checkpoint-every", "0"]), checkpoints);
        }
        training.program.succeed(at, &training.resume("killed", &[]));
        assert!(weights(&at.join("killed")) == weights(&at.join("whole")), "{name}: other weights");
        assert_eq!(figures(&at.join("killed")), figures(&at.join("whole")), "{name}");
        assert!(!has_leftovers(at), "{name}");
    }
}

/// What a process leaves that is killed while it writes its first checkpoint, before and after it
/// has said what the run is.
#[test]
fn a_run_that_was_killed_before_its_first_checkpoint_is_begun_again_by_its_command() {
    for training in &TRAININGS {
        let (folder, name) = (folder(), training.name());
        let (at, run) = (folder.path(), folder.path().join("run"));
        std::fs::create_dir_all(run.join("checkpoint")).unwrap();
        std::fs::write(run.join("checkpoint/.next.safetensors.Ab12Cd.part"), "half").unwrap();
        let err = training.program.fail(at, &training.resume("run", &[]), 1);
        let ended = "ended before its first checkpoint; begin it again by the command that began it";
        assert!(err.ends_with(ended), "{name}: {err}");
        training.program.succeed(at, &training.args(&["--out", "run"]));
        assert!(!has_leftovers(&run), "{name}");
        let whole = weights(&run);
        let others = super::names(&run).into_iter();
        for file in others.filter(|file| !["run.json", "files.txt"].contains(&&file[..])) {
            std::fs::remove_file(run.join(file)).unwrap();
        }
        std::fs::write(run.join("checkpoint/next.safetensors"), "whole").unwrap();
        for folder in ["history", "start"] {
            let _ = std::fs::remove_dir(run.join(folder));
        }
        let err = training.program.fail(at, &training.resume("run", &[]), 1);
        assert!(err.ends_with(ended), "{name}: {err}");
        training.program.succeed(at, &training.args(&["--out", "run"]));
        assert!(weights(&run) == whole, "{name}");
    }
}
