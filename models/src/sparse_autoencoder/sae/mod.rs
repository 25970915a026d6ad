//! Sparse autoencoders with many latents, of which few are active in a row: features of the
//! activations of neural networks.
//!
//! ```text
//! π = W_enc (x − b_dec) + b_enc                 pre-activations
//! z = f(π)                                      latents: by kind, see below
//! x̂ = W_dec z + b_dec  (+ W_skip x)             reconstruction
//!
//! f(π)_j   active latents j                                  loss, mean over rows
//! ReLU     π_j > 0                                           ‖x̂ − x‖² + λ Σ_j z_j ‖d_j‖
//! TopK     the k largest above 0                             ‖x̂ − x‖²
//! BatchTopK the k·batch largest of a minibatch above 0       ‖x̂ − x‖²
//! JumpReLU π_j > θ_j                                         ‖x̂ − x‖² + λ Σ_j H(π_j − θ_j)
//! gated    π_j > 0, with value ReLU(e^r (π_j − b_enc) + b)   ‖x̂ − x‖² + λ Σ_j ReLU(π_j) ‖d_j‖ + ‖x̂(ReLU(π)) − x‖²
//! Matryoshka as BatchTopK                                    mean over prefixes m of ‖x̂_{1..m} − x‖²
//! ```
//!
//! | symbol | name in files | shape |
//! |---|---|---|
//! | `x` | argument, prepared | `[batch, n_visible]` |
//! | `W_enc`, `b_enc` | `encoder.weight`, `encoder.bias` | `[n_latents, n_visible]`, `[n_latents]` |
//! | `W_decᵀ`, its rows `d_j` | `W_dec` | `[n_latents, n_targets]` |
//! | `b_dec` | `b_dec` | `[n_targets]` |
//! | `θ` | `threshold` | `[n_latents]`, of BatchTopK and Matryoshka `[1]` |
//! | `b`, `r` | `b_mag`, `r_mag` | `[n_latents]` |
//! | `W_skip` | `W_skip` | `[n_targets, n_visible]` |
//!
//! A transcoder has a target `y` of its own in place of `x` in the loss. Training is in
//! [`SaeTrainer`], its loss and gradients in [`loss`], and folders of other libraries are read and
//! written by [`files`]. Codes are sparse, and nothing but the
//! encoder's product is a product over all latents.
//!
//! Sources: those of each [`Kind`]; Bricken et al., "Towards monosemanticity", 2023; Conerly et
//! al., "Update on how we train SAEs", 2024; Dunefsky, Chlenski and Nanda, "Transcoders find
//! interpretable LLM feature circuits", 2024.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::sparse_autoencoder::sae::{Kind, Sae, SaeConfig};
//! use chandlery::{Decode, Encode};
//! # fn main() -> candle::Result<()> {
//! // Three latents along the axes and the diagonal of a plane, of which one is active.
//! let rows = Tensor::new(&[[1f32, 0.], [0., 1.], [0.6, 0.8]], &Cpu)?;
//! let sae = Sae::tied(SaeConfig::new(2, 3, Kind::TopK { k: 1 }), &rows)?;
//! let codes = sae.encode(&Tensor::new(&[[2f32, 0.], [3., 4.]], &Cpu)?)?;
//! assert_eq!(codes.indices.to_vec2::<u32>()?, [[0], [2]]);
//! assert_eq!(codes.values.to_vec2::<f32>()?, [[2.], [5.]]);
//! let back = sae.decode(&codes)?.to_vec2::<f32>()?;
//! assert!((back[1][0] - 3.).abs() < 1e-6 && (back[1][1] - 4.).abs() < 1e-6);
//! # Ok(()) }
//! ```
mod auxiliary;
mod config;
mod divided;
mod exchange;
pub mod files;
mod gated;
mod jump_relu;
mod largest;
pub mod loss;
mod loss_config;
mod matryoshka;
mod pairs;
mod pass;
mod relu;
mod start;
mod top_k;
mod top_rows;
pub mod train;
mod train_config;

