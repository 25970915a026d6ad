//! What a program says and how it ends.
//!
//! Results go to standard output, one line each. With `--json` standard output carries one JSON
//! object at the end and nothing else; the lines go to standard error. So they do where `-` is the file that a command writes.
use crate::interrupt;
use crate::plain::{is_users, plain};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// How a program that met no error ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its work is done.
    Done,
    /// Ctrl-C ended it; what it had is safe.
    Interrupted,
}

/// The exit code of a program, after printing an error as one line: `dbn: cause: cause`.
///
/// 0 when done, 1 for an error, 130 after Ctrl-C, 143 after SIGTERM. Clap's usage errors exit with 2 before.
pub fn exit_code(bin: &str, ended: Result<Outcome>) -> ExitCode {
    match ended {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted) => ExitCode::from(interrupt::exit_code()),
        Err(err) => {
            eprintln!("{bin}: {}", one_line(&err));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes on one line.
///
/// Candle's errors carry a backtrace in their text when one is asked for; only what stands before
/// it is said.
pub fn one_line(err: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in err.chain() {
        let text = cause.to_string();
        let text = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let text = plain(text, is_users);
        // A cause that its effect already quotes would be said twice.
        if parts.last().is_none_or(|last| !last.ends_with(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
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

    /// The same for a command that writes the file `out`; lines go to standard error if that is `-`.
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
        if self.taken {
            eprintln!("{text}");
            return Ok(());
        }
        print(text)
    }

    /// Says something on standard error that is no result: what a program chose, or what a user should look at.
    pub fn note(&self, text: &str) {
        // A reader that has gone has no use for it.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Prints the final object, with `--json`; nothing otherwise.
    ///
    /// # Errors
    /// As [`line`](Self::line), and when the value cannot be JSON.
    pub fn finish(&self, result: &impl Serialize) -> Result<()> {
        if self.json { print(&serde_json::to_string(result)?) } else { Ok(()) }
    }
}

fn print(text: &str) -> Result<()> {
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
    let mut out = BufWriter::new(std::io::stdout().lock());
    let ended = write(&mut out).and_then(|()| Ok(out.flush()?));
    match ended {
        // `dbn … | head` has seen what it wanted. What is left in the buffer is not tried again.
        Err(err) if err.chain().any(has_had_enough) => {
            let _ = out.into_parts();
            Ok(())
        }
        ended => ended,
    }
}

/// Whether a cause of an error is a reader that closed its end of a pipe. `csv` does not name the error that it wraps as its source.
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
