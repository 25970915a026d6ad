//! The launches of `kernels/product_errors.cu`.
use super::operands::{Product, Sizes, starts_on};
use super::shape::{self, Shape};
use crate::cuda::Gpu;
use crate::op::{Io, Kernel, operands};
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, Device, Result, Tensor};
use half::f16;

/// `Numbers` of the kernels, in their order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    product: Sizes,
    low: u64,
    scale: f32,
    places: u32,
}
// SAFETY: `Sizes`, a 64-bit number and two of 32 bits, without padding, the same layout as the kernels' struct.
unsafe impl DeviceRepr for Numbers {}

/// Places that the sums of a launch need.
pub(super) fn places(device: &Device, m: usize, n: usize, k: usize) -> Result<usize> {
    let limits = match device {
        Device::Cuda(device) => Gpu::of(device)?.limits(),
        _ => return Ok(1),
    };
    Ok(if shape::fuse(limits) { Shape::of(limits, m, n, k).grid(m, n).iter().product() } else { 1 })
}

/// The errors in one kernel.
pub(super) struct Errors {
    product: Product,
    at: usize,
    low: usize,
    scale: f32,
}

/// The deltas in one kernel.
pub(super) struct Deltas {
    product: Product,
    at: usize,
    of: usize,
    low: usize,
    scale: f32,
}

impl Errors {
    /// The kernel for these operands, whose shapes were checked; none where the ops go one after the other.
    pub(super) fn fits(
        planes: &Tensor,
        (at, low): (usize, usize),
        a: &Tensor,
        b: &Tensor,
        scale: f32,
        bias: &Tensor,
        target: &Tensor,
    ) -> Result<Option<Self>> {
        let product =
            Product::of(planes, a, b)?.filter(|product| (product.a_parts, product.turned) == (2, true));
        let aligned = starts_on(4, bias) && starts_on(4, target);
        Ok(product.filter(|_| aligned).map(|product| Self { product, at, low, scale }))
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
        let io = operands(super::errors::ERRORS).write("planes", planes).write("gathered", gathered);
        io.read("a", a).read("b", b).read("bias", bias).read("target", target).run(self)
    }
}

impl Deltas {
    /// The kernel for these operands, whose shapes were checked; none where the ops go one after the other.
    pub(super) fn fits(
        planes: &Tensor,
        (at, of, low): (usize, usize, usize),
        a: &Tensor,
        b: &Tensor,
        scale: f32,
    ) -> Result<Option<Self>> {
        let product =
            Product::of(planes, a, b)?.filter(|product| (product.a_parts, product.turned) == (2, false));
        Ok(product.map(|product| Self { product, at, of, low, scale }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw.
    pub(super) fn run(&self, planes: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
        operands(super::errors::DELTAS).write("planes", planes).read("a", a).read("b", b).run(self)
    }
}

impl Kernel for Errors {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let of_plane = self.product.m * self.product.n;
        let ([planes, gathered], [a, b, bias, target]) = io.parts()?;
        let (a, b, product) = self.product.views(a, b)?;
        let (mut planes, bias, target) =
            (planes.elements::<f16>()?, bias.elements::<f32>()?, target.elements::<f32>()?);
        let mut gathered = gathered.elements::<f64>()?;
        let places = (gathered.len() / 2) as u32;
        let numbers = Numbers { product, low: (self.low * of_plane) as u64, scale: self.scale, places };
        let mut out = planes.slice_mut(self.at * of_plane..);
        let kernel = self.product.kernel("product_errors");
        let launch = gpu.launch(super::errors::ERRORS, "product_errors", &kernel)?;
        let launch = launch.write(&mut out).write(&mut gathered).read(&a).read(&b).read(&bias).read(&target);
        // SAFETY: (half*, double*, 2 × const half*, 2 × const float*, Numbers). The op checked shapes and types, that `at + low` is a
        // plane and that there are as many places as blocks; `fits` that rows, parts, planes, bias and target begin on four
        // entries; shared memory is the shape's `SHARED`.
        unsafe { self.product.lay_out(launch.num(numbers)).go() }
    }
}

impl Kernel for Deltas {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let of_plane = self.product.m * self.product.n;
        let ([planes], [a, b]) = io.parts()?;
        let (a, b, product) = self.product.views(a, b)?;
        let mut planes = planes.elements::<f16>()?;
        let numbers = Numbers { product, low: (self.low * of_plane) as u64, scale: self.scale, places: 0 };
        let plane = |i: usize| (i * of_plane) as u64;
        let kernel = self.product.kernel("product_deltas");
        let launch = gpu.launch(super::errors::DELTAS, "product_errors", &kernel)?;
        let launch = launch.write(&mut planes).num(plane(self.at)).num(plane(self.of)).read(&a).read(&b);
        // SAFETY: (half*, 2 × unsigned long long, 2 × const half*, Numbers). The op checked shapes and types, and that `at + low` and
        // `of + low` are planes; `fits` that rows, parts and planes begin on four entries; shared memory is the shape's `SHARED`.
        unsafe { self.product.lay_out(launch.num(numbers)).go() }
    }
}
