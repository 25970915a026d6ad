//! L-BFGS: a quasi-Newton method that keeps the last few steps in place of a matrix.
//!
//! ```text
//! minimise f(x)                                           g = ∇f(x)
//! sᵢ = xᵢ₊₁ − xᵢ,   yᵢ = gᵢ₊₁ − gᵢ                        the last m pairs
//! p = −H g,         H from γ I,  γ = s·y / y·y            by the two loops over the pairs
//! x ← x + t p                                             t satisfies the strong Wolfe conditions
//! ```
//!
//! | symbol | where | shape |
//! |---|---|---|
//! | `x` | [`Lbfgs::x`] | `[n]` f32 or f64, on any device |
//! | `f`, `g` | what the objective gives | a scalar of any float type, and `[n]` in the type of `x` |
//! | `m` | [`LbfgsConfig::history`] | |
//!
//! Directions, differences of gradients and gradients are rows of one matrix `K`. After each
//! evaluation [`row_dots`](chandlery_ops::arrays::row_dots()) forms the inner products of the three
//! new rows with all rows in f64, and they cross to the host with the value in one transfer. The
//! two loops run on the host over coefficients of the rows, with inner products that are all known,
//! and one pass, `δ K`, makes the direction. So the host waits once for an evaluation, whatever `m`
//! is, and an evaluation takes some six launches beside those of the objective.
//!
//! Memory: `2m + 4` vectors beside those of an evaluation. Cost of an iteration beside its
//! evaluations: `16 (m + 2) n` FLOP.
//!
//! Sources: Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of
//! Computation 35, 1980; Nocedal and Wright, "Numerical Optimization", second edition, 2006,
//! algorithm 7.5; the loops over coefficients are those of Chen, Wang and Zhou, "Large-scale L-BFGS
//! using MapReduce", NIPS 2014.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::optim::{Lbfgs, LbfgsConfig, Outcome};
//! # fn main() -> candle::Result<()> {
//! // f(x) = ½ (x₀ − 3)² + 50 (x₁ + 1)², least at (3, −1).
//! let centre = Tensor::new(&[3f64, -1.], &Cpu)?;
//! let curvature = Tensor::new(&[1f64, 100.], &Cpu)?;
//! let objective = |x: &Tensor| {
//!     let apart = (x - &centre)?;
//!     let gradient = (&apart * &curvature)?;
//!     Ok((((apart * &gradient)?.sum_all()? * 0.5)?, gradient))
//! };
//! let mut lbfgs = Lbfgs::new(&Tensor::zeros(2, candle::DType::F64, &Cpu)?, LbfgsConfig::default())?;
//! assert_eq!(lbfgs.minimize(objective)?, Outcome::Gradient);
//! let x = lbfgs.x().to_vec1::<f64>()?;
//! assert!((x[0] - 3.).abs() < 1e-5 && (x[1] + 1.).abs() < 1e-7);
//! # Ok(()) }
//! ```
mod config;
mod files;
mod history;

pub use config::{Iteration, LbfgsConfig, Outcome};

use super::line_search::{Point, search};
use crate::check::{at_least_one, room_for};
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::{moved_along, put_difference_};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// A run of L-BFGS; see the [module](self) for the equations.
///
/// Holds all that the rest of the run depends on: a run that is saved and loaded goes on bit for
/// bit.
#[derive(Debug, Clone)]
pub struct Lbfgs {
    config: LbfgsConfig,
    x: Tensor,
    /// `K`, `[2 slots + 2, n]`: directions, differences of gradients, two gradients.
    rows: Tensor,
    state: State,
}

/// What a run knows beside its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The inner products of all rows, row-major.
    products: Vec<f64>,
    /// The pairs, oldest first: their slot, and the step length along the direction.
    pairs: Vec<(usize, f64)>,
    /// The slot of the next pair, and which of the two gradients is that of `x`.
    next: usize,
    gradient: usize,
    /// The value at `x`; none before the first evaluation.
    value: Option<f64>,
    /// What the last iteration took from the value, over `max(|f|, 1)`.
    decrease: Option<f64>,
    iterations: usize,
    evaluations: u64,
    /// The first evaluation since the last accepted step that was not finite.
    non_finite: Option<u64>,
}

