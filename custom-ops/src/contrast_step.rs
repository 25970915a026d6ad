//! One update of contrastive learning: weights, velocity and biases of both sides, from the states of both phases.
//!
//! ```text
//! G = hᵀ x                        both phases at once: h = [−h_neg; h_pos], x = [x_neg; x_pos]
//! V ← μ V + ε/B G − ε(λ₂ W + λ₁ sign W),  W ← W + V
//! biases as in bias_step_
//! ```
//!
//! The CPU makes it from [`gemm_`], [`weight_step_`] and [`bias_step_`](crate::bias_step_). On CUDA, with states of 16 bits, it
//! is one kernel: the gradient is used where it is made and never stored, which at 2304×16000 moves 590 MB instead of 860, and
//! a small machine waits for one launch instead of six.
//!
//! States and the copy of the weights that products read may have two *parts*: a number is then the sum of two f16 numbers, the
//! second of which holds what the first rounded away. 22 of f32's 24 bits remain, at the speed of the tensor cores (Ootomo and
//! Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).
use crate::bias_step::{BiasStep, Sparsity, bias_step_};
use crate::gemm::{Factors, Precision, gemm_};
use crate::scalars::advance_;
use crate::scale::scale_into_;
use crate::weight_step::{WeightStep, contiguous_f32, weight_step_, weight_step_reference};
use candle::{DType, Device, Result, Tensor};

const OP: &str = "contrast_step_";

/// What [`contrast_step_`] changes. All on one device, contiguous, and sharing no memory.
#[derive(Clone, Copy)]
pub struct Contrast<'a> {
    /// `[2, n_hidden, n_visible]` f32: weights and velocity; `[1, n_hidden, n_visible]` with a `velocity` of its own.
    pub params: &'a Tensor,
    /// `[n_hidden, n_visible]` bf16, with bf16 states where [`contrast_step_fuses`]: 4 bytes a weight less to move.
    pub velocity: Option<&'a Tensor>,
    /// `[parts, n_hidden, n_visible]` of the states' type: receives `copy_scale · W`, cut into parts.
    pub copy: Option<&'a Tensor>,
    /// `[4, n_hidden]` f32, see [`bias_step_`](crate::bias_step_).
    pub hidden_state: &'a Tensor,
    /// `[4, n_visible]` f32: the third and fourth row gather the squared error.
    pub visible_state: &'a Tensor,
    /// `[1]` i64: moves on by [`ContrastStep::advance`].
    pub counter: &'a Tensor,
}

/// How [`contrast_step_`] changes it.
#[derive(Clone, Copy)]
pub struct ContrastStep<'a> {
    /// Decay of the weights.
    pub weights: WeightStep,
    /// A target for the mean activation of the hidden units.
    pub sparsity: Option<Sparsity>,
    /// Multiplies the gradient of the visible biases, `[n_visible]` f32; for f32 states.
    pub visible_scale: Option<&'a Tensor>,
    /// What the copy of the weights is multiplied by: a power of two.
    pub copy_scale: f32,
    /// Blocks of random draws that the step has used.
    pub advance: i64,
    /// Of the product of f32 states; those of 16 bits are multiplied as they are.
    pub precision: Precision,
}

/// Whether states of 16 bits make [`contrast_step_`] one kernel: on CUDA, for sizes that are multiples of four.
pub fn contrast_step_fuses(device: &Device, n_hidden: usize, n_visible: usize) -> bool {
    let counted = [n_hidden, n_visible].iter().all(|&n| i32::try_from(n).is_ok());
    device.is_cuda() && n_hidden.is_multiple_of(4) && n_visible.is_multiple_of(4) && counted
}

