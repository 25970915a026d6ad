//! Units of a product: `units(scale · a b + bias)`.
//!
//! For numbers in two parts on CUDA this is one kernel, as exact as f32 products: what [`gemm_parts_`](crate::gemm_parts_) would
//! break up into many, it adds outside the tensor cores as it goes. Elsewhere the op is that product and [`units_`]; for one part
//! cuBLAS and [`units_`] are faster (9 µs against 10 at 192×576×1024 on an H200, 12 against 16 at 192×1024×4096).
use crate::draw::Draws;
use crate::gemm::gemm_parts_;
use crate::units::{Unit, UnitPlanes, units_};
use candle::{DType, Device, Result, Tensor};

/// Whether [`units_of_product_`] of numbers in two parts, with sizes that are multiples of four, is one kernel: on a GPU of capability
/// 9.0 or above with kernels built for one. Elsewhere it is many launches, and f32 operands are faster.
pub fn two_part_products_fuse(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => crate::cuda::has_clusters(device),
        _ => false,
    }
}

/// Means and samples of the units whose pre-activations are `scale · a b`, to planes of `planes`.
///
/// `a` is `[parts, m, k]` and `b` `[parts, k, n]` as for [`gemm_parts_`], `planes` `[n_planes, m, n]` of their type, and the
/// other arguments are those of [`units_`]; with two parts in `b`, `out.low` is given. `pre`, `[m, n]` f32, is room that may be
/// written. On CUDA sums run in another order than those of [`gemm_parts_`].
///
/// # Errors
/// When shapes, types or devices do not fit.
#[expect(clippy::too_many_arguments, reason = "a product and the units of it")]
pub fn units_of_product_(
    planes: &Tensor,
    pre: &Tensor,
    a: &Tensor,
    b: &Tensor,
    scale: f32,
    bias: &Tensor,
    unit: Unit,
    out: UnitPlanes,
    draws: Draws<'_>,
) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Some(fused) = cuda::Fused::fits(planes, a, b, scale, bias, unit, out, draws)? {
        return planes.inplace_op3(a, b, &fused);
    }
    gemm_parts_(pre, a, b, scale)?;
    units_(planes, pre, bias, unit, out, draws, None)
}

