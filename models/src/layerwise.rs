//! Training a stack of layers greedily: the lowest on the rows, each other one on what those below
//! make of them.
//!
//! What the layers below make of the rows of a feed is computed once and kept on the device, up to
//! 1 GiB; more is made on the way up in each step and never stored.
use crate::checkpoint::{self, Checkpoint};
use crate::layers::{self, Layer};
use crate::model::{Layered, Model, ModelConfig};
use crate::stack::{LayerStack, StackConfig};
use crate::trainer::{Epochs, Event, MinibatchTrainer, Trainer};
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::{Feed, Preparation};
use chandlery_ops::{Group, Philox};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

/// Of what is kept of the layers below.
const MOST_BYTES: usize = 1 << 30;

/// A layer of a [`LayerStack`], and how one is trained.
pub trait StackLayer: Layer {
    /// How a layer is trained.
    type Training: Clone + Serialize + DeserializeOwned;
    /// Trains one layer.
    type LayerTrainer: MinibatchTrainer<Model = Self>;
    /// What errors call the trainer of the stack.
    const TRAINER: &'static str;

    /// # Errors
    /// When a field of `training` is out of its range, or the layer cannot be trained so.
    fn check_training(&self, training: &Self::Training) -> Result<()>;
    /// Takes the schedules of `from`.
    fn take_schedules(training: &mut Self::Training, from: &Self::Training);
    /// Whether a layer's steps draw what the lowest reads, so that it is another in each epoch.
    fn draws_rows(_training: &Self::Training) -> bool {
        false
    }
    /// A trainer of `layer`, on top of `lower`.
    ///
    /// # Errors
    /// When memory is short.
    fn above(
        lower: &[Self],
        layer: &Self,
        preparation: &Preparation,
        training: Self::Training,
        philox: Philox,
    ) -> Result<Self::LayerTrainer>;
    /// Sets the schedules of the layer in training.
    ///
    /// # Errors
    /// When one is out of range.
    fn set_layer_schedules(trainer: &mut Self::LayerTrainer, training: &Self::Training) -> Result<()>;
    /// What a checkpoint stores of the layer's trainer.
    ///
    /// # Errors
    /// When the device fails.
    fn stored(trainer: &Self::LayerTrainer) -> Result<Vec<(String, Tensor)>>;
    /// Puts back what [`stored`](Self::stored) gave.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    fn restore(trainer: &mut Self::LayerTrainer, stored: &Checkpoint<'_>) -> Result<()>;
}

/// What the steps of a layer `L` measure.
pub type MetricsOf<L> = <<L as StackLayer>::LayerTrainer as Trainer>::Metrics;

/// Trains a [`LayerStack`] greedily; see the [module](self). [`DbnTrainer`](crate::dbn::DbnTrainer)
/// and [`StackedDaeTrainer`](crate::dae::StackedDaeTrainer) are its names for the two stacks there
/// are.
///
/// ```
/// # use candle::Device::Cpu;
/// # use chandlery::datasets::{Feed, FeedConfig, Split};
/// # use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
/// # use chandlery::rbm::RbmTrainConfig;
/// # use chandlery::{Philox, Trainer};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let rows = Split::from_tensors(&chandlery_ops::core::uniform((200, 6), &Cpu, Philox::new(0, 2))?, None)?;
/// let dbn = Dbn::init(DbnConfig::new(&[6, 5, 4]), Philox::new(7, 0), &Cpu)?;
/// let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(100, 7))?;
/// let mut trainer = DbnTrainer::new(&dbn, vec![RbmTrainConfig::default(); 2], Philox::new(7, 1))?;
/// trainer.fit(&mut feed, &[60, 60])?;
/// let dbn = trainer.model()?;
/// # Ok(()) }
/// ```
pub struct LayerwiseTrainer<L: StackLayer> {
    config: StackConfig<L::Config>,
    training: Vec<L::Training>,
    philox: Philox,
    /// Layers that are not being trained: done below, untouched above.
    layers: Vec<L>,
    layer: usize,
    trainer: L::LayerTrainer,
    group: Group,
}

/// What a checkpoint says beside its tensors.
#[derive(Serialize, Deserialize)]
struct Notes<C, T> {
    config: C,
    training: Vec<T>,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    layer: usize,
    progress: Value,
}

