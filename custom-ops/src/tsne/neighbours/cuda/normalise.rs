//! Rows as bounds take them.
use super::{OP, Pair};
use crate::arrays::gather_rows;
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CudaStorage, DType, Result, Tensor};

const FILE: &str = "neighbours";
const THREADS: u32 = 256;
/// Rows of a block, each of which a warp takes.
const ROWS: usize = 8;
/// Stretches of rows for the means.
const STRETCHES: usize = 256;

/// What is made of a row: `Form` of kernels/tsne/neighbours.cu.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    Centred,
    Scaled,
    Unit,
}

/// The means of the rows' columns, and half of the largest entry less its mean; none of both where
/// rows stay as they are.
#[derive(Default)]
pub(super) struct Scale {
    means: Option<Tensor>,
    /// Of f32, kept as its bits.
    pub(super) largest: Option<Tensor>,
}

impl Scale {
    pub(super) fn of(pair: Pair<'_>) -> Result<Self> {
        Self::about(pair, None)
    }

    pub(super) fn of_centred(pair: Pair<'_>) -> Result<Self> {
        Self::about(pair, Some(means(pair.rows)?))
    }

    /// About these means.
    pub(super) fn about(pair: Pair<'_>, means: Option<Tensor>) -> Result<Self> {
        let largest = Tensor::zeros(1, DType::U32, pair.rows.device())?;
        let both = [pair.rows, pair.queries];
        for &t in if pair.is_one() { &both[..1] } else { &both } {
            let (n, d) = t.dims2()?;
            let io = operands(OP).write("largest", &largest).read("rows", t).maybe("means", means.as_ref());
            io.run(&Largest { n, d })?;
        }
        Ok(Self { means, largest: Some(largest) })
    }

    /// What rows are multiplied by: `scale_of` of kernels/tsne/nearest.cuh.
    pub(super) fn factor(&self) -> Result<f64> {
        let Some(largest) = &self.largest else { return Ok(1.) };
        let largest = f64::from(f32::from_bits(largest.to_vec1::<u32>()?[0]));
        let exponent = if largest > 0. && largest.is_finite() { largest.log2().floor() + 1. } else { 0. };
        Ok((-exponent.clamp(-126., 126.)).exp2())
    }
}

/// Rows as bounds take them.
#[derive(Clone)]
pub(super) struct Normal {
    /// Padded with zeros to a multiple of 8 features.
    pub(super) points: Tensor,
    /// Of products: their squared lengths and lengths, in f32.
    pub(super) squares: Tensor,
    pub(super) magnitudes: Tensor,
    /// Of the cosine: the lengths of the rows in f64.
    pub(super) lengths: Option<Tensor>,
}

impl Normal {
    /// `bad` takes the place of the first entry that is not finite.
    pub(super) fn new(rows: &Tensor, scale: &Scale, form: Form, rounded: bool, bad: &Tensor) -> Result<Self> {
        let (n, d) = rows.dims2()?;
        let pitch = d.max(1).next_multiple_of(8);
        let new = |shape: &[usize], dtype| new_tensor(OP, shape, dtype, rows.device());
        let lengths = if matches!(form, Form::Unit) { Some(new(&[n], DType::F64)?) } else { None };
        let normal = Self {
            points: new(&[n, pitch], DType::F32)?,
            squares: new(&[n], DType::F32)?,
            magnitudes: new(&[n], DType::F32)?,
            lengths,
        };
        // A number that nothing writes where there are no lengths.
        let lengths = match &normal.lengths {
            Some(lengths) => lengths.clone(),
            None => new(&[1], DType::F64)?,
        };
        let io = operands(OP).write("points", &normal.points).write("squares", &normal.squares);
        let io = io.write("magnitudes", &normal.magnitudes).write("lengths", &lengths).write("bad", bad);
        let io = io.read("rows", rows).maybe("means", scale.means.as_ref());
        io.maybe("largest", scale.largest.as_ref()).run(&Normalise { n, d, pitch, form, rounded })?;
        Ok(normal)
    }

    /// `count` rows from `first` on.
    pub(super) fn part(&self, first: usize, count: usize) -> Result<Self> {
        self.map(|t| t.narrow(0, first, count))
    }

    /// Some rows, in this order.
    pub(super) fn picked(&self, rows: &[u32]) -> Result<Self> {
        self.map(|t| match t.rank() {
            1 => gather_rows(&t.unsqueeze(1)?, rows)?.squeeze(1),
            _ => gather_rows(t, rows),
        })
    }

    fn map(&self, of: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            points: of(&self.points)?,
            squares: of(&self.squares)?,
            magnitudes: of(&self.magnitudes)?,
            lengths: self.lengths.as_ref().map(of).transpose()?,
        })
    }
}

