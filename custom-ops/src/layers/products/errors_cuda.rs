//! The launches of `kernels/layers/product_errors.cu`, and of
//! `kernels/layers/sm_90a/product_errors.cu` on GPUs of capability 9.0.
use super::operands::starts_on;
use super::product::Product;
use super::warpgroup_operands::Extent;
use super::warpgroup_tile::Tile;
use super::{DELTAS, ERRORS, operands::Sizes, shape};
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Kernel, operands};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Device, Result, Tensor};
use half::{bf16, f16};

/// The files of the kernels.
const OF_WARPS: &str = "product_errors";
const OF_WARPGROUPS: &str = "sm_90a/product_errors";

/// `Numbers` of the kernels, in their order; `product` is `Sizes` or `Extent`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers<P> {
    product: P,
    low: u64,
    scale: f32,
    places: u32,
}
// SAFETY: `Sizes`, of 32 bytes, a 64-bit number and two of 32 bits, without padding, the same
// layout as the kernels' struct.
unsafe impl DeviceRepr for Numbers<Sizes> {}
// SAFETY: the same with `Extent`, of 16 bytes.
unsafe impl DeviceRepr for Numbers<Extent> {}

/// Places that the sums of a launch need, whichever kernel it is of.
pub(super) fn places(device: &Device, m: usize, n: usize, k: usize) -> Result<usize> {
    let limits = match device {
        Device::Cuda(device) => Gpu::of(device)?.limits(),
        _ => return Ok(1),
    };
    let of_warps =
        if shape::fuse(limits) { blocks_of(shape::Shape::of(limits, m, n, k).grid(m, n)) } else { 1 };
    let parts: &[_] = if limits.has_warpgroup_products() { &[[1, 1], [2, 2]] } else { &[] };
    let tiles = parts.iter().filter_map(|&parts| Tile::of(limits, [m, n, k], parts));
    Ok(tiles.map(|tile| blocks_of(tile.grid(n))).fold(of_warps, usize::max))
}

fn blocks_of<const N: usize>(grid: [usize; N]) -> usize {
    grid.iter().product()
}

/// The errors in one kernel.
pub(super) struct Errors {
    product: Product,
    at: usize,
    /// Planes to the second part, if there is one.
    low: Option<usize>,
    scale: f32,
    dtype: DType,
}

/// The deltas in one kernel.
pub(super) struct Deltas {
    product: Product,
    at: usize,
    of: usize,
    /// Planes to the second part, if there is one.
    low: Option<usize>,
    scale: f32,
    dtype: DType,
}

