//! The product of 16-bit numbers, or of numbers in two parts, and its units in one launch of `kernels/layers/sm_90a/product_units.cu`, on GPUs of
//! capability 9.0.
use super::operands::starts_on;
use super::warpgroup_operands::{Extent, Product};
use super::warpgroup_shape::Forms;
use crate::core::cuda::Gpu;
use crate::core::draw::{Draws, Place};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::Philox;
use crate::layers::units::{Unit, UnitPlanes, check_units};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Result, Tensor};
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
    extent: Extent,
    gaussian: u32,
    drawn: u32,
}
// SAFETY: six 64-bit numbers, two of 32 bits, `Extent` and two more of 32 bits, without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Numbers {}

pub(super) struct Warpgroups<'a> {
    product: Product,
    dtype: DType,
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
        let dtype = planes.dtype();
        let Some(product) = Product::of(planes, a, b, Forms::of_units)? else { return Ok(None) };
        let sizes = check_units(planes, bias, out)?;
        let two = product.parts[1] == 2;
        let known = (dtype == DType::F16 || dtype == DType::BF16 && !two)
            && starts_on(4, bias)
            && (unit == Unit::Bernoulli || unit == Unit::Gaussian && out.sample.is_none())
            && out.low.is_some() == two
            && sizes == (product.m, product.n);
        if !known {
            return Ok(None);
        }
        let place = draws.place(OP, planes.device())?;
        Ok(Some(Self { product, dtype, scale, unit, out, place }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor, bias: &Tensor) -> Result<()> {
        let io = operands(OP).write("planes", planes).read("a", a).read("b", b).read("bias", bias);
        io.maybe("counter", self.place.and_then(|place| place.counter)).run(self)
    }

    fn launch<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let product = self.product;
        let ([planes], [a, b, bias, counter]) = io.parts()?;
        let views = product.views::<T>(a, b)?;
        let (mut planes, bias, counter) =
            (planes.elements::<T>()?, bias.elements::<f32>()?, counter.maybe::<i64>()?);
        let maps = product.maps(gpu, &views)?;
        let of_plane = product.m * product.n;
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
            extent: product.extent(),
            gaussian: (self.unit == Unit::Gaussian).into(),
            drawn: self.place.is_some().into(),
        };
        let side = if product.transposed { "transposed" } else { "k_major" };
        let kernel = product.kernel(&format!("product_units_{dtype}_{side}"));
        let launch = gpu.launch(OP, "sm_90a/product_units", &kernel)?;
        let launch =
            launch.write(&mut planes).read(&bias).maybe(&counter).num(maps.a).num(maps.b).num(numbers);
        // SAFETY: (T*, const float*, const long long* or null, 2 × TensorMap, Numbers). `fits` checked shapes, types and layouts, that
        // rows, parts and operands begin on 16 bytes and planes and bias on four entries; the maps are those of the operands, the blocks of
        // which the shape says, planes lie within their tensor, and shared memory is that of the shape.
        unsafe { product.lay_out(launch).go() }
    }
}

impl Kernel for Warpgroups<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.dtype, self.product.parts) {
            (DType::BF16, _) => self.launch::<bf16>("bf16", gpu, io),
            (_, [_, 1]) => self.launch::<f16>("f16", gpu, io),
            _ => self.launch::<f16>("f16x2", gpu, io),
        }
    }
}
