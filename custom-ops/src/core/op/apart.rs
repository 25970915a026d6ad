//! The threads of CPU kernels: none of them waits for a lock that a kernel's caller holds.
//!
//! A kernel runs while candle's locks on its operands are held. A thread of rayon that waits for a
//! part of its work takes up other work of its pool meanwhile; if that is an op on the same tensor,
//! it waits for a lock that it holds itself, and for ever. So kernels have pools of their own:
//! their threads run nothing but kernels, whose locks were taken before, by a thread that takes up
//! no other work.
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// Whether this is a thread of kernels.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a kernel on as many threads as the caller's pool has, and waits for it without taking up
/// other work.
///
/// A thread of rayon takes up other work wherever rayon lets it wait, so the kernel is handed over
/// by another thread, which takes some 30 µs.
///
/// # Errors
/// When threads cannot be started.
pub(super) fn apart<T: Send>(kernel: impl FnOnce() -> T + Send) -> candle::Result<T> {
    if IS_OURS.get() {
        return Ok(kernel());
    }
    let pool = pool(rayon::current_num_threads())?;
    if rayon::current_thread_index().is_none() {
        return Ok(pool.install(kernel));
    }
    std::thread::scope(|scope| {
        let handed_over = std::thread::Builder::new().spawn_scoped(scope, || pool.install(kernel))?;
        Ok(handed_over.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The pool of so many threads, which lives as long as the process.
fn pool(threads: usize) -> candle::Result<Arc<ThreadPool>> {
    static POOLS: Mutex<Vec<(usize, Arc<ThreadPool>)>> = Mutex::new(vec![]);
    // A poisoned lock means that another thread panicked in here; the list is valid at every point.
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, pool)) = pools.iter().find(|(of, _)| *of == threads) {
        return Ok(pool.clone());
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("chandlery-{i}"))
        .start_handler(|_| IS_OURS.set(true))
        .build()
        .map_err(candle::Error::wrap)?;
    let pool = Arc::new(pool);
    pools.push((threads, pool.clone()));
    Ok(pool)
}
