//! Sums to which several threads add.
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The numbers as atomic ones, which [`add`] takes.
pub(crate) fn atomics(numbers: &mut [f32]) -> &[AtomicU32] {
    // SAFETY: an AtomicU32 has the size, alignment and valid bits of an f32, and `numbers` are
    // borrowed as mutable for as long as the atomics live, so that nobody else reaches them.
    unsafe { std::slice::from_raw_parts(numbers.as_mut_ptr().cast::<AtomicU32>(), numbers.len()) }
}

/// Adds as hardware does that has no adder in its memory: again until no other came between.
pub(crate) fn add(to: &AtomicU32, x: f32) {
    // The closure never refuses.
    let _ = to.fetch_update(Relaxed, Relaxed, |bits| Some((f32::from_bits(bits) + x).to_bits()));
}