/// `V ← μ V + ε/B hᵀ x − ε(λ₂ W + λ₁ sign W)`, `W ← W + V`, biases alike, and the counter moves on.
///
/// `hidden` is `[parts, ≥ 2, batch, n_hidden]` and `visible` `[parts, ≥ 2, batch, n_visible]`, of one type: plane 0 the negative
/// phase, plane 1 the positive; the hidden negative plane carries its minus. They are f32 or bf16 of one part, or f16 of one or
/// two parts, which takes [`contrast_step_fuses`]. `scalars` is `[3]` f32: rate / batch, momentum, rate.
///
/// Cost: `4 · batch · n_hidden · n_visible` FLOP (three times that with two parts). One kernel moves 16 bytes a weight (12 with a
/// bf16 velocity) and 2 for each part of the copy; the ops one after the other 24.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
pub fn contrast_step_(
    to: Contrast<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: ContrastStep<'_>,
) -> Result<()> {
    let sizes = Sizes::of(to, hidden, visible, scalars)?;
    if !(step.weights.l1 >= 0. && step.weights.l2 >= 0.) {
        candle::bail!("{OP}: l1 and l2 must be at least 0, got {} and {}", step.weights.l1, step.weights.l2)
    }
    #[cfg(feature = "cuda")]
    if let Some(fused) = cuda::Fused::fits(to, hidden.dtype(), scalars, step, sizes)? {
        return to.params.inplace_op3(hidden, visible, &fused);
    }
    if sizes.parts != 1 || to.velocity.is_some() || hidden.dtype() == DType::F16 {
        candle::bail!(
            "{OP}: states of {} parts of {:?}{} must be on CUDA, with a copy of the weights, and of sizes that are multiples of 4, got {} and {} on {:?}",
            sizes.parts,
            hidden.dtype(),
            if to.velocity.is_some() { " with a velocity of their own" } else { "" },
            sizes.rows,
            sizes.cols,
            to.params.device().location()
        )
    }
    let both = |t: &Tensor| t.get(0)?.narrow(0, 0, 2);
    let (h, x) = (both(hidden)?, both(visible)?);
    let (flat_h, flat_x) = (h.flatten(0, 1)?, x.flatten(0, 1)?);
    gemm_(&to.params.get(1)?, &flat_h.t()?, &flat_x, Factors::Tensor(scalars), step.precision)?;
    weight_step_(to.params, scalars, step.weights)?;
    if let Some(copy) = to.copy {
        scale_into_(&copy.get(0)?, &to.params.get(0)?, step.copy_scale)?;
    }
    bias_step_(to.hidden_state, &h, scalars, hidden_biases(step))?;
    bias_step_(to.visible_state, &x, scalars, visible_biases(step))?;
    advance_(to.counter, step.advance)
}

fn hidden_biases(step: ContrastStep<'_>) -> BiasStep<'_> {
    BiasStep { neg_is_negated: true, sparsity: step.sparsity, gather_error: false, scale: None }
}

fn visible_biases(step: ContrastStep<'_>) -> BiasStep<'_> {
    BiasStep { neg_is_negated: false, sparsity: None, gather_error: true, scale: step.visible_scale }
}

/// Weights and velocity after [`contrast_step_`], `[2, n_hidden, n_visible]`, from candle's own ops: `params` is as long,
/// `h` `[depth, n_hidden]` and `x` `[depth, n_visible]` are both phases one below the other, in f32 or f64.
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
    let product = h.t()?.matmul(x)?.to_dtype(DType::F32)?;
    let velocity = ((params.get(1)? * f64::from(momentum))? + (product * f64::from(alpha))?)?;
    weight_step_reference(&Tensor::stack(&[&params.get(0)?, &velocity], 0)?, scalars, step)
}

/// The sizes of an update whose operands fit on each other.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    parts: usize,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the ops read it from their operands"))]
    batch: usize,
    rows: usize,
    cols: usize,
}

