//! Affinities of a row to its neighbours, before they are made symmetric.
//!
//! ```text
//! perplexity   p_j|i = mean over perplexities of exp(−β_i d_ij²) / Σ_l exp(−β_i d_il²)
//! uniform      p_j|i = 1 / k
//! fixed width  p_j|i = exp(−d_ij² / 2σ²) / Σ_l exp(−d_il² / 2σ²)
//! ```
use super::unique::Unique;
use super::{Affinities, Affinity, Neighbours, TsneConfig};
use crate::{Group, Share};
use candle::{D, DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::{add, clamp, div, exp, mul, sub};
use chandlery_ops::tsne::{perplexity_search, perplexity_search_of_counts, symmetrize};

/// Entries that are in memory as f64 at one time.
const ENTRIES: usize = 1 << 20;
/// A distance in widths beyond which a weight is 0; its square fits f64.
const FAR: f64 = 1e150;

/// The symmetric affinities of neighbours whose distances are `unit` times those of the rows.
pub(super) fn affinities_of(
    config: &TsneConfig,
    neighbours: &Neighbours,
    unit: f64,
    unique: Option<&Unique>,
) -> Result<Affinities> {
    let (indices, p) = conditional_in_group(&Group::single(), config, neighbours, unit, unique)?;
    symmetrize(&indices, &p)
}

/// The same before they are made symmetric: neighbours, u32 `[n, k]`, and `p_j|i`, f32 `[n, k]`.
/// Each rank of a group makes a part of the rows; all get all of it.
pub(super) fn conditional_in_group(
    group: &Group,
    config: &TsneConfig,
    neighbours: &Neighbours,
    unit: f64,
    unique: Option<&Unique>,
) -> Result<(Tensor, Tensor)> {
    let Neighbours { indices, distances } = neighbours;
    let (n, k) = indices.dims2()?;
    if let Some(unique) = unique {
        let (Neighbours { indices, distances }, counts) = unique.with_own(neighbours)?;
        let p = conditional_of(config, &distances, Some(&counts), unique.rows_of_neighbours(k), unit)?;
        return Ok((indices, unique.of_all_rows(&p)?));
    }
    let of = |distances: &Tensor| conditional_of(config, distances, None, k, unit);
    if group.is_single() || config.affinity == Affinity::Uniform {
        return Ok((indices.clone(), of(distances)?));
    }
    let share = Share::new(group, n);
    let own = match share.rows().is_empty() {
        true => Tensor::zeros((0, k), DType::F32, distances.device())?,
        false => of(&share.own(distances)?)?,
    };
    Ok((indices.clone(), share.gathered(&own)?))
}

/// `p_j|i` of distances, f32 `[n, k]`, of neighbours that stand for so many rows each, where they
/// do not stand for one. Perplexities above `most`, the number of rows that are neighbours, count
/// as that.
fn conditional_of(
    config: &TsneConfig,
    distances: &Tensor,
    counts: Option<&Tensor>,
    most: usize,
    unit: f64,
) -> Result<Tensor> {
    match (config.affinity, counts) {
        (Affinity::Perplexity, counts) => {
            let perplexities: Vec<f64> =
                config.perplexities().into_iter().map(|p| p.min(most as f64)).collect();
            match counts {
                None => perplexity_search(distances, &perplexities),
                Some(counts) => perplexity_search_of_counts(distances, counts, &perplexities),
            }
        }
        (Affinity::Uniform, None) => Tensor::full(1. / most as f32, distances.dims(), distances.device()),
        (Affinity::Uniform, Some(counts)) => {
            let counts = counts.to_dtype(DType::F64)?;
            div(&counts, &counts.sum_keepdim(D::Minus1)?)?.to_dtype(DType::F32)
        }
        (Affinity::FixedWidth(width), counts) => fixed_width(distances, counts, unit * width),
    }
}

/// `exp(−d² / 2σ²)` of distances, f32 `[n, k]`, times counts where there are any, over its sum in a
/// row. The square of the nearest is subtracted first, as `(d − d₁)(d + d₁)`: its weight is 1
/// whatever `width` is.
fn fixed_width(distances: &Tensor, counts: Option<&Tensor>, width: f64) -> Result<Tensor> {
    let (n, k) = distances.dims2()?;
    // A width that has no finite inverse is no narrower than the least difference of two distances.
    let per_width = 1. / width.max(f64::MIN_POSITIVE);
    let p = Tensor::zeros((n, k), DType::F32, distances.device())?;
    let rows = (ENTRIES / k.max(1)).max(1);
    for first in (0..n).step_by(rows) {
        let some = |t: &Tensor| t.narrow(0, first, rows.min(n - first))?.to_dtype(DType::F64);
        let d = some(distances)?;
        let nearest = d.min_keepdim(D::Minus1)?;
        let in_widths = |d: Tensor| clamp(&(d * per_width)?, 0., FAR);
        let squares = mul(&in_widths(sub(&d, &nearest)?)?, &in_widths(add(&d, &nearest)?)?)?;
        let weights = exp(&(squares * -0.5)?)?;
        let weights = match counts {
            Some(counts) => mul(&weights, &some(counts)?)?,
            None => weights,
        };
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
