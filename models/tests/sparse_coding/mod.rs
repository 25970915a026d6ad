//! Sparse coding: bases meet the conditions of the best one, training follows its equations and
//! learns, runs resume bit for bit.
#![allow(clippy::expect_used)]
mod basis;
mod learning;
mod resume;

use candle::{DType, Device, Result, Tensor};
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};

pub const CPU: Device = Device::Cpu;
/// Atoms, features, signals.
pub const SIZES: [usize; 3] = [12, 9, 400];
pub const BETA: f64 = 0.2;

/// Activations of which some three of ten are not 0, f64.
pub fn activations(m: usize, n: usize, seed: u64) -> Result<Tensor> {
    let kept = uniform((m, n), &CPU, Philox::new(seed, 1))?.lt(0.3f32)?.to_dtype(DType::F64)?;
    normal((m, n), &CPU, Philox::new(seed, 2))?.to_dtype(DType::F64)? * kept
}

pub fn random(rows: usize, columns: usize, seed: u64) -> Result<Tensor> {
    normal((rows, columns), &CPU, Philox::new(seed, 3))?.to_dtype(DType::F64)
}

pub fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    rows.broadcast_div(&rows.sqr()?.sum_keepdim(1)?.sqrt()?)
}

/// Signals that are combinations of few atoms of length 1, with some noise. f64.
pub fn signals() -> Result<Tensor> {
    let [n, p, m] = SIZES;
    activations(m, n, 5)?.matmul(&unit_rows(&random(n, p, 6)?)?)? + (random(m, p, 7)? * 0.03)?
}

/// A basis of random directions.
pub fn beginning(dtype: DType) -> Result<SparseCoding> {
    let [n, p, _] = SIZES;
    let basis = unit_rows(&random(n, p, 8)?)?.to_dtype(dtype)?;
    SparseCoding::from_tensor(SparseCodingConfig::new(n, p, BETA), basis)
}

pub fn bits(t: &Tensor) -> Result<Vec<u64>> {
    Ok(t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
}

/// The largest difference; a NaN anywhere fails.
pub fn difference(got: &Tensor, want: &Tensor) -> Result<f64> {
    let apart = (got.to_dtype(DType::F64)? - want.to_dtype(DType::F64)?)?.abs()?;
    let apart = apart.flatten_all()?.to_vec1::<f64>()?;
    assert!(apart.iter().all(|x| !x.is_nan()), "a NaN");
    Ok(apart.into_iter().fold(0., f64::max))
}

pub fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}
