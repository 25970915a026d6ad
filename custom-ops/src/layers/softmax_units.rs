//! A group of units of which exactly one is on (softmax units): bias, mean and draw in one pass
//! over the pre-activations.
//!
//! ```text
//! x_c = pre_c + bias_c
//! mean_c = exp(x_c) / Σ_k exp(x_k)                     softmax
//! sample = the first c with u < mean_0 + … + mean_c    as a row of zeros with a one
//! ```
//!
//! | symbol | argument  | shape                          |
//! |--------|-----------|--------------------------------|
//! | `pre`  | `pre`     | `[rows, n_classes]` f32        |
//! | `bias` | `bias`    | `[n_classes]` f32              |
//! | `u`    | [`Draws`] | uniform; element `row`         |
//! |        | `planes`  | `[n_planes, rows, n_classes]` f32 |
//!
//! Source: Hinton, Osindero and Teh, "A fast learning algorithm for deep belief nets", Neural
//! Computation 18, 2006, section 4.2, where the labels of a joint model are such a group.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! use chandlery_ops::core::Draws;
//! use chandlery_ops::Philox;
//! use chandlery_ops::layers::{UnitPlanes, softmax_units_};
//! # fn main() -> candle::Result<()> {
//! let pre = Tensor::new(&[[0f32, 0., -200.], [-200., 90., -200.]], &Cpu)?;
//! let bias = Tensor::zeros(3, DType::F32, &Cpu)?;
//! let planes = Tensor::zeros((2, 2, 3), DType::F32, &Cpu)?;
//! let both = UnitPlanes { mean: Some(0), sample: Some(1), ..UnitPlanes::default() };
//! softmax_units_(&planes, &pre, &bias, both, Draws::At(Philox::new(1, 0)))?;
//! assert_eq!(planes.get(0)?.to_vec2::<f32>()?, [[0.5, 0.5, 0.], [0., 1., 0.]]);
//! // Only one class of the second row can be drawn.
//! assert_eq!(planes.get(1)?.get(1)?.to_vec1::<f32>()?, [0., 1., 0.]);
//! # Ok(()) }
//! ```
use crate::core::check::expect_layout;
use crate::core::draw::{Draws, Place, uniform};
use crate::core::math::{exp, uniform_of};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::Philox;
use crate::layers::units::UnitPlanes;
use candle::{CpuStorage, D, DType, Result, Tensor};

const OP: &str = "softmax_units_";

/// Writes means and one-hot samples of a group of `n_classes` units to planes of `planes`; the
/// other planes do not change.
///
/// `planes` is `[n_planes, rows, n_classes]`, `pre` `[rows, n_classes]` and `bias` `[n_classes]`,
/// all contiguous f32. With [`Draws::Mode`] the sample is the class with the largest mean; ties go
/// to the lowest class.
///
/// A NaN or `+∞` in a row gives NaN means and a sample of zeros only. The result is the same bits
/// on CPU and CUDA.
///
/// # Errors
/// When shapes, types or devices do not fit, or `out` names no plane, one that does not exist, or
/// one for both.
pub fn softmax_units_(
    planes: &Tensor,
    pre: &Tensor,
    bias: &Tensor,
    out: UnitPlanes,
    draws: Draws,
) -> Result<()> {
    let &[n_planes, rows, n_classes] = planes.dims() else {
        candle::bail!("{OP}: planes must be [n_planes, rows, n_classes], got shape {:?}", planes.dims())
    };
    for (what, t, shape) in
        [("planes", planes, planes.dims()), ("pre", pre, &[rows, n_classes]), ("bias", bias, &[n_classes])]
    {
        if t.dims() != shape {
            let (got, planes) = (t.dims(), planes.dims());
            candle::bail!("{OP}: {what} must have shape {shape:?} to go with planes {planes:?}, got {got:?}")
        }
        expect_layout(OP, what, t, &[DType::F32])?;
    }
    out.check(OP, n_planes)?;
    let place = draws.place(OP, planes.device())?;
    if rows * n_classes == 0 {
        return Ok(());
    }
    let op = SoftmaxUnits { out, place, rows, n_classes };
    let io = operands(OP).write("planes", planes).read("pre", pre).read("bias", bias);
    io.maybe("counter", place.and_then(|place| place.counter)).run(&op)
}

