//! Bias, activation and dropout of a dense layer in one pass, in place: after its product (forward)
//! and before it (backward).
//!
//! ```text
//! forward    a ← m ∘ f(a + b)                       a holds the product x Wᵀ before
//! backward   δ ← m ∘ δ ∘ f'(a/m)                    δ holds the product of the layer above, δ W
//!            δ ← (δ + s) ∘ f'(a)                    the same with a part s for each unit
//! dropout    m = 0 where u < p, else 1/(1 − p)      without dropout m = 1
//! ```
//!
//! | symbol | argument                | shape                                                |
//! |--------|-------------------------|------------------------------------------------------|
//! | `a`    | `a`, `out`, `output`    | `[rows, n_units]` f32; bf16 where it is kept for products of that |
//! | `δ`    | `delta`                 | `[rows, n_units]` f32; the same                      |
//! | `b s`  | `bias`                  | `[n_units]` f32                                      |
//! | `p`    | [`Dropout::rate`]       | in [0, 1)                                            |
//! | `u`    | [`Dropout::draws`]      | uniform; element `row · n_units + unit`              |
//!
//! The mask is never stored: both passes compute it from the same place in the random sequence. For
//! a unit that is kept, `f'` is computed from `a (1 − p)`, which equals `f(x)` to within an ulp.
//!
//! Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple way to
//! prevent neural networks from overfitting", JMLR 15, 2014; departure: units that are kept are
//! scaled up in training, so that the network needs no scaling in use (their section 10).
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::layers::{Activation, layer_backward_, layer_forward_};
//! # fn main() -> candle::Result<()> {
//! let a = Tensor::new(&[[1f32, -3.], [0., 2.]], &Cpu)?;
//! let bias = Tensor::new(&[-1f32, 1.], &Cpu)?;
//! layer_forward_(&a, Some(&bias), Activation::Relu, None)?;
//! assert_eq!(a.to_vec2::<f32>()?, [[0., 0.], [0., 3.]]);
//! let delta = Tensor::full(5f32, (2, 2), &Cpu)?;
//! layer_backward_(&delta, &a, Activation::Relu, None)?;
//! assert_eq!(delta.to_vec2::<f32>()?, [[0., 0.], [0., 5.]]);
//! # Ok(()) }
//! ```
#![expect(clippy::needless_range_loop, reason = "an element is an index into several arrays of one length")]
use crate::core::check::{self, expect};
use crate::core::draw::{Draws, Place, uniform, uniform_tile};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::{Philox, TILE};
use crate::layers::activation::{Activation, activate, through, with_activation};
use candle::{CpuStorage, DType, Result, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;
use rayon::prelude::*;

/// Elements of one task of the CPU twin, a multiple of [`TILE`]; fewer are not worth waking another
/// thread for.
const CHUNK: usize = 128 * TILE;

/// Dropout: units that are set to 0 at random, independently.
#[derive(Debug, Clone, Copy)]
pub struct Dropout<'a> {
    /// Probability that a unit is dropped, in [0, 1).
    pub rate: f32,
    /// The source of the draws; must be the same for both passes of a step. [`Draws::Mode`] is
    /// refused.
    pub draws: Draws<'a>,
}

/// `a ← m ∘ f(a + bias)`: replaces the product by the layer's output.
///
/// `a` is `[rows, n_units]`, `bias` `[n_units]`, or none for 0; both contiguous f32. With dropout
/// it uses `⌈rows · n_units / 4⌉` blocks of draws. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or the rate is not in [0, 1).
pub fn layer_forward_(
    a: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    dropout: Option<Dropout<'_>>,
) -> Result<()> {
    forward("layer_forward_", ("a", a), None, bias, activation, dropout)
}

/// `out ← m ∘ f(a + bias)`, rounded to bf16 for the products that read it, to nearest and ties to
/// even; `a` keeps the product.
///
/// `out` is bf16 of the shape of `a`; the rest is as in [`layer_forward_`].
///
/// # Errors
/// When shapes, types or devices do not fit, or the rate is not in [0, 1).
pub fn layer_forward_into_(
    out: &Tensor,
    a: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    dropout: Option<Dropout<'_>>,
) -> Result<()> {
    const OP: &str = "layer_forward_into_";
    expect(OP, "out", out, &[DType::BF16], a.dims())?;
    forward(OP, ("out", out), Some(a), bias, activation, dropout)
}

