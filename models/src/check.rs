//! Checks of shapes and ranges, with their error messages in one place.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::raise_to_largest_;

/// Checks that `t` is `[batch, want]` and returns `batch`.
pub(crate) fn batch_of(op: &str, name: &str, t: &Tensor, want: usize) -> Result<usize> {
    match t.dims() {
        [batch, cols] if *cols == want => Ok(*batch),
        got => candle::bail!("{op}: {name} must have shape [batch, {want}], got {got:?}"),
    }
}

/// The same values in the type of a model, after [`batch_of`].
pub(crate) fn values_of(op: &str, name: &str, t: &Tensor, want: usize, dtype: DType) -> Result<Tensor> {
    batch_of(op, name, t, want)?;
    t.to_dtype(dtype)
}

/// Checks that a size is at least 1.
pub(crate) fn at_least_one(op: &str, name: &str, size: usize) -> Result<()> {
    if size == 0 {
        candle::bail!("{op}: {name} must be at least 1, got 0")
    }
    Ok(())
}

/// Checks that there are as many names as classes, where there are names, and that no two are the
/// same.
pub(crate) fn check_names(op: &str, names: Option<&[String]>, n_classes: usize) -> Result<()> {
    let Some(names) = names else { return Ok(()) };
    if names.len() != n_classes {
        candle::bail!("{op}: class_names must be {n_classes}, one for each class, got {}", names.len())
    }
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        candle::bail!("{op}: class_names must differ, got '{}' twice", pair[0])
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

/// Checks that the host has memory for so many f32 values, where `device` is the host: without it
/// the process would be ended.
///
/// `what` says what they are for: `1000 hidden units`.
pub(crate) fn room_for(op: &str, what: &str, values: f64, device: &Device) -> Result<()> {
    let bytes = 4. * values;
    if device.is_cpu() && memory().is_some_and(|memory| bytes > memory) {
        candle::bail!(
            "{op}: {what} need {:.0} GB of memory in training, more than there is; take fewer",
            bytes / 1e9
        )
    }
    Ok(())
}

/// Refuses draws of a trainer that begin where those of the weights began: noise that is a function
/// of the weights is no noise.
///
/// `drawn` gives the first `n` weights as they are drawn at `philox`. Waits for the device.
pub(crate) fn other_place(
    op: &str,
    philox: Philox,
    weight: &Tensor,
    drawn: impl FnOnce(usize) -> Result<Tensor>,
) -> Result<()> {
    /// Enough that no other weights are alike.
    const WEIGHTS: usize = 8;
    let n = WEIGHTS.min(weight.elem_count());
    let values = |t: Tensor| t.to_dtype(DType::F64)?.to_vec1::<f64>();
    let (own, at_place) = (values(weight.flatten_all()?.narrow(0, 0, n)?)?, values(drawn(n)?)?);
    let alike = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
    if n > 1 && own.iter().zip(&at_place).all(alike) {
        let Philox { seed, stream, offset } = philox;
        candle::bail!(
            "{op}: philox must not begin where the draws of the weights did, at seed {seed}, stream {stream} and offset {offset}; give another \
             stream"
        )
    }
    Ok(())
}

/// Bytes of the host's memory, where the system says so.
fn memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(1024. * line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()?)
}

/// The labels that a trainer was given: on the CPU one that is no class is refused at once, on a
/// GPU it is noted without a wait, and refused when the trainer next reads from the device.
pub(crate) struct LabelsSeen {
    /// `[1]` u32.
    largest: Tensor,
    n_classes: usize,
}

impl LabelsSeen {
    pub(crate) fn new(n_classes: usize, device: &Device) -> Result<Self> {
        Ok(Self { largest: Tensor::zeros(1, DType::U32, device)?, n_classes })
    }

    /// Looks at the labels of a step, u32.
    pub(crate) fn see(&self, op: &str, labels: &Tensor) -> Result<()> {
        let labels = labels.contiguous()?;
        match labels.device() {
            Device::Cpu => {
                self.refuse(op, labels.flatten_all()?.to_vec1::<u32>()?.into_iter().max().unwrap_or(0))
            }
            _ => raise_to_largest_(&self.largest, &labels),
        }
    }

    /// Refuses labels that were noted. Waits for the device.
    pub(crate) fn check(&self, op: &str) -> Result<()> {
        match self.largest.to_vec1::<u32>()?.first() {
            Some(&largest) => self.refuse(op, largest),
            None => Ok(()),
        }
    }

    fn refuse(&self, op: &str, largest: u32) -> Result<()> {
        if largest as usize >= self.n_classes {
            candle::bail!("{op}: labels must be below n_classes = {}, got {largest}", self.n_classes)
        }
        Ok(())
    }
}

/// Whether every value of a float tensor is finite. Waits for the device.
pub(crate) fn is_finite(t: &Tensor) -> Result<bool> {
    // 0 times infinity or NaN is NaN, and so is a sum with it.
    let t = if t.dtype() == DType::F64 { t.clone() } else { t.to_dtype(DType::F32)? };
    Ok((t * 0.)?.sum_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()? == 0.)
}

/// Checks that what a trainer has learned after `steps` steps is finite. Waits for the device.
pub(crate) fn all_finite<'a>(
    trainer: &str,
    steps: u64,
    state: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    for (name, t) in state.into_iter().filter(|(_, t)| t.dtype().is_float()) {
        if !chandlery_ops::arrays::all_finite(t)? {
            candle::bail!(
                "{trainer}: {name} became infinite or NaN by step {steps}; lower the learning rate, or scale the input"
            )
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_classes_are_as_many_as_classes_and_differ() {
        let check = |names: &[&str], n| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let first_line =
                |err: candle::Error| err.to_string().lines().next().unwrap_or_default().to_owned();
            check_names("Op", Some(&names), n).map_err(first_line)
        };
        assert_eq!(check(&["b", "a"], 2), Ok(()));
        assert_eq!(check(&["a"], 2), Err("Op: class_names must be 2, one for each class, got 1".to_owned()));
        assert_eq!(check(&["a", "b", "a"], 3), Err("Op: class_names must differ, got 'a' twice".to_owned()));
        assert!(check_names("Op", None, 2).is_ok());
    }
}
