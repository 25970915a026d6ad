//! Units of restricted Boltzmann machines at an inverse temperature: the steps of annealed importance
//! sampling beside its products, in f64.
//!
//! ```text
//! hidden    x = units + bias
//!           ln w += (to − from) (slope·v + offset) + Σ_j softplus(to x_j) − softplus(from x_j)
//!           units ← 1 where u < sigmoid(to x), else 0
//! visible   x = to (units + shift) + base
//!           units ← 1 where u < sigmoid(x), else 0      or, real-valued,  x + stdev · z
//! ```
//!
//! | symbol | argument | shape, f64 |
//! |---|---|---|
//! | `units` | product of the other side's states and the weights; then states | `[n_chains, n]` |
//! | `bias`, `slope`, `shift`, `base`, `stdev` | one number a unit | `[n]` |
//! | `v` | visible states that `units` is the product of | `[n_chains, n_visible]` |
//! | `ln w` | `log_weights` | `[n_chains]` |
//! | `u`, `z` | uniform and normal draws of element `row · n + column` | |
//!
//! Source: Salakhutdinov and Murray, "On the quantitative analysis of deep belief networks", 2008,
//! section 4.1, with logarithms of weights in place of weights.
use crate::core::check::{expect, matrix};
use crate::core::draw::{normal_tile, uniform, uniform_tile};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::{Philox, TILE};
use candle::{CpuStorage, D, DType, Result, Tensor};
use rayon::prelude::*;

const HIDDEN: &str = "annealed_hidden_";
const VISIBLE: &str = "annealed_visible_";
/// Threads of a block of `kernels/layers/annealed_units.cu`.
#[cfg(feature = "cuda")]
const THREADS: u32 = 256;
/// Units below which other threads are not worth waking.
const GRAIN: usize = 1024;

/// The way between two inverse temperatures, and the visible states at which it is taken.
#[derive(Debug, Clone, Copy)]
pub struct Rise<'a> {
    /// The inverse temperature that is left, in [0, 1].
    pub from: f64,
    /// That which is reached, in [0, 1].
    pub to: f64,
    /// `v`, `[n_chains, n_visible]`.
    pub visible: &'a Tensor,
    /// `[n_visible]`: `slope·v + offset` is the slope of the visible part of the logarithm.
    pub slope: &'a Tensor,
    /// What is added to `slope·v`.
    pub offset: f64,
}

/// Adds what the way from one inverse temperature to the next multiplies the weight of each chain
/// by, and draws its hidden units at the second.
///
/// `units`, `[n_chains, n_hidden]`, is the product of visible states and weights, and then holds
/// zeros and ones. `log_weights` is `[n_chains]` and `bias` `[n_hidden]`. All are contiguous f64.
/// With `from = to` and finite inputs the weights stay as they are. A NaN among the inputs of a chain
/// gives a NaN weight. CPU and CUDA differ by rounding; each gives the same bits in every run.
///
/// Cost: reads and writes `units` once; two exponentials and a logarithm a unit.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn annealed_hidden_(
    log_weights: &Tensor,
    units: &Tensor,
    bias: &Tensor,
    rise: Rise<'_>,
    philox: Philox,
) -> Result<()> {
    let (rows, n) = states(HIDDEN, units)?;
    let (_, n_visible) = matrix(HIDDEN, "visible", "[n_chains, n_visible]", rise.visible, &[DType::F64])?;
    expect(HIDDEN, "visible", rise.visible, &[DType::F64], &[rows, n_visible])?;
    expect(HIDDEN, "log_weights", log_weights, &[DType::F64], &[rows])?;
    expect(HIDDEN, "bias", bias, &[DType::F64], &[n])?;
    expect(HIDDEN, "slope", rise.slope, &[DType::F64], &[n_visible])?;
    if rows == 0 {
        return Ok(());
    }
    let Rise { from, to, offset, .. } = rise;
    let op = Hidden { rows, n, n_visible, from, to, offset, philox };
    let io = operands(HIDDEN).write("log_weights", log_weights).write("units", units);
    io.read("bias", bias).read("visible", rise.visible).read("slope", rise.slope).run(&op)
}

