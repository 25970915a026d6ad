//! Typed values out of one leaf column of one row group.
use super::types::Numeric;
use crate::{Error, Result};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};

/// Reads one leaf from front to back.
pub(crate) struct LeafReader {
    /// File and column, for errors.
    at: String,
    remedy: String,
    reader: ColumnReader,
    numeric: Numeric,
    max_def: i16,
    max_rep: i16,
    /// Row of the file that comes next.
    row: usize,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

/// Values of some whole rows.
struct Batch<T> {
    values: Vec<T>,
    /// Values of each row; a missing value counts as none.
    lengths: Vec<usize>,
}

impl LeafReader {
    /// `row` is the place, in the file, of the row group's first row.
    pub(crate) fn new(
        at: String,
        remedy: &str,
        reader: ColumnReader,
        numeric: Numeric,
        (max_def, max_rep): (i16, i16),
        row: usize,
    ) -> Self {
        Self {
            at,
            remedy: remedy.to_owned(),
            reader,
            numeric,
            max_def,
            max_rep,
            row,
            definitions: Vec::new(),
            repetitions: Vec::new(),
        }
    }

    /// The next `n` rows as numbers, of which each row has as many as the first: returns that
    /// width.
    ///
    /// `width` is the width of rows before, if any.
    pub(crate) fn vectors(&mut self, n: usize, width: Option<usize>) -> Result<(Vec<f64>, usize)> {
        let batch = self.numbers(n)?;
        let width = width.or(batch.lengths.first().copied()).unwrap_or(0);
        if let Some(i) = batch.lengths.iter().position(|&length| length != width) {
            return Err(Error::format(
                &self.at,
                format!(
                    "row {} has {}, the rows before {width}",
                    self.row - n + i,
                    crate::count(batch.lengths[i], "value")
                ),
                "give vectors of one length, none missing",
            ));
        }
        Ok((batch.values, width))
    }

    /// The next `n` rows, one number each.
    pub(crate) fn scalars(&mut self, n: usize) -> Result<Vec<f64>> {
        let batch = self.numbers(n)?;
        self.one_each(n, batch)
    }

    /// The next `n` rows, one number each, NaN for one that is missing.
    pub(crate) fn scalars_or_nan(&mut self, n: usize) -> Result<Vec<f64>> {
        let Batch { values, lengths } = self.numbers(n)?;
        Ok(with_gaps(values, &lengths, f64::NAN))
    }

    /// The next `n` rows, one byte string each.
    pub(crate) fn bytes(&mut self, n: usize) -> Result<Vec<ByteArray>> {
        let batch = self.byte_strings(n)?;
        self.one_each(n, batch)
    }

    fn byte_strings(&mut self, n: usize) -> Result<Batch<ByteArray>> {
        let batch = match &mut self.reader {
            ColumnReader::ByteArrayColumnReader(reader) => {
                read(reader, n, (self.max_def, self.max_rep), &mut self.definitions, &mut self.repetitions)
            }
            _ => Ok(Batch { values: Vec::new(), lengths: Vec::new() }),
        };
        self.whole(n, batch)
    }

    /// The next `n` rows, one text each, which is empty where it is missing.
    pub(crate) fn texts(&mut self, n: usize) -> Result<Vec<String>> {
        let first = self.row;
        let Batch { values, lengths } = self.byte_strings(n)?;
        let texts = with_gaps(values, &lengths, ByteArray::from(""));
        texts
            .iter()
            .enumerate()
            .map(|(i, text)| match text.as_utf8() {
                Ok(text) => Ok(text.to_owned()),
                Err(_) => Err(Error::format(
                    &self.at,
                    format!("row {} is not UTF-8 text", first + i),
                    "write the column as UTF-8, or choose another",
                )),
            })
            .collect()
    }

