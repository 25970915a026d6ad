//! Where rows come from: the [`Source`] trait, and the sources that live in memory.
use crate::sparse::block::SparseBlock;
use crate::{Error, Result};
use candle::DType;
use half::{bf16, f16};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The type in which a [`Source`] stores its values; no other types reach a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowType {
    /// Bytes 0..=255, which stand for 0..=1: consumers multiply by [`RowType::scale`].
    U8,
    /// Single precision, as it stands, finite.
    F32,
    /// The upper half of single precision, as it stands, finite.
    Bf16,
    /// Half precision, as it stands, finite.
    F16,
}

impl RowType {
    /// Bytes of one value.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// The candle type of a tensor that holds such rows.
    pub const fn dtype(self) -> DType {
        match self {
            Self::U8 => DType::U8,
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// What a stored value is multiplied by: 1/255 for bytes, 1 for floats.
    pub const fn scale(self) -> f64 {
        match self {
            Self::U8 => 1. / 255.,
            Self::F32 | Self::Bf16 | Self::F16 => 1.,
        }
    }
}

/// What became of values in f64.
#[derive(Debug, Clone, PartialEq)]
pub struct Rounding {
    /// What was subtracted from each column; empty where nothing was.
    pub centre: Vec<f64>,
    /// The column that loses most by rounding to f32, and the deviation of its errors in deviations
    /// of the column, where that is more than 1e-4.
    pub cost: Option<(usize, f64)>,
}

/// Rows of equal length that can be read in any order.
///
/// A row is `n_features` values of [`RowType`]. Implementations hold no more in memory than they
/// were asked to: a file may be mapped, a patch may be cut when it is read. Reading the same row
/// twice gives the same bytes.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Number of rows; at most `u32::MAX`.
    fn n_samples(&self) -> usize;

    /// Values in a row, at least 1.
    fn n_features(&self) -> usize;

    /// The stored type.
    fn row_type(&self) -> RowType;

    /// The stored type as candle names it.
    fn dtype(&self) -> DType {
        self.row_type().dtype()
    }

    /// What became of values that were read in more than 32 bits; none where nothing did that is
    /// worth a word.
    fn rounding(&self) -> Option<&Rounding> {
        None
    }

    /// Copies the rows at `indices`, one after the other, into `out` as native-endian bytes.
    ///
    /// # Errors
    /// When an index is not below `n_samples`, when `out` is not exactly
    /// `indices.len() * n_features * size_bytes` long, or when the rows cannot be read.
    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()>;

    /// Says that these rows will be read soon: what lies on a disk may be fetched ahead.
    fn will_read(&self, _rows: Range<usize>) {}

    /// The rows at `indices` by their entries, where the source keeps those alone that are not 0;
    /// none for other sources.
    ///
    /// # Errors
    /// When an index is not below `n_samples`, or the rows cannot be read.
    fn read_entries(&self, _indices: &[u32]) -> Result<Option<SparseBlock>> {
        Ok(None)
    }

    /// Whether [`read_entries`](Self::read_entries) gives any.
    fn is_sparse(&self) -> bool {
        false
    }

    /// The number of a row where all rows come from: of a choice of the rows of a file, its number
    /// in the file. For messages.
    fn origin(&self, row: usize) -> usize {
        row
    }
}

/// Bytes of one row of `source`.
pub fn row_bytes(source: &dyn Source) -> usize {
    source.n_features() * source.row_type().size_bytes()
}

/// Refuses what every `read_rows` must refuse; sources of other crates may call it first.
///
/// # Errors
/// See [`Source::read_rows`].
pub fn check_read(source: &dyn Source, indices: &[u32], out: &[u8]) -> Result<()> {
    check_indices(source, indices)?;
    let want = indices.len() * row_bytes(source);
    if out.len() != want {
        return Err(Error::Argument(format!(
            "read_rows: out must hold {} for {}, got {}",
            crate::count(want, "byte"),
            crate::count(indices.len(), "row"),
            out.len()
        )));
    }
    Ok(())
}

/// Refuses the rows that there are not.
pub(crate) fn check_indices(source: &dyn Source, indices: &[u32]) -> Result<()> {
    let n = source.n_samples();
    match indices.iter().find(|&&i| i as usize >= n) {
        Some(bad) => {
            Err(Error::Argument(format!("read_rows: index must be below n_samples, got {bad} of {n}")))
        }
        None => Ok(()),
    }
}

/// Below this many bytes a copy is over before a second thread has woken up.
const PARALLEL_BYTES: usize = 1 << 20;

/// Copies bytes, large blocks on all threads: one thread copies some 5 GB/s, a tenth of what a GPU
/// takes.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    const PART: usize = PARALLEL_BYTES / 4;
    assert_eq!(from.len(), to.len(), "as many bytes go as come");
    if to.len() < PARALLEL_BYTES {
        to.copy_from_slice(from);
    } else {
        to.par_chunks_mut(PART).zip(from.par_chunks(PART)).for_each(|(to, from)| to.copy_from_slice(from));
    }
}

