//! Losses that the steps of a trainer gather on the device, read once a report.
use crate::checkpoint::Checkpoint;
use candle::{DType, Device, Result, Tensor};

/// Two sums over all steps, and what of them was reported: the loss of each row, and its second figure.
pub(crate) struct LossSums {
    /// `[2, n]` f64: two sums, each in parts, see [`output_loss_`](chandlery_ops::output_loss_).
    gathered: Tensor,
    /// Rows of a step.
    batch: usize,
    /// The sums and the number of steps at the last report.
    reported: ([f64; 2], u64),
}

/// What a trainer's steps since the last report measured.
pub(crate) struct SinceReport {
    pub(crate) steps: u64,
    /// Means over rows.
    pub(crate) loss: f64,
    pub(crate) second: f64,
    total: [f64; 2],
}

impl LossSums {
    /// Sums that steps of `batch` rows add to.
    pub(crate) fn new(gathered: &Tensor, batch: usize) -> Self {
        Self { gathered: gathered.clone(), batch, reported: ([0.; 2], 0) }
    }

    fn total(&self) -> Result<[f64; 2]> {
        let sums = self.gathered.sum(1)?.to_vec1::<f64>()?;
        Ok([sums[0], sums[1]])
    }

    /// Means over the rows since the last report, after `steps` steps. Waits for the device.
    ///
    /// # Errors
    /// When the loss is no longer finite; `advice` says what to do.
    pub(crate) fn since_report(&self, trainer: &str, steps: u64, advice: &str) -> Result<SinceReport> {
        let (before, from) = self.reported;
        let total = self.total()?;
        let rows = ((steps - from) * self.batch as u64) as f64;
        let [loss, second] = [0, 1].map(|i| (total[i] - before[i]) / rows);
        if steps > from && !loss.is_finite() {
            candle::bail!(
                "{trainer}: the loss became {loss} between steps {} and {steps}; {advice}",
                from + 1
            )
        }
        Ok(SinceReport { steps: steps - from, loss, second, total })
    }

    /// The next report begins here.
    pub(crate) fn report(&mut self, since: &SinceReport) {
        self.reported = (since.total, self.reported.1 + since.steps);
    }

    /// What a checkpoint stores after `steps` steps: the sums that are not reported yet, and the counts of steps.
    pub(crate) fn stored(&self, steps: u64) -> Result<[(&'static str, Tensor); 2]> {
        let total = self.total()?;
        let open = [0, 1].map(|i| total[i] - self.reported.0[i]);
        let counts = [steps as i64, self.reported.1 as i64];
        Ok([("gathered", Tensor::new(&open, &Device::Cpu)?), ("counts", Tensor::new(&counts, &Device::Cpu)?)])
    }

    /// Puts back what [`stored`](Self::stored) gave, where no step was made yet; returns the number of steps.
    ///
    /// # Errors
    /// When the file lacks a tensor or it has another shape.
    pub(crate) fn restore(&mut self, stored: &Checkpoint<'_>) -> Result<u64> {
        let gathered = stored.of_trainer("gathered")?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let counts = stored.of_trainer("counts")?.to_vec1::<i64>()?;
        let (&[loss, second], &[steps, reported]) = (&gathered[..], &counts[..]) else {
            candle::bail!(
                "gathered and counts must have 2 entries, got {} and {}",
                gathered.len(),
                counts.len()
            )
        };
        // The device has gathered nothing yet: what was open counts as not yet reported.
        self.reported = ([-loss, -second], reported as u64);
        Ok(steps as u64)
    }
}
