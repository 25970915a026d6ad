//! `.csv` and `.tsv`, plain or gzipped: numbers, a row a line, with or without a header.
//!
//! Fields are parted by tabs, semicolons or commas: by the first of these that the first line has. That line is a header when it
//! has a name above a number. Rows become f32. Labels are whole numbers or texts; texts are numbered in alphabetic order. Columns
//! go by the names in the header, or by their numbers, counted from 0.
use crate::labels::{LABELS, Texts, shortened};
use crate::options::DataOptions;
use crate::rounded::RoundedSink;
use crate::{Dataset, Error, Result, Split, count};
use ::csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, Terminator, Trim};
use flate2::read::MultiGzDecoder;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

/// Bytes that a line may have, so that a file without line ends is not taken for one row of gigabytes.
const MAX_LINE: usize = 16 << 20;

/// Bytes that are looked at for the separator.
const HEAD_BYTES: u64 = 1 << 16;

/// What stands for a value that is not there.
const MISSING: [&str; 8] = ["", "na", "n/a", "nan", "null", "none", "?", "-"];

/// Whether a file name, in lower case, is one of these files.
pub(crate) fn is_file_name(lower: &str) -> bool {
    let name = lower.strip_suffix(".gz").unwrap_or(lower);
    name.ends_with(".csv") || name.ends_with(".tsv")
}

/// Opens the file.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    let mut lines = Lines::open(path)?;
    let mut waiting = VecDeque::new();
    let mut record = StringRecord::new();
    while waiting.len() < 2 && lines.read(&mut record)? {
        waiting.push_back(record.clone());
    }
    let header = match waiting.front() {
        Some(first) if is_header(first, waiting.get(1)) => waiting.pop_front(),
        _ => None,
    };
    let at = lines.at.clone();
    let Some(sample) = waiting.front() else {
        return Err(Error::format(at, "holds no rows of numbers", "give at least one"));
    };
    let width = header.as_ref().unwrap_or(sample).len();
    let plan = Plan::new(&at, header.as_ref(), sample, options)?;
    let mut sink = RoundedSink::new(options.memory_limit(), options.centre.clone());
    let mut labels = plan.labels.map(|column| (column, Texts::new(plan.place(&at, column), "line")));
    let mut row = Vec::with_capacity(plan.rows.len());
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
                "give each line as many",
            ));
        }
        row.clear();
        for &column in &plan.rows {
            row.push(plan.number(&at, &record, column)?);
        }
        sink.push(&row, row.len())?;
        if let Some((column, labels)) = &mut labels {
            labels.push(record.get(*column).unwrap_or_default(), line_of(&record))?;
        }
        left -= 1;
    }
    let rows = sink.finish(&at, plan.rows.len())?;
    let (labels, class_names) = match labels {
        None => (None, None),
        Some((_, texts)) => {
            let (labels, names) = texts.numbered()?;
            (Some(labels), names)
        }
    };
    Dataset::new(at, Split::new(rows, labels)?, None, class_names)
}

/// Records of a file, one after the other.
struct Lines {
    at: String,
    packed: bool,
    reader: Reader<Box<dyn Read>>,
    /// Bytes that may still be read before the record must end.
    left: Rc<Cell<usize>>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self> {
        let at = path.display().to_string();
        let packed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        let file = BufReader::new(File::open(path).map_err(|e| Error::io(path, e))?);
        let mut bytes: Box<dyn Read> = match packed {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        // Which separator it is must be known before a reader is made.
        let mut head = Vec::new();
        let result = bytes.by_ref().take(HEAD_BYTES).read_to_end(&mut head);
        result.map_err(|e| unreadable(path, packed, e))?;
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).to_vec();
        let separator = separator_of(&text);
        let left = Rc::new(Cell::new(MAX_LINE));
        let bytes = Cursor::new(text).chain(bytes).chain(&b"\n"[..]);
        let limited = Limited { bytes, left: left.clone() };
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .delimiter(separator)
            // Carriage returns before it are trimmed; only so are lines counted in files that have them.
            .terminator(Terminator::Any(b'\n'))
            .from_reader(Box::new(limited) as Box<dyn Read>);
        Ok(Self { at, packed, reader, left })
    }

    /// Reads the next record that is not empty; false at the end of the file. Its position is the line on which it ends.
    fn read(&mut self, record: &mut StringRecord) -> Result<bool> {
        loop {
            self.left.set(MAX_LINE);
            let first = self.reader.position().line();
            let result = self.reader.read_record(record);
            // The line after: each record ends with a line feed, the last too.
            let mut position = self.reader.position().clone();
            let line = position.line().saturating_sub(1);
            position.set_line(line);
            let wrong = |what: String, fix: &str| Error::format(&self.at, what, fix);
            let more = result.map_err(|e| match e.into_kind() {
                ErrorKind::Utf8 { .. } => {
                    wrong(format!("line {line} is not UTF-8 text"), "save the file as UTF-8")
                }
                ErrorKind::Io(_) if self.left.get() == 0 => wrong(
                    format!("line {first} has more than {} MiB", MAX_LINE >> 20),
                    "end each row with a line feed, and each quotation with its mark",
                ),
                ErrorKind::Io(e) => unreadable(Path::new(&self.at), self.packed, e),
                other => wrong(format!("line {line} cannot be read: {other:?}"), "correct it"),
            })?;
            record.set_position(Some(position));
            if !more || record.len() > 1 || record.get(0).is_some_and(|field| !field.is_empty()) {
                return Ok(more);
            }
        }
    }
}

