//! A trainer of any family that learns from minibatches.
use crate::models::AnyModel;
use candle::{Device, Error, Result, Tensor};
use chandlery::dae::{DaeTrainer, StackedDaeTrainer};
use chandlery::datasets::Feed;
use chandlery::dbn::DbnTrainer;
use chandlery::layerwise::{LayerwiseTrainer, StackLayer};
use chandlery::pretrained::ModelType;
use chandlery::rbm::RbmTrainer;
use chandlery::sparse_autoencoder::SparseAutoencoderTrainer;
use chandlery::sparse_autoencoder::sae::SaeTrainer;
use chandlery::sparse_coding::SparseCodingTrainer;
use chandlery::stack::LayerStack;
use chandlery::{Event, MinibatchTrainer, Philox, Trainer};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

/// What a training shows: its metrics after an epoch, nothing after some steps.
pub type Each<'a> = dyn FnMut(Option<Value>) -> Result<ControlFlow<()>> + 'a;

/// Learns from minibatches.
pub trait Learner: Send {
    /// Makes `epochs`, of a stack for each layer.
    fn fit(&mut self, feed: &mut Feed, epochs: &[usize], each: &mut Each<'_>) -> Result<()>;
    /// One step, and what it measured.
    fn step(&mut self, rows: &Tensor) -> Result<Value>;
    fn model(&self) -> Result<AnyModel>;
    fn save(&self, path: &Path) -> Result<()>;
    fn device(&self) -> &Device;
}

fn seen<T: Trainer>(event: Event<'_, T>, each: &mut Each<'_>) -> Result<ControlFlow<()>> {
    each(match event {
        Event::Steps { .. } => None,
        Event::Epoch { metrics, .. } => Some(value(metrics)?),
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

        fn model(&self) -> Result<AnyModel> {
            self.0.model().map(Into::into)
        }

        fn save(&self, path: &Path) -> Result<()> {
            self.0.save(path, &Value::Null)
        }

        fn device(&self) -> &Device {
            self.0.device()
        }
    };
}

impl<T: MinibatchTrainer + Send> Learner for Single<T>
where
    T::Model: Into<AnyModel>,
{
    fn fit(&mut self, feed: &mut Feed, epochs: &[usize], each: &mut Each<'_>) -> Result<()> {
        let &[epochs] = epochs else {
            candle::bail!("chandlery: n_iter must be one number, got {}", epochs.len())
        };
        self.0.fit_with(feed, epochs, |event| seen(event, each)).map(drop)
    }

    learner!();
}

impl<L: StackLayer> Learner for Layers<L>
where
    LayerStack<L>: Into<AnyModel>,
    LayerwiseTrainer<L>: Send,
{
    fn fit(&mut self, feed: &mut Feed, epochs: &[usize], each: &mut Each<'_>) -> Result<()> {
        self.0.fit_with(feed, epochs, |event| seen(event, each)).map(drop)
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

/// The trainer of a model of type `kind` that [`Learner::save`] wrote.
pub fn load(kind: ModelType, path: &Path, device: &Device) -> Result<Box<dyn Learner>> {
    fn single<T: MinibatchTrainer + Send + 'static>(path: &Path, device: &Device) -> Result<Box<dyn Learner>>
    where
        T::Model: Into<AnyModel>,
    {
        Ok(Box::new(Single(T::load(path, device)?.0)))
    }
    match kind {
        ModelType::Rbm => single::<RbmTrainer>(path, device),
        ModelType::Dae => single::<DaeTrainer>(path, device),
        ModelType::Sae => single::<SaeTrainer>(path, device),
        ModelType::SparseAutoencoder => single::<SparseAutoencoderTrainer>(path, device),
        ModelType::SparseCoding => single::<SparseCodingTrainer>(path, device),
        ModelType::Dbn => Ok(Box::new(Layers(DbnTrainer::load(path, device)?.0))),
        ModelType::StackedDae => Ok(Box::new(Layers(StackedDaeTrainer::load(path, device)?.0))),
        other => candle::bail!("chandlery: a {other} has no trainer by minibatches in Python"),
    }
}
