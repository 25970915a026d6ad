//! Training a stack layer by layer.
use crate::checkpoint::Checkpoint;
use crate::dae::{Dae, DaeTrainConfig, DaeTrainer};
use crate::layerwise::{LayerwiseTrainer, StackLayer};
use candle::{Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::Philox;

/// Trains a [`StackedDae`](super::StackedDae) greedily: the lowest autoencoder on the rows, each
/// other one on the hidden units of those below, which see no noise. Noise is added to what the
/// layer in training reads.
pub type StackedDaeTrainer = LayerwiseTrainer<Dae>;

impl StackLayer for Dae {
    type Training = DaeTrainConfig;
    type LayerTrainer = DaeTrainer;
    const TRAINER: &'static str = "StackedDaeTrainer";

    fn check_training(&self, training: &DaeTrainConfig) -> Result<()> {
        training.validate()
    }

    fn take_schedules(training: &mut DaeTrainConfig, from: &DaeTrainConfig) {
        training.learning_rate = from.learning_rate.clone();
        training.momentum = from.momentum.clone();
    }

    fn above(
        lower: &[Dae],
        dae: &Dae,
        preparation: &Preparation,
        training: DaeTrainConfig,
        philox: Philox,
    ) -> Result<DaeTrainer> {
        DaeTrainer::above(lower, dae, preparation, training, philox)
    }

    fn set_layer_schedules(trainer: &mut DaeTrainer, training: &DaeTrainConfig) -> Result<()> {
        trainer.set_schedules(training)
    }

    fn stored(trainer: &DaeTrainer) -> Result<Vec<(String, Tensor)>> {
        trainer.stored_state()
    }

    fn restore(trainer: &mut DaeTrainer, stored: &Checkpoint<'_>) -> Result<()> {
        trainer.restore(stored)
    }
}
