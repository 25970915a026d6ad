//! The choice of `kernels/layers/sm_90a/product_onto.cu` for a product that is added to a matrix, and
//! its launch.
//!
//! It is for large results of short sums, as gradients of weights are, on GPUs of capability 9.0:
//! memory binds, and it reads what is added while it sums.
use super::{Gemm, Order};
use crate::core::limits::Limits;
use crate::layers::pingpong::tiles;
use candle::DType;

/// Tiles of a multiprocessor from which on the kernel is faster.
const LEAST_TILES: usize = 4;
/// Terms of a sum up to which it is.
const MOST_TERMS: usize = 2048;

impl Gemm {
    /// Whether the kernel makes this product: of operands that both lie along their outer dimension,
    /// in lines of whole 16 bytes.
    pub(super) fn fuses(&self, limits: Limits) -> bool {
        let Self { m, n, k, from, .. } = *self;
        let lies = matches!(
            (self.a.order, self.b.order),
            (Order::ColumnMajor { line: a }, Order::RowMajor { line: b }) if a % 8 == 0 && b % 8 == 0
        );
        limits.has_warpgroup_products()
            && from == DType::BF16
            && lies
            && n.is_multiple_of(4)
            && tiles(m, n) >= LEAST_TILES * limits.multiprocessors
            && [m, n].iter().all(|&n| i32::try_from(n).is_ok())
            && k <= MOST_TERMS
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::*;
    use crate::core::cuda::{Fetch, Gpu, TensorMap};
    use crate::layers::pingpong::{DEPTH, Rooms, THREADS, TILE};
    use candle::cuda::CudaDType;
    use candle::cuda::cudarc::driver::{CudaView, CudaViewMut};
    use candle::{Result, WithDType};

    /// Of the kernel: bytes of a line of a subtile, its lines, and its bytes, of 64 × 64 f32 numbers.
    const LINE: usize = 128;
    const LINES: usize = 64;
    const SUBTILE: usize = 64 * 64 * 4;

    impl Gemm {
        /// `c ← a b + beta · onto`, of operands that the kernel [takes](Self::fuses) and that begin on
        /// 16 bytes.
        pub(in super::super) fn launch_onto_kernel<T: CudaDType + WithDType>(
            &self,
            gpu: &Gpu,
            c: &mut CudaViewMut<'_, f32>,
            onto: &CudaView<'_, f32>,
            a: &CudaView<'_, T>,
            b: &CudaView<'_, T>,
        ) -> Result<()> {
            let Self { m, n, k, a: of_a, b: of_b, .. } = *self;
            let (of_c, of_onto) = (gpu.to_write(c), gpu.to_read(onto));
            let (at_a, at_b) = (gpu.to_read(a), gpu.to_read(b));
            let operand = |at, width: usize, order: Order| {
                let (Order::RowMajor { line } | Order::ColumnMajor { line }) = order;
                TensorMap::of_columns(at, T::DTYPE, [width, k, line], &[(1, k * line)], [TILE / 64, DEPTH])
            };
            let entries = |at| TensorMap::of(at, DType::F32, &[n, m], &[n], [LINE, LINES], Fetch::TwoLines);
            let launch = gpu.launch(self.op, "sm_90a/product_onto", "product_onto_bf16")?;
            let launch = launch.num(operand(at_a.at, m, of_a.order)?).num(operand(at_b.at, n, of_b.order)?);
            let launch = launch.num(entries(of_onto.at)?).num(entries(of_c.at)?);
            let (_, beta) = self.factors.unwrap_or_default();
            let launch = launch.num(beta as f32).num(m as i32).num(n as i32).num(k as i32);
            let rooms = Rooms::of(k, SUBTILE);
            let blocks = tiles(m, n).min(gpu.limits().multiprocessors);
            let launch = launch.num(rooms.subtiles as i32);
            let launch = launch.blocks(blocks, THREADS).shared(rooms.shared_bytes);
            // SAFETY: (4 × TensorMap, float, 4 × int): maps of both operands, of what is added and of
            // the result, whose memory has addresses that are alive, in the blocks that the kernel
            // takes. `run` checked shapes and that the spans hold them, `fuses` and `launch_onto` that
            // lines and views begin on 16 bytes.
            unsafe { launch.overlapped().go() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Matrices, Precision};
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn only_large_results_of_short_sums_on_capability_9_0_have_a_kernel() {
        let of = |[m, n, k]: [usize; 3], [a, b]: [usize; 2], from| Gemm {
            op: "gemm_onto_",
            batch: 1,
            m,
            n,
            k,
            a: Matrices { order: Order::ColumnMajor { line: a }, step: 0, span: k * a },
            b: Matrices { order: Order::RowMajor { line: b }, step: 0, span: k * b },
            from,
            to: DType::F32,
            factors: Some((1., 1.)),
            precision: Precision::F32,
        };
        for gpu in gpus::ALL {
            let nine = gpu.has_warpgroup_products();
            let fuses = |sizes, lines| of(sizes, lines, DType::BF16).fuses(gpu);
            assert_eq!(fuses([4096, 4096, 64], [4096, 4096]), nine, "{gpu:?}");
            assert_eq!(fuses([4093, 4100, 7], [4096, 4104]), nine, "lines that lie apart: {gpu:?}");
            assert!(!fuses([4096, 4097, 64], [4096, 4104]), "results between 16 bytes: {gpu:?}");
            assert!(!fuses([4096, 4096, 64], [4097, 4096]), "lines between 16 bytes: {gpu:?}");
            assert!(!fuses([1024, 1024, 64], [1024, 1024]), "few tiles: {gpu:?}");
            assert!(!fuses([4096, 4096, MOST_TERMS + 1], [4096, 4096]), "long sums: {gpu:?}");
            assert!(!of([4096, 4096, 64], [4096, 4096], DType::F16).fuses(gpu), "f16: {gpu:?}");
            let mut turned = of([4096, 4096, 64], [4096, 4096], DType::BF16);
            turned.a.order = Order::RowMajor { line: 64 };
            assert!(!turned.fuses(gpu), "rows of a: {gpu:?}");
        }
    }
}
