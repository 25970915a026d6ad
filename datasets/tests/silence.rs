//! What panics within the decoder of another crate is an error, and the hook can know: one test,
//! for the hook is the process's.
mod common;
use common::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_panic_of_a_decoder_becomes_an_error_and_a_hook_is_told_that_it_is_caught() -> TestResult {
    static CAUGHT: AtomicUsize = AtomicUsize::new(0);
    static OTHERS: AtomicUsize = AtomicUsize::new(0);
    let counts = || (CAUGHT.load(Ordering::SeqCst), OTHERS.load(Ordering::SeqCst));
    std::panic::set_hook(Box::new(|_| {
        let count = if chandlery_datasets::panics_are_caught() { &CAUGHT } else { &OTHERS };
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let palette = png_of_palette(&[1; 5])?;
    assert!(std::panic::catch_unwind(|| image::load_from_memory(&palette)).is_err(), "mended: test another");
    assert_eq!(counts(), (0, 1));
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("a.png"), palette)?;
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR/a.png: cannot be decoded as an image: the file is damaged; replace or remove it"
    );
    let caught = counts().0;
    assert!(caught > 0 && counts() == (caught, 1), "{:?}", counts());
    // And one after that is none of ours.
    assert!(std::panic::catch_unwind(|| panic!("heard")).is_err());
    assert_eq!(counts(), (caught, 2));
    Ok(())
}
