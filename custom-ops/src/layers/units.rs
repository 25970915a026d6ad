//! Stochastic units of a layer: bias, mean and draw in one pass over the pre-activations.
//!
//! ```text
//! x = pre + bias
//! Bernoulli   mean = sigmoid(x)    sample = 1 where u < mean, else 0
//! Gaussian    mean = x             sample = x + std · z
//! Rectified   mean = max(0, x)     sample = max(0, x + √sigmoid(x) · z)
//! ```
//!
//! | symbol | argument          | shape                                                 |
//! |--------|-------------------|-------------------------------------------------------|
//! | `pre`  | `pre`             | `[rows, n_units]` f32                                 |
//! | `bias` | `bias`            | `[n_units]` f32                                       |
//! | `std`  | `std`             | `[n_units]` f32, at least 0; all 1 when not given     |
//! | `u` `z`| [`Draws`]         | uniform and normal; element `row · n_units + unit`, or of [`Draws::Columns`] |
//! |        | `planes`          | `[n_planes, rows, n_units]` f32, bf16 or f16          |
//!
//! Sources: Hinton, "A practical guide to training restricted Boltzmann machines", 2010, sections 3
//! and 13; the rectified units are those of Nair and Hinton, "Rectified linear units improve
//! restricted Boltzmann machines", ICML 2010, section 2 (NReLU); the mean is their unit without
//! noise.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::Philox;
//! use chandlery_ops::layers::{Unit, unit_mean, unit_sample};
//! # fn main() -> candle::Result<()> {
//! let pre = Tensor::new(&[[0f32, -200.], [200., 0.]], &Cpu)?;
//! let bias = Tensor::zeros(2, candle::DType::F32, &Cpu)?;
//! let mean = unit_mean(&pre, &bias, Unit::Bernoulli)?;
//! assert_eq!(mean.to_vec2::<f32>()?, [[0.5, 0.], [1., 0.5]]);
//! // A unit whose mean is 0 or 1 leaves nothing to chance.
//! let sample = unit_sample(&pre, &bias, Unit::Bernoulli, Philox::new(1, 0))?.to_vec2::<f32>()?;
//! assert_eq!((sample[0][1], sample[1][0]), (0., 1.));
//! # Ok(()) }
//! ```
mod cpu;

pub(crate) use cpu::{Plane, store, store_low};

use crate::core::check::expect_layout;
use crate::core::draw::{Draws, Place, RowBlocks, normal, uniform};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::philox::Philox;
use candle::{CpuStorage, DType, Layout, Result, Tensor};
use std::ops::Range;

const OP: &str = "units_";

/// What a unit computes from its pre-activation; see the formulas above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// On or off, on with probability `sigmoid(x)`.
    Bernoulli,
    /// A real number with normal noise.
    Gaussian,
    /// A number of at least 0: a noisy rectified linear unit.
    Rectified,
}

/// Which planes [`units_`] writes; at least one, and not the same for both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitPlanes {
    /// The plane for `mean_scale · mean`.
    pub mean: Option<usize>,
    /// A factor on the stored mean, 1 by default. With -1 for the model phase, one product over
    /// both phases gives the difference that contrastive divergence needs. The sample is drawn from
    /// the mean without this factor.
    pub mean_scale: f32,
    /// The plane for the sample.
    pub sample: Option<usize>,
    /// For f16 planes in two parts, see [`split_into_`](crate::arrays::split_into_): the distance,
    /// in planes, from a stored plane to its second part, which holds the rounding error of the
    /// first. Samples of Bernoulli units are exact and have no second part.
    pub low: Option<usize>,
}

impl Default for UnitPlanes {
    /// No plane, scale 1.
    fn default() -> Self {
        Self { mean: None, mean_scale: 1., sample: None, low: None }
    }
}

/// Where kernels write [`UnitPlanes`], in entries from the first of the view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PlanePlaces {
    /// Where the plane for the mean begins; -1 where it is not wanted.
    pub mean: i64,
    /// The same of the plane for the sample.
    pub sample: i64,
    /// From a stored plane to its second part; 0 where there is none.
    pub low: u64,
    /// Behind the last entry that may be written.
    pub end: usize,
}

