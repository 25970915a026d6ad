//! Exclusive prefix sums.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let sums = chandlery_ops::arrays::prefix_sum(&Tensor::new(&[3u32, 0, 5, 1], &Cpu)?)?;
//! assert_eq!(sums.sums.to_vec1::<u32>()?, [0, 3, 3, 8]);
//! assert_eq!(sums.total()?, 9);
//! # Ok(()) }
//! ```
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "prefix_sum";

/// Exclusive sums.
#[derive(Debug, Clone)]
pub struct PrefixSum {
    /// `Σ_{k<i} x[k]` modulo 2³², u32 `[n]`.
    pub sums: Tensor,
    /// `Σ x`, i64 `[1]`: if it is below 2³², no sum has wrapped around.
    pub total: Tensor,
}

impl PrefixSum {
    /// The sum of all numbers, read back from the device.
    ///
    /// # Errors
    /// When it is 2³² or more, so that sums have wrapped around.
    pub fn total(&self) -> Result<u32> {
        let total = self.total.get(0)?.to_scalar::<i64>()?;
        match u32::try_from(total) {
            Ok(total) => Ok(total),
            Err(_) => candle::bail!("{OP}: the sum of all numbers must be below 2^32, got {total}"),
        }
    }
}

/// `sums[i] = Σ_{k<i} x[k]` and the total of a contiguous u32 `[n]`.
///
/// Cost: on a GPU one launch for up to 4,096 numbers; else three launches, which read `x` twice and
/// write the sums once.
///
/// # Errors
/// When `x` is not such a vector, or a step is being recorded.
pub fn prefix_sum(x: &Tensor) -> Result<PrefixSum> {
    expect(OP, "x", x, &[DType::U32], &[x.elem_count()])?;
    let new = |len, dtype| new_tensor(OP, len, dtype, x.device());
    let sums = PrefixSum { sums: new(x.elem_count(), DType::U32)?, total: new(1, DType::I64)? };
    operands(OP).write("sums", &sums.sums).write("total", &sums.total).read("x", x).run(&Scan)?;
    Ok(sums)
}

/// The same, with each sum computed on its own.
///
/// # Errors
/// When candle cannot read `x`.
pub fn prefix_sum_reference(x: &Tensor) -> Result<PrefixSum> {
    let x_read = x.to_vec1::<u32>()?;
    let sum = |x: &[u32]| x.iter().map(|&x| i64::from(x)).sum::<i64>();
    let sums: Vec<u32> = (0..x_read.len()).map(|i| sum(&x_read[..i]) as u32).collect();
    Ok(PrefixSum { sums: Tensor::new(sums, x.device())?, total: Tensor::new(&[sum(&x_read)], x.device())? })
}

struct Scan;

impl Kernel for Scan {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([sums, total], [x]) = io.parts()?;
        let mut before = 0i64;
        for (sum, &x) in sums.elements::<u32>()?.iter_mut().zip(x.elements::<u32>()?) {
            *sum = before as u32; // modulo 2^32
            before += i64::from(x);
        }
        total.elements()?.fill(before);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([sums, total], [x]) = io.parts()?;
        let (mut sums, mut total) = (sums.elements::<u32>()?, total.elements::<i64>()?);
        let x = x.elements::<u32>()?;
        scan(OP, gpu, &mut sums, Some(&x), &mut total, x.len())
    }
}

/// Queues exclusive sums of the `n` numbers of 32 bits in `x`, or without one of those in `out`,
/// and their total, of 64 bits.
#[cfg(feature = "cuda")]
pub(crate) fn scan<T: candle::cuda::CudaDType>(
    op: &'static str,
    gpu: &crate::core::cuda::Gpu,
    out: &mut candle::cuda::cudarc::driver::CudaViewMut<'_, T>,
    x: Option<&candle::cuda::cudarc::driver::CudaView<'_, T>>,
    total: &mut candle::cuda::cudarc::driver::CudaViewMut<'_, impl candle::cuda::CudaDType>,
    n: usize,
) -> Result<()> {
    /// Of kernels/arrays/prefix_sum.cu.
    const TILE: usize = 4096;
    const THREADS: u32 = 256;
    const TILES_THREADS: u32 = 1024;
    let tiles = n.div_ceil(TILE);
    let x = x.map(|x| x.slice(..));
    let mut layout = crate::core::cuda::ScratchLayout::default();
    let sums = layout.part::<u64>(tiles);
    let mut scratch = layout.alloc(op, gpu)?;
    let several = tiles > 1;
    if several {
        let mut sums = scratch.view_mut(sums);
        let launch = gpu.launch(op, "prefix_sum", "tile_sums")?.write(&mut sums);
        let launch = match &x {
            Some(x) => launch.read(x),
            None => launch.write(out),
        };
        // SAFETY: (u64*, const unsigned*, size_t): n numbers and a sum for each tile.
        unsafe { launch.num(n).blocks(tiles, THREADS).go() }?;
        let launch = gpu.launch(op, "prefix_sum", "scan_tiles")?.write(&mut sums).count(tiles);
        // SAFETY: (u64*, unsigned): a sum for each tile; one block.
        unsafe { launch.blocks(1, TILES_THREADS).go() }?;
    }
    let sums = several.then(|| scratch.view(sums));
    let launch = gpu.launch(op, "prefix_sum", "scan")?.write(out).maybe(&x).write(total).maybe(&sums);
    // SAFETY: (unsigned*, const unsigned* or null, long long*, const u64* or null, size_t): n
    // numbers each, a sum for each tile where there are several.
    unsafe { launch.num(n).blocks(tiles.max(1), THREADS).go() }
}
