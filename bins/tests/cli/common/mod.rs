//! What the tests of the command line share: running a program as a user does, and reading what it
//! leaves.
#![allow(dead_code)] // The test of stages uses some of it.
mod npy;

pub use npy::npy;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// The built `dbn`.
pub const DBN: Program = Program { path: env!("CARGO_BIN_EXE_dbn"), last: &[] };

/// The same, always told to run on the CPU.
pub const DBN_ON_CPU: Program = Program { last: &["--device", "cpu"], ..DBN };

/// The built `dictionary-learning`.
pub const DICTIONARY: Program = Program { path: env!("CARGO_BIN_EXE_dictionary-learning"), last: &[] };

/// The same, always told to run on the CPU.
pub const DICTIONARY_ON_CPU: Program = Program { last: &["--device", "cpu"], ..DICTIONARY };

/// The built `sparse-autoencoder`.
pub const SPARSE_AUTOENCODER: Program =
    Program { path: env!("CARGO_BIN_EXE_sparse-autoencoder"), last: &["--device", "cpu"] };

/// The built `sparse-coding`.
pub const SPARSE_CODING: Program =
    Program { path: env!("CARGO_BIN_EXE_sparse-coding"), last: &["--device", "cpu"] };

/// The built `dae`.
pub const DAE: Program = Program { path: env!("CARGO_BIN_EXE_dae"), last: &["--device", "cpu"] };

/// The built `tsne`.
pub const TSNE: Program = Program { path: env!("CARGO_BIN_EXE_tsne"), last: &["--device", "cpu"] };

/// The built `chandlery`.
pub const CHANDLERY: Program = Program { path: env!("CARGO_BIN_EXE_chandlery"), last: &[] };

/// The built `bench`.
pub const BENCH: Program = Program { path: env!("CARGO_BIN_EXE_bench"), last: &[] };

/// A built binary, and the arguments that every run of it ends with.
pub struct Program {
    pub path: &'static str,
    last: &'static [&'static str],
}

impl Program {
    /// The same program without the arguments that every run ends with.
    pub fn bare(self) -> Self {
        Self { last: &[], ..self }
    }

    /// The program with these arguments, to be started in `folder`; errors come without a
    /// backtrace.
    pub fn command(&self, folder: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(self.path);
        command.args(args).args(self.last).current_dir(folder);
        command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
        command
    }

    /// Runs to the end, and returns the output with standard error as text.
    fn run(&self, folder: &Path, args: &[&str]) -> (Output, String) {
        let output = self.command(folder, args).output().unwrap();
        let stderr = String::from_utf8(output.stderr.clone()).unwrap();
        (output, without_progress(&stderr))
    }

    /// Standard output of a run that must succeed.
    #[track_caller]
    pub fn succeed(&self, folder: &Path, args: &[&str]) -> String {
        let (output, stderr) = self.run(folder, args);
        assert!(output.status.success(), "{} {args:?}: {}\n{stderr}", self.path, output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one JSON object, on one line, of a run with `--json` that must succeed.
    #[track_caller]
    pub fn json(&self, folder: &Path, args: &[&str]) -> Value {
        let stdout = self.succeed(folder, &[args, &["--json"]].concat());
        assert_eq!(stdout.lines().count(), 1, "one line, got\n{stdout}");
        serde_json::from_str(&stdout).unwrap()
    }

    /// The one line on standard error of a run that must fail with this exit code.
    #[track_caller]
    pub fn fail(&self, folder: &Path, args: &[&str], code: i32) -> String {
        let (output, stderr) = self.run(folder, args);
        assert_eq!(output.status.code(), Some(code), "{} {args:?}\n{stderr}", self.path);
        assert_eq!(stderr.trim_end().lines().count(), 1, "one line, got\n{stderr}");
        stderr.trim_end().to_owned()
    }

    /// Asserts that these arguments are a usage error, exit code 2, and that its lines contain
    /// `text`.
    #[track_caller]
    pub fn refuse(&self, folder: &Path, args: &[&str], text: &str) {
        let (output, stderr) = self.run(folder, args);
        assert_eq!(output.status.code(), Some(2), "{} {args:?}\n{stderr}", self.path);
        assert!(stderr.contains(text), "{} {args:?} lacks {text}\n{stderr}", self.path);
    }
}

/// The command lines of all programs.
pub fn programs() -> [clap::Command; 7] {
    let all = chandlery_bins::programs::commands();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin")).unwrap();
    assert_eq!(files.count(), all.len() + 1, "a program is missing there, or `chandlery` here");
    all.map(|mut command| {
        command.build();
        command
    })
}

/// Standard error without the lines of what takes long, which come by the clock.
fn without_progress(stderr: &str) -> String {
    let is_progress = |line: &&str| {
        let time = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        time.is_some_and(|(time, _)| time.chars().all(|c| c.is_ascii_digit() || c == ':'))
    };
    stderr.split_inclusive('\n').filter(|line| !is_progress(line)).collect()
}

/// Starts a training run, interrupts it once its run folder has metrics, and returns its standard
/// error. It must end with exit code 130 and leave a checkpoint.
#[cfg(unix)]
#[track_caller]
pub fn interrupt(command: Command, run: &Path) -> String {
    signal(command, run, "-INT", 130)
}

/// The same by another signal, and with its exit code.
#[cfg(unix)]
#[track_caller]
pub fn signal(mut command: Command, run: &Path, signal: &str, code: i32) -> String {
    use std::process::Stdio;
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The first line of metrics says that the loop is under way, and so that it listens.
    let metrics = run.join("metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |m| m.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = without_progress(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(run.join("checkpoint/trainer.safetensors").is_file());
    stderr
}

/// The bytes of the weights in a run folder.
#[track_caller]
pub fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model.safetensors")).unwrap()
}

/// The lines of metrics in a run folder.
#[track_caller]
pub fn metrics(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The results that a run folder keeps.
#[track_caller]
pub fn results(run: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(run.join("results.json")).unwrap()).unwrap()
}

/// The number at this path of a JSON value, such as `rmse` or `test/value`.
#[track_caller]
pub fn number(value: &Value, path: &str) -> f64 {
    let number = value.pointer(&format!("/{path}")).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{path} in {value}"))
}

/// Asserts that a text file contains each of these.
#[track_caller]
pub fn has(path: &Path, texts: &[&str]) {
    let content = std::fs::read_to_string(path).unwrap();
    for text in texts {
        assert!(content.contains(text), "{} lacks {text}\n{content}", path.display());
    }
}

/// Width and height of a picture, which must not be of one colour.
#[track_caller]
pub fn picture_size(path: &Path) -> (u32, u32) {
    let picture = image::open(path).unwrap().to_rgb8();
    let first = picture.get_pixel(0, 0);
    assert!(picture.pixels().any(|pixel| pixel != first), "{} is of one colour", path.display());
    picture.dimensions()
}

/// Pixels along so many tiles of a digit: 28 pixels, twice as large, with gaps of 1 between and
/// around them.
pub fn side(tiles: u32) -> u32 {
    2 * (29 * tiles + 1)
}

/// Writes a `.npy` file of f32.
#[track_caller]
pub fn write_npy(path: &Path, shape: [usize; 2], values: &[f32]) {
    assert_eq!(values.len(), shape[0] * shape[1]);
    let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(path, npy("<f4", &format!("({}, {})", shape[0], shape[1]), data)).unwrap();
}
