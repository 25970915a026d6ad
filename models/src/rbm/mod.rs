//! Restricted Boltzmann machine: learns the distribution of its input, one layer of features at a
//! time.
//!
//! ```text
//! E(v, h) = −b·v − c·h − h W vᵀ                    energy, binary visible and hidden units
//! p(h = 1 | v) = sigmoid(v Wᵀ + c)                 hidden mean
//! p(v = 1 | h) = sigmoid(h W + b)                  visible mean
//! F(v) = −b·v − Σ_j softplus(v Wᵀ + c)_j           free energy: p(v) ∝ exp(−F(v))
//!
//! ΔW = ε/B (h₀ᵀ v₀ − h_kᵀ v_k) + …                 contrastive divergence, see [`train`]
//! ```
//!
//! Gaussian visible units have `(v − b)²/2σ²` in place of `−b·v`, read `v/σ²` in place of `v`, and
//! have mean `h W + b` and deviation `σ`. Rectified hidden units have mean `max(0, v Wᵀ + c)` and
//! stand for the sum of infinitely many binary ones with biases `c − ½, c − 1½, …`, so their free
//! energy is `−Σ_j Σ_i softplus(x_j − i + ½)`. Gaussian hidden units add `½h²` to the energy, have
//! mean `v Wᵀ + c` and deviation 1, and their free energy is `−½Σ_j x_j²` (less a constant,
//! `½ ln 2π` each).
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `v` | argument | `[batch, n_visible]` |
//! | `h` | argument | `[batch, n_hidden]` |
//! | `W` | `weight` | `[n_hidden, n_visible]`; see [`patch_rbm`](crate::patch_rbm) and [`conv_rbm`](crate::conv_rbm) for others |
//! | `c` | `bias` | `[n_hidden]`; of a convolution `[n_filters]` |
//! | `b` | `visible_bias` | `[n_visible]`; of a convolution `[channels]` |
//! | `ln σ²` | `log_variance` | `[n_visible]`, learned σ only |
//!
//! How probable rows are, and what `Z` is, is in [`likelihood`].
//!
//! `weight` and `bias` are those of a [`candle_nn::Linear`] as they stand.
//!
//! Sources: Hinton, "Training products of experts by minimizing contrastive divergence", Neural
//! Computation 14(8), 2002; Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using
//! graphics processors", ICML 2009, section 3.1; Nair and Hinton, "Rectified linear units improve
//! restricted Boltzmann machines", ICML 2010; Cho, Ilin and Raiko, "Improved learning of
//! Gaussian-Bernoulli restricted Boltzmann machines", ICANN 2011; Hinton and Salakhutdinov,
//! "Reducing the dimensionality of data with neural networks", Science 313, 2006 (Gaussian hidden
//! units).
//!
//! Departures from Raina, Madhavan and Ng: `W` is the transpose of their `w`, so that hidden units
//! are rows. By default the last reconstruction is a mean
//! ([`sample_visible`](RbmTrainConfig::sample_visible) draws it, as theirs), steps have momentum
//! and decay, and rows are binary; theirs are real-valued and whitened, with a sparsity penalty
//! ([`SparsityConfig`], which acts on the hidden biases). The gradients of both phases are one
//! product.
//!
//! ```
//! use candle::{Device::Cpu, Module, Tensor};
//! use chandlery::rbm::{Rbm, RbmConfig};
//! # fn main() -> candle::Result<()> {
//! // Three visible units, two hidden; all biases 0.
//! let weight = Tensor::new(&[[0f32, 0., 0.], [2., -1., 0.]], &Cpu)?;
//! let zeros = |n| Tensor::zeros(n, candle::DType::F32, &Cpu);
//! let rbm = Rbm::from_tensors(RbmConfig::new(3, 2), weight, zeros(2)?, zeros(3)?, None)?;
//! // The first hidden unit sees nothing and is a fair coin; so is the second, where 2·1 − 1·2 = 0.
//! let h = rbm.forward(&Tensor::new(&[[1f32, 2., 5.]], &Cpu)?)?;
//! assert_eq!(h.to_vec2::<f32>()?, [[0.5, 0.5]]);
//! // F(v) = −2 ln 2: each fair coin is worth ln 2.
//! let f = rbm.free_energy(&Tensor::new(&[[1f32, 2., 5.]], &Cpu)?)?;
//! assert!((f.to_vec1::<f32>()?[0] + 2. * 2f32.ln()).abs() < 1e-6);
//! # Ok(()) }
//! ```
mod config;
mod dense;
mod division;
pub(crate) mod energy;
pub mod likelihood;
mod lower;
mod padding;
mod step;
mod storage;
pub mod train;
mod variance;

