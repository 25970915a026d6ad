//! Progress bars: on standard error, and only when that is a terminal.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;

/// A bar over rows, steps or iterations, with the time left and the rate of the first two.
///
/// It draws on standard error, and only when that is a terminal; otherwise every
/// call is free.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
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
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
        // The template is a constant: were it wrong, the plain bar is still a bar.
        let template = format!("{{msg:26}} {{bar:30}} {{percent:>3}} %  {count}  {{eta}} left");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            let rate = |state: &ProgressState, out: &mut dyn Write| {
                // Nothing can be done about a terminal that takes no text.
                let _ = write!(out, "{:.0}", state.per_sec());
            };
            bar.set_style(style.with_key("rate", rate).progress_chars("━╸─"));
        }
        bar.set_position(done);
        bar.reset_eta();
        Self { bar }
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

    /// Prints something with the bar out of the way.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A text that turns while something of unknown length happens; gone when dropped.
#[derive(Debug)]
pub struct Spinner {
    bar: ProgressBar,
}

impl Spinner {
    /// Shows `text` until the value is dropped.
    pub fn new(text: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_message(text.to_owned());
        bar.enable_steady_tick(std::time::Duration::from_millis(120));
        Self { bar }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
