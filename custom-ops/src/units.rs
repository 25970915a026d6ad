//! Layers of stochastic units: bias, mean and draw in one pass over the pre-activations.
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
//! | `u` `z`| [`Draws`]         | uniform and normal; element `row · n_units + unit`    |
//! |        | `planes`          | `[n_planes, rows, n_units]` f32, bf16 or f16          |
//!
//! Sources: Hinton, "A practical guide to training restricted Boltzmann machines", 2010, sections 3 and 13; the rectified
//! units are those of Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010,
//! section 2 (NReLU), where the mean is theirs without noise.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::{Philox, Unit, unit_mean, unit_sample};
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

use crate::draw::{Draws, Place, normal, same_device, uniform};
use crate::host::{Operand, elements};
use crate::philox::Philox;
use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, InplaceOp3, Layout, Result, Storage, Tensor};
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
    /// A factor on the mean as it is stored, 1 by default. With -1 for the model's phase one product over both phases
    /// gives the difference that contrastive divergence wants. The sample is drawn from the mean without it.
    pub mean_scale: f32,
    /// The plane for the sample.
    pub sample: Option<usize>,
    /// How many planes further on the second part of what is stored goes, what rounding to the planes' type took: for f16
    /// planes in two parts, see [`split_into_`](crate::split_into_). Samples of Bernoulli units are exact and have none.
    pub low: Option<usize>,
}

impl Default for UnitPlanes {
    /// No plane, scale 1.
    fn default() -> Self {
        Self { mean: None, mean_scale: 1., sample: None, low: None }
    }
}

