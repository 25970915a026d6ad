//! Training a stack layer by layer.
use super::{StackedDae, StackedDaeConfig};
use crate::checkpoint::Checkpoint;
use crate::dae::{Dae, DaeTrainConfig, DaeTrainer};
use crate::layerwise::{LayerwiseTrainer, Stack};
use crate::model::Model;
use candle::{Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::Preparation;
use chandlery_ops::Philox;

/// Trains a [`StackedDae`] greedily: the lowest autoencoder on the rows, each other one on the
/// hidden units of those below, which see no noise. Noise is added to what the layer in training
/// reads.
pub type StackedDaeTrainer = LayerwiseTrainer<StackedDae>;

impl Stack for StackedDae {
    type Config = StackedDaeConfig;
    type Layer = Dae;
    type Training = DaeTrainConfig;
    type LayerTrainer = DaeTrainer;
    const TRAINER: &'static str = "StackedDaeTrainer";
    const NAME: &'static str = "stacked-denoising-autoencoder";

    fn load(config: StackedDaeConfig, vb: VarBuilder) -> Result<Self> {
        Self::new(config, vb)
    }

    fn of_layers(config: StackedDaeConfig, layers: Vec<Dae>) -> Result<Self> {
        Self::from_layers(config, layers)
    }

    fn parts(&self) -> (&StackedDaeConfig, &[Dae]) {
        (self.config(), self.layers())
    }

    fn validate(_: &Dae, training: &DaeTrainConfig) -> Result<()> {
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
