//! One iteration of the coordinate-parallel lasso, without its product with the Gram matrix.
//!
//! ```text
//! P(a + t d) = P(a) − t d·q + ½ t² d·(d G) + Σ βⱼ (|aⱼ + t dⱼ| − |aⱼ|)       the line search's function of t
//! a ← a + t d      q ← q − t d G                                           q = c − a G
//! dⱼ ← a*ⱼ − aⱼ    a*ⱼ = soft(qⱼ + Gⱼⱼ aⱼ, βⱼ) / Gⱼⱼ                         all optimal coordinates in parallel
//! ```
//!
//! A solver alternates this with `d G`, one product for all signals. Before the first one, `d` is
//! 0.
//!
//! Source: Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics
//! processors", ICML 2009, section 6.
use super::cpu::line_search::{Along, minimise};
use super::cpu::signal::Sums;
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, operands};
use crate::core::real::Real;
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

const OP: &str = "lasso_step_";
/// Step sizes of [`LineSearch::Steps`]: 1, ½, ¼, … 2⁻¹⁰.
const STEPS: i32 = 11;
/// Coefficients below which other threads are not worth waking.
const GRAIN: usize = 16 * 1024;

/// How far an iteration goes along its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineSearch {
    /// To the minimiser of the piecewise quadratic.
    #[default]
    Exact,
    /// By the largest of the steps 1, ½, ¼, … 2⁻¹⁰ that lowers the objective, as the paper does
    /// with a fixed set of its own.
    Steps,
}

/// What an iteration of [`lasso_step_`] reads besides its state; the types are that of the
/// activations.
#[derive(Debug, Clone, Copy)]
pub struct LassoStep<'a> {
    /// `Gⱼⱼ`, `[n]`; atoms for which it is 0 are not used.
    pub diagonal: &'a Tensor,
    /// `c`, `[m, n]`
    pub correlations: &'a Tensor,
    /// `ε`, `[m]`
    pub energies: &'a Tensor,
    /// `β`, `[n]`, at least 0
    pub penalties: &'a Tensor,
    /// How far to go.
    pub line_search: LineSearch,
    /// Whether every coefficient must be at least 0.
    pub nonnegative: bool,
}

/// Moves each signal along its direction and finds the next direction; see the [module](super) for
/// the symbols.
///
/// `activations`, `residual_correlations` (`q`) and `directions` (`d`), `[m, n]`, are written in
/// place. `products` is `d G`, `[m, n]`. `figures` `[m, 2]` receives the objective and the relative
/// duality gap of the new activations. All are contiguous, f32 or f64.
///
/// Cost: reads five and writes three matrices `[m, n]`.
///
/// # Errors
/// When shapes, types, layouts or devices do not fit.
pub fn lasso_step_(
    activations: &Tensor,
    residual_correlations: &Tensor,
    directions: &Tensor,
    figures: &Tensor,
    products: &Tensor,
    step: &LassoStep<'_>,
) -> Result<()> {
    let (m, n) = matrix(OP, "activations", "[n_samples, n_atoms]", activations, &[DType::F32, DType::F64])?;
    let dtype = activations.dtype();
    for (name, x) in [
        ("residual_correlations", residual_correlations),
        ("directions", directions),
        ("products", products),
        ("correlations", step.correlations),
    ] {
        expect(OP, name, x, &[dtype], &[m, n])?;
    }
    expect(OP, "figures", figures, &[dtype], &[m, 2])?;
    expect(OP, "energies", step.energies, &[dtype], &[m])?;
    expect(OP, "diagonal", step.diagonal, &[dtype], &[n])?;
    expect(OP, "penalties", step.penalties, &[dtype], &[n])?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let written = operands(OP).write("activations", activations);
    let written = written.write("residual_correlations", residual_correlations);
    let written = written.write("directions", directions).write("figures", figures);
    let read = written.read("products", products).read("diagonal", step.diagonal);
    let read = read.read("correlations", step.correlations).read("energies", step.energies);
    let (line_search, nonnegative) = (step.line_search, step.nonnegative);
    read.read("penalties", step.penalties).run(&Step { n, dtype, line_search, nonnegative })
}

