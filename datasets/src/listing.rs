//! What a folder holds.
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// What a folder holds, sorted by name; hidden entries are left out.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) folders: Vec<PathBuf>,
}

impl Listing {
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let mut listing = Self::default();
        for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
            let path = entry.map_err(|e| Error::io(folder, e))?.path();
            if name_of(&path).starts_with('.') {
                continue;
            }
            match path.is_dir() {
                true => listing.folders.push(path),
                false => listing.files.push(path),
            }
        }
        listing.files.sort();
        listing.folders.sort();
        Ok(listing)
    }

    pub(crate) fn folder(&self, name: &str) -> Option<&Path> {
        let mut folders = self.folders.iter();
        folders.find(|path| name_of(path) == name).map(PathBuf::as_path)
    }
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
