//! The weight update of contrastive learning: product of both phases, velocity, decay and weights.
//!
//! ```text
//! G = hᵀ x                        both phases at once: h = [−h_neg; h_pos], x = [x_neg; x_pos]
//! V ← μ V + ε/B G − ε(λ₂ W + λ₁ sign W)
//! W ← W + V
//! ```
//!
//! Products of f32 operands go through [`gemm_`] and [`weight_step_`]. On CUDA, those of 16-bit operands are made where the
//! weights are updated, in one pass, as soon as weights and velocity do not fit the cache: at 2304×16000 that moves 590 MB
//! instead of 860.
use crate::gemm::{Factors, Precision, gemm_};
use crate::scale::scale_into_;
use crate::weight_step::{WeightStep, check_scalars, contiguous_f32, weight_step_, weight_step_reference};
use candle::{DType, Result, Tensor};

/// Weights that, with their velocity (8 bytes together), stay in the second-level cache of today's GPUs (40 to 60 MB). Up to
/// here [`contrast_step_`] gains nothing from moving them once; above, operands of 16 bits make it faster.
pub const CACHED_WEIGHTS: usize = 5 << 20;

/// `V ← μ V + ε/B hᵀ x − ε(λ₂ W + λ₁ sign W)`, `W ← W + V`, over `params = [W, V]`.
///
/// `params` is `[2, n_hidden, n_visible]` f32, `h` `[depth, n_hidden]` and `x` `[depth, n_visible]`, of one type: f32,
/// multiplied at `precision`, or bf16 or f16, multiplied as they are; rows of the negative phase carry their minus in `h`.
/// `scalars` is `[3]` f32: rate / batch, momentum, rate. `shadow`, `[n_hidden, n_visible]` bf16, receives the new weights
/// rounded. All are contiguous, on one device, and share no memory.
///
/// Cost: `2 · depth · n_hidden · n_visible` FLOP; for large weights on CUDA 16 bytes a weight with 16-bit operands,
/// 24 with f32 ones.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
pub fn contrast_step_(
    params: &Tensor,
    h: &Tensor,
    x: &Tensor,
    scalars: &Tensor,
    step: WeightStep,
    shadow: Option<&Tensor>,
    precision: Precision,
) -> Result<()> {
    const OP: &str = "contrast_step_";
    let [2, rows, cols] = *params.dims() else {
        candle::bail!("{OP}: params must have shape [2, n_hidden, n_visible], got {:?}", params.dims())
    };
    contiguous_f32(OP, "params", params)?;
    check_scalars(OP, scalars)?;
    let depth = h.dims().first().copied().unwrap_or(0);
    for (name, t, width) in [("h", h, rows), ("x", x, cols)] {
        if t.dims() != [depth, width] || t.dtype() != h.dtype() || !t.is_contiguous() {
            candle::bail!(
                "{OP}: {name} must be contiguous {:?} of shape [{depth}, {width}], got {:?} {:?}",
                h.dtype(),
                t.dtype(),
                t.dims()
            )
        }
    }
    if let Some(shadow) = shadow
        && (shadow.dims() != [rows, cols] || shadow.dtype() != DType::BF16 || !shadow.is_contiguous())
    {
        candle::bail!(
            "{OP}: shadow must be contiguous bf16 of shape [{rows}, {cols}], got {:?} {:?}",
            shadow.dtype(),
            shadow.dims()
        )
    }
    for (name, t) in [("h", Some(h)), ("x", Some(x)), ("scalars", Some(scalars)), ("shadow", shadow)] {
        if t.is_some_and(|t| !t.device().same_device(params.device())) {
            candle::bail!("{OP}: {name} must be on the device of params, {:?}", params.device().location())
        }
    }
    #[cfg(feature = "cuda")]
    if let Some(fused) = cuda::Fused::fits(params, h, x, scalars, step, shadow)? {
        return params.inplace_op3(h, x, &fused);
    }
    gemm_(&params.get(1)?, &h.t()?, x, Factors::Tensor(scalars), precision)?;
    weight_step_(params, scalars, step)?;
    match shadow {
        Some(shadow) => scale_into_(shadow, &params.get(0)?, 1.),
        None => Ok(()),
    }
}