impl Lbfgs {
    /// A run that begins at `x`, `[n]` f32 or f64, of which it takes a copy. Nothing is evaluated
    /// yet.
    ///
    /// # Errors
    /// When `config` is out of range, `x` is no such vector, or memory is short.
    pub fn new(x: &Tensor, config: LbfgsConfig) -> Result<Self> {
        config.validate()?;
        let &[n] = x.dims() else {
            candle::bail!("Lbfgs: x must have shape [n], got {:?}; call .flatten_all() first", x.dims())
        };
        at_least_one("Lbfgs", "n", n)?;
        if !matches!(x.dtype(), DType::F32 | DType::F64) {
            candle::bail!("Lbfgs: x must be f32 or f64, got {:?}", x.dtype())
        }
        // Rows, and their inner products, which are f64.
        let (count, n_values) = (2. * config.history as f64 + 4., n as f64);
        let what = format!("{} steps of {n} values", config.history);
        room_for("Lbfgs", &what, count * n_values + 2. * count * count, x.device())?;
        let count = 2 * config.slots() + 2;
        let state = State {
            products: vec![0.; count * count],
            pairs: Vec::with_capacity(config.history),
            next: 0,
            gradient: 0,
            value: None,
            decrease: None,
            iterations: 0,
            evaluations: 0,
            non_finite: None,
        };
        let rows = Tensor::zeros((count, n), x.dtype(), x.device())?;
        Ok(Self { config, x: x.contiguous()?.copy()?, rows, state })
    }

