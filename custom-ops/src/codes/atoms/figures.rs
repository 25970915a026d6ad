//! Summary figures of sparse codes, in one pass over the error and the signals.
use super::squares::squares;
use super::{AtomUses, FLOATS};
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};

const OP: &str = "code_figures_";

/// Number of parts in the figures of [`code_figures_`]: the signals are cut into this many runs of
/// consecutive rows.
pub const FIGURE_PARTS: usize = 128;

/// The figures of codes: the sizes of errors and signals, and how often each atom is used.
///
/// `figures` is f64 `[2 · FIGURE_PARTS + n_atoms + 1]` and receives
///
/// ```text
/// figures[t]                           Σ ‖E_i‖² over part t of the signals: the squared error is the sum over all parts
/// figures[FIGURE_PARTS + t]            max ‖Y_i‖² over part t, 0 for a part without signals: NaN where a square is one
/// figures[2 · FIGURE_PARTS ..]         the offsets of `uses`: atom j is used offsets[j + 1] − offsets[j] times
/// squares[i]                           ‖E_i‖², f64 [n_samples]: what is returned
/// ```
///
/// `error` and `signals` are `[n_samples, n_features]`, f32 or f64; all contiguous. Squares are
/// summed in f64 and are those of [`row_squares`](crate::codes::row_squares).
///
/// # Errors
/// When shapes, types or devices do not fit, or a step is being recorded.
pub fn code_figures_(figures: &Tensor, error: &Tensor, signals: &Tensor, uses: &AtomUses) -> Result<Tensor> {
    let (m, p) = matrix(OP, "error", "[n_samples, n_features]", error, &FLOATS)?;
    expect(OP, "signals", signals, &[error.dtype()], &[m, p])?;
    expect(OP, "figures", figures, &[DType::F64], &[2 * FIGURE_PARTS + uses.n_atoms + 1])?;
    let kernel = Figures { m, p, n: uses.n_atoms, dtype: error.dtype() };
    let squares = new_tensor(OP, m, DType::F64, error.device())?;
    let io = operands(OP).write("figures", figures).write("squares", &squares);
    io.read("error", error).read("signals", signals).read("uses", &uses.offsets).run(&kernel)?;
    Ok(squares)
}

/// Whether the parts of the squared error are at most `most_error` and those of the largest square
/// at most `most_square`; no NaN is.
pub(super) fn figures_hold(figures: &[f64], most_error: f64, most_square: f64) -> bool {
    let (errors, largest) = figures.split_at(FIGURE_PARTS.min(figures.len()));
    errors.iter().all(|&x| x <= most_error) && largest.iter().take(FIGURE_PARTS).all(|&x| x <= most_square)
}

struct Figures {
    m: usize,
    p: usize,
    n: usize,
    dtype: DType,
}

impl Kernel for Figures {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.figures::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/code_figures.cu.
            const THREADS: u32 = 256;
            let ([figures, squares], [error, signals, offsets]) = io.parts()?;
            let (mut figures, mut squares) = (figures.elements::<f64>()?, squares.elements::<f64>()?);
            let (error, signals) = (error.elements::<T>()?, signals.elements::<T>()?);
            let offsets = offsets.elements::<u32>()?;
            let kernel = format!("code_figures_{}", self.dtype.as_str());
            let launch = gpu.launch(OP, "code_figures", &kernel)?.write(&mut figures).write(&mut squares);
            let launch = launch.read(&error).read(&signals).read(&offsets);
            let launch = launch.num(self.m).num(self.p).num(self.part()).count(self.n);
            // SAFETY: (2 × double*, 2 × const T*, const unsigned*, 3 × size_t, unsigned) of the
            // shapes that `code_figures_` checked; a block for each of FIGURE_PARTS parts, which
            // begins the figures; uses.offsets holds n + 1 numbers.
            unsafe { launch.blocks(FIGURE_PARTS, THREADS).go() }
        })
    }
}

impl Figures {
    /// Signals of a part; the last parts may have fewer, or none.
    fn part(&self) -> usize {
        self.m.div_ceil(FIGURE_PARTS).max(1)
    }

    fn figures<T: WithDType>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([figures, of_error], [error, signals, offsets]) = io.parts()?;
        let (figures, of_error) = (figures.elements::<f64>()?, of_error.elements::<f64>()?);
        let mut of_signals = vec![0.; self.m];
        squares(error.elements::<T>()?, self.p, of_error);
        squares(signals.elements::<T>()?, self.p, &mut of_signals);
        let (sums, rest) = figures.split_at_mut(FIGURE_PARTS);
        let (largest, counts) = rest.split_at_mut(FIGURE_PARTS);
        sums.fill(0.);
        largest.fill(0.);
        for (sum, part) in sums.iter_mut().zip(of_error.chunks(self.part())) {
            *sum = part.iter().sum();
        }
        for (largest, part) in largest.iter_mut().zip(of_signals.chunks(self.part())) {
            *largest = part.iter().fold(0., |most, &x| if x > most || x.is_nan() { x } else { most });
        }
        counts.iter_mut().zip(offsets.elements::<u32>()?).for_each(|(to, &from)| *to = f64::from(from));
        Ok(())
    }
}
