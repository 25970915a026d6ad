//! `run.json`: what a run was asked for, from which it can be resumed.
use crate::interrupt;
use crate::options::{DataArgs, MOST_COUNT};
use crate::report::{Outcome, Report, rank};
use crate::run_folder::RunFolder;
use anyhow::{Context, Result, bail};
use chandlery_datasets::Fingerprint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file.
pub const FILE: &str = "run.json";
/// The folder of checkpoints.
const CHECKPOINTS: &str = "checkpoint";
/// Programs whose runs say what they were trained on by [`DataArgs`].
const WITH_DATA: [&str; 3] = ["dbn ", "dae ", "tsne "];

/// The names of a training command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The program and its sub-command, as one types them: `dbn train`.
    pub command: &'static str,
    /// What the name of a new run folder begins with.
    pub folder: &'static str,
}

/// What a run was asked for.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunInfo<I, S> {
    /// The training command: `dbn train`.
    pub kind: String,
    /// Version of the program.
    pub version: String,
    /// The command line.
    pub command: String,
    /// The folder in which the command was given: the base folder of relative paths.
    pub directory: Option<PathBuf>,
    /// Where rows come from.
    #[serde(flatten)]
    pub input: I,
    /// What is made of them.
    pub settings: S,
    /// Rows of the training data, to notice when the data has changed.
    pub n_rows: usize,
    /// The same of its content.
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

/// The data that the run in this folder was trained on, and what `S` has of its settings; none
/// where there is no run.
///
/// # Errors
/// When there is a run of a program that does not train on rows of a data set, or what it was asked
/// for cannot be read.
pub fn data_and_settings<S: DeserializeOwned>(folder: &Path) -> Result<Option<(DataArgs, S)>> {
    #[derive(Deserialize)]
    struct OfRun<S> {
        data: DataArgs,
        directory: Option<PathBuf>,
        settings: S,
    }
    let Some(found) = Found::of(folder)? else {
        return Ok(None);
    };
    if !WITH_DATA.iter().any(|program| found.kind.starts_with(program)) {
        bail!("{}: this is a run of `{}`", found.file.display(), found.kind)
    }
    let unreadable = || format!("{}: cannot be read", found.file.display());
    let OfRun { data, directory, settings } = serde_json::from_value(found.value).with_context(unreadable)?;
    Ok(Some((DataArgs { base: directory, ..data }, settings)))
}

impl Kind {
    /// The program: `dbn`.
    pub fn program(&self) -> &'static str {
        self.command.split(' ').next().unwrap_or(self.command)
    }

    /// The folder of a run to go on with, kept from other processes, and what it was asked for.
    ///
    /// # Errors
    /// When there is no such folder, another process is training in it, or it holds no run of this
    /// command; the message says of which.
    pub fn open<I: Input, S: DeserializeOwned>(&self, path: &Path) -> Result<(RunFolder, RunInfo<I, S>)> {
        let at = || format!("--resume {}", path.display());
        let folder = RunFolder::open(path).with_context(at)?;
        let Some(found) = Found::of(path).with_context(at)? else {
            if folder.join(CHECKPOINTS).is_dir() {
                bail!(
                    "{}: a run that began here ended before its first checkpoint; begin it again by the command that began it",
                    at()
                )
            }
            bail!("{}: this folder holds no run: it has no {FILE}", at())
        };
        if found.kind != self.command {
            bail!("{}: this is a run of `{1}`; resume it with `{1} {0}`", at(), found.kind)
        }
        let info = found.info()?;
        // Of several processes rank 0 has it, and writes.
        let folder = if rank() == 0 { folder.locked().with_context(at)? } else { folder };
        Ok((folder, info))
    }

    /// What the run of this command in a folder was asked for; none where there is no run. Other
    /// processes may go on with it.
    ///
    /// # Errors
    /// When there is a run of another command, or what it was asked for cannot be read.
    pub fn of<I: Input, S: DeserializeOwned>(&self, path: &Path) -> Result<Option<RunInfo<I, S>>> {
        let Some(found) = Found::of(path)? else {
            return Ok(None);
        };
        if found.kind != self.command {
            bail!("{}: this is a run of `{}`", found.file.display(), found.kind)
        }
        found.info().map(Some)
    }

    /// Has it said how to resume a run if a signal ends the process from here on.
    pub fn say_if_interrupted(&'static self, report: Report, folder: &RunFolder) {
        let folder = folder.clone();
        // An end is under way: it cannot be told of an error.
        interrupt::say_at_end(move || drop(self.say_interrupted(&report, &folder)));
    }

    /// Says how to resume a run that was interrupted.
    ///
    /// # Errors
    /// When standard output refuses.
    pub fn interrupted(&self, report: &Report, folder: &RunFolder) -> Result<Outcome> {
        interrupt::take_words();
        self.say_interrupted(report, folder)?;
        Ok(Outcome::Interrupted)
    }

    fn say_interrupted(&self, report: &Report, folder: &RunFolder) -> Result<()> {
        let resume = format!("{} --resume {}", self.command, folder.path().display());
        report.note(&format!("interrupted; resume with: {resume}"));
        report.finish(json!({ "interrupted": true, "out": folder.path(), "resume": resume }))
    }
}

/// The file of a run, as it was found.
struct Found {
    file: PathBuf,
    text: String,
    value: Value,
    kind: String,
}

