//! What every training command does alike: it is resumed, refuses what resuming would ignore, never keeps a diverged model, and leaves the
//! same things behind.
#![allow(clippy::unwrap_used)]
mod common;

use common::{DBN, DBN_ON_CPU, DICTIONARY, Program, metrics, number, results, weights};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A training command, small.
struct Training {
    program: Program,
    /// The sub-command, and the model that it begins with where it needs one.
    begin: &'static [&'static str],
    settings: &'static [&'static str],
    /// The option with which it diverges at once, if it can.
    diverges: Option<&'static [&'static str]>,
    /// Its name in `run.json`.
    kind: &'static str,
    /// Lines of `metrics.jsonl`.
    lines: usize,
}

const ROWS: [&str; 6] = ["--data", "mnist-sample", "--max-rows", "300", "--device", "cpu"];

const TRAININGS: [Training; 6] = [
    Training {
        program: DBN,
        begin: &["train"],
        settings: &["--hidden", "9,7", "--epochs", "2", "--batch", "50"],
        diverges: Some(&["--learning-rate", "1e38"]),
        kind: "dbn train",
        lines: 4,
    },
    Training {
        program: DBN,
        begin: &["fine-tune", "base"],
        settings: &["--classify", "--epochs", "3", "--batch", "50"],
        diverges: Some(&["--learning-rate", "1e38", "--optimizer", "sgd"]),
        kind: "dbn fine-tune",
        lines: 3,
    },
    Training {
        program: DBN,
        begin: &["fine-tune", "base"],
        settings: &["--autoencode", "--epochs", "3", "--batch", "50"],
        diverges: Some(&["--learning-rate", "1e38", "--optimizer", "sgd"]),
        kind: "dbn fine-tune",
        lines: 3,
    },
    Training {
        program: DBN,
        begin: &["up-down", "base"],
        settings: &["--epochs", "2", "--top-epochs", "1", "--batch", "50"],
        diverges: Some(&["--top-learning-rate", "1e38"]),
        kind: "dbn up-down",
        lines: 3,
    },
    Training {
        program: DICTIONARY,
        begin: &["train"],
        settings: &["--atoms", "12", "--nonzero", "2", "--iterations", "3"],
        diverges: None,
        kind: "dictionary-learning train",
        lines: 3,
    },
    Training {
        program: DICTIONARY,
        begin: &["train"],
        settings: &["--atoms", "12", "--nonzero", "2", "--iterations", "3", "--online", "50"],
        diverges: None,
        kind: "dictionary-learning train",
        lines: 3,
    },
];

impl Training {
    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [self.begin, self.settings, &ROWS, more].concat()
    }

    fn resume<'a>(&'a self, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&self.begin[..1], &["--resume", run], more].concat()
    }
}

/// A folder with `base`, a small trained network.
fn folder() -> TempDir {
    static BASE: OnceLock<TempDir> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let base = tempfile::tempdir().unwrap();
        let args = ["train", "--hidden", "9,7", "--epochs", "1", "--batch", "50", "--out", "base"];
        DBN.succeed(base.path(), &[&args[..], &ROWS].concat());
        base
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("base")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(base.path().join("base").join(file), folder.path().join("base").join(file)).unwrap();
    }
    folder
}

fn run_json(run: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(run.join("run.json")).unwrap()).unwrap()
}

fn checkpoint(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("checkpoint/trainer.safetensors")).unwrap()
}

#[test]
fn every_run_leaves_the_same_files_and_names() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let out = format!("run{i}");
        let run = folder.path().join(&out);
        let json = training.program.json(folder.path(), &training.args(&["--out", &out, "--seed", "3"]));
        assert_eq!(json, results(&run), "{:?}", training.begin);
        assert_eq!((json["out"].as_str(), json["seed"].as_u64()), (Some(&out[..]), Some(3)));
        assert!(json["device"].as_str().unwrap().starts_with("cpu") && json["data"].is_string(), "{json}");
        let (training_seconds, seconds) = (number(&json, "training_seconds"), number(&json, "seconds"));
        assert!(0. < training_seconds && training_seconds < seconds, "{json}");
        assert_eq!(metrics(&run).len(), training.lines);
        let info = run_json(&run);
        assert_eq!(info["kind"].as_str(), Some(training.kind));
        let card = std::fs::read_to_string(run.join("README.md")).unwrap();
        for text in ["library_name: candle", "seed 3", "## Results", "## Use", "--seed 3"] {
            assert!(card.contains(text), "{text} in\n{card}");
        }
        assert!(run.join("curves.svg").is_file() || training.kind == "dbn up-down");
    }
}