impl<L: StackLayer> LayerwiseTrainer<L> {
    /// Takes a copy of `stack` and begins with its lowest layer; `training` says how to train each,
    /// lowest first.
    ///
    /// Steps take raw rows, which go through the stack's preparation; layer `l` draws from the
    /// stream `philox.stream + l`.
    ///
    /// # Errors
    /// When there is not one `training` for each layer, one is out of range, or memory is short.
    pub fn new(stack: &LayerStack<L>, training: Vec<L::Training>, philox: Philox) -> Result<Self> {
        let (config, layers) = (stack.config(), stack.layers());
        let (Some(lowest), Some(first), true) =
            (layers.first(), training.first(), training.len() == layers.len())
        else {
            candle::bail!(
                "{}: training must have one entry for each of {} layers, got {}",
                L::TRAINER,
                layers.len(),
                training.len()
            )
        };
        layers.iter().zip(&training).try_for_each(|(layer, training)| layer.check_training(training))?;
        let mut config = config.clone();
        let device = lowest.device().clone();
        *config.preparation_mut() = config.preparation().to_device(&device).map_err(Error::wrap)?;
        let layers: Vec<_> =
            layers.iter().map(|layer| layer.to(DType::F32, &device)).collect::<Result<_>>()?;
        let trainer = L::above(&[], lowest, config.preparation(), first.clone(), philox)?;
        Ok(Self { config, training, philox, layers, layer: 0, trainer, group: Group::single() })
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

    /// A feed of what the layers below make of the rows of `feed`, which from here on are what
    /// steps of the layer under way take in place of raw rows. None, and nothing changes, for the
    /// lowest layer, and where what is made takes more than 1 GiB, or the lowest layer reads states
    /// that are drawn anew in each epoch.
    ///
    /// [`fit`](Self::fit) asks for it by itself. In a group all ranks call it, with the same rows.
    ///
    /// # Errors
    /// When rows are refused or memory is short.
    pub fn feed_of_layer(&mut self, feed: &Feed) -> Result<Option<Feed>> {
        let (layer, training) = (self.layer, self.training[self.layer].clone());
        if layer == 0 || L::draws_rows(&training) {
            return Ok(None);
        }
        let below = LayerStack::from_layers(self.config.clone(), self.layers.clone())?;
        let made = feed
            .through(self.layers[layer].config().n_read(), MOST_BYTES, |rows| below.features(rows, layer));
        let Some(made) = made.map_err(Error::wrap)? else { return Ok(None) };
        self.trainer.gather()?;
        let stored = Checkpoint::of(L::stored(&self.trainer)?);
        let (now, philox) = (self.trainer.model()?, self.philox_of(layer));
        let mut trainer = L::above(&[], &now, &Preparation::default(), training, philox)?;
        L::restore(&mut trainer, &stored)?;
        self.trainer = trainer.in_group(&self.group)?;
        Ok(Some(made))
    }

    fn philox_of(&self, layer: usize) -> Philox {
        Philox { stream: self.philox.stream.wrapping_add(layer as u64), ..self.philox }
    }

    fn begin_layer(&mut self, layer: usize) -> Result<()> {
        self.trainer.gather()?;
        self.layers[self.layer] = self.trainer.model()?;
        let philox = self.philox_of(layer);
        let (lower, rest) = self.layers.split_at(layer);
        let training = self.training[layer].clone();
        let above = L::above(lower, &rest[0], self.config.preparation(), training, philox)?;
        self.trainer = above.in_group(&self.group)?;
        self.layer = layer;
        Ok(())
    }

    /// Takes the schedules of learning rate and momentum from `training`, one entry for each layer:
    /// for a run that is to go on longer than was planned. They hold from the next
    /// [`begin_epoch`](MinibatchTrainer::begin_epoch) on; everything else stays as it was.
    ///
    /// # Errors
    /// When there is not one entry for each layer, or one is out of range.
    pub fn set_schedules(&mut self, training: &[L::Training]) -> Result<()> {
        if training.len() != self.layers.len() {
            candle::bail!(
                "{}::set_schedules: training must have one entry for each of {} layers, got {}",
                L::TRAINER,
                self.layers.len(),
                training.len()
            )
        }
        for ((own, new), layer) in self.training.iter_mut().zip(training).zip(&self.layers) {
            layer.check_training(new)?;
            L::take_schedules(own, new);
        }
        L::set_layer_schedules(&mut self.trainer, &self.training[self.layer])
    }

    /// Changes how layers are trained of which a trainer is made from here on.
    pub(crate) fn change_training(&mut self, change: impl FnMut(&mut L::Training)) {
        self.training.iter_mut().for_each(change);
    }

    /// The trainer of the layer under way.
    pub(crate) fn of_layer(&mut self) -> &mut L::LayerTrainer {
        &mut self.trainer
    }

    /// A copy of the layer in training.
    ///
    /// # Errors
    /// When memory is short.
    pub fn layer_model(&self) -> Result<L> {
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
    pub fn training(&self) -> &[L::Training] {
        &self.training
    }

    /// What the stack is.
    pub fn model_config(&self) -> &StackConfig<L::Config> {
        &self.config
    }

    /// Trains the layer under way and those above it, `epochs[l]` epochs layer `l`; returns the
    /// metrics of each layer's epochs.
    ///
    /// An epoch after those of the layers below has an order of rows of its own.
    ///
    /// # Errors
    /// When there is not one number for each layer, a minibatch cannot be read or is refused, or
    /// training diverges.
    pub fn fit(&mut self, feed: &mut Feed, epochs: &[usize]) -> Result<Vec<Vec<MetricsOf<L>>>> {
        self.fit_with(feed, epochs, |_| Ok(ControlFlow::Continue(())))
    }

    /// The same with a look at the trainer after each step or few and after each epoch, which can
    /// save it, or end the training with [`ControlFlow::Break`].
    ///
    /// Part of a layer's epochs are made by [`MinibatchTrainer::fit_with`], and
    /// [`next_layer`](Self::next_layer).
    ///
    /// # Errors
    /// As [`fit`](Self::fit), and when `each` fails.
    pub fn fit_with(
        &mut self,
        feed: &mut Feed,
        epochs: &[usize],
        mut each: impl FnMut(Event<'_, Self>) -> Result<ControlFlow<()>>,
    ) -> Result<Vec<Vec<MetricsOf<L>>>> {
        if epochs.len() != self.layers.len() {
            candle::bail!(
                "{}::fit: epochs must have one number for each of {} layers, got {}",
                L::TRAINER,
                self.layers.len(),
                epochs.len()
            )
        }
        let (mut all, mut goes_on) = (vec![], true);
        while goes_on {
            let (before, rest) = epochs.split_at(self.layer);
            let of_layer = Epochs { earlier: before.iter().sum(), ..rest[0].into() };
            let mut made = self.feed_of_layer(feed)?;
            all.push(MinibatchTrainer::fit_with(self, made.as_mut().unwrap_or(feed), of_layer, |event| {
                let next = each(event)?;
                goes_on = next.is_continue();
                Ok(next)
            })?);
            goes_on = goes_on && self.next_layer()?;
        }
        Ok(all)
    }

    fn named(&self, e: &Error) -> Error {
        Error::Msg(format!("layer {}: {e}", self.layer + 1))
    }
}

impl<L: StackLayer> Trainer for LayerwiseTrainer<L> {
    type Model = LayerStack<L>;
    type Metrics = MetricsOf<L>;

    fn check(&mut self) -> Result<()> {
        self.trainer.check().map_err(|e| self.named(&e))
    }

    fn metrics(&mut self) -> Result<Self::Metrics> {
        self.trainer.metrics().map_err(|e| self.named(&e))
    }

    fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    /// Each layer is trained so when its turn comes.
    fn in_group(self, group: &Group) -> Result<Self> {
        Ok(Self { trainer: self.trainer.in_group(group)?, group: group.clone(), ..self })
    }

    fn gather(&mut self) -> Result<()> {
        self.trainer.gather()
    }

    fn model(&self) -> Result<LayerStack<L>> {
        let mut layers = self.layers.clone();
        layers[self.layer] = self.trainer.model()?;
        LayerStack::from_layers(self.config.clone(), layers)
    }

    fn device(&self) -> &Device {
        self.trainer.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let stack = self.model()?;
        let notes = Notes {
            config: self.config.clone(),
            training: self.training.clone(),
            philox: self.philox,
            layer: self.layer,
            progress: progress.clone(),
        };
        checkpoint::save(
            path,
            L::STACK_TYPE.name(),
            layers::parameters(stack.layers()).chain(L::stored(&self.trainer)?),
            &notes,
            self.config.preparation(),
        )
    }
}

impl<L: StackLayer> MinibatchTrainer for LayerwiseTrainer<L> {
    /// Epochs are counted from 0 in each layer.
    fn follow(&mut self, epochs: f64) -> Result<()> {
        self.trainer.follow(epochs)
    }

    /// `rows` are raw, `[batch, n_inputs]`, with the `batch` of the layer in training; or those of
    /// [`feed_of_layer`](LayerwiseTrainer::feed_of_layer), where that was asked for.
    fn step(&mut self, rows: &Tensor, _labels: Option<&Tensor>) -> Result<()> {
        self.trainer.step(rows, None)
    }

    fn steps_of(&mut self, rows: &Tensor, _labels: Option<&Tensor>, n: usize) -> Result<()> {
        self.trainer.steps_of(rows, None, n)
    }

    fn steps_at_once(&self) -> usize {
        self.trainer.steps_at_once()
    }

    fn rows_group(&self) -> Group {
        self.trainer.rows_group()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes<StackConfig<L::Config>, L::Training>>(
            path,
            L::STACK_TYPE.name(),
            device,
        )?;
        checkpoint.load_preparation(notes.config.preparation_mut(), device)?;
        let vb = VarBuilder::from_tensors(checkpoint.tensors.clone(), DType::F32, device);
        let stack = LayerStack::<L>::new(notes.config, vb).map_err(|e| checkpoint.refused(&e))?;
        let mut trainer =
            Self::new(&stack, notes.training, notes.philox).map_err(|e| checkpoint.refused(&e))?;
        if notes.layer >= trainer.n_layers() {
            return Err(checkpoint.refused(&format!("layer {} of {}", notes.layer + 1, trainer.n_layers())));
        }
        if notes.layer > 0 {
            trainer.begin_layer(notes.layer).map_err(|e| checkpoint.refused(&e))?;
        }
        L::restore(&mut trainer.trainer, &checkpoint).map_err(|e| checkpoint.refused(&e))?;
        Ok((trainer, notes.progress))
    }
}