pub use config::{Kind, START_THRESHOLD, SaeConfig};
pub use files::FileFormat;
pub use loss::Gradients;
pub use loss_config::{LossConfig, Moment, Penalty};
pub use pairs::PairTrainer;
pub use start::geometric_median;
pub use top_rows::{Neighbour, TopRows};
pub use train::{Metrics, SaeTrainer};
pub use train_config::{Division, Resampling, SaeTrainConfig};

use crate::check::{room_for, values_of};
use crate::model::{Decode, Encode, Model, WIDE};
use crate::pretrained::{self, LoadOptions, ModelType};
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use chandlery_ops::Philox;
use chandlery_ops::codes::{SparseCodes, active, centred, top_k};
use chandlery_ops::core::normal;
use chandlery_ops::layers::{Precision, product};
use config::{BIAS, DECODER, DECODER_BIAS, ENCODER, MAGNITUDE_BIAS, MAGNITUDE_SCALE, SKIP, THRESHOLD};
use std::path::Path;

/// A sparse autoencoder with latents; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct Sae {
    config: SaeConfig,
    encoder: Tensor,
    decoder: Tensor,
    /// The other parameters, in the order of [`SaeConfig::parts`].
    others: Vec<(&'static str, Tensor)>,
    /// Of the encoder's product. Encoder and decoder are bf16, and all else is f32, with bf16.
    precision: Precision,
}

impl Sae {
    /// A new one in f32 on the device of `directions`, `[n_latents, n_visible]`, whose encoder
    /// these are, brought to length 1, and whose decoder is the same; of a transcoder the decoder
    /// is 0. Biases are 0.
    ///
    /// # Errors
    /// When `config` is out of range, or `directions` have another shape.
    pub fn tied(config: SaeConfig, directions: &Tensor) -> Result<Self> {
        config.validate()?;
        if directions.dims() != [config.n_latents, config.n_visible] {
            candle::bail!(
                "Sae::tied: directions must have shape [{}, {}], got {:?}",
                config.n_latents,
                config.n_visible,
                directions.dims()
            )
        }
        let device = directions.device();
        let encoder = unit_rows(&directions.to_dtype(DType::F32)?.contiguous()?)?;
        let decoder = match config.n_targets {
            None => encoder.copy()?,
            Some(n_targets) => Tensor::zeros((config.n_latents, n_targets), DType::F32, device)?,
        };
        let others = config.parts().into_iter().map(|part| {
            Ok((part.name, Tensor::full(part.start as f32, &part.shape[..], device)?.contiguous()?))
        });
        Ok(Self {
            encoder,
            decoder,
            others: others.collect::<Result<_>>()?,
            config,
            precision: Precision::F32,
        })
    }

