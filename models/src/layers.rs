//! What models that can be layers of a stack have in common: their names in files, and the
//! checkpoint of a trainer of one of them.
use crate::checkpoint::{self, Checkpoint};
use crate::model::{Decode, ModelConfig};
use crate::pretrained::ModelType;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::Preparation;
use chandlery_ops::Philox;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// What a layer of a stack is.
pub trait StackedConfig: ModelConfig {
    /// What errors call the configuration of a stack of these.
    const STACK: &'static str;

    /// What errors call one layer.
    const LAYER: &'static str;

    /// A layer of these sizes and of defaults.
    fn of_sizes(n_visible: usize, n_hidden: usize) -> Self;

    /// Values that it makes.
    fn n_made(&self) -> usize;

    /// Refuses a layer that cannot read what `below`, layer `i` counted from 0, makes, for another
    /// reason than their number.
    ///
    /// # Errors
    /// When it cannot; the message names both.
    fn check_above(&self, below: &Self, i: usize) -> Result<()>;
}

/// A model of visible and hidden units.
pub trait Layer: Decode<Codes = Tensor, Config: StackedConfig> {
    /// What files call a stack of these.
    const STACK_TYPE: ModelType;

    /// Draws of [`init`](crate::Model::init).
    fn n_weights(config: &Self::Config) -> usize;

    /// The same reading raw rows through another preparation, without an image shape that such rows
    /// do not have.
    fn reading(config: &Self::Config, preparation: &Preparation) -> Self::Config;
}

/// The same layer reading raw rows through another preparation.
pub(crate) fn reading<L: Layer>(layer: &L, preparation: &Preparation) -> Result<L> {
    layer.with_config(L::reading(layer.config(), preparation))
}

/// The parameters of layers as files hold them: `layers.0.weight`, …, lowest first.
pub(crate) fn parameters<'a, L: Layer + 'a>(
    layers: impl IntoIterator<Item = &'a L>,
) -> impl Iterator<Item = (String, Tensor)> {
    layers.into_iter().enumerate().flat_map(|(i, layer)| {
        layer.tensors().into_iter().map(move |(name, t)| (format!("layers.{i}.{name}"), t))
    })
}

/// Loads what [`parameters`] named.
pub(crate) fn load<L: Layer>(configs: &[L::Config], vb: &VarBuilder) -> Result<Vec<L>> {
    let layer = |(i, config): (usize, &L::Config)| {
        config.validate()?;
        L::build(config.clone(), &vb.pp(format!("layers.{i}")))
    };
    configs.iter().enumerate().map(layer).collect()
}

/// New layers with random weights; each draws after the one below.
pub(crate) fn random<L: Layer>(configs: &[L::Config], mut philox: Philox, device: &Device) -> Result<Vec<L>> {
    let layer = |config: &L::Config| {
        let layer = L::init(config.clone(), philox, device);
        philox = philox.advanced(L::n_weights(config));
        layer
    };
    configs.iter().map(layer).collect()
}

/// A trainer of one layer above others, without what it alone knows.
pub(crate) struct TrainerParts<L, T> {
    /// The layer in training and, before it, those below.
    pub(crate) layers: Vec<L>,
    pub(crate) training: T,
    /// Of the raw rows.
    pub(crate) preparation: Preparation,
    /// Where the draws began.
    pub(crate) philox: Philox,
}

/// What a checkpoint says of it beside its tensors.
#[derive(Serialize, Deserialize)]
struct Notes<C, T> {
    layers: Vec<C>,
    training: T,
    preparation: Preparation,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    progress: Value,
}

impl<L: Layer, T: Clone + Serialize + DeserializeOwned> TrainerParts<L, T> {
    /// Writes a checkpoint of the trainer of this name, with its `state` and the caller's
    /// `progress`. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    pub(crate) fn save(
        &self,
        path: &Path,
        trainer: &str,
        state: Vec<(String, Tensor)>,
        progress: &Value,
    ) -> Result<()> {
        let layers = match &self.layers[..] {
            [alone] => vec![L::reading(alone.config(), &self.preparation)],
            // The preparation is that of the raw rows, and belongs to no layer.
            layers => {
                layers.iter().map(|layer| L::reading(layer.config(), &Preparation::default())).collect()
            }
        };
        let notes = Notes {
            layers,
            training: self.training.clone(),
            preparation: self.preparation.clone(),
            philox: self.philox,
            progress: progress.clone(),
        };
        checkpoint::save(path, trainer, parameters(&self.layers).chain(state), &notes, &self.preparation)
    }

    /// Reads what [`save`](Self::save) wrote: the parts, the file for the state, and the caller's
    /// progress.
    ///
    /// # Errors
    /// When the file is missing, cut short, or of another trainer; the message names it.
    pub(crate) fn load<'a>(
        path: &'a Path,
        trainer: &str,
        device: &Device,
    ) -> Result<(Self, Checkpoint<'a>, Value)> {
        let (stored, mut notes) = Checkpoint::load::<Notes<L::Config, T>>(path, trainer, device)?;
        stored.load_preparation(&mut notes.preparation, device)?;
        if let [alone] = &mut notes.layers[..] {
            *alone.preparation_mut() = notes.preparation.clone();
        }
        let vb = VarBuilder::from_tensors(stored.tensors.clone(), DType::F32, device);
        let layers = load(&notes.layers, &vb).map_err(|e| stored.refused(&e))?;
        let Notes { training, preparation, philox, .. } = notes;
        let parts = Self { layers, training, preparation, philox };
        Ok((parts, stored, notes.progress))
    }
}