pub(crate) use config::precision_name;
pub use config::{
    HiddenUnit, RbmConfig, RbmConnections, RbmTrainConfig, SparsityConfig, VisibleUnit, WeightStorage,
};
pub use division::Division;
pub use train::{Metrics, RbmTrainer};

pub(crate) use energy::softplus;

use crate::check::{batch_of, room_for, values_of};
use crate::model::{Decode, Encode, FLOATS, Model, WIDE};
use crate::pretrained::ModelType;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{add, exp, mul, neg, relu, sigmoid, sqrt};
use chandlery_ops::core::{bernoulli, normal};
use chandlery_ops::images::{PatchDirection, PoolSide, patch_product};

/// A restricted Boltzmann machine; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct Rbm {
    config: RbmConfig,
    weight: Tensor,
    bias: Tensor,
    visible_bias: Tensor,
    log_variance: Option<Tensor>,
}

impl Rbm {
    /// A new RBM: normal weights of standard deviation `config.weight_stdev`, biases 0, deviations 1. All f32.
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: RbmConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let (n_visible, n_hidden) = (config.n_visible, config.n_hidden);
        // Weights, velocities and the gradient of both phases, twice over for what is copied.
        let shape = config.weight_shape();
        let values = 8. * shape.iter().map(|&n| n as f64).product::<f64>();
        room_for("Rbm", &format!("{n_visible} visible and {n_hidden} hidden units"), values, device)?;
        let zeros = |n: usize| Tensor::zeros(n, DType::F32, device);
        let log_variance = match config.visible {
            VisibleUnit::GaussianLearned => Some(zeros(n_visible)?),
            VisibleUnit::Bernoulli | VisibleUnit::Gaussian => None,
        };
        Ok(Self {
            weight: (normal(shape, device, philox)? * config.weight_stdev)?,
            bias: zeros(config.n_hidden_biases())?,
            visible_bias: zeros(config.n_visible_biases())?,
            log_variance,
            config,
        })
    }

    /// An RBM from its parameters; shapes as in the [module](self), one float type.
    ///
    /// # Errors
    /// When `config` is out of range, a shape differs, or `log_variance` is not given exactly when
    /// deviations are learned.
    pub fn from_tensors(
        config: RbmConfig,
        weight: Tensor,
        bias: Tensor,
        visible_bias: Tensor,
        log_variance: Option<Tensor>,
    ) -> Result<Self> {
        config.validate()?;
        let expect = |name: &str, t: &Tensor, want: &[usize]| match t.dims() == want {
            true => Ok(()),
            false => candle::bail!("Rbm: {name} must have shape {want:?}, got {:?}", t.dims()),
        };
        expect("weight", &weight, &config.weight_shape())?;
        expect("bias", &bias, &[config.n_hidden_biases()])?;
        expect("visible_bias", &visible_bias, &[config.n_visible_biases()])?;
        match (&log_variance, config.visible == VisibleUnit::GaussianLearned) {
            (Some(log_variance), true) => expect("log_variance", log_variance, &[config.n_visible])?,
            (None, false) => {}
            (given, _) => candle::bail!(
                "Rbm: log_variance must be given exactly when visible is gaussian-learned, got {} for {}",
                if given.is_some() { "one" } else { "none" },
                config.visible
            ),
        }
        Ok(Self { config, weight, bias, visible_bias, log_variance })
    }

    /// Values of units in the type of the weights.
    fn values(&self, name: &str, t: &Tensor, want: usize) -> Result<Tensor> {
        values_of("Rbm", name, t, want, self.weight.dtype())
    }

    /// What goes into the hidden units: `v Wᵀ + c`, or `(v/σ²) Wᵀ + c`. `[batch, n_hidden]`; of a
    /// convolution what goes into the units of its maps, before they are pooled.
    ///
    /// # Errors
    /// When `v` is not `[batch, n_visible]`.
    pub fn hidden_input(&self, v: &Tensor) -> Result<Tensor> {
        let v = &self.values("v", v, self.config.n_visible)?;
        let v = match &self.log_variance {
            Some(log_variance) => &mul(v, &exp(&neg(log_variance)?)?)?,
            None => v,
        };
        let product = match &self.config.connections {
            RbmConnections::Dense => v.matmul(&self.weight.t()?)?,
            RbmConnections::Patches(grid) => patch_product(v, &self.weight, grid, PatchDirection::Up)?,
            RbmConnections::Filters(grid) => return grid.maps_input(v, &self.weight, &self.bias),
        };
        add(&product, &self.bias)
    }

    /// What goes into the visible units: `h W + b`. `[batch, n_visible]`. Of a convolution `h` are
    /// pooled units, see [`conv_rbm`](crate::conv_rbm).
    ///
    /// # Errors
    /// When `h` is not `[batch, n_hidden]`.
    pub fn visible_input(&self, h: &Tensor) -> Result<Tensor> {
        let h = self.values("h", h, self.config.n_hidden)?;
        match self.config.filter_grid() {
            Some(grid) => self.visible_input_of_units(&grid.spread(&h)?),
            None => self.visible_input_of_units(&h),
        }
    }

    /// The same from all hidden units, `[batch, n_units]`: those of the maps of a convolution,
    /// before they are pooled.
    fn visible_input_of_units(&self, h: &Tensor) -> Result<Tensor> {
        let product = match &self.config.connections {
            RbmConnections::Dense => h.matmul(&self.weight)?,
            RbmConnections::Patches(grid) => patch_product(h, &self.weight, grid, PatchDirection::Down)?,
            RbmConnections::Filters(grid) => return grid.visible_input(h, &self.weight, &self.visible_bias),
        };
        add(&product, &self.visible_bias)
    }

    /// Refuses weights of patches and of filters, for what needs one matrix of them.
    pub(crate) fn must_be_dense(&self, op: &str) -> Result<()> {
        let got = match &self.config.connections {
            RbmConnections::Dense => return Ok(()),
            RbmConnections::Patches(grid) => format!("{} patches", grid.n_patches()),
            RbmConnections::Filters(grid) => format!("{} filters", grid.n_filters),
        };
        candle::bail!(
            "{op}: every hidden unit must see every visible one, got {got}; use the features of the network as they are"
        )
    }

    /// The mean of the hidden units given the visible ones, `[batch, n_hidden]`.
    ///
    /// # Errors
    /// When `v` is not `[batch, n_visible]`.
    pub fn hidden_mean(&self, v: &Tensor) -> Result<Tensor> {
        let x = self.hidden_input(v)?;
        if let Some(grid) = self.config.filter_grid() {
            return grid.pooled_mean(&x);
        }
        self.mean_of_units(&x)
    }

    /// The means of all hidden units, `[batch, n_units]`, from what goes into them.
    fn mean_of_units(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(grid) = self.config.filter_grid() {
            return grid.units_mean(x);
        }
        match self.config.hidden {
            HiddenUnit::Bernoulli => sigmoid(x),
            HiddenUnit::Rectified => relu(x),
            HiddenUnit::Gaussian => Ok(x.clone()),
        }
    }

    /// Draws hidden units given the visible ones, `[batch, n_hidden]`.
    ///
    /// # Errors
    /// When `v` is not `[batch, n_visible]`.
    pub fn sample_hidden(&self, v: &Tensor, philox: Philox) -> Result<Tensor> {
        match self.config.filter_grid() {
            Some(grid) => grid.sample(&self.hidden_input(v)?, PoolSide::Pooled, philox),
            None => self.sample_units(v, philox),
        }
    }

    /// Draws all hidden units given the visible ones, `[batch, n_units]`.
    fn sample_units(&self, v: &Tensor, philox: Philox) -> Result<Tensor> {
        let x = self.hidden_input(v)?;
        if let Some(grid) = self.config.filter_grid() {
            return grid.sample(&x, PoolSide::Detection, philox);
        }
        match self.config.hidden {
            HiddenUnit::Bernoulli => draw(&sigmoid(&x)?, philox),
            HiddenUnit::Rectified => {
                let noise = normal(x.shape(), x.device(), philox)?.to_dtype(x.dtype())?;
                relu(&add(&x, &mul(&noise, &sqrt(&sigmoid(&x)?)?)?)?)
            }
            HiddenUnit::Gaussian => add(&x, &normal(x.shape(), x.device(), philox)?.to_dtype(x.dtype())?),
        }
    }

    /// The mean of the visible units given the hidden ones, `[batch, n_visible]`.
    ///
    /// # Errors
    /// When `h` is not `[batch, n_hidden]`.
    pub fn visible_mean(&self, h: &Tensor) -> Result<Tensor> {
        self.mean_of_visible(self.visible_input(h)?)
    }

    fn mean_of_visible(&self, x: Tensor) -> Result<Tensor> {
        match self.config.visible {
            VisibleUnit::Bernoulli => sigmoid(&x),
            VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => Ok(x),
        }
    }

    /// Draws visible units given the hidden ones, `[batch, n_visible]`.
    ///
    /// # Errors
    /// When `h` is not `[batch, n_hidden]`.
    pub fn sample_visible(&self, h: &Tensor, philox: Philox) -> Result<Tensor> {
        self.draw_visible(self.visible_mean(h)?, philox)
    }

    fn draw_visible(&self, mean: Tensor, philox: Philox) -> Result<Tensor> {
        let noise = || normal(mean.shape(), mean.device(), philox)?.to_dtype(mean.dtype());
        match (self.config.visible, &self.log_variance) {
            (VisibleUnit::Bernoulli, _) => draw(&mean, philox),
            (_, Some(log_variance)) => {
                let stdev = exp(&(log_variance * 0.5)?)?;
                add(&mean, &mul(&noise()?, &stdev)?)
            }
            (_, None) => add(&mean, &noise()?),
        }
    }

    /// Runs `steps` steps of Gibbs sampling from visible states and returns the visible means of
    /// the last.
    ///
    /// Both sides are drawn in every step. `v` is `[batch, n_visible]`, and so is the result.
    ///
    /// # Errors
    /// When `v` has another shape.
    pub fn gibbs(&self, v: &Tensor, steps: usize, philox: Philox) -> Result<Tensor> {
        let batch = batch_of("Rbm::gibbs", "v", v, self.config.n_visible)?;
        let v = v.to_dtype(self.weight.dtype())?;
        let mut at = philox;
        let (mut states, mut means) = (v.clone(), v.clone());
        for step in 0..steps {
            let h = self.sample_units(&states, at)?;
            // A draw for each unit, or for each block of units.
            at = at.advanced(batch * self.config.n_hidden);
            means = self.mean_of_visible(self.visible_input_of_units(&h)?)?;
            if step + 1 < steps {
                states = self.draw_visible(means.clone(), at)?;
                at = at.advanced(batch * self.config.n_visible);
            }
        }
        Ok(means)
    }

    /// What the RBM is.
    pub fn config(&self) -> &RbmConfig {
        &self.config
    }

    /// The weights, of the [shape](RbmConfig::weight_shape) of the configuration: the last
    /// dimension is what a hidden unit looks for.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The hidden biases, `[n_hidden]`, or `[n_filters]` of a convolution.
    pub fn bias(&self) -> &Tensor {
        &self.bias
    }

    /// The visible biases, `[n_visible]`, or `[channels]` of a convolution.
    pub fn visible_bias(&self) -> &Tensor {
        &self.visible_bias
    }

    /// The logarithms of the visible variances, `[n_visible]`, where they are learned.
    pub fn log_variance(&self) -> Option<&Tensor> {
        self.log_variance.as_ref()
    }
}

