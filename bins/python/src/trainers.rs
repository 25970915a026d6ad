//! A trainer of any family that learns from minibatches.
use crate::models::AnyModel;
use candle::{Device, Error, Result, Tensor};
use chandlery::dae::{Dae, DaeTrainer, StackedDaeTrainer};
use chandlery::datasets::Feed;
use chandlery::dbn::DbnTrainer;
use chandlery::layerwise::{LayerwiseTrainer, StackLayer};
use chandlery::pretrained::ModelType;
use chandlery::rbm::{Rbm, RbmTrainer};
use chandlery::sparse_autoencoder::SparseAutoencoderTrainer;
use chandlery::sparse_autoencoder::sae::SaeTrainer;
use chandlery::sparse_coding::SparseCodingTrainer;
use chandlery::stack::LayerStack;
use chandlery::{Epochs, Event, MinibatchTrainer, Philox, Trainer};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::any::Any;
use std::ops::ControlFlow;
use std::path::Path;

/// A look at a training: after some steps, or after an epoch with its metrics.
pub struct Look<'a> {
    /// The epoch under way, of the layer under way.
    pub epoch: usize,
    /// Its minibatches that are done.
    pub minibatches: usize,
    /// Of the epoch before, which has just ended.
    pub metrics: Option<Value>,
    /// What learns.
    pub state: &'a dyn State,
}

/// What is done at a look.
pub type Each<'a> = dyn FnMut(Look<'_>) -> Result<ControlFlow<()>> + 'a;

/// What is learned so far.
pub trait State {
    fn model(&self) -> Result<AnyModel>;
    fn save(&self, path: &Path, progress: &Value) -> Result<()>;
}

impl<T: Trainer> State for T
where
    T::Model: Into<AnyModel>,
{
    fn model(&self) -> Result<AnyModel> {
        Trainer::model(self).map(Into::into)
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        Trainer::save(self, path, progress)
    }
}

/// Learns from minibatches.
pub trait Learner: Send {
    /// Makes `epochs`, of a stack for each layer, but for the epochs and minibatches of `done`, of
    /// a stack in the layer under way.
    fn fit(
        &mut self,
        feed: &mut Feed,
        epochs: &[usize],
        done: (usize, usize),
        each: &mut Each<'_>,
    ) -> Result<()>;
    /// One step, and what it measured.
    fn step(&mut self, rows: &Tensor) -> Result<Value>;
    fn state(&self) -> &dyn State;
    /// The trainer of the library.
    fn any(&self) -> &dyn Any;
    fn device(&self) -> &Device;
}

fn seen<T: Trainer>(event: Event<'_, T>, each: &mut Each<'_>) -> Result<ControlFlow<()>>
where
    T::Model: Into<AnyModel>,
{
    each(match event {
        Event::Steps { epoch, minibatches, trainer } => {
            Look { epoch, minibatches, metrics: None, state: trainer }
        }
        Event::Epoch { epoch, metrics, trainer } => {
            Look { epoch: epoch + 1, minibatches: 0, metrics: Some(value(metrics)?), state: trainer }
        }
    })
}

fn value(metrics: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(metrics).map_err(Error::wrap)
}

/// A trainer of one layer.
struct Single<T>(T);

/// A trainer of a stack, layer by layer.
struct Layers<L: StackLayer>(LayerwiseTrainer<L>);

/// What both have.
macro_rules! learner {
    () => {
        fn step(&mut self, rows: &Tensor) -> Result<Value> {
            self.0.step(rows, None)?;
            value(&self.0.metrics()?)
        }

        fn state(&self) -> &dyn State {
            &self.0
        }

        fn any(&self) -> &dyn Any {
            &self.0
        }

        fn device(&self) -> &Device {
            self.0.device()
        }
    };
}

impl<T: MinibatchTrainer + Send + 'static> Learner for Single<T>
where
    T::Model: Into<AnyModel>,
{
    fn fit(
        &mut self,
        feed: &mut Feed,
        epochs: &[usize],
        done: (usize, usize),
        each: &mut Each<'_>,
    ) -> Result<()> {
        let &[epochs] = epochs else {
            candle::bail!("chandlery: n_iter must be one number, got {}", epochs.len())
        };
        let left = Epochs { minibatches: done.1, ..(done.0..epochs).into() };
        self.0.fit_with(feed, left, |event| seen(event, each)).map(drop)
    }

    learner!();
}

