//! Training a network layer by layer, and the checkpoint that resumes it.
use super::{Dbn, DbnConfig};
use crate::checkpoint::{self, Checkpoint};
use crate::rbm::{CdConfig, Metrics, Rbm, RbmTrainer};
use crate::trainer::Trainer;
use candle::{Device, Error, Result, Tensor};
use chandlery_ops::Philox;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Trains a [`Dbn`] greedily: the lowest RBM on the rows, each other one on the hidden means of those below.
///
/// Lower activations are recomputed on the way up in each step and never stored, so memory does not grow
/// with the number of rows.
pub struct DbnTrainer {
    config: DbnConfig,
    training: Vec<CdConfig>,
    philox: Philox,
    /// Machines that are not being trained: done below, untouched above.
    layers: Vec<Rbm>,
    layer: usize,
    trainer: RbmTrainer,
}

/// What a checkpoint says beside its tensors.
#[derive(Serialize, Deserialize)]
struct Notes<P> {
    config: DbnConfig,
    training: Vec<CdConfig>,
    seed: u64,
    stream: u64,
    offset: u64,
    layer: usize,
    progress: P,
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "deep-belief-network";

impl DbnTrainer {
    /// Takes a copy of `dbn` and begins with its lowest RBM; `training` says how to train each, lowest first.
    ///
    /// Steps take raw rows, which go through the network's preparation; layer `l` draws from the stream `philox.stream + l`.
    ///
    /// # Errors
    /// When there is not one `training` for each layer, one is out of range, or memory is short.
    pub fn new(dbn: &Dbn, training: Vec<CdConfig>, philox: Philox) -> Result<Self> {
        if training.len() != dbn.layers().len() {
            candle::bail!(
                "DbnTrainer: training must have one entry for each of {} layers, got {}",
                dbn.layers().len(),
                training.len()
            )
        }
        training.iter().try_for_each(CdConfig::validate)?;
        let mut config = dbn.config().clone();
        config.validate()?;
        let device = dbn.layers()[0].weight().device();
        config.preparation = config.preparation.to_device(device).map_err(Error::wrap)?;
        let dtype = candle::DType::F32;
        let layers: Vec<Rbm> =
            dbn.layers().iter().map(|rbm| rbm.to(dtype, rbm.weight().device())).collect::<Result<_>>()?;
        let trainer = RbmTrainer::above(&[], &layers[0], &config.preparation, training[0].clone(), philox)?;
        Ok(Self { config, training, philox, layers, layer: 0, trainer })
    }

    /// Goes on to the next layer; `false` when all are trained.
    ///
    /// # Errors
    /// When memory is short.
    pub fn next_layer(&mut self) -> Result<bool> {
        if self.layer + 1 == self.layers.len() {
            return Ok(false);
        }
        self.begin_layer(self.layer + 1)?;
        Ok(true)
    }

    fn begin_layer(&mut self, layer: usize) -> Result<()> {
        self.layers[self.layer] = self.trainer.model()?;
        let philox = Philox { stream: self.philox.stream.wrapping_add(layer as u64), ..self.philox };
        let (lower, rest) = self.layers.split_at(layer);
        self.trainer = RbmTrainer::above(
            lower,
            &rest[0],
            &self.config.preparation,
            self.training[layer].clone(),
            philox,
        )?;
        self.layer = layer;
        Ok(())
    }

    /// Sets the visible biases of the lowest layer from the mean of the prepared rows, `[n_visible]`, before its first step; see
    /// [`RbmTrainer::set_visible_mean`].
    ///
    /// # Errors
    /// When another layer is in training or `mean` has another shape.
    pub fn set_visible_mean(&mut self, mean: &Tensor) -> Result<()> {
        if self.layer != 0 {
            candle::bail!(
                "DbnTrainer::set_visible_mean: the lowest layer must be in training, got layer {}",
                self.layer + 1
            )
        }
        self.trainer.set_visible_mean(mean)
    }