/// Draws visible units at the inverse temperature `to`.
///
/// `units`, `[n_chains, n_visible]`, is the product of hidden states and weights, and then holds
/// the states: zeros and ones, or, where `stdev` is given, real values. `base`, `shift` and `stdev`
/// are `[n_visible]`. All are contiguous f64. The result is that of the CPU but for rounding.
///
/// Cost: reads and writes `units` once.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn annealed_visible_(
    units: &Tensor,
    shift: &Tensor,
    base: &Tensor,
    stdev: Option<&Tensor>,
    to: f64,
    philox: Philox,
) -> Result<()> {
    let (rows, n) = states(VISIBLE, units)?;
    for (name, t) in [("shift", Some(shift)), ("base", Some(base)), ("stdev", stdev)] {
        t.map_or(Ok(()), |t| expect(VISIBLE, name, t, &[DType::F64], &[n]))?;
    }
    if rows == 0 {
        return Ok(());
    }
    let op = Visible { rows, n, to, philox };
    let io = operands(VISIBLE).write("units", units).read("shift", shift).read("base", base);
    io.maybe("stdev", stdev).run(&op)
}

fn states(op: &'static str, units: &Tensor) -> Result<(usize, usize)> {
    let (rows, n) = matrix(op, "units", "[n_chains, n]", units, &[DType::F64])?;
    if n == 0 {
        candle::bail!("{op}: units must be at least 1 a chain, got 0")
    }
    Ok((rows, n))
}

/// What [`annealed_hidden_`] adds to the logarithms of weights, `[n_chains]`, and the hidden units
/// that it draws, from candle's own ops.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn annealed_hidden_reference(
    units: &Tensor,
    bias: &Tensor,
    rise: Rise<'_>,
    philox: Philox,
) -> Result<(Tensor, Tensor)> {
    let Rise { from, to, visible, slope, offset } = rise;
    let x = units.broadcast_add(bias)?;
    let softplus = |x: &Tensor| x.relu()? + ((x.abs()?.neg()?.exp()? + 1.)?).log()?;
    let hidden = (softplus(&(&x * to)?)? - softplus(&(&x * from)?)?)?.sum(D::Minus1)?;
    let visible =
        visible.matmul(&slope.unsqueeze(1)?)?.squeeze(1)?.affine(to - from, (to - from) * offset)?;
    Ok(((hidden + visible)?, below(&sigmoid(&(x * to)?)?, philox)?))
}

/// The visible units that [`annealed_visible_`] draws, from candle's own ops.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn annealed_visible_reference(
    units: &Tensor,
    shift: &Tensor,
    base: &Tensor,
    stdev: Option<&Tensor>,
    to: f64,
    philox: Philox,
) -> Result<Tensor> {
    let x = (units.broadcast_add(shift)? * to)?.broadcast_add(base)?;
    match stdev {
        None => below(&sigmoid(&x)?, philox),
        Some(stdev) => {
            let z = crate::core::normal(x.shape(), x.device(), philox)?.to_dtype(DType::F64)?;
            x + z.broadcast_mul(stdev)?
        }
    }
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.)?.recip()
}

fn below(mean: &Tensor, philox: Philox) -> Result<Tensor> {
    uniform(mean.shape(), mean.device(), philox)?.to_dtype(DType::F64)?.lt(mean)?.to_dtype(DType::F64)
}

struct Hidden {
    rows: usize,
    n: usize,
    n_visible: usize,
    from: f64,
    to: f64,
    offset: f64,
    philox: Philox,
}

impl Kernel for Hidden {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([log_weights, units], [bias, visible, slope]) = io.parts()?;
        let (log_weights, units) = (log_weights.elements::<f64>()?, units.elements::<f64>()?);
        let (bias, visible, slope) = (bias.elements()?, visible.elements::<f64>()?, slope.elements()?);
        let rows = log_weights.par_iter_mut().zip(units.par_chunks_mut(self.n)).enumerate();
        rows.with_min_len(GRAIN.div_ceil(self.n)).for_each(|(row, (log_weight, units))| {
            let visible = &visible[row * self.n_visible..][..self.n_visible];
            *log_weight += self.row(row, units, bias, visible, slope);
        });
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([log_weights, units], [bias, visible, slope]) = io.parts()?;
        let (mut log_weights, mut units) = (log_weights.elements::<f64>()?, units.elements::<f64>()?);
        let (bias, visible) = (bias.elements::<f64>()?, visible.elements::<f64>()?);
        let slope = slope.elements::<f64>()?;
        let launch = gpu.launch(HIDDEN, "annealed_units", "annealed_hidden")?;
        let launch = launch.write(&mut log_weights).write(&mut units).read(&bias).read(&visible).read(&slope);
        let launch = launch.num(self.n).num(self.n_visible).num(self.from).num(self.to).num(self.offset);
        // SAFETY: (2 × double*, 3 × const double*, 2 × size_t, 3 × double, 4 × 8 bytes of draws):
        // units is [rows, n], visible [rows, n_visible], and the others are [rows], [n] and
        // [n_visible], by `annealed_hidden_`; a block of 256 for each row.
        unsafe { launch.draws(self.philox, &None).blocks(self.rows, THREADS).go() }
    }
}

