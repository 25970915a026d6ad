//! Checks of shapes and ranges, with their error messages in one place.
use candle::{DType, Result, Tensor};

/// Checks that `t` is `[batch, want]` and returns `batch`.
pub(crate) fn batch_of(op: &str, name: &str, t: &Tensor, want: usize) -> Result<usize> {
    match t.dims() {
        [batch, cols] if *cols == want => Ok(*batch),
        got => candle::bail!("{op}: {name} must have shape [batch, {want}], got {got:?}"),
    }
}

/// Checks that a size is at least 1.
pub(crate) fn at_least_one(op: &str, name: &str, size: usize) -> Result<()> {
    if size == 0 {
        candle::bail!("{op}: {name} must be at least 1, got 0")
    }
    Ok(())
}

/// Checks that a number is finite and satisfies `holds`, which `must` puts into words.
pub(crate) fn range(op: &str, name: &str, x: f64, must: &str, holds: impl Fn(f64) -> bool) -> Result<()> {
    if !x.is_finite() || !holds(x) {
        candle::bail!("{op}: {name} must be {must}, got {x}")
    }
    Ok(())
}

/// Whether every value of a float tensor is finite. Waits for the device.
pub(crate) fn is_finite(t: &Tensor) -> Result<bool> {
    // 0 times infinity or NaN is NaN, and so is a sum with it.
    Ok((t.to_dtype(DType::F32)? * 0.)?.sum_all()?.to_scalar::<f32>()? == 0.)
}

/// Checks that what a trainer has learned after `steps` steps is finite. Waits for the device.
pub(crate) fn all_finite<'a>(
    trainer: &str,
    steps: u64,
    state: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    for (name, t) in state.into_iter().filter(|(_, t)| t.dtype().is_float()) {
        if !is_finite(t)? {
            candle::bail!(
                "{trainer}: {name} became infinite or NaN by step {steps}; lower the learning rate, or scale the input"
            )
        }
    }
    Ok(())
}
