//! What every model has: how it is made, moved and saved, and the verbs that it is used by.
//!
//! The contract stands in the [crate's page](crate); `tests/contract.rs` holds every model to it.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use candle_nn::{Optimizer, VarBuilder, VarMap};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::{Encode, Model, Philox};
//! # fn main() -> candle::Result<()> {
//! // A trained encoder and a new head, trained together by an optimiser of candle.
//! let dbn = Dbn::init(DbnConfig::new(&[6, 5, 4]), Philox::new(1, 0), &Cpu)?;
//! let mut variables = VarMap::new();
//! let encoder = dbn.store_in(&mut variables, "encoder")?;
//! let vb = VarBuilder::from_varmap(&variables, DType::F32, &Cpu);
//! let head = candle_nn::linear(4, 2, vb.pp("head"))?;
//! let mut adam = candle_nn::AdamW::new(variables.all_vars(), candle_nn::ParamsAdamW::default())?;
//! let rows = Tensor::ones((3, 6), DType::F32, &Cpu)?;
//! let logits = candle::Module::forward(&head, &encoder.encode(&rows)?)?;
//! let loss = candle_nn::loss::cross_entropy(&logits, &Tensor::new(&[0u32, 1, 1], &Cpu)?)?;
//! adam.backward_step(&loss)?;
//! // The same model from a file that holds both: everything of it stands under its prefix.
//! let again = Dbn::new(dbn.config().clone(), vb.pp("encoder"))?;
//! assert_eq!(again.encode(&rows)?.to_vec2::<f32>()?, encoder.encode(&rows)?.to_vec2::<f32>()?);
//! # Ok(()) }
//! ```
use crate::check::batch_of;
use crate::prepare::{n_inputs, prepared};
use crate::pretrained::{self, LoadOptions, ModelType};
use candle::{DType, Device, Error, Result, Tensor, Var};
use candle_nn::{Init, VarBuilder, VarMap};
use chandlery_datasets::{Feed, Preparation};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{sqr, sub};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::path::Path;

/// What a model is: the content of its `config.json`.
///
/// Sizes have no default and are the arguments of `new`, everything else does; fields may be added,
/// so make one by `RbmConfig { hidden, ..RbmConfig::new(784, 500) }`.
pub trait ModelConfig: Clone + PartialEq + std::fmt::Debug + Serialize + DeserializeOwned {
    /// What is done to raw rows before the model reads them.
    fn preparation(&self) -> &Preparation;

    /// The same, to be changed.
    fn preparation_mut(&mut self) -> &mut Preparation;

    /// Values that the model reads of a prepared row.
    fn n_read(&self) -> usize;

    /// # Errors
    /// When a field is out of its range, or the preparation gives rows of another width; the
    /// message names it.
    fn validate(&self) -> Result<()>;

    /// Values in a raw row.
    fn n_inputs(&self) -> usize {
        n_inputs(self.preparation(), self.n_read())
    }
}

/// [`ModelConfig`] of a configuration with a field `preparation` and its own `validate`; the second
/// argument gives `n_read`.
macro_rules! model_config {
    ($config:ty, $n_read:expr) => {
        impl $crate::model::ModelConfig for $config {
            fn preparation(&self) -> &chandlery_datasets::Preparation {
                &self.preparation
            }

            fn preparation_mut(&mut self) -> &mut chandlery_datasets::Preparation {
                &mut self.preparation
            }

            fn n_read(&self) -> usize {
                $n_read(self)
            }

            fn validate(&self) -> candle::Result<()> {
                Self::validate(self)
            }
        }
    };
}
pub(crate) use model_config;

/// All types that parameters can have.
pub(crate) const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Those of models whose products are computed by ops of this library.
pub(crate) const WIDE: [DType; 2] = [DType::F32, DType::F64];

/// A model: what it is, parameters of one float type on one device, and a preparation of raw rows
/// that goes with them.
pub trait Model: Clone + Sized {
    /// What it is.
    type Config: ModelConfig;

    /// What files call it.
    const TYPE: ModelType;

