//! Formats of files, by the endings of names.
use crate::mapped::MappedFile;
use crate::named::Named;
use crate::npz::Archive;
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::path::Path;

/// A format of files.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    /// Opens a file.
    pub(crate) read: fn(&Path, &DataOptions) -> Result<Dataset>,
    /// Whether a table in text.
    pub(crate) is_text: bool,
    /// Whether splits are arrays of the file, so that no other file is one.
    pub(crate) has_splits: bool,
    /// Whether the rows of a data set may be bytes or the same numbers of another type.
    pub(crate) has_scale: fn(&Dataset) -> bool,
}

impl Format {
    const fn of(read: fn(&Path, &DataOptions) -> Result<Dataset>) -> Self {
        Self { read, is_text: false, has_splits: false, has_scale: |_| false }
    }
}

pub(crate) const NPY: Format = Format { has_scale: |_| true, ..Format::of(crate::npy::open) };
pub(crate) const NPZ: Format = Format { has_scale: |_| true, has_splits: true, ..Format::of(npz) };
pub(crate) const SAFETENSORS: Format =
    Format { has_scale: |_| true, has_splits: true, ..Format::of(crate::tensors::open) };
pub(crate) const PARQUET: Format =
    Format { has_scale: Dataset::is_of_vectors, ..Format::of(crate::table::open) };
pub(crate) const CSV: Format = Format { is_text: true, ..Format::of(crate::delimited::open) };
pub(crate) const MATRIX_MARKET: Format = Format::of(crate::sparse::tenx::open_matrix);
pub(crate) const IDX: Format = Format::of(crate::idx::open_file);
#[cfg(feature = "hdf5")]
pub(crate) const HDF5: Format = Format::of(crate::sparse::hdf5::open);
#[cfg(not(feature = "hdf5"))]
pub(crate) const HDF5: Format = Format::of(|path, _| Err(Error::without(path.display(), "HDF5", "hdf5")));

/// Opens the arrays of a `.npz` file, or the matrix that they are.
fn npz(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let file = MappedFile::open(path)?;
    let archive = Archive::open(path, &file, options.memory_limit())?;
    match crate::sparse::scipy::is_matrix(&archive.names()) {
        true => crate::sparse::scipy::open(&archive, options),
        false => crate::named::open(&archive, options),
    }
}

/// The format of a file, by its name.
pub(crate) fn format_of(path: &Path) -> Result<Format> {
    let lower = path.display().to_string().to_ascii_lowercase();
    let ends = |ending: &str| lower.ends_with(ending);
    Ok(match () {
        () if ends(".npy") => NPY,
        () if ends(".npz") => NPZ,
        () if ends(".safetensors") => SAFETENSORS,
        () if ends(".parquet") => PARQUET,
        () if crate::delimited::is_file_name(&lower) => CSV,
        () if crate::sparse::market::is_file_name(&lower) => MATRIX_MARKET,
        () if ends(".h5ad") || ends(".h5") => HDF5,
        () if crate::idx::is_idx_name(&lower) => IDX,
        () => return Err(Error::UnknownSpec { spec: path.display().to_string() }),
    })
}
