//! A model of any family.
use candle::{Device, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery::dae::{Dae, StackedDae};
use chandlery::dbn::Dbn;
use chandlery::dictionary::Dictionary;
use chandlery::pretrained::{LoadOptions, ModelType};
use chandlery::rbm::Rbm;
use chandlery::sparse_autoencoder::SparseAutoencoder;
use chandlery::sparse_autoencoder::sae::Sae;
use chandlery::sparse_coding::SparseCoding;
use chandlery::tsne::Embedding;
use chandlery::{Decode, Encode, Model, ModelConfig, Philox};
use std::collections::HashMap;
use std::path::Path;

/// A model of any family that Python knows.
pub enum AnyModel {
    Rbm(Rbm),
    Dbn(Dbn),
    Dae(Dae),
    StackedDae(StackedDae),
    SparseAutoencoder(SparseAutoencoder),
    Sae(Sae),
    SparseCoding(SparseCoding),
    Dictionary(Dictionary),
    Embedding(Embedding),
}

/// An expression for whatever model it is.
macro_rules! with {
    ($model:expr, $m:ident => $body:expr) => {
        match $model {
            $crate::models::AnyModel::Rbm($m) => $body,
            $crate::models::AnyModel::Dbn($m) => $body,
            $crate::models::AnyModel::Dae($m) => $body,
            $crate::models::AnyModel::StackedDae($m) => $body,
            $crate::models::AnyModel::SparseAutoencoder($m) => $body,
            $crate::models::AnyModel::Sae($m) => $body,
            $crate::models::AnyModel::SparseCoding($m) => $body,
            $crate::models::AnyModel::Dictionary($m) => $body,
            $crate::models::AnyModel::Embedding($m) => $body,
        }
    };
}
pub(crate) use with;

macro_rules! from_model {
    ($($name:ident),*) => {
        $(impl From<$name> for AnyModel {
            fn from(model: $name) -> Self {
                Self::$name(model)
            }
        })*
    };
}
from_model!(Rbm, Dbn, Dae, StackedDae, SparseAutoencoder, Sae, SparseCoding, Dictionary, Embedding);

/// A way to make a model of a type.
pub trait Make {
    /// # Errors
    /// When it cannot be made.
    fn make<M: Model>(self) -> Result<M>;
}

/// The model of this type made by `by`.
pub fn make(kind: ModelType, by: impl Make) -> Result<AnyModel> {
    Ok(match kind {
        ModelType::Rbm => by.make::<Rbm>()?.into(),
        ModelType::Dbn => by.make::<Dbn>()?.into(),
        ModelType::Dae => by.make::<Dae>()?.into(),
        ModelType::StackedDae => by.make::<StackedDae>()?.into(),
        ModelType::SparseAutoencoder => by.make::<SparseAutoencoder>()?.into(),
        ModelType::Sae => by.make::<Sae>()?.into(),
        ModelType::SparseCoding => by.make::<SparseCoding>()?.into(),
        ModelType::Dictionary => by.make::<Dictionary>()?.into(),
        ModelType::Tsne => by.make::<Embedding>()?.into(),
        ModelType::LabelledDbn | ModelType::Feedforward | ModelType::Softmax => {
            candle::bail!("chandlery: there is no class for a {kind} in Python yet; use it from Rust")
        }
    })
}

/// The type of this name.
pub fn kind_of(name: &str) -> Result<ModelType> {
    ModelType::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = ModelType::ALL.map(ModelType::name).join(", ");
        candle::Error::Msg(format!("chandlery: kind must be one of {names}, got {name}"))
    })
}

fn config_of<M: Model>(json: &str) -> Result<M::Config> {
    serde_json::from_str(json).map_err(|e| candle::Error::Msg(format!("{}: {e}", M::TYPE)))
}

/// New weights.
pub struct Drawn<'a> {
    pub config: &'a str,
    pub philox: Philox,
    pub device: &'a Device,
}