struct Step {
    n: usize,
    dtype: DType,
    line_search: LineSearch,
    nonnegative: bool,
}

/// A row of each matrix, and its energy.
struct Row<'a, T> {
    a: &'a mut [T],
    q: &'a mut [T],
    d: &'a mut [T],
    products: &'a [T],
    c: &'a [T],
    energy: f64,
}

impl Kernel for Step {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            DType::F64 => self.run_cpu::<f64>(io),
            _ => self.run_cpu::<f32>(io),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let dtype = self.dtype.as_str();
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/lasso_step.cu.
            const THREADS: u32 = 256;
            let ([a, q, d, figures], [products, diagonal, c, energies, penalties]) = io.parts()?;
            let (mut a, mut q, mut d) = (a.elements::<T>()?, q.elements::<T>()?, d.elements::<T>()?);
            let (mut figures, products, c) =
                (figures.elements::<T>()?, products.elements::<T>()?, c.elements::<T>()?);
            let (diagonal, energies, penalties) =
                (diagonal.elements::<T>()?, energies.elements::<T>()?, penalties.elements::<T>()?);
            let m = energies.len();
            let launch = gpu.launch(OP, "lasso_step", &format!("lasso_step_{dtype}"))?;
            let launch = launch.write(&mut a).write(&mut q).write(&mut d).write(&mut figures);
            let launch = launch.read(&products).read(&diagonal).read(&c).read(&energies);
            let launch = launch.read(&penalties).count(self.n);
            let launch =
                launch.count((self.line_search == LineSearch::Steps).into()).count(self.nonnegative.into());
            // SAFETY: (4 × T*, 5 × const T*, 3 × unsigned): shapes by the checks of `lasso_step_`,
            // a block for each of m signals.
            unsafe { launch.blocks(m, THREADS).go() }
        })
    }
}

impl Step {
    fn run_cpu<T: Real>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let n = self.n;
        let ([a, q, d, figures], [products, diagonal, c, energies, penalties]) = io.parts()?;
        let (a, q, d) = (a.elements::<T>()?, q.elements::<T>()?, d.elements::<T>()?);
        let (diagonal, penalties) = (diagonal.elements::<T>()?, penalties.elements::<T>()?);
        let rows = a.par_chunks_exact_mut(n).zip(q.par_chunks_exact_mut(n)).zip(d.par_chunks_exact_mut(n));
        let read = products.elements::<T>()?.par_chunks_exact(n).zip(c.elements::<T>()?.par_chunks_exact(n));
        let rows = rows.zip(read).zip(energies.elements::<T>()?);
        let rows = rows.zip(figures.elements::<T>()?.par_chunks_exact_mut(2)).with_min_len(GRAIN.div_ceil(n));
        rows.for_each(|(((((a, q), d), (products, c)), energy), figures)| {
            let row = Row { a, q, d, products, c, energy: energy.to_f64() };
            let [objective, gap] = match self.nonnegative {
                true => self.advance::<T, true>(row, diagonal, penalties),
                false => self.advance::<T, false>(row, diagonal, penalties),
            };
            (figures[0], figures[1]) = (T::from_f64(objective), T::from_f64(gap));
        });
        Ok(())
    }

    /// Returns the objective and the gap.
    fn advance<T: Real, const POSITIVE: bool>(
        &self,
        row: Row<'_, T>,
        diagonal: &[T],
        penalties: &[T],
    ) -> [f64; 2] {
        let Row { a, q, d, products, c, energy } = row;
        let (length, zero) = {
            let at = |j: usize| Along {
                a: a[j].to_f64(),
                d: d[j].to_f64(),
                gd: products[j].to_f64(),
                q: q[j].to_f64(),
                beta: penalties[j].to_f64(),
            };
            let along = (0..a.len()).filter(|&j| d[j] != T::zero()).map(at);
            match self.line_search {
                LineSearch::Exact => {
                    let step = minimise::<POSITIVE>(along);
                    let moved = || (0..a.len()).filter(|&j| d[j] != T::zero());
                    (step.length, step.zero.and_then(|i| moved().nth(i)))
                }
                LineSearch::Steps => (largest_step(along), None),
            }
        };
        let by = T::from_f64(length);
        let mut sums = Sums { energy, ..Sums::default() };
        for j in 0..a.len() {
            let new = a[j] + by * d[j];
            let leaves = zero == Some(j) || POSITIVE && new < T::zero();
            a[j] = if leaves { T::zero() } else { new };
            q[j] -= by * products[j];
            let (square, beta, x, r) =
                (diagonal[j].to_f64(), penalties[j].to_f64(), a[j].to_f64(), q[j].to_f64());
            d[j] = T::from_f64(minimiser::<POSITIVE>(r, x, square, beta) - x);
            sums.ca += c[j].to_f64() * x;
            sums.qa += r * x;
            sums.absolute += beta * x.abs();
            let size = if POSITIVE { r } else { r.abs() };
            match beta > 0. {
                _ if square <= 0. => {}
                true => sums.excess = sums.excess.max(size / beta),
                false => sums.unpenalised = sums.unpenalised.max(size / square.sqrt()),
            }
        }
        let certificate = sums.certificate(T::EPSILON);
        [certificate.objective, certificate.gap]
    }
}

