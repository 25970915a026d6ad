//! An allocator that knows how much memory is asked for, so that a test can hold a reader to a
//! bound.
//!
//! A test binary that wants it says
//! `#[global_allocator] static GAUGE: gauge::Gauge = gauge::Gauge;`.
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// An allocation that is refused, for the machine's sake; most callers abort then.
const REFUSED: usize = 4 << 30;

/// The system's allocator, counted.
pub struct Gauge;

impl Gauge {
    /// Begins to measure.
    pub fn reset() {
        LARGEST.store(0, Relaxed);
        PEAK.store(LIVE.load(Relaxed), Relaxed);
    }

    /// Bytes of the largest single allocation since the reset.
    pub fn largest() -> usize {
        LARGEST.load(Relaxed)
    }

    /// Most bytes that were held at once since the reset, by the whole process.
    pub fn peak() -> usize {
        PEAK.load(Relaxed)
    }
}

/// Counts an allocation; false when it is refused.
fn take(size: usize) -> bool {
    LARGEST.fetch_max(size, Relaxed);
    if size > REFUSED {
        return false;
    }
    let live = LIVE.fetch_add(size, Relaxed) + size;
    PEAK.fetch_max(live, Relaxed);
    true
}

// SAFETY: every call is handed on to the system's allocator with the arguments it came with, or
// answered by null, which an allocator may do at any time; the counters are atomic and do not
// allocate.
unsafe impl GlobalAlloc for Gauge {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller vouches that `place` came from this allocator with this layout, and so
        // from the system's.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as for `dealloc`, and the caller vouches for the new size.
        unsafe { System.realloc(place, layout, size) }
    }
}
