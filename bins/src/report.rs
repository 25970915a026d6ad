//! What a program says and how it ends.
//!
//! Results go to standard output, one line each. With `--json` standard output carries one JSON
//! object at the end and nothing else; the lines go to standard error. So they do where `-` is the
//! file that a command writes.
use crate::plain::{is_users, plain, with_options};
use crate::stages;
use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::Value;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// How a program that met no error ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its work is done.
    Done,
    /// Ctrl-C ended it; what it had is safe.
    Interrupted,
}

/// Which rank this process is, and of how many; not set where it is alone.
static RANK: OnceLock<(usize, usize)> = OnceLock::new();

/// This process is one of several, of which only rank 0 says something, but for errors.
pub(crate) fn be_rank(rank: usize, world: usize) {
    RANK.get_or_init(|| (rank, world));
}

/// Which rank this process is.
pub(crate) fn rank() -> usize {
    RANK.get().map_or(0, |&(rank, _)| rank)
}

/// Whether this process is one of several.
pub(crate) fn are_several_ranks() -> bool {
    RANK.get().is_some()
}

/// Says something on standard error. A reader that has gone has no use for it.
pub fn note(text: &str) {
    if rank() == 0 {
        let _ = writeln!(std::io::stderr(), "{}", with_options(text));
    }
}

/// Says what went wrong on standard error, on each rank.
pub(crate) fn complain(text: &str) {
    let of_rank = RANK.get().filter(|(rank, _)| *rank > 0);
    let of_rank = of_rank.map(|(rank, world)| format!("rank {rank} of {world}: ")).unwrap_or_default();
    let _ = writeln!(std::io::stderr(), "{of_rank}{}", with_options(text));
}

/// What is said on standard error before the next line or note: not where a command is refused,
/// which says what matters.
static LATER: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says something as [`note`] does, once a command is under way.
pub fn note_later(text: String) {
    LATER.lock().unwrap_or_else(PoisonError::into_inner).push(text);
}

fn say_later() {
    let texts = std::mem::take(&mut *LATER.lock().unwrap_or_else(PoisonError::into_inner));
    texts.iter().for_each(|text| note(text));
}

/// An error and its causes on one line.
///
/// Candle's errors have their causes on lines of their text, and a backtrace below when one is
/// asked for, which is left out.
pub fn one_line(err: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in err.chain() {
        let text = cause.to_string();
        let lines = text.lines().map(str::trim).take_while(|line| !is_of_backtrace(line));
        for line in lines.filter(|line| !line.is_empty()).map(|line| plain(line, is_users)) {
            // A cause that its effect already quotes would be said twice.
            if parts.last().is_none_or(|last| !last.ends_with(&line)) {
                parts.push(line);
            }
        }
    }
    parts.join(": ")
}

/// Whether a line is the first of a backtrace: `0: name::of::function`.
fn is_of_backtrace(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(number, _)| number == "0")
}

/// Says that a model comes with no data of its own, so that `data` is read where none was named.
pub fn note_usual_data(model: &str, data: &str) {
    // Of a mistyped name what is wrong is said when it is loaded.
    if model.contains('/') || Path::new(model).is_dir() {
        note(&format!("{model} is not the folder of a run, and there is no --data: reading {data}"));
    }
}

/// A result that depends on rows: an error that names neither an option nor a file names the data
/// set, whose rows it must be about.
///
/// # Errors
/// That of `result`.
pub fn of_data<T>(data: &str, result: Result<T>) -> Result<T> {
    result.map_err(|err| match one_line(&err) {
        text if text.contains("--") || text.contains(data) => err,
        _ => err.context(format!("--data {data}")),
    })
}

/// Where a program's results go.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    json: bool,
    /// Whether standard output is for something else than lines.
    taken: bool,
}

impl Report {
    /// With `json`, lines go to standard error and [`finish`](Self::finish) prints the object.
    pub fn new(json: bool) -> Self {
        Self { json, taken: json }
    }

    /// The same for a command that writes the file `out`; lines go to standard error if that is
    /// `-`.
    ///
    /// # Errors
    /// When `out` is `-` and the object would go to standard output as well.
    pub fn beside(json: bool, out: &Path) -> Result<Self> {
        let taken = is_stdout(out);
        ensure!(
            !(json && taken),
            "--out -: must not be used with --json, which also writes to standard output; name a file"
        );
        Ok(Self { json, taken: json || taken })
    }

    /// Prints one line.
    ///
    /// # Errors
    /// When standard output is gone for another reason than a reader that has had enough.
    pub fn line(&self, text: &str) -> Result<()> {
        say_later();
        if self.taken {
            note(text);
            return Ok(());
        }
        print(text)
    }

    /// Says something on standard error that is no result: what a program chose, or what a user
    /// should look at.
    pub fn note(&self, text: &str) {
        say_later();
        note(text);
    }

    /// Prints the final object, with `--json`; nothing otherwise. It has the seconds of each stage,
    /// too ([`stages`]).
    ///
    /// # Errors
    /// As [`line`](Self::line).
    pub fn finish(&self, result: Value) -> Result<()> {
        self.finish_as_is(&stages::with_seconds(result))
    }

    /// Prints what a benchmark found, with `--json`; nothing otherwise.
    ///
    /// # Errors
    /// As [`line`](Self::line), and when the value cannot be JSON.
    pub fn finish_as_is(&self, result: &impl Serialize) -> Result<()> {
        say_later();
        if self.json { print(&serde_json::to_string(result)?) } else { Ok(()) }
    }
}

