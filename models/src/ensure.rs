//! Refusals in one line.

/// Returns an error with this message unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            candle::bail!($($message)+)
        }
    };
}