    /// One of its parameters and those beside its weights, which were checked; shares their memory.
    fn of(
        config: &SaeConfig,
        [encoder, decoder]: [Tensor; 2],
        others: Vec<(&'static str, Tensor)>,
        precision: Precision,
    ) -> Self {
        Self { config: config.clone(), encoder, decoder, others, precision }
    }

    /// The same model, whose encoder's product has this precision, where it is f32: with
    /// [`Bf16`](Precision::Bf16) its encoder and decoder are rounded to bf16 once. For
    /// [`encode`](Encode::encode) and [`decode`](Decode::decode); it is no layer of a network and
    /// is not saved.
    ///
    /// # Errors
    /// When memory is short, or the model is f64.
    pub fn at_precision(&self, precision: Precision) -> Result<Self> {
        if self.wide() != DType::F32 {
            candle::bail!("Sae::at_precision: the model must be f32, got {:?}", self.wide())
        }
        let dtype = if precision == Precision::Bf16 { DType::BF16 } else { DType::F32 };
        Ok(Self {
            encoder: self.encoder.to_dtype(dtype)?,
            decoder: self.decoder.to_dtype(dtype)?,
            precision,
            ..self.clone()
        })
    }

    /// The type of rows, values and biases.
    fn wide(&self) -> DType {
        self.others.first().map_or(DType::F32, |(_, t)| t.dtype())
    }

    /// What the autoencoder is.
    pub fn config(&self) -> &SaeConfig {
        &self.config
    }

    /// The rows of the encoder, `[n_latents, n_visible]`.
    pub fn encoder(&self) -> &Tensor {
        &self.encoder
    }

    /// The rows of the decoder, `[n_latents, n_targets]`: what each latent stands for.
    pub fn decoder(&self) -> &Tensor {
        &self.decoder
    }

    /// A parameter beside the weights by its name in files, where the kind has it.
    pub fn parameter_named(&self, name: &str) -> Option<&Tensor> {
        self.others.iter().find(|(of, _)| *of == name).map(|(_, t)| t)
    }

    fn other(&self, name: &str) -> Result<&Tensor> {
        match self.parameter_named(name) {
            Some(t) => Ok(t),
            None => candle::bail!("Sae: a model of kind {:?} has no {name}", self.config.kind),
        }
    }

    /// Prepared rows as the encoder reads them: less the decoder's bias where it is subtracted; in
    /// their type, and in that of the encoder.
    fn centred(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let x = values_of("Sae", "x", x, self.config.n_visible, self.wide())?.contiguous()?;
        let dtype = self.encoder.dtype();
        match self.config.subtract_bias {
            true if x.track_op() => {
                let x = x.broadcast_sub(self.other(DECODER_BIAS)?)?;
                Ok([x.clone(), x.to_dtype(dtype)?])
            }
            true => centred(&x, self.other(DECODER_BIAS)?, dtype),
            false => Ok([x.clone(), x.to_dtype(dtype)?]),
        }
    }

    /// Pre-activations without their bias, `[batch, n_latents]`, of what [`centred`](Self::centred)
    /// gives in the type of the encoder.
    fn products(&self, centred: &Tensor) -> Result<Tensor> {
        match self.precision {
            Precision::F32 => centred.matmul(&self.encoder.t()?),
            precision => product(centred, &self.encoder.t()?, centred.dtype(), precision),
        }
    }

    /// The codes of pre-activations without their bias.
    fn codes(&self, products: &Tensor) -> Result<SparseCodes> {
        let bias = self.other(BIAS)?;
        let bound = |x: f64| Tensor::new(&[x], bias.device())?.to_dtype(bias.dtype());
        match &self.config.kind {
            Kind::Relu => active(products, bias, &bound(0.)?, false),
            Kind::TopK { k } => top_k(products, bias, *k, None),
            Kind::BatchTopK { .. } | Kind::Matryoshka { .. } => {
                active(products, bias, &self.other(THRESHOLD)?.maximum(0.)?, false)
            }
            Kind::JumpRelu => active(products, bias, self.other(THRESHOLD)?, false),
            Kind::Gated => {
                let codes = active(products, bias, &bound(0.)?, false)?;
                Ok(SparseCodes { values: gated::magnitudes(self, &codes)?.relu()?, ..codes })
            }
        }
    }

    /// What is given back of prepared rows `x` beside what codes stand for: the bias, and what
    /// skips them, `[1 or batch, n_targets]`.
    fn beside_codes(&self, x: &Tensor) -> Result<Tensor> {
        let bias = self.other(DECODER_BIAS)?.unsqueeze(0)?;
        match self.parameter_named(SKIP) {
            Some(skip) => x.matmul(&skip.t()?)?.broadcast_add(&bias),
            None => Ok(bias),
        }
    }

    /// Prepared rows `x`, `[batch, n_visible]`, to latents `[batch, n_latents]`, most of them 0;
    /// gradients flow through those that are active.
    ///
    /// # Errors
    /// When `x` has another shape or device.
    pub fn dense(&self, x: &Tensor) -> Result<Tensor> {
        let products = self.products(&self.centred(x)?[1])?;
        let codes = self.codes(&products.detach())?;
        let active =
            SparseCodes { values: codes.values.gt(0f64)?.to_dtype(x.dtype())?, ..codes }.to_dense()?;
        let values = match self.config.kind {
            Kind::Gated => products
                .broadcast_mul(&self.other(MAGNITUDE_SCALE)?.exp()?)?
                .broadcast_add(self.other(MAGNITUDE_BIAS)?)?,
            _ => products.broadcast_add(self.other(BIAS)?)?,
        };
        values * active
    }
}

/// Rows over their lengths.
fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    rows.broadcast_div(&rows.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(f64::from(f32::MIN_POSITIVE))?)
}

