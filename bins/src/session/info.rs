//! `run.json`: what a run was asked for, from which it can be resumed.
use crate::options::DataArgs;
use crate::report::{Outcome, Report};
use crate::run_folder::RunFolder;
use anyhow::{Context, Error, Result, bail};
use chandlery_datasets::Fingerprint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file.
pub const FILE: &str = "run.json";
/// Programs whose runs say what they were trained on by [`DataArgs`].
const WITH_DATA: [&str; 3] = ["dbn ", "dae ", "tsne "];
/// What `dbn fine-tune` once called it.
const OLD_FINE_TUNE: &str = "fine-tune.json";

/// The names of a training command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The program and its sub-command, as one types them: `dbn train`.
    pub command: &'static str,
    /// What the name of a new run folder begins with.
    pub folder: &'static str,
}

/// What a run was asked for. Fields that the file once lacked or named otherwise are still read.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunInfo<I, S> {
    /// The training command: `dbn train`.
    #[serde(default)]
    pub kind: String,
    /// Version of the program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// The folder in which the command was given: the base folder of relative paths.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Where rows come from.
    #[serde(flatten)]
    pub input: I,
    /// What is made of them.
    #[serde(alias = "up_down")]
    pub settings: S,
    /// Rows of the training data, to notice when the data has changed.
    pub n_rows: usize,
    /// The same of its content.
    #[serde(default)]
    pub fingerprint: Fingerprint,
}

/// Where rows come from.
pub trait Input: Serialize + DeserializeOwned {
    /// Says from which folder relative paths are meant.
    fn meant_from(&mut self, base: &Path);
}

/// The data that the run in this folder was trained on, and its seed; none where there is no run.
///
/// # Errors
/// As [`data_and_settings`].
pub fn data_of(folder: &Path) -> Result<Option<(DataArgs, u64)>> {
    #[derive(Deserialize)]
    struct Settings {
        seed: u64,
    }
    Ok(data_and_settings::<Settings>(folder)?.map(|(data, settings)| (data, settings.seed)))
}

/// The data that the run in this folder was trained on, and what `S` has of its settings; none where there is no run.
///
/// # Errors
/// When there is a run of a program that does not train on rows of a data set, or what it was asked for cannot be read.
pub fn data_and_settings<S: DeserializeOwned>(folder: &Path) -> Result<Option<(DataArgs, S)>> {
    #[derive(Deserialize)]
    struct OfRun<S> {
        data: DataArgs,
        directory: Option<PathBuf>,
        #[serde(alias = "up_down")]
        settings: S,
    }
    let Ok(folder) = RunFolder::open(folder) else {
        return Ok(None);
    };
    let Some((file, text)) = read(&folder)? else {
        return Ok(None);
    };
    let unreadable = || format!("{}: cannot be read", file.display());
    let value: Value = serde_json::from_str(&text).with_context(unreadable)?;
    match command_of(&value, &file) {
        Some(command) if !WITH_DATA.iter().any(|program| command.starts_with(program)) => {
            bail!("{}: this is a run of `{command}`", file.display())
        }
        _ => {}
    }
    let OfRun { data, directory, settings } = serde_json::from_value(value).with_context(unreadable)?;
    Ok(Some((DataArgs { base: directory, ..data }, settings)))
}

impl Kind {
    /// The program: `dbn`.
    pub fn program(&self) -> &'static str {
        self.command.split(' ').next().unwrap_or(self.command)
    }

    /// The folder of a run and what it was asked for.
    ///
    /// # Errors
    /// When there is no such folder, or it holds no run of this command; the message says of which.
    pub fn open<I: Input, S: DeserializeOwned>(&self, path: &Path) -> Result<(RunFolder, RunInfo<I, S>)> {
        let at = || format!("--resume {}", path.display());
        let folder = RunFolder::open(path).with_context(at)?;
        let Some((file, text)) = read(&folder).with_context(at)? else {
            bail!("{}: this folder holds no run: it has no {FILE}", at())
        };
        let unreadable = || format!("{}: cannot be read", file.display());
        let value: Value = serde_json::from_str(&text).with_context(unreadable)?;
        match command_of(&value, &file) {
            Some(command) if command != self.command => {
                bail!("{}: this is a run of `{command}`; resume it with `{command} {}`", at(), at())
            }
            _ => {}
        }
        let mut info: RunInfo<I, S> = serde_json::from_str(&text).with_context(unreadable)?;
        if let Some(directory) = &info.directory {
            info.input.meant_from(directory);
        }
        Ok((folder.locked().with_context(at)?, info))
    }

    /// Says how to resume a run that was interrupted.
    ///
    /// # Errors
    /// When standard output refuses.
    pub fn interrupted(&self, report: &Report, folder: &RunFolder) -> Result<Outcome> {
        let resume = format!("{} --resume {}", self.command, folder.path().display());
        eprintln!("interrupted; resume with: {resume}");
        report.finish(&json!({ "interrupted": true, "out": folder.path(), "resume": resume }))?;
        Ok(Outcome::Interrupted)
    }
}

