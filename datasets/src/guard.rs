//! Decoders of other crates that panic on a damaged file: the caller learns of it, standard error does not.
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether this thread is within [`quietly`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`; none when it panics. What `call` had borrowed and half changed must not be used then.
///
/// The process has one hook that prints panics. The first call puts another before it, which keeps still for a thread within
/// `quietly` and hands every other panic on. A build with `panic = "abort"` ends at the panic as before.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    // Hooks cannot be changed from within a panic, for instance in a destructor.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |panic| {
                if !QUIET.get() {
                    before(panic);
                }
            }));
        });
    }
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call)).ok();
    QUIET.set(outer);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_panic_within_is_silent_and_one_outside_is_not() {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        let before = take_hook();
        set_hook(Box::new(move |panic| match panic.payload().downcast_ref::<&str>() {
            Some(&"seen") => _ = SEEN.fetch_add(1, Ordering::SeqCst),
            _ => before(panic),
        }));
        assert_eq!(quietly(|| quietly(|| 2)), Some(Some(2)));
        let nested = quietly(|| -> u8 {
            assert_eq!(quietly(|| -> u8 { panic!("unseen") }), None);
            panic!("unseen")
        });
        assert_eq!((nested, QUIET.get()), (None, false));
        assert!(catch_unwind(|| panic!("seen")).is_err());
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
    }
}
