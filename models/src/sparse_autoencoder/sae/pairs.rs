//! Training of transcoders from rows that have their targets beside them.
use super::{Metrics, Sae, SaeTrainer};
use crate::trainer::{MinibatchTrainer, Trainer};
use candle::{Device, Result, Tensor};
use chandlery_ops::Group;
use serde_json::Value;
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// A [`SaeTrainer`] whose minibatches hold rows, or of a transcoder rows with their targets behind
/// them: `[batch, n_inputs + n_targets]`.
pub struct PairTrainer(SaeTrainer);

impl PairTrainer {
    /// As [`SaeTrainer::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(path: &Path, device: &Device, group: &Group) -> Result<(Self, Value)> {
        let (trainer, progress) = SaeTrainer::read(path, device, group)?;
        Ok((Self(trainer), progress))
    }
}

impl From<SaeTrainer> for PairTrainer {
    fn from(trainer: SaeTrainer) -> Self {
        Self(trainer)
    }
}

impl Deref for PairTrainer {
    type Target = SaeTrainer;

    fn deref(&self) -> &SaeTrainer {
        &self.0
    }
}

impl DerefMut for PairTrainer {
    fn deref_mut(&mut self) -> &mut SaeTrainer {
        &mut self.0
    }
}

impl Trainer for PairTrainer {
    type Model = Sae;
    type Metrics = Metrics;

    fn steps(&self) -> u64 {
        self.0.steps()
    }

    fn check(&mut self) -> Result<()> {
        self.0.check()
    }

    fn metrics(&mut self) -> Result<Metrics> {
        self.0.metrics()
    }

    fn in_group(self, group: &Group) -> Result<Self> {
        Ok(Self(self.0.in_group(group)?))
    }

    fn model(&self) -> Result<Sae> {
        self.0.model()
    }

    fn device(&self) -> &Device {
        self.0.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        self.0.save(path, progress)
    }

    fn join_save(&self) -> Result<()> {
        self.0.join_save()
    }
}

impl MinibatchTrainer for PairTrainer {
    fn step(&mut self, rows: &Tensor, labels: Option<&Tensor>) -> Result<()> {
        let config = self.0.model_config();
        let (n_inputs, Some(n_targets)) = (config.n_inputs(), config.n_targets) else {
            return self.0.step(rows, labels);
        };
        crate::check::batch_of("PairTrainer::step", "rows", rows, n_inputs + n_targets)?;
        let columns = |first, n| rows.narrow(1, first, n)?.contiguous();
        self.0.step_to(&columns(0, n_inputs)?, &columns(n_inputs, n_targets)?)
    }

    fn rows_group(&self) -> Group {
        self.0.rows_group()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (trainer, progress) = SaeTrainer::load(path, device)?;
        Ok((Self(trainer), progress))
    }
}
