//! The product and its units in one launch: of `kernels/layers/sm_90a/product_units.cu` on GPUs of
//! capability 9.0, for 16-bit numbers and for numbers in two parts, or of
//! `kernels/layers/product_units.cu`, for those in two parts.
use super::operands::{self as warps, Sizes, starts_on};
use super::product::Product;
use super::warpgroup_operands::{self as warpgroups, Extent};
use crate::core::cuda::Gpu;
use crate::core::draw::{Draws, Place, RowBlocks};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::Philox;
use crate::layers::units::{Unit, UnitPlanes, check_units};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Result, Tensor};
use half::{bf16, f16};

const OP: &str = "units_of_product_";

/// `UnitNumbers` of the kernels, in their order; `product` is `Sizes` or `Extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers<P> {
    product: P,
    low: u64,
    mean_at: i64,
    sample_at: i64,
    seed: u64,
    stream: u64,
    offset: u64,
    by: u64,
    at: u64,
    scale: f32,
    mean_scale: f32,
    gaussian: u32,
    drawn: u32,
}
// SAFETY: `Sizes`, of 32 bytes, eight 64-bit numbers and four of 32 bits, without padding, the same
// layout as the kernels' struct.
unsafe impl DeviceRepr for Numbers<Sizes> {}
// SAFETY: the same with `Extent`, of 16 bytes.
unsafe impl DeviceRepr for Numbers<Extent> {}

/// The units in one kernel.
pub(super) struct Units<'a> {
    product: Product,
    dtype: DType,
    scale: f32,
    unit: Unit,
    out: UnitPlanes,
    place: Option<Place<'a>>,
    blocks: RowBlocks,
}

impl<'a> Units<'a> {
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
        let dtype = planes.dtype();
        // Weights of two parts: up from numbers of two, down from states of one.
        let of_two = |a_parts, transposed| matches!((a_parts, transposed), (2, false) | (1, true));
        let takes = |[a_parts, b_parts]: [usize; 2], transposed| match b_parts {
            1 => a_parts == 1,
            _ => of_two(a_parts, transposed),
        };
        let of_warpgroups = warpgroups::Product::of(planes, planes.dtype(), a, b, takes)?.filter(|of| {
            let two = of.parts[1] == 2;
            (dtype == DType::F16 || dtype == DType::BF16 && !two) && out.low.is_some() == two
        });
        let of_warps = |of: &warps::Product| of_two(of.a_parts, of.transposed) && out.low.is_some();
        let product = match of_warpgroups {
            Some(of) => Some(Product::Warpgroups(of)),
            None => warps::Product::of(planes, a, b)?.filter(of_warps).map(Product::Warps),
        };
        let Some(product) = product else { return Ok(None) };
        let sizes = check_units(planes, bias, out)?;
        let known = (unit == Unit::Bernoulli || unit == Unit::Gaussian && out.sample.is_none())
            && sizes == product.sizes()
            && starts_on(4, bias);
        if !known {
            return Ok(None);
        }
        let (place, blocks) = draws.place_of_columns(OP, sizes.1, planes.device())?.unzip();
        let blocks = blocks.flatten().unwrap_or(RowBlocks { by: sizes.1 / 4, at: 0 });
        Ok(Some(Self { product, dtype, scale, unit, out, place, blocks }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor, bias: &Tensor) -> Result<()> {
        let io = operands(OP).write("planes", planes).read("a", a).read("b", b).read("bias", bias);
        io.maybe("counter", self.place.and_then(|place| place.counter)).run(self)
    }

    fn numbers<P>(&self, product: P) -> Numbers<P> {
        let of_plane = self.product.entries();
        let places = self.out.places(of_plane, of_plane);
        let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox);
        Numbers {
            product,
            low: places.low,
            mean_at: places.mean,
            sample_at: places.sample,
            seed: philox.seed,
            stream: philox.stream,
            offset: philox.offset,
            by: self.blocks.by as u64,
            at: self.blocks.at as u64,
            scale: self.scale,
            mean_scale: self.out.mean_scale,
            gaussian: (self.unit == Unit::Gaussian).into(),
            drawn: self.place.is_some().into(),
        }
    }

    fn launch<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([planes], [a, b, bias, counter]) = io.parts()?;
        let (mut planes, bias, counter) =
            (planes.elements::<T>()?, bias.elements::<f32>()?, counter.maybe::<i64>()?);
        let side = |transposed: bool| if transposed { "transposed" } else { "k_major" };
        match self.product {
            Product::Warps(of) => {
                let (a, b, product) = of.views(a, b)?;
                let kernel = of.kernel(&format!("product_units_{}", side(of.transposed)));
                let launch = gpu.launch(OP, "product_units", &kernel)?.write(&mut planes).read(&a).read(&b);
                let launch = launch.read(&bias).maybe(&counter).num(self.numbers(product));
                // SAFETY: (half*, 2 × const half*, const float*, const long long* or null,
                // Numbers). `fits` checked shapes, types, layouts and that rows, parts and planes
                // begin on four entries, eight for `wide`; the spans end with the last part, the
                // planes lie within their tensor, and shared memory is the shape's `SHARED`.
                unsafe { of.lay_out(launch).go() }
            }
            Product::Warpgroups(of) => {
                let views = of.views::<T>(a, b)?;
                let maps = of.maps(gpu, &views)?;
                let kernel = of.kernel(&format!("product_units_{dtype}_{}", side(of.transposed)));
                let launch = gpu.launch(OP, "sm_90a/product_units", &kernel)?.write(&mut planes).read(&bias);
                let launch = launch.maybe(&counter).num(maps.a).num(maps.b).num(self.numbers(of.extent()));
                // SAFETY: (T*, const float*, const long long* or null, 2 × TensorMap, Numbers). As
                // above; `fits` also checked that rows, parts and operands begin on 16 bytes; the
                // maps are those of the operands, in the blocks of which the shape says.
                unsafe { of.lay_out(launch).go() }
            }
        }
    }
}

impl Kernel for Units<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.dtype, self.product) {
            (DType::BF16, _) => self.launch::<bf16>("bf16", gpu, io),
            (_, Product::Warpgroups(of)) if of.parts[1] == 1 => self.launch::<f16>("f16", gpu, io),
            _ => self.launch::<f16>("f16x2", gpu, io),
        }
    }
}