impl Make for Drawn<'_> {
    fn make<M: Model>(self) -> Result<M> {
        M::init(config_of::<M>(self.config)?, self.philox, self.device)
    }
}

/// Given weights, and what was fitted of the preparation.
pub struct Given<'a> {
    pub config: &'a str,
    pub dtype: candle::DType,
    pub tensors: HashMap<String, Tensor>,
    pub device: &'a Device,
}

impl Make for Given<'_> {
    fn make<M: Model>(self) -> Result<M> {
        M::new(config_of::<M>(self.config)?, VarBuilder::from_tensors(self.tensors, self.dtype, self.device))
    }
}

/// A folder or a place on the hub.
pub struct Stored<'a> {
    pub place: &'a Path,
    pub device: &'a Device,
}

impl Make for Stored<'_> {
    fn make<M: Model>(self) -> Result<M> {
        M::from_pretrained(self.place, &LoadOptions::on(self.device))
    }
}

impl AnyModel {
    /// Features or codes of raw rows, `[batch, n_inputs]`; sparse codes as a matrix.
    pub fn encode(&self, rows: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rbm(m) => m.encode(rows),
            Self::Dbn(m) => m.encode(rows),
            Self::Dae(m) => m.encode(rows),
            Self::StackedDae(m) => m.encode(rows),
            Self::SparseAutoencoder(m) => m.encode(rows),
            Self::SparseCoding(m) => m.encode(rows),
            Self::Embedding(m) => m.encode(rows),
            Self::Sae(m) => m.encode(rows)?.to_dense(),
            Self::Dictionary(m) => m.encode(rows)?.to_dense(),
        }
    }

    /// Codes back to prepared rows.
    pub fn decode(&self, codes: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rbm(m) => m.decode(codes),
            Self::Dbn(m) => m.decode(codes),
            Self::Dae(m) => m.decode(codes),
            Self::StackedDae(m) => m.decode(codes),
            Self::SparseAutoencoder(m) => m.decode(codes),
            Self::SparseCoding(m) => m.decode(codes),
            Self::Sae(_) | Self::Dictionary(_) | Self::Embedding(_) => self.lacks("decode of a matrix"),
        }
    }

    /// What comes back of raw rows as raw rows.
    pub fn reconstruct(&self, rows: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rbm(m) => m.reconstruct(rows),
            Self::Dbn(m) => m.reconstruct(rows),
            Self::Dae(m) => m.reconstruct(rows),
            Self::StackedDae(m) => m.reconstruct(rows),
            Self::SparseAutoencoder(m) => m.reconstruct(rows),
            Self::SparseCoding(m) => m.reconstruct(rows),
            Self::Sae(m) => m.reconstruct(rows),
            Self::Dictionary(m) => m.reconstruct(rows),
            Self::Embedding(_) => self.lacks("reconstruct"),
        }
    }

    /// The refusal of what the model has not.
    pub fn lacks<T>(&self, what: &str) -> Result<T> {
        candle::bail!("chandlery: a {} has no {what}", with!(self, m => kind(m)))
    }

    /// The parameters, and what was fitted of the preparation, by their names in files.
    pub fn state(&self) -> Result<HashMap<String, Tensor>> {
        with!(self, m => {
            let fitted = m.preparation().tensors().map_err(candle::Error::wrap)?;
            Ok(m.tensors().into_iter().chain(fitted).collect())
        })
    }

    /// The content of `config.json`.
    pub fn config(&self) -> Result<String> {
        with!(self, m => serde_json::to_string(m.config()).map_err(candle::Error::wrap))
    }

    /// Values in a raw row; of a layout without rows 0.
    pub fn n_inputs(&self) -> Result<usize> {
        match self {
            Self::Embedding(m) => Ok(m.n_inputs()?.unwrap_or(0)),
            other => Ok(with!(other, m => m.config().n_inputs())),
        }
    }
}

/// The type of a model.
pub fn kind<M: Model>(_: &M) -> ModelType {
    M::TYPE
}