/// Copies rows out of one contiguous block; `indices` and `out` are checked already.
pub(crate) fn gather(block: &[u8], row_bytes: usize, indices: &[u32], out: &mut [u8]) {
    let copy = |(out, &index): (&mut [u8], &u32)| {
        let start = index as usize * row_bytes;
        out.copy_from_slice(&block[start..start + row_bytes]);
    };
    if out.len() < PARALLEL_BYTES {
        out.chunks_exact_mut(row_bytes).zip(indices).for_each(copy);
    } else {
        let rows_per_task = (PARALLEL_BYTES / 4).div_ceil(row_bytes);
        out.par_chunks_exact_mut(row_bytes).zip(indices).with_min_len(rows_per_task).for_each(copy);
    }
}

/// Rows held in memory.
#[derive(Clone)]
pub struct MemoryRows {
    values: Values,
    n_samples: usize,
    n_features: usize,
}

#[derive(Clone)]
enum Values {
    U8(Vec<u8>),
    F32(Vec<f32>),
}

impl MemoryRows {
    /// Rows of bytes; `values` is `[n_samples, n_features]`, row after row.
    ///
    /// # Errors
    /// When `n_features` is 0 or does not divide the number of values, or there are more than
    /// `u32::MAX` rows.
    pub fn from_u8(values: Vec<u8>, n_features: usize) -> Result<Self> {
        let n_samples = rows_of(values.len(), n_features)?;
        Ok(Self { values: Values::U8(values), n_samples, n_features })
    }

    /// Rows of floats; `values` is `[n_samples, n_features]`, row after row.
    ///
    /// # Errors
    /// As [`MemoryRows::from_u8`], and when a value is NaN or infinite.
    pub fn from_f32(values: Vec<f32>, n_features: usize) -> Result<Self> {
        let n_samples = rows_of(values.len(), n_features)?;
        check_finite("MemoryRows", RowType::F32, bytemuck::cast_slice(&values), n_features)?;
        Ok(Self { values: Values::F32(values), n_samples, n_features })
    }

    fn bytes(&self) -> &[u8] {
        match &self.values {
            Values::U8(values) => values,
            Values::F32(values) => bytemuck::cast_slice(values),
        }
    }
}

impl std::fmt::Debug for MemoryRows {
    /// Says what they are, not the values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryRows")
            .field("row_type", &self.row_type())
            .field("n_samples", &self.n_samples)
            .field("n_features", &self.n_features)
            .finish()
    }
}

fn rows_of(n_values: usize, n_features: usize) -> Result<usize> {
    if n_features == 0 || !n_values.is_multiple_of(n_features) {
        return Err(Error::Argument(format!(
            "MemoryRows: n_features must be at least 1 and divide the number of values, got {n_features} for {n_values}"
        )));
    }
    let n = n_values / n_features;
    if n > u32::MAX as usize {
        return Err(Error::Argument(format!(
            "MemoryRows: at most {} rows can be indexed, got {n}",
            u32::MAX
        )));
    }
    Ok(n)
}

/// Names the first NaN or infinity among row-major native-endian values, aligned or not; bytes have
/// none.
pub(crate) fn check_finite(
    at: impl std::fmt::Display,
    row_type: RowType,
    bytes: &[u8],
    n_features: usize,
) -> Result<()> {
    // All bits of the exponent are set. A test of bits compiles to vector code.
    let first = match row_type {
        RowType::U8 => None,
        RowType::F32 => first_where(bytes, |b| u32::from_ne_bytes(b) & 0x7f80_0000 == 0x7f80_0000)
            .map(|(i, b)| (i, f32::from_ne_bytes(b))),
        RowType::Bf16 => first_where(bytes, |b| u16::from_ne_bytes(b) & 0x7f80 == 0x7f80)
            .map(|(i, b)| (i, bf16::from_ne_bytes(b).to_f32())),
        RowType::F16 => first_where(bytes, |b| u16::from_ne_bytes(b) & 0x7c00 == 0x7c00)
            .map(|(i, b)| (i, f16::from_ne_bytes(b).to_f32())),
    };
    match first {
        None => Ok(()),
        Some((i, value)) => {
            Err(Error::NotFinite { at: at.to_string(), row: i / n_features, column: i % n_features, value })
        }
    }
}

