//! The families of a grid: sizes, arithmetic and the work of a cell.
use super::super::convolution::{Calls, Layer};
use super::super::dae;
use super::super::size::Size;
use super::super::sparse_autoencoder::Pass;
use super::super::sparse_coding::work;
use crate::precision::RbmPrecision;
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::rbm::{Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::schedule::Schedule;
use chandlery::sparse_coding::lasso::Lasso;
use chandlery::{MinibatchTrainer, Philox};
use chandlery_ops::core::{Replay, normal, uniform};
use clap::ValueEnum;
use std::fmt::{Display, Formatter};

/// Classes of the classifier.
const CLASSES: usize = 10;
/// Share of the activations of the lasso that are not 0, about.
const USED: f64 = 0.05;
/// Atoms of a code of the pursuit.
const NONZERO: usize = 8;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// CD-1 of an RBM with drawn hidden units, without momentum and decay.
    Rbm,
    /// A step of a denoising autoencoder of tied weights.
    Dae,
    /// A step of Adam on a classifier with two hidden layers of the same size and ten classes.
    Classifier,
    /// The cost of a sparse autoencoder and its gradient.
    SparseAutoencoder,
    /// A convolution and both of its gradients.
    Convolution,
    /// Activations of random signals to a relative duality gap of 1e-4, one in twenty in use.
    Lasso,
    /// Codes of random signals of eight atoms each, by OMP.
    Pursuit,
}

/// The sizes of a cell.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// Inputs and units, or the values of a signal and atoms.
    Dense(Size),
    Images(Layer),
}

impl Display for Shape {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dense(size) => size.fmt(f),
            Self::Images(layer) => layer.fmt(f),
        }
    }
}

/// One cell of the grid.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub family: Family,
    pub shape: Shape,
    pub batch: usize,
    pub precision: RbmPrecision,
}

impl Display for Cell {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { family, shape, batch, precision } = self;
        write!(f, "{} {shape}, minibatches of {batch}, {}", family.name(), precision.name())
    }
}

/// The steps of a cell.
pub(super) struct Work {
    /// Makes so many.
    pub steps: Box<dyn FnMut(usize) -> Result<()>>,
    /// Of the lasso.
    pub penalty: Option<f64>,
}

impl Family {
    /// As command lines and peers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rbm => "rbm",
            Self::Dae => "dae",
            Self::Classifier => "classifier",
            Self::SparseAutoencoder => "sparse-autoencoder",
            Self::Convolution => "convolution",
            Self::Lasso => "lasso",
            Self::Pursuit => "pursuit",
        }
    }

    /// What a step is, in words.
    pub fn what(self) -> &'static str {
        match self {
            Self::Rbm => "a step of CD-1",
            Self::Dae => "a step of a denoising autoencoder",
            Self::Classifier => "a step of a classifier by Adam",
            Self::SparseAutoencoder => "a pass of a sparse autoencoder",
            Self::Convolution => "a convolution and both gradients",
            Self::Lasso => "activations by the lasso",
            Self::Pursuit => "codes of 8 atoms by OMP",
        }
    }

    /// Sizes where none are asked for.
    pub fn widths(self) -> &'static [&'static str] {
        match self {
            Self::Convolution => &["28x28x1:32:9", "56x56x24:32:10", "64x64x64:64:5", "224x224x3:64:7"],
            Self::Lasso => &["64x256", "256x512", "1001x1024", "1024x4096"],
            Self::Pursuit => &["64x128", "64x500", "256x1024", "784x1001"],
            _ => &[
                "64",
                "784x500",
                "785x501",
                "1001",
                "1024",
                "2304x4096",
                "3071",
                "4096",
                "2304x16000",
                "16384",
            ],
        }
    }

    /// The sizes that a text names.
    pub fn shape(self, text: &str) -> Result<Shape, String> {
        match self {
            Self::Convolution => text.parse().map(Shape::Images),
            _ if text.contains('x') => text.parse().map(Shape::Dense),
            _ => format!("{text}x{text}").parse().map(Shape::Dense),
        }
    }
}

impl Cell {
    /// Inputs and units.
    fn units(&self) -> (usize, usize) {
        match self.shape {
            Shape::Dense(size) => size.units(),
            Shape::Images(_) => (0, 0),
        }
    }

