//! `.csv`, `.tsv`, `.txt` and the like, plain or gzipped: numbers, a row a line, with or without a
//! header.
//!
//! Fields are parted by tabs, semicolons, commas or spaces: by what gives all lines as many fields,
//! and most of them numbers. The first line is a header when it has a name above a number, has a
//! field less than the rows, or counts the columns from 0. Lines that begin with `#` or `%` are
//! comments; the last one before the rows may be the header. Rows become f32. Labels are whole
//! numbers or texts; texts are numbered in alphabetic order. Columns go by the names in the header,
//! or by their numbers, counted from 0.
mod fields;
mod lines;
mod plan;

use crate::labels::{Classes, Texts, is_missing};
use crate::options::DataOptions;
use crate::rounded::RoundedSink;
use crate::{Dataset, Error, Result, Split, count};
use ::csv::StringRecord;
use fields::{Header, bare_fields, header, is_name};
use lines::{Lines, line_of};
use plan::Plan;
use std::collections::VecDeque;
use std::path::Path;

/// Rows that columns are chosen by.
const SAMPLE_ROWS: usize = 100;
/// Bytes of such rows beyond which no further one is taken.
const SAMPLE_BYTES: usize = 8 << 20;

/// Names that these files end in.
const ENDINGS: [&str; 6] = [".csv", ".tsv", ".tab", ".txt", ".dat", ".data"];

/// Whether a file name, in lower case, is one of these files.
pub(crate) fn is_file_name(lower: &str) -> bool {
    let name = lower.strip_suffix(".gz").unwrap_or(lower);
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The same of names that say that a file is a table, as `.txt` does not.
pub(crate) fn is_table_name(lower: &str) -> bool {
    let name = lower.strip_suffix(".gz").unwrap_or(lower);
    [".csv", ".tsv"].iter().any(|ending| name.ends_with(ending))
}

/// Opens the file.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let mut no_labels = Vec::new();
    loop {
        match read(path, options, &no_labels)? {
            // At most once for each usual name.
            Read::NoLabels(column) => no_labels.push(column),
            Read::Rows(dataset) => return Ok(*dataset),
        }
    }
}

/// What came of reading a file.
enum Read {
    Rows(Box<Dataset>),
    /// This column has a name of labels and of features, and its values are no classes.
    NoLabels(usize),
}

fn read(path: &Path, options: &DataOptions, no_labels: &[usize]) -> Result<Read> {
    let mut lines = Lines::open(path, options)?;
    let mut waiting = VecDeque::new();
    let mut record = StringRecord::new();
    let mut bytes = 0;
    while waiting.len() < 2 || waiting.len() <= SAMPLE_ROWS && bytes < SAMPLE_BYTES {
        if !lines.read(&mut record)? {
            break;
        }
        bytes += record.as_slice().len();
        waiting.push_back(record.clone());
    }
    let mut notes = Vec::new();
    let header = header_of(&lines, &mut waiting, options, &mut notes);
    let at = lines.at.clone();
    let sample: Vec<&StringRecord> = waiting.iter().collect();
    let Some(width) = header.as_ref().or(sample.first().copied()).map(StringRecord::len) else {
        return Err(Error::format(at, "holds no rows of numbers", "give at least one"));
    };
    if sample.is_empty() {
        return Err(Error::format(at, "holds no rows of numbers", "give at least one"));
    }
    let mut plan = Plan::new(&at, header.as_ref(), &sample, lines.separator, no_labels, options)?;
    notes.append(&mut plan.notes);
    let mut sink = RoundedSink::new(options.memory_limit(), options.centre.clone());
    let mut labels = plan.labels.map(|column| (column, Texts::new(plan.place(&at, column), "line")));
    let mut row = Vec::with_capacity(plan.rows.len());
    let mut labels_are_whole = true;
    let mut left = options.rows_of(usize::MAX);
    while left > 0 {
        match waiting.pop_front() {
            Some(next) => record = next,
            None if lines.read(&mut record)? => {}
            None => break,
        }
        if record.len() != width {
            return Err(Error::format(
                at,
                format!(
                    "line {} has {}, the first has {width}",
                    line_of(&record),
                    count(record.len(), "field")
                ),
                "give each line as many, or say what parts them by `DataOptions::separator`",
            ));
        }
        row.clear();
        for &column in &plan.rows {
            row.push(plan.number(&at, &record, column)?);
        }
        sink.push(&row, row.len())?;
        if let Some((column, labels)) = &mut labels {
            let label = record.get(*column).unwrap_or_default();
            labels_are_whole &= !is_missing(label);
            labels.push(label, line_of(&record));
        }
        left -= 1;
    }
    let rows = sink.finish(&at, plan.rows.len())?;
    let classes = labels.map_or_else(Classes::default, |(_, texts)| Classes::of(texts.numbered()));
    if let (Some(column), true, Some(_)) = (plan.labels, plan.labels_may_be_features, &classes.left_out)
        && options.features.is_none()
        && labels_are_whole
    {
        return Ok(Read::NoLabels(column));
    }
    let classes = if options.reads_labels() { classes } else { Classes::default() };
    let dataset = Dataset::new(at, Split::new(rows, classes.numbers)?, None, classes.names)?;
    let column_names = plan.names();
    let dataset = Dataset { notes, column_names, ..dataset }.without_labels(classes.left_out);
    Ok(Read::Rows(Box::new(dataset)))
}

/// Takes the header out of the first records, or makes it of the comment before them. Where it has
/// a field less than the rows, the names of rows get none.
fn header_of(
    lines: &Lines,
    waiting: &mut VecDeque<StringRecord>,
    options: &DataOptions,
    notes: &mut Vec<String>,
) -> Option<StringRecord> {
    let first = waiting.front()?;
    let rows: Vec<&StringRecord> = waiting.iter().skip(1).collect();
    let found = match options.header {
        Some(false) => None,
        Some(true) => Some(Header::Named),
        None => header(first, &rows),
    };
    let Some(found) = found else {
        let comment = lines.comment.as_ref().filter(|_| options.header.is_none())?;
        let names = bare_fields(comment, lines.separator);
        return (names.len() == first.len() && names.iter().all(|name| is_name(name)))
            .then(|| names.into_iter().collect());
    };
    if found == Header::Counts {
        notes.push(
            "the first line counts the columns and is taken for a header; `DataOptions::header` says whether it is one"
                .to_owned(),
        );
    }
    let width = rows.first().map_or(first.len(), |row| row.len());
    let header = waiting.pop_front()?;
    Some(match header.len() + 1 == width {
        true => std::iter::once("").chain(header.iter()).collect(),
        false => header,
    })
}