/// The file of a run and its text; none where there is no such file.
fn read(folder: &RunFolder) -> Result<Option<(PathBuf, String)>> {
    for name in [FILE, OLD_FINE_TUNE] {
        let file = folder.join(name);
        match std::fs::read_to_string(&file) {
            Ok(text) => return Ok(Some((file, text))),
            Err(err) if err.kind() == ErrorKind::NotFound => {}
            Err(err) => {
                let unreadable = format!("{}: cannot be read", file.display());
                return Err(Error::new(err).context(unreadable));
            }
        }
    }
    Ok(None)
}

/// The training command of a run; files that do not name it are told apart by their fields.
fn command_of(info: &Value, file: &Path) -> Option<String> {
    let has = |field: &str| info.get(field).is_some();
    let by_fields = if file.ends_with(OLD_FINE_TUNE) {
        Some("dbn fine-tune")
    } else if has("up_down") {
        Some("dbn up-down")
    } else if has("signals") {
        Some("dictionary-learning train")
    } else if has("data") {
        Some("dbn train")
    } else {
        None
    };
    info.get("kind").and_then(Value::as_str).or(by_fields).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const KIND: Kind = Kind { command: "dbn train", folder: "dbn" };

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Of {
        data: String,
        #[serde(skip)]
        base: PathBuf,
    }

    impl Input for Of {
        fn meant_from(&mut self, base: &Path) {
            self.base = base.to_owned();
        }
    }

    fn open(path: &Path) -> Result<(RunFolder, RunInfo<Of, Vec<f64>>)> {
        KIND.open(path)
    }

    #[test]
    fn what_was_asked_for_is_read_back_from_files_of_all_versions() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(dir.path()).unwrap();
        let info = RunInfo {
            kind: "dbn train".into(),
            version: "1".into(),
            command: "dbn".into(),
            directory: Some("/somewhere".into()),
            input: Of { data: "mnist".into(), base: "/somewhere".into() },
            settings: vec![0.1, 1e-17],
            n_rows: 7,
            fingerprint: Fingerprint::default(),
        };
        folder.write_json(FILE, &info).unwrap();
        let (_, back) = open(dir.path()).unwrap();
        assert_eq!((back.input, back.settings, back.n_rows), (info.input, info.settings, 7));
        let old = r#"{"version":"1","command":"dbn","data":"mnist","settings":[2.5],"n_rows":7}"#;
        folder.write(FILE, old.as_bytes()).unwrap();
        assert_eq!(open(dir.path()).unwrap().1.settings, [2.5]);
    }

    #[test]
    fn a_run_of_another_command_is_refused_with_that_command() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(dir.path()).unwrap();
        let path = dir.path().display();
        let text = || open(dir.path()).unwrap_err().to_string();
        assert_eq!(text(), format!("--resume {path}: this folder holds no run: it has no run.json"));
        let common = r#""version":"1","command":"x","n_rows":7"#;
        let cases = [
            (OLD_FINE_TUNE, r#""data":"a","settings":[]"#, "dbn fine-tune"),
            (FILE, r#""data":"a","up_down":[]"#, "dbn up-down"),
            (FILE, r#""signals":{},"settings":[]"#, "dictionary-learning train"),
            (FILE, r#""kind":"tsne embed","data":"a","settings":[]"#, "tsne embed"),
        ];
        for (file, fields, command) in cases {
            folder.write(file, format!("{{{common},{fields}}}").as_bytes()).unwrap();
            let want = format!(
                "--resume {path}: this is a run of `{command}`; resume it with `{command} --resume {path}`"
            );
            assert_eq!(text(), want);
            std::fs::remove_file(folder.join(file)).unwrap();
        }
        folder.write(FILE, b"{}").unwrap();
        assert_eq!(text(), format!("{}: cannot be read", folder.join(FILE).display()));
    }
}