impl UnitPlanes {
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

/// Writes means and samples of the units to planes of `planes`; the other planes stay as they are.
///
/// `planes` is `[n_planes, rows, n_units]`, f32, bf16 or f16 (rounded to nearest even), each plane contiguous: a `narrow` of
/// rows or planes will do. `pre` (`[rows, n_units]`) and `bias` (`[n_units]`) are contiguous f32. `std`
/// (`[n_units]`) belongs to samples of [`Unit::Gaussian`]. With [`Draws::Mode`] the sample is the most probable state:
/// 1 where `mean > ½` for Bernoulli units, the mean for the others.
///
/// A NaN in `x` gives a NaN mean; the sample of a Bernoulli unit is then 0. The result is the same bits on CPU and CUDA,
/// except in 16-bit planes without a second part: there CUDA's sigmoid errs by up to 2⁻²⁰, which may move the last bit of a mean.
///
/// # Errors
/// When shapes, types or devices do not fit, a plane does not exist, or `std` is given to a unit without one.
pub fn units_(
    planes: &Tensor,
    pre: &Tensor,
    bias: &Tensor,
    unit: Unit,
    out: UnitPlanes,
    draws: Draws,
    std: Option<&Tensor>,
) -> Result<()> {
    let (rows, n_units) = check_planes(planes, bias, out)?;
    check(planes, "pre", pre, &[rows, n_units])?;
    if let Some(std) = std {
        if unit != Unit::Gaussian {
            candle::bail!("{OP}: std belongs to Gaussian units, got it for {unit:?} ones")
        }
        check(planes, "std", std, &[n_units])?;
        // Its lock is taken while that of planes is held.
        if address(std) == address(planes) {
            candle::bail!("{OP}: std must not share the storage of planes")
        }
    }
    let place = draws.place(OP, planes.device())?;
    if rows * n_units == 0 {
        return Ok(());
    }
    planes.inplace_op3(pre, bias, &Units { unit, out, place, std })
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
    let planes = Tensor::zeros((1, rows, n_units), DType::F32, pre.device())?;
    units_(&planes, pre, bias, unit, out, draws, None)?;
    planes.squeeze(0)
}

/// Mean and sample (`(mean, sample)`, both `[rows, n_units]` f32) from candle's own ops, without draws when `philox` is
/// none; the tests hold [`units_`] to this on every device.
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
pub(crate) fn check_planes(planes: &Tensor, bias: &Tensor, out: UnitPlanes) -> Result<(usize, usize)> {
    let (n_planes, rows, n_units) = match planes.dims() {
        &[n_planes, rows, n_units] => (n_planes, rows, n_units),
        shape => candle::bail!("{OP}: planes must be [n_planes, rows, n_units], got shape {shape:?}"),
    };
    if !matches!(planes.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        candle::bail!("{OP}: planes must be f32, bf16 or f16, got {:?}", planes.dtype())
    }
    if planes.stride()[1..] != [n_units, 1] {
        let (shape, stride) = (planes.dims(), planes.stride());
        candle::bail!("{OP}: each of planes must be contiguous, got shape {shape:?} with strides {stride:?}")
    }
    check(planes, "bias", bias, &[n_units])?;
    out.check(OP, n_planes)?;
    if let Some(low) = out.low {
        let last = out.mean.max(out.sample).map_or(0, |plane| plane.saturating_add(low));
        if low == 0 || last >= n_planes || out.mean.zip(out.sample).is_some_and(|(a, b)| a.abs_diff(b) == low)
        {
            candle::bail!("{OP}: low must lead to free ones of {n_planes} planes, got {low} for {out:?}")
        }
    }
    Ok((rows, n_units))
}

fn check(planes: &Tensor, what: &str, x: &Tensor, shape: &[usize]) -> Result<()> {
    if x.dims() != shape {
        let (got, planes) = (x.dims(), planes.dims());
        candle::bail!("{OP}: {what} must have shape {shape:?} to go with planes {planes:?}, got {got:?}")
    }
    if x.dtype() != DType::F32 {
        candle::bail!("{OP}: {what} must be f32, got {:?}", x.dtype())
    }
    if !x.is_contiguous() {
        let stride = x.stride();
        candle::bail!(
            "{OP}: {what} must be contiguous, got shape {shape:?} with strides {stride:?}; call .contiguous() first"
        )
    }
    same_device(OP, what, x, planes.device())
}

/// Where a tensor's storage lies in host memory: equal for two tensors that share it.
fn address(x: &Tensor) -> *const Storage {
    &*x.storage_and_layout().0
}

struct Units<'a> {
    unit: Unit,
    out: UnitPlanes,
    place: Option<Place<'a>>,
    std: Option<&'a Tensor>,
}

impl Units<'_> {
    /// The elements of a plane, within the storage; an empty range for a plane that is not wanted.
    fn range(layout: &Layout, plane: Option<usize>) -> Range<usize> {
        let Some(plane) = plane else { return 0..0 };
        let n = layout.dims()[1] * layout.dims()[2];
        let start = layout.start_offset() + plane * layout.stride()[0];
        start..start + n
    }

    fn run_cpu<T: cpu::Plane>(
        &self,
        planes: &mut [T],
        layout: &Layout,
        pre: &[f32],
        bias: &[f32],
    ) -> Result<()> {
        let std = self.std.map(Operand::new);
        let std = std.as_ref().map(|std| std.elements(OP)).transpose()?;
        let low = |plane: Option<usize>| plane.zip(self.out.low).map(|(plane, low)| plane + low);
        let wanted = [self.out.mean, self.out.sample, low(self.out.mean), low(self.out.sample)];
        let ranges = wanted.map(|plane| Self::range(layout, plane));
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
        pass.run(0, pre.len(), [mean, mean_low], [sample, sample_low]);
        Ok(())
    }
}