impl Model for Sae {
    type Config = SaeConfig;
    const TYPE: ModelType = ModelType::Sae;

    fn dtypes(_: &SaeConfig) -> &'static [DType] {
        &WIDE
    }

    fn build(config: SaeConfig, vb: &VarBuilder) -> Result<Self> {
        let (n, d, targets) = (config.n_latents, config.n_visible, config.n_outputs());
        let drawn = |d: usize| Init::Randn { mean: 0., stdev: 1. / (d as f64).sqrt() };
        let others = config
            .parts()
            .into_iter()
            .map(|part| Ok((part.name, vb.get_with_hints(&part.shape[..], part.name, part.init())?)));
        Ok(Self {
            encoder: vb.get_with_hints((n, d), ENCODER, drawn(d))?,
            decoder: vb.get_with_hints((n, targets), DECODER, drawn(targets))?,
            others: others.collect::<Result<_>>()?,
            config,
            precision: Precision::F32,
        })
    }

    /// Directions that are drawn, for encoder and decoder alike.
    fn init(config: SaeConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let (n, d) = (config.n_latents, config.n_visible);
        // Parameters, moments and gradients of encoder and decoder.
        room_for("Sae", &format!("{d} values and {n} latents"), 8. * n as f64 * d as f64, device)?;
        Self::tied(config, &normal((n, d), device, philox)?)
    }

    fn config(&self) -> &SaeConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.encoder
    }

    /// Also from folders that other libraries wrote; see [`files`].
    fn from_pretrained(folder_or_id: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let folder = folder_or_id.as_ref();
        let Some(format) = FileFormat::of(folder)? else {
            return pretrained::load(Self::TYPE, folder, options, Self::new);
        };
        let (config, tensors) = files::read(folder, format, &options.device)?;
        let stored = tensors.get(ENCODER).map_or(DType::F32, Tensor::dtype);
        let dtype = options.dtype.unwrap_or(if stored == DType::F64 { stored } else { DType::F32 });
        let refused = |e| candle::Error::Msg(format!("{}: {e}", folder.join(format.weights()).display()));
        Self::new(config, VarBuilder::from_tensors(tensors, dtype, &options.device)).map_err(refused)
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        let weights = [(ENCODER, &self.encoder), (DECODER, &self.decoder)].into_iter();
        let named = weights.chain(self.others.iter().map(|(name, t)| (*name, t)));
        named.map(|(name, t)| (name.to_owned(), t.clone())).collect()
    }
}

/// Active latents and their values, in the order of latents.
impl Encode for Sae {
    type Codes = SparseCodes;

    fn encode_prepared(&self, x: &Tensor) -> Result<SparseCodes> {
        self.codes(&self.products(&self.centred(x)?[1])?)
    }
}

/// What codes stand for, with the decoder's bias; what skips them is not in it.
impl Decode for Sae {
    fn decode(&self, codes: &SparseCodes) -> Result<Tensor> {
        codes.reconstruct(&self.decoder.to_dtype(self.wide())?)?.broadcast_add(self.other(DECODER_BIAS)?)
    }

    fn reconstruct_prepared(&self, x: &Tensor) -> Result<Tensor> {
        let x = values_of("Sae", "x", x, self.config.n_visible, self.wide())?;
        let made = self.encode_prepared(&x)?.reconstruct(&self.decoder.to_dtype(self.wide())?)?;
        made.broadcast_add(&self.beside_codes(&x)?)
    }
}

/// The latents of raw rows, `[batch, n_inputs]` to `[batch, n_latents]`: differentiable, so that it
/// can be a layer of a network.
impl Module for Sae {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.dense(&self.prepare(rows)?)
    }
}
