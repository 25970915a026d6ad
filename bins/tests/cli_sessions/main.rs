//! What every training command of every program does alike.
#![allow(clippy::unwrap_used)]
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod files;
mod interrupted;
mod killed;
mod left;
mod resumed;
mod used;

use common::{DAE, DBN_ON_CPU, DICTIONARY_ON_CPU, Program, SPARSE_AUTOENCODER, SPARSE_CODING, TSNE, metrics};
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
    /// The option that says how long it trains, and its value.
    length: [&'static str; 2],
    /// The option with which it diverges at once, if it can.
    diverges: Option<&'static [&'static str]>,
    /// Its name in `run.json`.
    kind: &'static str,
    /// Lines of `metrics.jsonl`.
    lines: usize,
}

const ROWS: [&str; 4] = ["--data", "mnist-sample", "--max-rows", "300"];

/// Every training command that leaves a run.
const TRAININGS: [Training; 12] = [
    Training {
        program: DBN_ON_CPU,
        begin: &["train"],
        settings: &["--hidden", "9,7", "--batch", "50"],
        length: ["--epochs", "2"],
        diverges: Some(&["--learning-rate", "1e38"]),
        kind: "dbn train",
        lines: 4,
    },
    Training {
        program: DBN_ON_CPU,
        begin: &["fine-tune", "base"],
        settings: &["--classify", "--batch", "50"],
        length: ["--epochs", "3"],
        diverges: Some(&["--learning-rate", "1e38", "--optimizer", "sgd"]),
        kind: "dbn fine-tune",
        lines: 3,
    },
    Training {
        program: DBN_ON_CPU,
        begin: &["fine-tune", "base"],
        settings: &["--autoencode", "--batch", "50"],
        length: ["--epochs", "3"],
        diverges: Some(&["--learning-rate", "1e38", "--optimizer", "sgd"]),
        kind: "dbn fine-tune",
        lines: 3,
    },
    Training {
        program: DBN_ON_CPU,
        begin: &["up-down", "base"],
        settings: &["--top-epochs", "1", "--batch", "50"],
        length: ["--epochs", "2"],
        diverges: Some(&["--top-learning-rate", "1e38"]),
        kind: "dbn up-down",
        lines: 3,
    },
    Training {
        program: DICTIONARY_ON_CPU,
        begin: &["train"],
        settings: &["--atoms", "12", "--nonzero", "2"],
        length: ["--epochs", "3"],
        diverges: None,
        kind: "dictionary-learning train",
        lines: 3,
    },
    Training {
        program: DICTIONARY_ON_CPU,
        begin: &["train"],
        settings: &["--atoms", "12", "--nonzero", "2", "--online", "--batch", "50"],
        length: ["--epochs", "3"],
        diverges: None,
        kind: "dictionary-learning train",
        lines: 3,
    },
    Training {
        program: DAE,
        begin: &["train"],
        settings: &["--hidden", "9,7", "--batch", "50"],
        length: ["--epochs", "2"],
        diverges: Some(&["--learning-rate", "1e38"]),
        kind: "dae train",
        lines: 4,
    },
    Training {
        program: DAE,
        begin: &["fine-tune", "dae"],
        settings: &["--classify", "--batch", "50"],
        length: ["--epochs", "3"],
        diverges: Some(&["--learning-rate", "1e38", "--optimizer", "sgd"]),
        kind: "dae fine-tune",
        lines: 3,
    },
    Training {
        program: SPARSE_AUTOENCODER,
        begin: &["train"],
        settings: &["--hidden", "9"],
        length: ["--iterations", "5"],
        diverges: None,
        kind: "sparse-autoencoder train",
        lines: 5,
    },
    Training {
        program: SPARSE_CODING,
        begin: &["train"],
        settings: &["--atoms", "12", "--batch", "50"],
        length: ["--epochs", "2"],
        diverges: None,
        kind: "sparse-coding train",
        lines: 2,
    },
    Training {
        program: TSNE,
        begin: &["train"],
        settings: &["--perplexity", "5", "--early-iterations", "50"],
        length: ["--iterations", "60"],
        diverges: Some(&["--learning-rate", "1e38"]),
        kind: "tsne train",
        lines: 5,
    },
    Training {
        program: TSNE,
        begin: &["train"],
        settings: &["--perplexity", "5", "--early-iterations", "50", "--method", "barnes-hut", "--animation"],
        length: ["--iterations", "60"],
        diverges: None,
        kind: "tsne train",
        lines: 5,
    },
];

impl Training {
    /// Begins a run that its first step ends.
    fn stopped_at_once(&self, at: &Path, out: &str) {
        self.program.fail(at, &self.args(&["--out", out, "--stop-after-steps", "1"]), 130);
    }

    fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [self.begin, self.settings, &self.length, &ROWS, more].concat()
    }

    /// The same for so long that it does not come to an end.
    fn endless<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [self.begin, self.settings, &[self.length[0], "1000000"], &ROWS, more].concat()
    }

    fn resume<'a>(&'a self, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&self.begin[..1], &["--resume", run], more].concat()
    }

    fn name(&self) -> String {
        [&[self.kind], self.settings].concat().join(" ")
    }
}

/// A folder with the small trained networks `base` and `dae`.
fn folder() -> TempDir {
    static BASE: OnceLock<TempDir> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let base = tempfile::tempdir().unwrap();
        let args = ["train", "--hidden", "9,7", "--epochs", "1", "--batch", "50"];
        DBN_ON_CPU.succeed(base.path(), &[&args[..], &ROWS, &["--out", "base"]].concat());
        DAE.succeed(base.path(), &[&args[..], &ROWS, &["--out", "dae"]].concat());
        base
    });
    let folder = tempfile::tempdir().unwrap();
    for model in ["base", "dae"] {
        std::fs::create_dir(folder.path().join(model)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            let name = format!("{model}/{file}");
            std::fs::copy(base.path().join(&name), folder.path().join(&name)).unwrap();
        }
    }
    folder
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

const CHECKPOINT: &str = "checkpoint/trainer.safetensors";
const PREVIOUS: &str = "checkpoint/previous.safetensors";

fn checkpoint(run: &Path) -> Vec<u8> {
    std::fs::read(run.join(CHECKPOINT)).unwrap()
}

/// The lines of metrics of a run, and its results, without what differs from one process to the
/// next.
fn figures(run: &Path) -> (Vec<Value>, Value) {
    fn strip(value: &mut Value) {
        if let Value::Object(fields) = value {
            fields.retain(|name, _| !name.contains("second") && name != "out");
            fields.values_mut().for_each(strip);
        }
    }
    let (mut lines, mut results) = (metrics(run), json(&run.join("results.json")));
    lines.iter_mut().chain([&mut results]).for_each(strip);
    (lines, results)
}

/// The names of all files below a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => names.extend(crate::names(&path).into_iter().map(|file| format!("{name}/{file}"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

/// Whether a folder holds a file that is not whole.
fn has_leftovers(folder: &Path) -> bool {
    names(folder).iter().any(|name| name.ends_with(".part"))
}
