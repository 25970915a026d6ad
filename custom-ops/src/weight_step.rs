//! Weights follow their velocity, with decay and a bound on their norm.
//!
//! ```text
//! v ← v − ε(λ₂ w + λ₁ sign w),  w ← w + v        weight_step_
//! w_j ← w_j · min(1, limit/‖w_j‖)                max_norm_rows_, for each row
//! ```
//!
//! Hinton, "A practical guide to training restricted Boltzmann machines", 2010, sections 9 and 10. For the product that
//! the velocity takes up first, and both in one pass, see [`contrast_step_`](crate::contrast_step_).
use candle::{CpuStorage, DType, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
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
/// `params` is `[2, ..]` f32: plane 0 the weights, plane 1 the velocity, which a GEMM has just updated. `scalars` is
/// `[3]` f32 on the same device: rate / batch, momentum, rate. Without decay the velocity is not written.
///
/// Cost: 12 bytes a weight, 16 with decay.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
pub fn weight_step_(params: &Tensor, scalars: &Tensor, step: WeightStep) -> Result<()> {
    if params.rank() < 2 || params.dims()[0] != 2 {
        candle::bail!("weight_step_: params must have shape [2, ..], got {:?}", params.dims())
    }
    contiguous_f32("weight_step_", "params", params)?;
    check_scalars("weight_step_", scalars)?;
    if !(step.l1 >= 0. && step.l2 >= 0.) {
        candle::bail!("weight_step_: l1 and l2 must be at least 0, got {} and {}", step.l1, step.l2)
    }
    params.inplace_op2(scalars, &step)
}

/// [`weight_step_`] from candle's own ops; the result is new.
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

/// Scales each row of `weight` whose Euclidean norm is above `limit` back to `limit`.
///
/// `weight` is a contiguous f32 matrix; a row holds a hidden unit's incoming weights. Hinton et al., "Improving neural
/// networks by preventing co-adaptation of feature detectors", 2012.
///
/// # Errors
/// When `weight` is not a contiguous f32 matrix or `limit` is not above 0.
pub fn max_norm_rows_(weight: &Tensor, limit: f32) -> Result<()> {
    if weight.rank() != 2 {
        candle::bail!("max_norm_rows_: weight must be a matrix, got shape {:?}", weight.dims())
    }
    contiguous_f32("max_norm_rows_", "weight", weight)?;
    if limit.is_nan() || limit <= 0. {
        candle::bail!("max_norm_rows_: limit must be above 0, got {limit}")
    }
    weight.inplace_op1(&MaxNormRows { limit })
}

/// Checks that an operand is contiguous f32.
pub(crate) fn contiguous_f32(op: &str, name: &str, t: &Tensor) -> Result<()> {
    if t.dtype() != DType::F32 || !t.is_contiguous() {
        candle::bail!(
            "{op}: {name} must be contiguous f32, got {:?} with strides {:?}",
            t.dtype(),
            t.stride()
        )
    }
    Ok(())
}

/// Checks the tensor of rate / batch, momentum and rate.
pub(crate) fn check_scalars(op: &str, scalars: &Tensor) -> Result<()> {
    contiguous_f32(op, "scalars", scalars)?;
    if scalars.dims() != [3] {
        candle::bail!(
            "{op}: scalars must have shape [3] (rate / batch, momentum, rate), got {:?}",
            scalars.dims()
        )
    }
    Ok(())
}

impl InplaceOp2 for WeightStep {
    fn name(&self) -> &'static str {
        "weight_step_"
    }

    fn cpu_fwd(
        &self,
        params: &mut CpuStorage,
        p_l: &Layout,
        scalars: &CpuStorage,
        s_l: &Layout,
    ) -> Result<()> {
        let rate = scalars.as_slice::<f32>()?[s_l.start_offset() + 2];
        let CpuStorage::F32(params) = params else { candle::bail!("weight_step_: params must be f32") };
        let n = p_l.shape().elem_count() / 2;
        let (w, v) = params[p_l.start_offset()..][..2 * n].split_at_mut(n);
        let Self { l1, l2 } = *self;
        w.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK)).for_each(|(w, v)| {
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
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        params: &mut candle::CudaStorage,
        p_l: &Layout,
        scalars: &candle::CudaStorage,
        s_l: &Layout,
    ) -> Result<()> {
        use crate::cuda::{PushKernelArg, WrapErr, function, linear_launch, view, view_mut};
        use candle::backend::BackendStorage;

        let device = params.device().clone();
        let n = p_l.shape().elem_count() / 2;
        let scalars = view::<f32>(scalars, s_l, "weight_step_")?;
        let mut params = view_mut::<f32>(params, p_l, "weight_step_")?;
        let function = function(&device, "weight_step", "weight_step_f32")?;
        let mut launch = function.builder();
        launch.arg(&mut params).arg(&scalars).arg(&self.l1).arg(&self.l2).arg(&n);
        // SAFETY: (float*, const float*, float, float, size_t); params holds 2n floats and scalars three,
        // checked by `weight_step_`; the kernel strides over any grid.
        unsafe { launch.launch(linear_launch(n.div_ceil(4), 8192)) }.w()?;
        Ok(())
    }
}

struct MaxNormRows {
    limit: f32,
}

impl InplaceOp1 for MaxNormRows {
    fn name(&self) -> &'static str {
        "max_norm_rows_"
    }

    fn cpu_fwd(&self, weight: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(weight) = weight else { candle::bail!("max_norm_rows_: weight must be f32") };
        let (rows, cols) = layout.shape().dims2()?;
        let weight = &mut weight[layout.start_offset()..][..rows * cols];
        weight.par_chunks_mut(cols.max(1)).for_each(|row| {
            let norm = row.iter().map(|w| w * w).sum::<f32>().sqrt();
            if norm > self.limit {
                let factor = self.limit / norm;
                row.iter_mut().for_each(|w| *w *= factor);
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, weight: &mut candle::CudaStorage, layout: &Layout) -> Result<()> {
        use crate::cuda::{PushKernelArg, WrapErr, block_launch, count, function, view_mut};
        use candle::backend::BackendStorage;

        let device = weight.device().clone();
        let (rows, cols) = layout.shape().dims2()?;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let (rows, cols) = (count("max_norm_rows_", rows)?, count("max_norm_rows_", cols)?);
        let mut weight = view_mut::<f32>(weight, layout, "max_norm_rows_")?;
        let function = function(&device, "weight_step", "max_norm_rows_f32")?;
        let mut launch = function.builder();
        launch.arg(&mut weight).arg(&self.limit).arg(&cols);
        // SAFETY: (float*, float, unsigned); weight holds rows × cols floats and each block keeps to its row.
        unsafe { launch.launch(block_launch(rows, 256)) }.w()?;
        Ok(())
    }
}