/// Reads `a`, or where there is none the values of `out`.
fn forward(
    op: &'static str,
    (name, out): (&'static str, &Tensor),
    a: Option<&Tensor>,
    bias: Option<&Tensor>,
    activation: Activation,
    dropout: Option<Dropout<'_>>,
) -> Result<()> {
    let (_, n_units) = matrix(op, "a", a.unwrap_or(out))?;
    if let Some(bias) = bias {
        expect(op, "bias", bias, &[DType::F32], &[n_units])?;
    }
    let mask = Mask::new(op, dropout, out)?;
    if out.elem_count() == 0 {
        return Ok(());
    }
    let pass = Forward { op, activation, mask, n: out.elem_count(), n_units };
    let io = operands(op).write(name, out).maybe("a", a).maybe("bias", bias);
    io.maybe("counter", mask.counter()).run(&pass)
}

/// `delta ← m ∘ delta ∘ f'`: turns the derivative with respect to the layer's output into that with
/// respect to its pre-activation.
///
/// `output` is the result of [`layer_forward_`] with the same activation and dropout. Both are
/// `[rows, n_units]`, contiguous f32. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or the rate is not in [0, 1).
pub fn layer_backward_(
    delta: &Tensor,
    output: &Tensor,
    activation: Activation,
    dropout: Option<Dropout<'_>>,
) -> Result<()> {
    const OP: &str = "layer_backward_";
    matrix(OP, "delta", delta)?;
    expect(OP, "output", output, &[DType::F32], delta.dims())?;
    backward(OP, ("delta", delta), ("output", output), None, activation, dropout)
}

/// `delta ← (delta + bias) ∘ f'`: [`layer_backward_`] without dropout where the loss depends on the
/// outputs of all rows alike as well, as a penalty on mean activations does.
///
/// `bias` is that part of the derivative with respect to the output, `[n_units]`, contiguous f32;
/// the rest is as in [`layer_backward_`].
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn layer_backward_biased_(
    delta: &Tensor,
    output: &Tensor,
    bias: &Tensor,
    activation: Activation,
) -> Result<()> {
    const OP: &str = "layer_backward_biased_";
    let (_, n_units) = matrix(OP, "delta", delta)?;
    expect(OP, "output", output, &[DType::F32], delta.dims())?;
    expect(OP, "bias", bias, &[DType::F32], &[n_units])?;
    backward(OP, ("delta", delta), ("output", output), Some(bias), activation, None)
}

/// `output ← m ∘ delta ∘ f'`: the same for outputs of [`layer_forward_into_`], whose place the
/// derivative takes, rounded to bf16; `delta` keeps the product.
///
/// `output` is bf16 of the shape of `delta`; the rest is as in [`layer_backward_`].
///
/// # Errors
/// When shapes, types or devices do not fit, or the rate is not in [0, 1).
pub fn layer_backward_into_(
    output: &Tensor,
    delta: &Tensor,
    activation: Activation,
    dropout: Option<Dropout<'_>>,
) -> Result<()> {
    const OP: &str = "layer_backward_into_";
    matrix(OP, "delta", delta)?;
    expect(OP, "output", output, &[DType::BF16], delta.dims())?;
    backward(OP, ("output", output), ("delta", delta), None, activation, dropout)
}

fn backward(
    op: &'static str,
    to: (&'static str, &Tensor),
    from: (&'static str, &Tensor),
    bias: Option<&Tensor>,
    activation: Activation,
    dropout: Option<Dropout<'_>>,
) -> Result<()> {
    let mask = Mask::new(op, dropout, to.1)?;
    let (n, n_units) = (to.1.elem_count(), to.1.dim(1)?);
    if n == 0 {
        return Ok(());
    }
    let pass = Backward { op, activation, mask, n, n_units, rounds: to.1.dtype() == DType::BF16 };
    let io = operands(op).write(to.0, to.1).read(from.0, from.1).maybe("bias", bias);
    io.maybe("counter", mask.counter()).run(&pass)
}

/// [`layer_forward_`] computed with candle's own ops; returns a new, differentiable tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn layer_forward_reference(
    a: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    dropout: Option<(f32, Philox)>,
) -> Result<Tensor> {
    let x = match bias {
        Some(bias) => a.broadcast_add(bias)?,
        None => a.clone(),
    };
    let y = activation.apply(&x)?;
    match dropout {
        Some((rate, philox)) => y * mask_reference(&x, rate, philox)?,
        None => Ok(y),
    }
}

/// [`layer_backward_`] computed with candle's own ops from the output without dropout, `f(x)`;
/// returns a new tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn layer_backward_reference(
    delta: &Tensor,
    undropped: &Tensor,
    activation: Activation,
    dropout: Option<(f32, Philox)>,
) -> Result<Tensor> {
    let delta = (delta * activation.derivative(undropped)?)?;
    match dropout {
        Some((rate, philox)) => &delta * mask_reference(&delta, rate, philox)?,
        None => Ok(delta),
    }
}

fn mask_reference(like: &Tensor, rate: f32, philox: Philox) -> Result<Tensor> {
    let kept = uniform(like.shape(), like.device(), philox)?.ge(rate)?.to_dtype(like.dtype())?;
    kept * (1. / (1. - f64::from(rate)))
}

fn matrix(op: &str, name: &str, t: &Tensor) -> Result<(usize, usize)> {
    check::matrix(op, name, "[rows, n_units]", t, &[DType::F32])
}

/// Dropout that was checked; a rate of 0 draws nothing.
#[derive(Clone, Copy)]
struct Mask<'a> {
    rate: f32,
    /// `1/(1 − rate)`
    scale: f32,
    /// `1 − rate`
    keep: f32,
    place: Option<Place<'a>>,
}

