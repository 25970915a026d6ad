//! Optimizer steps over all parameters of a network, in one flat buffer and one launch.
//!
//! ```text
//! Adam   m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²
//!        θ ← (1 − ε λ) θ − ε m̂/(√v̂ + δ),   m̂ = m/(1 − β₁ᵗ),  v̂ = v/(1 − β₂ᵗ)
//! SGD    v ← μ v − ε (g + λ θ),   θ ← θ + v
//! ```
//!
//! | symbol      | name                    | where                                                                |
//! |-------------|-------------------------|----------------------------------------------------------------------|
//! | `θ g m v`   |                         | planes of `state`, `[4, n]` (Adam) or `[3, n]` without `m` (SGD)     |
//! | `ε μ`       | rate, momentum          | the tensor `scalars`, `[2]`                                          |
//! | `t`         |                         | one more than the tensor `steps`, one i64                            |
//! | `β₁ β₂ δ λ` | `beta1`, …, `weight_decay` | [`AdamStep`], [`SgdStep`]                                         |
//!
//! Sources: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; the decoupled
//! weight decay is that of Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR
//! 2019.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::layers::{AdamStep, adam_step_};
//! # fn main() -> candle::Result<()> {
//! // Adam's first step is as long as its rate, whatever the gradient.
//! let state = Tensor::new(&[[1f32, 1.], [0.5, -80.], [0., 0.], [0., 0.]], &Cpu)?;
//! let scalars = Tensor::new(&[0.25f32, 0.], &Cpu)?;
//! adam_step_(&state, &scalars, &Tensor::new(&[0i64], &Cpu)?, AdamStep::default(), .., 0, None)?;
//! assert_eq!(state.get(0)?.to_vec1::<f32>()?, [0.75, 1.25]);
//! # Ok(()) }
//! ```
use crate::core::adam::AdamRule;
pub use crate::core::adam::AdamStep;
use crate::core::check::{expect, expect_layout};
use crate::core::op::{In, Io, Kernel, Out, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::{Bound, Range, RangeBounds};

/// Parameters that one task of the CPU twin handles.
const CHUNK: usize = 16 * 1024;

/// The constants of [`sgd_step_`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SgdStep {
    /// L2 decay, at least 0. Default 0.
    pub weight_decay: f32,
}

/// One step of Adam over the parameters `of` of `state = [θ, g, m, v]`, `[4, n]` f32; others stay as
/// they are.
///
/// `scalars` is `[2]` f32 (rate, momentum; the momentum is not used). `steps` is one i64, the
/// number of earlier steps. The first `decayed` parameters decay, the others (biases) do not. A
/// `copy`, `[m]` bf16, receives the first `m` parameters, rounded to nearest and ties to even: what
/// products of that precision read. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or a constant is out of its range.
pub fn adam_step_(
    state: &Tensor,
    scalars: &Tensor,
    steps: &Tensor,
    step: AdamStep,
    of: impl RangeBounds<usize>,
    decayed: usize,
    copy: Option<&Tensor>,
) -> Result<()> {
    const OP: &str = "adam_step_";
    let n = check(OP, state, 4, scalars, decayed, copy)?;
    check_steps(OP, steps)?;
    let rule = step.rule(OP)?;
    let first = match of.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match of.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => n,
    };
    if first >= end || end > n {
        candle::bail!("{OP}: of must be parameters among the {n}, at least one, got {first}..{end}")
    }
    let io = operands(OP).write("state", state).maybe_write("copy", copy);
    let op = Adam { rule, n, of: first..end, decayed, copies: copy.is_some() };
    io.read("scalars", scalars).read("steps", steps).run(&op)
}

pub(crate) fn check_steps(op: &str, steps: &Tensor) -> Result<()> {
    if steps.dtype() != DType::I64 || steps.elem_count() != 1 {
        candle::bail!("{op}: steps must be one i64, got {:?} {:?}", steps.dtype(), steps.dims())
    }
    Ok(())
}

/// One step of gradient descent with momentum over `state = [θ, g, v]`, `[3, n]` f32.
///
/// `scalars` is `[2]` f32: rate, momentum. The first `decayed` parameters decay; `copy` is as in
/// [`adam_step_`]. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or the decay is negative or NaN.
pub fn sgd_step_(
    state: &Tensor,
    scalars: &Tensor,
    step: SgdStep,
    decayed: usize,
    copy: Option<&Tensor>,
) -> Result<()> {
    const OP: &str = "sgd_step_";
    let n = check(OP, state, 3, scalars, decayed, copy)?;
    if step.weight_decay.is_nan() || step.weight_decay < 0. {
        candle::bail!("{OP}: weight_decay must be at least 0, got {}", step.weight_decay)
    }
    let op = Sgd { decay: step.weight_decay, n, decayed, copies: copy.is_some() };
    operands(OP).write("state", state).maybe_write("copy", copy).read("scalars", scalars).run(&op)
}

