//! The training commands of all programs, small.
#![allow(dead_code)] // The test of stages uses some of it.
use crate::common::{DAE, DBN_ON_CPU, DICTIONARY_ON_CPU, Program, SPARSE_AUTOENCODER, SPARSE_CODING, TSNE};
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A training command, small.
pub struct Training {
    pub program: Program,
    /// The sub-command, and the model that it begins with where it needs one.
    pub begin: &'static [&'static str],
    pub settings: &'static [&'static str],
    /// The option that says how long it trains, and its value.
    pub length: [&'static str; 2],
    /// The option with which it diverges at once, if it can.
    pub diverges: Option<&'static [&'static str]>,
    /// Its name in `run.json`.
    pub kind: &'static str,
    /// Lines of `metrics.jsonl`.
    pub lines: usize,
}

pub const ROWS: [&str; 4] = ["--data", "mnist-sample", "--max-rows", "300"];

/// Every training command that leaves a run.
pub const TRAININGS: [Training; 14] = [
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
        program: SPARSE_AUTOENCODER,
        begin: &["train"],
        settings: &[
            "--kind",
            "top-k",
            "--latents",
            "40",
            "--active",
            "4",
            "--batch",
            "50",
            "--aux-active",
            "8",
            "--dead-rows",
            "400",
            "--mix",
            "128",
            "--resident-bytes",
            "0",
        ],
        length: ["--epochs", "3"],
        diverges: Some(&["--learning-rate", "1e38"]),
        kind: "sparse-autoencoder train",
        lines: 18,
    },
    Training {
        program: SPARSE_AUTOENCODER,
        begin: &["train"],
        settings: &["--kind", "jump-relu", "--latents", "40", "--batch", "50", "--report-every", "4"],
        length: ["--epochs", "3"],
        diverges: Some(&["--learning-rate", "1e38"]),
        kind: "sparse-autoencoder train",
        lines: 6,
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
    pub fn stopped_at_once(&self, at: &Path, out: &str) {
        self.program.fail(at, &self.args(&["--out", out, "--stop-after-steps", "1"]), 130);
    }

    pub fn args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [self.begin, self.settings, &self.length, &ROWS, more].concat()
    }

    /// The same for so long that it does not come to an end.
    pub fn endless<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [self.begin, self.settings, &[self.length[0], "1000000"], &ROWS, more].concat()
    }

    pub fn resume<'a>(&'a self, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&self.begin[..1], &["--resume", run], more].concat()
    }

    pub fn name(&self) -> String {
        [&[self.kind], self.settings].concat().join(" ")
    }
}

/// A folder with the small trained networks `base` and `dae`.
pub fn folder() -> TempDir {
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
