//! Training a network layer by layer, and the checkpoint that resumes it.
use crate::checkpoint::Checkpoint;
use crate::layerwise::{LayerwiseTrainer, StackLayer};
use crate::rbm::{Division, Rbm, RbmTrainConfig, RbmTrainer};
use candle::{Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::Philox;

/// Trains a [`Dbn`](super::Dbn) greedily: the lowest RBM on the rows, each other one on the hidden
/// means of those below.
pub type DbnTrainer = LayerwiseTrainer<Rbm>;

impl DbnTrainer {
    /// Sets the visible biases of the lowest layer from the mean of the prepared rows,
    /// `[n_visible]`, before its first step; see [`RbmTrainer::set_visible_mean`].
    ///
    /// # Errors
    /// When another layer is in training or `mean` has another shape.
    pub fn set_visible_mean(&mut self, mean: &Tensor) -> Result<()> {
        if self.layer() != 0 {
            candle::bail!(
                "DbnTrainer::set_visible_mean: the lowest layer must be in training, got layer {}",
                self.layer() + 1
            )
        }
        self.of_layer().set_visible_mean(mean)
    }

    /// Sets what ranks divide in all layers, before they do; see [`RbmTrainer::set_division`].
    pub fn set_division(&mut self, division: Division) {
        self.change_training(|training| training.division = division);
        self.of_layer().set_division(division);
    }

    /// A copy of the RBM in training.
    ///
    /// # Errors
    /// When memory is short.
    pub fn rbm(&self) -> Result<Rbm> {
        self.layer_model()
    }
}

impl StackLayer for Rbm {
    type Training = RbmTrainConfig;
    type LayerTrainer = RbmTrainer;
    const TRAINER: &'static str = "DbnTrainer";

    fn check_training(&self, training: &RbmTrainConfig) -> Result<()> {
        training.validate_for(self.config())
    }

    fn take_schedules(training: &mut RbmTrainConfig, from: &RbmTrainConfig) {
        training.learning_rate = from.learning_rate.clone();
        training.momentum = from.momentum.clone();
    }

    fn draws_rows(training: &RbmTrainConfig) -> bool {
        training.binarize
    }

    fn above(
        lower: &[Rbm],
        rbm: &Rbm,
        preparation: &Preparation,
        training: RbmTrainConfig,
        philox: Philox,
    ) -> Result<RbmTrainer> {
        RbmTrainer::above(lower, rbm, preparation, training, philox)
    }

    fn set_layer_schedules(trainer: &mut RbmTrainer, training: &RbmTrainConfig) -> Result<()> {
        trainer.set_schedules(training)
    }

    fn stored(trainer: &RbmTrainer) -> Result<Vec<(String, Tensor)>> {
        trainer.stored_state()
    }

    fn restore(trainer: &mut RbmTrainer, stored: &Checkpoint<'_>) -> Result<()> {
        trainer.restore(stored)
    }
}
