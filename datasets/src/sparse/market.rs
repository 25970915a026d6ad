//! Matrix Market, `.mtx`, plain or gzipped.
//!
//! ```text
//! %%MatrixMarket matrix coordinate real general
//! % comments
//! 3 4 2            rows, columns, entries
//! 1 1 0.5          row, column (from 1), value
//! 3 4 7
//! ```
//!
//! `coordinate` or `array` (all values, column after column); `real`, `integer` or `pattern` (each
//! entry is 1); `general`, `symmetric` or `skew-symmetric` (of which the lower triangle is there).
//!
//! Source: Boisvert, Pozo and Remington, "The Matrix Market exchange formats: initial design",
//! NISTIR 5935, 1996.
use super::{Extent, SparseRows};
use crate::mapped::MappedFile;
use crate::named::Rows;
use crate::npy::with_labels;
use crate::options::DataOptions;
use crate::sink::RowSink;
use crate::{Dataset, Error, Result, count};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Bytes that a line may have.
const MAX_LINE: u64 = 1 << 16;
/// Bytes of a parsed entry: row, column, value.
const ENTRY: usize = 16;
const REMEDY: &str = "copy or make the file again";

/// Whether a file name, in lower case, is one of these files.
pub(crate) fn is_file_name(lower: &str) -> bool {
    lower.strip_suffix(".gz").unwrap_or(lower).ends_with(".mtx")
}

/// A matrix as its file has it.
pub(super) struct Matrix {
    pub(super) shape: [usize; 2],
    symmetry: Symmetry,
    /// Triplets of [`ENTRY`] bytes: row and column from 0, value as f64.
    entries: MappedFile,
}

#[derive(Clone, Copy, PartialEq)]
enum Symmetry {
    General,
    Symmetric,
    Skew,
}

/// The data set of a matrix, or of the other way round.
pub(super) fn dataset(at: &str, matrix: Matrix, turned: bool, options: &DataOptions) -> Result<Dataset> {
    options.refuse_columns(at, "it holds one matrix")?;
    let [mut n_rows, mut n_features] = matrix.shape;
    if turned {
        (n_rows, n_features) = (n_features, n_rows);
    }
    let limit_bytes = options.memory_limit();
    let extent = Extent { n_rows, n_features, keep: options.rows_of(n_rows), limit_bytes };
    let (entries, _) = matrix.entries.bytes().as_chunks::<ENTRY>();
    let rows = SparseRows::gather(at, extent, |take| {
        for entry in entries {
            let (i, j, x) = unpacked(entry);
            let (i, j) = if turned { (j, i) } else { (i, j) };
            take(i, j, x)?;
            match matrix.symmetry {
                Symmetry::Symmetric if i != j => take(j, i, x)?,
                Symmetry::Skew if i != j => take(j, i, -x)?,
                _ => {}
            }
        }
        Ok(())
    })?;
    with_labels(at, Rows { rows: Arc::new(rows), n_rows, image: None }, options)
}

fn packed(i: u32, j: u32, x: f64) -> [u8; ENTRY] {
    bytemuck::cast([u64::from(i) << 32 | u64::from(j), x.to_bits()])
}

fn unpacked(entry: &[u8; ENTRY]) -> (u64, u64, f64) {
    let [place, x]: [u64; 2] = bytemuck::pod_read_unaligned(entry);
    (place >> 32, place & u64::from(u32::MAX), f64::from_bits(x))
}

