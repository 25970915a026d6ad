//! The first Ctrl-C or SIGTERM ends every stage of every command, with its code.
#![cfg(target_os = "linux")]
use super::{CHECKPOINT, TRAININGS, checkpoint, figures, folder, has_leftovers, names};
use crate::common::{
    DAE, DBN_ON_CPU, DICTIONARY_ON_CPU, Program, SPARSE_AUTOENCODER, SPARSE_CODING, TSNE, weights,
};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Code 130 after Ctrl-C, 143 after SIGTERM, 129 when the terminal has gone.
const SIGNALS: [(&str, i32); 3] = [("-INT", 130), ("-TERM", 143), ("-HUP", 129)];

/// Those that programs started here do not ignore: below `nohup` they go on after SIGHUP.
fn signals() -> Vec<(&'static str, i32)> {
    let ignores_hup = mask("self", "SigIgn:").is_some_and(|ignored| ignored & 1 != 0);
    SIGNALS.into_iter().filter(|(name, _)| !(ignores_hup && *name == "-HUP")).collect()
}

/// One of them for the `i`-th of several cases.
fn one_of(i: usize) -> (&'static str, i32) {
    let all = signals();
    all[i % all.len()]
}

/// Signals by the bits of a line of `/proc/PROCESS/status`.
fn mask(process: &str, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mask = status.lines().find_map(|text| text.strip_prefix(line))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn spawn(program: &Program, at: &Path, args: &[&str]) -> Child {
    let mut command = program.command(at, args);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until something holds; the process must not end before.
fn wait_until(process: &mut Child, what: &str, holds: impl Fn(&Child) -> bool) {
    while !holds(process) {
        if let Some(status) = process.try_wait().unwrap() {
            let said = std::io::read_to_string(process.stderr.take().unwrap()).unwrap();
            panic!("the process ended before {what}, {status}: {said}")
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process has handlers for all signals; exit codes are 128 above their numbers.
fn listens(process: &Child) -> bool {
    let all = signals().iter().fold(0, |all, (_, code)| all | 1 << (code - 129));
    mask(&process.id().to_string(), "SigCgt:").is_some_and(|caught| caught & all == all)
}

/// Sends a signal, and gives the exit code and standard error.
fn signal(process: Child, signal: &str) -> (Option<i32>, String) {
    assert!(Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap().success());
    let output = process.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A pipe that nobody writes to holds whoever opens it.
#[test]
fn while_rows_are_read() {
    let folder = folder();
    let at = folder.path();
    fifo(&at.join("x.csv"));
    for training in &TRAININGS {
        training.program.succeed(at, &training.args(&["--out", &training.name().replace(' ', "_")]));
    }
    let before = names(at);
    let of = |kind: &str| {
        TRAININGS.iter().find(|training| training.kind == kind).unwrap().name().replace(' ', "_")
    };
    let mut lines: Vec<(&Program, Vec<String>)> = Vec::new();
    for training in &TRAININGS {
        let args = [training.begin, training.settings, &["--data", "x.csv", "--out", "run"]].concat();
        lines.push((&training.program, args.into_iter().map(str::to_owned).collect()));
    }
    let uses: [(&Program, &str, &[&str]); 6] = [
        (&DBN_ON_CPU, "dbn train", &["encode", "evaluate", "reconstruct"]),
        (&DBN_ON_CPU, "dbn fine-tune", &["predict", "evaluate"]),
        (&DAE, "dae train", &["encode", "evaluate", "reconstruct"]),
        (&SPARSE_AUTOENCODER, "sparse-autoencoder train", &["encode", "evaluate", "reconstruct"]),
        (&SPARSE_CODING, "sparse-coding train", &["encode", "evaluate", "reconstruct"]),
        (&TSNE, "tsne train", &["transform"]),
    ];
    for (program, kind, commands) in uses {
        for command in commands {
            let run = of(kind);
            let mut line = vec![*command, &run, "--data", "x.csv"];
            if *command == "transform" {
                line.extend(["--out", "y.csv"]);
            }
            lines.push((program, line.into_iter().map(str::to_owned).collect()));
        }
    }
    let run = of("dictionary-learning train");
    lines.push((
        &DICTIONARY_ON_CPU,
        ["encode", &run, "--data", "x.csv", "--out", "codes.npz"].map(str::to_owned).to_vec(),
    ));
    for (program, line) in [(&SPARSE_AUTOENCODER, "self-taught"), (&SPARSE_CODING, "self-taught")] {
        lines.push((program, [line, "--data", "x.csv", "--out", "run"].map(str::to_owned).to_vec()));
    }
    let line = ["evaluate", "--data", "x.csv", &of("tsne train")];
    lines.push((&TSNE, line.map(str::to_owned).to_vec()));
    for (i, (program, line)) in lines.iter().enumerate() {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let (name, code) = one_of(i);
        let mut process = spawn(program, at, &line);
        wait_until(&mut process, "it listened", listens);
        let (got, said) = signal(process, name);
        assert_eq!(got, Some(code), "{line:?}: {said}");
        // A folder that was asked for may have been made; nothing is in it.
        let after: Vec<_> = names(at);
        assert_eq!(after, before, "{line:?}");
        let _ = std::fs::remove_dir(at.join("run"));
    }
}

#[test]
fn while_a_run_learns_and_the_checkpoint_stands() {
    for (i, training) in TRAININGS.iter().enumerate() {
        let (folder, name) = (folder(), training.name());
        let (at, run) = (folder.path(), folder.path().join("run"));
        let (option, code) = one_of(i);
        let mut process = spawn(&training.program, at, &training.endless(&["--out", "run"]));
        let metrics = run.join("metrics.jsonl");
        wait_until(&mut process, "it learned", |_| {
            std::fs::metadata(&metrics).is_ok_and(|found| found.len() > 0)
        });
        let (got, said) = signal(process, option);
        assert_eq!(got, Some(code), "{name}: {said}");
        let want = format!("interrupted; resume with: {} --resume run", training.kind);
        assert_eq!(said.trim_end().lines().last(), Some(&want[..]), "{name}");
        assert!(!checkpoint(&run).is_empty() && !has_leftovers(at), "{name}");
        let again = training.resume("run", &["--stop-after-steps", "1"]);
        assert_eq!(training.program.fail(at, &again, 130), want, "{name}");
    }
}

/// A step over many rows that takes longer than a loop is given is not waited for; the checkpoint
/// before it stands.
#[test]
fn while_a_step_takes_long() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let n = 40_000;
    let values: Vec<f32> = (0..n * 32).map(|i| (i * 7919 % 10_007) as f32 / 10_007.).collect();
    crate::common::write_npy(&at.join("x.npy"), [n, 32], &values);
    let args = ["train", "--data", "x.npy", "--atoms", "2000", "--nonzero", "24", "--epochs", "1000"];
    let mut process = spawn(&DICTIONARY_ON_CPU, at, &[&args[..], &["--out", "run"]].concat());
    wait_until(&mut process, "its first checkpoint", |_| at.join("run").join(CHECKPOINT).exists());
    // The step begins.
    std::thread::sleep(Duration::from_millis(200));
    let (got, said) = signal(process, "-INT");
    assert_eq!(got, Some(130), "{said}");
    assert!(said.contains("interrupted; resume with: dictionary-learning train --resume run"), "{said}");
    assert!(!has_leftovers(at) && !checkpoint(&at.join("run")).is_empty());
}

/// A pipe in the place of the results holds a run whose training is done. It goes on to the figures
/// of one that was left alone.
#[test]
fn after_a_run_has_learned_and_its_results_are_still_to_come() {
    for (i, training) in TRAININGS.iter().enumerate() {
        let (folder, name) = (folder(), training.name());
        let (at, run) = (folder.path(), folder.path().join("run"));
        training.program.succeed(at, &training.args(&["--out", "whole"]));
        training.program.fail(at, &training.args(&["--out", "run", "--stop-after-steps", "1"]), 130);
        fifo(&run.join("results.json"));
        let mut process = spawn(&training.program, at, &training.resume("run", &[]));
        wait_until(&mut process, "it had a model", |_| run.join("config.json").exists());
        let (option, code) = one_of(i);
        let (got, said) = signal(process, option);
        assert_eq!(got, Some(code), "{name}: {said}");
        let want = format!("interrupted; resume with: {} --resume run", training.kind);
        assert_eq!(said.trim_end().lines().last(), Some(&want[..]), "{name}");
        assert!(!has_leftovers(at) && !run.join("README.md").exists(), "{name}");
        std::fs::remove_file(run.join("results.json")).unwrap();
        training.program.succeed(at, &training.resume("run", &[]));
        assert!(weights(&run) == weights(&at.join("whole")), "{name}");
        assert_eq!(figures(&run), figures(&at.join("whole")), "{name}");
    }
}

/// Work of minutes that is no training of a run: searching neighbours, measuring, estimating,
/// filling in, learning to classify.
#[test]
fn while_something_else_takes_minutes() {
    let folder = folder();
    let at = folder.path();
    let (n, width) = (150_000, 40);
    let values: Vec<f32> = (0..n * width).map(|i| (i * 7919 % 10_007) as f32 / 10_007.).collect();
    crate::common::write_npy(&at.join("many.npy"), [n, width], &values);
    crate::common::write_npy(&at.join("layout.npy"), [n, 2], &values[..2 * n]);
    let image = image::GrayImage::from_fn(400, 400, |x, y| image::Luma([(x * y % 251) as u8]));
    image.save(at.join("image.png")).unwrap();
    let before = names(at);
    let likelihood = ["evaluate", "base", "--data", "mnist-sample", "--log-likelihood", "--log-z", "ais"];
    let lines: [(&Program, &[&str]); 7] = [
        (&TSNE, &["train", "--data", "many.npy", "--out", "run"]),
        (&TSNE, &["evaluate", "--data", "many.npy", "layout.npy"]),
        (&DBN_ON_CPU, &[&likelihood[..], &["--chains", "50000", "--temperatures", "100000"]].concat()),
        (&SPARSE_CODING, &["inpaint", "image.png", "--missing", "0.5"]),
        (&DICTIONARY_ON_CPU, &["denoise", "image.png", "--sigma", "20", "--epochs", "100000"]),
        (&SPARSE_CODING, &["self-taught", "--seeds", "1000"]),
        (&SPARSE_AUTOENCODER, &["self-taught", "--seeds", "1000"]),
    ];
    for (i, (program, line)) in lines.iter().enumerate() {
        let (option, code) = one_of(i);
        let mut process = spawn(program, at, line);
        wait_until(&mut process, "it listened", listens);
        // Some way in.
        std::thread::sleep(Duration::from_millis(700));
        let (got, said) = signal(process, option);
        assert_eq!(got, Some(code), "{line:?}: {said}");
        assert_eq!(names(at), before, "{line:?}");
    }
}

/// A pipe that nobody reads holds whoever writes to it.
#[test]
fn while_a_file_is_written() {
    let folder = folder();
    let at = folder.path();
    for name in ["x.npy", "x.csv"] {
        fifo(&at.join(name));
        for (option, code) in signals() {
            let args = ["encode", "base", "--data", "mnist-sample", "--out", name];
            let mut process = spawn(&DBN_ON_CPU, at, &args);
            wait_until(&mut process, "it listened", listens);
            let (got, said) = signal(process, option);
            assert_eq!((got, said), (Some(code), String::new()), "{name}");
            assert!(!has_leftovers(at));
        }
    }
}

/// What was written of a file goes with the process.
#[test]
fn while_a_file_is_half_written() {
    let folder = folder();
    let at = folder.path();
    let before = names(at);
    for (i, name) in ["x.npy", "x.csv"].into_iter().enumerate() {
        let crops = ["--data", "natural-images", "--colour", "grey", "--patch", "28", "--patches", "9000000"];
        let mut process = spawn(
            &DBN_ON_CPU,
            at,
            &[&["encode", "base", "--split", "train", "--out", name], &crops[..]].concat(),
        );
        wait_until(&mut process, "it wrote", |_| has_leftovers(at));
        let (option, code) = one_of(i);
        let (got, said) = signal(process, option);
        assert_eq!(got, Some(code), "{name}: {said}");
        assert_eq!(names(at), before, "{name}");
    }
}

/// With `--json` what is to be known of an interrupted run is an object, wherever the signal comes.
#[test]
fn a_program_is_told_how_to_resume() {
    let folder = folder();
    let (at, training) = (folder.path(), &TRAININGS[0]);
    training.program.fail(at, &training.args(&["--out", "run", "--stop-after-steps", "1"]), 130);
    fifo(&at.join("run/results.json"));
    let mut command = training.program.command(at, &training.resume("run", &["--json"]));
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(&mut process, "it had a model", |_| at.join("run/config.json").exists());
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["interrupted"], true);
    assert_eq!(json["resume"].as_str(), Some("dbn train --resume run"));
}