#[test]
fn a_run_that_is_stopped_at_any_step_resumes_to_the_same_bits() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let whole = format!("whole{i}");
        training.program.succeed(folder.path(), &training.args(&["--out", &whole]));
        for stop in ["1", "2", "7"] {
            let out = format!("stopped{i}-{stop}");
            let stopping = training.args(&["--out", &out, "--stop-after-steps", stop]);
            if training.program.command(folder.path(), &stopping).output().unwrap().status.success() {
                continue; // fewer steps than that
            }
            let err = training.program.fail(
                folder.path(),
                &training.resume(&out, &["--stop-after-steps", "1", "--device", "cpu"]),
                130,
            );
            assert_eq!(err, format!("interrupted; resume with: {} --resume {out}", training.kind));
            training.program.succeed(folder.path(), &training.resume(&out, &["--device", "cpu"]));
            let [want, got] = [&whole, &out].map(|name| folder.path().join(name));
            assert!(weights(&want) == weights(&got), "{:?} stopped after {stop}", training.settings);
            let without_times = |run: &Path| {
                let mut lines = metrics(run);
                for line in &mut lines {
                    line.as_object_mut().unwrap().retain(|name, _| !name.contains("second"));
                }
                lines
            };
            assert_eq!(
                without_times(&want),
                without_times(&got),
                "{:?} stopped after {stop}",
                training.settings
            );
        }
    }
}

#[test]
fn a_diverged_model_never_replaces_a_checkpoint() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let Some(diverges) = training.diverges else { continue };
        // Whether it is noticed at the end of an epoch, at a checkpoint that is due, or when the run is stopped.
        for (j, how) in
            [&[][..], &["--checkpoint-every", "0"], &["--stop-after-steps", "5"]].into_iter().enumerate()
        {
            let out = format!("run{i}-{j}");
            let err = training.program.fail(
                folder.path(),
                &training.args(&[&["--out", &out][..], diverges, how].concat()),
                1,
            );
            assert!(err.contains("became") && err.contains("lower the learning rate"), "{err}");
            let bytes = checkpoint(&folder.path().join(&out));
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            for (name, tensor) in tensors.tensors() {
                if tensor.dtype() == safetensors::Dtype::F32 {
                    let finite = tensor
                        .data()
                        .chunks_exact(4)
                        .all(|b| f32::from_le_bytes(b.try_into().unwrap()).is_finite());
                    assert!(finite, "{:?} {how:?}: {name} is not finite", training.settings);
                }
            }
        }
    }
}

#[test]
fn options_that_resuming_would_ignore_are_refused() {
    let folder = folder();
    for training in &TRAININGS {
        let own: &[&[&str]] = &[
            &["--data", "mnist"],
            &["--label-column", "x"],
            &["--max-rows", "9"],
            &["--colour", "grey"],
            &["--seed", "1"],
            &["--out", "a"],
            &["--overwrite"],
        ];
        for option in own.iter().copied().chain(
            training
                .settings
                .first()
                .map(|_| &training.settings[..1])
                .filter(|o| o[0] == "--classify" || o[0] == "--autoencode"),
        ) {
            training.program.refuse(
                folder.path(),
                &training.resume("base", option),
                &format!("--resume cannot be used with {}", option[0]),
            );
        }
        if training.begin.len() > 1 {
            training.program.refuse(
                folder.path(),
                &training.resume("base", &["base"]),
                "--resume cannot be used with",
            );
        }
    }
}

#[test]
fn the_run_of_another_command_is_refused_with_the_command_that_resumes_it() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let run = format!("run{i}");
        let args = training.args(&["--out", &run, "--stop-after-steps", "1"]);
        training.program.fail(folder.path(), &args, 130);
    }
    for training in &TRAININGS {
        for (i, other) in TRAININGS.iter().enumerate().filter(|(_, other)| other.kind != training.kind) {
            let run = format!("run{i}");
            let err = training.program.fail(folder.path(), &training.resume(&run, &[]), 1);
            let want = format!(
                "--resume {run}: this is a run of `{0}`; resume it with `{0} --resume {run}`",
                other.kind
            );
            assert!(err.ends_with(&want), "{err}");
        }
    }
}

/// Rows of a file of the test's own, with labels in another.
fn own_data(folder: &Path) {
    let rows: Vec<f32> = (0..120 * 9).map(|i| f32::from((i * 7 % 5 > 2) as u8)).collect();
    let labels: Vec<u32> = (0..120).map(|i| i % 3).collect();
    let cpu = &candle::Device::Cpu;
    let write = |name: &str, tensor: candle::Tensor| tensor.write_npy(folder.join(name)).unwrap();
    write("x.npy", candle::Tensor::from_vec(rows, (120, 9), cpu).unwrap());
    write("y.npy", candle::Tensor::from_vec(labels, 120, cpu).unwrap());
}