/// [`contrast_step_`] without a shadow from candle's own ops, in full precision; the result is new.
///
/// # Errors
/// When shapes do not fit.
pub fn contrast_step_reference(
    params: &Tensor,
    h: &Tensor,
    x: &Tensor,
    scalars: &Tensor,
    step: WeightStep,
) -> Result<Tensor> {
    let [alpha, momentum, _] = scalars.to_vec1::<f32>()?[..] else {
        candle::bail!("contrast_step_reference: scalars must have 3 entries")
    };
    let product = h.to_dtype(DType::F32)?.t()?.matmul(&x.to_dtype(DType::F32)?)?;
    let velocity = ((params.get(1)? * f64::from(momentum))? + (product * f64::from(alpha))?)?;
    weight_step_reference(&Tensor::stack(&[&params.get(0)?, &velocity], 0)?, scalars, step)
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{CACHED_WEIGHTS, WeightStep};
    use crate::cuda::{Operand, function, view, view_mut};
    use candle::backend::BackendStorage;
    use candle::cuda::cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    use candle::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
    use candle::cuda::{CudaDType, CudaStorage, WrapErr};
    use candle::{CpuStorage, DType, InplaceOp3, Layout, Result, Tensor};
    use half::{bf16, f16};

    /// Of kernels/contrast_step.cu.
    const TILE: usize = 128;
    const THREADS: u32 = 256;
    const SHARED_BYTES: u32 = 2 * 4 * 32 * (128 + 8) * 2;
    /// Entries of an operand that one copy moves; lines must begin on one.
    const CHUNK: usize = 8;

    /// The update in one kernel.
    pub(super) struct Fused<'a> {
        scalars: &'a Tensor,
        shadow: Option<&'a Tensor>,
        step: WeightStep,
        rows: usize,
        cols: usize,
        depth: usize,
    }

    impl<'a> Fused<'a> {
        /// The kernel for these operands, or none where the product and the step go one after the other.
        pub(super) fn fits(
            params: &Tensor,
            h: &Tensor,
            x: &Tensor,
            scalars: &'a Tensor,
            step: WeightStep,
            shadow: Option<&'a Tensor>,
        ) -> Result<Option<Self>> {
            let (depth, rows, cols) = (h.dims()[0], h.dims()[1], x.dims()[1]);
            let aligned = |t: &Tensor| {
                let (_, layout) = t.storage_and_layout();
                (layout.start_offset() * t.dtype().size_in_bytes()).is_multiple_of(16)
            };
            let half = matches!(h.dtype(), DType::BF16 | DType::F16);
            let large = rows * cols > CACHED_WEIGHTS;
            let lines = rows.is_multiple_of(CHUNK) && cols.is_multiple_of(CHUNK);
            let counted = [rows, cols, depth].iter().all(|&n| i32::try_from(n).is_ok());
            let fits = params.device().is_cuda() && half && large && lines && counted;
            if !fits || ![params, h, x].into_iter().chain(shadow).all(aligned) {
                return Ok(None);
            }
            if !(step.l1 >= 0. && step.l2 >= 0.) {
                candle::bail!("contrast_step_: l1 and l2 must be at least 0, got {} and {}", step.l1, step.l2)
            }
            Ok(Some(Self { scalars, shadow, step, rows, cols, depth }))
        }

        fn launch<T: CudaDType>(
            &self,
            kernel: &str,
            params: (&mut CudaStorage, &Layout),
            h: (&CudaStorage, &Layout),
            x: (&CudaStorage, &Layout),
        ) -> Result<()> {
            const OP: &str = "contrast_step_";
            let device = params.0.device().clone();
            let blocks = self.rows.div_ceil(TILE) * self.cols.div_ceil(TILE);
            let function = function(&device, "contrast_step", kernel)?;
            function.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED_BYTES as i32)?;

            let mut params = view_mut::<f32>(params.0, params.1, OP)?;
            let (h, x) = (view::<T>(h.0, h.1, OP)?, view::<T>(x.0, x.1, OP)?);
            let scalars = Operand::new(self.scalars);
            let scalars = scalars.view::<f32>(OP)?;
            let shadow = self.shadow.map(Operand::new);
            let shadow = shadow.as_ref().map(|shadow| shadow.view::<bf16>(OP)).transpose()?;
            let (rows, cols, depth) = (self.rows as i32, self.cols as i32, self.depth as i32);
            let mut launch = function.builder();
            launch.arg(&mut params).arg(&h).arg(&x).arg(&scalars);
            match &shadow {
                Some(shadow) => launch.arg(shadow),
                None => launch.arg(&0u64),
            };
            launch.arg(&self.step.l1).arg(&self.step.l2).arg(&rows).arg(&cols).arg(&depth);
            let config = LaunchConfig {
                grid_dim: (crate::cuda::count(OP, blocks)?, 1, 1),
                block_dim: (THREADS, 1, 1),
                shared_mem_bytes: SHARED_BYTES,
            };
            // SAFETY: (float*, const T*, const T*, const float*, bf16* or null, float, float, int, int, int) with the shapes that
            // `contrast_step_` checked and the alignment that `fits` checked; shared memory is the kernel's `SHARED`. The
            // shadow is written through a read lock: it is on this device's stream like every other use of it, and
            // nothing on the host reads its content without waiting for that stream.
            unsafe { launch.launch(config) }.w()?;
            Ok(())
        }
    }

    impl InplaceOp3 for Fused<'_> {
        fn name(&self) -> &'static str {
            "contrast_step_"
        }

        fn cpu_fwd(
            &self,
            _: &mut CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<()> {
            candle::bail!("contrast_step_: this kernel runs on a GPU")
        }

        fn cuda_fwd(
            &self,
            params: &mut CudaStorage,
            p_l: &Layout,
            h: &CudaStorage,
            h_l: &Layout,
            x: &CudaStorage,
            x_l: &Layout,
        ) -> Result<()> {
            match h.dtype() {
                DType::BF16 => self.launch::<bf16>("contrast_step_bf16", (params, p_l), (h, h_l), (x, x_l)),
                _ => self.launch::<f16>("contrast_step_f16", (params, p_l), (h, h_l), (x, x_l)),
            }
        }
    }
}
