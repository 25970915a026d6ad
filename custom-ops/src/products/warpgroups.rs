//! The product of 16-bit numbers, or of numbers in two parts, and its units in one launch of `kernels/sm_90a/product_units.cu`, on GPUs of
//! capability 9.0.
use super::operands::{starts_on, turned};
use super::warpgroup_shape::Shape;
use crate::cuda::{Gpu, TensorMap};
use crate::draw::{Draws, Place};
use crate::gemm::PartSizes;
use crate::op::{In, Io, Kernel, operands};
use crate::philox::Philox;
use crate::units::{Unit, UnitPlanes, check_units};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Device, Result, Tensor};
use half::{bf16, f16};

const OP: &str = "units_of_product_";

/// `Numbers` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    low: u64,
    mean_at: i64,
    sample_at: i64,
    seed: u64,
    stream: u64,
    offset: u64,
    scale: f32,
    mean_scale: f32,
    m: i32,
    n: i32,
    k: i32,
    gaussian: u32,
    drawn: u32,
    cluster: u32,
}
// SAFETY: six 64-bit numbers and eight of 32 bits, without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Numbers {}

pub(super) struct Warpgroups<'a> {
    shape: Shape,
    /// Of `a` and of `b`.
    parts: [usize; 2],
    /// Whether `b` is row-major.
    turned: bool,
    dtype: DType,
    m: usize,
    n: usize,
    k: usize,
    scale: f32,
    unit: Unit,
    out: UnitPlanes,
    place: Option<Place<'a>>,
}

impl<'a> Warpgroups<'a> {
    /// The kernel for these operands; none where other ones are for them.
    ///
    /// # Errors
    /// Those of the ops when operands do not fit.
    #[expect(clippy::too_many_arguments, reason = "those of the op")]
    pub(super) fn fits(
        planes: &Tensor,
        a: &Tensor,
        b: &Tensor,
        scale: f32,
        bias: &Tensor,
        unit: Unit,
        out: UnitPlanes,
        draws: Draws<'a>,
    ) -> Result<Option<Self>> {
        let Device::Cuda(device) = planes.device() else { return Ok(None) };
        let limits = Gpu::of(device)?.limits();
        if !limits.has_warpgroup_products() {
            return Ok(None);
        }
        let PartSizes { a_parts, b_parts, m, k, n } = PartSizes::of(a, b)?;
        let Some(turned) = turned(a, b, k, n)? else { return Ok(None) };
        let dtype = planes.dtype();
        let sizes = check_units(planes, bias, out)?;
        // In two parts up from numbers, down from states of 0 and 1, which have one.
        let two = match (a_parts, b_parts, turned) {
            (1, 1, _) => Some(false),
            (2, 2, false) | (1, 2, true) => Some(true),
            _ => None,
        };
        let Some(two) = two else { return Ok(None) };
        let known = (dtype == DType::F16 || dtype == DType::BF16 && !two)
            && [a, b].iter().all(|t| t.dtype() == dtype && t.device().same_device(planes.device()))
            && planes.is_contiguous()
            && [m, n, k].iter().all(|&size| size > 0 && i32::try_from(size).is_ok())
            // Copies take 16 bytes, results are written by four.
            && k.is_multiple_of(8)
            && n.is_multiple_of(if turned { 8 } else { 4 })
            && [a, b].iter().all(|t| starts_on(8, t) && (t.dims()[0] == 1 || t.stride()[0].is_multiple_of(8)))
            && [planes, bias].iter().all(|t| starts_on(4, t))
            && (unit == Unit::Bernoulli || unit == Unit::Gaussian && out.sample.is_none())
            && out.low.is_some() == two
            && sizes == (m, n);
        if !known {
            return Ok(None);
        }
        let parts = [a_parts, b_parts];
        let Some(shape) = Shape::of(limits, [m, n, k], parts, turned) else { return Ok(None) };
        let place = draws.place(OP, planes.device())?;
        Ok(Some(Self { shape, parts, turned, dtype, m, n, k, scale, unit, out, place }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor, bias: &Tensor) -> Result<()> {
        let io = operands(OP).write("planes", planes).read("a", a).read("b", b).read("bias", bias);
        io.maybe("counter", self.place.and_then(|place| place.counter)).run(self)
    }

    fn launch<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let Self { shape, parts: [a_parts, b_parts], turned, m, n, k, .. } = *self;
        let ([planes], [a, b, bias, counter]) = io.parts()?;
        let (a_apart, b_apart) = (apart(&a, a_parts, m * k)?, apart(&b, b_parts, k * n)?);
        let a = a.span::<T>((a_parts - 1) * a_apart + m * k)?;
        let b = b.span::<T>((b_parts - 1) * b_apart + k * n)?;
        let (mut planes, bias, counter) =
            (planes.elements::<T>()?, bias.elements::<f32>()?, counter.maybe::<i64>()?);
        let (a, b) = (gpu.to_read(&a), gpu.to_read(&b));
        let line = Shape::line_bytes(self.parts);
        let a_map = TensorMap::of(a.at, self.dtype, &[k, m, a_parts], &[k, a_apart], line, shape.rows())?;
        let b_map = match turned {
            false => TensorMap::of(b.at, self.dtype, &[k, n, b_parts], &[k, b_apart], line, shape.columns)?,
            true => {
                let lines = Shape::depth(self.parts);
                TensorMap::of(b.at, self.dtype, &[n, k, b_parts], &[n, b_apart], line, lines)?
            }
        };
        let of_plane = m * n;
        let places = self.out.places(of_plane, of_plane);
        let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox);
        let numbers = Numbers {
            low: places.low,
            mean_at: places.mean,
            sample_at: places.sample,
            seed: philox.seed,
            stream: philox.stream,
            offset: philox.offset,
            scale: self.scale,
            mean_scale: self.out.mean_scale,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            gaussian: (self.unit == Unit::Gaussian).into(),
            drawn: self.place.is_some().into(),
            cluster: shape.cluster as u32,
        };
        let side = if turned { "turned" } else { "straight" };
        let kernel = format!("product_units_{dtype}_{side}_{}x{}", shape.warpgroups, shape.columns);
        let launch = gpu.launch(OP, "sm_90a/product_units", &kernel)?;
        let launch = launch.write(&mut planes).read(&bias).maybe(&counter).num(a_map).num(b_map).num(numbers);
        let launch =
            launch.grid(shape.grid(m, n), (shape.threads(), 1, 1)).shared(shape.shared_bytes(self.parts));
        // SAFETY: (T*, const float*, const long long* or null, 2 × TensorMap, Numbers). `fits` checked shapes, types and layouts, that
        // rows, parts and operands begin on 16 bytes and planes and bias on four entries; the maps are those of the operands, the blocks of
        // which the shape says, planes lie within their tensor, and shared memory is that of the shape.
        unsafe { launch.clusters_of(shape.cluster as u32).overlapped().go() }
    }
}

impl Kernel for Warpgroups<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.dtype, self.parts) {
            (DType::BF16, _) => self.launch::<bf16>("bf16", gpu, io),
            (_, [_, 1]) => self.launch::<f16>("f16", gpu, io),
            _ => self.launch::<f16>("f16x2", gpu, io),
        }
    }
}

/// Entries from one part of an operand to the next; `whole` where there is one part.
fn apart(of: &In<'_, CudaStorage>, parts: usize, whole: usize) -> Result<usize> {
    if parts == 1 { Ok(whole) } else { Ok(of.layout()?.stride()[0]) }
}
