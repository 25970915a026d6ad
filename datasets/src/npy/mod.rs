//! NumPy's `.npy`: one array, `[n_samples, …]`.
//!
//! Bytes (`|u1`) and single precision (`<f4`) in C order are mapped, and where rows are to stay in
//! their files (`DataOptions::stay`) floats of 16 bits (`<f2`, `BF16`) too. Every other type of whole
//! numbers, floats and truth values, of either byte order, becomes f32 in memory; arrays in Fortran
//! order are put into C order there. `[n, height, width]` makes grey images, and so do channels
//! first or last ([`planes`](crate::planes)). Labels are whole numbers, or texts (`<U…`, `|S…`),
//! which are numbered in alphabetic order.
mod values;

use crate::labels::{Classes, Labels, Texts};
use crate::mapped::{MappedFile, MappedRows, check_extent};
use crate::named::Rows;
use crate::options::DataOptions;
use crate::planes::Layout;
use crate::rounded::RoundedSink;
use crate::sink::RowSink;
use crate::{Dataset, Error, Result, RowType, Source, Split};
use bytemuck::Pod;
use candle::{Device, Tensor};
use npyz::{DType, NpyHeader, Order};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
pub(crate) use values::Flat;
use values::{Number, Text, number, text};

/// Opens an array, and the labels when the options name a second file for them.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let array = Array::open(path)?;
    options.refuse_columns(&array.at, "a .npy file holds one array")?;
    let Rows { rows, n_rows, image } = array.rows(options)?;
    with_labels(&array.at, Rows { rows, n_rows, image }, options)
}

/// The rows of the file `at`, and the labels of another file, when the options name one.
pub(crate) fn with_labels(at: &str, of: Rows, options: &DataOptions) -> Result<Dataset> {
    let (classes, at_both) = match options.named_labels() {
        None => (Classes::default(), at.to_owned()),
        Some(path) => (Array::open(Path::new(path))?.labels()?.of_training(), format!("{at} and {path}")),
    };
    let split = Split::join(at_both, of.rows, of.n_rows, classes.numbers)?.with_image(of.image)?;
    Ok(Dataset::new(at, split, None, classes.names)?.without_labels(classes.left_out))
}

/// An array's place in its file.
pub(crate) struct Array {
    at: String,
    file: MappedFile,
    /// As NumPy writes it: `<f4`.
    descr: String,
    /// Where the values lie; what is left of the file, which may be more than the shape needs.
    place: Range<usize>,
    shape: Vec<usize>,
    order: Order,
}

/// Values that are converted at a time.
const VALUES_PER_BLOCK: usize = 1 << 16;

