//! Ctrl-C, and SIGTERM as a scheduler sends it.
//!
//! The first one ends the process, whatever it does, with the exit code 128 + signal. Files that
//! are not whole are removed, and what a run has on the disk stands. Only a training loop is given
//! two seconds to finish its step and write a checkpoint, see [`orderly`]; if that takes longer, or
//! at the second signal, its last checkpoint is what stands.
use crate::report;
use chandlery_datasets::whole::abandon;
use signal_hook::consts::SIGINT;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Exit codes are 128 and the number of the signal: 129 after SIGHUP, 130 after Ctrl-C, 143 after
/// SIGTERM.
const SIGNALLED: i32 = 128;
/// How long a training loop may take to come to an end; one of several processes agrees on that with
/// the others.
const GRACE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// How long the last words may take: a reader that does not read is not waited for.
const WORDS: Duration = Duration::from_millis(300);

/// What is said when a signal ends the process.
type LastWords = Box<dyn FnOnce() + Send>;

/// There is one for a process, as its exit code is.
static STATE: Mutex<State> = Mutex::new(State { signal: None, orderly: false, words: None });

struct State {
    /// The signal that asked for an end.
    signal: Option<i32>,
    /// Whether a training loop is under way.
    orderly: bool,
    words: Option<LastWords>,
}

fn state() -> MutexGuard<'static, State> {
    // Nothing panics while it has the lock.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens from now on, also for SIGHUP, the end of a terminal, unless it is ignored, as under
/// `nohup`. A file that becomes larger than the process may write is from here on an error of
/// writing, and no end without a word.
///
/// # Errors
/// When the system refuses a handler or a thread.
#[cfg(unix)]
pub fn listen() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGTERM, SIGXFSZ};
    signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default())?;
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    if is_ignored(SIGHUP) == Some(false) {
        signals.add_signal(SIGHUP)?;
    }
    let listen = move || signals.forever().for_each(received);
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map(drop)
}

/// Elsewhere Ctrl-C ends a process as the system has it.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn listen() -> std::io::Result<()> {
    Ok(())
}

/// Whether a signal is ignored; none where the system does not say.
#[cfg(unix)]
fn is_ignored(signal: i32) -> Option<bool> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal - 1) & 1 == 1)
}

#[cfg(unix)]
fn received(signal: i32) {
    let mut state = state();
    let is_first = state.signal.is_none();
    state.signal.get_or_insert(signal);
    if is_first && state.orderly {
        drop(state);
        let late = move || {
            std::thread::sleep(GRACE[usize::from(report::are_several_ranks())]);
            end(signal)
        };
        if std::thread::Builder::new().spawn(late).is_ok() {
            return;
        }
    } else {
        drop(state);
    }
    end(signal)
}

/// Ends the process.
fn end(signal: i32) -> ! {
    end_now(SIGNALLED + signal)
}

/// Ends the process at once with this exit code, whatever it does; its last words are said.
pub fn end_now(code: i32) -> ! {
    abandon();
    if let Some(words) = state().words.take() {
        let (said, wait) = channel();
        let say = move || {
            if std::io::stderr().is_terminal() {
                // In the place of a progress bar.
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
            words();
            // Nobody waits any more if it took too long.
            let _ = said.send(());
        };
        if std::thread::Builder::new().spawn(say).is_ok() {
            let _ = wait.recv_timeout(WORDS);
        }
    }
    signal_hook::low_level::exit(code)
}

/// The exit code of a program that a signal ended.
pub fn exit_code() -> u8 {
    let signal = state().signal.unwrap_or(SIGINT);
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

/// Has `words` said if a signal ends the process from here on, unless they are taken back by
/// [`take_words`].
pub fn say_at_end(words: impl FnOnce() + Send + 'static) {
    state().words = Some(Box::new(words));
}

/// Takes the last words back: they have been said, or there is nothing to say any more.
pub fn take_words() {
    state().words = None;
}

/// From here on until the value is dropped, a signal asks for an end that the caller brings about;
/// see [`Orderly::asked`].
pub fn orderly() -> Orderly {
    state().orderly = true;
    Orderly(())
}

/// A loop that ends itself when it is asked to.
#[derive(Debug)]
pub struct Orderly(());

impl Orderly {
    /// Whether an end has been asked for.
    pub fn asked(&self) -> bool {
        state().signal.is_some()
    }

    /// The loop has come to its own end: ends the process if that was asked for meanwhile.
    pub fn done(self) {
        let signal = {
            let mut state = state();
            state.orderly = false;
            state.signal
        };
        if let Some(signal) = signal {
            end(signal)
        }
    }
}

impl Drop for Orderly {
    fn drop(&mut self) {
        state().orderly = false;
    }
}