#[test]
fn a_saved_network_is_used_on_the_data_of_its_run_from_any_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    std::fs::create_dir_all(&here).unwrap();
    std::fs::create_dir_all(&there).unwrap();
    own_data(&here);
    let cpu = ["--device", "cpu"];
    let train = [
        "train",
        "--data",
        "x.npy",
        "--label-column",
        "y.npy",
        "--hidden",
        "5",
        "--epochs",
        "1",
        "--batch",
        "20",
    ];
    DBN.succeed(&here, &[&train[..], &["--out", "run"], &cpu].concat());
    let stopped = ["--out", "stopped", "--stop-after-steps", "1"];
    DBN.fail(&here, &[&train[..], &stopped, &cpu].concat(), 130);
    let run = "../here/run";
    for command in ["encode", "evaluate", "reconstruct"] {
        for at in [&here, &there] {
            let model = if at == &here { "run" } else { run };
            let json = DBN.json(at, &[&[command, model], &cpu[..]].concat());
            assert_eq!(json["data"].as_str(), Some("x.npy"), "{command}: {json}");
        }
    }
    // What is asked for stands above what the run had.
    let json = DBN.json(&there, &[&["encode", run, "--max-rows", "7"], &cpu[..]].concat());
    assert_eq!((json["data"].as_str(), json["n_samples"].as_u64()), (Some("x.npy"), Some(7)));
    let err = DBN.fail(&there, &[&["encode", run, "--data", "mnist-sample"], &cpu[..]].concat(), 1);
    assert!(err.contains("784"), "{err}");
    for (more, out) in [
        (&["fine-tune", run, "--classify"][..], "classifier"),
        (&["up-down", run, "--top-epochs", "1"], "labelled"),
    ] {
        let args = [more, &["--epochs", "1", "--batch", "20", "--out", out], &cpu].concat();
        let json = DBN.json(&there, &args);
        assert_eq!(json["data"].as_str(), Some("x.npy"), "{json}");
    }
    // A run of a run is on the same data; so is a run that is resumed from another folder.
    let json = DBN.json(&here, &[&["evaluate", "../there/classifier"], &cpu[..]].concat());
    assert_eq!(json["data"].as_str(), Some("x.npy"), "{json}");
    DBN.succeed(&there, &[&["train", "--resume", "../here/stopped"], &cpu[..]].concat());
    assert!(weights(&here.join("run")) == weights(&here.join("stopped")), "other weights");
}

