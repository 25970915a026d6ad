//! The product and its units in one launch of `kernels/product_units.cu`.
use super::shape::Shape;
use super::{Draws, Unit, UnitPlanes};
use crate::cuda::Gpu;
use crate::draw::Place;
use crate::gemm::{Order, PartSizes};
use crate::op::{Io, Kernel, operands};
use crate::philox::Philox;
use crate::units::check_planes;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CpuStorage, CudaStorage, DType, Device, Result, Tensor};
use half::f16;

const OP: &str = "units_of_product_";

/// `Numbers` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    a_part: u64,
    b_part: u64,
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
    wide: u32,
}
// SAFETY: eight 64-bit numbers and eight of 32 bits, without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Numbers {}

pub(super) struct Fused<'a> {
    shape: Shape,
    a_parts: usize,
    turned: bool,
    /// Whether rows, parts and operands begin on eight entries.
    wide: bool,
    m: usize,
    n: usize,
    k: usize,
    scale: f32,
    unit: Unit,
    out: UnitPlanes,
    place: Option<Place<'a>>,
}

impl<'a> Fused<'a> {
    /// The kernel for these operands; none where the ops go one after the other.
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
        if !super::shape::fuse(limits) {
            return Ok(None);
        }
        let PartSizes { a_parts, b_parts, m, k, n } = PartSizes::of(a, b)?;
        let sizes = check_planes(planes, bias, out)?;
        let part = |t: &Tensor| t.narrow(0, 0, 1)?.squeeze(0);
        let turned = match (Order::of("a", &part(a)?)?, Order::of("b", &part(b)?)?) {
            (Order::RowMajor { line: of_a }, Order::RowMajor { line }) if (of_a, line) == (k, n) => true,
            (Order::RowMajor { line: of_a }, Order::ColumnMajor { line }) if (of_a, line) == (k, k) => false,
            _ => return Ok(None),
        };
        // Up from numbers of two parts, down from states of one.
        let known = matches!((a_parts, b_parts, turned), (2, 2, false) | (1, 2, true))
            && [planes, a, b].iter().all(|t| t.dtype() == DType::F16)
            && [a, b].iter().all(|t| t.device().same_device(planes.device()))
            && (unit == Unit::Bernoulli || unit == Unit::Gaussian && out.sample.is_none())
            && out.low.is_some()
            && planes.is_contiguous()
            && sizes == (m, n)
            && [m, n, k].iter().all(|&size| size > 0 && i32::try_from(size).is_ok());
        let starts_on = |entries: usize, t: &Tensor| t.layout().start_offset().is_multiple_of(entries);
        // Rows, parts and the operands begin on as many entries.
        let aligned = |entries: usize| {
            let parts = |t: &Tensor| t.dims()[0] == 1 || t.stride()[0].is_multiple_of(entries);
            let sizes = n.is_multiple_of(entries) && k.is_multiple_of(entries);
            sizes && [a, b].iter().all(|t| starts_on(entries, t) && parts(t))
        };
        if !(known && aligned(4) && starts_on(4, bias) && starts_on(4, planes)) {
            return Ok(None);
        }
        let shape = Shape::of(limits, m, n, k);
        let place = draws.place(OP, planes.device())?;
        let wide = aligned(8);
        Ok(Some(Self { shape, a_parts, turned, wide, m, n, k, scale, unit, out, place }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor, bias: &Tensor) -> Result<()> {
        let io = operands(OP).write("planes", planes).read("a", a).read("b", b).read("bias", bias);
        io.maybe("counter", self.place.and_then(|place| place.counter)).run(self)
    }
}

impl Kernel for Fused<'_> {
    fn cpu(&self, _: Io<'_, CpuStorage>) -> Result<()> {
        candle::bail!("{OP}: this kernel runs on a GPU")
    }

    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let Self { shape, a_parts, turned, m, n, k, .. } = *self;
        let ([planes], [a, b, bias, counter]) = io.parts()?;
        let (a_part, b_part) = (a.layout()?.stride()[0], b.layout()?.stride()[0]);
        let a = a.span::<f16>((a_parts - 1) * a_part + m * k)?;
        let b = b.span::<f16>(b_part + k * n)?;
        let (mut planes, bias, counter) =
            (planes.elements::<f16>()?, bias.elements::<f32>()?, counter.maybe::<i64>()?);
        let place_of = |plane: Option<usize>| plane.map_or(-1, |plane| (plane * m * n) as i64);
        let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox);
        let numbers = Numbers {
            a_part: a_part as u64,
            b_part: b_part as u64,
            low: self.out.low.map_or(0, |low| (low * m * n) as u64),
            mean_at: place_of(self.out.mean),
            sample_at: place_of(self.out.sample),
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
            wide: self.wide.into(),
        };
        let lay = if turned { "turned" } else { "straight" };
        let name = format!("product_units_{lay}_{}x{}", shape.wm, shape.cluster);
        let launch = gpu.launch(OP, "product_units", &name)?.write(&mut planes).read(&a).read(&b).read(&bias);
        let grid = [shape.cluster * n.div_ceil(shape.tn), m.div_ceil(64 * shape.wm), 1];
        let launch = launch.maybe(&counter).num(numbers).grid(grid, (shape.threads(), 1, 1));
        // SAFETY: (half*, 2 × const half*, const float*, const long long* or null, Numbers). `fits` checked shapes, types,
        // layouts and that rows, parts and planes begin on four entries, eight for `wide`; the spans end with the last
        // part, the planes lie within their tensor, and shared memory is the shape's `SHARED`.
        unsafe { launch.shared(shape.shared_bytes(a_parts, turned)).overlapped().go() }
    }
}