fn print(text: &str) -> Result<()> {
    if rank() > 0 {
        return Ok(());
    }
    to_stdout(|out| Ok(writeln!(out, "{text}")?))
}

/// Whether the name of a file to write stands for standard output.
pub fn is_stdout(out: &Path) -> bool {
    out.as_os_str() == "-"
}

/// A file that was written, as messages name it.
pub fn named(out: &Path) -> String {
    if is_stdout(out) { "standard output".to_owned() } else { out.display().to_string() }
}

/// Gives standard output to `write`. A reader that has had enough is no error.
///
/// # Errors
/// Those of `write`, and when standard output is gone for another reason.
pub fn to_stdout(write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut out = BufWriter::new(Stdout(std::io::stdout().lock()));
    let ended = write(&mut out).and_then(|()| Ok(out.flush()?));
    // What is left in the buffer is not tried again.
    let _ = out.into_parts();
    match ended {
        // `dbn … | head` has seen what it wanted.
        Err(err) if err.chain().any(has_had_enough) => Ok(()),
        ended => ended,
    }
}

/// Standard output, named by its errors.
struct Stdout(std::io::StdoutLock<'static>);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

fn of_stdout(err: std::io::Error) -> std::io::Error {
    match err.kind() {
        ErrorKind::Interrupted => err,
        kind => std::io::Error::new(kind, format!("standard output: cannot write: {err}")),
    }
}

/// Whether a cause of an error is a reader that closed its end of a pipe. `csv` does not name the
/// error that it wraps as its source.
fn has_had_enough(cause: &(dyn std::error::Error + 'static)) -> bool {
    let of_csv = cause.downcast_ref().and_then(|err: &csv::Error| match err.kind() {
        csv::ErrorKind::Io(err) => Some(err),
        _ => None,
    });
    of_csv.or(cause.downcast_ref()).is_some_and(|err: &std::io::Error| err.kind() == ErrorKind::BrokenPipe)
}

/// A figure for people, with so many decimals; a small one has as many as show four digits.
///
/// ```
/// use chandlery_bins::report::figure;
///
/// assert_eq!(figure(6.53, 4), "6.5300");
/// assert_eq!(figure(0.000_123_42, 4), "0.0001234");
/// assert_eq!(figure(0., 4), "0.0000");
/// assert_eq!(figure(2.5e-9, 4), "2.500e-9");
/// ```
pub fn figure(x: f64, decimals: usize) -> String {
    let size = x.abs();
    if !size.is_normal() || size >= 10f64.powi(3 - decimals as i32) {
        return format!("{x:.decimals$}");
    }
    if size < 1e-6 {
        return format!("{x:.3e}");
    }
    let digits = 3 - size.log10().floor() as i32;
    format!("{x:.0$}", usize::try_from(digits).unwrap_or(decimals))
}

/// A duration for people: `4.2 s`, `3 min 05 s`, `2 h 07 min`.
///
/// ```
/// use chandlery_bins::report::seconds;
///
/// assert_eq!(seconds(4.21), "4.2 s");
/// assert_eq!(seconds(185.), "3 min 05 s");
/// assert_eq!(seconds(7620.), "2 h 07 min");
/// ```
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.round().max(0.) as u64;
    match whole {
        _ if (10. * seconds).round() < 600. => format!("{seconds:.1} s"),
        ..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn only_a_closed_pipe_is_a_reader_that_has_had_enough_also_inside_csv() {
        let enough = |err: anyhow::Error| err.chain().any(has_had_enough);
        for (kind, want) in [(ErrorKind::BrokenPipe, true), (ErrorKind::StorageFull, false)] {
            assert_eq!(enough(std::io::Error::from(kind).into()), want, "{kind}");
            let of_csv = anyhow!(csv::Error::from(std::io::Error::from(kind))).context("--out -");
            assert_eq!(enough(of_csv), want, "{kind} inside csv");
        }
        assert!(!enough(anyhow!("another error")));
    }

    #[test]
    fn an_error_and_its_causes_are_one_line() {
        let err = anyhow!("no such file\n   0: a backtrace\n   1: of many lines");
        let err = Err::<(), _>(err).context("--data x.npy: cannot read");
        let text = err.map_err(|err| one_line(&err));
        assert_eq!(text, Err("--data x.npy: cannot read: no such file".to_owned()));
    }

    #[test]
    fn causes_within_a_text_are_said_and_rows_have_a_name() {
        let refused = || anyhow!(candle::Error::Msg("energies must be finite".into()).context("batch 2"));
        assert_eq!(one_line(&refused()), "batch 2: energies must be finite");
        let named = |err| of_data::<()>("x.npy", Err(err)).map_err(|err| one_line(&err));
        assert_eq!(named(refused()), Err("--data x.npy: batch 2: energies must be finite".to_owned()));
        for text in ["--prepare: must fit", "x.npy: row 3"] {
            assert_eq!(named(anyhow!("{text}")), Err(text.to_owned()));
        }
    }

    #[test]
    fn a_cause_that_its_effect_quotes_is_said_once() {
        let err = Err::<(), _>(anyhow!("disk full")).context("cannot write: disk full");
        assert_eq!(err.map_err(|err| one_line(&err)), Err("cannot write: disk full".to_owned()));
    }

    #[test]
    fn durations_round_before_they_split() {
        assert_eq!(seconds(59.94), "59.9 s");
        assert_eq!(seconds(59.96), "1 min 00 s");
        assert_eq!(seconds(3599.7), "1 h 00 min");
    }
}