/// Mean and sample (`(mean, sample)`, both `[rows, n_classes]` f32) computed with candle's own ops,
/// without draws if `philox` is none. Tests compare [`softmax_units_`] with it on every device.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn softmax_units_reference(
    pre: &Tensor,
    bias: &Tensor,
    philox: Option<Philox>,
) -> Result<(Tensor, Tensor)> {
    let (rows, n_classes) = pre.dims2()?;
    let x = pre.broadcast_add(bias)?;
    let e = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    let mean = e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?;
    let chosen = match philox {
        None => x.argmax_keepdim(D::Minus1)?,
        Some(philox) => {
            // As many classes lie before the chosen one as there are sums that the draw has
            // reached.
            let u = uniform((rows, 1), x.device(), philox)?;
            let reached = u.broadcast_ge(&mean.cumsum(D::Minus1)?)?;
            reached.to_dtype(DType::F32)?.sum_keepdim(D::Minus1)?.to_dtype(DType::U32)?
        }
    };
    let classes = Tensor::arange(0u32, n_classes as u32, x.device())?.reshape((1, n_classes))?;
    Ok((mean, chosen.broadcast_eq(&classes)?.to_dtype(DType::F32)?))
}

struct SoftmaxUnits<'a> {
    out: UnitPlanes,
    place: Option<Place<'a>>,
    rows: usize,
    n_classes: usize,
}

impl SoftmaxUnits<'_> {
    /// Where the plane begins among the elements of `planes`; none where it is not wanted.
    fn start(&self, plane: Option<usize>) -> Option<usize> {
        plane.map(|plane| plane * self.rows * self.n_classes)
    }

    /// One row: its means and its sample go to `mean` and `sample`, as far as they are wanted.
    fn row(&self, pre: &[f32], bias: &[f32], r: usize, mut write: impl FnMut(usize, f32, f32)) {
        let x = |c: usize| pre[c] + bias[c];
        let top = (1..pre.len()).fold(x(0), |top, c| if x(c) > top { x(c) } else { top });
        let total = (0..pre.len()).fold(0., |total, c| total + exp(x(c) - top));
        let bar = self.place.map(|place| uniform_of(place.philox.bits(r as u64)) * total);
        let (mut sum, mut found) = (0., false);
        for c in 0..pre.len() {
            let part = exp(x(c) - top);
            sum += part;
            let passed = match bar {
                Some(bar) => bar < sum,
                None => x(c) == top && !total.is_nan(),
            };
            write(c, self.out.mean_scale * (part / total), if passed && !found { 1. } else { 0. });
            found |= passed;
        }
    }
}

impl Kernel for SoftmaxUnits<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([planes], [pre, bias, _]) = io.parts()?;
        let (planes, pre, bias) = (planes.elements()?, pre.elements::<f32>()?, bias.elements()?);
        let (mean_at, sample_at) = (self.start(self.out.mean), self.start(self.out.sample));
        for (r, row) in pre.chunks(self.n_classes).enumerate() {
            self.row(row, bias, r, |c, mean, sample| {
                let at = r * self.n_classes + c;
                if let Some(mean_at) = mean_at {
                    planes[mean_at + at] = mean;
                }
                if let Some(sample_at) = sample_at {
                    planes[sample_at + at] = sample;
                }
            });
        }
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([planes], [pre, bias, counter]) = io.parts()?;
        let mut planes = planes.elements::<f32>()?;
        let (pre, bias, counter) = (pre.elements::<f32>()?, bias.elements::<f32>()?, counter.maybe()?);
        let of_plane = self.rows * self.n_classes;
        let at = self.out.places(of_plane, of_plane);
        let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox);
        let launch = gpu.launch(OP, "softmax_units", "softmax_units_f32")?.write(&mut planes);
        let launch = launch.num(at.mean).num(at.sample).num(self.out.mean_scale);
        let launch = launch.read(&pre).read(&bias).num(self.rows).num(self.n_classes);
        let launch = launch.num(u32::from(self.place.is_some())).draws(philox, &counter);
        // SAFETY: (float*, 2 × long long, float, 2 × const float*, 2 × size_t, unsigned, 3 ×
        // unsigned long long, const long long*). `softmax_units_` checked that pre holds rows ·
        // n_classes floats and bias n_classes, and that both planes lie within the elements of
        // `planes`. The counter is one i64 or null.
        unsafe { launch.linear(self.rows).go() }
    }
}