fn means(rows: &Tensor) -> Result<Tensor> {
    let (n, d) = rows.dims2()?;
    let parts = new_tensor(OP, (STRETCHES, d), DType::F64, rows.device())?;
    let means = new_tensor(OP, d, DType::F32, rows.device())?;
    operands(OP).write("means", &means).write("parts", &parts).read("rows", rows).run(&Means { n, d })?;
    Ok(means)
}

/// Half the squared length of each row, f64 `[n]`.
pub(super) fn half_squares(rows: &Tensor) -> Result<Tensor> {
    let (n, d) = rows.dims2()?;
    let halves = new_tensor(OP, n, DType::F64, rows.device())?;
    operands(OP).write("halves", &halves).read("rows", rows).run(&HalfSquares { n, d })?;
    Ok(halves)
}

struct HalfSquares {
    n: usize,
    d: usize,
}

impl Kernel for HalfSquares {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([halves], [rows]) = io.parts()?;
        let (mut halves, rows) = (halves.elements::<f64>()?, rows.elements::<f32>()?);
        let launch = gpu.launch(OP, FILE, "half_squares")?.write(&mut halves).read(&rows);
        let launch = launch.num(self.n).num(self.d);
        // SAFETY: (double*, const float*, 2 × size_t): halves are [n], rows [n, d]; a warp for each
        // row.
        unsafe { launch.blocks(self.n.div_ceil(ROWS), THREADS).go() }
    }
}

struct Means {
    n: usize,
    d: usize,
}

impl Kernel for Means {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([means, parts], [rows]) = io.parts()?;
        let (mut means, mut parts) = (means.elements::<f32>()?, parts.elements::<f64>()?);
        let rows = rows.elements::<f32>()?;
        let stretch = self.n.div_ceil(STRETCHES).max(1);
        let launch = gpu.launch(OP, FILE, "column_parts")?.write(&mut parts).read(&rows);
        let launch = launch.num(self.n).num(self.d).num(stretch);
        // SAFETY: (double*, const float*, 3 × size_t): rows are [n, d], parts hold a number for
        // each stretch and column; a block of 256 for each 32 columns and stretch, the last of
        // which may have no rows.
        unsafe { launch.grid([self.d.div_ceil(32), STRETCHES, 1], (THREADS, 1, 1)).go() }?;
        let parts = parts.slice(..);
        let launch = gpu.launch(OP, FILE, "column_means")?.write(&mut means).read(&parts);
        let launch = launch.num(self.n).num(self.d).count(STRETCHES);
        // SAFETY: (float*, const double*, 2 × size_t, unsigned): a mean for each of d columns, and
        // the parts that were just written.
        unsafe { launch.blocks(self.d.div_ceil(THREADS as usize), THREADS).go() }
    }
}

struct Largest {
    n: usize,
    d: usize,
}

impl Kernel for Largest {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        /// Blocks that stride over the rows.
        const MOST: usize = 2048;
        let ([largest], [rows, means]) = io.parts()?;
        let (mut largest, rows, means) =
            (largest.elements::<u32>()?, rows.elements::<f32>()?, means.maybe::<f32>()?);
        let launch = gpu.launch(OP, FILE, "largest_entry")?.write(&mut largest).read(&rows).maybe(&means);
        let launch = launch.num(self.n).num(self.d);
        // SAFETY: (unsigned*, const float*, const float* or null, 2 × size_t): one word, rows are
        // [n, d], means [d]; blocks of 256 stride.
        unsafe { launch.blocks(self.n.div_ceil(ROWS).min(MOST), THREADS).go() }
    }
}

struct Normalise {
    n: usize,
    d: usize,
    pitch: usize,
    form: Form,
    rounded: bool,
}

impl Kernel for Normalise {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([out, squares, magnitudes, lengths, bad], [rows, means, largest]) = io.parts()?;
        let (mut out, mut squares) = (out.elements::<f32>()?, squares.elements::<f32>()?);
        let (mut magnitudes, mut lengths) = (magnitudes.elements::<f32>()?, lengths.elements::<f64>()?);
        let (mut bad, rows) = (bad.elements::<i64>()?, rows.elements::<f32>()?);
        let (means, largest) = (means.maybe::<f32>()?, largest.maybe::<u32>()?);
        let launch = gpu.launch(OP, FILE, "normalise")?.write(&mut out).write(&mut squares);
        let launch = launch.write(&mut magnitudes).write(&mut lengths).write(&mut bad).read(&rows);
        let launch = launch.maybe(&means).maybe(&largest).num(self.n).num(self.d).num(self.pitch);
        let launch = launch.count(self.form as usize).count(usize::from(self.rounded));
        // SAFETY: (3 × float*, double*, u64*, const float*, const float* or null, const unsigned*
        // or null, 3 × size_t, 2 × unsigned): out is [n, pitch], squares and magnitudes [n],
        // lengths [n] where rows become of length 1, bad one word, rows [n, d], means [d] where
        // they are taken, largest one word; a warp for each row.
        unsafe { launch.blocks(self.n.div_ceil(ROWS), THREADS).go() }
    }
}
