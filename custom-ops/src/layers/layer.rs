//! Bias, activation and dropout of a dense layer in one pass, in place: after its product (forward)
//! and before it (backward).
//!
//! ```text
//! forward    a ← m ∘ f(a + b)                       a holds the product x Wᵀ before
//! backward   δ ← m ∘ δ ∘ f'(a/m)                    δ holds the product of the layer above, δ W
//! dropout    m = 0 where u < p, else 1/(1 − p)      without dropout m = 1
//! ```
//!
//! | symbol | argument                | shape                                                |
//! |--------|-------------------------|------------------------------------------------------|
//! | `a`    | `a`, `output`           | `[rows, n_units]` f32                                |
//! | `δ`    | `delta`                 | `[rows, n_units]` f32                                |
//! | `b`    | `bias`                  | `[n_units]` f32                                      |
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
    const OP: &str = "layer_forward_";
    let (_, n_units) = matrix(OP, "a", a)?;
    if let Some(bias) = bias {
        expect(OP, "bias", bias, &[DType::F32], &[n_units])?;
    }
    let mask = Mask::new(OP, dropout, a)?;
    if a.elem_count() == 0 {
        return Ok(());
    }
    let op = Forward { activation, mask, n: a.elem_count(), n_units };
    operands(OP).write("a", a).maybe("bias", bias).maybe("counter", mask.counter()).run(&op)
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
    let mask = Mask::new(OP, dropout, delta)?;
    if delta.elem_count() == 0 {
        return Ok(());
    }
    let op = Backward { activation, mask, n: delta.elem_count() };
    operands(OP).write("delta", delta).read("output", output).maybe("counter", mask.counter()).run(&op)
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
    activation: Activation,
    mask: Mask<'a>,
    n: usize,
    n_units: usize,
}

struct Backward<'a> {
    activation: Activation,
    mask: Mask<'a>,
    n: usize,
}

/// Computes elements `first..` of a whole; `first` is a multiple of [`TILE`].
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn forward_tiles<const F: u8>(
    a: &mut [f32],
    first: usize,
    bias: &[f32],
    philox: Option<Philox>,
    rate: f32,
    scale: f32,
) {
    let mut unit = if bias.is_empty() { 0 } else { first % bias.len() };
    for (i, a) in a.chunks_mut(TILE).enumerate() {
        let mut x = [0f32; TILE];
        x[..a.len()].copy_from_slice(a);
        if !bias.is_empty() {
            let mut done = 0;
            while done < a.len() {
                let n = (bias.len() - unit).min(a.len() - done);
                let part = x[done..done + n].iter_mut().zip(&bias[unit..unit + n]);
                part.for_each(|(x, bias)| *x += bias);
                done += n;
                unit = if unit + n == bias.len() { 0 } else { unit + n };
            }
        }
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
fn backward_tiles<const F: u8>(
    delta: &mut [f32],
    a: &[f32],
    first: usize,
    philox: Option<Philox>,
    (rate, scale, keep): (f32, f32, f32),
) {
    for (i, (delta, a)) in delta.chunks_mut(TILE).zip(a.chunks(TILE)).enumerate() {
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
        let ([a], [bias, _]) = io.parts()?;
        let (a, bias) = (a.elements::<f32>()?, bias.maybe::<f32>()?.unwrap_or_default());
        let Mask { rate, scale, .. } = self.mask;
        let philox = self.mask.philox();
        let part = |i: usize, a: &mut [f32]| {
            with_activation!(self.activation, forward_tiles(a, i * CHUNK, bias, philox, rate, scale))
        };
        if a.len() <= CHUNK {
            part(0, a);
        } else {
            a.par_chunks_mut(CHUNK).enumerate().for_each(|(i, a)| part(i, a));
        }
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([a], [bias, counter]) = io.parts()?;
        let (mut a, bias, counter) = (a.elements::<f32>()?, bias.maybe::<f32>()?, counter.maybe()?);
        let kernel = format!("layer_forward_{}", self.activation.kernel());
        let launch = gpu.launch("layer_forward_", "layer", &kernel)?.write(&mut a).maybe(&bias);
        let launch = launch.num(self.n).num(self.n_units).num(self.mask.rate).num(self.mask.scale);
        // SAFETY: (float*, const float* or null, 2 × size_t, 2 × float, 3 × unsigned long long,
        // const long long* or null). `layer_forward_` checked that a is [_, n_units] and bias
        // [n_units]; the counter is one i64, checked by `Draws::place`.
        unsafe { launch.draws(self.mask.start(), &counter).linear(self.n.div_ceil(4)).go() }
    }
}

impl Kernel for Backward<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([delta], [a, _]) = io.parts()?;
        let (delta, a) = (delta.elements::<f32>()?, a.elements::<f32>()?);
        let Mask { rate, scale, keep, .. } = self.mask;
        let philox = self.mask.philox();
        let part = |i: usize, delta: &mut [f32], a: &[f32]| {
            let factors = (rate, scale, keep);
            with_activation!(self.activation, backward_tiles(delta, a, i * CHUNK, philox, factors))
        };
        if self.n <= CHUNK {
            part(0, delta, a);
        } else {
            let chunks = delta.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK));
            chunks.enumerate().for_each(|(i, (delta, a))| part(i, delta, a));
        }
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([delta], [a, counter]) = io.parts()?;
        let (mut delta, a, counter) = (delta.elements::<f32>()?, a.elements::<f32>()?, counter.maybe()?);
        let kernel = format!("layer_backward_{}", self.activation.kernel());
        let launch = gpu.launch("layer_backward_", "layer", &kernel)?.write(&mut delta).read(&a).num(self.n);
        let launch = launch.num(self.mask.rate).num(self.mask.scale).num(self.mask.keep);
        // SAFETY: (float*, const float*, size_t, 3 × float, 3 × unsigned long long, const long
        // long* or null). Both tensors hold n floats, checked by `layer_backward_`; the counter as
        // in `Forward`.
        unsafe { launch.draws(self.mask.start(), &counter).linear(self.n.div_ceil(4)).go() }
    }
}