impl Sizes {
    fn of(to: Contrast<'_>, hidden: &Tensor, visible: &Tensor, scalars: &Tensor) -> Result<Self> {
        let planes = if to.velocity.is_some() { 1 } else { 2 };
        let (rows, cols) = match *to.params.dims() {
            [n, rows, cols] if n == planes => (rows, cols),
            _ => candle::bail!(
                "{OP}: params must have shape [{planes}, n_hidden, n_visible], got {:?}",
                to.params.dims()
            ),
        };
        contiguous_f32(OP, "params", to.params)?;
        let (parts, batch) = match *hidden.dims() {
            [parts @ (1 | 2), _, batch, _] => (parts, batch),
            _ => candle::bail!(
                "{OP}: hidden must have shape [parts, ≥ 2, batch, {rows}] with 1 or 2 parts, got {:?}",
                hidden.dims()
            ),
        };
        for (name, t, width) in [("hidden", hidden, rows), ("visible", visible, cols)] {
            let fits = matches!(*t.dims(), [p, n, b, w] if (p, b, w) == (parts, batch, width) && n >= 2)
                && t.stride()[1..] == [batch * width, width, 1]
                && t.dtype() == hidden.dtype()
                && (parts == 1 || t.dtype() == DType::F16);
            if !fits {
                candle::bail!(
                    "{OP}: {name} must be {:?} of shape [{parts}, ≥ 2, {batch}, {width}] with contiguous parts, f16 if there are two, got {:?} {:?} with strides {:?}",
                    hidden.dtype(),
                    t.dtype(),
                    t.dims(),
                    t.stride()
                )
            }
        }
        let states = hidden.dtype();
        let expect = |name: &str, t: &Tensor, shape: &[usize], dtype: DType| {
            if t.dims() != shape || t.dtype() != dtype || !t.is_contiguous() {
                candle::bail!(
                    "{OP}: {name} must be contiguous {dtype:?} of shape {shape:?}, got {:?} {:?}",
                    t.dtype(),
                    t.dims()
                )
            }
            if !t.device().same_device(to.params.device()) {
                candle::bail!(
                    "{OP}: {name} must be on the device of params, {:?}",
                    to.params.device().location()
                )
            }
            Ok(())
        };
        expect("hidden_state", to.hidden_state, &[4, rows], DType::F32)?;
        expect("visible_state", to.visible_state, &[4, cols], DType::F32)?;
        expect("counter", to.counter, &[1], DType::I64)?;
        expect("scalars", scalars, &[3], DType::F32)?;
        if let Some(velocity) = to.velocity {
            expect("velocity", velocity, &[rows, cols], DType::BF16)?;
        }
        if let Some(copy) = to.copy {
            let dtype = if states == DType::F32 { copy.dtype() } else { states };
            expect("copy", copy, &[parts, rows, cols], dtype)?;
        }
        Ok(Self { parts, batch, rows, cols })
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Contrast, ContrastStep, OP, Sizes, contrast_step_fuses, hidden_biases, visible_biases};
    use crate::bias_step::BiasRule;
    use crate::cuda::{
        Operand, PushKernelArg, PushKernelArgs, WrapErr, function, optional_view, parts_view, view_mut,
    };
    use candle::backend::BackendStorage;
    use candle::cuda::cudarc::driver::DeviceRepr;
    use candle::cuda::{CudaDType, CudaStorage};
    use candle::{CpuStorage, DType, InplaceOp3, Layout, Result, Tensor};
    use half::{bf16, f16};

    /// Of kernels/contrast_step.cu.
    const THREADS: u32 = 256;
    const UNITS: usize = 32;
    const DEPTH: usize = 32;
    /// Multiprocessors of today's large GPUs: with fewer tiles than these, smaller ones keep more of them busy.
    const MULTIPROCESSORS: usize = 132;

