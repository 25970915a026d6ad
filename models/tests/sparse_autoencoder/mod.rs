//! Sparse autoencoders: the cost and its gradient are right, runs resume bit for bit, and what
//! makes no sense is refused.
mod files;
mod gradient;
mod learning;
mod refused;
mod rounded;
mod sae_files;
mod sae_gradient;
mod sae_top;
mod sae_training;

use candle::{DType, Device, Result, Tensor};
use chandlery::Philox;
use chandlery::sparse_autoencoder::{Cost, CostConfig, Decoder, SparseAutoencoder, SparseAutoencoderConfig};
use chandlery_ops::core::{normal, uniform};

pub const CPU: Device = Device::Cpu;

/// Sizes around lanes and tiles, pairwise different: visible, hidden, rows.
pub const SIZES: [(usize, usize, usize); 5] =
    [(1, 2, 3), (4, 3, 5), (17, 33, 31), (64, 25, 101), (33, 70, 260)];

pub fn model(n_visible: usize, n_hidden: usize, decoder: Decoder) -> SparseAutoencoderConfig {
    SparseAutoencoderConfig { decoder, ..SparseAutoencoderConfig::new(n_visible, n_hidden) }
}

/// Rows in [0.1, 0.9].
pub fn rows(m: usize, n_visible: usize, dtype: DType) -> Result<Tensor> {
    uniform((m, n_visible), &CPU, Philox::new(5, 0))?.affine(0.8, 0.1)?.to_dtype(dtype)
}

/// Parameters, all of them far from 0.
pub fn theta(config: &SparseAutoencoderConfig, dtype: DType) -> Result<Tensor> {
    (normal(config.n_parameters(), &CPU, Philox::new(6, 0))? * 0.3)?.to_dtype(dtype)
}

pub fn cost(config: &SparseAutoencoderConfig, rows: &Tensor, chunk: Option<usize>) -> Result<Cost> {
    let settings = CostConfig { weight_decay: 0.01, sparsity_target: 0.05, ..CostConfig::default() };
    Cost::new(config.clone(), settings, rows, chunk, rows.dtype(), &CPU)
}

/// Rows in which two of eight values are high together, by turns.
pub fn pairs(m: usize) -> Result<Tensor> {
    let noise = uniform((m, 8), &CPU, Philox::new(7, 0))?.to_vec2::<f32>()?;
    let value =
        |i: usize, j: usize| 0.1 + 0.1 * noise[i][j] + if (i * 7 / 3) % 4 == j / 2 { 0.7 } else { 0. };
    let rows: Vec<f32> = (0..m * 8).map(|at| value(at / 8, at % 8)).collect();
    Tensor::from_vec(rows, (m, 8), &CPU)
}

pub fn start() -> Result<SparseAutoencoder> {
    SparseAutoencoder::init(SparseAutoencoderConfig::new(8, 6), Philox::new(8, 0), &CPU)
}

/// `‖a − b‖ / ‖a + b‖`, which is NaN where either is.
pub fn relative_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |f: fn(f64, f64) -> f64| a.iter().zip(b).map(|(&a, &b)| f(a, b).powi(2)).sum::<f64>().sqrt();
    norm(|a, b| a - b) / norm(|a, b| a + b)
}

pub fn first_line(e: candle::Error) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}
