//! Losses that the steps of a trainer gather on the device, read once a report.
use crate::checkpoint::Checkpoint;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::elementwise::add;

/// Two sums over all steps, and what of them was reported: the loss of each row, and its second
/// figure.
pub(crate) struct LossSums {
    /// `[2, n]` f64: two sums, each in parts, see
    /// [`output_loss_`](chandlery_ops::layers::output_loss_).
    gathered: Tensor,
    /// Ranks whose sums add up.
    group: Group,
    /// Rows of the steps of all ranks since the last report.
    rows: u64,
    /// The sums and the number of steps at the last report.
    reported: ([f64; 2], u64),
    /// The sums of all ranks, where no step was counted since they were gathered.
    known: Option<[f64; 2]>,
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
    /// Sums that steps add to.
    pub(crate) fn new(gathered: &Tensor) -> Self {
        Self {
            gathered: gathered.clone(),
            group: Group::single(),
            rows: 0,
            reported: ([0.; 2], 0),
            known: None,
        }
    }

    /// The same figures, with sums that all ranks of a group add to from here on, each at another
    /// place that is 0.
    pub(crate) fn in_group(&mut self, group: &Group, gathered: &Tensor) -> Result<()> {
        let total = self.total()?;
        let (before, _) = &mut self.reported;
        before.iter_mut().zip(total).for_each(|(before, total)| *before -= total);
        (self.group, self.gathered) = (group.clone(), gathered.clone());
        Ok(())
    }

    /// Counts the rows of steps.
    pub(crate) fn count(&mut self, rows: usize) {
        self.rows += rows as u64;
        self.known = None;
    }

    /// Moves the sums of steps that gather in another place, `[2, m]` f64, to here.
    pub(crate) fn take_from(&self, other: &Tensor) -> Result<()> {
        let first = self.gathered.narrow(1, 0, 1)?;
        self.gathered.slice_set(&add(&first, &other.sum_keepdim(1)?)?, 1, 0)?;
        other.slice_set(&other.zeros_like()?, 0, 0)
    }

    /// Has what all ranks have, so that [`stored`](Self::stored) need not ask them.
    pub(crate) fn gather(&mut self) -> Result<()> {
        if !self.group.is_single() {
            self.known = Some(self.total()?);
        }
        Ok(())
    }

    fn total(&self) -> Result<[f64; 2]> {
        let sums = self.gathered.sum(1)?;
        self.group.all_reduce_(&sums)?;
        let sums = sums.to_vec1::<f64>()?;
        Ok([sums[0], sums[1]])
    }

    /// Means over the rows since the last report, after `steps` steps. Waits for the device.
    ///
    /// # Errors
    /// When the loss is no longer finite; `advice` says what to do.
    pub(crate) fn since_report(&self, trainer: &str, steps: u64, advice: &str) -> Result<SinceReport> {
        let (before, from) = self.reported;
        let total = self.total()?;
        let [loss, second] = [0, 1].map(|i| (total[i] - before[i]) / self.rows as f64);
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
        self.rows = 0;
    }

    /// What a checkpoint stores after `steps` steps: the sums that are not reported yet, and the
    /// counts of steps.
    pub(crate) fn stored(&self, steps: u64) -> Result<[(&'static str, Tensor); 2]> {
        let total = self.known.map_or_else(|| self.total(), Ok)?;
        let open = [0, 1].map(|i| total[i] - self.reported.0[i]);
        let counts = [steps, self.reported.1, self.rows].map(|n| n as i64);
        Ok([("gathered", Tensor::new(&open, &Device::Cpu)?), ("counts", Tensor::new(&counts, &Device::Cpu)?)])
    }

    /// Puts back what [`stored`](Self::stored) gave, where no step was made yet; returns the number
    /// of steps.
    ///
    /// # Errors
    /// When the file lacks a tensor or it has another shape.
    pub(crate) fn restore(&mut self, stored: &Checkpoint<'_>) -> Result<u64> {
        let gathered = stored.of_trainer("gathered")?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let [steps, reported, rows] = stored.counts()?;
        let [loss, second] = gathered[..] else {
            candle::bail!("gathered must have 2 entries, got {}", gathered.len())
        };
        // The device has gathered nothing yet: what was open counts as not yet reported.
        (self.reported, self.rows) = (([-loss, -second], reported), rows);
        Ok(steps)
    }
}
