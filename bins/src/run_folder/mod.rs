//! The folder a run leaves behind: whose it is, what may be replaced in it, and how files get into it.
mod manifest;

use anyhow::{Context, Result, bail, ensure};
use chandlery_datasets::whole::{remove_leftovers, write_whole};
use manifest::Manifest;
use serde::Serialize;
use std::fs::{self, File, TryLockError};
use std::io::{Error, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// What stands in an `--out` folder that already holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuse it: the run of yesterday stays.
    Refuse,
    /// Start over in it, if it is a run: what that run wrote is removed by [`RunFolder::begin`], other files stay.
    Overwrite,
}

/// One run's folder: `runs/<bin>-<UTC time>/`, or the folder given by `--out`.
///
/// Every file appears whole, see [`write_whole`]. The one exception is `metrics.jsonl`, to which each report appends a line. What the run
/// writes is listed in `files.txt`, by which a folder is known as that of a run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    /// Keeps other processes from writing to it too.
    lock: Option<Arc<File>>,
    manifest: Arc<Mutex<Manifest>>,
}

impl RunFolder {
    /// Makes the folder for a new run of the program `bin`, or takes one; nothing in it changes before [`begin`](Self::begin).
    ///
    /// Without `out` it is a fresh `runs/<bin>-<UTC time>/` under the current folder.
    ///
    /// # Errors
    /// When `out` is a file, holds something that `existing` refuses, or cannot be made.
    pub fn create(bin: &str, out: Option<&Path>, existing: Existing) -> Result<Self> {
        match out {
            None => Self::at(&fresh(Path::new("runs"), bin)?).locked(),
            Some(out) => Self::claim(out, "--out", existing, &instead_of(out)),
        }
    }

    /// Whether [`create`](Self::create) would take `out`; to be asked before the work, not after.
    ///
    /// # Errors
    /// As there.
    pub fn check(out: Option<&Path>, existing: Existing) -> Result<()> {
        match out {
            Some(out) if out.exists() => may_be_taken(out, "--out", existing, &instead_of(out)),
            _ => Ok(()),
        }
    }

    /// Takes the folder that the option `flag` named, which is made if need be; `instead` is what to do about one that is refused.
    ///
    /// # Errors
    /// When `path` is a file, holds something that `existing` refuses, or cannot be made.
    pub fn claim(path: &Path, flag: &str, existing: Existing, instead: &str) -> Result<Self> {
        let at = || format!("{flag} {}", path.display());
        fs::create_dir_all(path).with_context(|| format!("{}: cannot create this folder", at()))?;
        let folder = Self::at(path).locked().with_context(at)?;
        may_be_taken(path, flag, existing, instead)?;
        Ok(folder)
    }

    fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), lock: None, manifest: Arc::default() }
    }

    /// The same, kept from other processes until the last clone is dropped. Where the system has no locks of folders there is none.
    ///
    /// # Errors
    /// When another process has it.
    pub fn locked(mut self) -> Result<Self> {
        if let Ok(file) = File::open(&self.path) {
            match file.try_lock() {
                Ok(()) => self.lock = Some(Arc::new(file)),
                Err(TryLockError::WouldBlock) => {
                    bail!(
                        "{}: another process is training in this folder; wait for it to end",
                        self.path.display()
                    )
                }
                Err(TryLockError::Error(_)) => {}
            }
        }
        self.manifest = Arc::new(Mutex::new(Manifest::read(&self.path)?));
        Ok(self)
    }

    /// Begins a new run: all that a former run wrote is removed, but for the files `keep`, and so is what processes left that were killed.
    ///
    /// # Errors
    /// When the disk refuses; the message names the file.
    pub fn begin(&self, keep: &[&str]) -> Result<()> {
        self.remove_leftovers();
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner).begin(&self.path, keep)
    }

    /// Removes what processes left that were killed while they wrote.
    pub fn remove_leftovers(&self) {
        let folders = self.manifest.lock().unwrap_or_else(PoisonError::into_inner).folders();
        folders.iter().for_each(|name| remove_leftovers(&self.path.join(name)));
    }

    /// Opens the folder of a former run.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            bail!("{}: no such run folder", path.display())
        }
        let manifest = Manifest::read(path).unwrap_or_default();
        Ok(Self { manifest: Arc::new(Mutex::new(manifest)), ..Self::at(path) })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or folder in it, to read.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a file that the run is about to write, which is listed before; the folder that it is in is made.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let path = self.join(name);
        let folder = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot make", folder.display()))?;
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner).add(&self.path, name)?;
        Ok(path)
    }

    /// The folder of a model that the run is about to write: `name` within it, or itself for an empty name.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn of_model(&self, name: &str) -> Result<PathBuf> {
        let within = Path::new(name);
        for file in ["config.json", "model.safetensors"] {
            self.file(&within.join(file).to_string_lossy())?;
        }
        Ok(self.path.join(within))
    }

    /// Writes a file whole, or leaves the old one.
    ///
    /// # Errors
    /// When the disk refuses; the message names the file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        Ok(write_whole::<Error>(&self.file(name)?, |file| file.write_all(bytes))?)
    }

    /// Writes a value as indented JSON.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(value).with_context(|| name.to_owned())?;
        text.push(b'\n');
        self.write(name, &text)
    }

    /// Writes a file of JSON lines whole.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_json_lines(&self, name: &str, values: &[impl Serialize]) -> Result<()> {
        let mut lines = Vec::new();
        for value in values {
            serde_json::to_writer(&mut lines, value).with_context(|| name.to_owned())?;
            lines.push(b'\n');
        }
        self.write(name, &lines)
    }

    /// Appends one JSON line to a file.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn append_json_line(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let path = self.file(name)?;
        let mut line = serde_json::to_vec(value).with_context(|| name.to_owned())?;
        line.push(b'\n');
        let append = || {
            let mut file = File::options().create(true).append(true).open(&path)?;
            let before = file.metadata()?.len();
            // Of a full disk, half a line.
            file.write_all(&line).inspect_err(|_| drop(file.set_len(before)))
        };
        append().with_context(|| format!("{}: cannot write", path.display()))
    }
}

/// What to do where `--out` is refused.
fn instead_of(out: &Path) -> String {
    format!("name another, add --overwrite, or continue with --resume {}", out.display())
}

/// Refuses a folder that holds something, unless it is what a run left that ended before its first checkpoint, or a run that may be
/// overwritten.
fn may_be_taken(path: &Path, flag: &str, existing: Existing, instead: &str) -> Result<()> {
    let at = || format!("{flag} {}", path.display());
    if manifest::is_empty(path).with_context(|| format!("{}: cannot read this folder", at()))? {
        return Ok(());
    }
    match (Manifest::read(path)?.is_of_run(), existing) {
        (true, Existing::Overwrite) => Ok(()),
        (true, Existing::Refuse) => bail!("{}: the folder is not empty; {instead}", at()),
        (false, Existing::Refuse) => {
            bail!("{}: the folder is not empty; name another", at())
        }
        (false, Existing::Overwrite) => bail!(
            "{}: --overwrite replaces runs only, and this folder holds none: it has no {}; name another",
            at(),
            manifest::FILE
        ),
    }
}

/// Whether a file of this name can be written, but for the disk's own reasons; to be asked before the work, not after.
///
/// # Errors
/// When its folder does not exist, or the name is that of a folder.
pub fn check_writable(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(
        folder.is_dir(),
        "{}: must be in a folder that exists, and {} does not; make it first",
        path.display(),
        folder.display()
    );
    ensure!(!path.is_dir(), "{}: must be the name of a file, got a folder", path.display());
    Ok(())
}