    /// The types that the parameters of a model of this configuration can have.
    fn dtypes(_config: &Self::Config) -> &'static [DType] {
        &FLOATS
    }

    /// The model of a checked configuration, whose preparation is fitted, with its parameters from
    /// under `vb`: what [`new`](Self::new) calls.
    ///
    /// # Errors
    /// When `vb` lacks a tensor or has another shape.
    fn build(config: Self::Config, vb: &VarBuilder) -> Result<Self>;

    /// A new model in f32 whose parameters are drawn from `philox` on.
    ///
    /// # Errors
    /// When `config` is out of range, memory is short, or the model is none that can be drawn.
    fn init(config: Self::Config, philox: Philox, device: &Device) -> Result<Self>;

    /// What it is.
    fn config(&self) -> &Self::Config;

    /// One of the parameters: all lie on its device, and all that are floats have its type.
    fn parameter(&self) -> &Tensor;

    /// The parameters by the names that [`new`](Self::new) looks for, without the preparation.
    fn tensors(&self) -> Vec<(String, Tensor)>;

    /// Loads the parameters from under `vb`, at any prefix, in its type and on its device, and what
    /// of the preparation is not fitted yet.
    ///
    /// In a new `VarMap` variables are drawn by candle from the distributions that
    /// [`init`](Self::init) draws from, so that the bits are others, and a preparation that was
    /// fitted becomes entries beside them.
    ///
    /// # Errors
    /// When `config` is out of range, or `vb` is of a type that the model cannot have, lacks a
    /// tensor or has another shape.
    fn new(config: Self::Config, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        check_dtype::<Self>(&config, vb.dtype())?;
        Self::build(fitted(Self::TYPE.rust_name(), config, &vb)?, &vb)
    }

    /// What is done to raw rows before the model reads them.
    fn preparation(&self) -> &Preparation {
        self.config().preparation()
    }

    /// Where the model is.
    fn device(&self) -> &Device {
        self.parameter().device()
    }

    /// The type of its parameters, in which it computes.
    fn dtype(&self) -> DType {
        self.parameter().dtype()
    }

    /// What the model reads of raw rows, bytes or floats of any type: `[batch, n_inputs]` to
    /// `[batch, n_read]` in its own type.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device.
    fn prepare(&self, rows: &Tensor) -> Result<Tensor> {
        prepared(Self::TYPE.rust_name(), self.preparation(), rows, self.dtype())
    }

    /// The same model with its own copy of all parameters, in another type and on another device,
    /// and its preparation there.
    ///
    /// # Errors
    /// When the model cannot have this type, or the device is out of memory.
    fn to(&self, dtype: DType, device: &Device) -> Result<Self> {
        let mut config = self.config().clone();
        check_dtype::<Self>(&config, dtype)?;
        *config.preparation_mut() = config.preparation().to_device(device).map_err(Error::wrap)?;
        // Another device has its own anyway.
        let own = |(name, t): (String, Tensor)| {
            Ok((name, if t.device().same_device(device) { t.copy()? } else { t }))
        };
        let tensors = self.tensors().into_iter().map(own).collect::<Result<HashMap<_, _>>>()?;
        Self::build(config, &VarBuilder::from_tensors(tensors, dtype, device))
    }

    /// [`to`](Self::to) another device.
    ///
    /// # Errors
    /// When the device is out of memory.
    fn to_device(&self, device: &Device) -> Result<Self> {
        self.to(self.dtype(), device)
    }

    /// [`to`](Self::to) another type.
    ///
    /// # Errors
    /// When the model cannot have this type, or the device is out of memory.
    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        self.to(dtype, self.device())
    }

    /// The same parameters with another configuration of the same sizes.
    ///
    /// # Errors
    /// When sizes differ.
    fn with_config(&self, config: Self::Config) -> Result<Self> {
        config.validate()?;
        let tensors: HashMap<_, _> = self.tensors().into_iter().collect();
        Self::build(config, &VarBuilder::from_tensors(tensors, self.dtype(), self.device()))
    }

    /// Makes variables of all parameters, as entries of `variables` under `prefix`, and gives the
    /// model that reads them: train it with candle's optimisers. What was fitted of the preparation
    /// is stored beside them and has no gradient.
    ///
    /// # Errors
    /// When an entry of such a name is there already, or memory is short.
    fn store_in(&self, variables: &mut VarMap, prefix: &str) -> Result<Self> {
        let full = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let fitted = self.preparation().tensors().map_err(Error::wrap)?;
        {
            let mut entries = variables.data().lock().map_err(|e| Error::Msg(e.to_string()))?;
            for (name, t) in self.tensors().into_iter().chain(fitted) {
                let name = full(&name);
                if entries.contains_key(&name) {
                    candle::bail!(
                        "{}::store_in: the VarMap must have no entry {name} yet; give another prefix",
                        Self::TYPE.rust_name()
                    )
                }
                entries.insert(name, Var::from_tensor(&t.detach().copy()?)?);
            }
        }
        let vb = VarBuilder::from_varmap(variables, self.dtype(), self.device());
        Self::build(self.config().clone(), &if prefix.is_empty() { vb } else { vb.pp(prefix) })
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be; both are
    /// of one model whenever somebody reads them.
    ///
    /// # Errors
    /// When the folder is not writable.
    fn save_pretrained(&self, folder: impl AsRef<Path>) -> Result<()> {
        pretrained::save(folder.as_ref(), Self::TYPE, self.config(), self.preparation(), self.tensors())
    }

    /// Loads a model from a folder that [`save_pretrained`](Self::save_pretrained) wrote, or by its
    /// id (`owner/name`) from the Hugging Face hub through its cache; see [`pretrained`].
    ///
    /// # Errors
    /// When there is neither, a file is missing or does not fit the configuration, it is another
    /// model, or the model cannot have the type that is asked for; the message names the file.
    fn from_pretrained(folder_or_id: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        pretrained::load(Self::TYPE, folder_or_id.as_ref(), options, Self::new)
    }
}

