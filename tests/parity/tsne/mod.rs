//! The stages of t-SNE on every device: the exact neighbours and affinities of the references,
//! forces within the method's error, and the same bits in every run.
mod affinities;
mod changes;
mod descent;
mod forces;
mod nasty;
mod neighbours;
mod order;
mod place;
mod ranks;
mod streamed;
mod two_gpus;
mod unique;
mod views;
mod weights;

use candle::{DType, Device, Result, Tensor};
use chandlery::tsne::{Method, TsneConfig};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Affinities, Metric, knn_reference, perplexity_search_reference};

const CPU: Device = Device::Cpu;

/// Rows in a few groups, some of them twice.
fn rows(n: usize, d: usize, stream: u64) -> Result<Tensor> {
    let group = (Tensor::arange(0u32, n as u32, &CPU)?.to_dtype(DType::F32)?.unsqueeze(1)? / 7.)?.floor()?;
    let rows = normal((n, d), &CPU, Philox::new(90, stream))?.broadcast_add(&(group * 0.3)?)?;
    let again = n / 5;
    Tensor::cat(&[rows.narrow(0, 0, n - again)?, rows.narrow(0, 0, again)?], 0)?.contiguous()
}

/// A layout that is `span` wide, with points that lie on each other.
fn layout(n: usize, d: usize, span: f64) -> Result<Tensor> {
    let y = rows(n, d, 5)?;
    let sides = (y.max(0)? - y.min(0)?)?.max(0)?.to_scalar::<f32>()?;
    y * (span / f64::from(sides.max(1e-3)))
}

fn graph(n: usize, d: usize, k: usize, perplexity: f64) -> Result<(Tensor, Tensor)> {
    let near = knn_reference(&rows(n, d, 1)?, k, Metric::Euclidean)?;
    let p = perplexity_search_reference(&near.distances, &[perplexity])?;
    Ok((near.indices, p))
}

fn on(affinities: &Affinities, device: &Device) -> Result<Affinities> {
    let there = |t: &Tensor| t.to_device(device);
    Ok(Affinities {
        offsets: there(&affinities.offsets)?,
        columns: there(&affinities.columns)?,
        values: there(&affinities.values)?,
    })
}

/// What an error says.
fn refused<T>(result: Result<T>) -> String {
    result.err().map_or_else(String::new, |e| e.to_string())
}

fn config(method: Method, n_dims: usize) -> TsneConfig {
    TsneConfig {
        n_dims,
        perplexity: 8.,
        method: Some(method),
        early_iterations: 60,
        iterations: 70,
        ..TsneConfig::default()
    }
}
