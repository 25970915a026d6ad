//! Rows mapped from a file: pages come in when they are read and go when memory is short. Or
//! unpacked from one.
use crate::source::{check_finite, check_read, check_read_finite, gather};
use crate::{Error, Result, RowType, Source, count};
use memmap2::{Mmap, MmapMut};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A whole file, mapped read-only; or what was unpacked from one, in memory.
#[derive(Clone)]
pub(crate) struct MappedFile {
    held: Arc<Held>,
}

enum Held {
    Map(Mmap),
    Memory(Vec<u8>),
    Words(Vec<u32>),
}

impl std::fmt::Debug for MappedFile {
    /// Says how much it is, not what.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedFile").field("n_bytes", &self.bytes().len()).finish()
    }
}

impl MappedFile {
    /// Maps the file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let is_file = file.metadata().map_err(|e| Error::io(path, e))?.is_file();
        if !is_file {
            return Err(Error::format(path.display(), "is not a regular file", "give the path of a file"));
        }
        Self::of(&file, path)
    }

    /// Maps an open file; `path` only words errors.
    pub(crate) fn of(file: &File, path: &Path) -> Result<Self> {
        // SAFETY: the map is private and read-only, its length is the file's at this moment, and
        // every access below is a bounds-checked slice of plain bytes that are copied, never
        // interpreted in place as anything with an invalid bit pattern. What the type system cannot
        // rule out is another process that truncates the file while it is mapped, for which the
        // operating system ends this process (SIGBUS); `crate::open` documents that files must not
        // be changed while in use, as every user of mapped weights already has to obey.
        let map = unsafe { Mmap::map(file) }.map_err(|e| Error::io(path, e))?;
        Ok(Self { held: Arc::new(Held::Map(map)) })
    }

    /// The bytes of a file that was unpacked into memory.
    pub(crate) fn in_memory(bytes: Vec<u8>) -> Self {
        Self { held: Arc::new(Held::Memory(bytes)) }
    }

    /// The bytes of floats in memory.
    pub(crate) fn of_floats(values: Vec<f32>) -> Self {
        // The words take the place of the floats.
        Self { held: Arc::new(Held::Words(values.into_iter().map(f32::to_bits).collect())) }
    }

    /// `n` words that `fill` writes, zeros before it does: in memory up to `limit_bytes`, beyond it
    /// in a temporary file.
    pub(crate) fn of_words(
        n: usize,
        limit_bytes: usize,
        fill: impl FnOnce(&mut [u32]) -> Result<()>,
    ) -> Result<Self> {
        let n_bytes = n.saturating_mul(4);
        if n_bytes <= limit_bytes {
            let mut words = vec![0; n];
            fill(&mut words)?;
            return Ok(Self { held: Arc::new(Held::Words(words)) });
        }
        let failed = |e| Error::io(&std::env::temp_dir(), e);
        let mut file = tempfile::tempfile().map_err(failed)?;
        // Written, so that a full disk is an error here and not a fault where the map is written
        // to.
        std::io::copy(&mut std::io::repeat(0).take(n_bytes as u64), &mut file).map_err(failed)?;
        // SAFETY: the file has no name, so that no other process reaches it, and its length stays;
        // the map starts at a page, so that it is aligned for words, which have no invalid bit
        // patterns.
        let mut map = unsafe { MmapMut::map_mut(&file) }.map_err(failed)?;
        fill(bytemuck::cast_slice_mut(&mut map))?;
        Ok(Self { held: Arc::new(Held::Map(map.make_read_only().map_err(failed)?)) })
    }

    /// The file's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.held.as_ref() {
            Held::Map(map) => map,
            Held::Memory(bytes) => bytes,
            Held::Words(words) => bytemuck::cast_slice(words),
        }
    }

    /// Has the operating system fetch some bytes while others are in use. It may not.
    fn will_read(&self, bytes: Range<usize>) {
        #[cfg(unix)]
        if let Held::Map(map) = self.held.as_ref()
            && bytes.end <= map.len()
        {
            let _ = map.advise_range(memmap2::Advice::WillNeed, bytes.start, bytes.len());
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Row-major values that lie in one stretch of a mapped file.
#[derive(Debug, Clone)]
pub struct MappedRows {
    file: MappedFile,
    start: usize,
    n_samples: usize,
    n_features: usize,
    row_type: RowType,
    /// The name of the file, where rows are looked at when they are read.
    unseen: Option<Arc<str>>,
}

impl MappedRows {
    /// The `n_samples * n_features` native-endian values that begin at byte `start` of the file.
    ///
    /// `at` names the file in errors. Floats are scanned once, in parallel, for NaN and infinity.
    pub(crate) fn new(
        at: &str,
        file: MappedFile,
        start: usize,
        n_samples: usize,
        n_features: usize,
        row_type: RowType,
    ) -> Result<Self> {
        let rows = Self::unseen(at, file, start, n_samples, n_features, row_type)?;
        check_finite(at, row_type, rows.block(), n_features)?;
        Ok(Self { unseen: None, ..rows })
    }

    /// The same without reading them: NaN and infinity are refused when a row is read.
    pub(crate) fn unseen(
        at: &str,
        file: MappedFile,
        start: usize,
        n_samples: usize,
        n_features: usize,
        row_type: RowType,
    ) -> Result<Self> {
        check_extent(at, n_samples, n_features)?;
        let length = n_samples.checked_mul(n_features).and_then(|n| n.checked_mul(row_type.size_bytes()));
        let end = length.and_then(|length| start.checked_add(length));
        match end {
            Some(end) if end <= file.bytes().len() => {}
            _ => {
                return Err(Error::format(
                    at,
                    format!(
                        "truncated: {} of {} need {} bytes, the file has {}",
                        count(n_samples, "row"),
                        count(n_features, "value"),
                        length.map_or_else(|| "more than 2^64".to_owned(), |n| n.to_string()),
                        file.bytes().len().saturating_sub(start)
                    ),
                    "copy or make the file again",
                ));
            }
        }
        Ok(Self { file, start, n_samples, n_features, row_type, unseen: Some(at.into()) })
    }

    fn row_bytes(&self) -> usize {
        self.n_features * self.row_type.size_bytes()
    }

    fn block(&self) -> &[u8] {
        &self.file.bytes()[self.start..self.start + self.n_samples * self.row_bytes()]
    }
}

/// Refuses row counts and lengths that no source may have; `at` names the file.
pub(crate) fn check_extent(at: &str, n_samples: usize, n_features: usize) -> Result<()> {
    if n_samples == 0 || n_features == 0 {
        return Err(Error::format(
            at,
            format!("holds {} of {}", count(n_samples, "row"), count(n_features, "value")),
            "give at least one row of at least one value",
        ));
    }
    if n_samples > u32::MAX as usize {
        return Err(Error::format(
            at,
            format!("holds {n_samples} rows, more than {} can be indexed", u32::MAX),
            "split the file",
        ));
    }
    Ok(())
}

impl Source for MappedRows {
    fn n_samples(&self) -> usize {
        self.n_samples
    }

    fn n_features(&self) -> usize {
        self.n_features
    }

    fn row_type(&self) -> RowType {
        self.row_type
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        gather(self.block(), self.row_bytes(), indices, out);
        match &self.unseen {
            Some(at) => check_read_finite(at, self, indices, out),
            None => Ok(()),
        }
    }

    fn will_read(&self, rows: Range<usize>) {
        let place = |row: usize| self.start + row.min(self.n_samples) * self.row_bytes();
        self.file.will_read(place(rows.start)..place(rows.end));
    }
}
