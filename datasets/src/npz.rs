//! NumPy's `.npz`: a zip archive of `.npy` files, stored (`numpy.savez`) or deflated
//! (`numpy.savez_compressed`).
//!
//! An array that is stored is mapped where it lies; one that is deflated is unpacked, into memory
//! up to the limit of the options, beyond it into a temporary file. [`named`](crate::named) says
//! which arrays are rows and labels.
use crate::labels::Labels;
use crate::mapped::MappedFile;
use crate::named::{Named, Rows};
use crate::npy::{Array, MAX_HEADER};
use crate::options::DataOptions;
use crate::sink::RowSink;
use crate::{Error, Result};
use candle::Tensor;
use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::path::Path;
use zip::{CompressionMethod, ZipArchive};

const REMEDY: &str = "copy or make the file again";

/// Bytes that deflate can make of one.
const MOST_PER_BYTE: u64 = 1032;

/// The arrays of these names that a `.npz` file has, on the CPU, in the types that they are stored
/// in: bytes, 32-bit and 64-bit whole numbers and floats.
///
/// # Errors
/// When the file is missing or damaged, or an array is of another type or in Fortran order.
pub fn read_npz(path: &Path, names: &[&str]) -> Result<HashMap<String, Tensor>> {
    let file = MappedFile::open(path)?;
    let archive = Archive::open(path, &file, DataOptions::default().memory_limit())?;
    let there = names.iter().filter(|name| archive.index(name).is_ok());
    there.map(|name| Ok(((*name).to_owned(), archive.array(name)?.tensor()?))).collect()
}

pub(crate) struct Archive<'a> {
    at: String,
    file: &'a MappedFile,
    /// Cheap to clone, as reading needs.
    archive: ZipArchive<Cursor<&'a [u8]>>,
    /// Arrays and their places in the archive.
    arrays: Vec<(String, usize)>,
    limit_bytes: usize,
}

impl<'a> Archive<'a> {
    pub(crate) fn open(path: &Path, file: &'a MappedFile, limit_bytes: usize) -> Result<Self> {
        let at = path.display().to_string();
        let archive = ZipArchive::new(Cursor::new(file.bytes()))
            .map_err(|e| Error::format(&at, format!("not a whole .npz file: {e}"), REMEDY))?;
        let arrays = (0..archive.len())
            .filter_map(|index| {
                let name = archive.name_for_index(index)?.ok()?;
                Some((name.strip_suffix(".npy")?.to_owned(), index))
            })
            .collect();
        Ok(Self { at, file, archive, arrays, limit_bytes })
    }

    fn index(&self, name: &str) -> Result<usize> {
        let mut arrays = self.arrays.iter();
        let found = arrays.find(|(known, _)| known == name).map(|(_, index)| *index);
        found.ok_or_else(|| Error::missing(&self.at, Self::KIND, name, self.names()))
    }

    pub(crate) fn array(&self, name: &str) -> Result<Array> {
        let at = format!("{}, array '{name}'", self.at);
        let damaged = |what: String| Error::format(&at, what, REMEDY);
        let mut archive = self.archive.clone();
        let mut entry =
            archive.by_index(self.index(name)?).map_err(|e| damaged(format!("cannot be read: {e}")))?;
        let (packed, size) = (entry.compressed_size(), entry.size());
        if entry.compression() == CompressionMethod::Stored {
            let place = entry.data_start().and_then(|start| {
                let start = usize::try_from(start).ok()?;
                Some(start..start.checked_add(usize::try_from(size).ok()?)?)
            });
            let stored = place.and_then(|place| Some((self.file.bytes().get(place.clone())?, place)));
            let Some((bytes, place)) = stored else {
                return Err(damaged(format!("truncated: it says that it has {size} bytes")));
            };
            let mut checksum = flate2::Crc::new();
            checksum.update(bytes);
            if checksum.sum() != entry.crc32() {
                return Err(damaged("does not have a matching checksum".to_owned()));
            }
            return Array::within(at, self.file.clone(), place);
        }
        // The size is what the archive says, and not yet what is there.
        if size > packed.saturating_mul(MOST_PER_BYTE) {
            return Err(damaged(format!("says that {packed} bytes unpack to {size}, more than they can")));
        }
        let mut sink = RowSink::new(self.limit_bytes);
        let mut block = vec![0; usize::try_from(size).unwrap_or(usize::MAX).clamp(1, 1 << 20)];
        let mut done = 0;
        loop {
            let got = match entry.read(&mut block) {
                Ok(got) => got,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(damaged(format!("cannot be unpacked: {e}"))),
            };
            done += got as u64;
            if done > size || (got == 0 && done < size) {
                return Err(damaged(format!("unpacks to {done} bytes or more, and says {size}")));
            }
            if got == 0 {
                break;
            }
            sink.push(&block[..got])?;
        }
        let file = sink.into_file()?;
        let all = 0..file.bytes().len();
        Array::within(at, file, all)
    }
}

impl Named for Archive<'_> {
    const KIND: &'static str = "array";

    fn at(&self) -> &str {
        &self.at
    }

    fn names(&self) -> Vec<String> {
        self.arrays.iter().map(|(name, _)| name.clone()).collect()
    }

    fn rank(&self, name: &str) -> usize {
        let mut archive = self.archive.clone();
        let header = self.index(name).ok().and_then(|index| {
            let mut bytes = Vec::new();
            let entry = archive.by_index(index).ok()?;
            entry.take(12 + MAX_HEADER as u64).read_to_end(&mut bytes).ok()?;
            crate::npy::header(name, &bytes).ok()
        });
        header.map_or(0, |(header, _)| header.shape().len())
    }

    fn rows(&self, name: &str, options: &DataOptions) -> Result<Rows> {
        self.array(name)?.rows(options)
    }

    fn labels(&self, name: &str) -> Result<Labels> {
        self.array(name)?.labels()
    }
}
