//! The threads of candle's own ops on the CPU.

/// Lets candle's own ops compute entry by entry on the thread that calls them, unless
/// `CANDLE_NUM_THREADS` says how many they shall have.
///
/// candle gives entries of large tensors to threads that spin while they wait for each other, which
/// on a machine with other work costs more than it gains. The ops of this crate have threads of
/// their own, which sleep.
///
/// A program calls it first in `main`. Where there is more than one thread already, and on other
/// systems than Linux, it does nothing.
pub fn candle_on_one_thread() {
    const NAME: &str = "CANDLE_NUM_THREADS";
    let is_alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if is_alone && std::env::var_os(NAME).is_none() {
        // SAFETY: there is no other thread that reads or changes the environment.
        unsafe { std::env::set_var(NAME, "1") };
    }
}