impl UnitPlanes {
    /// The places of planes of `len` entries, each `apart` from the next.
    pub(crate) fn places(self, apart: usize, len: usize) -> PlanePlaces {
        let place_of = |plane: Option<usize>| plane.map_or(-1, |plane| (plane * apart) as i64);
        let low = self.low.map_or(0, |low| low * apart);
        let last = self.mean.max(self.sample).unwrap_or_default() * apart;
        PlanePlaces {
            mean: place_of(self.mean),
            sample: place_of(self.sample),
            low: low as u64,
            end: last + low + len,
        }
    }

    /// Checks that mean and sample have planes of their own, one of them at least.
    pub(crate) fn check(self, op: &str, n_planes: usize) -> Result<()> {
        for (what, plane) in [("mean", self.mean), ("sample", self.sample)] {
            if let Some(plane) = plane.filter(|&plane| plane >= n_planes) {
                candle::bail!("{op}: {what} must name one of {n_planes} planes, got {plane}")
            }
        }
        match (self.mean, self.sample) {
            (None, None) => candle::bail!("{op}: out must name a plane for the mean or the sample, got none"),
            (Some(mean), Some(sample)) if mean == sample => {
                candle::bail!("{op}: mean and sample must go to different planes, got {mean} for both")
            }
            _ => Ok(()),
        }
    }
}

/// Writes means and samples of the units to planes of `planes`; the other planes do not change.
///
/// `planes` is `[n_planes, rows, n_units]`, f32, bf16 or f16 (rounded to nearest even), each plane
/// contiguous; a `narrow` of rows or planes is allowed. `pre` (`[rows, n_units]`) and `bias`
/// (`[n_units]`) are contiguous f32. `std` (`[n_units]`) is only for samples of [`Unit::Gaussian`].
/// With [`Draws::Mode`] the sample is the most probable state: 1 where `mean > ½` for Bernoulli
/// units, the mean for the others.
///
/// A NaN in `x` gives a NaN mean; the sample of a Bernoulli unit is then 0. The result is the same
/// bits on CPU and CUDA, except in 16-bit planes without a second part: there CUDA's sigmoid has an
/// error of up to 2⁻²⁰, which may change the last bit of a mean.
///
/// # Errors
/// When shapes, types or devices do not fit, a plane does not exist, or `std` is given to a unit
/// without one.
pub fn units_(
    planes: &Tensor,
    pre: &Tensor,
    bias: &Tensor,
    unit: Unit,
    out: UnitPlanes,
    draws: Draws,
    std: Option<&Tensor>,
) -> Result<()> {
    let (rows, n_units) = check_units(planes, bias, out)?;
    check(planes, "pre", pre, &[rows, n_units])?;
    if let Some(std) = std {
        if unit != Unit::Gaussian {
            candle::bail!("{OP}: std is only for Gaussian units, got it for {unit:?} units")
        }
        check(planes, "std", std, &[n_units])?;
    }
    let (place, blocks) = draws.place_of_columns(OP, n_units, planes.device())?.unzip();
    if rows * n_units == 0 {
        return Ok(());
    }
    let (blocks, dtype) = (blocks.flatten(), planes.dtype());
    let op = Units { unit, out, place, blocks, dtype, n: rows * n_units, n_units };
    let io = operands(OP).write("planes", planes).read("pre", pre).read("bias", bias).maybe("std", std);
    io.maybe("counter", place.and_then(|place| place.counter)).run(&op)
}

/// The means of the units, a new `[rows, n_units]` f32 tensor without gradient; see [`units_`].
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn unit_mean(pre: &Tensor, bias: &Tensor, unit: Unit) -> Result<Tensor> {
    let out = UnitPlanes { mean: Some(0), ..UnitPlanes::default() };
    new_plane(pre, bias, unit, out, Draws::Mode)
}

/// A draw of the units, a new `[rows, n_units]` f32 tensor without gradient; see [`units_`].
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn unit_sample(pre: &Tensor, bias: &Tensor, unit: Unit, philox: Philox) -> Result<Tensor> {
    let out = UnitPlanes { sample: Some(0), ..UnitPlanes::default() };
    new_plane(pre, bias, unit, out, Draws::At(philox))
}

fn new_plane(pre: &Tensor, bias: &Tensor, unit: Unit, out: UnitPlanes, draws: Draws) -> Result<Tensor> {
    let (rows, n_units) = match pre.dims() {
        &[rows, n_units] => (rows, n_units),
        shape => candle::bail!("{OP}: pre must be [rows, n_units], got shape {shape:?}"),
    };
    let planes = new_tensor(OP, (1, rows, n_units), DType::F32, pre.device())?;
    units_(&planes, pre, bias, unit, out, draws, None)?;
    planes.squeeze(0)
}