impl Array {
    fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let all = 0..file.bytes().len();
        Self::within(path.display().to_string(), file, all)
    }

    /// Values in C order at `place` of a file, of the type that NumPy writes as `descr`; `at` names
    /// them in errors.
    pub(crate) fn new(
        at: String,
        file: MappedFile,
        descr: String,
        place: Range<usize>,
        shape: Vec<usize>,
    ) -> Self {
        Self { at, file, descr, place, shape, order: Order::C }
    }

    /// The array that is written as `.npy` at `place` of a file; `at` names it in errors.
    pub(crate) fn within(at: String, file: MappedFile, place: Range<usize>) -> Result<Self> {
        let bytes = file.bytes().get(place.clone()).unwrap_or_default();
        let (header, header_bytes) = header(&at, bytes)?;
        let descr = match header.dtype() {
            DType::Plain(descr) => descr.to_string(),
            other => other.descr(),
        };
        // Types of one byte have no byte order, but some writers name one.
        let descr = match descr.strip_prefix(['<', '>', '=']) {
            Some(kind @ ("u1" | "i1" | "b1")) => format!("|{kind}"),
            _ => descr,
        };
        let order = if header.shape().len() > 1 { header.order() } else { Order::C };
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
        Ok(Self { at, file, descr, place: place.start + header_bytes..place.end, shape, order })
    }

    /// The values, `size` bytes each.
    fn values(&self, size: usize) -> Result<&[u8]> {
        let there = self.file.bytes().get(self.place.clone()).unwrap_or_default();
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
    pub(crate) fn rows(&self, options: &DataOptions) -> Result<Rows> {
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
        let layout = Layout::of(rest);
        // Columns of the centre would be those of the file.
        let centre = options.centre.clone().filter(|_| !layout.is_some_and(|layout| layout.is_interleaved()));
        let at = self.at.clone();
        let mapped = |row_type: RowType| -> Result<Arc<dyn Source>> {
            self.values(row_type.size_bytes())?;
            let (file, start) = (self.file.clone(), self.place.start);
            let open = if options.stay { MappedRows::unseen } else { MappedRows::new };
            Ok(Arc::new(open(&at, file, start, n_samples, n_features, row_type)?))
        };
        let rows = match (self.descr.as_str(), self.order) {
            ("|u1", Order::C) => mapped(RowType::U8)?,
            ("<f4", Order::C) => mapped(RowType::F32)?,
            ("<f2", Order::C) if options.stay => mapped(RowType::F16)?,
            ("BF16", Order::C) if options.stay => mapped(RowType::Bf16)?,
            ("|u1", Order::Fortran) => {
                let mut sink = RowSink::new(options.memory_limit());
                self.gather(n_features, options, 1, |b| b[0], |block| sink.push(block))?;
                sink.finish(&at, n_features)?
            }
            (descr, _) => match number(descr) {
                Some(Number { size, to_f64, .. }) => {
                    let mut sink = RoundedSink::new(options.memory_limit(), centre);
                    self.gather(n_features, options, size, to_f64, |block| sink.push(block, n_features))?;
                    sink.finish(&at, n_features)?
                }
                None => {
                    let want = "whole numbers, floats of 16 to 64 bits or truth values";
                    return Err(self.wrong_type(want, "save x.astype('float32')"));
                }
            },
        };
        let rows = match layout {
            Some(layout) => layout.planes(rows),
            None => rows,
        };
        Ok(Rows { rows, n_rows: n_samples, image: layout.map(|layout| layout.shape) })
    }

    /// Gives `take` the rows in C order, block by block; at most `max_rows` of them. `read` makes a
    /// value of `size` bytes.
    fn gather<T: Pod>(
        &self,
        n_features: usize,
        options: &DataOptions,
        size: usize,
        read: impl Fn(&[u8]) -> T,
        mut take: impl FnMut(&[T]) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.values(size)?;
        let value = |at: usize| read(&bytes[at * size..(at + 1) * size]);
        let (n, keep) = (self.shape[0], options.rows_of(self.shape[0]));
        // Where the values of the first row lie, and how far the next row's are from them.
        let (places, next): (Vec<usize>, usize) = match self.order {
            Order::C => ((0..n_features).collect(), n_features),
            Order::Fortran => {
                ((0..n_features).map(|feature| n * self.in_fortran_order(feature)).collect(), 1)
            }
        };
        let rows_per_block = (VALUES_PER_BLOCK / n_features.max(1)).max(1);
        let mut block = Vec::new();
        for first in (0..keep).step_by(rows_per_block) {
            let rows = first..(first + rows_per_block).min(keep);
            block.clear();
            block.resize(rows.len() * n_features, T::zeroed());
            for (feature, &place) in places.iter().enumerate() {
                for (i, row) in rows.clone().enumerate() {
                    block[i * n_features + feature] = value(place + row * next);
                }
            }
            take(&block)?;
        }
        Ok(())
    }

    /// The place of a feature, counted in C order, among the features in Fortran order.
    fn in_fortran_order(&self, feature: usize) -> usize {
        let (mut rest, mut place) = (feature, 0);
        let mut stride: usize = self.shape[1..].iter().product();
        for &size in self.shape[1..].iter().rev() {
            stride /= size;
            place += rest % size * stride;
            rest /= size;
        }
        place
    }

    /// Labels of an array `[n_samples]` or `[n_samples, 1]`: whole numbers, also those that are
    /// stored as floats, or texts. Others are no classes.
    pub(crate) fn labels(&self) -> Result<Labels> {
        let ([_] | [_, 1]) = self.shape.as_slice() else {
            return Ok(Labels::NoClasses(Error::format(
                &self.at,
                format!("has shape {:?}, want [n_samples] for labels", self.shape),
                "save y.ravel(), or y.argmax(1) of one-hot rows",
            )));
        };
        if let Some(text) = text(&self.descr) {
            return Ok(Labels::Texts(self.texts(&text)?));
        }
        match number(&self.descr) {
            Some(Number { size, to_whole: Some(to_whole), .. }) => {
                let numbers: Vec<i64> = self.values(size)?.chunks_exact(size).map(to_whole).collect();
                Ok(Labels::of_numbers(&self.at, &numbers))
            }
            Some(Number { size, to_f64, .. }) => {
                let numbers: Vec<f64> = self.values(size)?.chunks_exact(size).map(to_f64).collect();
                Ok(Labels::of_floats(&self.at, &numbers))
            }
            None => {
                let fix = "save y.astype('int64') or y.astype('str')";
                Ok(Labels::NoClasses(self.wrong_type("whole numbers or texts for labels", fix)))
            }
        }
    }

    /// Texts of `text.size` bytes each.
    fn texts(&self, text: &Text) -> Result<Texts> {
        let mut texts = Texts::new(self.at.clone(), "row");
        let bytes = self.values(text.size)?;
        for row in 0..self.shape[0] {
            let of_row = bytes.get(row * text.size..(row + 1) * text.size).unwrap_or_default();
            let Some(label) = (text.read)(of_row) else {
                return Err(Error::format(
                    &self.at,
                    format!("row {row} has a label that is not {}", text.encoding),
                    "save y.astype('str')",
                ));
            };
            // What is shorter than the longest ends in zeros.
            texts.push(label.trim_end_matches('\0'), row as u64);
        }
        Ok(texts)
    }

    /// The whole array on the CPU, in the type that it is stored in.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let dtype = match self.descr.as_str() {
            "|u1" => candle::DType::U8,
            "<u4" => candle::DType::U32,
            "<i4" => candle::DType::I32,
            "<i8" => candle::DType::I64,
            "<f4" => candle::DType::F32,
            "<f8" => candle::DType::F64,
            _ => return Err(self.wrong_type("u1, u4, i4, i8, f4 or f8", "save x.astype('float32')")),
        };
        if self.order == Order::Fortran {
            return Err(self.in_fortran());
        }
        let bytes = self.values(dtype.size_in_bytes())?;
        Ok(Tensor::from_raw_buffer(bytes, dtype, &self.shape, &Device::Cpu)?)
    }

    /// The shape.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// All values as f64, in C order.
    pub(crate) fn floats(&self) -> Result<Flat<'_, f64>> {
        let want = || self.wrong_type("whole numbers, floats or truth values", "save x.astype('float32')");
        let Number { size, to_f64, .. } = number(&self.descr).ok_or_else(want)?;
        self.flat(size, to_f64)
    }

    /// All values as whole numbers, in C order.
    pub(crate) fn wholes(&self) -> Result<Flat<'_, i64>> {
        match number(&self.descr) {
            Some(Number { size, to_whole: Some(to_whole), .. }) => self.flat(size, to_whole),
            _ => Err(self.wrong_type("whole numbers", "save x.astype('int64')")),
        }
    }

    fn flat<T>(&self, size: usize, read: fn(&[u8]) -> T) -> Result<Flat<'_, T>> {
        if self.order == Order::Fortran {
            return Err(self.in_fortran());
        }
        Ok(Flat { bytes: self.values(size)?, size, read })
    }

    /// The only text of an array without dimensions.
    pub(crate) fn text(&self) -> Option<String> {
        let text = text(&self.descr).filter(|_| self.shape.is_empty())?;
        Some((text.read)(self.values(text.size).ok()?)?.trim_end_matches('\0').to_owned())
    }

    fn in_fortran(&self) -> Error {
        Error::format(&self.at, "is in Fortran order, want C order", "save numpy.ascontiguousarray(x)")
    }

    fn wrong_type(&self, want: &str, fix: &str) -> Error {
        Error::format(&self.at, format!("holds values of type {}, want {want}", self.descr), fix)
    }
}

