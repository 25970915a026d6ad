//! The Kullback-Leibler divergence of a layout.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use super::edges::{Edges, LANES};
use crate::core::check::{aligned_points, expect};
use crate::core::fused::{fma, fused};
use crate::core::math;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::real::halves;
use crate::tsne::affinities::Affinities;
use candle::{CpuStorage, DType, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "layout_divergence";
/// Rows whose terms are added in one go.
pub(super) const ROWS: usize = 256;

/// `Σ_ij p_ij ln(p_ij · total / w_ij)` over the edges, with `w_ij = (1 + |y_i − y_j|² / α)^−α`: one
/// f64. This is the true divergence where `total` is the sum of `w` over all pairs.
///
/// `layout` is f32 `[n, n_dims]` with 2 or 3 dimensions, `total` one f64. The same bits in every
/// run.
///
/// # Errors
/// When a tensor has another shape, type or device, or a step is being recorded.
pub fn layout_divergence(
    affinities: &Affinities,
    layout: &Tensor,
    total: &Tensor,
    degrees_of_freedom: f32,
) -> Result<Tensor> {
    let (n, n_dims) = super::step::graph(OP, affinities, layout)?;
    expect(OP, "total", total, &[DType::F64], &[1])?;
    let parts = new_tensor(OP, n.div_ceil(ROWS).max(1), DType::F64, layout.device())?;
    let divergence = Divergence { n, n_dims, degrees_of_freedom };
    let io = operands(OP).write("parts", &parts).read("offsets", &affinities.offsets);
    let io = io.read("columns", &affinities.columns).read("values", &affinities.values);
    io.read("layout", &aligned_points(layout)?).read("total", total).run(&divergence)?;
    parts.sum_keepdim(0)
}

/// The same by plain loops in f64.
///
/// # Errors
/// When candle cannot read the operands.
pub fn layout_divergence_reference(
    affinities: &Affinities,
    layout: &Tensor,
    total: f64,
    degrees_of_freedom: f64,
) -> Result<f64> {
    let y = layout.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let (offsets, columns) = (affinities.offsets.to_vec1::<u32>()?, affinities.columns.to_vec1::<u32>()?);
    let values = affinities.values.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let mut sum = 0.;
    for (i, a) in y.iter().enumerate() {
        for e in offsets[i] as usize..offsets[i + 1] as usize {
            let b = &y[columns[e] as usize];
            let square: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
            let w = (1. + square / degrees_of_freedom).powf(-degrees_of_freedom);
            if values[e] > 0. {
                sum += values[e] * (values[e] * total / w).ln();
            }
        }
    }
    Ok(sum)
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Divergence {
    pub n: usize,
    pub n_dims: usize,
    pub degrees_of_freedom: f32,
}

impl Kernel for Divergence {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([parts], [offsets, columns, values, layout, total]) = io.parts()?;
        let (offsets, columns) = (offsets.elements::<u32>()?, columns.elements::<u32>()?);
        let (values, layout) = (values.elements::<f32>()?, layout.elements::<f32>()?);
        let log_total = total.elements::<f64>()?[0].ln();
        parts.elements::<f64>()?.par_iter_mut().enumerate().for_each(|(part, sum)| {
            *sum = 0.;
            for i in part * ROWS..((part + 1) * ROWS).min(self.n) {
                let edges = offsets[i] as usize..offsets[i + 1] as usize;
                let (columns, values) = (&columns[edges.clone()], &values[edges]);
                let alpha = self.degrees_of_freedom;
                let [terms, weights] = match self.n_dims {
                    2 => of_point::<2>(layout.as_chunks().0, i, columns, values, alpha),
                    _ => of_point::<3>(layout.as_chunks().0, i, columns, values, alpha),
                };
                *sum += terms + weights * log_total;
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

/// `Σ p (ln p + α ln(1 + |y_i − y_j|² / α))` and `Σ p` over the edges of point `i`: logarithms in
/// f32, sums in f64.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn of_point<const D: usize>(
    points: &[[f32; D]],
    i: usize,
    columns: &[u32],
    values: &[f32],
    alpha: f32,
) -> [f64; 2] {
    const FUSED: bool = fused!();
    let (mut sums, inverse) = ([[0f64; LANES]; 2], 1. / alpha);
    for (columns, values) in columns.chunks(LANES).zip(values.chunks(LANES)) {
        let edges = Edges::new::<FUSED>(points, points[i], columns, values);
        for l in 0..LANES {
            let p = edges.values[l];
            let far = alpha * math::ln(fma::<f32, FUSED>(edges.squares[l], inverse, 1.));
            // An edge of no weight has no term; its logarithm is infinite.
            let term = if p > 0. { p * (math::ln(p) + far) } else { 0. };
            sums[0][l] += f64::from(term);
            sums[1][l] += f64::from(p);
        }
    }
    sums.map(halves)
}
