//! Deep belief network: restricted Boltzmann machines on top of each other, each learning from the one below.
//!
//! ```text
//! h⁰ = v                                       the data
//! hˡ = p(h = 1 | hˡ⁻¹) of RBM l                features, bottom up
//! p(v, h¹ … hᴸ) = p(hᴸ⁻¹, hᴸ) Π p(hˡ⁻¹ | hˡ)   the top two layers are an RBM, the others generate downwards
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `hˡ` | `features(rows, l)` | `[batch, sizes[l]]` |
//! | RBM `l` | `layers()[l − 1]` | weights `[sizes[l], sizes[l − 1]]` |
//!
//! Sources: Hinton, Osindero and Teh, "A fast learning algorithm for deep belief nets", Neural Computation 18, 2006;
//! Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics processors", ICML 2009.
//! Departure: upper RBMs learn from the hidden means of the lower, not from draws (Hinton 2010, section 3).
//!
//! ```
//! use candle::{Device::Cpu, Module, Tensor};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::rbm::RbmTrainConfig;
//! use chandlery::Trainer;
//! use chandlery::dbn::DbnTrainer;
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! // Four units, of which the right two always copy the left two.
//! let rows = Tensor::new(&[[1f32, 0., 1., 0.], [0., 1., 0., 1.]], &Cpu)?;
//! let dbn = Dbn::init(DbnConfig::new(&[4, 8, 3]), Philox::new(1, 0), &Cpu)?;
//! let training = RbmTrainConfig { batch: 2, ..RbmTrainConfig::default() };
//! let mut trainer = DbnTrainer::new(&dbn, vec![training.clone(), training], Philox::new(1, 1))?;
//! loop {
//!     for _ in 0..500 {
//!         trainer.step(&rows, None)?;
//!     }
//!     if !trainer.next_layer()? {
//!         break;
//!     }
//! }
//! let dbn = trainer.model()?;
//! assert_eq!(dbn.forward(&rows)?.dims(), [2, 3]);
//! // It has learned its two rows by heart.
//! assert!(dbn.reconstruction_error(&rows)? < 0.2);
//! # Ok(()) }
//! ```
mod bound;
mod pretrained;
mod train;

pub use bound::Bound;
pub use train::DbnTrainer;

use crate::check::batch_of;
use crate::layers;
use crate::prepare::{check_inputs, n_inputs, prepared};
use crate::rbm::{Rbm, RbmConfig, VisibleUnit};
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::Philox;
use chandlery_ops::core::bernoulli;
use serde::{Deserialize, Serialize};

/// What a [`Dbn`] is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DbnConfig {
    /// The RBMs, lowest first; each has as many visible units as the one below has hidden.
    pub layers: Vec<RbmConfig>,
    /// What is done to raw rows before the lowest RBM reads them, in place of the preparations of `layers`. Default: floats as they are, bytes over 255.
    #[serde(default, alias = "input_scale")]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

impl DbnConfig {
    /// Binary RBMs between layers of these sizes, the input's first.
    pub fn new(sizes: &[usize]) -> Self {
        let layers = sizes.windows(2).map(|pair| RbmConfig::new(pair[0], pair[1])).collect();
        Self { layers, preparation: Preparation::default(), image: None }
    }

    /// # Errors
    /// When there is no layer, sizes do not fit on each other, a size is 0, an upper layer's visible units are not of the
    /// kind of the hidden units below, the preparation gives rows of another width, or the image is not of the size of raw rows.
    pub fn validate(&self) -> Result<()> {
        let Some(first) = self.layers.first() else {
            candle::bail!("DbnConfig: layers must hold at least one RBM, got none")
        };
        self.layers.iter().try_for_each(RbmConfig::validate)?;
        for (i, (below, above)) in self.layers.iter().zip(&self.layers[1..]).enumerate() {
            if below.n_hidden != above.n_visible {
                candle::bail!(
                    "DbnConfig: layers[{}].n_visible must be layers[{i}].n_hidden = {}, got {}",
                    i + 1,
                    below.n_hidden,
                    above.n_visible
                )
            }
            if let (Some([height, width, depth]), Some(got)) = (below.hidden_places(), above.visible_places())
                && got != [1, height, width, depth]
            {
                candle::bail!(
                    "DbnConfig: layers[{}] must lie on the hidden units of layers[{i}], a grid of {height}x{width} places of {depth}, \
                     got {got:?} as planes, height, width and depth",
                    i + 1
                )
            }
            let want = below.hidden.as_visible();
            if above.visible != want {
                candle::bail!(
                    "DbnConfig: layers[{}].visible must be {}, since layers[{i}].hidden is {}, got {}",
                    i + 1,
                    if want == VisibleUnit::Gaussian { "gaussian" } else { "bernoulli" },
                    below.hidden,
                    above.visible
                )
            }
        }
        check_inputs("DbnConfig", &self.preparation, first.n_visible, self.image).map(drop)
    }

    /// Values in a raw row; those that the lowest RBM reads where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.layers.first().map_or(0, |layer| layer.n_visible))
    }
}

/// A deep belief network; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct Dbn {
    config: DbnConfig,
    layers: Vec<Rbm>,
}

impl Dbn {
    /// Loads `layers.0`, `layers.1`, … from under `vb`, each as [`Rbm::new`] does.
    ///
    /// # Errors
    /// When `config` is out of range, or `vb` lacks a tensor or has another shape.
    pub fn new(config: DbnConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let layers = layers::load(&config.layers, &vb)?;
        Ok(Self { config, layers })
    }