/// The command line of this process as one could type it, for the program `bin`.
pub fn command_line(bin: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+".contains(c);
    let quoted = |arg: String| match arg.chars().all(plain) && !arg.is_empty() {
        true => arg,
        false => format!("'{}'", arg.replace('\'', "'\\''")),
    };
    let args = std::env::args().skip(1).map(quoted);
    std::iter::once(bin.to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

/// Makes `<parent>/<bin>-<UTC time>`; a second run within the second gets a number.
fn fresh(parent: &Path, bin: &str) -> Result<PathBuf> {
    fs::create_dir_all(parent).with_context(|| format!("{}: cannot make", parent.display()))?;
    let time: String = humantime::format_rfc3339_seconds(SystemTime::now())
        .to_string()
        .chars()
        .filter(|c| !matches!(c, '-' | ':'))
        .collect();
    let mut path = parent.join(format!("{bin}-{time}"));
    for n in 2.. {
        match fs::create_dir(&path) {
            Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
                path = parent.join(format!("{bin}-{time}-{n}"));
            }
            made => {
                made.with_context(|| format!("{}: cannot make", path.display()))?;
                break;
            }
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn left(folder: &Path) -> Vec<String> {
        let mut left: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        left
    }

    fn refused(folder: &Path, existing: Existing) -> String {
        let err = RunFolder::create("dbn", Some(folder), existing).unwrap_err().to_string();
        assert_eq!(RunFolder::check(Some(folder), existing).unwrap_err().to_string(), err);
        err.replace(&folder.display().to_string(), "DIR")
    }

    #[test]
    fn a_folder_with_something_in_it_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "README.md", "run.json"] {
            fs::write(dir.path().join(name), "precious").unwrap();
        }
        assert_eq!(refused(dir.path(), Existing::Refuse), "--out DIR: the folder is not empty; name another");
        assert_eq!(
            refused(dir.path(), Existing::Overwrite),
            "--out DIR: --overwrite replaces runs only, and this folder holds none: it has no files.txt; name another"
        );
        // A list of somebody's own is no list of a run.
        fs::write(dir.path().join("files.txt"), "README.md\n").unwrap();
        assert!(refused(dir.path(), Existing::Overwrite).contains("holds none"));
        assert_eq!(left(dir.path()), ["README.md", "config.json", "files.txt", "run.json"]);
    }

    #[test]
    fn overwrite_removes_all_that_a_former_run_wrote_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunFolder::create("tsne", Some(dir.path()), Existing::Refuse).unwrap();
        first.begin(&[]).unwrap();
        for name in ["metrics.jsonl", "scatter.png", "history/000050.png", "run.json", "checkpoint/a"] {
            first.write(name, b"old").unwrap();
        }
        first.of_model("start").unwrap();
        fs::write(dir.path().join("start/model.safetensors"), "old").unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        fs::write(dir.path().join("history/mine.png"), "mine").unwrap();
        drop(first);
        assert_eq!(
            refused(dir.path(), Existing::Refuse),
            "--out DIR: the folder is not empty; name another, add --overwrite, or continue with --resume DIR"
        );
        let second = RunFolder::create("dbn", Some(dir.path()), Existing::Overwrite).unwrap();
        assert!(dir.path().join("scatter.png").exists(), "the old run stays until the new one has begun");
        second.begin(&["run.json"]).unwrap();
        assert_eq!(left(dir.path()), ["files.txt", "history", "notes.txt", "run.json"]);
        assert_eq!(left(&dir.path().join("history")), ["mine.png"]);
        // What was kept is listed still.
        drop(second);
        RunFolder::create("dbn", Some(dir.path()), Existing::Overwrite).unwrap().begin(&[]).unwrap();
        assert_eq!(left(dir.path()), ["files.txt", "history", "notes.txt"]);
    }

    #[test]
    fn a_list_that_names_files_elsewhere_removes_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        RunFolder::create("dbn", Some(&path), Existing::Refuse).unwrap().begin(&[]).unwrap();
        fs::write(dir.path().join("mine"), "precious").unwrap();
        let list = fs::read_to_string(path.join("files.txt")).unwrap();
        let absolute = dir.path().join("mine").display().to_string();
        for name in ["../mine", "a/../../mine", &absolute] {
            fs::write(path.join("files.txt"), format!("{list}{name}\n")).unwrap();
            let err = RunFolder::create("dbn", Some(&path), Existing::Overwrite).unwrap_err();
            assert!(format!("{err:#}").contains("must name files in the folder"), "{err:#}");
        }
        assert_eq!(left(dir.path()), ["mine", "run"]);
    }

    #[test]
    fn what_a_run_left_that_ended_before_its_first_checkpoint_is_no_run() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("checkpoint")).unwrap();
        fs::write(at("checkpoint/.next.safetensors.abc123.part"), "half").unwrap();
        fs::write(at(".files.txt.abc123.part"), "half").unwrap();
        let run = RunFolder::create("dbn", Some(dir.path()), Existing::Refuse).unwrap();
        fs::write(at("checkpoint/next.safetensors"), "whole").unwrap();
        run.begin(&["checkpoint/next.safetensors"]).unwrap();
        assert_eq!(left(&at("checkpoint")), ["next.safetensors"]);
        assert_eq!(left(dir.path()), ["checkpoint", "files.txt"]);
        run.write("run.json", b"{}").unwrap();
        drop(run);
        RunFolder::create("dbn", Some(dir.path()), Existing::Refuse).unwrap();
        for name in ["checkpoint/trainer.safetensors", "checkpoint/mine", "mine"] {
            fs::write(at(name), "whole").unwrap();
            assert!(refused(dir.path(), Existing::Refuse).contains("the folder is not empty"), "{name}");
            fs::remove_file(at(name)).unwrap();
        }
    }

    #[test]
    fn names_that_no_file_can_have_are_told_before_the_work() {
        let dir = tempfile::tempdir().unwrap();
        let text = |path: &Path| check_writable(path).unwrap_err().to_string();
        assert!(
            check_writable(Path::new("x.png")).is_ok() && check_writable(&dir.path().join("x.png")).is_ok()
        );
        let (inside, path) = (dir.path().join("a/x.png"), dir.path().display());
        assert_eq!(
            text(&inside),
            format!("{path}/a/x.png: must be in a folder that exists, and {path}/a does not; make it first")
        );
        assert_eq!(text(dir.path()), format!("{path}: must be the name of a file, got a folder"));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_lent_to_one_run_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = RunFolder::create("dbn", Some(&path), Existing::Refuse).unwrap();
        first.write("a.txt", b"kept").unwrap();
        let refused = |existing| RunFolder::create("dbn", Some(&path), existing).unwrap_err();
        let text = format!("{:#}", refused(Existing::Overwrite));
        assert!(text.contains("another process is training in this folder"), "{text}");
        assert!(RunFolder::open(&path).unwrap().locked().is_err());
        assert_eq!(fs::read(path.join("a.txt")).unwrap(), b"kept");
        drop(first);
        RunFolder::create("dbn", Some(&path), Existing::Overwrite).unwrap();
    }

    #[test]
    fn two_runs_within_a_second_get_two_folders() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..3).map(|_| fresh(dir.path(), "dbn").unwrap()).collect();
        assert!(paths.iter().all(|p| p.is_dir()));
        assert!(paths[0] != paths[1] && paths[1] != paths[2] && paths[0] != paths[2]);
    }

    #[test]
    fn lines_are_appended() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::open(dir.path()).unwrap();
        for epoch in 0..3 {
            run.append_json_line("m.jsonl", &serde_json::json!({ "epoch": epoch })).unwrap();
        }
        let text = fs::read_to_string(run.join("m.jsonl")).unwrap();
        assert_eq!(text, "{\"epoch\":0}\n{\"epoch\":1}\n{\"epoch\":2}\n");
        run.write_json_lines("m.jsonl", &[1, 2]).unwrap();
        assert_eq!(
            fs::read_to_string(run.join("files.txt")).unwrap().lines().skip(1).collect::<Vec<_>>(),
            ["m.jsonl"]
        );
        assert_eq!(fs::read_to_string(run.join("m.jsonl")).unwrap(), "1\n2\n");
    }
}