impl Model for Rbm {
    type Config = RbmConfig;
    const TYPE: ModelType = ModelType::Rbm;

    fn dtypes(config: &RbmConfig) -> &'static [DType] {
        if !config.connections.is_dense() { &WIDE } else { &FLOATS }
    }

    /// `weight`, `bias`, `visible_bias` and, for learned deviations, `log_variance`.
    fn build(config: RbmConfig, vb: &VarBuilder) -> Result<Self> {
        let drawn = Init::Randn { mean: 0., stdev: config.weight_stdev };
        let log_variance = match config.visible {
            VisibleUnit::GaussianLearned => Some(vb.get(config.n_visible, "log_variance")?),
            VisibleUnit::Bernoulli | VisibleUnit::Gaussian => None,
        };
        Ok(Self {
            weight: vb.get_with_hints(config.weight_shape(), "weight", drawn)?,
            bias: vb.get(config.n_hidden_biases(), "bias")?,
            visible_bias: vb.get(config.n_visible_biases(), "visible_bias")?,
            log_variance,
            config,
        })
    }

    fn init(config: RbmConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &RbmConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.weight
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        let named = [("weight", &self.weight), ("bias", &self.bias), ("visible_bias", &self.visible_bias)];
        let all = named.into_iter().chain(self.log_variance.as_ref().map(|t| ("log_variance", t)));
        all.map(|(name, t)| (name.to_owned(), t.clone())).collect()
    }
}

