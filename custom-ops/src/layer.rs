//! What follows and precedes the products of a dense layer: bias, activation and dropout in one pass, in place.
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
//! The mask is never stored: both passes make it from the same place in the random sequence. Where a unit is kept, `f'` is
//! found from `a (1 − p)`, which is `f(x)` again to an ulp.
//!
//! Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple way to prevent neural
//! networks from overfitting", JMLR 15, 2014; departure: units that stay are scaled up in training, so that a
//! network in use is the network as it stands (their section 10).
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::{Activation, layer_backward_, layer_forward_};
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
use crate::activation::{Activation, activate, through, with_activation};
use crate::draw::{Draws, Place, same_device, uniform, uniform_tile};
use crate::host;
use crate::philox::{Philox, TILE};
use crate::weight_step::contiguous_f32;
use candle::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Elements of one task of the CPU twin, a multiple of [`TILE`]; fewer are not worth waking another thread for.
const CHUNK: usize = 128 * TILE;

/// Units that are left out at random, each by itself.
#[derive(Debug, Clone, Copy)]
pub struct Dropout<'a> {
    /// Share of the units that are left out, in [0, 1).
    pub rate: f32,
    /// Where the draws come from; the same for both passes of a step. [`Draws::Mode`] is refused.
    pub draws: Draws<'a>,
}

/// `a ← m ∘ f(a + bias)`: the layer's output in place of its product.
///
/// `a` is `[rows, n_units]`, `bias` `[n_units]` or none for 0; contiguous f32. Uses `⌈rows · n_units / 4⌉` blocks of
/// draws where there is dropout. The result is the same bits on CPU and CUDA.
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
        contiguous_f32(OP, "bias", bias)?;
        if bias.dims() != [n_units] {
            candle::bail!("{OP}: bias must have shape [{n_units}], got {:?}", bias.dims())
        }
        same_device(OP, "bias", bias, a.device())?;
    }
    let mask = Mask::new(OP, dropout, a)?;
    if a.elem_count() == 0 {
        return Ok(());
    }
    a.inplace_op1(&Forward { activation, bias, mask, n_units })
}

/// `delta ← m ∘ delta ∘ f'`: from the derivative by the layer's output to that by its pre-activation.
///
/// `output` is what [`layer_forward_`] left, with the same activation and dropout. Both are `[rows, n_units]`, contiguous
/// f32. The result is the same bits on CPU and CUDA.
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
    contiguous_f32(OP, "output", output)?;
    if output.dims() != delta.dims() {
        candle::bail!("{OP}: output must have the shape of delta {:?}, got {:?}", delta.dims(), output.dims())
    }
    same_device(OP, "output", output, delta.device())?;
    let mask = Mask::new(OP, dropout, delta)?;
    if delta.elem_count() == 0 {
        return Ok(());
    }
    delta.inplace_op2(output, &Backward { activation, mask })
}

/// [`layer_forward_`] from candle's own ops; the result is new and differentiable.
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

/// [`layer_backward_`] from candle's own ops, for the output without dropout, `f(x)`; the result is new.
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
    contiguous_f32(op, name, t)?;
    match *t.dims() {
        [rows, n_units] => Ok((rows, n_units)),
        ref got => candle::bail!("{op}: {name} must be [rows, n_units], got shape {got:?}"),
    }
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

    /// The draws, when units are left out.
    fn philox(&self) -> Option<Philox> {
        self.place.filter(|_| self.rate > 0.).map(|place| place.philox)
    }
}

struct Forward<'a> {
    activation: Activation,
    bias: Option<&'a Tensor>,
    mask: Mask<'a>,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU reads it from the bias"))]
    n_units: usize,
}

struct Backward<'a> {
    activation: Activation,
    mask: Mask<'a>,
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