impl Found {
    /// That in a folder; none where there is no such folder or file.
    fn of(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(FILE);
        let unreadable = || format!("{}: cannot be read", file.display());
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(err) if matches!(err.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(err) => return Err(err).with_context(unreadable),
        };
        let value: Value = serde_json::from_str(&text).with_context(unreadable)?;
        let kind = value.get("kind").and_then(Value::as_str);
        let kind =
            kind.with_context(|| format!("{}: must name the command of the run as `kind`", file.display()))?;
        check_counts(&value, "").with_context(unreadable)?;
        Ok(Some(Self { kind: kind.to_owned(), file, text, value }))
    }

    /// Floats are parsed straight from the text.
    fn info<I: Input, S: DeserializeOwned>(&self) -> Result<RunInfo<I, S>> {
        let info = serde_json::from_str(&self.text);
        let mut info: RunInfo<I, S> =
            info.with_context(|| format!("{}: cannot be read", self.file.display()))?;
        if let Some(directory) = &info.directory {
            info.input.meant_from(directory);
        }
        Ok(info)
    }
}

/// Refuses numbers that no option takes, at any depth; seeds are any.
fn check_counts(value: &Value, at: &str) -> Result<()> {
    match value {
        Value::Object(fields) => {
            fields.iter().filter(|(name, _)| *name != "seed").try_for_each(|(name, value)| {
                check_counts(value, &if at.is_empty() { name.clone() } else { format!("{at}.{name}") })
            })
        }
        Value::Array(values) => values.iter().try_for_each(|value| check_counts(value, at)),
        Value::Number(n) if n.as_u64().is_some_and(|n| n >= MOST_COUNT) => {
            bail!("{at}: must be below 2^53, got {n}")
        }
        _ => Ok(()),
    }
}

/// Refuses the folder of a run that has no model yet, by its name among models.
///
/// # Errors
/// When it is one; the message says how it is finished.
pub fn check_finished(model: &str) -> Result<()> {
    let folder = Path::new(model);
    let is_run = || folder.join(FILE).is_file() || folder.join(CHECKPOINTS).is_dir();
    if !folder.is_dir() || folder.join("config.json").exists() || !is_run() {
        return Ok(());
    }
    let mend = match Found::of(folder)? {
        Some(found) => format!("finish it with `{} --resume {model}`", found.kind),
        None => "begin it again by the command that began it".to_owned(),
    };
    bail!("{model}: this run is not finished, and has no model yet; {mend}")
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
    fn what_was_asked_for_is_read_back() {
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
        let (locked, back) = open(dir.path()).unwrap();
        assert_eq!((&back.input, &back.settings, back.n_rows), (&info.input, &info.settings, 7));
        // Who only reads it needs no lock.
        assert!(open(dir.path()).is_err());
        let read: RunInfo<Of, Vec<f64>> = KIND.of(dir.path()).unwrap().unwrap();
        assert_eq!((read.input, read.settings), (info.input, info.settings));
        drop(locked);
        assert!(KIND.of::<Of, Vec<f64>>(&dir.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn a_run_of_another_command_is_refused_with_that_command() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(dir.path()).unwrap();
        let path = dir.path().display();
        let text = || format!("{:#}", open(dir.path()).unwrap_err());
        assert_eq!(text(), format!("--resume {path}: this folder holds no run: it has no run.json"));
        folder.write(FILE, br#"{"kind":"tsne train","version":"1"}"#).unwrap();
        assert_eq!(
            text(),
            format!(
                "--resume {path}: this is a run of `tsne train`; resume it with `tsne train --resume {path}`"
            )
        );
        let err = KIND.of::<Of, Vec<f64>>(dir.path()).unwrap_err().to_string();
        assert_eq!(err, format!("{path}/run.json: this is a run of `tsne train`"));
        for text_of_file in ["{}", "[]", "", "{\"kind\":7}", r#"{"kind":"dbn train"}"#] {
            folder.write(FILE, text_of_file.as_bytes()).unwrap();
            assert!(text().contains(&format!("{path}/run.json: ")), "{text_of_file}: {}", text());
        }
    }

    #[test]
    fn numbers_that_no_option_takes_are_refused_in_the_file_of_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(dir.path()).unwrap();
        let file = |epochs: u64| {
            let text =
                json!({"kind": "dbn train", "settings": {"seed": u64::MAX, "layers": [{"epochs": epochs}]}});
            folder.write_json(FILE, &text).unwrap();
            Found::of(dir.path()).map(|found| found.unwrap().kind).map_err(|err| format!("{err:#}"))
        };
        assert_eq!(file((1 << 53) - 1), Ok("dbn train".to_owned()));
        for n in [1 << 53, u64::MAX] {
            let err = file(n).unwrap_err();
            assert!(
                err.ends_with(&format!(
                    "cannot be read: settings.layers.epochs: must be below 2^53, got {n}"
                )),
                "{err}"
            );
        }
    }

    #[test]
    fn a_run_without_a_model_is_told_from_a_folder_of_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().display().to_string();
        let text = || check_finished(&name).map_err(|err| err.to_string().replace(&name, "RUN"));
        assert_eq!(text(), Ok(()));
        std::fs::create_dir(dir.path().join(CHECKPOINTS)).unwrap();
        let not_finished = "RUN: this run is not finished, and has no model yet; ";
        assert_eq!(text(), Err(format!("{not_finished}begin it again by the command that began it")));
        std::fs::write(dir.path().join(FILE), r#"{"kind":"dae train"}"#).unwrap();
        assert_eq!(text(), Err(format!("{not_finished}finish it with `dae train --resume RUN`")));
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_eq!(text(), Ok(()));
        assert!(check_finished("owner/name").is_ok());
    }
}