/// Mean and sample (`(mean, sample)`, both `[rows, n_units]` f32) computed with candle's own ops,
/// without draws if `philox` is none. Tests compare [`units_`] with it on every device.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn units_reference(
    pre: &Tensor,
    bias: &Tensor,
    unit: Unit,
    philox: Option<Philox>,
    std: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let x = pre.broadcast_add(bias)?;
    let sigmoid = (x.neg()?.exp()? + 1.)?.recip()?;
    let mean = match unit {
        Unit::Bernoulli => sigmoid.clone(),
        Unit::Gaussian => x.clone(),
        Unit::Rectified => x.relu()?,
    };
    let sample = match (unit, philox) {
        (Unit::Bernoulli, None) => mean.gt(0.5)?.to_dtype(DType::F32)?,
        (_, None) => mean.clone(),
        (Unit::Bernoulli, Some(philox)) => {
            uniform(x.shape(), x.device(), philox)?.lt(&mean)?.to_dtype(DType::F32)?
        }
        (Unit::Gaussian, Some(philox)) => {
            let noise = normal(x.shape(), x.device(), philox)?;
            match std {
                Some(std) => (x + noise.broadcast_mul(std)?)?,
                None => (x + noise)?,
            }
        }
        (Unit::Rectified, Some(philox)) => {
            let noise = normal(x.shape(), x.device(), philox)?;
            (x + (sigmoid.sqrt()? * noise)?)?.relu()?
        }
    };
    Ok((mean, sample))
}

/// The sizes `(rows, n_units)` of the planes, which fit the bias and hold those that `out` names.
pub(crate) fn check_units(planes: &Tensor, bias: &Tensor, out: UnitPlanes) -> Result<(usize, usize)> {
    let sizes = check_planes(OP, planes, out)?;
    check(planes, "bias", bias, &[sizes.1])?;
    Ok(sizes)
}

/// The sizes `(rows, n_units)` of the planes, which hold those that `out` names.
pub(crate) fn check_planes(op: &str, planes: &Tensor, out: UnitPlanes) -> Result<(usize, usize)> {
    let (n_planes, rows, n_units) = match planes.dims() {
        &[n_planes, rows, n_units] => (n_planes, rows, n_units),
        shape => candle::bail!("{op}: planes must be [n_planes, rows, n_units], got shape {shape:?}"),
    };
    if !matches!(planes.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        candle::bail!("{op}: planes must be f32, bf16 or f16, got {:?}", planes.dtype())
    }
    if planes.stride()[1..] != [n_units, 1] {
        let (shape, stride) = (planes.dims(), planes.stride());
        candle::bail!("{op}: each of planes must be contiguous, got shape {shape:?} with strides {stride:?}")
    }
    out.check(op, n_planes)?;
    if let Some(low) = out.low {
        let last = out.mean.max(out.sample).map_or(0, |plane| plane.saturating_add(low));
        if low == 0 || last >= n_planes || out.mean.zip(out.sample).is_some_and(|(a, b)| a.abs_diff(b) == low)
        {
            candle::bail!("{op}: low must lead to unused planes of the {n_planes}, got {low} for {out:?}")
        }
    }
    Ok((rows, n_units))
}

fn check(planes: &Tensor, what: &str, x: &Tensor, shape: &[usize]) -> Result<()> {
    if x.dims() != shape {
        let (got, planes) = (x.dims(), planes.dims());
        candle::bail!("{OP}: {what} must have shape {shape:?} to go with planes {planes:?}, got {got:?}")
    }
    expect_layout(OP, what, x, &[DType::F32])
}

struct Units<'a> {
    unit: Unit,
    out: UnitPlanes,
    place: Option<Place<'a>>,
    /// Where the draws of rows begin, if units are some of more.
    blocks: Option<RowBlocks>,
    dtype: DType,
    n: usize,
    n_units: usize,
}

/// The elements of a plane, within the storage; an empty range for a plane that is not wanted.
pub(crate) fn plane_range(layout: &Layout, plane: Option<usize>) -> Range<usize> {
    let Some(plane) = plane else { return 0..0 };
    let n = layout.dims()[1] * layout.dims()[2];
    let start = layout.start_offset() + plane * layout.stride()[0];
    start..start + n
}