/// By the [hidden means](Rbm::hidden_mean).
impl Encode for Rbm {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        self.hidden_mean(x)
    }
}

/// By the [visible means](Rbm::visible_mean); rows come back through the means of all hidden units,
/// of a convolution those of its maps before they are pooled.
impl Decode for Rbm {
    fn decode(&self, h: &Tensor) -> Result<Tensor> {
        self.visible_mean(h)
    }

    fn reconstruct_prepared(&self, x: &Tensor) -> Result<Tensor> {
        let units = self.mean_of_units(&self.hidden_input(x)?)?;
        self.mean_of_visible(self.visible_input_of_units(&units)?)
    }
}

/// The hidden means of raw rows, `[batch, n_inputs]`: differentiable, so an RBM can be a layer of a
/// larger network.
impl Module for Rbm {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.encode(rows)
    }
}

/// Draws are made in f32 whatever the RBM's type is.
fn draw(mean: &Tensor, philox: Philox) -> Result<Tensor> {
    bernoulli(&mean.to_dtype(DType::F32)?, philox)?.to_dtype(mean.dtype())
}

impl crate::layers::Layer for Rbm {
    const STACK_TYPE: ModelType = ModelType::Dbn;

    fn n_weights(config: &RbmConfig) -> usize {
        config.weight_shape().iter().product()
    }

    fn reading(config: &RbmConfig, preparation: &chandlery_datasets::Preparation) -> RbmConfig {
        RbmConfig { preparation: preparation.clone(), ..config.clone() }
    }
}
