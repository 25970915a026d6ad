//! New points in a layout that stays.
use super::{Embedding, TransformConfig, TransformTrainer};
use crate::trainer::Trainer;
use candle::{Result, Tensor};

impl Embedding {
    /// [`transform`](Self::transform) with other settings. [`TransformTrainer`] does the same in
    /// steps, and says what it costs.
    ///
    /// # Errors
    /// When a setting is out of range, the embedding has no rows, or the new ones do not fit them.
    pub fn transform_with(&self, rows: &Tensor, config: &TransformConfig) -> Result<Tensor> {
        placed(TransformTrainer::new(self, config.clone(), rows)?)
    }

    /// The same for rows that are prepared already, f32 `[m, n_features]`.
    ///
    /// # Errors
    /// As [`transform_with`](Self::transform_with).
    pub fn transform_prepared(&self, rows: &Tensor, config: &TransformConfig) -> Result<Tensor> {
        placed(TransformTrainer::of_prepared(self, config.clone(), rows)?)
    }
}

fn placed(mut run: TransformTrainer) -> Result<Tensor> {
    run.finish()?;
    run.model()
}
