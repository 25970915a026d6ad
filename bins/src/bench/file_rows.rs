//! Random rows in a temporary file, which are opened as users open theirs.
use super::stream::fill_randomly;
use crate::progress::Spinner;
use anyhow::{Context, Result};
use chandlery_datasets::whole::ScratchFile;
use chandlery_datasets::{DataOptions, Split};
use npyz::{AutoSerialize, WriteOptions, WriterBuilder};
use std::io::Write;
use std::path::Path;

/// Bytes that are made at a time.
const BLOCK: usize = 8 << 20;

/// A file of rows of bytes, deleted when this is dropped.
pub(super) struct FileRows {
    file: ScratchFile,
}

impl FileRows {
    /// Writes a `.npy` file with the rows of [`synthetic_rows`](super::stream::synthetic_rows) into
    /// `folder`, and waits until it is on the disk.
    pub(super) fn write(folder: &Path, (n_samples, n_features): (usize, usize)) -> Result<Self> {
        let mut file = ScratchFile::create(folder, ".npy")?;
        let at = file.path().display().to_string();
        let _spinner = Spinner::new(&format!("writing {at}"));
        let mut write = || -> std::io::Result<()> {
            WriteOptions::new_header_only()
                .dtype(u8::default_dtype())
                .shape(&[n_samples as u64, n_features as u64])
                .writer(file.file())
                .write_header_only()?;
            let n = n_samples * n_features;
            let mut block = vec![0; BLOCK.min(n)];
            for start in (0..n).step_by(BLOCK) {
                let block = &mut block[..BLOCK.min(n - start)];
                fill_randomly(block, start);
                file.file().write_all(block)?;
            }
            file.file().sync_all()
        };
        write().with_context(|| format!("{at}: cannot write"))?;
        Ok(Self { file })
    }

    /// Maps the file.
    pub(super) fn open(&self) -> Result<Split> {
        let path = self.file.path();
        let path = path.to_str().with_context(|| format!("{}: must be UTF-8", path.display()))?;
        Ok(chandlery_datasets::open(path, &DataOptions::default())?.train)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::stream::synthetic_rows;
    use super::*;
    use candle::Device;
    use std::fs;

    #[test]
    fn a_file_holds_the_rows_of_memory_and_is_deleted_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        // More than one block, and no whole number of them.
        let (n_samples, n_features) = (BLOCK / 1000 + 3, 1001);
        let file = FileRows::write(folder.path(), (n_samples, n_features)).unwrap();
        let values =
            |split: Split| split.raw(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap();
        let of_memory = synthetic_rows(n_samples, n_features).unwrap();
        assert!(values(file.open().unwrap()) == values(of_memory));
        let another = FileRows::write(folder.path(), (1, 1)).unwrap();
        assert_eq!((another.open().unwrap().n_samples(), file.open().unwrap().n_samples()), (1, n_samples));
        drop((file, another));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
