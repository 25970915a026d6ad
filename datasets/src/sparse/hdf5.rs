//! HDF5: `.h5ad` of AnnData, and `.h5` of 10x Genomics.
//!
//! | file         | rows                                                  | labels                                            |
//! |--------------|-------------------------------------------------------|---------------------------------------------------|
//! | AnnData      | `X`, or as the options say `layers/NAME`, `obsm/NAME` | a column of `obs`: categories, texts, whole numbers |
//! | 10x, 3 and on | `matrix`, a row for each barcode                     |                                                   |
//! | 10x, up to 2 | the only group, a row for each barcode                |                                                   |
//!
//! A matrix is a group of `data`, `indices`, `indptr` (csr or csc by its attribute), or a dense
//! array. It is read a block at a time, twice where it is sparse.
use super::{Extent, SparseRows, Take};
use crate::guard::caught;
use crate::labels::{Classes, Labels, Texts};
use crate::options::DataOptions;
use crate::rounded::RoundedSink;
use crate::{Dataset, Error, Result, Source, Split};
use hdf5_reader::{
    ByteOrder, Datatype, H5Type, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem, StringSize,
    dtype_element_size,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const REMEDY: &str = "copy or make the file again";
/// Values that are read at once.
const BLOCK: usize = 1 << 18;
/// Bytes of one chunk, and of what is read whole: pointers, names.
const MOST_CHUNK: usize = 256 << 20;

/// Opens the file.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    caught(|| opened(path, options))
        .unwrap_or_else(|| Err(damaged(&path.display().to_string(), "it is damaged")))
}

fn opened(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let at = path.display().to_string();
    std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    let limits = OpenOptions::default().with_max_chunk_bytes(MOST_CHUNK);
    let file = Hdf5File::open_with_options(path, limits).map_err(|e| damaged(&at, e))?;
    let of = File { at: &at, file: &file, options };
    let (groups, datasets) =
        file.root_group().and_then(|root| root.member_names()).map_err(|e| damaged(&at, e))?;
    let is_anndata = groups.iter().chain(&datasets).any(|name| name == "X");
    if is_anndata || options.features.is_some() {
        return of.anndata(options.features.as_deref().unwrap_or("X"));
    }
    let is_matrix = |name: &&String| of.has(name, "indptr");
    match groups.iter().filter(is_matrix).collect::<Vec<_>>().as_slice() {
        [only] => of.tenx(only),
        _ => Err(Error::format(
            at,
            format!(
                "holds neither X nor the matrix of 10x Genomics; there are: {}",
                [groups, datasets].concat().join(", ")
            ),
            "name the rows by `DataOptions::features`",
        )),
    }
}

fn damaged(at: &str, e: impl std::fmt::Display) -> Error {
    Error::format(at, format!("cannot be read as HDF5: {e}"), REMEDY)
}

struct File<'a> {
    at: &'a str,
    file: &'a Hdf5File,
    options: &'a DataOptions,
}

