//! The op in plain loops, in f64.
use super::PoolShape;
use crate::core::math::uniform_of;
use crate::core::philox::Philox;
use candle::{DType, Result, Tensor};

/// Means and samples of [`pool_units_`](super::pool_units_) in plain loops, without draws if
/// `philox` is none: means of the units, their samples, means of the pooled units, their samples.
/// New f32 tensors.
///
/// # Errors
/// When blocks do not tile the maps or shapes do not fit.
pub fn pool_units_reference(
    pre: &Tensor,
    bias: &Tensor,
    shape: PoolShape,
    philox: Option<Philox>,
) -> Result<[Tensor; 4]> {
    shape.validate("pool_units_reference")?;
    let PoolShape { width, n_maps, pool, .. } = shape;
    let device = pre.device();
    let bias = bias.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let rows = pre.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let mut results = [(); 4].map(|()| Vec::new());
    let mut element = 0;
    for row in &rows {
        let (mut mean, mut sample) = (vec![0f32; row.len()], vec![0f32; row.len()]);
        for block in 0..shape.n_pooled() {
            let (place, map) = (block / n_maps, block % n_maps);
            let (y, x) = (place / (width / pool) * pool, place % (width / pool) * pool);
            let unit = |t: usize| ((y + t / pool) * width + x + t % pool) * n_maps + map;
            let units: Vec<usize> = (0..pool * pool).map(unit).collect();
            let e: Vec<f64> = units.iter().map(|&unit| (row[unit] + bias[map]).exp()).collect();
            let sum: f64 = e.iter().sum();
            let p: Vec<f64> = e.iter().map(|e| e / (1. + sum)).collect();
            let chosen = match philox {
                Some(philox) => {
                    let u = f64::from(uniform_of(philox.bits(element)));
                    (0..p.len()).find(|&t| u < p[..=t].iter().sum())
                }
                None => {
                    let top = (0..e.len()).fold(0, |top, t| if e[t] > e[top] { t } else { top });
                    (e[top] > 1.).then_some(top)
                }
            };
            for (unit, p) in units.iter().zip(&p) {
                mean[*unit] = *p as f32;
            }
            if let Some(t) = chosen {
                sample[units[t]] = 1.;
            }
            results[2].push((sum / (1. + sum)) as f32);
            results[3].push(if chosen.is_some() { 1. } else { 0. });
            element += 1;
        }
        results[0].extend(mean);
        results[1].extend(sample);
    }
    let [mean, sample, pooled_mean, pooled_sample] = results;
    let tensor = |values: Vec<f32>, n| Tensor::from_vec(values, (rows.len(), n), device);
    Ok([
        tensor(mean, shape.n_units())?,
        tensor(sample, shape.n_units())?,
        tensor(pooled_mean, shape.n_pooled())?,
        tensor(pooled_sample, shape.n_pooled())?,
    ])
}