#[cfg(unix)]
#[test]
fn two_runs_into_one_folder_are_refused() {
    let folder = folder();
    let args = ["train", "--hidden", "9", "--epochs", "1000000", "--out", "run", "--device", "cpu"];
    let mut first = DBN
        .command(folder.path(), &args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while std::fs::metadata(folder.path().join("run/metrics.jsonl")).map_or(0, |m| m.len()) == 0 {
        assert!(first.try_wait().unwrap().is_none(), "the run ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for args in [&["train", "--out", "run", "--overwrite"][..], &["train", "--resume", "run"]] {
        let err = DBN.fail(folder.path(), &[args, &["--device", "cpu"]].concat(), 1);
        assert!(err.contains("run: another process is training in this folder; wait for it to end"), "{err}");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    DBN.fail(folder.path(), &["train", "--resume", "run", "--device", "cpu", "--stop-after-steps", "1"], 130);
}

#[test]
fn runs_whose_files_are_as_old_versions_wrote_them_are_resumed() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let (whole, old) = (format!("whole{i}"), format!("old{i}"));
        training.program.succeed(folder.path(), &training.args(&["--out", &whole]));
        // Old versions stopped dictionary learning between iterations only.
        let between = training.program.path == DICTIONARY.path;
        let first = training.args(&["--out", &old]).into_iter();
        let first: Vec<_> = first.map(|arg| if between && arg == "3" { "1" } else { arg }).collect();
        match between {
            true => drop(training.program.succeed(folder.path(), &first)),
            false => {
                drop(training.program.fail(
                    folder.path(),
                    &[&first[..], &["--stop-after-steps", "2"]].concat(),
                    130,
                ));
            }
        }
        let run = folder.path().join(&old);
        let mut info = run_json(&run);
        let fields = info.as_object_mut().unwrap();
        fields.remove("kind");
        if training.kind == "dbn up-down" {
            let settings = fields.remove("settings").unwrap();
            fields.insert("up_down".into(), settings);
        }
        std::fs::remove_file(run.join("run.json")).unwrap();
        let name = if training.kind == "dbn fine-tune" { "fine-tune.json" } else { "run.json" };
        std::fs::write(run.join(name), info.to_string()).unwrap();
        age_checkpoint(&run, between);
        let more: &[&str] = if between { &["--iterations", "3"] } else { &[] };
        training
            .program
            .succeed(folder.path(), &training.resume(&old, &[&["--device", "cpu"], more].concat()));
        assert!(weights(&folder.path().join(&whole)) == weights(&run), "{:?}", training.settings);
        assert_eq!(metrics(&run).len(), training.lines);
    }
}

/// Makes the header of a checkpoint that of an old version: no name of the trainer, and, for dictionaries, no progress.
fn age_checkpoint(run: &Path, of_dictionary: bool) {
    let path = run.join("checkpoint/trainer.safetensors");
    let bytes = checkpoint(run);
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let mut notes = header.metadata().clone().unwrap();
    notes.retain(|name, _| name == "chandlery");
    if of_dictionary {
        let mut own: Value = serde_json::from_str(&notes["chandlery"]).unwrap();
        for name in ["progress", "training", "gathered"] {
            own.as_object_mut().unwrap().remove(name);
        }
        notes.insert("chandlery".into(), own.to_string());
    }
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
    safetensors::serialize_to_file(tensors, Some(notes), &path).unwrap();
}

#[test]
fn fewer_rows_than_a_minibatch_are_one_minibatch() {
    let folder = tempfile::tempdir().unwrap();
    let said = DBN_ON_CPU.succeed(
        folder.path(),
        &["train", "--hidden", "6", "--max-rows", "12", "--batch", "100", "--epochs", "1", "--out", "run"],
    );
    assert!(said.contains("minibatches of 12, all rows that are trained on, in place of 100"), "{said}");
}

/// Moments from the start of a process to the end of a short run, the same in each run of the tests.
fn moments() -> impl Iterator<Item = std::time::Duration> {
    let draws = chandlery::Philox::new(77, 0);
    (0..12).map(move |i| std::time::Duration::from_millis((u64::from(draws.bits(i)) * 600) >> 32))
}

/// A run that is killed without warning, again and again, and goes on each time, ends in the bits of one that was left alone. Each step
/// writes a checkpoint, so that many of the moments lie within one.
#[test]
fn a_run_that_was_killed_at_any_moment_goes_on_from_there() {
    for training in [&TRAININGS[0], &TRAININGS[5]] {
        let folder = folder();
        let at = folder.path();
        training.program.succeed(at, &training.args(&["--out", "whole"]));
        let mut resumed = 0;
        for moment in moments() {
            let has_begun = at.join("killed/run.json").exists();
            let args = match has_begun {
                true => training.resume("killed", &["--checkpoint-every", "0"]),
                false => training.args(&["--out", "killed", "--overwrite", "--checkpoint-every", "0"]),
            };
            resumed += usize::from(has_begun);
            let mut process = training.program.command(at, &args).spawn().unwrap();
            std::thread::sleep(moment);
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert!(resumed > 0, "{}: no process lived until its first checkpoint", training.kind);
        training.program.succeed(at, &training.resume("killed", &[]));
        assert!(
            weights(&at.join("killed")) == weights(&at.join("whole")),
            "{}: other weights",
            training.kind
        );
        assert_eq!(metrics(&at.join("killed")).len(), training.lines, "{}", training.kind);
    }
}

#[test]
fn a_damaged_checkpoint_is_replaced_by_the_one_before_it() {
    let training = &TRAININGS[0];
    let folder = folder();
    let at = folder.path();
    training.program.succeed(at, &training.args(&["--out", "whole"]));
    let stop = ["--out", "run", "--checkpoint-every", "0", "--stop-after-steps", "7"];
    training.program.fail(at, &training.args(&stop), 130);
    let last = at.join("run/checkpoint/trainer.safetensors");
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
    let stdout = training.program.succeed(at, &training.resume("run", &[]));
    assert!(
        stdout.contains("going on from the checkpoint before it, run/checkpoint/previous.safetensors"),
        "{stdout}"
    );
    assert!(weights(&at.join("run")) == weights(&at.join("whole")));
}

#[test]
fn how_rows_reach_the_device_changes_no_bit() {
    let training = &TRAININGS[0];
    let folder = folder();
    let at = folder.path();
    training.program.succeed(at, &training.args(&["--out", "resident"]));
    training.program.succeed(
        at,
        &training.args(&["--out", "streamed", "--resident-bytes", "0", "--chunk-bytes", "100KB"]),
    );
    assert!(weights(&at.join("streamed")) == weights(&at.join("resident")));
    // In the middle of a run, too.
    training.program.fail(at, &training.args(&["--out", "both", "--stop-after-steps", "7"]), 130);
    training.program.succeed(at, &training.resume("both", &["--resident-bytes", "0"]));
    assert!(weights(&at.join("both")) == weights(&at.join("resident")));
    training.program.refuse(at, &training.args(&["--chunk-bytes", "many"]), "must be a number of bytes");
}
