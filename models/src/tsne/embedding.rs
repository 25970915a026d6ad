//! A layout with what new rows need to be put into it.
use super::{Affinities, TransformConfig, TsneConfig};
use crate::model::{Encode, Model};
use crate::pretrained::ModelType;
use candle::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use chandlery_ops::Philox;

/// A fitted layout; see the [module](super).
#[derive(Debug, Clone)]
pub struct Embedding {
    pub(super) config: TsneConfig,
    pub(super) layout: Tensor,
    pub(super) rows: Option<Known>,
}

/// Names of the tensors: a layout, and the rows that it is of by the type that they have.
const LAYOUT: &str = "layout";
const ROWS: &str = "rows";
const BYTE_ROWS: &str = "byte_rows";
const PREPARED_ROWS: &str = "prepared_rows";

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
    /// A layout, f32 `[n, n_dims]`, and the raw rows that it is of, `[n, n_inputs]`, where there
    /// are any.
    ///
    /// # Errors
    /// When shapes do not fit each other or `config`.
    pub fn from_tensors(config: TsneConfig, layout: Tensor, rows: Option<Tensor>) -> Result<Self> {
        Self::of(config, layout, rows.map(Known::Raw))
    }

    /// The same with prepared rows, f32 `[n, n_features]`, in place of raw ones: of sparse rows,
    /// which are small only once they are prepared.
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

    /// The settings that it was made with. Perplexities and degrees of freedom are those that it
    /// had at its end, after the changes that it came to.
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

    /// The prepared rows that it is of, f32 `[n, n_features]`; none where it was made from
    /// affinities.
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

    /// Where new raw rows, `[m, n_inputs]`, belong in the layout, f32 `[m, n_dims]`; the points of
    /// the layout stay.
    ///
    /// Each new point stands for itself: what it gets does not depend on the others, but that an
    /// approximate search ([`TransformTrainer::new`](super::TransformTrainer::new)) may find other
    /// neighbours of it. See [`TransformConfig`] for the method.
    ///
    /// # Errors
    /// When the embedding has no rows, or the new ones do not fit them.
    pub fn transform(&self, rows: &Tensor) -> Result<Tensor> {
        self.transform_with(rows, &TransformConfig::default())
    }
}

impl Model for Embedding {
    type Config = TsneConfig;
    const TYPE: ModelType = ModelType::Tsne;

    fn dtypes(_: &TsneConfig) -> &'static [DType] {
        &[DType::F32]
    }

    /// `layout`, and what [`transform`](Self::transform) needs: raw rows as `rows` or `byte_rows`,
    /// or `prepared_rows`. The number of rows is known from the tensors alone: there are none in a
    /// new `VarMap`.
    fn build(config: TsneConfig, vb: &VarBuilder) -> Result<Self> {
        let there = |name: &str, dtype: DType| {
            vb.contains_tensor(name).then(|| vb.get_unchecked_dtype(name, dtype)).transpose()
        };
        let Some(layout) = there(LAYOUT, DType::F32)? else {
            candle::bail!("Embedding: {LAYOUT} is missing")
        };
        let raw = [there(ROWS, DType::F32)?, there(BYTE_ROWS, DType::U8)?];
        let prepared = there(PREPARED_ROWS, DType::F32)?.map(Known::Prepared);
        Self::of(config, layout, raw.into_iter().flatten().next().map(Known::Raw).or(prepared))
    }

    /// A layout is found and not drawn: this is an error.
    fn init(_: TsneConfig, _: Philox, _: &Device) -> Result<Self> {
        candle::bail!("Embedding::init: a layout is found and not drawn; take Tsne::fit")
    }

    fn config(&self) -> &TsneConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.layout
    }

    fn prepare(&self, rows: &Tensor) -> Result<Tensor> {
        self.config.read(rows)
    }

    /// Nothing of a layout is trained: this is an error.
    fn store_in(&self, _: &mut VarMap, _: &str) -> Result<Self> {
        candle::bail!("Embedding::store_in: nothing of a layout is trained; save it by save_pretrained")
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        let rows = self.rows.iter().map(|rows| match rows {
            Known::Raw(rows) if rows.dtype() == DType::U8 => (BYTE_ROWS, rows),
            Known::Raw(rows) => (ROWS, rows),
            Known::Prepared(rows) => (PREPARED_ROWS, rows),
        });
        let all = std::iter::once((LAYOUT, &self.layout)).chain(rows);
        all.map(|(name, t)| (name.to_owned(), t.clone())).collect()
    }
}

/// [`Embedding::transform`]; there is no gradient.
impl Encode for Embedding {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        self.transform_prepared(x, &TransformConfig::default())
    }

    fn encode(&self, rows: &Tensor) -> Result<Tensor> {
        self.transform(rows)
    }
}

/// Affinities by their names in files.
pub(super) fn named(affinities: &Affinities) -> [(String, Tensor); 3] {
    let Affinities { offsets, columns, values } = affinities.clone();
    [("offsets", offsets), ("columns", columns), ("values", values)]
        .map(|(name, t)| (format!("trainer.affinities.{name}"), t))
}
