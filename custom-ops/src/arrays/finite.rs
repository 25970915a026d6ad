//! Whether an array has numbers alone.
use candle::{DType, Result, Tensor};

/// Entries that are looked at together: of f64 64 MiB.
const BLOCK: usize = 8 << 20;

/// Whether no entry is NaN or infinite; whole numbers never are. `x` is contiguous, of any shape.
///
/// ```
/// use candle::{Device::Cpu, Tensor};
/// # fn main() -> candle::Result<()> {
/// assert!(chandlery_ops::arrays::all_finite(&Tensor::new(&[f32::MAX, -1.], &Cpu)?)?);
/// assert!(!chandlery_ops::arrays::all_finite(&Tensor::new(&[[0., f64::NEG_INFINITY]], &Cpu)?)?);
/// # Ok(()) }
/// ```
///
/// Cost: reads the entries twice, takes 64 MiB of memory at most, and waits for the device.
///
/// # Errors
/// When memory is short.
pub fn all_finite(x: &Tensor) -> Result<bool> {
    if !x.dtype().is_float() {
        return Ok(true);
    }
    let flat = x.flatten_all()?;
    let n = flat.dim(0)?;
    for first in (0..n).step_by(BLOCK) {
        // 0 times a number is 0; NaN and infinities become NaN, which stays in any sum.
        let zeros = (flat.narrow(0, first, BLOCK.min(n - first))? * 0.)?.sum_all()?;
        if zeros.to_dtype(DType::F32)?.to_scalar::<f32>()? != 0. {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn one_entry_that_is_no_number_is_seen_wherever_it_is() {
        let n = BLOCK + 5;
        let of = |at: usize, x: f32| {
            let mut values = vec![f32::MAX; n];
            values[at] = x;
            all_finite(&Tensor::from_vec(values, n, &Cpu).unwrap()).unwrap()
        };
        assert!(of(0, f32::MIN_POSITIVE));
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!of(0, x) && !of(BLOCK, x) && !of(n - 1, x), "{x}");
        }
        for dtype in [DType::F16, DType::BF16, DType::F64, DType::U8] {
            let x = Tensor::new(&[1f32, 0.], &Cpu).unwrap().to_dtype(dtype).unwrap();
            assert!(all_finite(&x).unwrap());
        }
        let x = Tensor::new(&[1f32, f32::INFINITY], &Cpu).unwrap();
        assert!(!all_finite(&x.to_dtype(DType::F16).unwrap()).unwrap());
        assert!(all_finite(&Tensor::zeros((0, 3), DType::F32, &Cpu).unwrap()).unwrap());
    }
}
