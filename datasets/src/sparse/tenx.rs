//! The folder that 10x Genomics' programs write: `matrix.mtx` with a column for each barcode,
//! `barcodes.tsv`, and `features.tsv` or `genes.tsv`; each plain or gzipped, perhaps all with one
//! prefix. A row of the data set is a barcode.
use super::market::{Lines, dataset, read};
use crate::listing::{Listing, name_of};
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::path::{Path, PathBuf};

/// The files of one matrix.
pub(crate) struct Tenx {
    matrix: PathBuf,
    barcodes: PathBuf,
    features: PathBuf,
}

/// The matrix of a folder with these files, if it is such a folder.
pub(crate) fn find(files: &[PathBuf]) -> Result<Option<Tenx>> {
    let matrices: Vec<&PathBuf> = files.iter().filter(|path| prefix(path).is_some()).collect();
    match matrices.as_slice() {
        [] => Ok(None),
        [one] => of(one, files),
        [first, second, ..] => Err(Error::format(
            first.parent().unwrap_or(first).display(),
            format!("holds several matrices: {}, {}", name_of(first), name_of(second)),
            "give the path of one of them",
        )),
    }
}

/// Opens the matrix of a file: its rows, or its columns where barcodes lie beside it.
pub(crate) fn open_matrix(path: &Path, options: &DataOptions) -> Result<Dataset> {
    match beside(path)? {
        Some(tenx) => tenx.open(options),
        None => dataset(&path.display().to_string(), read(path, options)?, false, options),
    }
}

/// The same as [`find`] for the file of a matrix.
fn beside(matrix: &Path) -> Result<Option<Tenx>> {
    if prefix(matrix).is_none() || !matrix.is_file() {
        return Ok(None);
    }
    let folder = matrix.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    of(matrix, &Listing::of(folder)?.files)
}

/// What the name of a matrix begins with, if it is one.
fn prefix(path: &Path) -> Option<String> {
    let name = name_of(path);
    Some(name.strip_suffix(".gz").unwrap_or(&name).strip_suffix("matrix.mtx")?.to_owned())
}

fn of(matrix: &Path, files: &[PathBuf]) -> Result<Option<Tenx>> {
    let Some(prefix) = prefix(matrix) else { return Ok(None) };
    let named = |name: &str| {
        let of_name = |path: &&PathBuf| {
            let there = name_of(path);
            there.strip_suffix(".gz").unwrap_or(&there) == format!("{prefix}{name}")
        };
        files.iter().find(of_name).cloned()
    };
    let features = ["features.tsv", "genes.tsv"].into_iter().find_map(named);
    Ok(named("barcodes.tsv").zip(features).map(|(barcodes, features)| Tenx {
        matrix: matrix.to_owned(),
        barcodes,
        features,
    }))
}

impl Tenx {
    /// Opens the matrix with a row for each barcode.
    pub(crate) fn open(&self, options: &DataOptions) -> Result<Dataset> {
        let (n_features, n_barcodes) = (n_lines(&self.features)?, n_lines(&self.barcodes)?);
        let matrix = read(&self.matrix, options)?;
        let at = self.matrix.display().to_string();
        // Some programs write a row for each barcode.
        let turned = match matrix.shape {
            [n, m] if (n, m) == (n_features, n_barcodes) => true,
            [n, m] if (n, m) == (n_barcodes, n_features) => false,
            [n, m] => {
                return Err(Error::format(
                    at,
                    format!(
                        "has {n} rows and {m} columns, but {} has {n_features} lines and {} {n_barcodes}",
                        name_of(&self.features),
                        name_of(&self.barcodes)
                    ),
                    "give files of one matrix, or move the matrix to a folder of its own",
                ));
            }
        };
        dataset(&at, matrix, turned, options)
    }
}

/// Lines with something in them.
fn n_lines(path: &Path) -> Result<usize> {
    let mut lines = Lines::open(path)?;
    let mut n = 0;
    while let Some(line) = lines.next()? {
        n += usize::from(!line.is_empty());
    }
    Ok(n)
}
