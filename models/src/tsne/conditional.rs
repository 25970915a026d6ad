//! Affinities of a row to its neighbours, before they are made symmetric.
//!
//! ```text
//! perplexity   p_j|i = mean over perplexities of exp(−β_i d_ij²) / Σ_l exp(−β_i d_il²)
//! uniform      p_j|i = 1 / k
//! fixed width  p_j|i = exp(−d_ij² / 2σ²) / Σ_l exp(−d_il² / 2σ²)
//! ```
use super::{Affinities, Affinity, Neighbours, TsneConfig};
use crate::{Group, Share};
use candle::{D, DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::{add, clamp, div, exp, mul, sub};
use chandlery_ops::tsne::{perplexity_search, symmetrize};

/// Entries that are in memory as f64 at one time.
const ENTRIES: usize = 1 << 20;
/// A distance in widths beyond which a weight is 0; its square fits f64.
const FAR: f64 = 1e150;

/// The symmetric affinities of neighbours whose distances are `unit` times those of the rows.
pub(super) fn affinities_of(config: &TsneConfig, neighbours: &Neighbours, unit: f64) -> Result<Affinities> {
    symmetrize(&neighbours.indices, &conditional_of(config, neighbours, unit)?)
}

/// The same before they are made symmetric: `p_j|i`, f32 `[n, k]`. Perplexities above the number of
/// neighbours count as that.
pub(super) fn conditional_of(config: &TsneConfig, neighbours: &Neighbours, unit: f64) -> Result<Tensor> {
    let (n, k) = neighbours.indices.dims2()?;
    match config.affinity {
        Affinity::Perplexity => {
            let perplexities: Vec<f64> = config.perplexities().into_iter().map(|p| p.min(k as f64)).collect();
            perplexity_search(&neighbours.distances, &perplexities)
        }
        Affinity::Uniform => Tensor::full(1. / k as f32, (n, k), neighbours.distances.device()),
        Affinity::FixedWidth(width) => fixed_width(&neighbours.distances, unit * width),
    }
}

/// The same, of which each rank of a group makes a part of the rows; all get all of it.
pub(super) fn conditional_in_group(
    group: &Group,
    config: &TsneConfig,
    neighbours: &Neighbours,
    unit: f64,
) -> Result<Tensor> {
    let (n, k) = neighbours.indices.dims2()?;
    if group.is_single() || config.affinity == Affinity::Uniform {
        return conditional_of(config, neighbours, unit);
    }
    let share = Share::new(group, n);
    let own = match share.rows().is_empty() {
        true => Tensor::zeros((0, k), DType::F32, neighbours.distances.device())?,
        false => {
            let own = |t: &Tensor| share.own(t);
            let (indices, distances) = (own(&neighbours.indices)?, own(&neighbours.distances)?);
            conditional_of(config, &Neighbours { indices, distances }, unit)?
        }
    };
    share.gathered(&own)
}

/// `exp(−d² / 2σ²)` of distances, f32 `[n, k]`, over its sum in a row. The square of the nearest is
/// subtracted first, as `(d − d₁)(d + d₁)`: its weight is 1 whatever `width` is.
fn fixed_width(distances: &Tensor, width: f64) -> Result<Tensor> {
    let (n, k) = distances.dims2()?;
    // A width that has no finite inverse is no narrower than the least difference of two distances.
    let per_width = 1. / width.max(f64::MIN_POSITIVE);
    let p = Tensor::zeros((n, k), DType::F32, distances.device())?;
    let rows = (ENTRIES / k.max(1)).max(1);
    for first in (0..n).step_by(rows) {
        let d = distances.narrow(0, first, rows.min(n - first))?.to_dtype(DType::F64)?;
        let nearest = d.min_keepdim(D::Minus1)?;
        let in_widths = |d: Tensor| clamp(&(d * per_width)?, 0., FAR);
        let squares = mul(&in_widths(sub(&d, &nearest)?)?, &in_widths(add(&d, &nearest)?)?)?;
        let weights = exp(&(squares * -0.5)?)?;
        let block = div(&weights, &weights.sum_keepdim(D::Minus1)?)?;
        p.slice_set(&block.to_dtype(DType::F32)?, 0, first)?;
    }
    Ok(p)
}

/// Refuses a graph with rows or columns out of range.
pub(super) fn check_graph(affinities: &Affinities) -> Result<()> {
    let offsets = affinities.offsets.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
    let columns = affinities.columns.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
    let n_edges = columns.len();
    let ends = offsets.first() == Some(&0) && offsets.last().is_some_and(|&end| end as usize == n_edges);
    if !ends || !offsets.is_sorted() {
        candle::bail!("offsets of its affinities must ascend from 0 to {n_edges}")
    }
    if let Some(wrong) = columns.iter().find(|&&j| j as usize + 1 >= offsets.len()) {
        candle::bail!("columns of its affinities must be below {}, got {wrong}", offsets.len() - 1)
    }
    if affinities.values.dims() != [n_edges] {
        candle::bail!(
            "values of its affinities must have shape [{n_edges}], got {:?}",
            affinities.values.dims()
        )
    }
    Ok(())
}
