//! Learning from all rows at once.
use super::Trainer;
use candle::{Device, Result, Tensor};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

/// Learns a model from all rows at once, an iteration after the other.
pub trait FullBatchTrainer: Trainer {
    /// The next iteration and what it came to; none, and nothing is done, when all that were asked
    /// for are made or no more help. A step of t-SNE is the iterations up to the next look at the
    /// layout.
    ///
    /// # Errors
    /// When training diverges, or the device fails.
    fn step(&mut self) -> Result<Option<Self::Metrics>>;

    /// Makes the iterations that are left, and returns the metrics of each.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn fit(&mut self) -> Result<Vec<Self::Metrics>>
    where
        Self: Sized,
    {
        self.fit_with(|_, _| Ok(ControlFlow::Continue(())))
    }

    /// The same with a look at the trainer after each step, which can save it, or end the training
    /// with [`ControlFlow::Break`].
    ///
    /// # Errors
    /// As [`step`](Self::step), and when `each` fails.
    fn fit_with(
        &mut self,
        mut each: impl FnMut(&mut Self, &Self::Metrics) -> Result<ControlFlow<()>>,
    ) -> Result<Vec<Self::Metrics>>
    where
        Self: Sized,
    {
        let mut all = vec![];
        while let Some(metrics) = self.step()? {
            let ends = each(self, &metrics)?.is_break();
            all.push(metrics);
            if ends {
                break;
            }
        }
        Ok(all)
    }

    /// Changes how many iterations there are, with those that are made: for a run that is to go on
    /// longer than was planned. Of t-SNE they are those after the early ones.
    ///
    /// # Errors
    /// When there would be none.
    fn set_iterations(&mut self, iterations: usize) -> Result<()>;

    /// Reads what [`save`](Trainer::save) wrote, to go on over the same raw `rows`: the trainer as
    /// it was, and the caller's progress. On the device that wrote the file the run goes on bit for
    /// bit.
    ///
    /// # Errors
    /// When the file is missing, cut short or of something else, or the rows are others, as far as
    /// that can be told; the message names it.
    fn load(path: &Path, rows: &Tensor, device: &Device) -> Result<(Self, Value)>
    where
        Self: Sized;
}
