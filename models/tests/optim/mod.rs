//! Descents reach known minima, keep the conditions of their line searches, resume bit for bit and
//! say why they ended.
mod cg;
mod gd;
mod lbfgs;

use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery::optim::{
    ConjugateGradientConfig, Descent, GradientDescentConfig, Iteration, LbfgsConfig, Method, Outcome,
};
use std::ops::ControlFlow;

/// An objective from a function on the host, in the type of its argument.
pub fn on_host(f: impl Fn(&[f64]) -> (f64, Vec<f64>)) -> impl Fn(&Tensor) -> Result<(Tensor, Tensor)> {
    move |x| {
        let (value, gradient) = f(&x.to_dtype(DType::F64)?.to_vec1::<f64>()?);
        Ok((Tensor::new(value, &Cpu)?, Tensor::new(gradient, &Cpu)?.to_dtype(x.dtype())?))
    }
}

/// `Σ 100 (x₂ᵢ₊₁ − x₂ᵢ²)² + (1 − x₂ᵢ)²`, least at 1.
pub fn rosenbrock(x: &[f64]) -> (f64, Vec<f64>) {
    let mut gradient = vec![0.; x.len()];
    let mut value = 0.;
    for (x, g) in x.chunks_exact(2).zip(gradient.chunks_exact_mut(2)) {
        let (a, b) = (x[1] - x[0] * x[0], 1. - x[0]);
        value += 100. * a * a + b * b;
        (g[0], g[1]) = (-400. * a * x[0] - 2. * b, 200. * a);
    }
    (value, gradient)
}

/// `½ Σ dᵢ (xᵢ − 1)²` with `dᵢ` from 1 to `condition`.
pub fn quadratic(condition: f64) -> impl Fn(&[f64]) -> (f64, Vec<f64>) {
    move |x| {
        let n = x.len() as f64 - 1.;
        let gradient: Vec<f64> =
            x.iter().enumerate().map(|(i, x)| condition.powf(i as f64 / n) * (x - 1.)).collect();
        (gradient.iter().zip(x).map(|(g, x)| 0.5 * g * (x - 1.)).sum(), gradient)
    }
}

pub fn start(pattern: &[f64], n: usize, dtype: DType) -> Result<Tensor> {
    let values: Vec<f64> = pattern.iter().copied().cycle().take(n).collect();
    Tensor::new(values, &Cpu)?.to_dtype(dtype)
}

/// The largest distance of an entry from `to`.
pub fn distance(x: &Tensor, to: &[f64]) -> Result<f64> {
    let x = x.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    Ok(x.iter().zip(to.iter().cycle()).map(|(x, to)| (x - to).abs()).fold(0., f64::max))
}

