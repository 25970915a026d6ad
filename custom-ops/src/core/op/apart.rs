//! The threads of CPU kernels: none of them waits for a lock that a kernel's caller holds.
//!
//! A kernel runs while candle's locks on its operands are held. A thread of rayon that waits for a
//! part of its work takes up other work of its pool meanwhile; if that is an op on the same tensor,
//! it waits for a lock that it holds itself, and for ever. So kernels have pools of their own:
//! their threads run nothing but kernels, whose locks were taken before, by a thread that takes up
//! no other work.
//!
//! The way to such a pool and back takes some 20 µs. A step of many kernels goes there as a whole,
//! to a pool that has nothing else to do meanwhile ([`together`]).
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// Whether this is a thread of kernels.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
    /// Kernels that this thread has handed over.
    static HANDED_OVER: Cell<u64> = const { Cell::new(0) };
}

/// Kernels that this thread has handed over to others so far.
pub(crate) fn handed_over() -> u64 {
    HANDED_OVER.get()
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
    HANDED_OVER.set(HANDED_OVER.get() + 1);
    install(&*pool(rayon::current_num_threads())?, kernel)
}

/// Runs a step, whose kernels follow one another, on as many threads as the caller's pool has, and
/// waits for it without taking up other work. Its kernels are handed to nobody else.
///
/// # Errors
/// When threads cannot be started.
pub(crate) fn together<T: Send>(step: impl FnOnce() -> T + Send) -> candle::Result<T> {
    if IS_OURS.get() {
        return Ok(step());
    }
    let lent = Lent::new(rayon::current_num_threads())?;
    install(&lent.pool, step)
}

/// A pool that nobody else has meanwhile.
struct Lent {
    pool: Arc<ThreadPool>,
}

/// Pools that nobody has; they live as long as the process.
static SPARE: Mutex<Vec<Arc<ThreadPool>>> = Mutex::new(vec![]);

impl Lent {
    fn new(threads: usize) -> candle::Result<Self> {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = spare.iter().position(|pool| pool.current_num_threads() == threads);
        let found = found.map(|at| spare.swap_remove(at));
        drop(spare);
        Ok(Self { pool: found.map_or_else(|| started(threads).map(Arc::new), Ok)? })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(self.pool.clone());
    }
}

/// Runs `work` in a pool and waits for it without taking up other work.
fn install<T: Send>(pool: &ThreadPool, work: impl FnOnce() -> T + Send) -> candle::Result<T> {
    if rayon::current_thread_index().is_none() {
        return Ok(pool.install(work));
    }
    std::thread::scope(|scope| {
        let handed_over = std::thread::Builder::new().spawn_scoped(scope, || pool.install(work))?;
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
    let pool = Arc::new(started(threads)?);
    pools.push((threads, pool.clone()));
    Ok(pool)
}

fn started(threads: usize) -> candle::Result<ThreadPool> {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("chandlery-{i}"))
        .start_handler(|_| IS_OURS.set(true))
        .build()
        .map_err(candle::Error::wrap)
}