/// [`adam_step_`] computed with candle's own ops in f64, for step `t` (1 is the first); returns a
/// new tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn adam_step_reference(
    state: &Tensor,
    rate: f64,
    t: i32,
    step: AdamStep,
    decayed: usize,
) -> Result<Tensor> {
    let wide = state.to_dtype(DType::F64)?;
    let (w, g, m, v) = (wide.get(0)?, wide.get(1)?, wide.get(2)?, wide.get(3)?);
    let AdamStep { beta1, beta2, epsilon, weight_decay } = step;
    let m = ((m * beta1)? + (&g * (1. - beta1))?)?;
    let v = ((v * beta2)? + (g.sqr()? * (1. - beta2))?)?;
    let (m_hat, v_hat) = ((&m / (1. - beta1.powi(t)))?, (&v / (1. - beta2.powi(t)))?);
    let kept = (decay_mask(&w, decayed)? * (-rate * f64::from(weight_decay)))?.affine(1., 1.)?;
    let w = ((w * kept)? - ((m_hat / (v_hat.sqrt()? + f64::from(epsilon))?)? * rate)?)?;
    Tensor::stack(&[&w, &g, &m, &v], 0)?.to_dtype(DType::F32)
}

/// [`sgd_step_`] computed with candle's own ops in f64; returns a new tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn sgd_step_reference(
    state: &Tensor,
    rate: f64,
    momentum: f64,
    step: SgdStep,
    decayed: usize,
) -> Result<Tensor> {
    let wide = state.to_dtype(DType::F64)?;
    let (w, g, v) = (wide.get(0)?, wide.get(1)?, wide.get(2)?);
    let decay = ((&w * decay_mask(&w, decayed)?)? * f64::from(step.weight_decay))?;
    let v = ((v * momentum)? - ((&g + decay)? * rate)?)?;
    Tensor::stack(&[&(w + &v)?, &g, &v], 0)?.to_dtype(DType::F32)
}

/// 1 for the first `decayed` parameters, 0 for the others.
fn decay_mask(w: &Tensor, decayed: usize) -> Result<Tensor> {
    let n = w.elem_count();
    let mask: Vec<f64> = (0..n).map(|i| if i < decayed { 1. } else { 0. }).collect();
    Tensor::from_vec(mask, n, w.device())
}

pub(crate) fn check(
    op: &str,
    state: &Tensor,
    planes: usize,
    scalars: &Tensor,
    decayed: usize,
    copy: Option<&Tensor>,
) -> Result<usize> {
    expect_layout(op, "state", state, &[DType::F32])?;
    let n = match *state.dims() {
        [got, n] if got == planes && n > 0 => n,
        ref got => candle::bail!("{op}: state must have shape [{planes}, n] with n at least 1, got {got:?}"),
    };
    if scalars.dims() != [2] {
        candle::bail!("{op}: scalars must have shape [2] (rate, momentum), got {:?}", scalars.dims())
    }
    if decayed > n {
        candle::bail!("{op}: decayed must be at most the {n} parameters, got {decayed}")
    }
    expect(op, "scalars", scalars, &[DType::F32], &[2])?;
    if let Some(copy) = copy {
        expect(op, "copy", copy, &[DType::BF16], &[copy.elem_count().min(n)])?;
    }
    Ok(n)
}

struct Adam {
    rule: AdamRule,
    n: usize,
    of: Range<usize>,
    decayed: usize,
    copies: bool,
}

struct Sgd {
    decay: f32,
    n: usize,
    decayed: usize,
    copies: bool,
}

/// The state, the copy if there is one, and what is read.
#[expect(clippy::type_complexity, reason = "operands, to be taken apart at once")]
fn parts<'a, S, const R: usize>(
    io: Io<'a, S>,
    copies: bool,
) -> Result<(Out<'a, S>, Option<Out<'a, S>>, [In<'a, S>; R])> {
    if copies {
        let ([state, copy], read) = io.parts()?;
        Ok((state, Some(copy), read))
    } else {
        let ([state], read) = io.parts()?;
        Ok((state, None, read))
    }
}

/// The parameters `of` in the planes of `state`, `[N, n]`, in the chunks that tasks take.
fn planes<const N: usize>(
    state: Out<'_, CpuStorage>,
    n: usize,
    of: Range<usize>,
) -> Result<[Vec<&mut [f32]>; N]> {
    let mut left = state.elements::<f32>()?;
    let mut out: [Vec<&mut [f32]>; N] = std::array::from_fn(|_| Vec::new());
    for plane in &mut out {
        let (first, rest) = left.split_at_mut(n);
        *plane = first[of.clone()].chunks_mut(CHUNK).collect();
        left = rest;
    }
    Ok(out)
}

/// The same chunks of the copy; none of it belongs to the last parameters.
fn copies(copy: Option<Out<'_, CpuStorage>>, of: Range<usize>) -> Result<Vec<&mut [bf16]>> {
    let copy = copy.map(|copy| copy.elements::<bf16>()).transpose()?.unwrap_or_default();
    let (first, end) = (of.start.min(copy.len()), of.end.min(copy.len()));
    let mut out: Vec<_> = copy[first..end].chunks_mut(CHUNK).collect();
    out.resize_with(of.len().div_ceil(CHUNK), Default::default);
    Ok(out)
}

/// `decay` is that of these weights.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn sgd_chunk([w, v]: [&mut [f32]; 2], g: &[f32], decay: Option<f32>, (rate, momentum): (f32, f32)) {
    for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
        let g = if let Some(decay) = decay { g + decay * *w } else { *g };
        *v = momentum * *v - rate * g;
        *w += *v;
    }
}