/// Runs to the end and checks the conditions of its line search at every accepted step.
pub fn run(
    name: &str,
    x: &Tensor,
    method: Method,
    objective: impl Fn(&Tensor) -> Result<(Tensor, Tensor)>,
) -> Result<(Descent, Outcome)> {
    let (decrease, curvature) = match method {
        Method::Lbfgs(config) => (config.sufficient_decrease, config.curvature),
        Method::ConjugateGradient(config) => (config.sufficient_decrease, config.curvature),
        Method::GradientDescent(config) => (config.sufficient_decrease, f64::INFINITY),
    };
    let mut run = Descent::new(x, method)?;
    let mut before = objective(x)?.0.to_scalar::<f64>()?;
    let outcome = run.minimize_with(&objective, |_, iteration| {
        let &Iteration { value, step, slopes: [from, to], .. } = iteration;
        // The value at the end is that of a step rounded to the type of x, hence the allowance.
        let allowance = f64::EPSILON * before.abs();
        assert!(from < 0. && value <= before + decrease * step * from + allowance, "{name}: {iteration:?}");
        assert!(to.abs() <= curvature * from.abs(), "{name}: {iteration:?}");
        before = value;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((run, outcome))
}

/// All methods, for so many iterations to a norm of the gradient.
fn methods(iterations: usize, gradient_tolerance: f64) -> [Method; 3] {
    [
        LbfgsConfig { history: 4, iterations, gradient_tolerance, ..LbfgsConfig::default() }.into(),
        ConjugateGradientConfig { iterations, gradient_tolerance, ..ConjugateGradientConfig::default() }
            .into(),
        GradientDescentConfig { iterations, gradient_tolerance, ..GradientDescentConfig::default() }.into(),
    ]
}

/// Logistic regression on 40 rows of 5 features, against SciPy 1.17.1:
///
/// ```python
/// i, j = np.meshgrid(np.arange(40), np.arange(5), indexing='ij')
/// X = np.sin(1.3 * i + 0.7 * (j + 1) * (i + 1)); y = (np.sin(2.1 * np.arange(40)) + X[:, 0] > 0) * 2. - 1
/// def f(w):
///     z = y * (X @ w); s = 1 / (1 + np.exp(z))
///     return np.logaddexp(0, -z).mean() + .005 * w @ w, -X.T @ (y * s) / 40 + .01 * w
/// minimize(f, np.zeros(5), jac=True, method='BFGS', options=dict(gtol=1e-13))
/// ```
#[test]
fn every_method_ends_logistic_regression_where_scipy_does() -> Result<()> {
    const VALUE: f64 = 0.419_857_399_943_173_3;
    const WEIGHTS: [f64; 5] = [
        2.540_075_030_654_464,
        -0.106_321_108_974_161_33,
        -0.086_096_582_787_944_59,
        -1.143_613_910_988_958,
        0.118_706_559_813_572_93,
    ];
    let x = |i: usize, j: usize| (1.3 * i as f64 + 0.7 * ((j + 1) * (i + 1)) as f64).sin();
    let rows: Vec<f64> = (0..200).map(|at| x(at / 5, at % 5)).collect();
    let sign = |i: usize| if (2.1 * i as f64).sin() + x(i, 0) > 0. { 1. } else { -1. };
    let signs: Vec<f64> = (0..40).map(sign).collect();
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-4)] {
        let rows = Tensor::from_slice(&rows, (40, 5), &Cpu)?.to_dtype(dtype)?;
        let signs = Tensor::from_slice(&signs, 40, &Cpu)?.to_dtype(dtype)?;
        let objective = |w: &Tensor| {
            let z = (rows.matmul(&w.unsqueeze(1)?)?.squeeze(1)? * &signs)?;
            let e = z.neg()?.exp()?;
            let value = ((&e + 1.)?.log()?.mean_all()? + (w.sqr()?.sum_all()? * 0.005)?)?;
            let share = (&e / (&e + 1.)?)?;
            let pull = (share * &signs)?.unsqueeze(0)?.matmul(&rows)?.squeeze(0)?;
            Ok((value, ((w * 0.01)? - (pull / 40.)?)?))
        };
        for method in methods(3000, 1e-2 * tolerance) {
            // The others stop where rounding hides the decrease of their steps, which is sooner.
            let (method, tolerance) = match method {
                Method::Lbfgs(config) => (Method::Lbfgs(LbfgsConfig { history: 10, ..config }), tolerance),
                _ if dtype == DType::F32 => continue,
                Method::ConjugateGradient(config) => {
                    (ConjugateGradientConfig { gradient_tolerance: 1e-8, ..config }.into(), 1e-6)
                }
                Method::GradientDescent(config) => {
                    (GradientDescentConfig { gradient_tolerance: 1e-8, ..config }.into(), 1e-6)
                }
            };
            let name = format!("{dtype:?} {method:?}");
            let mut run = Descent::new(&Tensor::zeros(5, dtype, &Cpu)?, method)?;
            let outcome = run.minimize(objective)?;
            // In f32 a value is known to 2.5e-8, which the decrease of the last step, g²/2c with
            // gradient g and curvature c ≥ 0.01, need not reach at the tolerance of g = 1e-6: then
            // no step satisfies the Wolfe conditions.
            let hidden = dtype == DType::F32 && outcome == Outcome::LineSearch;
            assert!(outcome == Outcome::Gradient || hidden, "{name}: {outcome:?}, {}", run.gradient_norm());
            assert!(distance(run.x(), &WEIGHTS)? < tolerance, "{name}: {}", run.x());
            let value = run.value().unwrap_or(f64::NAN);
            assert!((value - VALUE).abs() < 1e-12f64.max(1e-2 * tolerance), "{name}: {value}");
        }
    }
    Ok(())
}

#[test]
fn a_run_that_is_saved_at_any_iteration_goes_on_bit_for_bit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.safetensors");
    let objective = on_host(rosenbrock);
    for dtype in [DType::F32, DType::F64] {
        for method in methods(20, 0.) {
            let x = start(&[-1.2, 1.], 10, dtype)?;
            let mut whole = Descent::new(&x, method)?;
            whole.minimize(&objective)?;
            for at in [0, 1, 3, 7, 19] {
                let mut part = Descent::new(&x, method)?;
                part.set_iterations(at.max(1));
                if at > 0 {
                    assert_eq!(part.minimize(&objective)?, Outcome::Iterations);
                }
                part.save(&path, &format!("after {at}"))?;
                let (mut again, progress) = Descent::load::<String>(&path, &Cpu)?;
                assert_eq!((again.iterations(), progress), (at, format!("after {at}")));
                again.set_iterations(20);
                again.minimize(&objective)?;
                let bits = |run: &Descent| -> Result<Vec<u64>> {
                    Ok(run
                        .x()
                        .to_dtype(DType::F64)?
                        .to_vec1::<f64>()?
                        .into_iter()
                        .map(f64::to_bits)
                        .collect())
                };
                assert_eq!(bits(&again)?, bits(&whole)?, "{dtype:?} {method:?} from {at}");
                assert_eq!((again.value(), again.evaluations()), (whole.value(), whole.evaluations()));
            }
        }
    }
    Ok(())
}