    /// Takes the schedules of learning rate and momentum from `training`, one entry for each layer: for a run that is to go on longer than
    /// was planned. They hold from the next [`begin_epoch`](Trainer::begin_epoch) on; everything else stays as it was.
    ///
    /// # Errors
    /// When there is not one entry for each layer, or one is out of range.
    pub fn set_schedules(&mut self, training: &[CdConfig]) -> Result<()> {
        if training.len() != self.layers.len() {
            candle::bail!(
                "DbnTrainer::set_schedules: training must have one entry for each of {} layers, got {}",
                self.layers.len(),
                training.len()
            )
        }
        for (own, new) in self.training.iter_mut().zip(training) {
            new.validate()?;
            own.learning_rate = new.learning_rate.clone();
            own.momentum = new.momentum.clone();
        }
        self.trainer.set_schedules(&self.training[self.layer])
    }

    /// A copy of the RBM in training.
    ///
    /// # Errors
    /// When memory is short.
    pub fn rbm(&self) -> Result<Rbm> {
        self.trainer.model()
    }

    /// Which layer is in training, counted from 0.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// How many layers there are.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// How each layer is trained, lowest first.
    pub fn training(&self) -> &[CdConfig] {
        &self.training
    }

    /// What the network is.
    pub fn model_config(&self) -> &DbnConfig {
        &self.config
    }
}

impl Trainer for DbnTrainer {
    type Model = Dbn;
    type Metrics = Metrics;

    /// `epoch` is counted from 0 in each layer.
    fn begin_epoch(&mut self, epoch: usize) -> Result<()> {
        self.trainer.begin_epoch(epoch)
    }

    /// `rows` are raw, `[batch, n_inputs]`, with the `batch` of the layer in training.
    fn step(&mut self, rows: &Tensor, _labels: Option<&Tensor>) -> Result<()> {
        self.trainer.step(rows, None)
    }

    fn check(&mut self) -> Result<()> {
        let layer = self.layer + 1;
        self.trainer.check().map_err(|e| Error::Msg(format!("layer {layer}: {e}")))
    }

    fn metrics(&mut self) -> Result<Metrics> {
        let layer = self.layer + 1;
        self.trainer.metrics().map_err(|e| Error::Msg(format!("layer {layer}: {e}")))
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    fn model(&self) -> Result<Dbn> {
        let mut layers = self.layers.clone();
        layers[self.layer] = self.trainer.model()?;
        Dbn::from_layers(self.config.clone(), layers)
    }

    fn device(&self) -> &Device {
        self.trainer.device()
    }

    fn save_checkpoint(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let dbn = self.model()?;
        let layers = dbn.layers().iter().enumerate().flat_map(|(i, rbm)| {
            rbm.tensors().into_iter().map(move |(name, t)| (format!("layers.{i}.{name}"), t.clone()))
        });
        let Philox { seed, stream, offset } = self.philox;
        let notes = Notes {
            config: self.config.clone(),
            training: self.training.clone(),
            seed,
            stream,
            offset,
            layer: self.layer,
            progress,
        };
        checkpoint::save(
            path,
            NAME,
            layers.chain(self.trainer.stored_state()?),
            &notes,
            &self.config.preparation,
        )
    }

    fn load_checkpoint<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes<P>>(path, NAME, device)?;
        checkpoint.load_preparation(&mut notes.config.preparation, device)?;
        let philox = Philox { seed: notes.seed, stream: notes.stream, offset: notes.offset };
        let vb = candle_nn::VarBuilder::from_tensors(checkpoint.tensors.clone(), candle::DType::F32, device);
        let dbn = Dbn::new(notes.config, vb).map_err(|e| checkpoint.refused(&e))?;
        let mut trainer = Self::new(&dbn, notes.training, philox).map_err(|e| checkpoint.refused(&e))?;
        if notes.layer >= trainer.n_layers() {
            return Err(checkpoint.refused(&format!("layer {} of {}", notes.layer + 1, trainer.n_layers())));
        }
        if notes.layer > 0 {
            trainer.begin_layer(notes.layer).map_err(|e| checkpoint.refused(&e))?;
        }
        trainer.trainer.restore(&checkpoint).map_err(|e| checkpoint.refused(&e))?;
        Ok((trainer, notes.progress))
    }
}
