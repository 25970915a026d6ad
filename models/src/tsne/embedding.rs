//! A layout with what new rows need to be put into it.
use super::{Affinities, TransformConfig, TsneConfig};
use candle::{Module, Result, Tensor};

/// A fitted layout; see the [module](super).
#[derive(Debug, Clone)]
pub struct Embedding {
    pub(super) config: TsneConfig,
    pub(super) layout: Tensor,
    pub(super) rows: Option<Known>,
}

/// The rows of an embedding, as they were given.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// Raw ones.
    Raw(Tensor),
    /// Those that the preparation made.
    Prepared(Tensor),
}

impl Known {
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Raw(rows) | Self::Prepared(rows) => rows,
        }
    }
}

impl Embedding {
    /// A layout, f32 `[n, n_dims]`, and the raw rows that it is of, `[n, n_inputs]`, where there are any.
    ///
    /// # Errors
    /// When shapes do not fit each other or `config`.
    pub fn from_tensors(config: TsneConfig, layout: Tensor, rows: Option<Tensor>) -> Result<Self> {
        Self::of(config, layout, rows.map(Known::Raw))
    }

    /// The same with prepared rows, f32 `[n, n_features]`, in place of raw ones: of sparse rows, which are small only once they are prepared.
    ///
    /// # Errors
    /// When shapes do not fit each other or `config`.
    pub fn from_prepared(config: TsneConfig, layout: Tensor, rows: Tensor) -> Result<Self> {
        Self::of(config, layout, Some(Known::Prepared(rows)))
    }

    pub(super) fn of(config: TsneConfig, layout: Tensor, rows: Option<Known>) -> Result<Self> {
        config.validate()?;
        let (n, n_dims) = layout.dims2()?;
        if n_dims != config.n_dims {
            candle::bail!("Embedding: layout must have {} dimensions, got {n_dims}", config.n_dims)
        }
        if let Some(rows) = rows.as_ref().map(Known::tensor).filter(|rows| rows.dims().first() != Some(&n)) {
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

    /// The raw rows that it is of; none where it was made from affinities or prepared rows.
    pub fn rows(&self) -> Option<&Tensor> {
        match &self.rows {
            Some(Known::Raw(rows)) => Some(rows),
            _ => None,
        }
    }

    /// The prepared rows that it is of, f32 `[n, n_features]`; none where it was made from affinities.
    ///
    /// # Errors
    /// When the rows do not fit the preparation.
    pub fn prepared_rows(&self) -> Result<Option<Tensor>> {
        match &self.rows {
            Some(Known::Raw(rows)) => self.prepare(rows).map(Some),
            Some(Known::Prepared(rows)) => Ok(Some(rows.clone())),
            None => Ok(None),
        }
    }

    /// Values in a raw row; none where it was made from affinities.
    ///
    /// # Errors
    /// When the rows do not fit the preparation.
    pub fn n_inputs(&self) -> Result<Option<usize>> {
        let n_inputs = |rows: &Known| match rows {
            Known::Raw(rows) => rows.dim(1),
            Known::Prepared(rows) => {
                self.config.preparation.n_inputs(rows.dim(1)?).map_err(candle::Error::wrap)
            }
        };
        self.rows.as_ref().map(n_inputs).transpose()
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