/// `a*ⱼ` by the soft threshold; 0 for a zero atom.
fn minimiser<const POSITIVE: bool>(q: f64, a: f64, square: f64, beta: f64) -> f64 {
    if square <= 0. {
        return 0.;
    }
    let z = q + square * a;
    match POSITIVE {
        true => (z - beta).max(0.) / square,
        false => (z.abs() - beta).max(0.).copysign(z) / square,
    }
}

/// The largest step that lowers the objective, or 0.
fn largest_step(along: impl Iterator<Item = Along> + Clone) -> f64 {
    let change = |t: f64| -> f64 {
        along
            .clone()
            .map(|Along { a, d, gd, q, beta }| {
                t * d * (0.5 * t * gd - q) + beta * ((a + t * d).abs() - a.abs())
            })
            .sum()
    };
    (0..STEPS).map(|k| 0.5f64.powi(k)).find(|&t| change(t) < 0.).unwrap_or(0.)
}

/// The same from the objective itself in f64, for one iteration of all signals: the step is found
/// by trying 100,001 lengths up to 4 (or the fixed set). Returns the new activations, f64 `[m, n]`.
///
/// # Errors
/// When a tensor cannot be read.
pub fn lasso_step_reference(
    activations: &Tensor,
    residual_correlations: &Tensor,
    directions: &Tensor,
    products: &Tensor,
    step: &LassoStep<'_>,
) -> Result<Tensor> {
    let rows = |x: &Tensor| x.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (mut a, q) = (rows(activations)?, rows(residual_correlations)?);
    let (d, gd, beta) =
        (rows(directions)?, rows(products)?, step.penalties.to_dtype(DType::F64)?.to_vec1::<f64>()?);
    let trials: Vec<f64> = match step.line_search {
        LineSearch::Exact => (0..=100_000).map(|i| f64::from(i) * 4e-5).collect(),
        LineSearch::Steps => (0..STEPS).map(|k| 0.5f64.powi(k)).collect(),
    };
    for (row, a) in a.iter_mut().enumerate() {
        let change = |t: f64| -> f64 {
            let of = |j: usize| {
                let d = d[row][j];
                t * d * (0.5 * t * gd[row][j] - q[row][j]) + beta[j] * ((a[j] + t * d).abs() - a[j].abs())
            };
            (0..a.len()).map(of).sum()
        };
        let allowed = |t: f64| !step.nonnegative || (0..a.len()).all(|j| a[j] + t * d[row][j] >= -1e-12);
        let t = match step.line_search {
            LineSearch::Exact => {
                let lengths = trials.iter().copied().filter(|&t| allowed(t));
                lengths.min_by(|x, y| change(*x).total_cmp(&change(*y))).unwrap_or(0.)
            }
            LineSearch::Steps => trials.iter().copied().find(|&t| change(t) < 0.).unwrap_or(0.),
        };
        (0..a.len()).for_each(|j| a[j] += t * d[row][j]);
    }
    Tensor::new(a, activations.device())
}
