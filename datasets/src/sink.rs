//! Where decoded rows gather: memory up to a limit, then a temporary file.
use crate::mapped::{MappedFile, MappedRows, check_extent};
use crate::source::MemoryRows;
use crate::{Error, Result, RowType, Source};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;

/// A stored value: a byte or a float.
pub(crate) trait Value: bytemuck::Pod + Send + Sync {
    const ROW_TYPE: RowType;
    fn rows(values: Vec<Self>, n_features: usize) -> Result<MemoryRows>;
    fn file(values: Vec<Self>) -> MappedFile;
}

impl Value for u8 {
    const ROW_TYPE: RowType = RowType::U8;
    fn rows(values: Vec<Self>, n_features: usize) -> Result<MemoryRows> {
        MemoryRows::from_u8(values, n_features)
    }
    fn file(values: Vec<Self>) -> MappedFile {
        MappedFile::in_memory(values)
    }
}

impl Value for f32 {
    const ROW_TYPE: RowType = RowType::F32;
    fn rows(values: Vec<Self>, n_features: usize) -> Result<MemoryRows> {
        MemoryRows::from_f32(values, n_features)
    }
    fn file(values: Vec<Self>) -> MappedFile {
        MappedFile::of_floats(values)
    }
}

/// Takes values in row-major order and ends as a [`Source`].
#[derive(Debug)]
pub(crate) struct RowSink<T> {
    n_values: usize,
    limit_bytes: usize,
    memory: Vec<T>,
    spilled: Option<BufWriter<File>>,
}

impl<T: Value> RowSink<T> {
    /// An empty sink that keeps up to `limit_bytes` in memory.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { n_values: 0, limit_bytes, memory: Vec::new(), spilled: None }
    }

    /// Appends values.
    pub(crate) fn push(&mut self, values: &[T]) -> Result<()> {
        self.n_values += values.len();
        if let Some(file) = &mut self.spilled {
            return write(file, values);
        }
        self.memory.extend_from_slice(values);
        if std::mem::size_of_val(self.memory.as_slice()) > self.limit_bytes {
            let file = tempfile::tempfile().map_err(|e| Error::io(&std::env::temp_dir(), e))?;
            let mut file = BufWriter::with_capacity(1 << 20, file);
            write(&mut file, &self.memory)?;
            self.memory = Vec::new();
            self.spilled = Some(file);
        }
        Ok(())
    }

    /// The rows, `n_features` values each; `at` names their origin in errors.
    pub(crate) fn finish(self, at: &str, n_features: usize) -> Result<Arc<dyn Source>> {
        let n_samples = self.n_values / n_features.max(1);
        check_extent(at, n_samples, n_features)?;
        let Some(file) = self.spilled else {
            return match T::rows(self.memory, n_features) {
                Err(Error::NotFinite { row, column, value, .. }) => {
                    Err(Error::NotFinite { at: at.to_owned(), row, column, value })
                }
                rows => Ok(Arc::new(rows?)),
            };
        };
        let rows = MappedRows::new(at, written(file)?, 0, n_samples, n_features, T::ROW_TYPE)?;
        Ok(Arc::new(rows))
    }

    /// The values as a file, for a reader of files.
    pub(crate) fn into_file(self) -> Result<MappedFile> {
        match self.spilled {
            None => Ok(T::file(self.memory)),
            Some(file) => written(file),
        }
    }
}

fn written(file: BufWriter<File>) -> Result<MappedFile> {
    let folder = std::env::temp_dir();
    let file = file.into_inner().map_err(|e| Error::io(&folder, e.into_error()))?;
    MappedFile::of(&file, &folder)
}

fn write<T: Value>(file: &mut BufWriter<File>, values: &[T]) -> Result<()> {
    file.write_all(bytemuck::cast_slice(values)).map_err(|e| Error::io(&std::env::temp_dir(), e))
}