impl<'a> Mask<'a> {
    fn new(op: &'static str, dropout: Option<Dropout<'a>>, beside: &Tensor) -> Result<Self> {
        let Some(Dropout { rate, draws }) = dropout else {
            return Ok(Self { rate: 0., scale: 1., keep: 1., place: None });
        };
        if !(0. ..1.).contains(&rate) {
            candle::bail!("{op}: dropout.rate must be in [0, 1), got {rate}")
        }
        let Some(place) = draws.place(op, beside.device())? else {
            candle::bail!("{op}: dropout.draws must be At or Counter, got Mode, which draws nothing")
        };
        Ok(Self { rate, scale: 1. / (1. - rate), keep: 1. - rate, place: Some(place) })
    }

    /// The counter of the draws, where the device holds one.
    fn counter(&self) -> Option<&'a Tensor> {
        self.place.and_then(|place| place.counter)
    }

    /// Where the draws begin, as the kernels take it: any place if none is drawn.
    #[cfg(feature = "cuda")]
    fn start(&self) -> Philox {
        self.place.map_or(Philox::new(0, 0), |place| place.philox)
    }

    /// The draws, when units are left out.
    fn philox(&self) -> Option<Philox> {
        self.place.filter(|_| self.rate > 0.).map(|place| place.philox)
    }
}

struct Forward<'a> {
    op: &'static str,
    activation: Activation,
    mask: Mask<'a>,
    n: usize,
    n_units: usize,
}

struct Backward<'a> {
    op: &'static str,
    activation: Activation,
    mask: Mask<'a>,
    n: usize,
    n_units: usize,
    /// Whether the outputs are bf16, and what is written takes their place.
    rounds: bool,
}

/// Calls `part` with the place of each chunk of `to`.
fn in_chunks<T: Send>(to: &mut [T], part: impl Fn(usize, &mut [T]) + Sync) {
    if to.len() <= CHUNK {
        part(0, to);
    } else {
        to.par_chunks_mut(CHUNK).enumerate().for_each(|(i, to)| part(i * CHUNK, to));
    }
}

/// Adds the bias of each unit, if there is one, to elements `first..` of a whole.
#[inline(always)]
fn add_bias(x: &mut [f32], bias: &[f32], first: usize) {
    if bias.is_empty() {
        return;
    }
    let (mut unit, mut done) = (first % bias.len(), 0);
    while done < x.len() {
        let n = (bias.len() - unit).min(x.len() - done);
        let part = x[done..done + n].iter_mut().zip(&bias[unit..unit + n]);
        part.for_each(|(x, bias)| *x += bias);
        (unit, done) = (0, done + n);
    }
}

/// Computes elements `first..` of a whole; `first` is a multiple of [`TILE`].
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn forward_tiles<const F: u8>(
    a: &mut [f32],
    first: usize,
    bias: &[f32],
    philox: Option<Philox>,
    rate: f32,
    scale: f32,
) {
    for (i, a) in a.chunks_mut(TILE).enumerate() {
        let mut x = [0f32; TILE];
        x[..a.len()].copy_from_slice(a);
        add_bias(&mut x[..a.len()], bias, first + i * TILE);
        for e in 0..TILE {
            x[e] = activate::<F>(x[e]);
        }
        if let Some(philox) = philox {
            let u = uniform_tile(philox, first + i * TILE);
            for e in 0..TILE {
                x[e] = if u[e] < rate { 0. } else { x[e] * scale };
            }
        }
        a.copy_from_slice(&x[..a.len()]);
    }
}

