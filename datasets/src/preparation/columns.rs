//! Scaling of each column by numbers of its own, and the logarithm.
//!
//! ```text
//! y = (x - c) / s          c, s of each column; y = 0 where the column is constant
//! ```
//!
//! | kind          | `c`     | `s`                                    | after it                        |
//! |---------------|---------|----------------------------------------|---------------------------------|
//! | `Standardise` | mean    | standard deviation, divisor `n`        |                                 |
//! | `MinMax`      | least   | largest - least                        | clipped to [0, 1]               |
//! | `Robust`      | median  | third quartile - first, 1 if that is 0 |                                 |
//!
//! Quartiles lie between two values in proportion (method 7 of Hyndman and Fan, "Sample quantiles
//! in statistical packages", 1996). All is computed in f64.
use super::checks::stored;
use crate::{Error, Result};
use candle::{DType, Device, Tensor};
use chandlery_ops::arrays::elementwise::{add, clamp, mul, sub};
use std::collections::HashMap;

/// What each column is scaled by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Standardise,
    MinMax,
    Robust,
}

/// Fitted scales of columns; see the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Columns {
    kind: ColumnKind,
    /// `c` and `s`, `[n_features]`, f64 on the CPU; `s` is 0 where the column is constant.
    centre: Tensor,
    spread: Tensor,
    /// `c`, and one over `s` or 0, on the device of the rows.
    applied: [Tensor; 2],
}

impl Columns {
    pub(super) fn new(kind: ColumnKind, centre: Tensor, spread: Tensor, device: &Device) -> Result<Self> {
        let inverse = |s: f64| if s > 0. { 1. / s } else { 0. };
        let scale: Vec<f64> = spread.to_vec1::<f64>()?.into_iter().map(inverse).collect();
        let scale = Tensor::from_vec(scale, spread.dims(), device)?;
        Ok(Self { kind, applied: [centre.to_device(device)?, scale], centre, spread })
    }

    pub(super) fn to_device(&self, device: &Device) -> Result<Self> {
        Self::new(self.kind, self.centre.clone(), self.spread.clone(), device)
    }

    pub(super) fn device(&self) -> &Device {
        self.applied[0].device()
    }

    pub(super) fn kind(&self) -> ColumnKind {
        self.kind
    }

    pub(super) fn n_features(&self) -> usize {
        self.centre.elem_count()
    }

    /// `y` of rows of f64.
    pub(super) fn apply(&self, x: &Tensor) -> candle::Result<Tensor> {
        let [centre, scale] = &self.applied;
        let y = mul(&sub(x, centre)?, scale)?;
        if self.kind == ColumnKind::MinMax { clamp(&y, 0., 1.) } else { Ok(y) }
    }

    /// `y` of a column's number and its `x`.
    pub(super) fn by_value(&self) -> candle::Result<impl Fn(usize, f64) -> f64> {
        let [centre, scale] = &self.applied;
        let (centre, scale) = (centre.to_vec1::<f64>()?, scale.to_vec1::<f64>()?);
        let clips = self.kind == ColumnKind::MinMax;
        Ok(move |j: usize, x: f64| {
            let y = (x - centre[j]) * scale[j];
            if clips { y.clamp(0., 1.) } else { y }
        })
    }

    /// `x` of rows of f64; a constant column is what it was.
    pub(super) fn inverse(&self, y: &Tensor) -> candle::Result<Tensor> {
        let spread = self.spread.to_device(y.device())?;
        add(&mul(y, &spread)?, &self.applied[0])
    }

    pub(super) fn tensors(&self, prefix: &str) -> HashMap<String, Tensor> {
        let named = [("centre", &self.centre), ("spread", &self.spread)];
        named.map(|(name, t)| (format!("{prefix}.{name}"), t.clone())).into()
    }

    pub(super) fn load(
        kind: ColumnKind,
        n_features: usize,
        tensors: &HashMap<String, Tensor>,
        prefix: &str,
        device: &Device,
    ) -> Result<Self> {
        let centre = stored(tensors, prefix, "centre", &[Some(n_features)])?;
        let spread = stored(tensors, prefix, "spread", &[Some(n_features)])?;
        if let Some(s) = spread.to_vec1::<f64>()?.into_iter().find(|s| *s < 0.) {
            let at = format!("{prefix}.spread");
            return Err(Error::format(
                at,
                format!("must be at least 0, holds {s}"),
                "load what `tensors` gave, unchanged",
            ));
        }
        Self::new(kind, centre, spread, device)
    }
}

/// `ln(1 + x)` of rows of f64, of which `first_row` is the first.
pub(super) fn log1p(first_row: usize, x: &Tensor) -> Result<Tensor> {
    // NaN passes: whoever reads the rows reports it.
    if x.elem_count() > 0
        && x.min_all()?.to_scalar::<f64>()? <= -1.
        && let Some((row, column, value)) = first_where(x, |x| x <= -1.)?
    {
        return Err(Error::OutOfDomain { row: first_row + row, column, value });
    }
    Ok((x + 1.)?.log()?)
}

/// Row, column and value of the first entry for which `f` holds.
pub(super) fn first_where(rows: &Tensor, f: impl Fn(f64) -> bool) -> Result<Option<(usize, usize, f64)>> {
    let width = rows.dim(1)?;
    let values = rows.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let place = values.iter().position(|&x| f(x));
    Ok(place.map(|i| (i / width, i % width, values[i])))
}
