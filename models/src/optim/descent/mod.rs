//! A run of a [`Method`]: steps along directions that lower a function.
//!
//! ```text
//! minimise f(x)                                           g = ∇f(x)
//! p from g and the steps before                           by the method
//! x ← x + t p                                             t by the line search of the method
//! ```
//!
//! | symbol | where | shape |
//! |---|---|---|
//! | `x` | [`Descent::x`] | `[n]` f32 or f64, on any device |
//! | `f`, `g` | what the objective gives | a scalar of any float type, and `[n]` in the type of `x` |
//!
//! Directions, differences of gradients and gradients are rows of one matrix `K`. After each
//! evaluation [`row_dots`](chandlery_ops::arrays::row_dots()) forms the inner products of the three
//! new rows with all rows in f64, and they cross to the host with the value in one transfer. The
//! method runs on the host over coefficients of the rows, with inner products that are all known,
//! and one pass, `δ K`, makes the direction. So the host waits once for an evaluation, whatever the
//! method keeps, and an evaluation takes some six launches beside those of the objective.
//!
//! Memory beside that of an evaluation: the point and `K`, which has `2m + 4` rows for L-BFGS with
//! a history of `m`, and 4 for the others.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::optim::{ConjugateGradientConfig, Descent, LbfgsConfig, Method, Outcome};
//! # fn main() -> candle::Result<()> {
//! // f(x) = ½ (x₀ − 3)² + 50 (x₁ + 1)², least at (3, −1).
//! let centre = Tensor::new(&[3f64, -1.], &Cpu)?;
//! let curvature = Tensor::new(&[1f64, 100.], &Cpu)?;
//! let objective = |x: &Tensor| {
//!     let apart = (x - &centre)?;
//!     let gradient = (&apart * &curvature)?;
//!     Ok((((apart * &gradient)?.sum_all()? * 0.5)?, gradient))
//! };
//! let start = Tensor::zeros(2, candle::DType::F64, &Cpu)?;
//! for method in [Method::from(LbfgsConfig::default()), ConjugateGradientConfig::default().into()] {
//!     let mut run = Descent::new(&start, method)?;
//!     assert_eq!(run.minimize(objective)?, Outcome::Gradient);
//!     let x = run.x().to_vec1::<f64>()?;
//!     assert!((x[0] - 3.).abs() < 1e-5 && (x[1] + 1.).abs() < 1e-7);
//! }
//! # Ok(()) }
//! ```
mod files;
mod rows;