fn unreadable(path: &Path, packed: bool, e: std::io::Error) -> Error {
    match packed {
        true => Error::format(
            path.display(),
            format!("cannot be unpacked: {e}"),
            "download or copy the file again",
        ),
        false => Error::io(path, e),
    }
}

/// A reader that gives up where a record does not end.
struct Limited<R> {
    bytes: R,
    left: Rc<Cell<usize>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left.get() == 0 {
            return Err(std::io::Error::other("a line without an end"));
        }
        let got = self.bytes.read(out)?;
        self.left.set(self.left.get().saturating_sub(got));
        Ok(got)
    }
}

/// The separator by the first line that is not empty: tab, semicolon, else comma.
fn separator_of(head: &[u8]) -> u8 {
    let mut lines = head.split(|b| matches!(b, b'\n' | b'\r'));
    let first = lines.find(|line| !line.is_empty()).unwrap_or_default();
    // What lies between quotation marks is at the odd places.
    let bare = || first.split(|&b| b == b'"').step_by(2).flatten();
    [b'\t', b';'].into_iter().find(|separator| bare().any(|b| b == separator)).unwrap_or(b',')
}

/// A name above a number makes a header, and so do names above nothing.
fn is_header(first: &StringRecord, second: Option<&StringRecord>) -> bool {
    let mut names = first.iter().enumerate().filter(|(_, field)| is_name(field));
    match second {
        None => names.next().is_some(),
        Some(second) => names.any(|(i, _)| second.get(i).is_some_and(|below| !is_name(below))),
    }
}

/// Whether a field is a text: no number, nor what stands for one that is missing, nor one that is written wrong, such as 2,5.
fn is_name(field: &str) -> bool {
    let like_number = |c: char| "+-.".contains(c) || c.is_ascii_digit();
    field.parse::<f32>().is_err() && !is_missing(field) && !field.starts_with(like_number)
}

fn is_missing(field: &str) -> bool {
    MISSING.iter().any(|missing| field.eq_ignore_ascii_case(missing))
}

fn line_of(record: &StringRecord) -> u64 {
    record.position().map_or(0, |position| position.line())
}

/// The columns to read.
struct Plan {
    header: Option<StringRecord>,
    rows: Vec<usize>,
    labels: Option<usize>,
}

impl Plan {
    /// Chooses by the options, by names, and by what the first row holds.
    fn new(
        at: &str,
        header: Option<&StringRecord>,
        sample: &StringRecord,
        options: &DataOptions,
    ) -> Result<Self> {
        let width = header.unwrap_or(sample).len();
        let column = |wanted: &str| -> Result<usize> {
            let named = header.and_then(|header| header.iter().position(|name| name == wanted));
            let numbered = || wanted.parse().ok().filter(|&column| column < width);
            named.or_else(numbered).ok_or_else(|| match header {
                Some(header) => Error::missing(at, "column", wanted, header.iter()),
                None => {
                    let last = width.saturating_sub(1);
                    Error::missing(at, "column", wanted, [format!("0 to {last}, for there is no header")])
                }
            })
        };
        let is_text = |&column: &usize| is_name(sample.get(column).unwrap_or_default());
        let labels = match (&options.labels, header) {
            (Some(wanted), _) => Some(column(wanted)?),
            (None, Some(header)) => LABELS
                .iter()
                .find_map(|label| header.iter().position(|name| name.eq_ignore_ascii_case(label))),
            (None, None) => {
                let mut texts = (0..width).filter(is_text);
                texts.next().filter(|_| texts.next().is_none())
            }
        };
        let rows = match &options.features {
            Some(wanted) => {
                wanted.split(',').map(|wanted| column(wanted.trim())).collect::<Result<Vec<_>>>()?
            }
            None => {
                // A column without a name, where others have one, is the numbers that pandas writes before its rows.
                let is_index = |column: &usize| {
                    header.is_some_and(|header| header.get(*column).is_some_and(str::is_empty))
                };
                let (texts, numbers): (Vec<usize>, Vec<usize>) = (0..width)
                    .filter(|column| Some(*column) != labels && !is_index(column))
                    .partition(is_text);
                if !texts.is_empty() {
                    tracing::warn!(file = at, columns = ?texts, "columns of texts are passed over");
                }
                numbers
            }
        };
        if rows.is_empty() {
            return Err(Error::format(
                at,
                "has no column of numbers beside the labels",
                "choose columns by the options for them (--data-columns, --label-column)",
            ));
        }
        Ok(Self { header: header.cloned(), rows, labels })
    }

    /// File and column, for messages.
    fn place(&self, at: &str, column: usize) -> String {
        match self.header.as_ref().and_then(|header| header.get(column)) {
            Some(name) => format!("{at}, column '{name}'"),
            None => format!("{at}, column {column}"),
        }
    }

    fn number(&self, at: &str, record: &StringRecord, column: usize) -> Result<f64> {
        let field = record.get(column).unwrap_or_default();
        let (what, fix) = match field.parse::<f64>() {
            // Rows are f32.
            Ok(number) if (number as f32).is_finite() => return Ok(number),
            Ok(number) => (format!("is {}", number as f32), "replace or drop such values and save again"),
            Err(_) if field.is_empty() => {
                ("has no value".to_owned(), "drop or fill rows with missing values")
            }
            Err(_) => (
                format!("is '{}', want a number", shortened(field)),
                "correct it, or choose columns by the option for them (--data-columns)",
            ),
        };
        let line = line_of(record);
        Err(Error::format(self.place(at, column), format!("line {line} {what}"), fix))
    }
}
