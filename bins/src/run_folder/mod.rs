//! The folder a run leaves behind: whose it is, what may be replaced in it, and how files get into
//! it.
mod manifest;

use crate::ranks;
use crate::stages::{self, Stage};
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
    /// Start over in it, if it is a run: what that run wrote is removed by [`RunFolder::begin`],
    /// other files stay.
    Overwrite,
}

/// One run's folder: `runs/<bin>-<UTC time>/`, or the folder given by `--out`.
///
/// Every file appears whole, see [`write_whole`]. The one exception is `metrics.jsonl`, to which
/// each report appends a line. What the run writes is listed in `files.txt`, by which a folder is
/// known as that of a run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    /// Keeps other processes from writing to it too.
    lock: Option<Arc<File>>,
    manifest: Arc<Mutex<Manifest>>,
}

impl RunFolder {
    /// Makes the folder for a new run of the program `bin`, or takes one; nothing in it changes
    /// before [`begin`](Self::begin).
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

    /// Takes the folder that the option `flag` named, which is made if need be; `instead` is what
    /// to do about one that is refused.
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

    /// The folder of a run to which another process writes.
    pub fn of_another(path: &Path) -> Self {
        Self::at(path)
    }

    fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), lock: None, manifest: Arc::default() }
    }

    /// The same, kept from other processes until the last clone is dropped. Where the system has no
    /// locks of folders there is none.
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

    /// Begins a new run: all that a former run wrote is removed, but for the files `keep`, and so
    /// is what processes left that were killed.
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

    /// The path of a file that the run is about to write, which is listed before; the folder that
    /// it is in is made.
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

    /// Has `save` write a model to a folder: `name` within this one, or itself for an empty name.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn save_model<E>(&self, name: &str, save: impl FnOnce(&Path) -> Result<(), E>) -> Result<()>
    where
        anyhow::Error: From<E>,
    {
        let _stage = stages::enter(Stage::Files);
        let within = Path::new(name);
        for file in ["config.json", "model.safetensors"] {
            self.file(&within.join(file).to_string_lossy())?;
        }
        Ok(save(&self.path.join(within))?)
    }

    /// Writes a file whole, or leaves the old one.
    ///
    /// # Errors
    /// When the disk refuses; the message names the file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let _stage = stages::enter(Stage::Files);
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
        let _stage = stages::enter(Stage::Files);
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

/// Refuses a folder that holds something, unless it is what a run left that ended before its first
/// checkpoint, or a run that may be overwritten.
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

/// Whether a file of this name can be written, but for the disk's own reasons; to be asked before
/// the work, not after. Of several processes only the one that writes asks: others may lie on hosts
/// without the folder.
///
/// # Errors
/// When its folder does not exist, or the name is that of a folder.
pub fn check_writable(path: &Path) -> Result<()> {
    if !ranks::is_to_write() {
        return Ok(());
    }
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
    let mut args = std::env::args();
    let called = args.next().unwrap_or_default();
    let of_all = Path::new(&called).file_stem().is_some_and(|stem| stem == "chandlery");
    let bin = if of_all { "chandlery" } else { bin };
    std::iter::once(bin.to_owned()).chain(args.map(quoted)).collect::<Vec<_>>().join(" ")
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
mod tests;
