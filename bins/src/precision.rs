//! Precisions as command lines name them.
use candle::DType;
use chandlery::Precision;
use chandlery::rbm::WeightStorage;

/// The name of a precision.
///
/// # Errors
/// When there is no such precision; the message names all.
pub fn precision(name: &str) -> Result<String, String> {
    name.parse::<Precision>().map(|precision| precision.name().to_owned())
}

/// The name of a precision, or f64 for all numbers.
///
/// # Errors
/// When there is no such precision; the message names all.
pub fn precision_or_f64(name: &str) -> Result<String, String> {
    match name {
        "f64" => Ok(name.to_owned()),
        name => precision(name).map_err(|_| format!("precision must be f32, tf32, bf16 or f64, got {name}")),
    }
}

/// The type f32 or f64.
///
/// # Errors
/// When it is neither.
pub fn f32_or_f64(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f64" => Ok(DType::F64),
        name => Err(format!("precision must be f32 or f64, got {name}")),
    }
}

/// How RBMs are computed: the precision of products and what weights are while they train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RbmPrecision {
    /// Of the matrix products.
    pub products: Precision,
    /// What the weights are.
    pub weights: WeightStorage,
}

impl RbmPrecision {
    const STOCHASTIC: &str = "bf16-stochastic";

    /// The name that command lines use.
    pub fn name(self) -> &'static str {
        match self.weights {
            WeightStorage::F32 => self.products.name(),
            WeightStorage::Bf16Stochastic => Self::STOCHASTIC,
        }
    }
}

impl std::str::FromStr for RbmPrecision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == Self::STOCHASTIC {
            return Ok(Self { products: Precision::Bf16, weights: WeightStorage::Bf16Stochastic });
        }
        let products = name.parse().map_err(|_: String| {
            format!("precision must be f32, tf32, bf16 or {}, got {name}", Self::STOCHASTIC)
        })?;
        Ok(Self { products, weights: WeightStorage::F32 })
    }
}

/// The name of a precision of RBMs.
///
/// # Errors
/// When there is no such precision; the message names all.
pub fn rbm_precision(name: &str) -> Result<String, String> {
    name.parse().map(|precision: RbmPrecision| precision.name().to_owned())
}