impl File<'_> {
    fn has(&self, group: &str, name: &str) -> bool {
        self.file.dataset(&format!("{group}/{name}")).is_ok()
    }

    fn array(&self, path: &str) -> Result<Array> {
        let at = format!("{}, array '{path}'", self.at);
        let array = self.file.dataset(path).map_err(|e| damaged(&at, e))?;
        let shape = array.shape().iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        Ok(Array { at, array, shape })
    }

    /// The matrix at `path`, and labels of its rows.
    fn anndata(&self, path: &str) -> Result<Dataset> {
        let rows = if self.has(path, "indptr") { self.group(path)? } else { self.dense(path)? };
        let Some(name) = self.options.named_labels() else {
            return Dataset::new(self.at, Split::new(rows, None)?, None, None);
        };
        let Classes { numbers, names, left_out } = self.labels(name)?;
        let Some(mut labels) = numbers else {
            return Ok(Dataset::new(self.at, Split::new(rows, None)?, None, None)?.without_labels(left_out));
        };
        if labels.len() < rows.n_samples()
            || self.options.max_rows.is_none() && labels.len() != rows.n_samples()
        {
            let (n_rows, n_labels) = (rows.n_samples(), labels.len());
            return Err(Error::Labels {
                at: format!("{}, column '{name}' of obs", self.at),
                n_rows,
                n_labels,
            });
        }
        labels.truncate(rows.n_samples());
        Dataset::new(self.at, Split::new(rows, Some(labels))?, None, names)
    }

    /// A sparse matrix, by rows or columns as its attributes say.
    fn group(&self, path: &str) -> Result<Arc<dyn Source>> {
        let refused = |what: String| Error::format(format!("{}, '{path}'", self.at), what, REMEDY);
        let group = self.file.group(path).map_err(|e| damaged(self.at, e))?;
        let text = |name: &str| group.attribute(name).and_then(|attribute| attribute.read_string()).ok();
        let form = text("encoding-type").or_else(|| text("h5sparse_format")).unwrap_or_default();
        let turned = match form.as_str() {
            "csr_matrix" | "csr" => false,
            "csc_matrix" | "csc" => true,
            other => {
                return Err(refused(format!(
                    "is a matrix of encoding '{other}', want csr_matrix or csc_matrix"
                )));
            }
        };
        let shape = ["shape", "h5sparse_shape"].into_iter().find_map(|name| group.attribute(name).ok());
        let shape = shape.and_then(|shape| shape.read_1d::<Number>().ok()).unwrap_or_default();
        self.sparse(path, &shape, turned, false)
    }

    /// The matrix that 10x Genomics' programs write: pointers of barcodes, the shape that of
    /// features by barcodes.
    fn tenx(&self, path: &str) -> Result<Dataset> {
        self.options.refuse_labels(self.at, "it holds the matrix of 10x Genomics")?;
        let shape = self.array(&format!("{path}/shape"))?.whole()?;
        Dataset::new(self.at, Split::new(self.sparse(path, &shape, false, true)?, None)?, None, None)
    }

    /// `turned` where pointers are those of columns, `reversed` where the shape is that of the
    /// matrix the other way round.
    fn sparse(&self, path: &str, shape: &[Number], turned: bool, reversed: bool) -> Result<Arc<dyn Source>> {
        let at = format!("{}, '{path}'", self.at);
        let refused = |what: String| Error::format(&at, what, REMEDY);
        let (n_rows, n_features) = match *shape {
            [n, m] if reversed => (m.size(), n.size()),
            [n, m] => (n.size(), m.size()),
            _ => return Err(refused(format!("has a shape of {} numbers, want 2", shape.len()))),
        };
        let [indptr, indices, data] =
            ["indptr", "indices", "data"].map(|name| self.array(&format!("{path}/{name}")));
        let (indptr, indices, data) = (indptr?.whole()?, indices?, data?);
        let majors = if turned { n_features } else { n_rows };
        if indptr.len() != majors.saturating_add(1) {
            return Err(refused(format!("has {} pointers for {majors} rows or columns", indptr.len())));
        }
        let (n, pointers) = (indices.len(), || indptr.iter().map(|p| p.size()));
        if pointers().next() != Some(0)
            || pointers().next_back() != Some(n)
            || !pointers().is_sorted()
            || data.len() != n
        {
            return Err(refused(format!(
                "must have pointers that ascend from 0 to the number of indices and of values, got {n} and {}",
                data.len()
            )));
        }
        let limit_bytes = self.options.memory_limit();
        let extent = Extent { n_rows, n_features, keep: self.options.rows_of(n_rows), limit_bytes };
        let rows = SparseRows::gather(&at, extent, |take: &mut Take<'_>| {
            let mut ends = pointers().skip(1).enumerate().peekable();
            for start in (0..n).step_by(BLOCK) {
                let place = start..n.min(start + BLOCK);
                let (indices, data) = (indices.flat(place.clone())?, data.flat(place.clone())?);
                for ((e, index), x) in place.zip(indices).zip(data) {
                    while ends.next_if(|(_, end)| *end <= e).is_some() {}
                    let major = ends.peek().map_or(u64::MAX, |(major, _)| *major as u64);
                    let minor = index.size() as u64;
                    let (i, j) = if turned { (minor, major) } else { (major, minor) };
                    take(i, j, x.0)?;
                }
            }
            Ok(())
        })?;
        Ok(Arc::new(rows))
    }

    fn dense(&self, path: &str) -> Result<Arc<dyn Source>> {
        let array = self.array(path)?;
        let &[n, width] = array.shape.as_slice() else {
            let what = format!("has shape {:?}, want [n_samples, n_features]", array.shape);
            return Err(Error::format(&array.at, what, "name other rows by `DataOptions::features`"));
        };
        crate::mapped::check_extent(&array.at, n, width)?;
        let mut sink = RoundedSink::new(self.options.memory_limit(), self.options.centre.clone());
        let keep = self.options.rows_of(n);
        let at_once = (BLOCK / width).max(1);
        for start in (0..keep).step_by(at_once) {
            let values = array.read(&[start..keep.min(start + at_once), 0..width])?;
            let values: Vec<f64> = values.into_iter().map(|x| x.0).collect();
            sink.push(&values, width)?;
        }
        sink.finish(&array.at, width)
    }

    /// Class numbers by a column of `obs`, and the names of the classes where they are texts.
    fn labels(&self, name: &str) -> Result<Classes> {
        let at = format!("{}, column '{name}' of obs", self.at);
        let (column, categories) = match self.file.dataset("obs") {
            // Before its version 0.7 AnnData wrote one array of records.
            Ok(records) => (self.field(&records, name)?, self.names(&format!("uns/{name}_categories"))?),
            Err(_) => self.member(name)?,
        };
        let mut texts = Texts::new(at.clone(), "row");
        match (column, categories) {
            (Column::Numbers(codes), Some(names)) => {
                for (row, code) in (0..).zip(codes) {
                    let Some(name) = names.get(code.size()) else {
                        let what = format!("row {row} has no category");
                        return Err(Error::format(at, what, "leave out such rows, or choose another column"));
                    };
                    texts.push(name, row);
                }
            }
            (Column::Texts(values), _) => (0..).zip(&values).for_each(|(row, text)| texts.push(text, row)),
            (Column::Numbers(numbers), None) => {
                let numbers: Vec<f64> = numbers.into_iter().map(|x| x.0).collect();
                return Ok(Labels::of_floats(&at, &numbers).of_training());
            }
        }
        Ok(Classes::of(texts.numbered()))
    }

    /// A column that is an array, or a group of codes and categories; in old files all categories
    /// lie in a group of their own.
    fn member(&self, name: &str) -> Result<(Column, Option<Vec<String>>)> {
        let path = format!("obs/{name}");
        let codes = if self.has(&path, "codes") { format!("{path}/codes") } else { path.clone() };
        let Ok(column) = self.array(&codes) else {
            let (groups, columns) =
                self.file.group("obs").and_then(|obs| obs.member_names()).unwrap_or_default();
            return Err(Error::missing(self.at, "column", name, groups.iter().chain(&columns)));
        };
        let mut categories = self.names(&format!("{path}/categories"))?;
        if categories.is_none() {
            categories = self.names(&format!("obs/__categories/{name}"))?;
        }
        let column = match column.array.read_strings() {
            Ok(texts) if categories.is_none() => Column::Texts(texts),
            _ => Column::Numbers(column.whole()?),
        };
        Ok((column, categories))
    }

    /// Names of categories, which may be numbers, where there are some at `path`.
    fn names(&self, path: &str) -> Result<Option<Vec<String>>> {
        let Ok(categories) = self.file.dataset(path) else { return Ok(None) };
        Ok(Some(match categories.read_strings() {
            Ok(names) => names,
            Err(_) => self.array(path)?.whole()?.into_iter().map(|x| x.0.to_string()).collect(),
        }))
    }

    /// A field of an array of records.
    fn field(&self, records: &hdf5_reader::Dataset, name: &str) -> Result<Column> {
        let at = format!("{}, column '{name}' of obs", self.at);
        let refused = |what: &str| Error::format(&at, what, "write the file by a newer version of AnnData");
        let Datatype::Compound { size, fields } = records.dtype() else {
            return Err(refused("lies in an array that is none of records"));
        };
        let Some(field) = fields.iter().find(|field| field.name == name) else {
            return Err(Error::missing(self.at, "column", name, fields.iter().map(|field| &field.name)));
        };
        if records.raw_byte_len().map_err(|e| damaged(&at, e))? > MOST_CHUNK {
            return Err(refused("lies in an array of records that is too large"));
        }
        let bytes = records.read_raw_bytes().map_err(|e| damaged(&at, e))?;
        let (start, width) = (field.byte_offset as usize, dtype_element_size(&field.datatype).unwrap_or(0));
        let cells = bytes.chunks_exact((*size as usize).max(1)).map(|record| {
            record
                .get(start..start.saturating_add(width))
                .ok_or_else(|| damaged(&at, "a record is cut short"))
        });
        match &field.datatype {
            Datatype::String { size: StringSize::Fixed(_), .. } => {
                let text = |cell: &[u8]| {
                    let end = cell.iter().position(|&byte| byte == 0).unwrap_or(cell.len());
                    String::from_utf8_lossy(&cell[..end]).into_owned()
                };
                Ok(Column::Texts(cells.map(|cell| cell.map(text)).collect::<Result<_>>()?))
            }
            Datatype::String { .. } | Datatype::VarLen { .. } => {
                Err(refused("has texts of any length within records"))
            }
            of => {
                let number = |cell: &[u8]| Number::from_bytes(cell, of).map_err(|e| damaged(&at, e));
                Ok(Column::Numbers(cells.map(|cell| cell.and_then(number)).collect::<Result<_>>()?))
            }
        }
    }
}