    /// The update in one kernel.
    pub(super) struct Fused<'a> {
        to: Contrast<'a>,
        copy: &'a Tensor,
        scalars: &'a Tensor,
        step: ContrastStep<'a>,
        sizes: Sizes,
    }

    /// `Numbers` of the kernel, in its order.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Numbers {
        h_part: u64,
        x_part: u64,
        copy_part: u64,
        by: i64,
        hidden: BiasRule,
        visible: BiasRule,
        l1: f32,
        l2: f32,
        scale: f32,
        rows: i32,
        cols: i32,
        batch: i32,
    }
    // SAFETY: four 64-bit numbers and then 32-bit ones, without padding, the same layout as the kernel's struct.
    unsafe impl DeviceRepr for Numbers {}

    /// A shape of tile that the kernel was compiled for.
    struct Shape {
        name: &'static str,
        tile: usize,
        stages: usize,
    }

    impl Shape {
        fn tiles(&self, rows: usize, cols: usize) -> usize {
            rows.div_ceil(self.tile) * cols.div_ceil(self.tile)
        }
    }

    impl<'a> Fused<'a> {
        /// The kernel for checked operands; none where the ops go one after the other.
        pub(super) fn fits(
            to: Contrast<'a>,
            states: DType,
            scalars: &'a Tensor,
            step: ContrastStep<'a>,
            sizes: Sizes,
        ) -> Result<Option<Self>> {
            let fuses = contrast_step_fuses(to.params.device(), sizes.rows, sizes.cols)
                && states != DType::F32
                && to.velocity.is_some() == (states == DType::BF16);
            match to.copy {
                Some(_) if fuses && step.visible_scale.is_some() => {
                    candle::bail!("{OP}: visible_scale is for f32 states, got {states:?}")
                }
                Some(copy) if fuses => Ok(Some(Self { to, copy, scalars, step, sizes })),
                _ => Ok(None),
            }
        }

        fn shape(&self) -> Shape {
            let Sizes { parts, rows, cols, .. } = self.sizes;
            let stages = if parts == 1 { 4 } else { 3 };
            let large = Shape { name: "large", tile: 128, stages };
            let small = Shape { name: "small", tile: 64, stages };
            match () {
                () if !(rows.is_multiple_of(8) && cols.is_multiple_of(8)) => Shape { name: "odd", ..small },
                () if large.tiles(rows, cols) >= MULTIPROCESSORS => large,
                () => small,
            }
        }

        fn launch<T: CudaDType>(
            &self,
            dtype: &str,
            params: (&mut CudaStorage, &Layout),
            h: (&CudaStorage, &Layout),
            x: (&CudaStorage, &Layout),
        ) -> Result<()> {
            let Self { to, copy, scalars, step, .. } = *self;
            let Sizes { parts, batch, rows, cols } = self.sizes;
            let device = params.0.device().clone();
            let shape = self.shape();
            let blocks = shape.tiles(rows, cols) + rows.div_ceil(UNITS) + cols.div_ceil(UNITS);
            // Slices of both operands, each line padded by eight entries.
            let shared = 2 * parts * shape.stages * DEPTH * (shape.tile + 8) * 2;
            let function =
                function(&device, "contrast_step", &format!("contrast_step_{}_{dtype}", shape.name))?;
            let config = function.launch_with_shared(OP, (blocks, 1), THREADS, shared)?;

            let (h_part, x_part) = (h.1.stride()[0] as u64, x.1.stride()[0] as u64);
            let h = parts_view::<T>(h.0, h.1, 2 * batch * rows, OP)?;
            let x = parts_view::<T>(x.0, x.1, 2 * batch * cols, OP)?;
            let mut params = view_mut::<f32>(params.0, params.1, OP)?;
            let velocity = to.velocity.map(Operand::new);
            let velocity = optional_view::<bf16>(&velocity, OP)?;
            let operands = [copy, to.hidden_state, to.visible_state, scalars, to.counter].map(Operand::new);
            let [copy, hidden_state, visible_state, scalars, counter] = &operands;
            let copy = copy.view::<T>(OP)?;
            let (hidden_state, visible_state) =
                (hidden_state.view::<f32>(OP)?, visible_state.view::<f32>(OP)?);
            let (scalars, counter) = (scalars.view::<f32>(OP)?, counter.view::<i64>(OP)?);
            let numbers = Numbers {
                h_part,
                x_part,
                copy_part: (rows * cols) as u64,
                by: step.advance,
                hidden: BiasRule::from(hidden_biases(step)),
                visible: BiasRule::from(visible_biases(step)),
                l1: step.weights.l1,
                l2: step.weights.l2,
                scale: step.copy_scale,
                rows: rows as i32,
                cols: cols as i32,
                batch: batch as i32,
            };
            let mut launch = function.builder();
            launch.arg(&mut params).arg_or_null(&velocity).arg(&h).arg(&x).arg(&copy);
            launch.arg(&hidden_state).arg(&visible_state).arg(&scalars).arg(&counter).arg(&numbers);
            // SAFETY: (float*, V* or null, 2 × const T*, T*, 2 × float*, const float*, long long*, Numbers) with the shapes that
            // `Sizes::of` checked and lines of a multiple of four 16-bit entries, eight for the kernels that copy 16 bytes;
            // candle's allocations begin on 256 bytes and planes and parts are whole lines. Shared memory is the shape's
            // `SHARED`. Velocity, copy, states and counter are written through read locks: they are on this device's
            // stream like every other use of them, and nothing on the host reads them without waiting for it.
            unsafe { launch.launch(config) }.w()?;
            Ok(())
        }
    }

    impl InplaceOp3 for Fused<'_> {
        fn name(&self) -> &'static str {
            OP
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
            candle::bail!("{OP}: this kernel runs on a GPU")
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
            match (h.dtype(), self.sizes.parts) {
                (DType::BF16, _) => self.launch::<bf16>("bf16", (params, p_l), (h, h_l), (x, x_l)),
                (_, 1) => self.launch::<f16>("f16", (params, p_l), (h, h_l), (x, x_l)),
                _ => self.launch::<f16>("f16x2", (params, p_l), (h, h_l), (x, x_l)),
            }
        }
    }
}
