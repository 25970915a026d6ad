//! Convolution of images with a bank of square filters and its two gradients.
//!
//! ```text
//! maps              y[b, i, j, o] = Σ_{k, l, c} x[b, i + k − pad, j + l − pad, c] · w[o, k, l, c]
//! to the images     v[b, i, j, c] = Σ_{k, l, o} h[b, i − k + pad, j − l + pad, o] · w[o, k, l, c]
//! to the weights    g[o, k, l, c] ← alpha · Σ_{b, i, j} h[b, i, j, o] · x[b, i + k − pad, j + l − pad, c] + beta · g[o, k, l, c]
//! ```
//!
//! With a stride `s` the maps have every `s`-th position in each direction: `x[b, s i + k, s j +
//! l]` in the first and third line, and in the second the `h[b, i′, j′]` with `s i′ + k = i` and `s
//! j′ + l = j`. That is for CPUs; a GPU refuses strides above 1.
//!
//! Pixels beyond an image count as 0, and terms beyond a map are left out. As usual in this field
//! the first line is called a convolution though filters are not turned. In a convolutional RBM the
//! second is what visible units get from hidden ones (`h` a state), and the third the statistics of
//! a phase.
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `x` `v` | `x`, `images` | `[batch, height · width · channels]`, channels last |
//! | `y` `h` | `maps`, `hidden` | `[batch, out_height · out_width · n_filters]`, filters last |
//! | `w` `g` | `w`, `gradient` | `[n_filters, size · size · channels]` |
//! | `pad` | [`Padding`] | |
//!
//! All are f32 or all f64. Every sum has one order on one device, on the CPU for any number of
//! threads. f32 on a GPU: products of the tensor cores with operands as sums of two TF32 numbers,
//! as exact as f32 products (`kernels/core/tf32.cuh` says why); f64, and f32 where blocks of a GPU
//! have too little shared memory for the sizes, by one thread for a result.
//!
//! Several channels and large filters in f32 go through Fourier transforms of tiles of 16 or 32
//! places a side where that is faster, on the CPU and on GPUs of capability 9.0: a fifth to a
//! twentieth of the products. Results are then as far off as some 2⁻²² of the length of a tile times
//! that of a filter, also where they are small themselves. A stream of a GPU keeps 192 MiB for
//! them.
//!
//! Source: Lee, Grosse, Ranganath and Ng, "Convolutional deep belief networks for scalable
//! unsupervised learning of hierarchical representations", ICML 2009, section 3.1. Departure: their
//! filters are turned by 180° in the first line instead of the second.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::images::{ConvolutionShape, Padding, convolution};
//! # fn main() -> candle::Result<()> {
//! let shape = ConvolutionShape::new((2, 3, 1), 1, 2, Padding::Valid)?;
//! let x = Tensor::new(&[[1f32, 2., 3., 4., 5., 6.]], &Cpu)?;
//! let w = Tensor::new(&[[1f32, 0., 0., 10.]], &Cpu)?;
//! assert_eq!(convolution(&x, &w, shape)?.to_vec2::<f32>()?, [[51., 62.]]);
//! // The extra line of zeros is below and on the right.
//! let same = ConvolutionShape { padding: Padding::Same, ..shape };
//! assert_eq!(convolution(&x, &w, same)?.to_vec2::<f32>()?, [[51., 62., 3., 4., 5., 6.]]);
//! # Ok(()) }
//! ```
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod differentiable;
mod direct;
mod plan;
mod reference;
mod shape;
mod tiles;
mod transforms;

pub use differentiable::{convolution, convolution_transposed};
pub use reference::{
    convolution_input_gradient_reference, convolution_reference, convolution_weight_gradient_reference,
};
pub use shape::{ConvolutionShape, Padding};

use crate::core::check::{expect, expect_dtype, expect_layout};
use crate::core::op::{Io, Kernel, operands};
use crate::layers::gemm::Factors;
use candle::{CpuStorage, DType, Device, Result, Tensor};

const FORWARD: &str = "convolution_";
const INPUT: &str = "convolution_input_gradient_";
const WEIGHT: &str = "convolution_weight_gradient_";
const TYPES: [DType; 2] = [DType::F32, DType::F64];