impl Errors {
    /// The kernel for these operands, whose shapes were checked; none where the ops go one after
    /// the other.
    pub(super) fn fits(
        planes: &Tensor,
        (at, low): (usize, Option<usize>),
        a: &Tensor,
        b: &Tensor,
        scale: f32,
        bias: &Tensor,
        target: &Tensor,
    ) -> Result<Option<Self>> {
        let product = Product::of_parts(planes, a, b, true)?;
        let aligned = starts_on(4, bias) && starts_on(4, target);
        Ok(product.filter(|_| aligned).map(|product| Self { product, at, low, scale, dtype: planes.dtype() }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(
        &self,
        planes: &Tensor,
        a: &Tensor,
        b: &Tensor,
        bias: &Tensor,
        target: &Tensor,
        gathered: &Tensor,
    ) -> Result<()> {
        let io = operands(ERRORS).write("planes", planes).write("gathered", gathered);
        io.read("a", a).read("b", b).read("bias", bias).read("target", target).run(self)
    }
}

impl Deltas {
    /// The kernel for these operands, whose shapes were checked; none where the ops go one after
    /// the other.
    pub(super) fn fits(
        planes: &Tensor,
        (at, of, low): (usize, usize, Option<usize>),
        a: &Tensor,
        b: &Tensor,
        scale: f32,
    ) -> Result<Option<Self>> {
        let product = Product::of_parts(planes, a, b, false)?;
        Ok(product.map(|product| Self { product, at, of, low, scale, dtype: planes.dtype() }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        operands(DELTAS).write("planes", planes).read("a", a).read("b", b).run(self)
    }
}

impl Errors {
    fn launch<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let of_plane = self.product.entries();
        let ([planes, gathered], [a, b, bias, target]) = io.parts()?;
        let (mut planes, bias, target) =
            (planes.elements::<T>()?, bias.elements::<f32>()?, target.elements::<f32>()?);
        let mut gathered = gathered.elements::<f64>()?;
        let (low, places) = (entries(self.low, of_plane), (gathered.len() / 2) as u32);
        let mut out = planes.slice_mut(self.at * of_plane..);
        match self.product {
            Product::Warps(of) => {
                let (a, b, product) = of.views(a, b)?;
                let launch = gpu.launch(ERRORS, OF_WARPS, &of.kernel("product_errors"))?;
                let launch = launch.write(&mut out).write(&mut gathered);
                let launch = launch.read(&a).read(&b).read(&bias).read(&target);
                let launch = launch.num(Numbers { product, low, scale: self.scale, places });
                // SAFETY: (half*, double*, 2 × const half*, 2 × const float*, Numbers). The op
                // checked shapes and types, that `at + low` is a plane and that there are as many
                // places as blocks; `fits` that rows, parts, planes, bias and target begin on four
                // entries; shared memory is the shape's `SHARED`.
                unsafe { of.lay_out(launch).go() }
            }
            Product::Warpgroups(of) => {
                let views = of.views::<T>(a, b)?;
                let maps = of.maps(gpu, &views)?;
                let kernel = of.kernel(&format!("product_errors_{dtype}"));
                let launch = gpu.launch(ERRORS, OF_WARPGROUPS, &kernel)?;
                let launch = launch.write(&mut out).write(&mut gathered).read(&bias).read(&target);
                let launch = launch.num(maps.a).num(maps.b);
                let launch = launch.num(Numbers { product: of.extent(), low, scale: self.scale, places });
                // SAFETY: (T*, double*, 2 × const float*, 2 × TensorMap, Numbers). As above;
                // `fits` also checked that rows and parts of the operands begin on 16 bytes, and
                // their maps have the blocks of the shape.
                unsafe { of.lay_out(launch).go() }
            }
        }
    }
}

impl Deltas {
    fn launch<T: CudaDType>(&self, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let of_plane = self.product.entries();
        let ([planes], [a, b]) = io.parts()?;
        let mut planes = planes.elements::<T>()?;
        let plane = |i: usize| (i * of_plane) as u64;
        let (low, scale, places) = (entries(self.low, of_plane), self.scale, 0);
        match self.product {
            Product::Warps(of) => {
                let (a, b, product) = of.views(a, b)?;
                let launch = gpu.launch(DELTAS, OF_WARPS, &of.kernel("product_deltas"))?;
                let launch = launch.write(&mut planes).num(plane(self.at)).num(plane(self.of));
                let launch = launch.read(&a).read(&b).num(Numbers { product, low, scale, places });
                // SAFETY: (half*, 2 × unsigned long long, 2 × const half*, Numbers). The op checked
                // shapes and types, and that `at + low` and `of + low` are planes; `fits` that
                // rows, parts and planes begin on four entries; shared memory is the shape's
                // `SHARED`.
                unsafe { of.lay_out(launch).go() }
            }
            Product::Warpgroups(of) => {
                let views = of.views::<T>(a, b)?;
                let maps = of.maps(gpu, &views)?;
                let kernel = of.kernel(&format!("product_deltas_{dtype}"));
                let launch = gpu.launch(DELTAS, OF_WARPGROUPS, &kernel)?;
                let launch = launch.write(&mut planes).num(plane(self.at)).num(plane(self.of));
                let launch = launch.num(maps.a).num(maps.b);
                let launch = launch.num(Numbers { product: of.extent(), low, scale, places });
                // SAFETY: (T*, 2 × unsigned long long, 2 × TensorMap, Numbers). As above; `fits`
                // also checked that rows and parts of the operands begin on 16 bytes, and their
                // maps have the blocks of the shape.
                unsafe { of.lay_out(launch).go() }
            }
        }
    }
}

/// What kernels take for so many planes: 0 is no second part.
fn entries(planes: Option<usize>, of_plane: usize) -> u64 {
    planes.map_or(0, |planes| (planes * of_plane) as u64)
}

impl Kernel for Errors {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.low, self.dtype) {
            (Some(_), _) => self.launch::<f16>("f16x2", gpu, io),
            (None, DType::F16) => self.launch::<f16>("f16", gpu, io),
            (None, _) => self.launch::<bf16>("bf16", gpu, io),
        }
    }
}

impl Kernel for Deltas {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.low, self.dtype) {
            (Some(_), _) => self.launch::<f16>("f16x2", gpu, io),
            (None, DType::F16) => self.launch::<f16>("f16", gpu, io),
            (None, _) => self.launch::<bf16>("bf16", gpu, io),
        }
    }
}
