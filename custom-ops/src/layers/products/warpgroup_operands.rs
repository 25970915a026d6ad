//! The operands of a product as `kernels/layers/sm_90a/product_tile.cuh` takes them, on GPUs of
//! capability 9.0.
use super::operands::{starts_on, transposed};
use super::warpgroup_tile::Tile;
use crate::core::cuda::{Address, Fetch, Gpu, Launch, TensorMap};
use crate::core::op::In;
use crate::layers::gemm::PartSizes;
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::{CudaView, DeviceRepr};
use candle::{CudaStorage, DType, Device, Result, Tensor};

/// A product that a kernel takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    tile: Tile,
    /// Of `a` and of `b`.
    pub(super) parts: [usize; 2],
    /// Whether `b` is row-major.
    pub(super) transposed: bool,
    dtype: DType,
    pub(super) m: usize,
    pub(super) n: usize,
    k: usize,
}

/// `Extent` of the kernels, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Extent {
    m: i32,
    n: i32,
    k: i32,
    cluster: i32,
}
// SAFETY: four numbers of 32 bits, the same layout as the kernels' struct.
unsafe impl DeviceRepr for Extent {}

/// Both operands in memory.
pub(super) struct Views<'a, T: CudaDType> {
    a: CudaView<'a, T>,
    b: CudaView<'a, T>,
    /// Entries from one part to the next.
    apart: [usize; 2],
}

/// Tensor maps of both operands. The use of their memory is logged when this is dropped.
pub(super) struct Maps<'a> {
    pub(super) a: TensorMap,
    pub(super) b: TensorMap,
    _used: [Address<'a>; 2],
}

impl Product {
    /// The product of `a` and `b` in numbers of `dtype`, on the device of `out`, which receives
    /// what is made of it; none where no kernel takes them, which `takes` tells by the parts of
    /// both operands and whether `b` is row-major.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub(super) fn of(
        out: &Tensor,
        dtype: DType,
        a: &Tensor,
        b: &Tensor,
        takes: impl Fn([usize; 2], bool) -> bool,
    ) -> Result<Option<Self>> {
        let Device::Cuda(device) = out.device() else { return Ok(None) };
        let limits = Gpu::of(device)?.limits();
        if !limits.has_warpgroup_products() {
            return Ok(None);
        }
        let PartSizes { a_parts, b_parts, m, k, n } = PartSizes::of(a, b)?;
        let Some(transposed) = transposed(a, b, k, n)? else { return Ok(None) };
        let parts = [a_parts, b_parts];
        let known = takes(parts, transposed)
            && [a, b].iter().all(|t| t.dtype() == dtype && t.device().same_device(out.device()))
            && out.is_contiguous()
            && [m, n, k].iter().all(|&size| size > 0 && i32::try_from(size).is_ok())
            // Copies take 16 bytes, results are written by four.
            && k.is_multiple_of(8)
            && n.is_multiple_of(if transposed { 8 } else { 4 })
            && [a, b].iter().all(|t| starts_on(8, t) && (t.dims()[0] == 1 || t.stride()[0].is_multiple_of(8)))
            && starts_on(4, out);
        if !known {
            return Ok(None);
        }
        let tile = Tile::of(limits, [m, n, k], parts);
        Ok(tile.map(|tile| Self { tile, parts, transposed, dtype, m, n, k }))
    }

    /// The memory of both operands.
    pub(super) fn views<'a, T: CudaDType>(
        &self,
        a: In<'a, CudaStorage>,
        b: In<'a, CudaStorage>,
    ) -> Result<Views<'a, T>> {
        let view = |of: In<'a, CudaStorage>, parts: usize, whole: usize| {
            let apart = if parts == 1 { whole } else { of.layout()?.stride()[0] };
            Ok::<_, candle::Error>((of.span::<T>((parts - 1) * apart + whole)?, apart))
        };
        let (a, a_apart) = view(a, self.parts[0], self.m * self.k)?;
        let (b, b_apart) = view(b, self.parts[1], self.k * self.n)?;
        Ok(Views { a, b, apart: [a_apart, b_apart] })
    }

    /// The operands as the kernels see them.
    pub(super) fn maps<'a, T: CudaDType>(&self, gpu: &'a Gpu, views: &'a Views<'_, T>) -> Result<Maps<'a>> {
        let Self { tile, parts, transposed, dtype, m, n, k } = *self;
        let [a_apart, b_apart] = views.apart;
        let (a, b) = (gpu.to_read(&views.a), gpu.to_read(&views.b));
        let depth = tile.depth();
        let k_major = |at, lines: usize, apart, parts, rows| {
            TensorMap::of(at, dtype, &[k, lines, parts], &[k, apart], [2 * depth, rows], Fetch::TwoLines)
        };
        let a_map = k_major(a.at, m, a_apart, parts[0], tile.lines_of_a(m))?;
        let b_map = match transposed {
            false => k_major(b.at, n, b_apart, parts[1], tile.columns())?,
            true => {
                let blocks = tile.columns() / 64;
                TensorMap::of_columns(b.at, dtype, [n, k, n], &[(parts[1], b_apart)], [blocks, depth])?
            }
        };
        Ok(Maps { a: a_map, b: b_map, _used: [a, b] })
    }

    pub(super) fn extent(&self) -> Extent {
        let Self { tile, m, n, k, .. } = *self;
        Extent { m: m as i32, n: n as i32, k: k as i32, cluster: tile.cluster as i32 }
    }

    /// The kernel for the tile among those that begin with `of`.
    pub(super) fn kernel(&self, of: &str) -> String {
        format!("{of}_{}", self.tile.name())
    }

    /// The launch with the grid, threads, shared memory and clusters of the tile.
    pub(super) fn lay_out<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        let Self { tile, n, k, .. } = *self;
        let launch = launch.grid(tile.grid(n), (tile.threads(), 1, 1));
        launch.shared(tile.shared_bytes(k)).clusters_of(tile.cluster as u32).overlapped()
    }
}