/// Writes the maps of images `x`, `[batch, height · width · channels]`, to `maps`,
/// `[batch, out_height · out_width · n_filters]`.
///
/// `w` is `[n_filters, size² · channels]`. All are contiguous, of one type: f32 or f64. A NaN of a
/// pixel or a weight reaches every entry whose sum it is in, and may reach those where it would
/// multiply a zero beside the image. By transforms it reaches all results of the tiles that it lies
/// in, which are less than 32 places away, and gradients of all weights; an infinity then counts as
/// a NaN. On a GPU an infinity, or an f32 number within 2⁻¹² of the largest, always does.
///
/// Cost: `2 · batch · out_height · out_width · n_filters · size² · channels` FLOP.
///
/// # Errors
/// When the shape is none, or shapes, types or devices do not fit.
pub fn convolution_(maps: &Tensor, x: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<()> {
    let batch = check(FORWARD, maps, shape, [("x", x, Sizes::Images), ("w", w, Sizes::Weights)])?;
    expect(FORWARD, "maps", maps, &[x.dtype()], &[batch, shape.n_hidden()])?;
    if batch == 0 {
        return Ok(());
    }
    let op = Forward { sizes: Convolution { shape, batch, dtype: x.dtype() } };
    operands(FORWARD).write("maps", maps).read("x", x).read("w", w).run(&op)
}

/// Writes the gradient to the images, `[batch, height · width · channels]`, to `images`: every
/// entry of `hidden`, `[batch, out_height · out_width · n_filters]`, adds its filter where it lies.
///
/// Layouts, types, NaN and cost are those of [`convolution_`], whose adjoint this is:
/// `⟨y(x), h⟩ = ⟨x, v(h)⟩`.
///
/// # Errors
/// As [`convolution_`].
pub fn convolution_input_gradient_(
    images: &Tensor,
    hidden: &Tensor,
    w: &Tensor,
    shape: ConvolutionShape,
) -> Result<()> {
    let batch = check(INPUT, images, shape, [("hidden", hidden, Sizes::Maps), ("w", w, Sizes::Weights)])?;
    expect(INPUT, "images", images, &[hidden.dtype()], &[batch, shape.n_visible()])?;
    if batch == 0 {
        return Ok(());
    }
    let op = InputGradient { sizes: Convolution { shape, batch, dtype: hidden.dtype() } };
    operands(INPUT).write("images", images).read("hidden", hidden).read("w", w).run(&op)
}

/// Updates `gradient`, `[n_filters, size² · channels]`, to `alpha` times the gradient to the
/// weights plus `beta` times what it was. A `beta` of 0 overwrites, NaN included.
///
/// `parts` is memory for partial sums, `[places, n_filters · size² · channels]` with at least
/// [`convolution_gradient_places`]; what it holds is lost. `x` and `hidden` are as for
/// [`convolution_`] and [`convolution_input_gradient_`], and so are types, NaN and cost. Factors in
/// a tensor are read when the op runs, and need f32 results.
///
/// # Errors
/// When the shape is none, or shapes, types or devices do not fit.
pub fn convolution_weight_gradient_(
    gradient: &Tensor,
    parts: &Tensor,
    x: &Tensor,
    hidden: &Tensor,
    shape: ConvolutionShape,
    factors: Factors<'_>,
) -> Result<()> {
    let batch = check(WEIGHT, gradient, shape, [("x", x, Sizes::Images), ("hidden", hidden, Sizes::Maps)])?;
    let dtype = x.dtype();
    let (filters, weights) = (shape.n_filters, shape.filter_len());
    expect(WEIGHT, "gradient", gradient, &[dtype], &[filters, weights])?;
    let places = convolution_gradient_places(gradient.device(), shape, batch, dtype)?;
    match *parts.dims() {
        [found, n] if found >= places && n == filters * weights => {
            expect_layout(WEIGHT, "parts", parts, &[dtype])?;
        }
        _ => candle::bail!(
            "{WEIGHT}: parts must be [{places} or more, {}], got shape {:?}",
            filters * weights,
            parts.dims()
        ),
    }
    let (host, tensor) = match factors {
        Factors::Host { alpha, beta } => (Some((alpha, beta)), None),
        Factors::Tensor(t) => {
            expect_layout(WEIGHT, "factors", t, &[DType::F32])?;
            if t.elem_count() < 2 || dtype != DType::F32 {
                candle::bail!(
                    "{WEIGHT}: factors must be [alpha, beta] for f32 results, got {:?} for {dtype:?} ones",
                    t.dims()
                )
            }
            (None, Some(t))
        }
    };
    let op = WeightGradient { sizes: Convolution { shape, batch, dtype }, places, factors: host };
    let io = operands(WEIGHT).write("gradient", gradient).write("parts", parts);
    io.read("x", x).read("hidden", hidden).maybe("factors", tensor).run(&op)
}

/// How many partial sums of the weights' size [`convolution_weight_gradient_`] needs for a batch on
/// `device`, at least 1.
///
/// # Errors
/// When the shape is none, or the device fails.
pub fn convolution_gradient_places(
    device: &Device,
    shape: ConvolutionShape,
    batch: usize,
    dtype: DType,
) -> Result<usize> {
    shape.validate()?;
    check_stride(WEIGHT, shape, device)?;
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let limits = crate::core::cuda::Gpu::of(device)?.limits();
            // Spectra are in memory of the device's stream.
            if dtype != DType::F32
                || plan::spectra::Spectra::of(limits, plan::spectra::Of::Weights, shape, batch).is_some()
            {
                return Ok(1);
            }
            Ok(plan::gradient::Gradient::of(limits, shape, batch).map_or(1, |plan| plan.splits))
        }
        _ => {
            let places = transforms::places(shape, batch).or_else(|| direct::places(shape, batch));
            Ok(places.filter(|_| dtype == DType::F32).unwrap_or_else(|| cpu::places(shape, batch)))
        }
    }
}

