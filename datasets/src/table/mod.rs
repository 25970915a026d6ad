//! Parquet: a column of images, a column of vectors, or numeric columns; and labels.
//!
//! Only the chosen columns are read, a few thousand rows at a time. A column of images is one of
//! encoded bytes (as in the hub's `struct<bytes, path>`). A column of vectors is a list, or a list
//! of lists, of numbers of one length; lists of unsigned 8-bit integers stay bytes, all other
//! numbers become f32, decimals too. Dates, texts and the index of pandas are left out with a note.
//! Labels are whole numbers or texts; texts are numbered in their alphabetic order, and -1
//! throughout, the hub's way to hide labels, means none.
//!
//! In a build without the feature `parquet` the files are found and refused.
#[cfg(feature = "parquet")]
mod classes;
#[cfg(feature = "parquet")]
mod leaf;
#[cfg(feature = "parquet")]
mod pages;
#[cfg(feature = "parquet")]
mod read;
#[cfg(feature = "parquet")]
mod schema;
mod splits;
#[cfg(feature = "parquet")]
mod types;

use crate::decode::AnyImages;
use crate::options::DataOptions;
use crate::{Dataset, Result};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

#[cfg(feature = "parquet")]
pub(crate) use read::{open_files, open_images};
pub(crate) use splits::{Shard, choose};

/// What to do about a damaged file from disk.
const REMEDY: &str = "copy or make the file again";

/// Opens one file as a training split.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let at = path.display().to_string();
    open_files(&at, &[path.to_owned()], &[], options, &|_| REMEDY.to_owned())
}

/// Parquet files in a folder and below it.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_parquet = |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"));
    crate::listing::files_below(folder, &mut HashSet::new(), &is_parquet)
}

/// Opens parquet files of a folder, whose names tell the splits apart.
pub(crate) fn open_folder(folder: &Path, files: Vec<PathBuf>, options: &DataOptions) -> Result<Dataset> {
    let at = folder.display().to_string();
    let [train, test] = splits_of(folder, files, options)?;
    open_files(&at, &train, &test, options, &|_| REMEDY.to_owned())
}

/// The files of the training split and of the test split.
fn splits_of(folder: &Path, files: Vec<PathBuf>, options: &DataOptions) -> Result<[Vec<PathBuf>; 2]> {
    let shards = files
        .iter()
        .map(|path| Shard::of(&path.strip_prefix(folder).unwrap_or(path).to_string_lossy()))
        .collect();
    let chosen = choose(&folder.display().to_string(), shards, options)?;
    Ok([chosen.train, chosen.test].map(|shards| shards.iter().map(|s| folder.join(&s.path)).collect()))
}

/// The images of the training split of a parquet file or of a folder with some, of any sizes; none
/// if `path` is neither.
pub(crate) fn images_at(path: &Path, options: &DataOptions) -> Result<Option<AnyImages>> {
    let files = if path.is_dir() {
        let files = files_below(path)?;
        if files.is_empty() {
            return Ok(None);
        }
        let [train, _] = splits_of(path, files, options)?;
        train
    } else if path.is_file() && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet")) {
        vec![path.to_owned()]
    } else {
        return Ok(None);
    };
    open_images(&path.display().to_string(), &files, options, &|_| REMEDY.to_owned()).map(Some)
}

#[cfg(not(feature = "parquet"))]
fn open_files(
    at: &str,
    _train: &[PathBuf],
    _test: &[PathBuf],
    _: &DataOptions,
    _remedy: &dyn Fn(&Path) -> String,
) -> Result<Dataset> {
    Err(crate::Error::without(at, "parquet files", "parquet"))
}

#[cfg(not(feature = "parquet"))]
fn open_images(
    at: &str,
    _files: &[PathBuf],
    _: &DataOptions,
    _remedy: &dyn Fn(&Path) -> String,
) -> Result<AnyImages> {
    Err(crate::Error::without(at, "parquet files", "parquet"))
}
