//! Ctrl-C: the first asks for an orderly end, the second ends at once.
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Exit codes are 128 and the number of the signal: 130 after Ctrl-C, 143 after SIGTERM.
const SIGNALLED: i32 = 128;

/// The signal that asked this process for an end, 0 before one has. There is one for a process, as its exit code is.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// The exit code of a program that a signal ended.
pub fn exit_code() -> u8 {
    let signal = match SIGNAL.load(Ordering::SeqCst) {
        0 => SIGINT,
        signal => signal as i32,
    };
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

/// Whether somebody has pressed Ctrl-C, or sent SIGTERM as a scheduler does.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on. The second signal ends the process at once, with the exit code 128 + signal.
    ///
    /// SIGHUP is left as it is, so that `nohup` and a closed terminal mean what they do elsewhere.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the shutdown looks at the flag before the same signal sets it.
            flag::register_conditional_shutdown(signal, SIGNALLED + signal, interrupt.asked.clone())
                .and_then(|_| flag::register(signal, interrupt.asked.clone()))
                .and_then(|_| flag::register_usize(signal, SIGNAL.clone(), signal as usize))
                .context("cannot listen for Ctrl-C")?;
        }
        Ok(interrupt)
    }

    /// Whether an end has been asked for.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