/// What a row of an operand holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sizes {
    Images,
    Maps,
    Weights,
}

/// Refuses a stride that a device cannot have.
fn check_stride(op: &str, shape: ConvolutionShape, device: &Device) -> Result<()> {
    if shape.stride > 1 && !device.is_cpu() {
        candle::bail!("{op}: stride must be 1 on a GPU, got {}; use the CPU", shape.stride)
    }
    Ok(())
}

/// Checks the shape and the operands that are read, whose types are those of the result; returns
/// the rows of the batch.
fn check(
    op: &'static str,
    result: &Tensor,
    shape: ConvolutionShape,
    read: [(&'static str, &Tensor, Sizes); 2],
) -> Result<usize> {
    shape.validate()?;
    check_stride(op, shape, result.device())?;
    let (_, first, _) = read[0];
    expect_dtype(op, read[0].0, first, &TYPES)?;
    let batch = match *first.dims() {
        [batch, _] => batch,
        _ => candle::bail!(
            "{op}: {} must be a matrix of one row for each image, got shape {:?}",
            read[0].0,
            first.dims()
        ),
    };
    for (name, t, sizes) in read {
        let expected = match sizes {
            Sizes::Images => [batch, shape.n_visible()],
            Sizes::Maps => [batch, shape.n_hidden()],
            Sizes::Weights => [shape.n_filters, shape.filter_len()],
        };
        expect(op, name, t, &[first.dtype()], &expected)?;
        crate::core::op::same_device(op, name, t, result.device())?;
    }
    Ok(batch)
}

/// What every kernel knows.
#[derive(Debug, Clone, Copy)]
struct Convolution {
    shape: ConvolutionShape,
    batch: usize,
    dtype: DType,
}

struct Forward {
    sizes: Convolution,
}

struct InputGradient {
    sizes: Convolution,
}

struct WeightGradient {
    sizes: Convolution,
    places: usize,
    /// None where a tensor holds them.
    factors: Option<(f64, f64)>,
}

impl Kernel for Forward {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([maps], [x, w]) = io.parts()?;
        let shape = self.sizes.shape;
        match self.sizes.dtype {
            DType::F32 => {
                let (maps, x, w) = (maps.elements()?, x.elements()?, w.elements()?);
                if !transforms::forward(shape, maps, x, w) && !direct::forward(shape, maps, x, w) {
                    cpu::forward::<f32>(shape, maps, x, w);
                }
            }
            _ => cpu::forward::<f64>(shape, maps.elements()?, x.elements()?, w.elements()?),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        cuda::forward(self.sizes, gpu, io)
    }
}

impl Kernel for InputGradient {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([images], [hidden, w]) = io.parts()?;
        let shape = self.sizes.shape;
        match self.sizes.dtype {
            DType::F32 => {
                let (images, hidden, w) = (images.elements()?, hidden.elements()?, w.elements()?);
                let by_transforms = transforms::input_gradient(shape, images, hidden, w);
                if !by_transforms && !direct::input_gradient(shape, images, hidden, w) {
                    cpu::input_gradient::<f32>(shape, images, hidden, w);
                }
            }
            _ => cpu::input_gradient::<f64>(shape, images.elements()?, hidden.elements()?, w.elements()?),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        cuda::input_gradient(self.sizes, gpu, io)
    }
}

impl Kernel for WeightGradient {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([gradient, parts], [x, hidden, factors]) = io.parts()?;
        let (alpha, beta) = match (self.factors, factors.maybe::<f32>()?) {
            (Some(factors), _) => factors,
            (None, Some(&[alpha, beta, ..])) => (f64::from(alpha), f64::from(beta)),
            _ => candle::bail!("{WEIGHT}: factors must have at least 2 entries"),
        };
        let (shape, places) = (self.sizes.shape, self.places);
        match self.sizes.dtype {
            DType::F32 => {
                let (parts, x, hidden) = (parts.elements::<f32>()?, x.elements()?, hidden.elements()?);
                let by_transforms = transforms::weight_parts(shape, parts, x, hidden);
                if !by_transforms && !direct::weight_parts(shape, places, parts, x, hidden) {
                    cpu::weight_parts(shape, places, parts, x, hidden);
                }
                cpu::add_parts(gradient.elements()?, parts, places, alpha as f32, beta as f32);
            }
            _ => {
                let parts = parts.elements::<f64>()?;
                cpu::weight_parts(shape, places, parts, x.elements()?, hidden.elements()?);
                cpu::add_parts(gradient.elements()?, parts, places, alpha, beta);
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        cuda::weight_gradient(self, gpu, io)
    }
}