/// A model that makes features, codes or places of rows.
pub trait Encode: Model {
    /// What it makes: a tensor with a row for each row, or [sparse
    /// codes](crate::dictionary::SparseCodes).
    type Codes;

    /// What the model makes of prepared rows `x`, `[batch, n_read]`.
    ///
    /// # Errors
    /// When `x` has another shape or device.
    fn encode_prepared(&self, x: &Tensor) -> Result<Self::Codes>;

    /// What it makes of raw rows, `[batch, n_inputs]` of bytes or floats.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device.
    fn encode(&self, rows: &Tensor) -> Result<Self::Codes> {
        self.encode_prepared(&self.prepare(rows)?)
    }

    /// Encodes an epoch of `feed` a minibatch at a time and gives each to `sink`, in the order of
    /// the feed ([`FeedConfig::in_order`](crate::datasets::FeedConfig::in_order) for that of the
    /// data): for rows that do not fit in memory.
    ///
    /// # Errors
    /// When rows cannot be read, are not those of the model, or `sink` fails.
    fn encode_all(&self, feed: &mut Feed, mut sink: impl FnMut(Self::Codes) -> Result<()>) -> Result<()> {
        feed.start_epoch(0, 0).map_err(Error::wrap)?;
        while let Some(minibatch) = feed.next().map_err(Error::wrap)? {
            sink(self.encode(&minibatch.rows)?)?;
        }
        Ok(())
    }
}

/// A model that gives rows back from what it made of them.
pub trait Decode: Encode {
    /// Codes back to prepared rows, `[batch, n_read]`.
    ///
    /// # Errors
    /// When the codes have another shape, type or device.
    fn decode(&self, codes: &Self::Codes) -> Result<Tensor>;

    /// What comes back of prepared rows `x`, `[batch, n_read]` to the same.
    ///
    /// # Errors
    /// When `x` has another shape or device.
    fn reconstruct_prepared(&self, x: &Tensor) -> Result<Tensor> {
        self.decode(&self.encode_prepared(x)?)
    }

    /// What comes back of raw rows as raw rows, `[batch, n_inputs]` to the same, as far as their
    /// preparation can be [undone](Preparation::inverse): bytes come back as the numbers that they
    /// stand for.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device.
    fn reconstruct(&self, rows: &Tensor) -> Result<Tensor> {
        let back = self.reconstruct_prepared(&self.prepare(rows)?)?;
        self.preparation().inverse(&back).map_err(Error::wrap)
    }

    /// Mean over raw rows of the squared error of what comes back, summed over the values that the
    /// model reads, in their units. In f64.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device, or there are none.
    fn reconstruction_error(&self, rows: &Tensor) -> Result<f64> {
        self.reconstruction_error_prepared(&self.prepare(rows)?)
    }

    /// The same of prepared rows `x`, `[batch, n_read]`.
    ///
    /// # Errors
    /// When `x` has another shape or device, or there are no rows.
    fn reconstruction_error_prepared(&self, x: &Tensor) -> Result<f64> {
        squared_error::<Self>(&x.to_dtype(self.dtype())?, || self.reconstruct_prepared(x))
    }
}

