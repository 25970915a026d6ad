//! A `.safetensors` file: a tensor of rows, perhaps one of labels, perhaps both again for testing.
//!
//! U8 and F32 rows are mapped, F64, F16 and BF16 become f32 in memory. `[n, height, width]` makes grey images,
//! `[n, channels, height, width]` with 1 or 3 channels images.
use crate::convert::{convert, numbers};
use crate::labels::Labels;
use crate::mapped::{MappedFile, MappedRows, check_extent};
use crate::named::{Named, Rows};
use crate::options::DataOptions;
use crate::planes::Layout;
use crate::{Dataset, Error, Result, RowType, Source};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use std::path::Path;
use std::sync::Arc;

/// Opens the tensors.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    crate::named::open(&Tensors::open(path)?, options)
}

struct Tensors {
    at: String,
    file: MappedFile,
    metadata: Metadata,
    /// Where the first tensor's bytes begin.
    start: usize,
}

impl Tensors {
    fn open(path: &Path) -> Result<Self> {
        let at = path.display().to_string();
        let file = MappedFile::open(path)?;
        let bad = |what: String| Error::format(&at, what, "copy or make the file again");
        // `deserialize` also checks that header and file agree in length, which `read_metadata` leaves out.
        SafeTensors::deserialize(file.bytes())
            .map_err(|e| bad(format!("not a whole .safetensors file: {e}")))?;
        let (n, metadata) = SafeTensors::read_metadata(file.bytes())
            .map_err(|e| bad(format!("not a whole .safetensors file: {e}")))?;
        Ok(Self { at, file, metadata, start: 8 + n })
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.metadata.info(name).ok_or_else(|| Error::missing(&self.at, "tensor", name, self.names()))
    }

    fn not_rows(&self, at: &str, info: &TensorInfo) -> Error {
        Error::format(
            at,
            format!("has shape {:?}, want [n_samples, n_features]", info.shape),
            format!("choose another; there are: {}", self.names().join(", ")),
        )
    }

    fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let (from, to) = info.data_offsets;
        self.file.bytes().get(self.start + from..self.start + to).unwrap_or_default()
    }
}

impl Named for Tensors {
    const KIND: &'static str = "tensor";

    fn at(&self) -> &str {
        &self.at
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.metadata.tensors().into_keys().collect();
        names.sort_unstable();
        names
    }

    fn rank(&self, name: &str) -> usize {
        self.metadata.info(name).map_or(0, |info| info.shape.len())
    }

    fn rows(&self, name: &str, options: &DataOptions) -> Result<Rows> {
        let at = format!("{}, tensor '{name}'", self.at);
        let info = self.info(name)?;
        let [n_samples, rest @ ..] = info.shape.as_slice() else {
            return Err(self.not_rows(&at, info));
        };
        if rest.is_empty() {
            return Err(self.not_rows(&at, info));
        }
        let n_features = rest.iter().product();
        check_extent(&at, *n_samples, n_features)?;
        let layout = Layout::of(rest);
        // Columns of the centre would be those of the file.
        let centre = options.centre.clone().filter(|_| !layout.is_some_and(|layout| layout.is_interleaved()));
        let options = &DataOptions { centre, ..options.clone() };
        let start = self.start + info.data_offsets.0;
        let mapped = |row_type| -> Result<Arc<dyn Source>> {
            let file = self.file.clone();
            let rows = MappedRows::new(&at, file, start, *n_samples, n_features, row_type)?;
            Ok(Arc::new(rows))
        };
        let bytes = self.bytes(info);
        let rows = match info.dtype {
            Dtype::U8 => mapped(RowType::U8)?,
            Dtype::F32 => mapped(RowType::F32)?,
            Dtype::F64 => {
                let to_f64 = |b: &[u8; 8]| f64::from_le_bytes(*b);
                convert(&at, bytes, n_features, options, to_f64)?
            }
            Dtype::F16 => {
                let to_f64 = |b: &[u8; 2]| half::f16::from_le_bytes(*b).to_f64();
                convert(&at, bytes, n_features, options, to_f64)?
            }
            Dtype::BF16 => {
                let to_f64 = |b: &[u8; 2]| half::bf16::from_le_bytes(*b).to_f64();
                convert(&at, bytes, n_features, options, to_f64)?
            }
            other => {
                return Err(Error::format(
                    at,
                    format!("holds values of type {other:?}, want U8, F32, F64, F16 or BF16"),
                    "convert it to F32",
                ));
            }
        };
        let rows = match layout {
            Some(layout) => layout.planes(rows),
            None => rows,
        };
        Ok(Rows { rows, n_rows: *n_samples, image: layout.map(|layout| layout.shape) })
    }

    fn labels(&self, name: &str) -> Result<Labels> {
        let at = format!("{}, tensor '{name}'", self.at);
        let info = self.info(name)?;
        let bytes = self.bytes(info);
        if !matches!(info.shape.as_slice(), [_] | [_, 1]) {
            return Ok(Labels::NoClasses(Error::format(
                at,
                format!("has shape {:?}, want [n_samples] for labels", info.shape),
                "save one class number a row",
            )));
        }
        let numbers = match info.dtype {
            Dtype::U8 => numbers(bytes, |b: &[u8; 1]| i64::from(b[0])),
            Dtype::I32 => numbers(bytes, |b| i64::from(i32::from_le_bytes(*b))),
            Dtype::U32 => numbers(bytes, |b| i64::from(u32::from_le_bytes(*b))),
            Dtype::I64 => numbers(bytes, |b| i64::from_le_bytes(*b)),
            other => {
                return Ok(Labels::NoClasses(Error::format(
                    at,
                    format!("holds values of type {other:?}, want U8, I32, U32 or I64 for labels"),
                    "convert it to I64",
                )));
            }
        };
        Ok(Labels::of_numbers(&at, &numbers))
    }
}