/// Bytes that a header may have: what the first version of the format can say. NumPy itself reads
/// no more than 10,000.
pub(crate) const MAX_HEADER: usize = 65_535;

/// Brackets that a header may open; arrays of numbers have two. Its parser takes twice as long for
/// each that lies in another, and calls itself for it.
const MAX_BRACKETS: usize = 8;

/// The header at the beginning of `bytes`, and how many of them it takes; `at` names them in
/// errors.
pub(crate) fn header(at: &str, bytes: &[u8]) -> Result<(NpyHeader, usize)> {
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err(Error::format(at, "wrong magic number: not a .npy file", "write it with numpy.save"));
    }
    let unreadable = |what: String| {
        Error::format(
            at,
            format!("the header cannot be read: {what}"),
            "write the file again with numpy.save",
        )
    };
    // What the header says of its length is allocated before it is read.
    let length = match *bytes {
        [_, _, _, _, _, _, 1, _, a, b, ..] => usize::from(u16::from_le_bytes([a, b])),
        [_, _, _, _, _, _, _, _, a, b, c, d, ..] => u32::from_le_bytes([a, b, c, d]) as usize,
        _ => 0,
    };
    if length > MAX_HEADER {
        return Err(unreadable(format!("it says that it has {length} bytes, want at most {MAX_HEADER}")));
    }
    let text = bytes.get(..12 + length).unwrap_or(bytes);
    if text.iter().filter(|b| matches!(b, b'(' | b'[' | b'{')).count() > MAX_BRACKETS {
        return Err(unreadable(format!("it opens more than {MAX_BRACKETS} brackets")));
    }
    let mut rest = bytes;
    let header = NpyHeader::from_reader(&mut rest).map_err(|e| unreadable(e.to_string()))?;
    Ok((header, bytes.len() - rest.len()))
}
