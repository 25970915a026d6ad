//! What panics within the decoder of another crate stays within: one test, for the panic hook is the process's.
mod common;
use common::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_panic_of_a_decoder_reaches_no_hook_and_so_not_standard_error() -> TestResult {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    std::panic::set_hook(Box::new(|_| _ = PANICS.fetch_add(1, Ordering::SeqCst)));
    let palette = png_of_palette(&[1; 5])?;
    assert!(std::panic::catch_unwind(|| image::load_from_memory(&palette)).is_err(), "mended: test another");
    assert_eq!(PANICS.load(Ordering::SeqCst), 1);
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("a.png"), palette)?;
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR/a.png: cannot be decoded as an image: the file is damaged; replace or remove it"
    );
    assert_eq!(PANICS.load(Ordering::SeqCst), 1);
    // And another's panic is heard after that as before.
    assert!(std::panic::catch_unwind(|| panic!("heard")).is_err());
    assert_eq!(PANICS.load(Ordering::SeqCst), 2);
    Ok(())
}
