//! Decoders of other crates that panic on a damaged file: the caller gets an error.
//!
//! A panic comes to the hook of the process before it is caught, and the usual hook prints it. A
//! library must not change the hook; a program whose hook asks [`panics_are_caught`] stays silent
//! about panics that end nothing:
//!
//! ```
//! let before = std::panic::take_hook();
//! std::panic::set_hook(Box::new(move |panic| {
//!     if !chandlery_datasets::panics_are_caught() {
//!         before(panic);
//!     }
//! }));
//! ```
use std::cell::Cell;
#[cfg(any(feature = "image", feature = "parquet", feature = "hdf5"))]
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether this thread is within [`caught`].
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is caught and becomes an [`Error`](crate::Error): for a hook of
/// panics, which need not print it.
///
/// A build with `panic = "abort"` ends at any panic.
pub fn panics_are_caught() -> bool {
    CAUGHT.get()
}

/// Runs `call`; none when it panics. What `call` had borrowed and half changed must not be used
/// then.
#[cfg(any(feature = "image", feature = "parquet", feature = "hdf5"))]
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    let outer = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call)).ok();
    CAUGHT.set(outer);
    result
}
