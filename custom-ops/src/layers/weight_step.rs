//! The update of weights by their velocity, with decay and a bound on their norm.
//!
//! ```text
//! v ← v − ε(λ₂ w + λ₁ sign w),  w ← w + v        weight_step_
//! w_j ← w_j · min(1, limit/‖w_j‖)                max_norm_rows_, for each row
//! ```
//!
//! Hinton, "A practical guide to training restricted Boltzmann machines", 2010, sections 9 and 10.
//! [`cd_update_`](crate::layers::cd_update_) also adds the gradient to the velocity, in the
//! same pass.
use crate::core::check::{expect, expect_layout};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Elements that one task of the CPU twin handles.
const CHUNK: usize = 16 * 1024;

/// Decay of the weights, applied through the velocity.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WeightStep {
    /// L1 decay, at least 0.
    pub l1: f32,
    /// L2 decay, at least 0.
    pub l2: f32,
}

/// `v ← v − ε(λ₂ w + λ₁ sign w)`, `w ← w + v`, over `params = [w, v]`.
///
/// `params` is `[2, ..]` f32: plane 0 is the weights, plane 1 the velocity, to which a GEMM has
/// already added the gradient. `scalars` is `[3]` f32 on the same device: rate / batch, momentum,
/// rate. Without decay the velocity is not written.
///
/// Cost: 12 bytes per weight, 16 with decay.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
pub fn weight_step_(params: &Tensor, scalars: &Tensor, step: WeightStep) -> Result<()> {
    if params.rank() < 2 || params.dims()[0] != 2 {
        candle::bail!("weight_step_: params must have shape [2, ..], got {:?}", params.dims())
    }
    expect_layout("weight_step_", "params", params, &[DType::F32])?;
    check_scalars("weight_step_", scalars)?;
    if !(step.l1 >= 0. && step.l2 >= 0.) {
        candle::bail!("weight_step_: l1 and l2 must be at least 0, got {} and {}", step.l1, step.l2)
    }
    operands("weight_step_").write("params", params).read("scalars", scalars).run(&step)
}

/// [`weight_step_`] computed with candle's own ops; returns a new tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn weight_step_reference(params: &Tensor, scalars: &Tensor, step: WeightStep) -> Result<Tensor> {
    let rate = scalars.to_vec1::<f32>()?[2];
    let (w, v) = (params.get(0)?, params.get(1)?);
    let decay = ((&w * f64::from(step.l2))? + (w.sign()? * f64::from(step.l1))?)?;
    let v = (v - (decay * f64::from(rate))?)?;
    Tensor::stack(&[&(w + &v)?, &v], 0)
}

/// Scales each row of `weight` whose Euclidean norm is above `limit` down to `limit`.
///
/// `weight` is a contiguous f32 matrix; a row holds a hidden unit's incoming weights. Hinton et
/// al., "Improving neural networks by preventing co-adaptation of feature detectors", 2012.
///
/// # Errors
/// When `weight` is not a contiguous f32 matrix or `limit` is not above 0.
pub fn max_norm_rows_(weight: &Tensor, limit: f32) -> Result<()> {
    if weight.rank() != 2 {
        candle::bail!("max_norm_rows_: weight must be a matrix, got shape {:?}", weight.dims())
    }
    expect_layout("max_norm_rows_", "weight", weight, &[DType::F32])?;
    if limit.is_nan() || limit <= 0. {
        candle::bail!("max_norm_rows_: limit must be above 0, got {limit}")
    }
    let (rows, cols) = weight.dims2()?;
    if rows * cols == 0 {
        return Ok(());
    }
    operands("max_norm_rows_").write("weight", weight).run(&MaxNormRows { limit, rows, cols })
}

/// Checks the tensor of rate / batch, momentum and rate.
pub(crate) fn check_scalars(op: &str, scalars: &Tensor) -> Result<()> {
    if scalars.dims() != [3] {
        candle::bail!(
            "{op}: scalars must have shape [3] (rate / batch, momentum, rate), got {:?}",
            scalars.dims()
        )
    }
    expect(op, "scalars", scalars, &[DType::F32], &[3])
}

impl WeightStep {
    /// `v ← v − ε(λ₂ w + λ₁ sign w)`, `w ← w + v` for some of the weights.
    pub(crate) fn apply(self, rate: f32, w: &mut [f32], v: &mut [f32]) {
        apply(self, rate, w, v);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn apply(WeightStep { l1, l2 }: WeightStep, rate: f32, w: &mut [f32], v: &mut [f32]) {
    if l1 != 0. || l2 != 0. {
        for (w, v) in w.iter().zip(v.iter_mut()) {
            let sign = if *w > 0. {
                1.
            } else if *w < 0. {
                -1.
            } else {
                0.
            };
            *v -= rate * (l2 * w + l1 * sign);
        }
    }
    w.iter_mut().zip(v).for_each(|(w, v)| *w += *v);
}

impl Kernel for WeightStep {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([params], [scalars]) = io.parts()?;
        let (params, rate) = (params.elements::<f32>()?, scalars.elements::<f32>()?[2]);
        let (w, v) = params.split_at_mut(params.len() / 2);
        let chunks = w.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK));
        chunks.for_each(|(w, v)| self.apply(rate, w, v));
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([params], [scalars]) = io.parts()?;
        let (mut params, scalars) = (params.elements::<f32>()?, scalars.elements::<f32>()?);
        let n = params.len() / 2;
        let launch = gpu.launch("weight_step_", "weight_step", "weight_step_f32")?;
        let launch = launch.write(&mut params).read(&scalars).num(self.l1).num(self.l2).num(n);
        // SAFETY: (float*, const float*, float, float, size_t); params holds 2n floats and scalars
        // three, checked by `weight_step_`; the kernel strides over any grid.
        unsafe { launch.linear(n.div_ceil(4)).go() }
    }
}

struct MaxNormRows {
    limit: f32,
    rows: usize,
    cols: usize,
}

impl Kernel for MaxNormRows {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([weight], []) = io.parts()?;
        weight.elements::<f32>()?.par_chunks_mut(self.cols).for_each(|row| {
            let norm = row.iter().map(|w| w * w).sum::<f32>().sqrt();
            if norm > self.limit {
                let factor = self.limit / norm;
                row.iter_mut().for_each(|w| *w *= factor);
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([weight], []) = io.parts()?;
        let mut weight = weight.elements::<f32>()?;
        let launch = gpu.launch("max_norm_rows_", "weight_step", "max_norm_rows_f32")?.write(&mut weight);
        // SAFETY: (float*, float, unsigned); weight holds rows × cols floats and each block keeps
        // to its row.
        unsafe { launch.num(self.limit).count(self.cols).blocks(self.rows, 256).go() }
    }
}
