//! Records of a file, one after the other: unpacked, without comments, parted by whatever parts
//! them.
use super::fields::{COMMENTS, separator_of};
use crate::options::DataOptions;
use crate::{Error, Result};
use ::csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, Terminator, Trim};
use flate2::read::MultiGzDecoder;
use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

/// Bytes that a line may have, so that a file without line ends is not taken for one row of
/// gigabytes.
const MAX_LINE: usize = 16 << 20;

/// Bytes that are looked at for the separator.
const HEAD_BYTES: u64 = 1 << 16;

/// Records of a file.
pub(super) struct Lines {
    pub(super) at: String,
    pub(super) separator: u8,
    /// The last comment before the first record.
    pub(super) comment: Option<String>,
    packed: bool,
    reader: Reader<Box<dyn Read>>,
    /// Bytes that may still be read before the record must end.
    left: Rc<Cell<usize>>,
}

impl Lines {
    pub(super) fn open(path: &Path, options: &DataOptions) -> Result<Self> {
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
        let mut text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).to_vec();
        let said = said_separator(&mut text);
        let separator = match options.separator.or(said) {
            Some(asked) => u8::try_from(asked).ok().filter(u8::is_ascii).ok_or_else(|| {
                Error::Argument(format!("data: the separator must be one ASCII character, got {asked:?}"))
            })?,
            None => separator_of(&text),
        };
        let comment = comment_before_rows(&text);
        let left = Rc::new(Cell::new(MAX_LINE));
        let bytes = Plain::new(Cursor::new(text).chain(bytes).chain(&b"\n"[..]), separator);
        let limited = Limited { bytes, left: left.clone() };
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(Trim::All)
            .delimiter(separator)
            // Carriage returns before it are trimmed; only so are lines counted in files that have
            // them.
            .terminator(Terminator::Any(b'\n'))
            .from_reader(Box::new(limited) as Box<dyn Read>);
        Ok(Self { at, separator, comment, packed, reader, left })
    }

    /// Reads the next record that is not empty; false at the end of the file. Its position is the
    /// line on which it ends.
    pub(super) fn read(&mut self, record: &mut StringRecord) -> Result<bool> {
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

/// The separator by the line `sep=;` that spreadsheets begin with, which becomes empty.
fn said_separator(text: &mut [u8]) -> Option<char> {
    let rest = text.get(..4).filter(|start| start.eq_ignore_ascii_case(b"sep=")).and(text.get(4..6))?;
    let (&separator, _) =
        rest.first().filter(|b| b.is_ascii()).zip(rest.get(1).filter(|b| b"\r\n".contains(b)))?;
    text[..5].fill(b' ');
    Some(char::from(separator))
}

/// The line that a record ends on.
pub(super) fn line_of(record: &StringRecord) -> u64 {
    record.position().map_or(0, |position| position.line())
}

/// The last comment before the first line that is none, without its sign.
fn comment_before_rows(head: &[u8]) -> Option<String> {
    let lines = head.split(|&b| b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let comments = lines.take_while(|line| line.first().is_some_and(|b| COMMENTS.contains(b)));
    let last = comments.last()?;
    let text = std::str::from_utf8(last).ok()?;
    Some(text.trim_start_matches(['#', '%', ' ', '\t']).to_owned())
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

/// Where in a line the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    LineStart,
    FieldStart,
    Field,
    Quotation,
    Comment,
}

/// A reader that leaves comments out, and makes one space of several where spaces part the fields.
/// Line feeds stay, so that lines are counted as in the file.
struct Plain<R> {
    bytes: R,
    separator: u8,
    place: Place,
    /// Whether spaces wait for a field after them.
    spaces: bool,
    block: Vec<u8>,
    made: Vec<u8>,
    given: usize,
}

impl<R: Read> Plain<R> {
    fn new(bytes: R, separator: u8) -> Self {
        let block = vec![0; 1 << 16];
        Self { bytes, separator, place: Place::LineStart, spaces: false, block, made: Vec::new(), given: 0 }
    }

    fn take(&mut self, byte: u8) {
        let is_blank = matches!(byte, b' ' | b'\t');
        let by_spaces = self.separator == b' ';
        match self.place {
            Place::Quotation => {
                self.made.push(byte);
                if byte == b'"' {
                    self.place = Place::Field;
                }
                return;
            }
            Place::Comment if byte != b'\n' => return,
            _ => {}
        }
        match byte {
            b'\n' => {
                (self.place, self.spaces) = (Place::LineStart, false);
                self.made.push(byte);
            }
            _ if self.place == Place::LineStart && COMMENTS.contains(&byte) => self.place = Place::Comment,
            b' ' | b'\t' if by_spaces => self.spaces = self.place != Place::LineStart,
            b'\r' if by_spaces => {}
            _ => {
                if std::mem::take(&mut self.spaces) {
                    self.made.push(b' ');
                    self.place = Place::FieldStart;
                }
                self.made.push(byte);
                let starts = matches!(self.place, Place::LineStart | Place::FieldStart);
                self.place = match byte {
                    b'"' if starts => Place::Quotation,
                    _ if byte == self.separator => Place::FieldStart,
                    _ if is_blank && starts => self.place,
                    _ => Place::Field,
                };
            }
        }
    }
}

impl<R: Read> Read for Plain<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while self.given == self.made.len() {
            (self.given, self.made) = (0, std::mem::take(&mut self.made));
            self.made.clear();
            let mut block = std::mem::take(&mut self.block);
            let got = self.bytes.read(&mut block);
            let read = got.as_ref().map_or(0, |&got| got);
            block.iter().take(read).for_each(|&byte| self.take(byte));
            self.block = block;
            if got? == 0 {
                return Ok(0);
            }
        }
        let left = self.made.get(self.given..).unwrap_or_default();
        let n = left.len().min(out.len());
        out[..n].copy_from_slice(&left[..n]);
        self.given += n;
        Ok(n)
    }
}