/// The same of rows of `source` that were read; a message has the number that a row has there.
pub(crate) fn check_read_finite(
    at: impl std::fmt::Display,
    source: &dyn Source,
    indices: &[u32],
    bytes: &[u8],
) -> Result<()> {
    let number = |row: usize| indices.get(row).map_or(row, |&i| i as usize);
    check_finite(at, source.row_type(), bytes, source.n_features()).map_err(|error| error.of_row(number))
}

/// The place of the first value that is `bad`, and its bytes.
fn first_where<const SIZE: usize>(
    bytes: &[u8],
    bad: impl Fn([u8; SIZE]) -> bool + Sync,
) -> Option<(usize, [u8; SIZE])> {
    const BYTES_PER_TASK: usize = 1 << 18;
    bytes.par_chunks(BYTES_PER_TASK).enumerate().find_map_first(|(task, chunk)| {
        let (values, _) = chunk.as_chunks::<SIZE>();
        // A fold without an exit compiles to vector code; the position is only looked for where it
        // exists.
        let any = values.iter().fold(false, |any, b| any | bad(*b));
        any.then(|| values.iter().position(|b| bad(*b)))
            .flatten()
            .map(|i| (task * BYTES_PER_TASK / SIZE + i, values[i]))
    })
}

impl Source for MemoryRows {
    fn n_samples(&self) -> usize {
        self.n_samples
    }

    fn n_features(&self) -> usize {
        self.n_features
    }

    fn row_type(&self) -> RowType {
        match self.values {
            Values::U8(_) => RowType::U8,
            Values::F32(_) => RowType::F32,
        }
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        gather(self.bytes(), row_bytes(self), indices, out);
        Ok(())
    }
}

/// Some rows of another source, in an order of their own; the rows themselves are shared, not
/// copied.
#[derive(Clone)]
pub struct Subset {
    inner: Arc<dyn Source>,
    indices: Arc<[u32]>,
}

impl std::fmt::Debug for Subset {
    /// Says what it is, not which rows.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subset").field("n_samples", &self.indices.len()).field("inner", &self.inner).finish()
    }
}

impl Subset {
    /// The rows of `inner` at `indices`, in that order; an index may come more than once.
    ///
    /// # Errors
    /// When an index is not below `inner.n_samples()`, or there are more than `u32::MAX` of them.
    pub fn new(inner: Arc<dyn Source>, indices: impl Into<Arc<[u32]>>) -> Result<Self> {
        let indices = indices.into();
        let n = inner.n_samples();
        if let Some(bad) = indices.iter().find(|&&i| i as usize >= n) {
            return Err(Error::Argument(format!("Subset: index must be below n_samples, got {bad} of {n}")));
        }
        if indices.len() > u32::MAX as usize {
            return Err(Error::Argument(format!(
                "Subset: at most {} rows can be indexed, got {}",
                u32::MAX,
                indices.len()
            )));
        }
        Ok(Self { inner, indices })
    }
}

impl Source for Subset {
    fn n_samples(&self) -> usize {
        self.indices.len()
    }

    fn n_features(&self) -> usize {
        self.inner.n_features()
    }

    fn row_type(&self) -> RowType {
        self.inner.row_type()
    }

    fn rounding(&self) -> Option<&Rounding> {
        self.inner.rounding()
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        let there: Vec<u32> = indices.iter().map(|&i| self.indices[i as usize]).collect();
        self.inner.read_rows(&there, out)
    }

    fn will_read(&self, rows: Range<usize>) {
        // Rows that lie together there too.
        if let Some([first, .., last]) = self.indices.get(rows.clone())
            && (last.wrapping_sub(*first)) as usize == rows.len() - 1
        {
            self.inner.will_read(*first as usize..*last as usize + 1);
        }
    }

    fn read_entries(&self, indices: &[u32]) -> Result<Option<SparseBlock>> {
        check_indices(self, indices)?;
        let there: Vec<u32> = indices.iter().map(|&i| self.indices[i as usize]).collect();
        self.inner.read_entries(&there)
    }

    fn is_sparse(&self) -> bool {
        self.inner.is_sparse()
    }

    fn origin(&self, row: usize) -> usize {
        self.indices.get(row).map_or(row, |&there| self.inner.origin(there as usize))
    }
}