impl Units<'_> {
    fn run_cpu<T: cpu::Plane + candle::WithDType>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([planes], [pre, bias, std, _]) = io.parts()?;
        let (layout, planes) = (planes.layout(), planes.all::<T>()?);
        let (pre, bias, std) = (pre.elements()?, bias.elements()?, std.maybe()?);
        let low = |plane: Option<usize>| plane.zip(self.out.low).map(|(plane, low)| plane + low);
        let wanted = [self.out.mean, self.out.sample, low(self.out.mean), low(self.out.sample)];
        let ranges = wanted.map(|plane| plane_range(layout, plane));
        let [mean, sample, mean_low, sample_low] = planes.get_disjoint_mut(ranges).map_err(|_| {
            candle::Error::Msg(format!("{OP}: planes overlap, with strides {:?}", layout.stride()))
        })?;
        let pass = cpu::Pass {
            unit: self.unit,
            pre,
            bias,
            std,
            mean_scale: self.out.mean_scale,
            philox: self.place.map(|place| place.philox),
        };
        let (mut mean, mut sample) = ([mean, mean_low], [sample, sample_low]);
        let Some(RowBlocks { by, at }) = self.blocks else {
            pass.run(0, self.n, mean, sample);
            return Ok(());
        };
        for (row, pre) in pre.chunks_exact(self.n_units).enumerate() {
            let philox = pass.philox.map(|philox| philox.skipped((by * row + at) as u64));
            let (of_row, behind) = cpu::split_at(mean, self.n_units);
            let (of_sample, behind_sample) = cpu::split_at(sample, self.n_units);
            cpu::Pass { pre, philox, ..pass }.run(0, self.n_units, of_row, of_sample);
            (mean, sample) = (behind, behind_sample);
        }
        Ok(())
    }
}

impl Kernel for Units<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            DType::BF16 => self.run_cpu::<half::bf16>(io),
            DType::F16 => self.run_cpu::<half::f16>(io),
            _ => self.run_cpu::<f32>(io),
        }
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= cpu::GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let dtype = self.dtype.as_str();
        for_type!(self.dtype, [BF16: half::bf16, F16: half::f16; f32], |T| {
            let ([planes], [pre, bias, std, counter]) = io.parts()?;
            let layout = planes.layout();
            let n = self.n;
            let at = self.out.places(layout.stride()[0], n);
            let mut planes = planes.span::<T>(at.end)?;
            let (pre, bias) = (pre.elements::<f32>()?, bias.elements::<f32>()?);
            let (std, counter) = (std.maybe::<f32>()?, counter.maybe()?);
            let unit = match self.unit {
                Unit::Bernoulli => "bernoulli",
                Unit::Gaussian => "gaussian",
                Unit::Rectified => "rectified",
            };
            let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox);
            let launch = gpu.launch(OP, "units", &format!("units_{unit}_{dtype}"))?.write(&mut planes);
            let launch = launch.num(at.mean).num(at.sample).num(at.low);
            let launch = launch.num(self.out.mean_scale).read(&pre).read(&bias).maybe(&std);
            let RowBlocks { by, at } = self.blocks.unwrap_or(RowBlocks { by: 0, at: 0 });
            let launch = launch.num(n).num(self.n_units).num(by).num(at);
            let launch = launch.num(u32::from(self.place.is_some())).draws(philox, &counter);
            // SAFETY: (T*, 2 × long long, size_t, float, 3 × const float*, 4 × size_t, unsigned, 3
            // × unsigned long long, const long long*). `units_` checked that pre holds n floats and
            // bias and std n_units; the span reaches to the end of the last plane that is written,
            // and planes of a tensor do not overlap. The counter is one i64 or null.
            unsafe { launch.linear(n.div_ceil(4)).go() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_planes_that_are_written() {
        let out = UnitPlanes { mean: Some(3), sample: Some(0), low: Some(4), ..UnitPlanes::default() };
        assert_eq!(out.places(10, 7), PlanePlaces { mean: 30, sample: 0, low: 40, end: 77 });
        let sample = UnitPlanes { sample: Some(1), ..UnitPlanes::default() };
        assert_eq!(sample.places(10, 10), PlanePlaces { mean: -1, sample: 10, low: 0, end: 20 });
    }
}
