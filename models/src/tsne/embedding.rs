//! A layout with what new rows need to be put into it.
use super::{Affinities, TransformConfig, TsneConfig};
use candle::{Module, Result, Tensor};

/// A fitted layout; see the [module](super).
#[derive(Debug, Clone)]
pub struct Embedding {
    pub(super) config: TsneConfig,
    pub(super) layout: Tensor,
    pub(super) rows: Option<Tensor>,
}

impl Embedding {
    /// A layout, f32 `[n, n_dims]`, and the raw rows that it is of, `[n, n_inputs]`, where there are any.
    ///
    /// # Errors
    /// When shapes do not fit each other or `config`.
    pub fn from_tensors(config: TsneConfig, layout: Tensor, rows: Option<Tensor>) -> Result<Self> {
        config.validate()?;
        let (n, n_dims) = layout.dims2()?;
        if n_dims != config.n_dims {
            candle::bail!("Embedding: layout must have {} dimensions, got {n_dims}", config.n_dims)
        }
        if let Some(rows) = rows.as_ref().filter(|rows| rows.dims().first() != Some(&n)) {
            candle::bail!("Embedding: rows must be as many as points, {n}, got {:?}", rows.dims())
        }
        Ok(Self { config, layout, rows })
    }

    /// The points, f32 `[n, n_dims]`.
    pub fn layout(&self) -> &Tensor {
        &self.layout
    }

    /// The settings that it was made with.
    pub fn config(&self) -> &TsneConfig {
        &self.config
    }

    /// The raw rows that it is of; none where it was made from affinities.
    pub fn rows(&self) -> Option<&Tensor> {
        self.rows.as_ref()
    }

    /// What t-SNE reads of raw rows: `[n, n_inputs]` to `[n, n_features]`.
    ///
    /// # Errors
    /// When `rows` have another shape or device than the preparation needs.
    pub fn prepare(&self, rows: &Tensor) -> Result<Tensor> {
        self.config.read(rows)
    }

    /// Where new raw rows, `[m, n_inputs]`, belong in the layout, f32 `[m, n_dims]`; the points of the layout stay.
    ///
    /// Each new point stands for itself: what it gets does not depend on the others. See [`TransformConfig`] for the method.
    ///
    /// # Errors
    /// When the embedding has no rows, or the new ones do not fit them.
    pub fn transform(&self, rows: &Tensor) -> Result<Tensor> {
        self.transform_with(rows, &TransformConfig::default())
    }
}

/// [`Embedding::transform`].
impl Module for Embedding {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.transform(rows)
    }
}

/// Affinities by their names in files.
pub(super) fn named(affinities: &Affinities) -> [(String, Tensor); 3] {
    let Affinities { offsets, columns, values } = affinities.clone();
    [("offsets", offsets), ("columns", columns), ("values", values)]
        .map(|(name, t)| (format!("trainer.affinities.{name}"), t))
}