impl Kernel for Adam {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let (state, copy, [scalars, steps]) = parts(io, self.copies)?;
        let (rate, t) = (scalars.elements::<f32>()?[0], steps.elements::<i64>()?[0].wrapping_add(1));
        let at = self.rule.at(rate, t);
        let kept = 1. - rate * self.rule.decay;
        let of = self.of.clone();
        let [w, g, m, v] = planes::<4>(state, self.n, of.clone())?;
        let chunks = w.into_par_iter().zip(g).zip(m).zip(v).zip(copies(copy, of)?).enumerate();
        chunks.for_each(|(i, ((((w, g), m), v), copy))| {
            let decayed = self.decayed.saturating_sub(self.of.start + i * CHUNK).min(w.len());
            w[..decayed].iter_mut().for_each(|w| *w *= kept);
            at.step(w, g, m, v);
            copy.convert_from_f32_slice(&w[..copy.len()]);
        });
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        self.of.len() <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let (state, copy, [scalars, steps]) = parts(io, self.copies)?;
        let mut state = state.elements::<f32>()?;
        let mut copy = copy.map(|copy| copy.elements::<bf16>()).transpose()?;
        let copied = copy.as_ref().map_or(0, |copy| copy.len());
        let (scalars, steps) = (scalars.elements::<f32>()?, steps.elements::<i64>()?);
        let launch = gpu.launch("adam_step_", "optimizer", "adam_step_f32")?.write(&mut state);
        let launch = launch.maybe_write(&mut copy).read(&scalars).read(&steps);
        let launch = launch.num(self.rule).num(self.n).num(self.of.start).num(self.of.end);
        let launch = launch.num(self.decayed).num(copied);
        // SAFETY: (float*, bf16* or null, const float*, const long long*, AdamRule, 5 × size_t);
        // state holds 4n floats, `of` is below n, the copy holds `copied` numbers, scalars two and
        // steps one i64, checked by `adam_step_`; the kernel strides over any grid.
        unsafe { launch.linear(self.of.len()).go() }
    }
}

impl Kernel for Sgd {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let (state, copy, [scalars]) = parts(io, self.copies)?;
        let &[rate, momentum] = scalars.elements::<f32>()? else { candle::bail!("sgd_step_: scalars") };
        let [w, g, v] = planes::<3>(state, self.n, 0..self.n)?;
        let chunks = w.into_par_iter().zip(g).zip(v).zip(copies(copy, 0..self.n)?).enumerate();
        chunks.for_each(|(i, (((whole, g), v), copy))| {
            let w = &mut *whole;
            let decayed = self.decayed.saturating_sub(i * CHUNK).min(w.len());
            let ((w, w_rest), (v, v_rest)) = (w.split_at_mut(decayed), v.split_at_mut(decayed));
            let (g, g_rest) = g.split_at(decayed);
            sgd_chunk([w, v], g, Some(self.decay), (rate, momentum));
            sgd_chunk([w_rest, v_rest], g_rest, None, (rate, momentum));
            copy.convert_from_f32_slice(&whole[..copy.len()]);
        });
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        self.n <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let (state, copy, [scalars]) = parts(io, self.copies)?;
        let mut state = state.elements::<f32>()?;
        let mut copy = copy.map(|copy| copy.elements::<bf16>()).transpose()?;
        let copied = copy.as_ref().map_or(0, |copy| copy.len());
        let scalars = scalars.elements::<f32>()?;
        let launch = gpu.launch("sgd_step_", "optimizer", "sgd_step_f32")?.write(&mut state);
        let launch = launch.maybe_write(&mut copy).read(&scalars);
        let launch = launch.num(self.decay).num(self.n).num(self.decayed).num(copied);
        // SAFETY: (float*, bf16* or null, const float*, float, 3 × size_t); state holds 3n floats,
        // the copy `copied` numbers and scalars two, checked by `sgd_step_`; the kernel strides over
        // any grid.
        unsafe { launch.linear(self.n).go() }
    }
}
