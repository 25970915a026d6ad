//! Points in the order of Hilbert's curve.
//!
//! ```text
//! at_k = (y_k − low_k) / side ∈ [0, 1] to 20 (2 dimensions) or 13 bits (3);  side: the longest of the box around the points
//! order = the points by the place of their cell on the curve, the lower first within a cell
//! ```
//!
//! Points that follow each other lie near each other: whoever works on them in this order finds
//! their neighbours in the caches.
//!
//! Skilling, "Programming the Hilbert curve", 2004.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! // The curve goes around the square from one lower corner to the other.
//! let corners = Tensor::new(&[[1f32, 1.], [0., 0.], [1., 0.], [0., 1.]], &Cpu)?;
//! assert_eq!(chandlery_ops::tsne::curve_order(&corners)?.to_vec1::<u32>()?, [1, 3, 0, 2]);
//! # Ok(()) }
//! ```
#[cfg(feature = "cuda")]
mod cuda;

use crate::core::check::{aligned_points, expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "curve_order";

/// The order of `points`, contiguous f32 `[n, n_dims]` with 2 or 3 dimensions, along the curve: u32
/// `[n]`, each point once. The same on every device; coordinates that are not finite count as the
/// lowest or the highest.
///
/// Cost: `O(n)`.
///
/// # Errors
/// When `points` is not such a matrix, or a step is being recorded.
pub fn curve_order(points: &Tensor) -> Result<Tensor> {
    let (n, _) = matrix(OP, "points", "[n, n_dims]", points, &[DType::F32])?;
    let order = new_tensor(OP, n, DType::U32, points.device())?;
    curve_order_(&order, points)?;
    Ok(order)
}

/// The same into `order`, u32 `[n]`.
pub(crate) fn curve_order_(order: &Tensor, points: &Tensor) -> Result<()> {
    let (n, n_dims) = matrix(OP, "points", "[n, n_dims]", points, &[DType::F32])?;
    if n_dims != 2 && n_dims != 3 {
        candle::bail!("{OP}: points must have 2 or 3 dimensions, got {n_dims}")
    }
    expect(OP, "order", order, &[DType::U32], &[n])?;
    not_recording(OP, points.device())?;
    let (curve, points) = (Curve { n, n_dims }, &aligned_points(points)?);
    match n {
        0 => Ok(()),
        #[cfg(feature = "cuda")]
        _ if points.device().is_cuda() => curve.run(order, points),
        _ => operands(OP).write("order", order).read("points", points).run(&curve),
    }
}

/// The same level by level: each quarter (eighth) of a square (cube) is a turned copy of the whole.
///
/// # Errors
/// When candle cannot read `points`.
pub fn curve_order_reference(points: &Tensor) -> Result<Vec<u32>> {
    let all = points.to_vec2::<f32>()?;
    let n_dims = points.dim(1)?;
    let (low, scale) = frame(&all.concat(), n_dims);
    let mut keys: Vec<(Vec<usize>, u32)> = vec![];
    for (i, point) in all.iter().enumerate() {
        let cell: Vec<u32> = (0..n_dims).map(|k| cell_of(point[k], low[k], scale, bits(n_dims))).collect();
        keys.push((quarters(cell, bits(n_dims)), i as u32));
    }
    keys.sort();
    Ok(keys.into_iter().map(|(_, i)| i).collect())
}

/// Which part of each level a cell is in, the largest first, in the order of the curve.
fn quarters(mut cell: Vec<u32>, bits: u32) -> Vec<usize> {
    let n_dims = cell.len();
    let (mut parts, mut sum) = (vec![], false);
    for level in (0..bits).rev() {
        let high: Vec<bool> = cell.iter().map(|x| x >> level & 1 == 1).collect();
        // Parts follow each other as numbers in Gray's code do: each bit is the sum of all before
        // it.
        let part = high.iter().fold(0, |part, &bit| {
            sum ^= bit;
            part << 1 | usize::from(sum)
        });
        parts.push(part);
        // Within a part, axes are mirrored and exchanged so that the curve begins where that of the
        // part before has ended.
        let below = (1 << level) - 1;
        for k in 0..n_dims {
            if high[k] {
                cell[0] ^= below;
            } else {
                let swapped = (cell[0] ^ cell[k]) & below;
                cell[0] ^= swapped;
                cell[k] ^= swapped;
            }
        }
    }
    parts
}

/// Bits of a coordinate of a cell.
const fn bits(n_dims: usize) -> u32 {
    if n_dims == 2 { 20 } else { 13 }
}

/// The low corner of the box around points and 1 over its longest side; 0 where there is none.
fn frame(points: &[f32], n_dims: usize) -> ([f32; 3], f32) {
    let (mut low, mut high) = ([f32::INFINITY; 3], [f32::NEG_INFINITY; 3]);
    for point in points.chunks_exact(n_dims) {
        for k in 0..n_dims {
            low[k] = low[k].min(point[k]);
            high[k] = high[k].max(point[k]);
        }
    }
    let side = (0..n_dims).map(|k| high[k] - low[k]).fold(0f32, f32::max);
    (low, if side > 0. && side.is_finite() { 1. / side } else { 0. })
}

fn cell_of(x: f32, low: f32, scale: f32, bits: u32) -> u32 {
    // What is not a number becomes cell 0.
    (((x - low) * scale).clamp(0., 1.) * ((1u32 << bits) - 1) as f32) as u32
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
struct Curve {
    n: usize,
    n_dims: usize,
}

impl Kernel for Curve {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([order], [points]) = io.parts()?;
        let (order, points) = (order.elements::<u32>()?, points.elements::<f32>()?);
        match self.n_dims {
            2 => sort::<2>(order, points),
            _ => sort::<3>(order, points),
        }
        Ok(())
    }
}

fn sort<const D: usize>(order: &mut [u32], points: &[f32]) {
    order.copy_from_slice(&order_of(points.as_chunks::<D>().0));
}

/// The order of points on the host.
pub(crate) fn order_of<const D: usize>(points: &[[f32; D]]) -> Vec<u32> {
    let (low, scale) = frame(points.as_flattened(), D);
    let each = points.par_iter().enumerate();
    let mut keys: Vec<(u64, u32)> = each
        .map(|(i, point)| {
            let cell: [u32; D] = std::array::from_fn(|k| cell_of(point[k], low[k], scale, bits(D)));
            (place_on_curve(cell), i as u32)
        })
        .collect();
    keys.par_sort_unstable();
    keys.into_iter().map(|(_, i)| i).collect()
}

/// The place of a cell on the curve.
fn place_on_curve<const D: usize>(mut x: [u32; D]) -> u64 {
    let bits = bits(D);
    for level in (1..bits).rev() {
        let below = (1 << level) - 1;
        for k in 0..D {
            if x[k] >> level & 1 == 1 {
                x[0] ^= below;
            } else {
                let swapped = (x[0] ^ x[k]) & below;
                x[0] ^= swapped;
                x[k] ^= swapped;
            }
        }
    }
    for k in 1..D {
        x[k] ^= x[k - 1];
    }
    let turned =
        (1..bits).filter(|level| x[D - 1] >> level & 1 == 1).fold(0, |turned, l| turned ^ ((1 << l) - 1));
    let mut key = 0;
    for level in (0..bits).rev() {
        for axis in x {
            key = key << 1 | u64::from((axis ^ turned) >> level & 1);
        }
    }
    key
}