impl Hidden {
    /// Draws the units of one chain; what its weight rises by.
    fn row(&self, row: usize, units: &mut [f64], bias: &[f64], visible: &[f64], slope: &[f64]) -> f64 {
        let Self { from, to, .. } = *self;
        let visible: f64 = visible.iter().zip(slope).map(|(v, slope)| v * slope).sum();
        let mut hidden = 0.;
        for_draws(uniform_tile, self.philox, row * self.n, units, |column, unit, u| {
            let x = *unit + bias[column];
            let (reached, left) = ((-to * x.abs()).exp(), (-from * x.abs()).exp());
            // softplus(βx) = β max(x, 0) + ln(1 + e^−β|x|), so two logarithms become that of a ratio.
            hidden += (to - from) * if x < 0. { 0. } else { x } + ((1. + reached) / (1. + left)).ln();
            let mean = (if x < 0. { reached } else { 1. }) / (1. + reached);
            *unit = if f64::from(u) < mean { 1. } else { 0. };
        });
        hidden + (to - from) * (visible + self.offset)
    }
}

struct Visible {
    rows: usize,
    n: usize,
    to: f64,
    philox: Philox,
}

impl Kernel for Visible {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([units], [shift, base, stdev]) = io.parts()?;
        let (units, shift, base) =
            (units.elements::<f64>()?, shift.elements::<f64>()?, base.elements::<f64>()?);
        let stdev = stdev.maybe::<f64>()?;
        let input = |column: usize, unit: f64| self.to * (unit + shift[column]) + base[column];
        let rows = units.par_chunks_mut(self.n).enumerate();
        rows.with_min_len(GRAIN.div_ceil(self.n)).for_each(|(row, units)| match stdev {
            None => for_draws(uniform_tile, self.philox, row * self.n, units, |column, unit, u| {
                let x = input(column, *unit);
                let e = (-x.abs()).exp();
                let mean = (if x < 0. { e } else { 1. }) / (1. + e);
                *unit = if f64::from(u) < mean { 1. } else { 0. };
            }),
            Some(stdev) => for_draws(normal_tile, self.philox, row * self.n, units, |column, unit, z| {
                *unit = input(column, *unit) + f64::from(z) * stdev[column];
            }),
        });
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([units], [shift, base, stdev]) = io.parts()?;
        let mut units = units.elements::<f64>()?;
        let (shift, base, stdev) = (shift.elements::<f64>()?, base.elements::<f64>()?, stdev.maybe::<f64>()?);
        let launch = gpu.launch(VISIBLE, "annealed_units", "annealed_visible")?;
        let launch = launch.write(&mut units).read(&shift).read(&base).maybe(&stdev).num(self.n).num(self.to);
        // SAFETY: (double*, 3 × const double*, size_t, double, 4 × 8 bytes of draws): units is [rows,
        // n], and the others are [n], the last of them maybe null, by `annealed_visible_`; a block
        // of 256 for each row.
        unsafe { launch.draws(self.philox, &None).blocks(self.rows, THREADS).go() }
    }
}

/// Calls `each` with the column, the unit and the draw of each element of a row that begins at
/// element `first`.
fn for_draws(
    tile: impl Fn(Philox, usize) -> [f32; TILE],
    philox: Philox,
    first: usize,
    row: &mut [f64],
    mut each: impl FnMut(usize, &mut f64, f32),
) {
    let (begin, end) = (first - first % 4, first + row.len());
    for at in (begin..end).step_by(TILE) {
        let draws = tile(philox, at);
        for e in at.max(first)..end.min(at + TILE) {
            each(e - first, &mut row[e - first], draws[e - at]);
        }
    }
}
