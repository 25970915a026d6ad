//! What is said of rows that were read: columns that merely count them, and the scale of whole
//! numbers.
//!
//! A column that counts rows is no measurement; a model would learn the order of the file. Bytes
//! stand for themselves over 255, and the same numbers of any other type for themselves.
use crate::labels::shortened;
use crate::{Dataset, Result, RowType, Split};
use candle::Device;

/// Rows below which a column counts by chance.
const FEWEST_ROWS: usize = 10;
/// Rows that are looked at together, twice as many each time.
const FIRST_ROWS: usize = 16;
/// Rows that the scale is seen by.
const SCALE_ROWS: usize = 64;
/// Columns of which a note names each.
const SHOWN: usize = 5;

impl Dataset {
    /// Notes which scale was taken where whole numbers from 0 to 255 are read, which may be bytes
    /// or not.
    pub(crate) fn note_scale(&mut self) -> Result<()> {
        if self.train.row_type() == RowType::U8 {
            let note = "bytes are read over 255, from 0 to 1; numbers of other types are read as they are";
            self.notes.push(note.to_owned());
            return Ok(());
        }
        // Of wide rows, which sparse ones may be, fewer.
        let rows = SCALE_ROWS.min((1 << 22) / self.train.n_features().max(1)).max(1);
        let values = rows_of(&self.train, 0..self.train.n_samples().min(rows))?;
        let most = values.iter().copied().fold(0f32, f32::max);
        if most > 1. && values.iter().all(|x| x.fract() == 0. && (0. ..=255.).contains(x)) {
            self.notes.push(format!(
                "whole numbers, up to {most} in the first rows, are read as they are; as bytes (uint8) they would be read over 255, as \
                 the preparation scale=0.00392156862745098 does"
            ));
        }
        Ok(())
    }

    /// Notes which columns count the rows. They stay.
    pub(crate) fn note_counting_columns(&mut self) -> Result<()> {
        let columns = counting_columns(&self.train)?;
        if columns.is_empty() {
            return Ok(());
        }
        let name = |&column: &usize| {
            let name = self.column_names.as_ref().and_then(|names| names.get(column));
            name.map_or_else(|| column.to_string(), |name| format!("'{}'", shortened(name)))
        };
        let shown: Vec<String> = columns.iter().take(SHOWN).map(name).collect();
        let (noun, verb) = if columns.len() == 1 { ("column", "counts") } else { ("columns", "count") };
        let more = if columns.len() > SHOWN { ", …" } else { "" };
        self.notes.push(format!(
            "{noun} {}{more} only {verb} the rows and {} read as values; `DataOptions::features` chooses others",
            shown.join(", "),
            if columns.len() == 1 { "is" } else { "are" }
        ));
        Ok(())
    }
}

/// Columns whose value goes up by 1 with each row.
fn counting_columns(split: &Split) -> Result<Vec<usize>> {
    let (n, width) = (split.n_samples(), split.n_features());
    // A byte counts to 255, and 2^24 is as far as f32 counts.
    // A matrix of entries has no columns that a table would have.
    if split.row_type() != RowType::F32
        || split.image.is_some()
        || split.rows.is_sparse()
        || !(FEWEST_ROWS..=1 << 24).contains(&n)
        || width < 2
    {
        return Ok(Vec::new());
    }
    let first = rows_of(split, 0..1)?;
    let mut columns: Vec<usize> = (0..width).collect();
    let (mut done, mut next) = (1, FIRST_ROWS);
    while done < n && !columns.is_empty() {
        let rows = done..(done + next).min(n);
        let values = rows_of(split, rows.clone())?;
        for (row, values) in rows.clone().zip(values.chunks_exact(width)) {
            columns.retain(|&column| values[column] - first[column] == row as f32);
        }
        (done, next) = (rows.end, (2 * next).min((1 << 20) / width).max(1));
    }
    Ok(columns)
}

/// Some rows of floats.
fn rows_of(split: &Split, rows: std::ops::Range<usize>) -> Result<Vec<f32>> {
    let indices: Vec<u32> = rows.map(|row| row as u32).collect();
    Ok(split.scaled(&indices, &Device::Cpu)?.flatten_all()?.to_vec1()?)
}
