//! The product and its units in one launch of `kernels/layers/product_units.cu`.
use super::operands::{Product, Sizes, starts_on};
use crate::core::cuda::Gpu;
use crate::core::draw::{Draws, Place};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::Philox;
use crate::layers::units::{Unit, UnitPlanes, check_units};
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, Result, Tensor};
use half::f16;

const OP: &str = "units_of_product_";

/// `Numbers` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    product: Sizes,
    low: u64,
    mean_at: i64,
    sample_at: i64,
    seed: u64,
    stream: u64,
    offset: u64,
    scale: f32,
    mean_scale: f32,
    gaussian: u32,
    drawn: u32,
}
// SAFETY: `Sizes`, six 64-bit numbers and four of 32 bits, without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Numbers {}

pub(super) struct Fused<'a> {
    product: Product,
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
        let Some(product) = Product::of(planes, a, b)? else { return Ok(None) };
        let sizes = check_units(planes, bias, out)?;
        // Up from numbers of two parts, down from states of one.
        let known = matches!((product.a_parts, product.transposed), (2, false) | (1, true))
            && (unit == Unit::Bernoulli || unit == Unit::Gaussian && out.sample.is_none())
            && out.low.is_some()
            && sizes == (product.m, product.n)
            && starts_on(4, bias);
        if !known {
            return Ok(None);
        }
        let place = draws.place(OP, planes.device())?;
        Ok(Some(Self { product, scale, unit, out, place }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor, bias: &Tensor) -> Result<()> {
        let io = operands(OP).write("planes", planes).read("a", a).read("b", b).read("bias", bias);
        io.maybe("counter", self.place.and_then(|place| place.counter)).run(self)
    }
}

impl Kernel for Fused<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let of_plane = self.product.m * self.product.n;
        let ([planes], [a, b, bias, counter]) = io.parts()?;
        let (a, b, product) = self.product.views(a, b)?;
        let (mut planes, bias, counter) =
            (planes.elements::<f16>()?, bias.elements::<f32>()?, counter.maybe::<i64>()?);
        let places = self.out.places(of_plane, of_plane);
        let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox);
        let numbers = Numbers {
            product,
            low: places.low,
            mean_at: places.mean,
            sample_at: places.sample,
            seed: philox.seed,
            stream: philox.stream,
            offset: philox.offset,
            scale: self.scale,
            mean_scale: self.out.mean_scale,
            gaussian: (self.unit == Unit::Gaussian).into(),
            drawn: self.place.is_some().into(),
        };
        let of = if self.product.transposed { "product_units_transposed" } else { "product_units_k_major" };
        let launch = gpu.launch(OP, "product_units", &self.product.kernel(of))?;
        let launch = launch.write(&mut planes).read(&a).read(&b).read(&bias).maybe(&counter).num(numbers);
        // SAFETY: (half*, 2 × const half*, const float*, const long long* or null, Numbers). `fits` checked shapes, types,
        // layouts and that rows, parts and planes begin on four entries, eight for `wide`; the spans end with the last
        // part, the planes lie within their tensor, and shared memory is the shape's `SHARED`.
        unsafe { self.product.lay_out(launch).go() }
    }
}