    /// Runs to the end. `objective` gives the value at `x` and the gradient, which it may write to
    /// the same memory in every call.
    ///
    /// # Errors
    /// When `objective` fails, or gives no scalar or no gradient of the shape and type of `x`.
    pub fn minimize(
        &mut self,
        objective: impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<Outcome> {
        self.minimize_with(objective, |_, _| Ok(ControlFlow::Continue(())))
    }

    /// The same with a look at the run after each iteration, which can save it, or end it with
    /// [`ControlFlow::Break`].
    ///
    /// # Errors
    /// As [`minimize`](Self::minimize), and when `each` fails.
    pub fn minimize_with(
        &mut self,
        mut objective: impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
        mut each: impl FnMut(&Self, &Iteration) -> Result<ControlFlow<()>>,
    ) -> Result<Outcome> {
        loop {
            match self.step(&mut objective)? {
                Ok(iteration) => {
                    if each(self, &iteration)?.is_break() {
                        return Ok(Outcome::Stopped);
                    }
                }
                Err(outcome) => return Ok(outcome),
            }
        }
    }

    /// One iteration: a direction and a step along it; the inner error says why there was none, and
    /// then `x` is as it was.
    ///
    /// # Errors
    /// As [`minimize`](Self::minimize).
    pub fn step(
        &mut self,
        objective: &mut impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<std::result::Result<Iteration, Outcome>> {
        let value = match self.state.value {
            Some(value) => value,
            None => match self.begin(objective)? {
                Some(value) => value,
                None => return Ok(Err(Outcome::NonFinite { evaluation: self.state.evaluations })),
            },
        };
        if self.gradient_norm() <= self.config.gradient_tolerance {
            return Ok(Err(Outcome::Gradient));
        }
        let tolerance = self.config.decrease_tolerance;
        if tolerance > 0. && self.state.decrease.is_some_and(|decrease| decrease <= tolerance) {
            return Ok(Err(Outcome::Decrease));
        }
        if self.state.iterations >= self.config.iterations {
            return Ok(Err(Outcome::Iterations));
        }
        loop {
            let found = self.search(objective, value)?;
            if let Some((slope, point)) = found {
                return self.accept(slope, point).map(Ok);
            }
            if self.state.pairs.is_empty() {
                let outcome = |evaluation| Outcome::NonFinite { evaluation };
                return Ok(Err(self.state.non_finite.map_or(Outcome::LineSearch, outcome)));
            }
            // The pairs mislead: begin again from the gradient.
            self.state.pairs.clear();
        }
    }

    /// The parameters as they are, `[n]`; shares its memory with the run until the next step.
    pub fn x(&self) -> &Tensor {
        &self.x
    }

    /// The value at [`x`](Self::x); none before the first evaluation.
    pub fn value(&self) -> Option<f64> {
        self.state.value
    }

    /// The Euclidean norm of the gradient at [`x`](Self::x); 0 before the first evaluation.
    pub fn gradient_norm(&self) -> f64 {
        let row = self.gradient_row();
        self.product(row, row).sqrt()
    }

    /// Iterations made.
    pub fn iterations(&self) -> usize {
        self.state.iterations
    }

    /// Evaluations made.
    pub fn evaluations(&self) -> u64 {
        self.state.evaluations
    }

    /// How the run searches and ends.
    pub fn config(&self) -> &LbfgsConfig {
        &self.config
    }

    /// Changes the number of iterations after which the run ends, to extend one that was loaded.
    pub fn set_iterations(&mut self, iterations: usize) {
        self.config.iterations = iterations;
    }
}

impl Lbfgs {
    /// Evaluates where the run begins; none where the value or the gradient is not finite.
    fn begin(
        &mut self,
        objective: &mut impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<Option<f64>> {
        let (value, gradient) = objective(&self.x)?;
        self.check_gradient(&gradient)?;
        let row = self.gradient_row();
        self.put(row, &gradient)?;
        let value = self.read(&value, &[row])?;
        self.state.evaluations += 1;
        let finite = value.is_finite() && self.product(row, row).is_finite();
        self.state.value = finite.then_some(value);
        Ok(self.state.value)
    }

    /// Searches along a new direction: the slope at its start and the point that was found.
    fn search(
        &mut self,
        objective: &mut impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
        value: f64,
    ) -> Result<Option<(f64, Point)>> {
        let coefficients = self.coefficients();
        let slope = self.along(&coefficients, self.gradient_row());
        if !(slope < 0. && slope.is_finite()) {
            return Ok(None);
        }
        self.combine(&coefficients)?;
        // The first step of a run has no scale to go by.
        let first = if self.state.pairs.is_empty() { 1f64.min(1. / (-slope).sqrt()) } else { 1. };
        let start = Point { step: 0., value, slope };
        let rule = self.config.rule();
        let x = self.x.clone();
        let found = search(start, first, rule, |step| self.try_step(objective, &x, step))?;
        if found.is_some() {
            return Ok(found.map(|point| (slope, point)));
        }
        self.x = x;
        // What was tried may hold NaN, which a coefficient of 0 would not keep out of the next
        // direction.
        let zeros = self.x.zeros_like()?;
        self.put(self.config.slots() + self.state.next, &zeros)?;
        self.put(2 * self.config.slots() + 1 - self.state.gradient, &zeros)?;
        Ok(None)
    }

    /// Evaluates `x + step · direction`, a step along row `next`, whose gradient and difference of
    /// gradients become rows.
    fn try_step(
        &mut self,
        objective: &mut impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
        x: &Tensor,
        step: f64,
    ) -> Result<Point> {
        let (next, slots) = (self.state.next, self.config.slots());
        let (old, new) = (self.gradient_row(), 2 * slots + 1 - self.state.gradient);
        self.x = moved_along(x, &self.rows, next, step)?;
        let (value, gradient) = objective(&self.x)?;
        self.check_gradient(&gradient)?;
        put_difference_(&self.rows, &gradient.contiguous()?, (new, old, slots + next))?;
        let value = self.read(&value, &[next, slots + next, new])?;
        self.state.evaluations += 1;
        let point = Point { step, value, slope: self.product(next, new) };
        let finite = value.is_finite() && self.product(new, new).is_finite();
        if !finite {
            self.state.non_finite.get_or_insert(self.state.evaluations);
            return Ok(Point { value: f64::NAN, ..point });
        }
        Ok(point)
    }

    /// Takes the point that was evaluated last.
    fn accept(&mut self, slope: f64, point: Point) -> Result<Iteration> {
        let (next, slots) = (self.state.next, self.config.slots());
        let y = slots + next;
        let scale = point.value.abs().max(1.);
        self.state.decrease = self.state.value.map(|before| (before - point.value) / scale);
        self.state.gradient = 1 - self.state.gradient;
        self.state.value = Some(point.value);
        self.state.iterations += 1;
        self.state.non_finite = None;
        // Rounding alone can make the curvature vanish: the second Wolfe condition gives it its
        // sign.
        let curvature = point.step * self.product(next, y);
        if curvature > f64::EPSILON * self.product(y, y) {
            if self.state.pairs.len() == self.config.history {
                self.state.pairs.remove(0);
            }
            self.state.pairs.push((next, point.step));
            self.state.next = (next + 1) % slots;
        }
        Ok(Iteration {
            iteration: self.state.iterations,
            evaluations: self.state.evaluations,
            value: point.value,
            gradient_norm: self.gradient_norm(),
            step: point.step,
            slopes: [slope, point.slope],
        })
    }
}