use super::ending::{Ending, Iteration, Outcome};
use super::line_search::Point;
use super::method::Method;
use super::state::State;
use crate::check::{at_least_one, room_for};
use candle::{DType, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::{moved_along, put_difference_};
use std::ops::ControlFlow;

/// A run of one [`Method`]; see the [module](self).
///
/// Holds all that the rest of the run depends on: a run that is saved and loaded goes on bit for
/// bit.
#[derive(Debug, Clone)]
pub struct Descent {
    method: Method,
    x: Tensor,
    /// `K`, `[2 slots + 2, n]`: directions, differences of gradients, two gradients.
    rows: Tensor,
    state: State,
}

impl Descent {
    /// A run that begins at `x`, `[n]` f32 or f64, of which it takes a copy. Nothing is evaluated
    /// yet.
    ///
    /// # Errors
    /// When `method` is out of range, `x` is no such vector, or memory is short.
    pub fn new(x: &Tensor, method: impl Into<Method>) -> Result<Self> {
        let method = method.into();
        method.validate()?;
        let name = method.name();
        let &[n] = x.dims() else {
            candle::bail!("{name}: x must have shape [n], got {:?}; call .flatten_all() first", x.dims())
        };
        at_least_one(name, "n", n)?;
        if !matches!(x.dtype(), DType::F32 | DType::F64) {
            candle::bail!("{name}: x must be f32 or f64, got {:?}", x.dtype())
        }
        // Rows, and their inner products, which are f64.
        let (count, n_values) = (2. * method.slots() as f64 + 2., n as f64);
        let what = format!("{} steps of {n} values", method.history());
        room_for(name, &what, count * n_values + 2. * count * count, x.device())?;
        let state = State::new(method.slots());
        let rows = Tensor::zeros((2 * method.slots() + 2, n), x.dtype(), x.device())?;
        Ok(Self { method, x: x.contiguous()?.copy()?, rows, state })
    }

    /// The place and the rows of the first rank of a group, whose ranks have the same run.
    pub(crate) fn begin_as_first(&self, group: &Group) -> Result<()> {
        group.broadcast_(&self.x, 0)?;
        group.broadcast_(&self.rows, 0)
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
        let Ending { iterations, gradient_tolerance, decrease_tolerance } = self.method.ending();
        if self.gradient_norm() <= gradient_tolerance {
            return Ok(Err(Outcome::Gradient));
        }
        let within = |decrease: f64| decrease <= decrease_tolerance;
        if decrease_tolerance > 0. && self.state.decrease.is_some_and(within) {
            return Ok(Err(Outcome::Decrease));
        }
        if self.state.iterations >= iterations {
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
            // The steps before mislead: begin again from the gradient.
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
        let row = self.past().gradient();
        self.past().product(row, row).sqrt()
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
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Changes the number of iterations after which the run ends, to extend one that was loaded.
    pub fn set_iterations(&mut self, iterations: usize) {
        self.method.set_iterations(iterations);
    }
}

impl Descent {
    /// Evaluates where the run begins; none where the value or the gradient is not finite.
    fn begin(
        &mut self,
        objective: &mut impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<Option<f64>> {
        let (value, gradient) = objective(&self.x)?;
        self.check_gradient(&gradient)?;
        let row = self.past().gradient();
        self.put(row, &gradient)?;
        let value = self.read(&value, &[row])?;
        self.state.evaluations += 1;
        let finite = value.is_finite() && self.past().product(row, row).is_finite();
        self.state.value = finite.then_some(value);
        Ok(self.state.value)
    }

    /// Searches along a new direction: the slope at its start and the point that was found.
    fn search(
        &mut self,
        objective: &mut impl FnMut(&Tensor) -> Result<(Tensor, Tensor)>,
        value: f64,
    ) -> Result<Option<(f64, Point)>> {
        let (method, past) = (self.method, self.past());
        let coefficients = method.direction(past);
        let slope = past.along(&coefficients, past.gradient());
        if !(slope < 0. && slope.is_finite()) {
            return Ok(None);
        }
        let first = method.first_step(past, slope);
        self.combine(&coefficients)?;
        let start = Point { step: 0., value, slope };
        let x = self.x.clone();
        let found = method.search(start, first, |step| self.try_step(objective, &x, step))?;
        if found.is_some() {
            return Ok(found.map(|point| (slope, point)));
        }
        self.x = x;
        // What was tried may hold NaN, which a coefficient of 0 would not keep out of the next
        // direction.
        let zeros = self.x.zeros_like()?;
        let tried = [self.past().difference(self.state.next), self.past().other_gradient()];
        tried.into_iter().try_for_each(|row| self.put(row, &zeros))?;
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
        let (next, past) = (self.state.next, self.past());
        let (old, new, y) = (past.gradient(), past.other_gradient(), past.difference(next));
        self.x = moved_along(x, &self.rows, next, step)?;
        let (value, gradient) = objective(&self.x)?;
        self.check_gradient(&gradient)?;
        put_difference_(&self.rows, &gradient.contiguous()?, (new, old, y))?;
        let value = self.read(&value, &[next, y, new])?;
        self.state.evaluations += 1;
        let point = Point { step, value, slope: self.past().product(next, new) };
        let finite = value.is_finite() && self.past().product(new, new).is_finite();
        if !finite {
            self.state.non_finite.get_or_insert(self.state.evaluations);
            return Ok(Point { value: f64::NAN, ..point });
        }
        Ok(point)
    }

    /// Takes the point that was evaluated last.
    fn accept(&mut self, slope: f64, point: Point) -> Result<Iteration> {
        let scale = point.value.abs().max(1.);
        self.state.decrease = self.state.value.map(|before| (before - point.value) / scale);
        self.state.gradient = 1 - self.state.gradient;
        self.state.value = Some(point.value);
        self.state.iterations += 1;
        self.state.non_finite = None;
        if self.method.keeps(self.past(), point.step) {
            if self.state.pairs.len() == self.method.history() {
                self.state.pairs.remove(0);
            }
            self.state.pairs.push((self.state.next, point.step));
            self.state.next = (self.state.next + 1) % self.method.slots();
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
