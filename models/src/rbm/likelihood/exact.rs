//! The partition function as a sum over all states of one side.
//!
//! ```text
//! over h   Z = Σ_h e^(c·h) Π_i z_i((h W)_i)     z_i(s) = 1 + e^(b_i + s)                        binary
//!                                                        √(2πσ_i²) e^((b_i s + s²/2)/σ_i²)      real
//! over v   Z = Σ_v e^(b·v) Π_j (1 + e^((v Wᵀ + c)_j))
//! ```
//!
//! A state is a number whose bits are the units. The lower bits run through the same values in
//! every block, so `h W` of a block is one matrix, computed once, plus one row for the upper bits.
use super::Progress;
use crate::model::Model;
use crate::rbm::energy::softplus;
use crate::rbm::{Rbm, VisibleUnit};
use candle::{D, DType, Device, Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Largest number of units over whose states [`Rbm::exact_log_z`] sums.
pub const MAX_EXACT_UNITS: usize = 25;

/// Numbers in a block: those of a CPU fit a core's cache, those of a GPU keep all of it busy.
const CPU_BLOCK: usize = 1 << 15;
const GPU_BLOCK: usize = 1 << 22;
/// Blocks between two reports of progress; on the CPU they share the threads.
const GROUP: usize = 64;

impl Rbm {
    /// Whether the RBM has binary hidden units and is small enough for
    /// [`exact_log_z`](Self::exact_log_z).
    pub fn has_exact_log_z(&self) -> bool {
        self.must_be_binary("").is_ok() && self.exact_units() <= MAX_EXACT_UNITS
    }

    /// Units of the side that is summed over.
    fn exact_units(&self) -> usize {
        match self.config.visible {
            VisibleUnit::Bernoulli => self.config.n_hidden.min(self.config.n_visible),
            VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => self.config.n_hidden,
        }
    }

    /// `ln Z`, summed over the states of the hidden units or, if they are fewer and binary, of the
    /// visible units. In f64.
    ///
    /// Cost: `2^units · n_other` exponentials and logarithms; a 784 × 20 RBM takes some seconds on
    /// a few cores.
    ///
    /// # Errors
    /// When the smaller side has more than [`MAX_EXACT_UNITS`] units, or hidden units are not
    /// binary.
    pub fn exact_log_z(&self, progress: Progress<'_>) -> Result<f64> {
        const OP: &str = "Rbm::exact_log_z";
        self.must_be_binary(OP)?;
        let units = self.exact_units();
        if units > MAX_EXACT_UNITS {
            candle::bail!(
                "{OP}: the hidden or the binary visible units must be at most {MAX_EXACT_UNITS}, got {units}; estimate it with Ais"
            )
        }
        let wide = self.dense()?.to(DType::F64, self.weight.device())?;
        let log_z = match units < self.config.n_hidden {
            true => wide.over_visible(progress)?,
            false => wide.over_hidden(progress)?,
        };
        if !log_z.is_finite() {
            candle::bail!("{OP}: the parameters must be finite, got ln Z = {log_z}")
        }
        Ok(log_z)
    }

    fn over_visible(&self, progress: Progress<'_>) -> Result<f64> {
        let states = States { weight: &self.weight.t()?, bias: &self.visible_bias, origin: &self.bias };
        states.log_sum(|x| softplus(x)?.sum(D::Minus1), progress)
    }

    fn over_hidden(&self, progress: Progress<'_>) -> Result<f64> {
        let states = |origin| States { weight: &self.weight, bias: &self.bias, origin };
        let b = &self.visible_bias;
        if self.config.visible == VisibleUnit::Bernoulli {
            return states(b).log_sum(|x| softplus(x)?.sum(D::Minus1), progress);
        }
        let log_variance = match &self.log_variance {
            Some(log_variance) => log_variance.clone(),
            None => b.zeros_like()?,
        };
        let precision = log_variance.neg()?.exp()?.unsqueeze(1)?;
        // (b s + s²/2)/σ² = s (b + s/2)/σ²
        let integral = |s: &Tensor| (s * (s * 0.5)?.broadcast_add(b)?)?.matmul(&precision)?.squeeze(1);
        let sum = states(&b.zeros_like()?).log_sum(integral, progress)?;
        Ok(sum + log_volume(&log_variance)?)
    }
}

/// `Σ_i ½ ln 2πσ_i²`
pub(super) fn log_volume(log_variance: &Tensor) -> Result<f64> {
    let own = log_variance.sum_all()?.to_scalar::<f64>()? / 2.;
    Ok(own + log_variance.elem_count() as f64 * (2. * std::f64::consts::PI).ln() / 2.)
}

/// All states `s` of one side, and what the other side reads of each: `origin + s weight`.
struct States<'a> {
    /// `[units, n_other]`
    weight: &'a Tensor,
    /// `[units]`
    bias: &'a Tensor,
    /// `[n_other]`
    origin: &'a Tensor,
}