    fn numbers(&mut self, n: usize) -> Result<Batch<f64>> {
        let (levels, numeric) = ((self.max_def, self.max_rep), self.numeric);
        let (definitions, repetitions) = (&mut self.definitions, &mut self.repetitions);
        macro_rules! as_f64 {
            ($reader:expr, $to:expr) => {
                read($reader, n, levels, definitions, repetitions).map(|batch| Batch {
                    values: batch.values.into_iter().map($to).collect(),
                    lengths: batch.lengths,
                })
            };
        }
        let batch = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => as_f64!(reader, |v| f64::from(u8::from(v))),
            ColumnReader::Int32ColumnReader(reader) => as_f64!(reader, |v| match numeric {
                Numeric::Unsigned => f64::from(v.cast_unsigned()),
                numeric => numeric.scaled(f64::from(v)),
            }),
            // Exact up to 2^53, far above any label and beyond what an f32 feature keeps.
            ColumnReader::Int64ColumnReader(reader) => as_f64!(reader, |v| match numeric {
                Numeric::Unsigned => v.cast_unsigned() as f64,
                numeric => numeric.scaled(v as f64),
            }),
            ColumnReader::Int96ColumnReader(reader) => as_f64!(reader, |v| seconds(v.data())),
            ColumnReader::FloatColumnReader(reader) => as_f64!(reader, f64::from),
            ColumnReader::DoubleColumnReader(reader) => as_f64!(reader, |v| v),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                as_f64!(reader, |v| numeric.of_bytes(v.data()))
            }
            ColumnReader::ByteArrayColumnReader(reader) => as_f64!(reader, |v| numeric.of_bytes(v.data())),
        };
        self.whole(n, batch)
    }

    /// Refuses a column that ends before its row group does.
    fn whole<T>(&mut self, n: usize, batch: ::parquet::errors::Result<Batch<T>>) -> Result<Batch<T>> {
        let batch = batch.map_err(|e| {
            Error::format(
                &self.at,
                format!("damaged within rows {} to {}: {e}", self.row, self.row + n),
                self.remedy.clone(),
            )
        })?;
        if batch.lengths.len() != n {
            return Err(Error::format(
                &self.at,
                format!("ends after row {}, before its row group", self.row + batch.lengths.len()),
                self.remedy.clone(),
            ));
        }
        self.row += n;
        Ok(batch)
    }

    fn one_each<T>(&self, n: usize, batch: Batch<T>) -> Result<Vec<T>> {
        match batch.lengths.iter().position(|&length| length != 1) {
            None => Ok(batch.values),
            Some(i) => Err(Error::format(
                &self.at,
                format!("row {} has no value", self.row - n + i),
                "drop or fill rows with missing values",
            )),
        }
    }
}

/// Seconds since 1970 of a timestamp in 96 bits: nanoseconds of the day, and the Julian day.
fn seconds(words: &[u32]) -> f64 {
    const DAY_OF_1970: f64 = 2_440_588.;
    let &[low, high, day] = words else { return f64::NAN };
    let nanoseconds = (u64::from(high) << 32 | u64::from(low)) as f64;
    (f64::from(day) - DAY_OF_1970) * 86_400. + nanoseconds * 1e-9
}

/// The value of each row, `gap` where there is none.
fn with_gaps<T: Clone>(values: Vec<T>, lengths: &[usize], gap: T) -> Vec<T> {
    let mut values = values.into_iter();
    lengths
        .iter()
        .map(|&length| if length == 1 { values.next() } else { None }.unwrap_or_else(|| gap.clone()))
        .collect()
}

fn read<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    n: usize,
    (max_def, max_rep): (i16, i16),
    definitions: &mut Vec<i16>,
    repetitions: &mut Vec<i16>,
) -> ::parquet::errors::Result<Batch<T::T>> {
    definitions.clear();
    repetitions.clear();
    let mut values = Vec::new();
    let (n_rows, n_values, n_levels) =
        reader.read_records(n, Some(definitions), Some(repetitions), &mut values)?;
    values.truncate(n_values);
    if max_def == 0 && max_rep == 0 {
        return Ok(Batch { values, lengths: vec![1; n_rows] });
    }
    let mut lengths = Vec::with_capacity(n_rows);
    for level in 0..n_levels {
        let begins = max_rep == 0 || repetitions.get(level) == Some(&0);
        if begins {
            lengths.push(0);
        }
        let has_value = max_def == 0 || definitions.get(level) == Some(&max_def);
        if let (true, Some(length)) = (has_value, lengths.last_mut()) {
            *length += 1;
        }
    }
    Ok(Batch { values, lengths })
}