    /// FLOP of a step's products.
    pub fn flop(&self) -> f64 {
        let (v, h) = self.units();
        let (v, h, batch) = (v as f64, h as f64, self.batch as f64);
        match self.family {
            Family::Rbm | Family::Dae => 10. * v * h * batch,
            Family::Classifier => 6. * (v * h + h * h + h * CLASSES as f64) * batch,
            Family::SparseAutoencoder => 12. * v * h * batch,
            Family::Convolution => match self.shape {
                Shape::Images(layer) => 6. * layer.terms() * batch,
                Shape::Dense(_) => 0.,
            },
            // The correlations alone; what follows depends on the signals.
            Family::Lasso | Family::Pursuit => 2. * v * h * batch,
        }
    }

    /// What makes the steps, on memory of its own.
    pub fn work(&self, device: &Device) -> Result<Work> {
        let &Self { shape, batch, precision: RbmPrecision { products: precision, weights }, .. } = self;
        let (v, h) = self.units();
        let steps = match self.family {
            Family::Rbm => {
                let config = RbmTrainConfig {
                    batch,
                    precision,
                    weights,
                    learning_rate: Schedule::constant(0.01),
                    momentum: Schedule::constant(0.),
                    l2: 0.,
                    ..RbmTrainConfig::default()
                };
                let rbm = Rbm::init(RbmConfig::new(v, h), Philox::new(0, 0), device)?;
                training(RbmTrainer::new(&rbm, config, Philox::new(0, 1))?, (batch, v), None, device)?
            }
            Family::Dae => {
                let Shape::Dense(size) = shape else { anyhow::bail!("a layer must be INPUTSxUNITS") };
                training(dae::trainer(size, precision, batch, device)?, (batch, v), None, device)?
            }
            Family::Classifier => {
                let network = FeedforwardConfig::classifier(&[v, h, h, CLASSES]);
                let network = Feedforward::init(network, Philox::new(0, 0), device)?;
                let config = FeedforwardTrainConfig { batch, precision, ..FeedforwardTrainConfig::default() };
                let trainer = FeedforwardTrainer::new(&network, config, Philox::new(0, 1))?;
                training(trainer, (batch, v), Some(CLASSES), device)?
            }
            Family::SparseAutoencoder => {
                let pass = Pass::new(device, (v, h), batch, precision)?;
                repeated(move || pass.make())
            }
            Family::Convolution => {
                let Shape::Images(layer) = shape else { anyhow::bail!("images must be named") };
                let calls = Calls::new(layer, batch, device)?;
                // Recorded, as the steps of trainers are.
                let mut step = Replay::new(device, move || calls.all());
                repeated(move || Ok(step.run()?))
            }
            Family::Lasso => {
                let (signals, atoms) = codes((batch, v, h), device)?;
                let penalty = work::penalty(&signals, &atoms, USED)?;
                let lasso = Lasso::new(penalty);
                let steps = repeated(move || Ok(lasso.solve(&signals, &atoms, None).map(drop)?));
                return Ok(Work { steps, penalty: Some(penalty) });
            }
            Family::Pursuit => {
                let (signals, atoms) = codes((batch, v, h), device)?;
                let coder = SparseCoder::new(PursuitMethod::Omp, NONZERO);
                repeated(move || Ok(coder.encode(&signals, &atoms).map(drop)?))
            }
        };
        Ok(Work { steps, penalty: None })
    }
}

/// Normal signals, and random directions as atoms.
fn codes((m, p, n): (usize, usize, usize), device: &Device) -> Result<(Tensor, Tensor)> {
    Ok((normal((m, p), device, Philox::new(0, 2))?, work::directions(n, p, device)?))
}

type Steps = Box<dyn FnMut(usize) -> Result<()>>;

fn repeated(mut one: impl FnMut() -> Result<()> + 'static) -> Steps {
    Box::new(move |n| (0..n).try_for_each(|_| one()))
}

/// Steps of a trainer on the same random rows, as many at a time as it takes best.
fn training<T: MinibatchTrainer + 'static>(
    mut trainer: T,
    (batch, n_inputs): (usize, usize),
    classes: Option<usize>,
    device: &Device,
) -> Result<Steps> {
    let most = trainer.steps_at_once().max(1);
    let rows = uniform((most * batch, n_inputs), device, Philox::new(0, 3))?;
    let labels = |n: usize| Tensor::from_iter((0..most * batch).map(|i| (i % n) as u32), device);
    let labels = classes.map(labels).transpose()?;
    trainer.begin_epoch(0)?;
    Ok(Box::new(move |n| {
        let mut left = n;
        while left > 0 {
            let now = most.min(left);
            let labels = labels.as_ref().map(|labels| labels.narrow(0, 0, now * batch)).transpose()?;
            trainer.steps_of(&rows.narrow(0, 0, now * batch)?, labels.as_ref(), now)?;
            left -= now;
        }
        Ok(())
    }))
}
