//! The operands of a product as `kernels/layers/product.cuh` takes them.
use super::shape::{self, Shape};
use crate::core::cuda::{Gpu, Launch};
use crate::core::op::In;
use crate::layers::gemm::{Order, PartSizes};
use candle::cuda::cudarc::driver::{CudaView, DeviceRepr};
use candle::{CudaStorage, DType, Device, Result, Tensor};
use half::f16;

/// A product that a kernel takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    shape: Shape,
    pub(super) a_parts: usize,
    /// Whether `b` is row-major.
    pub(super) transposed: bool,
    /// Whether rows, parts and operands begin on eight entries.
    wide: bool,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// `Product` of the kernels, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    a_part: u64,
    b_part: u64,
    m: i32,
    n: i32,
    k: i32,
    wide: u32,
}
// SAFETY: two 64-bit numbers and four of 32 bits, without padding, the same layout as the kernel's
// struct.
unsafe impl DeviceRepr for Sizes {}

impl Product {
    /// The product of `a` and `b`, f16 in parts, on the device of `planes`; none where the ops go
    /// one after the other.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub(super) fn of(planes: &Tensor, a: &Tensor, b: &Tensor) -> Result<Option<Self>> {
        let Device::Cuda(device) = planes.device() else { return Ok(None) };
        let limits = Gpu::of(device)?.limits();
        if !shape::fuse(limits) {
            return Ok(None);
        }
        let PartSizes { a_parts, b_parts, m, k, n } = PartSizes::of(a, b)?;
        let Some(transposed) = transposed(a, b, k, n)? else { return Ok(None) };
        let known = b_parts == 2
            && [planes, a, b].iter().all(|t| t.dtype() == DType::F16)
            && [a, b].iter().all(|t| t.device().same_device(planes.device()))
            && planes.is_contiguous()
            && [m, n, k].iter().all(|&size| size > 0 && i32::try_from(size).is_ok());
        let product = Self { shape: Shape::of(limits, m, n, k), a_parts, transposed, wide: false, m, n, k };
        let wide = product.aligned(8, a, b);
        Ok((known && product.aligned(4, a, b) && starts_on(4, planes)).then_some(Self { wide, ..product }))
    }

    /// Whether rows, parts and the operands begin on as many entries.
    fn aligned(&self, entries: usize, a: &Tensor, b: &Tensor) -> bool {
        let parts = |t: &Tensor| t.dims()[0] == 1 || t.stride()[0].is_multiple_of(entries);
        let rows = self.k.is_multiple_of(entries) && (!self.transposed || self.n.is_multiple_of(entries));
        rows && self.n.is_multiple_of(4) && [a, b].iter().all(|t| starts_on(entries, t) && parts(t))
    }

    /// The memory of both operands, and the sizes as kernels take them.
    pub(super) fn views<'a>(
        &self,
        a: In<'a, CudaStorage>,
        b: In<'a, CudaStorage>,
    ) -> Result<(CudaView<'a, f16>, CudaView<'a, f16>, Sizes)> {
        let Self { a_parts, wide, m, n, k, .. } = *self;
        let (a_part, b_part) = (a.layout()?.stride()[0], b.layout()?.stride()[0]);
        let sizes = Sizes {
            a_part: a_part as u64,
            b_part: b_part as u64,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            wide: wide.into(),
        };
        Ok((a.span((a_parts - 1) * a_part + m * k)?, b.span(b_part + k * n)?, sizes))
    }

    /// The kernel for the shape among those that begin with `of`.
    pub(super) fn kernel(&self, of: &str) -> String {
        format!("{of}_{}x{}", self.shape.tm, self.shape.cluster)
    }

    /// The launch with the grid, threads and shared memory of the shape.
    pub(super) fn lay_out<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        let [across, down] = self.shape.grid(self.m, self.n);
        let launch = launch.grid([across, down, 1], (self.shape.threads(), 1, 1));
        launch.shared(self.shape.shared_bytes(self.a_parts, self.transposed)).overlapped()
    }
}

/// Whether `b`, `[parts, k, n]`, is row-major; none where the kernels do not take the orders of `a`
/// and `b`: rows of `a` and the lines of `b` without gaps.
///
/// # Errors
/// When an operand has no parts.
pub(super) fn transposed(a: &Tensor, b: &Tensor, k: usize, n: usize) -> Result<Option<bool>> {
    let part = |t: &Tensor| t.narrow(0, 0, 1)?.squeeze(0);
    Ok(match (Order::find(&part(a)?), Order::find(&part(b)?)) {
        (Some(Order::RowMajor { line: of_a }), Some(Order::RowMajor { line })) if (of_a, line) == (k, n) => {
            Some(true)
        }
        (Some(Order::RowMajor { line: of_a }), Some(Order::ColumnMajor { line }))
            if (of_a, line) == (k, k) =>
        {
            Some(false)
        }
        _ => None,
    })
}

/// Whether the view begins on as many entries.
pub(super) fn starts_on(entries: usize, t: &Tensor) -> bool {
    t.layout().start_offset().is_multiple_of(entries)
}