/// Lines of a file, plain or gzipped, with their numbers.
pub(super) struct Lines {
    at: String,
    packed: bool,
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let packed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        let file = BufReader::with_capacity(1 << 18, File::open(path).map_err(|e| Error::io(path, e))?);
        let reader: Box<dyn BufRead> = match packed {
            true => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))),
            false => Box::new(file),
        };
        Ok(Self { at: path.display().to_string(), packed, reader, line: Vec::new(), number: 0 })
    }

    /// The next line without its end and spaces around it.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        let got = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.line);
        self.number += 1;
        match got {
            Ok(0) => Ok(None),
            Ok(n) if n as u64 == MAX_LINE => Err(self.refused(format!("has more than {MAX_LINE} bytes"))),
            Ok(_) => Ok(Some(self.line.trim_ascii())),
            Err(e) if self.packed => Err(Error::format(&self.at, format!("cannot be unpacked: {e}"), REMEDY)),
            Err(e) => Err(Error::io(Path::new(&self.at), e)),
        }
    }

    fn refused(&self, what: impl std::fmt::Display) -> Error {
        Error::format(&self.at, format!("line {} {what}", self.number), REMEDY)
    }

    /// Reads the next line that is no comment; false at the end.
    fn content(&mut self) -> Result<bool> {
        while let Some(line) = self.next()? {
            if !line.is_empty() && !line.starts_with(b"%") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The line that was read last.
    fn line(&self) -> &[u8] {
        self.line.trim_ascii()
    }
}

/// Reads a file.
pub(super) fn read(path: &Path, options: &DataOptions) -> Result<Matrix> {
    let mut lines = Lines::open(path)?;
    let first =
        lines.next()?.map(|line| String::from_utf8_lossy(line).to_ascii_lowercase()).unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let &["%%matrixmarket", "matrix", form @ ("coordinate" | "array"), field, symmetry] = words.as_slice()
    else {
        return Err(lines.refused("is not '%%MatrixMarket matrix coordinate|array …'"));
    };
    let is_array = form == "array";
    if !matches!(field, "real" | "integer" | "double" | "pattern") || is_array && field == "pattern" {
        return Err(lines.refused(format!("says '{form} {field}', want real, integer or pattern values")));
    }
    let symmetry = match symmetry {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" => Symmetry::Skew,
        other => {
            return Err(lines.refused(format!("says '{other}', want general, symmetric or skew-symmetric")));
        }
    };
    let sizes = if lines.content()? { lines.line() } else { b"" };
    let sizes: Option<Vec<usize>> = fields(sizes).map(|size| usize::try_from(whole(size)?).ok()).collect();
    let (shape, n_entries) = match (sizes.as_deref(), is_array) {
        (Some(&[n, m, entries]), false) => ([n, m], entries),
        (Some(&[n, m]), true) => ([n, m], stored(n, m, symmetry)),
        _ => return Err(lines.refused("does not give the numbers of rows, columns and entries")),
    };
    if shape.iter().any(|&n| n > u32::MAX as usize) {
        return Err(
            lines.refused(format!("gives {} rows and {} columns, more than can be read", shape[0], shape[1]))
        );
    }
    if symmetry != Symmetry::General && shape[0] != shape[1] {
        return Err(
            lines.refused(format!("gives {} rows and {} columns to a symmetric matrix", shape[0], shape[1]))
        );
    }
    let mut sink = RowSink::<u8>::new(options.memory_limit());
    let mut block = Vec::with_capacity(1 << 20);
    let mut n = 0;
    // The place of the next value of an array.
    let (mut i, mut j) = (usize::from(symmetry == Symmetry::Skew), 0);
    while lines.content()? {
        let line = lines.line();
        let mut parts = fields(line);
        let mut index = || whole(parts.next()?).and_then(|i| u32::try_from(i.checked_sub(1)?).ok());
        let place = if is_array { Some((i as u32, j as u32)) } else { index().zip(index()) };
        let value = match field {
            "pattern" => Some(1.),
            _ => parts.next().and_then(|x| std::str::from_utf8(x).ok()?.parse::<f64>().ok()),
        };
        let (Some((row, column)), Some(x)) = (place, value) else {
            let text = String::from_utf8_lossy(line).chars().take(40).collect::<String>();
            let want = if is_array { "a value" } else { "row and column, counted from 1, and value" };
            return Err(lines.refused(format!("is '{text}', want {want}")));
        };
        if row as usize >= shape[0] || column as usize >= shape[1] {
            let [n, m] = shape;
            let (row, column) = (u64::from(row) + 1, u64::from(column) + 1);
            return Err(lines
                .refused(format!("is an entry at row {row}, column {column} of {n} rows and {m} columns")));
        }
        n += 1;
        if is_array {
            i += 1;
            if i >= shape[0] {
                j += 1;
                i = match symmetry {
                    Symmetry::General => 0,
                    Symmetry::Symmetric => j,
                    Symmetry::Skew => j + 1,
                };
            }
        }
        if x == 0. {
            continue;
        }
        block.extend(packed(row, column, x));
        if block.len() >= 1 << 20 {
            sink.push(&block)?;
            block.clear();
        }
    }
    if n != n_entries {
        let at = path.display();
        let what =
            format!("holds {}, its header says {n_entries}", count(n, "entry").replace("entrys", "entries"));
        return Err(Error::format(at, what, REMEDY));
    }
    sink.push(&block)?;
    Ok(Matrix { shape, symmetry, entries: sink.into_file()? })
}

/// Values of an array that are there.
fn stored(n: usize, m: usize, symmetry: Symmetry) -> usize {
    match symmetry {
        Symmetry::General => n.saturating_mul(m),
        Symmetry::Symmetric => n.saturating_mul(n.saturating_add(1)) / 2,
        Symmetry::Skew => n.saturating_mul(n.saturating_sub(1)) / 2,
    }
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

fn whole(field: &[u8]) -> Option<u64> {
    field.iter().try_fold(0u64, |n, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}
