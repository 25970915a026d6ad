//! What a folder holds.
use crate::{Error, Result};
use std::collections::HashSet;
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

/// Files of `folder` and below it that `keep` takes: those of a folder sorted by name, then those
/// of its folders. A folder that links lead to again is passed over, as are those in `seen`.
pub(crate) fn files_below(
    folder: &Path,
    seen: &mut HashSet<PathBuf>,
    keep: &impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>> {
    if !seen.insert(seen_as(folder)) {
        return Ok(Vec::new());
    }
    let listing = Listing::of(folder)?;
    let mut files: Vec<PathBuf> = listing.files.into_iter().filter(|path| keep(path)).collect();
    for below in &listing.folders {
        files.extend(files_below(below, seen, keep)?);
    }
    Ok(files)
}

/// A path without links, by which it is known whatever leads to it.
pub(crate) fn seen_as(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
