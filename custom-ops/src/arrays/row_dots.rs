//! Inner products of every row of a matrix with a few of its rows, in f64.
//!
//! ```text
//! out[p, i] = Σ_c x[picks[p], c] · x[i, c]
//! ```
//!
//! Columns are cut into segments of 16,384. In a segment, lane `l` of 256 adds the columns
//! `l, l + 256, …` from first to last; then the lanes are added in halves, and so are the segments.
//! Products and sums are f64, also of f32 numbers, whose products are then exact. The result is the
//! same bits on CPU and CUDA and in every run.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f32, 2., 0.], [3., 0., 1.], [0., 5., 0.]], &Cpu)?;
//! assert_eq!(chandlery_ops::arrays::row_dots(&x, &[1, 0])?.to_vec2::<f64>()?, [[3., 10., 0.], [5., 3., 10.]]);
//! # Ok(()) }
//! ```
use crate::arrays::elementwise::add;
use crate::core::check::matrix;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::real::halves;
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "row_dots";
/// Columns of a segment, and lanes of its sums: those of `kernels/arrays/row_dots.cu`.
const SEGMENT: usize = 16 * 1024;
const LANES: usize = 256;
/// Rows that can be picked in one call.
const PICKS: usize = 4;
/// Rows of a grid of CUDA.
const ROWS: usize = 65_535;
/// Elements below which other threads are not worth waking.
const GRAIN: usize = 256 * 1024;

/// The inner products of the rows `picks` with all rows of a contiguous f32 or f64 matrix `x`,
/// `[rows, cols]`: f64 `[picks.len(), rows]`, in the order that the module describes.
///
/// Cost: reads `x` once, and `2 · picks · rows · cols` FLOP.
///
/// # Errors
/// When `x` is not such a matrix, it has more than 65,535 rows, there are no picks or more than 4,
/// a pick is not a row, or a step is being recorded.
pub fn row_dots(x: &Tensor, picks: &[usize]) -> Result<Tensor> {
    let (rows, cols) = matrix(OP, "x", "[rows, cols]", x, &[DType::F32, DType::F64])?;
    if picks.is_empty() || picks.len() > PICKS {
        candle::bail!("{OP}: picks must be 1 to {PICKS} rows, got {}", picks.len())
    }
    if let Some(pick) = picks.iter().find(|&&pick| pick >= rows) {
        candle::bail!("{OP}: picks must be below {rows}, the number of rows, got {pick}")
    }
    if rows > ROWS {
        candle::bail!("{OP}: x must have at most {ROWS} rows, got {rows}; take blocks of them")
    }
    let segments = cols.div_ceil(SEGMENT).max(1);
    let parts = new_tensor(OP, (segments, picks.len(), rows), DType::F64, x.device())?;
    let mut op = RowDots { picks: [0; PICKS], n_picks: picks.len(), rows, cols, dtype: x.dtype() };
    op.picks[..picks.len()].copy_from_slice(picks);
    if rows > 0 {
        operands(OP).write("parts", &parts).read("x", x).run(&op)?;
    }
    if segments == 1 { parts.squeeze(0) } else { add_segments(&parts) }
}

/// The same by plain loops whose sums are compensated, so that they are those of no processor's
/// order: what a matrix product rounds depends on its lanes.
///
/// # Errors
/// When `x` is no matrix or a pick is not a row.
pub fn row_dots_reference(x: &Tensor, picks: &[usize]) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F64)?;
    let rows = wide.to_vec2::<f64>()?;
    let mut dots = Vec::with_capacity(picks.len() * rows.len());
    for &pick in picks {
        let pick = wide.get(pick)?.to_vec1::<f64>()?;
        dots.extend(rows.iter().map(|row| compensated(pick.iter().zip(row).map(|(a, b)| a * b))));
    }
    Tensor::from_vec(dots, (picks.len(), rows.len()), x.device())
}

/// A sum with what its additions rounded off added in the end (Neumaier 1974).
fn compensated(terms: impl Iterator<Item = f64>) -> f64 {
    let (sum, lost) = terms.fold((0., 0.), |(sum, lost): (f64, f64), x| {
        let next = sum + x;
        let (large, small) = if sum.abs() >= x.abs() { (sum, x) } else { (x, sum) };
        (next, lost + ((large - next) + small))
    });
    sum + lost
}

/// The sum of the segments, `[segments, picks, rows]` to `[picks, rows]`: the upper half is added
/// to the lower until one is left.
fn add_segments(parts: &Tensor) -> Result<Tensor> {
    let mut parts = parts.clone();
    while parts.dim(0)? > 1 {
        let n = parts.dim(0)?;
        let half = n.div_ceil(2);
        let sum = add(&parts.narrow(0, 0, n - half)?, &parts.narrow(0, half, n - half)?)?;
        parts = if n % 2 == 0 { sum } else { Tensor::cat(&[sum, parts.narrow(0, half - 1, 1)?], 0)? };
    }
    parts.squeeze(0)
}

struct RowDots {
    picks: [usize; PICKS],
    n_picks: usize,
    rows: usize,
    cols: usize,
    dtype: DType,
}

impl Kernel for RowDots {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([parts], [x]) = io.parts()?;
        for_float!(self.dtype, |T| self.run_cpu(parts.elements()?, x.elements::<T>()?));
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        self.n_picks * most < GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("row_dots_{}", self.dtype.as_str());
        for_float!(self.dtype, |T| {
            let ([parts], [x]) = io.parts()?;
            let (mut parts, x) = (parts.elements::<f64>()?, x.elements::<T>()?);
            let launch = gpu.launch(OP, "row_dots", &kernel)?.write(&mut parts).read(&x);
            let launch = launch.num(self.rows).num(self.cols).num(self.n_picks);
            let launch = self.picks.iter().fold(launch, |launch, &pick| launch.num(pick));
            let segments = self.cols.div_ceil(SEGMENT).max(1);
            // SAFETY: (double*, const T*, 7 × size_t): x is [rows, cols], `parts` holds segments ·
            // n_picks · rows numbers, each pick is a row, all by `row_dots`; the grid is a block
            // for each segment and row, of the kernel's 256 threads.
            unsafe { launch.grid([segments, self.rows, 1], (LANES as u32, 1, 1)).go() }
        })
    }
}

impl RowDots {
    /// Writes `parts`, `[segments, n_picks, rows]`.
    fn run_cpu<T: WithDType>(&self, parts: &mut [f64], x: &[T]) {
        let Self { rows, cols, n_picks, .. } = *self;
        let one = |(i, out): (usize, &mut f64)| {
            let (row, pick, segment) = (i % rows, self.picks[i / rows % n_picks], i / rows / n_picks);
            let start = segment * SEGMENT;
            let len = SEGMENT.min(cols - start);
            *out = dot(&x[pick * cols + start..][..len], &x[row * cols + start..][..len]);
        };
        if n_picks * x.len() < GRAIN {
            parts.iter_mut().enumerate().for_each(one);
        } else {
            parts.par_iter_mut().enumerate().with_min_len(GRAIN.div_ceil(SEGMENT)).for_each(one);
        }
    }
}

/// The inner product of one segment of two rows.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn dot<T: WithDType>(a: &[T], b: &[T]) -> f64 {
    let mut lanes = [0f64; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a.to_f64() * b.to_f64();
        }
    }
    halves(lanes)
}
