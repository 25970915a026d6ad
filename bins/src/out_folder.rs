//! Folders that commands write files to which are no runs of their own.
use crate::run_folder::RunFolder;
use crate::session::info;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder that a command writes files to, but is not its own: that of a run, which lists them, or
/// any.
#[derive(Debug, Clone)]
pub enum OutFolder {
    /// That of a run.
    Run(RunFolder),
    /// Another one.
    Plain(PathBuf),
}

impl OutFolder {
    /// The folder that the option `--out` named, which is made if need be.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn asked(out: &Path) -> Result<Self> {
        fs::create_dir_all(out)
            .with_context(|| format!("--out {}: cannot make this folder", out.display()))?;
        Self::at(out)
    }

    /// A folder that there is.
    ///
    /// # Errors
    /// When there is none.
    pub fn at(folder: &Path) -> Result<Self> {
        match folder.join(info::FILE).exists() {
            true => RunFolder::open(folder).map(Self::Run),
            false => Ok(Self::Plain(folder.to_owned())),
        }
    }

    /// The path of a file in it, to read.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Run(folder) => folder.join(name),
            Self::Plain(folder) => folder.join(name),
        }
    }

    /// The path of a file that is about to be written.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        match self {
            Self::Run(folder) => folder.file(name),
            Self::Plain(_) => Ok(self.path(name)),
        }
    }
}
