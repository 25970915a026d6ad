//! NumPy's `.npy`: one array, `[n_samples, …]` in C order.
//!
//! Bytes (`|u1`) and single precision (`<f4`) are mapped; double precision (`<f8`) and truth values (`|b1`) become f32 in
//! memory. `[n, height, width]` makes grey images.
use crate::convert::{class_numbers, convert, numbers};
use crate::mapped::{MappedFile, MappedRows, check_extent};
use crate::options::DataOptions;
use crate::{Dataset, Error, ImageShape, Result, RowType, Source, Split};
use npyz::{DType, NpyHeader, Order};
use std::path::Path;
use std::sync::Arc;

/// Opens an array, and the labels when the options name a second file for them.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let array = Array::open(path)?;
    let (rows, image) = array.rows(options)?;
    let labels = match &options.labels {
        None => None,
        Some(labels_path) => Some(read_labels(Path::new(labels_path))?),
    };
    let at = match &options.labels {
        None => array.at.clone(),
        Some(labels_path) => format!("{} and {labels_path}", array.at),
    };
    let split = Split::join(at, rows, array.shape[0], labels)?;
    Dataset::new(path.display().to_string(), split, None, image, None)
}

/// An array's place in its file.
struct Array {
    at: String,
    file: MappedFile,
    /// As NumPy writes it: `<f4`.
    descr: String,
    start: usize,
    shape: Vec<usize>,
}

impl Array {
    fn open(path: &Path) -> Result<Self> {
        let at = path.display().to_string();
        let file = MappedFile::open(path)?;
        let bytes = file.bytes();
        if !bytes.starts_with(b"\x93NUMPY") {
            return Err(Error::format(at, "wrong magic number: not a .npy file", "write it with numpy.save"));
        }
        let mut rest = bytes;
        let header = NpyHeader::from_reader(&mut rest).map_err(|e| {
            Error::format(
                &at,
                format!("the header cannot be read: {e}"),
                "write the file again with numpy.save",
            )
        })?;
        let start = bytes.len() - rest.len();
        let descr = match header.dtype() {
            DType::Plain(descr) => descr.to_string(),
            other => other.descr(),
        };
        if header.order() != Order::C && header.shape().len() > 1 {
            return Err(Error::format(
                at,
                "the array is in Fortran order",
                "save numpy.ascontiguousarray(x)",
            ));
        }
        let shape =
            header.shape().iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>().map_err(
                |_| {
                    Error::format(
                        &at,
                        format!("shape {:?} is beyond any file", header.shape()),
                        "write the file again with numpy.save",
                    )
                },
            )?;
        Ok(Self { at, file, descr, start, shape })
    }

    /// The values, `size` bytes each.
    fn values(&self, size: usize) -> Result<&[u8]> {
        let there = self.file.bytes().get(self.start..).unwrap_or_default();
        self.shape
            .iter()
            .try_fold(size, |product, &d| product.checked_mul(d))
            .and_then(|length| there.get(..length))
            .ok_or_else(|| {
                Error::format(
                    &self.at,
                    format!(
                        "truncated: shape {:?} of {} needs more than the {} bytes there",
                        self.shape,
                        self.descr,
                        there.len()
                    ),
                    "copy or make the file again",
                )
            })
    }

    /// The rows, and their shape when they are images.
    fn rows(&self, options: &DataOptions) -> Result<(Arc<dyn Source>, Option<ImageShape>)> {
        let (n_samples, rest) = match self.shape.as_slice() {
            [] | [_] => {
                return Err(Error::format(
                    &self.at,
                    format!("has shape {:?}, want [n_samples, n_features]", self.shape),
                    "reshape it; a single column is x[:, None]",
                ));
            }
            [n, rest @ ..] => (*n, rest),
        };
        let n_features = rest.iter().try_fold(1usize, |product, &d| product.checked_mul(d)).unwrap_or(0);
        check_extent(&self.at, n_samples, n_features)?;
        let image = match *rest {
            [height, width] => Some(ImageShape::grey(height, width)),
            _ => None,
        };
        let at = self.at.clone();
        let mapped = |row_type: RowType| -> Result<Arc<dyn Source>> {
            self.values(row_type.size_bytes())?;
            let (file, start) = (self.file.clone(), self.start);
            let rows = MappedRows::new(&at, file, start, n_samples, n_features, row_type)?;
            Ok(Arc::new(rows))
        };
        let rows = match self.descr.as_str() {
            "|u1" => mapped(RowType::U8)?,
            "<f4" => mapped(RowType::F32)?,
            "<f8" => {
                let to_f32 = |b: &[u8; 8]| f64::from_le_bytes(*b) as f32;
                convert(&at, self.values(8)?, n_features, options, to_f32)?
            }
            "|b1" => {
                let to_f32 = |b: &[u8; 1]| f32::from(u8::from(b[0] != 0));
                convert(&at, self.values(1)?, n_features, options, to_f32)?
            }
            _ => {
                return Err(self.wrong_type("|u1, |b1, <f4 or <f8", "save x.astype('float32')"));
            }
        };
        Ok((rows, image))
    }

    fn wrong_type(&self, want: &str, fix: &str) -> Error {
        Error::format(&self.at, format!("holds values of type {}, want {want}", self.descr), fix)
    }
}

fn read_labels(path: &Path) -> Result<Vec<u32>> {
    let array = Array::open(path)?;
    if array.shape.len() != 1 {
        return Err(Error::format(
            &array.at,
            format!("has shape {:?}, want [n_samples] for labels", array.shape),
            "save y.ravel()",
        ));
    }
    let numbers = match array.descr.as_str() {
        "|u1" => numbers(array.values(1)?, |b: &[u8; 1]| i64::from(b[0])),
        "<i4" => numbers(array.values(4)?, |b| i64::from(i32::from_le_bytes(*b))),
        "<u4" => numbers(array.values(4)?, |b| i64::from(u32::from_le_bytes(*b))),
        "<i8" => numbers(array.values(8)?, |b| i64::from_le_bytes(*b)),
        _ => {
            let want = "|u1, <i4, <u4 or <i8 for labels";
            return Err(array.wrong_type(want, "save y.astype('int64')"));
        }
    };
    class_numbers(&array.at, &numbers)
}