/// Mean over rows of the squared error of what comes `back` of them, in f64.
pub(crate) fn squared_error<M: Model>(x: &Tensor, back: impl FnOnce() -> Result<Tensor>) -> Result<f64> {
    let batch = x.dim(0)?;
    crate::check::at_least_one(&format!("{}::reconstruction_error", M::TYPE.rust_name()), "rows", batch)?;
    let squares = sqr(&sub(&back()?.to_dtype(DType::F64)?, &x.to_dtype(DType::F64)?)?)?;
    Ok(squares.sum_all()?.to_scalar::<f64>()? / batch as f64)
}

/// A model of several layers of features.
pub trait Layered: Model {
    /// Layers, the rows not counted.
    fn n_layers(&self) -> usize;

    /// What layer `layer`, counted from 0, makes of the values of the one below: `[batch, ..]` to
    /// `[batch, ..]`.
    ///
    /// # Errors
    /// When the values have another shape, or there is no such layer.
    fn layer_forward(&self, layer: usize, h: &Tensor) -> Result<Tensor>;

    /// What layer `layer` (1 is the lowest) makes of raw rows, `[batch, n_inputs]` to
    /// `[batch, ..]`; layer 0 is what the lowest reads.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device, or there is no such layer.
    fn features(&self, rows: &Tensor, layer: usize) -> Result<Tensor> {
        let (name, n) = (Self::TYPE.rust_name(), self.n_layers());
        batch_of(name, "rows", rows, self.config().n_inputs())?;
        if layer > n {
            candle::bail!("{name}::features: layer must be 0 to {n}, got {layer}")
        }
        (0..layer).try_fold(self.prepare(rows)?, |h, layer| self.layer_forward(layer, &h))
    }

    /// What every layer makes of raw rows side by side, `[batch, Σ sizes]`, lowest first: what a
    /// linear classifier reads best, since upper layers drop what lower ones saw.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device.
    fn all_features(&self, rows: &Tensor) -> Result<Tensor> {
        batch_of(Self::TYPE.rust_name(), "rows", rows, self.config().n_inputs())?;
        let mut h = self.prepare(rows)?;
        let mut all = Vec::with_capacity(self.n_layers());
        for layer in 0..self.n_layers() {
            h = self.layer_forward(layer, &h)?;
            all.push(h.clone());
        }
        Tensor::cat(&all, 1)
    }
}

/// Refuses a type that the model's parameters cannot have.
fn check_dtype<M: Model>(config: &M::Config, dtype: DType) -> Result<()> {
    let dtypes = M::dtypes(config);
    if dtypes.contains(&dtype) {
        return Ok(());
    }
    let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.as_str()).collect();
    candle::bail!(
        "{}: parameters must be {}, got {}, in which it has no products; load it in one of these",
        M::TYPE.rust_name(),
        names.join(" or "),
        dtype.as_str()
    )
}

/// The configuration with what of its preparation is not fitted yet from under `vb`, all of it on
/// the device of `vb`. What is fitted goes to the entries of a `VarMap`, so that it is saved with
/// them.
fn fitted<C: ModelConfig>(model: &str, mut config: C, vb: &VarBuilder) -> Result<C> {
    let number =
        |name: &str, shape: &[usize]| vb.get_with_hints_dtype(shape, name, Init::default(), DType::F64);
    let mut found = HashMap::new();
    for (name, shape) in config.preparation().missing() {
        if !vb.contains_tensor(&name) {
            let prefix = vb.prefix();
            candle::bail!(
                "{model}: {prefix}{}{name} is missing, a number that was fitted of the preparation; load it with the weights",
                if prefix.is_empty() { "" } else { "." }
            )
        }
        found.insert(name.clone(), number(&name, &shape)?.detach().copy()?);
    }
    let preparation = config.preparation_mut();
    preparation.load(&found, vb.device()).map_err(Error::wrap)?;
    *preparation = preparation.to_device(vb.device()).map_err(Error::wrap)?;
    for (name, t) in preparation.tensors().map_err(Error::wrap)? {
        // Files without it are no error: it is there already.
        if !found.contains_key(&name)
            && let Ok(entry) = number(&name, t.dims())
            && entry.is_variable()
        {
            Var::from_tensor(&entry)?.set(&t.to_device(entry.device())?)?;
        }
    }
    Ok(config)
}
