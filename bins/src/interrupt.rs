//! Ctrl-C: the first asks for an orderly end, the second ends at once.
use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that Ctrl-C ended: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Whether somebody has pressed Ctrl-C, or sent SIGTERM as a scheduler does.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on. The second signal ends the process at once, with exit code 130.
    ///
    /// SIGHUP is left as it is, so that `nohup` and a closed terminal mean what they do elsewhere.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the shutdown looks at the flag before the same signal sets it.
            flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED.into(), interrupt.asked.clone())
                .and_then(|_| flag::register(signal, interrupt.asked.clone()))
                .context("cannot listen for Ctrl-C")?;
        }
        Ok(interrupt)
    }

    /// Whether an end has been asked for.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