/// The same for the way back.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn backward_tiles<const F: u8>(
    delta: &mut [f32],
    a: &[f32],
    first: usize,
    bias: &[f32],
    philox: Option<Philox>,
    (rate, scale, keep): (f32, f32, f32),
) {
    for (i, (delta, a)) in delta.chunks_mut(TILE).zip(a.chunks(TILE)).enumerate() {
        add_bias(delta, bias, first + i * TILE);
        let Some(philox) = philox else {
            for (delta, y) in delta.iter_mut().zip(a) {
                *delta = through::<F>(*delta, *y);
            }
            continue;
        };
        let u = uniform_tile(philox, first + i * TILE);
        for ((delta, y), u) in delta.iter_mut().zip(a).zip(u) {
            let d = if u < rate { 0. } else { *delta * scale };
            *delta = through::<F>(d, *y * keep);
        }
    }
}

impl Kernel for Forward<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [a, bias, _]) = io.parts()?;
        let bias = bias.maybe::<f32>()?.unwrap_or_default();
        let Mask { rate, scale, .. } = self.mask;
        let philox = self.mask.philox();
        let part = |first: usize, a: &mut [f32]| {
            with_activation!(self.activation, forward_tiles(a, first, bias, philox, rate, scale))
        };
        match a.maybe::<f32>()? {
            None => in_chunks(out.elements()?, part),
            Some(a) => in_chunks(out.elements::<bf16>()?, |first, out| {
                let mut wide = a[first..first + out.len()].to_vec();
                part(first, &mut wide);
                out.convert_from_f32_slice(&wide);
            }),
        }
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([out], [a, bias, counter]) = io.parts()?;
        let (a, bias, counter) = (a.maybe::<f32>()?, bias.maybe::<f32>()?, counter.maybe()?);
        let dtype = if a.is_some() { DType::BF16 } else { DType::F32 };
        for_type!(dtype, [BF16: bf16; f32], |T| {
            let mut out = out.elements::<T>()?;
            let kernel = format!("layer_forward_{}_{}", self.activation.kernel(), dtype.as_str());
            let launch = gpu.launch(self.op, "layer", &kernel)?.write(&mut out).maybe(&a).maybe(&bias);
            let launch = launch.num(self.n).num(self.n_units).num(self.mask.rate).num(self.mask.scale);
            // SAFETY: (T*, 2 × const float* or null, 2 × size_t, 2 × float, 3 × unsigned long long,
            // const long long* or null). `forward` checked that a is [_, n_units], bias [n_units]
            // and out as a; the counter is one i64, checked by `Draws::place`.
            unsafe { launch.draws(self.mask.start(), &counter).linear(self.n.div_ceil(4)).go() }
        })
    }
}

impl Kernel for Backward<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([to], [from, bias, _]) = io.parts()?;
        let from = from.elements::<f32>()?;
        let bias = bias.maybe::<f32>()?.unwrap_or_default();
        let Mask { rate, scale, keep, .. } = self.mask;
        let philox = self.mask.philox();
        let part = |first: usize, delta: &mut [f32], a: &[f32]| {
            let factors = (rate, scale, keep);
            with_activation!(self.activation, backward_tiles(delta, a, first, bias, philox, factors))
        };
        match self.rounds {
            false => in_chunks(to.elements()?, |first, delta| {
                part(first, delta, &from[first..first + delta.len()]);
            }),
            true => in_chunks(to.elements::<bf16>()?, |first, output| {
                let mut delta = from[first..first + output.len()].to_vec();
                part(first, &mut delta, &output.to_f32_vec());
                output.convert_from_f32_slice(&delta);
            }),
        }
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([to], [from, bias, counter]) = io.parts()?;
        let (from, bias, counter) = (from.elements::<f32>()?, bias.maybe::<f32>()?, counter.maybe()?);
        let dtype = if self.rounds { DType::BF16 } else { DType::F32 };
        for_type!(dtype, [BF16: bf16; f32], |T| {
            let mut to = to.elements::<T>()?;
            let kernel = format!("layer_backward_{}_{}", self.activation.kernel(), dtype.as_str());
            let launch = gpu.launch(self.op, "layer", &kernel)?.write(&mut to).read(&from).maybe(&bias);
            let launch = launch.num(self.n).num(self.n_units);
            let launch = launch.num(self.mask.rate).num(self.mask.scale).num(self.mask.keep);
            // SAFETY: (T*, const float*, const float* or null, 2 × size_t, 3 × float, 3 × unsigned
            // long long, const long long* or null). Both tensors hold n numbers and bias n_units,
            // checked by the callers of `backward`; the counter as in `Forward`.
            unsafe { launch.draws(self.mask.start(), &counter).linear(self.n.div_ceil(4)).go() }
        })
    }
}
