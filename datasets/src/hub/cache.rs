//! The folder of a repository in the hub's cache, as all clients of the hub lay it out:
//!
//! ```text
//! datasets--OWNER--NAME/
//!   blobs/TAG                 the bytes of a file, by the tag that the hub gives it
//!   blobs/TAG.incomplete      those that have come so far
//!   refs/REVISION             the commit that a branch or tag stood at
//!   snapshots/COMMIT/FILE     a link to the blob
//! .locks/datasets--OWNER--NAME/TAG.lock
//! ```
//!
//! A blob and a link get their names when they are whole.
use super::place::{is_name, is_path};
use crate::whole::write_whole;
use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of a repository.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    cache: PathBuf,
    name: String,
}

impl Folder {
    pub(super) fn new(cache: PathBuf, name: String) -> Self {
        Self { cache, name }
    }

    fn path(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    pub(super) fn blob(&self, tag: &str) -> PathBuf {
        self.path().join("blobs").join(tag)
    }

    /// Where a file of a commit is, or will be.
    pub(super) fn file(&self, commit: &str, file: &str) -> PathBuf {
        self.path().join("snapshots").join(commit).join(file)
    }

    /// Whether a file of a commit is there.
    pub(super) fn has(&self, commit: &str, file: &str) -> bool {
        self.file(commit, file).is_file()
    }

    /// The commit that a revision stood at when somebody asked last.
    pub(super) fn commit_of(&self, revision: &str) -> Option<String> {
        let commit = std::fs::read_to_string(self.path().join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_name(commit))
    }

    /// Writes down which commit a revision stands at.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.path().join("refs").join(revision);
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        write_whole(&path, |file| file.write_all(commit.as_bytes()))
    }

    /// The files of a commit that are there, with `/` in their names.
    pub(super) fn files(&self, commit: &str) -> Vec<String> {
        let snapshot = self.path().join("snapshots").join(commit);
        let mut files = Vec::new();
        collect_files(&snapshot, &mut files);
        let relative = files.iter().filter_map(|path| path.strip_prefix(&snapshot).ok());
        relative.map(|path| path.to_string_lossy().replace('\\', "/")).filter(|path| is_path(path)).collect()
    }

    /// Makes a blob the file of a commit: a link, or a copy where the file system has no links.
    pub(super) fn link(&self, tag: &str, commit: &str, file: &str) -> Result<PathBuf> {
        let path = self.file(commit, file);
        let up = "../".repeat(2 + file.split('/').count() - 1);
        let (target, blob) = (format!("{up}blobs/{tag}"), self.blob(tag));
        placed(&path, |beside| {
            symlink(&target, beside)
                .or_else(|_| std::fs::hard_link(&blob, beside))
                .or_else(|_| std::fs::copy(&blob, beside).map(|_| ()))
        })?;
        Ok(path)
    }

    /// Waits until no other process brings this blob. None where the file system has no locks.
    pub(super) fn lock(&self, tag: &str) -> Result<Option<File>> {
        let folder = self.cache.join(".locks").join(&self.name);
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{tag}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::WouldBlock) if waits => {}
                Err(TryLockError::WouldBlock) => {
                    waits = true;
                    tracing::info!(lock = %path.display(), "waiting for the download of another process");
                }
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Interrupted => {}
                Err(TryLockError::Error(e)) => {
                    tracing::debug!(lock = %path.display(), error = %e, "no locks here");
                    return Ok(None);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Makes something beside `path`, then gives it that name, in place of what has it.
fn placed(path: &Path, mut make: impl FnMut(&Path) -> Result<()>) -> Result<()> {
    let folder = path.parent().ok_or(Error::from(ErrorKind::InvalidInput))?;
    std::fs::create_dir_all(folder)?;
    let beside = tempfile::Builder::new().prefix(".").make_in(folder, |path| make(path))?;
    Ok(beside.into_temp_path().persist(path)?)
}

#[cfg(unix)]
fn symlink(target: &str, link: &Path) -> Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &str, link: &Path) -> Result<()> {
    std::os::windows::fs::symlink_file(target.replace('/', "\\"), link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &str, _: &Path) -> Result<()> {
    Err(Error::from(ErrorKind::Unsupported))
}

/// Files below `folder`; what cannot be listed is not in the cache.
fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        match path.is_dir() {
            true => collect_files(&path, files),
            false => files.push(path),
        }
    }
}
