//! What must hold of rows and of stored numbers.
use crate::{Error, Result};
use candle::{DType, Device, Tensor};
use std::collections::HashMap;

/// The check of rows that a step is fitted to: `name` must be `[n, n_features]` of f32, returned as
/// `(n, n_features)`.
pub(super) fn rows_of(
    at: &str,
    name: &str,
    rows: &Tensor,
    n_features: Option<usize>,
) -> Result<(usize, usize)> {
    checked_rows(at, name, rows, n_features, &[DType::F32])
}

/// The same of f32 or f64: of rows that a step is applied to, or that are summed in f64.
pub(super) fn applied_rows(
    at: &str,
    name: &str,
    rows: &Tensor,
    n_features: Option<usize>,
) -> Result<(usize, usize)> {
    checked_rows(at, name, rows, n_features, &[DType::F32, DType::F64])
}

fn checked_rows(
    at: &str,
    name: &str,
    rows: &Tensor,
    n_features: Option<usize>,
    dtypes: &[DType],
) -> Result<(usize, usize)> {
    let fits = match *rows.dims() {
        [n, f] if f > 0 && n_features.is_none_or(|want| want == f) => Some((n, f)),
        _ => None,
    };
    match fits {
        Some(dims) if dtypes.contains(&rows.dtype()) => Ok(dims),
        _ => {
            let width = n_features.map_or_else(|| "n_features".to_owned(), |f| f.to_string());
            let names = dtypes.iter().map(|dtype| dtype.as_str()).collect::<Vec<_>>().join(" or ");
            Err(Error::Argument(format!(
                "{at}: {name} must be {names} of shape [n_samples, {width}], got {:?} of shape {:?}",
                rows.dtype(),
                rows.dims()
            )))
        }
    }
}

/// The stored tensor `{prefix}.{name}`: f64, finite, of `dims` where they are given; on the CPU.
pub(super) fn stored(
    tensors: &HashMap<String, Tensor>,
    prefix: &str,
    name: &str,
    dims: &[Option<usize>],
) -> Result<Tensor> {
    let full = format!("{prefix}.{name}");
    let Some(tensor) = tensors.get(&full) else {
        return Err(Error::missing(prefix, "tensor", &full, tensors.keys()));
    };
    let fits = tensor.rank() == dims.len()
        && tensor.elem_count() > 0
        && tensor.dims().iter().zip(dims).all(|(&got, want)| want.is_none_or(|want| want == got));
    let refused = |what: String| Error::format(&full, what, "load what `tensors` gave, unchanged");
    if !fits || tensor.dtype() != DType::F64 {
        let want: Vec<_> =
            dims.iter().map(|d| d.map_or_else(|| "any".to_owned(), |d| d.to_string())).collect();
        return Err(refused(format!(
            "must be F64 of shape [{}], got {:?} of shape {:?}",
            want.join(", "),
            tensor.dtype(),
            tensor.dims()
        )));
    }
    let tensor = tensor.to_device(&Device::Cpu)?;
    match tensor.flatten_all()?.to_vec1::<f64>()?.iter().find(|v| !v.is_finite()) {
        Some(value) => Err(refused(format!("must be finite, holds {value}"))),
        None => Ok(tensor),
    }
}

/// The stored number `{prefix}.{name}`, at least 0.
pub(super) fn stored_number(tensors: &HashMap<String, Tensor>, prefix: &str, name: &str) -> Result<f64> {
    let values = stored(tensors, prefix, name, &[Some(1)])?.to_vec1::<f64>()?;
    match values.first() {
        Some(&value) if value >= 0. => Ok(value),
        _ => Err(Error::format(
            format!("{prefix}.{name}"),
            format!("must be at least 0, got {values:?}"),
            "load what `tensors` gave, unchanged",
        )),
    }
}
