//! What all that learns has in common.
mod full_batch;
mod minibatches;

use candle::{Device, Result};
use chandlery_ops::Group;
pub use full_batch::FullBatchTrainer;
pub use minibatches::{Epochs, Event, MinibatchTrainer};
pub(crate) use minibatches::{check_minibatch, one_by_one};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// Learns a model: the part that does not depend on how rows come.
///
/// [`MinibatchTrainer`]s learn from a [`Feed`](chandlery_datasets::Feed), [`FullBatchTrainer`]s from
/// rows that they were given when they were made:
///
/// | trainer | learns | from |
/// |---|---|---|
/// | [`RbmTrainer`](crate::rbm::RbmTrainer), [`DaeTrainer`](crate::dae::DaeTrainer) | a layer, alone or above others | minibatches |
/// | [`DbnTrainer`](crate::dbn::DbnTrainer), [`StackedDaeTrainer`](crate::dae::StackedDaeTrainer) | a stack, layer by layer | minibatches |
/// | [`LabelledDbnTrainer`](crate::labelled::LabelledDbnTrainer) | a network with label units | minibatches with labels |
/// | [`FeedforwardTrainer`](crate::feedforward::FeedforwardTrainer) | a classifier or deep autoencoder | minibatches, with labels |
/// | [`OnlineDictionaryTrainer`](crate::dictionary::OnlineDictionaryTrainer) | a dictionary | minibatches |
/// | [`DictionaryTrainer`](crate::dictionary::DictionaryTrainer) | a dictionary | all rows |
/// | [`SparseAutoencoderTrainer`](crate::sparse_autoencoder::SparseAutoencoderTrainer) | a sparse autoencoder | minibatches |
/// | [`SparseAutoencoderLbfgsTrainer`](crate::sparse_autoencoder::SparseAutoencoderLbfgsTrainer) | a sparse autoencoder | all rows |
/// | [`SaeTrainer`](crate::sparse_autoencoder::sae::SaeTrainer) | a sparse autoencoder with latents | minibatches |
/// | [`SparseCodingTrainer`](crate::sparse_coding::SparseCodingTrainer) | a basis | minibatches |
/// | [`TsneTrainer`](crate::tsne::TsneTrainer) | a layout | all rows |
/// | [`TransformTrainer`](crate::tsne::TransformTrainer) | places of new rows in a layout | all new rows |
///
/// Each has a configuration of the same name, `RbmTrainConfig` for `RbmTrainer`, stacks one for
/// each layer, and takes a copy of the model that it begins with; t-SNE begins with rows. The trait
/// is object-safe: `Box<dyn Trainer<Model = Rbm, Metrics = rbm::Metrics>>` is a type.
pub trait Trainer {
    /// What is learned.
    type Model;
    /// What steps measure.
    type Metrics: Serialize;

    /// Steps made since training began; of a trainer with several layers, in the one under way.
    fn steps(&self) -> u64;

    /// Whether all that was learned so far is finite. Waits for the device, and leaves the metrics
    /// as they are. By default nothing is left to do: each step has checked itself.
    ///
    /// # Errors
    /// When training has diverged; the message says between which steps.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// What the steps since the last call measured, and of a [`FullBatchTrainer`] the last step.
    /// Waits for the device.
    ///
    /// # Errors
    /// When there was no such step, or training has diverged.
    fn metrics(&mut self) -> Result<Self::Metrics>;

    /// Trains with the other ranks of a group: each does its part of every step, and all come to the
    /// same model, that of one rank up to the order of sums. All begin with the state of rank 0, and
    /// make the same calls in the same order. The trainer says what is divided, and what is exchanged.
    ///
    /// # Errors
    /// When training is not divided over ranks, a minibatch has too few rows for so many, or a rank is
    /// gone.
    fn in_group(self, group: &Group) -> Result<Self>
    where
        Self: Sized,
    {
        if group.is_single() {
            return Ok(self);
        }
        candle::bail!("this training is not divided over several ranks; start it with one")
    }

    /// Gives all ranks of a group what [`model`](Self::model) and [`save`](Self::save) need of the parts
    /// that each has: to be called on all of them before. By default every rank has all of it.
    ///
    /// # Errors
    /// When a rank is gone.
    fn gather(&mut self) -> Result<()> {
        Ok(())
    }

    /// A copy of the model as trained so far.
    ///
    /// # Errors
    /// When memory is short.
    fn model(&self) -> Result<Self::Model>;

    /// Where the model is trained.
    fn device(&self) -> &Device;

    /// Writes everything that the rest of the training depends on but the rows to one file, with
    /// `progress`: the epoch, the place in the data, whatever the caller needs to go on. Waits for
    /// the device. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    fn save(&self, path: &Path, progress: &Value) -> Result<()>;

    /// The part of a rank that is not the first in [`save`](Self::save): to be called on all others
    /// while the first saves. By default there is none.
    ///
    /// # Errors
    /// When a rank is gone.
    fn join_save(&self) -> Result<()> {
        Ok(())
    }
}
