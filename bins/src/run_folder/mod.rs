//! The folder a run leaves behind, and how files get into it without ever being half there.
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// What stands in an `--out` folder that already holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuse it: the run of yesterday stays.
    Refuse,
    /// Start over in it: the files of a former run are removed or replaced, others stay.
    Overwrite,
}

/// Names that a run makes; what [`Existing::Overwrite`] removes before a new run.
const OWN: [&str; 10] = [
    "config.json",
    "model.safetensors",
    "run.json",
    "fine-tune.json",
    "metrics.jsonl",
    "results.json",
    "curves.svg",
    "README.md",
    "checkpoint",
    "history",
];

/// One run's folder: `runs/<bin>-<UTC time>/`, or the folder given by `--out`.
///
/// A file is written beside its name and renamed over it, so a reader sees the old one or the
/// new one and a crash leaves no half. The one exception is `metrics.jsonl`, to which
/// each report appends a line.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    /// Keeps other processes from writing to it too.
    lock: Option<Arc<File>>,
}

impl RunFolder {
    /// Makes the folder for a new run of the program `bin`.
    ///
    /// Without `out` it is a fresh `runs/<bin>-<UTC time>/` under the current folder.
    ///
    /// # Errors
    /// When `out` is a file, holds something and `existing` refuses that, or cannot be made.
    pub fn create(bin: &str, out: Option<&Path>, existing: Existing) -> Result<Self> {
        let Some(out) = out else {
            return Self { path: fresh(Path::new("runs"), bin)?, lock: None }.locked();
        };
        let instead = format!("name another, add --overwrite, or continue with --resume {}", out.display());
        Self::claim(out, "--out", existing, &instead)
    }

    /// Takes the folder that the option `flag` named, which is made if need be; `instead` is what to do about one that is refused.
    ///
    /// # Errors
    /// When `path` is a file, holds something and `existing` refuses that, or cannot be made.
    pub fn claim(path: &Path, flag: &str, existing: Existing, instead: &str) -> Result<Self> {
        let at = || format!("{flag} {}", path.display());
        fs::create_dir_all(path).with_context(|| format!("{}: cannot create this folder", at()))?;
        let folder = Self { path: path.to_owned(), lock: None }.locked().with_context(at)?;
        let mut files = fs::read_dir(path).with_context(|| format!("{}: cannot read this folder", at()))?;
        if files.next().is_some() {
            if existing == Existing::Refuse {
                bail!("{}: the folder is not empty; {instead}", at())
            }
            for name in OWN {
                remove(&path.join(name))?;
            }
        }
        Ok(folder)
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
        Ok(self)
    }

    /// Opens the folder of a former run.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            bail!("{}: no such run folder", path.display())
        }
        Ok(Self { path: path.to_owned(), lock: None })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file whole, or leaves the old one.
    ///
    /// # Errors
    /// When the disk refuses; the message names the file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.write_with(name, |path| Ok(fs::write(path, bytes)?))
    }

    /// As [`write`](Self::write), for a writer that wants a path: it is given the path of a file
    /// beside `name`, which takes the name once the writer is done.
    ///
    /// # Errors
    /// Those of `writer`, and when the rename fails; the message names the file.
    pub fn write_with(&self, name: &str, writer: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        write_beside(&self.join(name), writer)
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

    /// Makes the folder of a file within this one.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn make_for(&self, name: &str) -> Result<()> {
        let path = self.join(name);
        let folder = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot make", folder.display()))
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
        let path = self.join(name);
        let mut line = serde_json::to_vec(value).with_context(|| name.to_owned())?;
        line.push(b'\n');
        File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(&line))
            .with_context(|| format!("{}: cannot append", path.display()))
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

/// Runs `writer` on a path beside `path` and renames the result over `path`.
///
/// The extension stays (`x.png` is written as `.x.partial.png`), since some writers go by it.
///
/// # Errors
/// Those of `writer`, and when the file cannot be flushed to the disk or renamed.
pub fn write_beside(path: &Path, writer: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let partial = match path.extension() {
        Some(extension) => format!(".{stem}.partial.{}", extension.to_string_lossy()),
        None => format!(".{stem}.partial"),
    };
    let partial = path.with_file_name(partial);
    let written = writer(&partial).and_then(|()| {
        // The data must be on the disk before the name is, or a power cut leaves an empty file.
        File::open(&partial)?.sync_all()?;
        Ok(fs::rename(&partial, path)?)
    });
    if written.is_err() {
        // Best effort: the error below is what matters.
        let _ = fs::remove_file(&partial);
    }
    written.with_context(|| format!("{}: cannot write", path.display()))
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

fn remove(path: &Path) -> Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Ok(what) if what.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    gone.with_context(|| format!("{}: cannot remove", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_with_something_in_it_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), "precious").unwrap();
        let err = RunFolder::create("dbn", Some(dir.path()), Existing::Refuse).unwrap_err();
        assert_eq!(
            err.to_string(),
            format!(
                "--out {0}: the folder is not empty; name another, add --overwrite, or continue with --resume {0}",
                dir.path().display()
            )
        );
        assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), "precious");
    }

    #[test]
    fn overwrite_removes_a_former_run_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("metrics.jsonl"), "{}\n").unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        fs::create_dir(dir.path().join("checkpoint")).unwrap();
        fs::write(dir.path().join("checkpoint/state.json"), "{}").unwrap();
        RunFolder::create("dbn", Some(dir.path()), Existing::Overwrite).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
    }

    #[test]
    fn a_writer_that_fails_leaves_the_old_file_and_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFolder::create("dbn", Some(dir.path()), Existing::Refuse).unwrap();
        run.write("a.txt", b"old").unwrap();
        let err = run
            .write_with("a.txt", |path| {
                fs::write(path, b"ne")?;
                bail!("disk full")
            })
            .unwrap_err();
        assert_eq!(format!("{err:#}"), format!("{}: cannot write: disk full", run.join("a.txt").display()));
        assert_eq!(fs::read(run.join("a.txt")).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
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
        assert_eq!(fs::read_to_string(run.join("m.jsonl")).unwrap(), "1\n2\n");
    }
}
