//! Ctrl-C: the first asks for an orderly end, the second ends at once.
use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that Ctrl-C ended: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Whether somebody has pressed Ctrl-C (or sent SIGTERM or SIGHUP).
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on. The second signal ends the process at once, with exit code 130.
    ///
    /// # Errors
    /// When a handler is already installed: a program listens once.
    pub fn listen() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let asked = interrupt.asked.clone();
        ctrlc::try_set_handler(move || {
            if asked.swap(true, Ordering::SeqCst) {
                std::process::exit(EXIT_INTERRUPTED.into());
            }
            eprintln!("\nstopping after this step; press Ctrl-C again to stop at once");
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// Whether an end has been asked for.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