/// The same from candle's own ops, in f64 up to the units: `(mean, sample)`, f32; the tests hold [`units_of_product_`] to it.
///
/// # Errors
/// When shapes do not fit.
pub fn units_of_product_reference(
    a: &Tensor,
    b: &Tensor,
    scale: f32,
    bias: &Tensor,
    unit: Unit,
    philox: Option<crate::Philox>,
) -> Result<(Tensor, Tensor)> {
    let whole = |t: &Tensor| t.to_dtype(DType::F64)?.sum(0);
    let pre = (whole(a)?.matmul(&whole(b)?)? * f64::from(scale))?.to_dtype(DType::F32)?;
    crate::units_reference(&pre, bias, unit, philox, None)
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{Draws, Unit, UnitPlanes};
    use crate::cuda::{
        Operand, PushKernelArg, PushKernelArgs, WrapErr, function, optional_view, parts_view, view_mut,
    };
    use crate::draw::Place;
    use crate::gemm::{Order, PartSizes};
    use crate::units::check_planes;
    use candle::backend::BackendStorage;
    use candle::cuda::CudaStorage;
    use candle::cuda::cudarc::driver::DeviceRepr;
    use candle::{CpuStorage, DType, InplaceOp3, Layout, Result, Tensor};
    use half::f16;

    const OP: &str = "units_of_product_";
    /// Of kernels/product_units.cu.
    const DEPTH: usize = 32;
    const PAD: usize = 8;
    /// Blocks that run at about the same time on today's large GPUs, one for each multiprocessor.
    const BLOCKS: usize = 144;
    /// Terms above which a sum is worth sharing among eight blocks though they do not all run at once.
    const LONG: usize = 4096;

    /// One of the shapes that the kernel was compiled for.
    #[derive(Debug, Clone, Copy)]
    struct Shape {
        /// Groups of 64 rows of a tile, its columns, and the blocks of its cluster.
        wm: usize,
        tn: usize,
        cluster: usize,
        stages: usize,
    }

    impl Shape {
        /// The one for a layer.
        fn of(m: usize, n: usize, k: usize) -> Self {
            let rows = |wm: usize| m.div_ceil(64 * wm) * 64 * wm;
            let wm = if rows(3) <= rows(2) { 3 } else { 2 };
            let tiles = n.div_ceil(64) * m.div_ceil(64 * wm);
            match () {
                // Long sums are shared among eight blocks though these do not all run at once.
                () if 8 * tiles <= BLOCKS || k > LONG && tiles <= BLOCKS => {
                    Self { wm, tn: 64, cluster: 8, stages: 4 }
                }
                () if 2 * tiles <= BLOCKS => Self { wm, tn: 64, cluster: 2, stages: 4 },
                () => Self { wm: 3, tn: 128, cluster: 1, stages: 3 },
            }
        }

        fn threads(self) -> u32 {
            (self.wm * self.tn) as u32
        }

        fn shared_bytes(self, a_parts: usize, turned: bool) -> usize {
            let tm = 64 * self.wm;
            let a = tm * (DEPTH + PAD);
            let b = if turned { DEPTH * (self.tn + PAD) } else { self.tn * (DEPTH + PAD) };
            let slices = self.stages * (a_parts * a + 2 * b) * 2;
            slices.max(tm * (self.tn + 4) * 4)
        }
    }

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
        bias: &'a Tensor,
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
            bias: &'a Tensor,
            unit: Unit,
            out: UnitPlanes,
            draws: Draws<'a>,
        ) -> Result<Option<Self>> {
            if !super::two_part_products_fuse(planes.device()) {
                return Ok(None);
            }
            let PartSizes { a_parts, b_parts, m, k, n } = PartSizes::of(a, b)?;
            let sizes = check_planes(planes, bias, out)?;
            let part = |t: &Tensor| t.narrow(0, 0, 1)?.squeeze(0);
            let turned = match (Order::of("a", &part(a)?)?, Order::of("b", &part(b)?)?) {
                (Order::RowMajor { line: of_a }, Order::RowMajor { line }) if (of_a, line) == (k, n) => true,
                (Order::RowMajor { line: of_a }, Order::ColumnMajor { line }) if (of_a, line) == (k, k) => {
                    false
                }
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
            let shape = Shape::of(m, n, k);
            let place = draws.place(OP, planes.device())?;
            let wide = aligned(8);
            Ok(Some(Self { shape, a_parts, turned, wide, m, n, k, scale, bias, unit, out, place }))
        }

        fn launch(
            &self,
            planes: (&mut CudaStorage, &Layout),
            a: (&CudaStorage, &Layout),
            b: (&CudaStorage, &Layout),
        ) -> Result<()> {
            let Self { shape, a_parts, turned, m, n, k, .. } = *self;
            let device = a.0.device().clone();
            let lay = if turned { "turned" } else { "straight" };
            let name = format!("product_units_{lay}_{}x{}", shape.wm, shape.cluster);
            let function = function(&device, "product_units", &name)?;
            let grid = (shape.cluster * n.div_ceil(shape.tn), m.div_ceil(64 * shape.wm));
            let shared = shape.shared_bytes(a_parts, turned);
            let config = function.launch_with_shared(OP, grid, shape.threads(), shared)?;

            let (a_part, b_part) = (a.1.stride()[0] as u64, b.1.stride()[0] as u64);
            let a = parts_view::<f16>(a.0, a.1, m * k, OP)?;
            let b = parts_view::<f16>(b.0, b.1, k * n, OP)?;
            let mut out = view_mut::<f16>(planes.0, planes.1, OP)?;
            let bias = Operand::new(self.bias);
            let bias = bias.view::<f32>(OP)?;
            let (drawn, philox, counter) = Place::arguments(self.place);
            let counter = optional_view::<i64>(&counter, OP)?;
            let place_of = |plane: Option<usize>| plane.map_or(-1, |plane| (plane * m * n) as i64);
            let numbers = Numbers {
                a_part,
                b_part,
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
                drawn,
                wide: self.wide.into(),
            };
            let mut launch = function.builder();
            launch.arg(&mut out).arg(&a).arg(&b).arg(&bias).arg_or_null(&counter).arg(&numbers);
            // SAFETY: (half*, 2 × const half*, const float*, const long long* or null, Numbers). `fits` checked shapes, types,
            // layouts and that rows, parts and planes begin on four entries, eight for `wide`; the slices end with the last
            // part, planes lie within `out`, and shared memory is the shape's `SHARED`. No source shares
            // storage with the planes, which candle sees to, and bias and counter are other tensors.
            unsafe { launch.launch(config) }.w()?;
            Ok(())
        }
    }

    impl InplaceOp3 for Fused<'_> {
        fn name(&self) -> &'static str {
            OP
        }

        fn cpu_fwd(
            &self,
            _: &mut CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<()> {
            candle::bail!("{OP}: this kernel runs on a GPU")
        }

        fn cuda_fwd(
            &self,
            planes: &mut CudaStorage,
            p_l: &Layout,
            a: &CudaStorage,
            a_l: &Layout,
            b: &CudaStorage,
            b_l: &Layout,
        ) -> Result<()> {
            self.launch((planes, p_l), (a, a_l), (b, b_l))
        }
    }
}