impl InplaceOp3 for Units<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        planes: &mut CpuStorage,
        planes_l: &Layout,
        pre: &CpuStorage,
        pre_l: &Layout,
        bias: &CpuStorage,
        bias_l: &Layout,
    ) -> Result<()> {
        let (pre, bias) = (elements(pre, pre_l)?, elements(bias, bias_l)?);
        match planes {
            CpuStorage::F32(planes) => self.run_cpu(planes, planes_l, pre, bias),
            CpuStorage::BF16(planes) => self.run_cpu(planes, planes_l, pre, bias),
            CpuStorage::F16(planes) => self.run_cpu(planes, planes_l, pre, bias),
            planes => candle::bail!("{OP}: planes must be f32, bf16 or f16, got {:?}", planes.dtype()),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        planes: &mut candle::CudaStorage,
        planes_l: &Layout,
        pre: &candle::CudaStorage,
        pre_l: &Layout,
        bias: &candle::CudaStorage,
        bias_l: &Layout,
    ) -> Result<()> {
        match planes.dtype() {
            DType::F32 => self.run_cuda::<f32>("f32", planes, planes_l, pre, pre_l, bias, bias_l),
            DType::BF16 => self.run_cuda::<half::bf16>("bf16", planes, planes_l, pre, pre_l, bias, bias_l),
            DType::F16 => self.run_cuda::<half::f16>("f16", planes, planes_l, pre, pre_l, bias, bias_l),
            dtype => candle::bail!("{OP}: planes must be f32, bf16 or f16, got {dtype:?}"),
        }
    }
}

#[cfg(feature = "cuda")]
impl Units<'_> {
    #[expect(clippy::too_many_arguments, reason = "three operands, each a storage and a layout")]
    fn run_cuda<T: candle::cuda::CudaDType>(
        &self,
        dtype: &str,
        planes: &mut candle::CudaStorage,
        planes_l: &Layout,
        pre: &candle::CudaStorage,
        pre_l: &Layout,
        bias: &candle::CudaStorage,
        bias_l: &Layout,
    ) -> Result<()> {
        use crate::cuda::{
            Operand, PushKernelArg, PushKernelArgs, WrapErr, function, linear_launch, optional_view, view,
        };

        let device = pre.device().clone();
        let (n, n_units) = (pre_l.shape().elem_count(), bias_l.shape().elem_count());
        let (pre, bias) = (view::<f32>(pre, pre_l, OP)?, view::<f32>(bias, bias_l, OP)?);
        let std = self.std.map(Operand::new);
        let std = optional_view::<f32>(&std, OP)?;
        let (drawn, philox, counter) = Place::arguments(self.place);
        let counter = optional_view(&counter, OP)?;

        let (mean, sample) = (Self::range(planes_l, self.out.mean), Self::range(planes_l, self.out.sample));
        let low = self.out.low.map_or(0, |low| low * planes_l.stride()[0]);
        let mut out = planes.as_cuda_slice_mut::<T>()?.slice_mut(..mean.end.max(sample.end) + low);
        let place_of = |range: Range<usize>| if range.is_empty() { -1 } else { range.start as i64 };
        let (mean_at, sample_at) = (place_of(mean), place_of(sample));

        let unit = match self.unit {
            Unit::Bernoulli => "bernoulli",
            Unit::Gaussian => "gaussian",
            Unit::Rectified => "rectified",
        };
        let function = function(&device, "units", &format!("units_{unit}_{dtype}"))?;
        let mut launch = function.builder();
        launch.arg(&mut out).arg(&mean_at).arg(&sample_at).arg(&low).arg(&self.out.mean_scale);
        launch.arg(&pre).arg(&bias).arg_or_null(&std).arg(&n).arg(&n_units);
        launch.arg(&drawn).draws(&philox, &counter);
        // SAFETY: (T*, 2 × long long, size_t, float, 3 × const float*, 2 × size_t, unsigned, 3 × unsigned long long, const long
        // long*), in this order. `units_` checked that pre holds n floats and bias and std n_units; a plane's n
        // elements end within `out`, which is sliced to the further end; the planes are two of a layout that candle
        // found free of overlap, and no source shares their storage. The counter is one i64 or null.
        unsafe { launch.launch(linear_launch(n.div_ceil(4), 4096)) }.w()?;
        Ok(())
    }
}
