//! The Lagrange dual by Newton's method with an active set.
//!
//! ```text
//! M = (A + diag λ)⁻¹,   B = M S
//! min_{λ ≥ 0} φ(λ) = ½ tr(SᵀMS) + ½ Σ λ_j         the negative of the dual, which is convex
//! ∇φ_j = ½ (1 − ‖b_j‖²),   ∇²φ = M ∘ (B Bᵀ)
//! ```
//!
//! `λ_j` that are 0 and would fall stay 0 in a step; the others take Newton's step, shortened until
//! `φ` falls, and end at 0 where it would lead below. At the minimum every atom has length 1, or
//! `λ_j = 0` and a length below: with `(A + diag λ) B = S` these are the conditions for the best
//! basis. A ridge of 1e-12 of the largest `A_jj` joins a singular `A + diag λ`.
//!
//! Sources: Lee, Battle, Raina and Ng, "Efficient sparse coding algorithms", NIPS 2006, section 4;
//! Bertsekas, "Projected Newton methods for optimization problems with simple constraints", SIAM J.
//! Control and Optimization 20(2), 1982.
use super::{Statistics, UNUSED};
use crate::dictionary::least_squares::cholesky;
use candle::{DType, Result, Tensor};
use nalgebra::{DMatrix, DVector};

const OP: &str = "BasisUpdate::apply";
/// How far `‖b_j‖²` may be from what it must be.
const TOLERANCE: f64 = 1e-12;
/// Iterations and halvings of a step; it takes some ten of the first, and few of the second.
const MOST: usize = 100;
/// The share of the decrease along the gradient that a step must have (Armijo).
const SHARE: f64 = 1e-4;

/// The best basis, of the type and on the device of `basis`.
pub(super) fn minimise(basis: &Tensor, statistics: &Statistics) -> Result<Tensor> {
    let rows = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (a, s) = (rows(&statistics.gram)?, rows(&statistics.signals)?);
    let (n, p) = basis.dims2()?;
    let used: Vec<usize> = (0..n).filter(|&j| a[j][j] > UNUSED || a[j][j].is_nan()).collect();
    if used.is_empty() {
        return Ok(basis.clone());
    }
    let dual = Dual {
        gram: DMatrix::from_fn(used.len(), used.len(), |i, k| a[used[i]][used[k]]),
        signals: DMatrix::from_fn(used.len(), p, |i, c| s[used[i]][c]),
    };
    let best = dual.minimum()?;
    let mut atoms = rows(basis)?;
    for (row, &j) in best.row_iter().zip(&used) {
        // Longer than 1 by rounding at most.
        let length = row.norm().max(1.);
        atoms[j] = row.iter().map(|x| x / length).collect();
    }
    Tensor::new(atoms, basis.device())?.to_dtype(basis.dtype())
}

struct Dual {
    gram: DMatrix<f64>,
    signals: DMatrix<f64>,
}

/// `φ` at some `λ`, and what its gradient needs.
struct Point {
    lambda: DVector<f64>,
    inverse: DMatrix<f64>,
    basis: DMatrix<f64>,
    value: f64,
    gradient: DVector<f64>,
}

impl Dual {
    fn at(&self, lambda: DVector<f64>) -> Result<Point> {
        let lifted = &self.gram + DMatrix::from_diagonal(&lambda);
        let inverse = cholesky(OP, "the statistics", &lifted)?.inverse();
        let basis = &inverse * &self.signals;
        let value = 0.5 * (basis.dot(&self.signals) + lambda.sum());
        let squares = basis.row_iter().map(|row| 0.5 * (1. - row.norm_squared()));
        let gradient = DVector::from_iterator(lambda.len(), squares);
        if !value.is_finite() {
            candle::bail!("{OP}: the statistics must be finite, got a NaN or infinity")
        }
        Ok(Point { lambda, inverse, basis, value, gradient })
    }

    fn minimum(&self) -> Result<DMatrix<f64>> {
        // What an atom would need alone.
        let alone = |j: usize| (self.signals.row(j).norm() - self.gram[(j, j)]).max(0.);
        let mut point =
            self.at(DVector::from_iterator(self.gram.nrows(), (0..self.gram.nrows()).map(alone)))?;
        for _ in 0..MOST {
            if point.off() <= TOLERANCE {
                break;
            }
            match self.step(&point)? {
                Some(next) => point = next,
                // As low as rounding lets it come.
                None => break,
            }
        }
        Ok(point.basis)
    }

    /// The point after a step; none where no step lowers `φ`.
    fn step(&self, from: &Point) -> Result<Option<Point>> {
        let direction = from.newton()?;
        let mut length = 1.;
        for _ in 0..MOST {
            let to = (&from.lambda + &direction * length).map(|x| x.max(0.));
            let fall = from.gradient.dot(&(&to - &from.lambda));
            let next = self.at(to)?;
            if next.value <= from.value + SHARE * fall && (next.value < from.value || next.off() < from.off())
            {
                return Ok(Some(next));
            }
            length /= 2.;
        }
        Ok(None)
    }
}

impl Point {
    /// Those that a step may change.
    fn free(&self) -> Vec<usize> {
        (0..self.lambda.len()).filter(|&j| self.lambda[j] > 0. || self.gradient[j] < 0.).collect()
    }

    /// How far the worst atom is from its length, in squares.
    fn off(&self) -> f64 {
        self.free().into_iter().fold(0., |most: f64, j| most.max(2. * self.gradient[j].abs()))
    }

    fn newton(&self) -> Result<DVector<f64>> {
        let free = self.free();
        let products = &self.basis * self.basis.transpose();
        let hessian = DMatrix::from_fn(free.len(), free.len(), |i, k| {
            self.inverse[(free[i], free[k])] * products[(free[i], free[k])]
        });
        let gradient = DVector::from_iterator(free.len(), free.iter().map(|&j| self.gradient[j]));
        let solved = cholesky(OP, "the Hessian of the dual", &hessian)?.solve(&gradient);
        let mut direction = DVector::zeros(self.lambda.len());
        for (&j, step) in free.iter().zip(solved.iter()) {
            direction[j] = -step;
        }
        Ok(direction)
    }
}
