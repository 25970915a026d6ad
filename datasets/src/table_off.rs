//! In place of the reader of parquet files, in a build without it.
use crate::listing::Listing;
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::path::{Path, PathBuf};

pub(crate) fn open(path: &Path, _: &DataOptions) -> Result<Dataset> {
    Err(Error::without(path.display(), "parquet files", "parquet"))
}

pub(crate) fn files_below(_: &Path, listing: &Listing) -> Result<Vec<PathBuf>> {
    let is_parquet = |path: &&PathBuf| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"));
    Ok(listing.files.iter().filter(is_parquet).cloned().collect())
}

pub(crate) fn open_folder(folder: &Path, _: Vec<PathBuf>, options: &DataOptions) -> Result<Dataset> {
    open(folder, options)
}