impl<L: StackLayer + 'static> Learner for Layers<L>
where
    LayerStack<L>: Into<AnyModel>,
    LayerwiseTrainer<L>: Send,
{
    fn fit(
        &mut self,
        feed: &mut Feed,
        epochs: &[usize],
        mut done: (usize, usize),
        each: &mut Each<'_>,
    ) -> Result<()> {
        if epochs.len() != self.0.n_layers() {
            candle::bail!(
                "chandlery: n_iter must be one number for each of {} layers, got {}",
                self.0.n_layers(),
                epochs.len()
            )
        }
        let (mut below, mut ends) = (0, false);
        for (layer, &epochs) in epochs.iter().enumerate() {
            if layer >= self.0.layer() {
                let left = Epochs { minibatches: done.1, earlier: below, ..(done.0..epochs).into() };
                MinibatchTrainer::fit_with(&mut self.0, feed, left, |event| {
                    let next = seen(event, each)?;
                    ends = next.is_break();
                    Ok(next)
                })?;
                if ends || !self.0.next_layer()? {
                    return Ok(());
                }
                done = (0, 0);
            }
            below += epochs;
        }
        Ok(())
    }

    learner!();
}

fn training<T: DeserializeOwned>(kind: ModelType, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| Error::Msg(format!("training of a {kind}: {e}")))
}

/// A trainer that begins with a copy of `model`; `config` is JSON, of a stack for each layer.
pub fn trainer(model: &AnyModel, config: &str, philox: Philox) -> Result<Box<dyn Learner>> {
    let of = crate::models::with!(model, m => crate::models::kind(m));
    Ok(match model {
        AnyModel::Rbm(m) => Box::new(Single(RbmTrainer::new(m, training(of, config)?, philox)?)),
        AnyModel::Dae(m) => Box::new(Single(DaeTrainer::new(m, training(of, config)?, philox)?)),
        AnyModel::Sae(m) => Box::new(Single(SaeTrainer::new(m, training(of, config)?, philox)?)),
        AnyModel::SparseAutoencoder(m) => {
            Box::new(Single(SparseAutoencoderTrainer::new(m, training(of, config)?)?))
        }
        AnyModel::SparseCoding(m) => {
            Box::new(Single(SparseCodingTrainer::new(m, training(of, config)?, philox)?))
        }
        AnyModel::Dbn(m) => Box::new(Layers(DbnTrainer::new(m, training(of, config)?, philox)?)),
        AnyModel::StackedDae(m) => {
            Box::new(Layers(StackedDaeTrainer::new(m, training(of, config)?, philox)?))
        }
        AnyModel::Dictionary(_) | AnyModel::Embedding(_) => {
            model.lacks("trainer by minibatches in Python")?
        }
    })
}

/// The trainer of a model of type `kind` that [`State::save`] wrote, and the progress.
pub fn load(kind: ModelType, path: &Path, device: &Device) -> Result<(Box<dyn Learner>, Value)> {
    type Loaded = Result<(Box<dyn Learner>, Value)>;
    fn single<T: MinibatchTrainer + Send + 'static>(path: &Path, device: &Device) -> Loaded
    where
        T::Model: Into<AnyModel>,
    {
        let (trainer, progress) = T::load(path, device)?;
        Ok((Box::new(Single(trainer)), progress))
    }
    fn layers<L: StackLayer + 'static>(path: &Path, device: &Device) -> Loaded
    where
        LayerStack<L>: Into<AnyModel>,
        LayerwiseTrainer<L>: Send,
    {
        let (trainer, progress) = LayerwiseTrainer::<L>::load(path, device)?;
        Ok((Box::new(Layers(trainer)), progress))
    }
    match kind {
        ModelType::Rbm => single::<RbmTrainer>(path, device),
        ModelType::Dae => single::<DaeTrainer>(path, device),
        ModelType::Sae => single::<SaeTrainer>(path, device),
        ModelType::SparseAutoencoder => single::<SparseAutoencoderTrainer>(path, device),
        ModelType::SparseCoding => single::<SparseCodingTrainer>(path, device),
        ModelType::Dbn => layers::<Rbm>(path, device),
        ModelType::StackedDae => layers::<Dae>(path, device),
        other => candle::bail!("chandlery: a {other} has no trainer by minibatches in Python"),
    }
}
