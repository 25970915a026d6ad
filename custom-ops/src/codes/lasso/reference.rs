//! The lasso in textbook form, in f64. Tests compare the fast versions with it.
use candle::{DType, Device, Result, Tensor};

/// Relative duality gap at which the reference stops.
const GAP: f64 = 1e-10;
/// Sweeps after which it gives up.
const SWEEPS: usize = 1_000_000;

/// `argmin ½ ‖x − a B‖² + Σ βⱼ |aⱼ|` for each row `x` of `signals`: cyclic coordinate descent with
/// the residual itself, to a relative duality gap of 1e-10.
///
/// `signals` is `[m, p]`, `dictionary` `[n, p]` and `penalties` `[n]`. Returns f64 `[m, n]` on the
/// CPU; coefficients of atoms of length 0 are 0.
///
/// # Errors
/// When a tensor cannot be read, or a signal does not reach the gap.
pub fn lasso_reference(
    signals: &Tensor,
    dictionary: &Tensor,
    penalties: &Tensor,
    nonnegative: bool,
) -> Result<Tensor> {
    let (signals, dictionary) = (rows(signals)?, rows(dictionary)?);
    let problem = Problem { dictionary: &dictionary, penalties: &entries(penalties)?, nonnegative };
    let solutions = signals.iter().enumerate().map(|(row, x)| match problem.solve(x) {
        Some(a) => Ok(a),
        None => candle::bail!("lasso_reference: row {row} is above a gap of {GAP} after {SWEEPS} sweeps"),
    });
    let solutions: Vec<f64> = solutions.collect::<Result<Vec<_>>>()?.concat();
    Tensor::from_vec(solutions, (signals.len(), dictionary.len()), &Device::Cpu)
}

/// The relative duality gap of each row of `activations` `[m, n]`, computed from the residual in
/// f64: `[m]` on the CPU.
///
/// The other arguments are those of [`lasso_reference`]; the [module](super) has the formula.
///
/// # Errors
/// When a tensor cannot be read.
pub fn lasso_gaps_reference(
    activations: &Tensor,
    signals: &Tensor,
    dictionary: &Tensor,
    penalties: &Tensor,
    nonnegative: bool,
) -> Result<Tensor> {
    let (signals, dictionary) = (rows(signals)?, rows(dictionary)?);
    let problem = Problem { dictionary: &dictionary, penalties: &entries(penalties)?, nonnegative };
    let gaps = rows(activations)?.iter().zip(&signals).map(|(a, x)| problem.gap(a, x)).collect();
    Tensor::from_vec(gaps, signals.len(), &Device::Cpu)
}

fn rows(x: &Tensor) -> Result<Vec<Vec<f64>>> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2()
}

fn entries(x: &Tensor) -> Result<Vec<f64>> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()
}

struct Problem<'a> {
    dictionary: &'a [Vec<f64>],
    penalties: &'a [f64],
    nonnegative: bool,
}

impl Problem<'_> {
    fn solve(&self, x: &[f64]) -> Option<Vec<f64>> {
        let mut a = vec![0.; self.dictionary.len()];
        let mut residual = x.to_vec();
        for _ in 0..SWEEPS {
            for (j, (atom, &beta)) in self.dictionary.iter().zip(self.penalties).enumerate() {
                let square = dot(atom, atom);
                if square == 0. {
                    continue;
                }
                let z = dot(atom, &residual) + square * a[j];
                let new = match self.nonnegative {
                    true => (z - beta).max(0.) / square,
                    false => (z.abs() - beta).max(0.).copysign(z) / square,
                };
                let step = new - a[j];
                residual.iter_mut().zip(atom).for_each(|(r, b)| *r -= step * b);
                a[j] = new;
            }
            if self.gap(&a, x) <= GAP {
                return Some(a);
            }
        }
        None
    }

    fn gap(&self, a: &[f64], x: &[f64]) -> f64 {
        let mut residual = x.to_vec();
        for (atom, a) in self.dictionary.iter().zip(a) {
            residual.iter_mut().zip(atom).for_each(|(r, b)| *r -= a * b);
        }
        let absolute: f64 = a.iter().zip(self.penalties).map(|(a, beta)| beta * a.abs()).sum();
        let (energy, left) = (dot(x, x), dot(&residual, &residual));
        let primal = 0.5 * left + absolute;
        let (mut scale, mut unpenalised) = (1f64, 0f64);
        for (atom, &beta) in self.dictionary.iter().zip(self.penalties) {
            let q = dot(atom, &residual);
            let q = if self.nonnegative { q } else { q.abs() };
            let square = dot(atom, atom);
            if beta > 0. && q > beta {
                scale = scale.min(beta / q);
            }
            if beta == 0. && q > 0. && energy > 0. {
                unpenalised = unpenalised.max(q / (energy * square).sqrt());
            }
        }
        // D = ½‖x‖² − ½‖x − s r‖²
        let dual = scale * dot(x, &residual) - 0.5 * scale * scale * left;
        if primal <= 16. * f64::EPSILON * energy {
            unpenalised
        } else {
            ((primal - dual) / primal).max(unpenalised)
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