impl States<'_> {
    /// `ln Σ_s exp(s·bias + other(origin + s weight))`; `other` takes `[rows, n_other]` to
    /// `[rows]`.
    fn log_sum(
        &self,
        other: impl Fn(&Tensor) -> Result<Tensor> + Sync,
        progress: Progress<'_>,
    ) -> Result<f64> {
        let (units, n_other) = self.weight.dims2()?;
        let device = self.weight.device();
        let room = if device.is_cpu() { CPU_BLOCK } else { GPU_BLOCK };
        let low = ((room / n_other).max(1).ilog2() as usize).min(units);
        let high = units - low;
        let (low_read, low_own) = self.sums(0..1 << low, 0, low)?;
        let low_read = low_read.broadcast_add(self.origin)?;

        let n_blocks = 1usize << high;
        let mut sums = Vec::with_capacity(n_blocks);
        for first in (0..n_blocks).step_by(GROUP) {
            let group = GROUP.min(n_blocks - first);
            let (high_read, high_own) = self.sums(first..first + group, low, high)?;
            let block = |i: usize| {
                let read = low_read.broadcast_add(&high_read.narrow(0, i, 1)?)?;
                let own = low_own.broadcast_add(&high_own.narrow(0, i, 1)?)?;
                (other(&read)? + own)?.log_sum_exp(0)
            };
            let of_group: Result<Vec<Tensor>> = match device.is_cpu() {
                true => (0..group).into_par_iter().map(block).collect(),
                false => (0..group).map(block).collect(),
            };
            sums.push(Tensor::stack(&of_group?, 0)?.log_sum_exp(0)?);
            progress(first + group, n_blocks);
        }
        Tensor::stack(&sums, 0)?.log_sum_exp(0)?.to_scalar()
    }

    /// What the states whose units `from..from + n` are the bits of `numbers` add to `s weight`,
    /// `[numbers, n_other]`, and to `s·bias`, `[numbers]`.
    fn sums(&self, numbers: Range<usize>, from: usize, n: usize) -> Result<(Tensor, Tensor)> {
        let (rows, device) = (numbers.len(), self.weight.device());
        if n == 0 {
            // Not every device makes tensors without elements.
            let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, device);
            return Ok((zeros(&[rows, self.weight.dim(1)?])?, zeros(&[rows])?));
        }
        let part = |t: &Tensor| t.narrow(0, from, n)?.contiguous();
        let states = bits(numbers, n, device)?;
        let own = states.matmul(&part(self.bias)?.unsqueeze(1)?)?.squeeze(1)?;
        Ok((states.matmul(&part(self.weight)?)?, own))
    }
}

/// The lowest `n` bits of each number, lowest first, `[numbers, n]` f64.
fn bits(numbers: Range<usize>, n: usize, device: &Device) -> Result<Tensor> {
    let rows = numbers.len();
    let bits = numbers.flat_map(|s| (0..n).map(move |i| (s >> i & 1) as f64));
    Tensor::from_vec(bits.collect(), (rows, n), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbm::RbmConfig;
    use chandlery_ops::Philox;

    #[test]
    fn both_sides_sum_to_the_same() -> Result<()> {
        // Wide enough that blocks have upper bits: 2^13 · 11 numbers are more than a block of the
        // CPU.
        for (n_visible, n_hidden) in [(13, 11), (2, 3), (1, 1), (14, 14)] {
            let config = RbmConfig { weight_stdev: 0.7, ..RbmConfig::new(n_visible, n_hidden) };
            let rbm = Rbm::init(config, Philox::new(1, 0), &Device::Cpu)?.to(DType::F64, &Device::Cpu)?;
            let bias = |n, stream| {
                chandlery_ops::core::normal(n, &Device::Cpu, Philox::new(1, stream))?.to_dtype(DType::F64)
            };
            let rbm = Rbm { bias: bias(n_hidden, 1)?, visible_bias: bias(n_visible, 2)?, ..rbm };
            let (hidden, visible) = (rbm.over_hidden(&mut |_, _| {})?, rbm.over_visible(&mut |_, _| {})?);
            assert!((hidden - visible).abs() < 1e-11, "{n_visible}×{n_hidden}: {hidden} and {visible}");
        }
        Ok(())
    }

    #[test]
    fn bits_of_a_number_come_lowest_first() -> Result<()> {
        assert_eq!(bits(5..7, 3, &Device::Cpu)?.to_vec2::<f64>()?, [[1., 0., 1.], [0., 1., 1.]]);
        Ok(())
    }
}