impl InplaceOp1 for Forward<'_> {
    fn name(&self) -> &'static str {
        "layer_forward_"
    }

    fn cpu_fwd(&self, a: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(a) = a else { candle::bail!("layer_forward_: a must be f32") };
        let a = &mut a[layout.start_offset()..][..layout.shape().elem_count()];
        let bias = self.bias.map(host::Operand::new);
        let bias = bias.as_ref().map_or(Ok(&[][..]), |bias| bias.elements("layer_forward_"))?;
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &mut candle::CudaStorage, layout: &Layout) -> Result<()> {
        use crate::cuda::{
            Operand, PushKernelArg, PushKernelArgs, WrapErr, function, linear_launch, optional_view, view_mut,
        };
        use candle::backend::BackendStorage;

        const OP: &str = "layer_forward_";
        let device = a.device().clone();
        let n = layout.shape().elem_count();
        let mut a = view_mut::<f32>(a, layout, OP)?;
        let bias = self.bias.map(Operand::new);
        let bias = optional_view::<f32>(&bias, OP)?;
        let (_, philox, counter) = Place::arguments(self.mask.place);
        let counter = optional_view(&counter, OP)?;
        let kernel = format!("layer_forward_{}", self.activation.kernel());
        let function = function(&device, "layer", &kernel)?;
        let mut launch = function.builder();
        launch.arg(&mut a).arg_or_null(&bias).arg(&n).arg(&self.n_units);
        launch.arg(&self.mask.rate).arg(&self.mask.scale).draws(&philox, &counter);
        // SAFETY: (float*, const float* or null, 2 × size_t, 2 × float, 3 × unsigned long long, const long long* or
        // null), in this order. `layer_forward_` checked that a is [_, n_units] and bias [n_units]; neither the bias nor
        // the counter shares a's storage, whose lock is held; the counter is one i64, checked by `Draws::place`.
        unsafe { launch.launch(linear_launch(n.div_ceil(4), 4096)) }.w()?;
        Ok(())
    }
}

impl InplaceOp2 for Backward<'_> {
    fn name(&self) -> &'static str {
        "layer_backward_"
    }

    fn cpu_fwd(&self, delta: &mut CpuStorage, d_l: &Layout, a: &CpuStorage, a_l: &Layout) -> Result<()> {
        let n = d_l.shape().elem_count();
        let CpuStorage::F32(delta) = delta else { candle::bail!("layer_backward_: delta must be f32") };
        let delta = &mut delta[d_l.start_offset()..][..n];
        let a = host::elements(a, a_l)?;
        let Mask { rate, scale, keep, .. } = self.mask;
        let philox = self.mask.philox();
        let part = |i: usize, delta: &mut [f32], a: &[f32]| {
            let factors = (rate, scale, keep);
            with_activation!(self.activation, backward_tiles(delta, a, i * CHUNK, philox, factors))
        };
        if n <= CHUNK {
            part(0, delta, a);
        } else {
            let chunks = delta.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK));
            chunks.enumerate().for_each(|(i, (delta, a))| part(i, delta, a));
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        delta: &mut candle::CudaStorage,
        d_l: &Layout,
        a: &candle::CudaStorage,
        a_l: &Layout,
    ) -> Result<()> {
        use crate::cuda::{
            PushKernelArg, PushKernelArgs, WrapErr, function, linear_launch, optional_view, view, view_mut,
        };
        use candle::backend::BackendStorage;

        const OP: &str = "layer_backward_";
        let device = delta.device().clone();
        let n = d_l.shape().elem_count();
        let mut delta = view_mut::<f32>(delta, d_l, OP)?;
        let a = view::<f32>(a, a_l, OP)?;
        let (_, philox, counter) = Place::arguments(self.mask.place);
        let counter = optional_view(&counter, OP)?;
        let kernel = format!("layer_backward_{}", self.activation.kernel());
        let function = function(&device, "layer", &kernel)?;
        let mut launch = function.builder();
        launch.arg(&mut delta).arg(&a).arg(&n).arg(&self.mask.rate);
        launch.arg(&self.mask.scale).arg(&self.mask.keep).draws(&philox, &counter);
        // SAFETY: (float*, const float*, size_t, 3 × float, 3 × unsigned long long, const long long* or null), in this
        // order. Both tensors hold n floats, checked by `layer_backward_`; candle refuses a shared storage.
        unsafe { launch.launch(linear_launch(n.div_ceil(4), 4096)) }.w()?;
        Ok(())
    }
}
