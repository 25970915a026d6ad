//! Progress on standard error: bars with an estimate on a terminal, and where there is none a line
//! after some seconds and then one a minute.
//!
//! ```text
//! [0:05] annealing: 3 %, about 2 min left
//! [1:05] annealing: 38 %, about 1 min left
//! ```
use crate::report::{rank, seconds};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// When the first line of a log is due, and those after it.
const FIRST: Duration = Duration::from_secs(5);
const EACH: Duration = Duration::from_secs(60);

/// Standard error, five times a second; of several processes rank 0 draws.
fn to_stderr() -> ProgressDrawTarget {
    if rank() > 0 { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(5) }
}

/// A bar over rows, steps or iterations, with the time left and the rate of the first two.
///
/// It draws on standard error where that is a terminal, and writes lines there where it is not.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    _log: Option<Log>,
}

impl Progress {
    /// A bar for `total` rows of which `done` have been seen before (a resumed run).
    ///
    /// The rate and the time left count only what this run does.
    pub fn rows(total: u64, done: u64) -> Self {
        Self::new(total, done, "{rate:>9} rows/s")
    }

    /// A bar for `total` steps of a computation.
    pub fn steps(total: u64) -> Self {
        Self::new(total, 0, "{rate:>9} steps/s")
    }

    /// A bar over `total` iterations of which `done` were made before, without a rate.
    pub fn iterations(total: u64, done: u64) -> Self {
        Self::new(total, done, "{pos:>5}/{len}")
    }

    fn new(total: u64, done: u64, count: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), to_stderr());
        // The template is a constant: were it wrong, the plain bar is still a bar.
        let template = format!("{{msg:26}} {{bar:30}} {{percent:>3}} %  {count}  {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                // Nothing can be done about a terminal that takes no text.
                let _ = write!(out, "{:.0}", state.per_sec());
            };
            bar.set_style(style.with_key("rate", rate).progress_chars("━╸─"));
        }
        bar.set_position(done);
        bar.reset_eta();
        let log = Log::to_stderr(&bar, done);
        Self { bar, _log: log }
    }

    /// What stands left of the bar: `layer 1/2, epoch 3/10`.
    pub fn label(&self, text: String) {
        self.bar.set_message(text);
    }

    /// Counts rows as seen.
    pub fn advance(&self, rows: u64) {
        self.bar.inc(rows);
    }

    /// Says how many are done.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Says how many of how many are done; a computation that knows no better may begin again from
    /// 0.
    pub fn show(&self, done: usize, total: usize) {
        if self.bar.length() != Some(total as u64) {
            self.bar.set_length(total as u64);
        }
        self.set(done as u64);
    }

    /// Prints something with the bar out of the way.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    /// An error takes the bar off the screen, too.
    fn drop(&mut self) {
        self.finish();
    }
}

/// A text that turns while something of unknown length happens, with the time that it has taken;
/// gone when dropped.
#[derive(Debug)]
pub struct Spinner {
    bar: ProgressBar,
    _log: Option<Log>,
}

impl Spinner {
    /// Shows `text` until the value is dropped.
    pub fn new(text: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, to_stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(text.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        let log = Log::to_stderr(&bar, 0);
        Self { bar, _log: log }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Writes how far a bar is from time to time, as long as the value lives.
#[derive(Debug)]
struct Log {
    /// The thread ends when this is gone.
    _alive: Sender<()>,
}

impl Log {
    /// None on a terminal, which shows the bar.
    fn to_stderr(bar: &ProgressBar, done: u64) -> Option<Self> {
        if std::io::stderr().is_terminal() || rank() > 0 {
            return None;
        }
        // A reader that has gone ends nothing.
        Self::new(bar, done, [FIRST, EACH], |line| {
            let _ = writeln!(std::io::stderr(), "{line}");
        })
    }

    /// None where there is no thread left.
    fn new(
        bar: &ProgressBar,
        done: u64,
        [first, each]: [Duration; 2],
        mut write: impl FnMut(String) + Send + 'static,
    ) -> Option<Self> {
        let (alive, gone) = channel::<()>();
        let (bar, began) = (bar.clone(), Instant::now());
        let lines = move || {
            let mut wait = first;
            while gone.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let of = At { done, now: bar.position(), total: bar.length() };
                write(line(&bar.message(), &of, began.elapsed().as_secs_f64()));
                wait = each;
            }
        };
        std::thread::Builder::new().name("progress".to_owned()).spawn(lines).ok()?;
        Some(Self { _alive: alive })
    }
}

/// Where a bar began, where it is, and where it ends if that is known.
struct At {
    done: u64,
    now: u64,
    total: Option<u64>,
}

/// A line of a log.
fn line(what: &str, at: &At, passed: f64) -> String {
    let whole = passed as u64;
    let mut line = format!("[{}:{:02}] {what}", whole / 60, whole % 60);
    let Some(total) = at.total.filter(|&total| total > 0) else { return line };
    // Writing to a String cannot fail.
    let _ = write!(line, ": {:.0} %", 100. * at.now.min(total) as f64 / total as f64);
    let made = at.now.saturating_sub(at.done);
    if made > 0 {
        let left = passed * total.saturating_sub(at.now) as f64 / made as f64;
        let _ = write!(line, ", about {} left", seconds(left));
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_says_how_far_and_how_long_by_what_this_process_did() {
        let at = |done, now, total| At { done, now, total };
        assert_eq!(line("opening x", &at(0, 7, None), 65.2), "[1:05] opening x");
        assert_eq!(line("coding", &at(0, 0, Some(8)), 5.), "[0:05] coding: 0 %");
        // Half of the whole was made before; a quarter took ten seconds.
        let resumed = line("coding", &at(4, 6, Some(8)), 10.);
        assert_eq!(resumed, format!("[0:10] coding: 75 %, about {} left", seconds(10.)));
        assert!(line("x", &at(0, 9, Some(8)), 1.).starts_with("[0:01] x: 100 %, about "));
    }

    #[test]
    fn lines_come_as_long_as_the_bar_lives() {
        let bar = ProgressBar::hidden();
        bar.set_length(4);
        bar.set_message("waiting");
        bar.inc(1);
        let (sender, lines) = channel();
        let soon = Duration::from_millis(1);
        let log = Log::new(&bar, 0, [soon, soon], move |line| _ = sender.send(line)).unwrap();
        for _ in 0..3 {
            let line = lines.recv().unwrap();
            assert!(line.contains("] waiting: 25 %, about "), "{line}");
        }
        drop(log);
        // The thread ends, and with it what it writes to.
        while lines.recv().is_ok() {}
    }
}