/// A column of `obs`.
enum Column {
    Numbers(Vec<Number>),
    Texts(Vec<String>),
}

/// An array of numbers.
struct Array {
    at: String,
    array: hdf5_reader::Dataset,
    shape: Vec<usize>,
}

impl Array {
    fn len(&self) -> usize {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX)
    }

    fn read(&self, places: &[Range<usize>]) -> Result<Vec<Number>> {
        let selections = places.iter().map(|place| SliceInfoElem::Slice {
            start: place.start as u64,
            end: place.end as u64,
            step: 1,
        });
        let read = self.array.read_slice::<Number>(&SliceInfo { selections: selections.collect() });
        let values = read.map_err(|e| damaged(&self.at, e))?.into_raw_vec_and_offset().0;
        let want: usize = places.iter().map(Range::len).product();
        match values.len() == want {
            true => Ok(values),
            false => Err(damaged(&self.at, format!("{} values for {want}", values.len()))),
        }
    }

    /// Values of an array of one dimension.
    fn flat(&self, place: Range<usize>) -> Result<Vec<Number>> {
        match self.shape.len() {
            1 if place.is_empty() => Ok(Vec::new()),
            1 => self.read(&[place]),
            _ => Err(Error::format(
                &self.at,
                format!("has shape {:?}, want one dimension", self.shape),
                REMEDY,
            )),
        }
    }

    /// All of them; a file cannot have more than it has bytes, for each of which a thousand may be
    /// packed.
    fn whole(&self) -> Result<Vec<Number>> {
        if self.len() > MOST_CHUNK {
            let what = format!("has {} values, more than {MOST_CHUNK}", self.len());
            return Err(Error::format(&self.at, what, "split the file"));
        }
        self.flat(0..self.len())
    }
}