    /// A new network with random weights, in f32; each layer draws after the one below.
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: DbnConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let layers = layers::random(&config.layers, philox, device)?;
        Ok(Self { config, layers })
    }

    /// A network from its RBMs, lowest first.
    ///
    /// # Errors
    /// When `config` is out of range or is not that of the RBMs.
    pub fn from_layers(config: DbnConfig, layers: Vec<Rbm>) -> Result<Self> {
        config.validate()?;
        if !config.layers.iter().eq(layers.iter().map(Rbm::config)) {
            candle::bail!(
                "Dbn::from_layers: config.layers must be the configurations of the {} RBMs",
                layers.len()
            )
        }
        Ok(Self { config, layers })
    }

    /// What the lowest RBM reads of raw rows: `[batch, n_inputs]` to `[batch, n_visible]`.
    ///
    /// # Errors
    /// When `rows` have another shape or device than the preparation needs.
    pub fn prepare(&self, rows: &Tensor) -> Result<Tensor> {
        let dtype = self.layers.first().map_or(DType::F32, |layer| layer.weight().dtype());
        prepared("Dbn", &self.config.preparation, rows, dtype)
    }

    /// The hidden means of layer `layer` (1 is the lowest RBM's) of raw rows, `[batch, n_inputs]` to `[batch, sizes[layer]]`; layer 0 is
    /// what the lowest RBM reads.
    ///
    /// # Errors
    /// When `rows` have another shape or there is no such layer.
    pub fn features(&self, rows: &Tensor, layer: usize) -> Result<Tensor> {
        if layer > self.layers.len() {
            candle::bail!("Dbn::features: layer must be 0 to {}, got {layer}", self.layers.len())
        }
        self.layers[..layer].iter().try_fold(self.prepare(rows)?, |h, rbm| rbm.hidden_mean(&h))
    }

    /// The hidden means of every layer of raw rows side by side, `[batch, Σ sizes]`, lowest first: what a linear classifier
    /// reads best, since upper layers drop what lower ones saw.
    ///
    /// # Errors
    /// When `rows` are not `[batch, n_inputs]`.
    pub fn all_features(&self, rows: &Tensor) -> Result<Tensor> {
        let mut all = Vec::with_capacity(self.layers.len());
        let mut h = self.prepare(rows)?;
        for rbm in &self.layers {
            h = rbm.hidden_mean(&h)?;
            all.push(h.clone());
        }
        Tensor::cat(&all, 1)
    }

    /// Top-layer features back down to visible means, `[batch, n_visible]`, as the lowest RBM reads rows; what of raw rows can be known
    /// from them gives [`Preparation::inverse`].
    ///
    /// # Errors
    /// When `h` is not `[batch, sizes[L]]`.
    pub fn decode(&self, h: &Tensor) -> Result<Tensor> {
        self.layers.iter().rev().try_fold(h.clone(), |h, rbm| rbm.visible_mean(&h))
    }

    /// Raw rows up through all layers and down again by the means, `[batch, n_visible]`, as the lowest RBM reads rows.
    ///
    /// # Errors
    /// When `rows` are not `[batch, n_inputs]`.
    pub fn reconstruct(&self, rows: &Tensor) -> Result<Tensor> {
        self.decode(&self.forward(rows)?)
    }

    /// Mean over rows of the squared error of [`reconstruct`](Self::reconstruct), summed over the visible units,
    /// against what the lowest RBM reads of the rows.
    ///
    /// # Errors
    /// When `rows` are not `[batch, n_inputs]`.
    pub fn reconstruction_error(&self, rows: &Tensor) -> Result<f64> {
        let error = (self.reconstruct(rows)? - self.prepare(rows)?)?.sqr()?.sum(1)?;
        error.to_dtype(DType::F64)?.mean_all()?.to_scalar()
    }

    /// Draws `n` rows from the model: `steps` Gibbs steps in the top RBM from fair coins, then the means downwards.
    /// `[n, n_visible]`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn sample(&self, n: usize, steps: usize, philox: Philox) -> Result<Tensor> {
        let top = self.top()?;
        let size = top.config().n_visible;
        let half = Tensor::full(0.5f32, (n, size), top.weight().device())?;
        let start = bernoulli(&half, philox)?.to_dtype(top.weight().dtype())?;
        self.down_from_top(&start, steps, philox.advanced(n * size))
    }

    /// The same with the chains begun at the features of raw rows, `[n, n_inputs]`: variations on given rows.
    ///
    /// # Errors
    /// When `rows` are not `[n, n_inputs]`.
    pub fn sample_from(&self, rows: &Tensor, steps: usize, philox: Philox) -> Result<Tensor> {
        batch_of("Dbn::sample_from", "rows", rows, self.config.n_inputs())?;
        self.down_from_top(&self.features(rows, self.layers.len() - 1)?, steps, philox)
    }

    fn down_from_top(&self, start: &Tensor, steps: usize, philox: Philox) -> Result<Tensor> {
        let states = self.top()?.gibbs(start, steps, philox)?;
        self.layers.iter().rev().skip(1).try_fold(states, |h, rbm| rbm.visible_mean(&h))
    }

    fn top(&self) -> Result<&Rbm> {
        // A network has a layer: every constructor validates its configuration.
        self.layers.last().ok_or_else(|| candle::Error::Msg("Dbn: no layer".into()))
    }

    /// What the network is.
    pub fn config(&self) -> &DbnConfig {
        &self.config
    }

    /// The RBMs, lowest first. None of them knows the network's preparation, which stands in place of their own: give the lowest
    /// [prepared](Self::prepare) rows, by [`Rbm::hidden_mean`], and not raw ones by `forward`.
    pub fn layers(&self) -> &[Rbm] {
        &self.layers
    }
}

/// The hidden means of the top layer of raw rows: differentiable, so a network can be part of a larger one.
impl Module for Dbn {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.features(rows, self.layers.len())
    }
}