/// A number of any type: whole to 64 bits, floats of 16 to 64, truth values.
#[derive(Debug, Clone, Copy)]
struct Number(f64);

impl Number {
    /// As a size; beyond all of them where it is none.
    fn size(self) -> usize {
        if self.0 >= 0. && self.0 < 9e15 { self.0 as usize } else { usize::MAX }
    }
}

impl H5Type for Number {
    fn hdf5_type() -> Datatype {
        f64::hdf5_type()
    }

    fn element_size(dtype: &Datatype) -> usize {
        // What has no size is refused when a value is read.
        dtype_element_size(dtype).unwrap_or(1)
    }

    fn from_bytes(bytes: &[u8], dtype: &Datatype) -> hdf5_reader::error::Result<Self> {
        let whole = |signed: bool, size: u8, order: &ByteOrder| {
            let mut word = [0u8; 8];
            let bytes = bytes.get(..size.into()).filter(|bytes| bytes.len() <= 8)?;
            word[..bytes.len()].copy_from_slice(bytes);
            if *order == ByteOrder::BigEndian {
                word[..bytes.len()].reverse();
            }
            let unsigned = u64::from_le_bytes(word);
            let shift = 64 - 8 * bytes.len() as u32;
            // Shifted there and back, the sign fills what is above.
            Some(if signed { ((unsigned << shift) as i64 >> shift) as f64 } else { unsigned as f64 })
        };
        let value = match dtype {
            Datatype::FixedPoint { size, signed, byte_order } if (1..=8).contains(size) => {
                whole(*signed, *size, byte_order)
            }
            Datatype::FloatingPoint { size: 8, byte_order } => bits(bytes, byte_order).map(f64::from_bits),
            Datatype::FloatingPoint { size: 4, byte_order } => {
                bits(bytes, byte_order).map(|b| f32::from_bits(b as u32).into())
            }
            Datatype::FloatingPoint { size: 2, byte_order } => {
                bits(bytes, byte_order).map(|b| half::f16::from_bits(b as u16).to_f64())
            }
            Datatype::Enum { base, .. } => return Self::from_bytes(bytes, base),
            _ => None,
        };
        value.map(Self).ok_or_else(|| hdf5_reader::error::Error::TypeMismatch {
            expected: "a number of up to 64 bits".to_owned(),
            actual: format!("{dtype:?}"),
        })
    }
}

/// A value's bits, of all of its bytes, up to 8.
fn bits(bytes: &[u8], order: &ByteOrder) -> Option<u64> {
    let fold = |word: u64, byte: &u8| word << 8 | u64::from(*byte);
    match order {
        _ if bytes.len() > 8 => None,
        ByteOrder::BigEndian => Some(bytes.iter().fold(0, fold)),
        ByteOrder::LittleEndian => Some(bytes.iter().rev().fold(0, fold)),
    }
}
