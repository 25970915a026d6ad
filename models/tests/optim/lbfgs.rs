//! L-BFGS reaches known minima, keeps the Wolfe conditions, and says why it ended.
use super::{distance, on_host, quadratic, rosenbrock, run, start};
use candle::{DType, Result, Tensor};
use chandlery::optim::{Descent, Iteration, LbfgsConfig, Outcome};
use std::ops::ControlFlow;

#[test]
fn rosenbrocks_valley_is_followed_to_its_end_in_two_and_in_a_hundred_dimensions() -> Result<()> {
    for (n, most) in [(2, 60), (100, 80)] {
        let x = start(&[-1.2, 1.], n, DType::F64)?;
        let config = LbfgsConfig { gradient_tolerance: 1e-8, ..LbfgsConfig::default() };
        let (lbfgs, outcome) = run("Rosenbrock", &x, config.into(), on_host(rosenbrock))?;
        assert_eq!(outcome, Outcome::Gradient);
        assert!(distance(lbfgs.x(), &[1.])? < 1e-7, "{n}: {}", lbfgs.x());
        // Published counts for L-BFGS on this function are 35 to 45 iterations.
        assert!(lbfgs.iterations() <= most && lbfgs.evaluations() < 100, "{n}: {}", lbfgs.iterations());
    }
    Ok(())
}

#[test]
fn f32_parameters_reach_the_end_to_their_rounding() -> Result<()> {
    let config = LbfgsConfig { gradient_tolerance: 1e-4, ..LbfgsConfig::default() };
    let x = start(&[-1.2, 1.], 100, DType::F32)?;
    let (lbfgs, outcome) = run("Rosenbrock in f32", &x, config.into(), on_host(rosenbrock))?;
    assert_eq!((outcome, lbfgs.x().dtype()), (Outcome::Gradient, DType::F32));
    assert!(distance(lbfgs.x(), &[1.])? < 1e-4);
    Ok(())
}

#[test]
fn a_quadratic_of_condition_a_million_is_solved_where_gradient_descent_has_hardly_begun() -> Result<()> {
    let x = start(&[0.], 50, DType::F64)?;
    let config =
        LbfgsConfig { history: 20, iterations: 9000, gradient_tolerance: 1e-7, ..LbfgsConfig::default() };
    let objective = on_host(quadratic(1e6));
    let (lbfgs, outcome) = run("quadratic", &x, config.into(), &objective)?;
    // SciPy 1.17.1's L-BFGS-B takes 6858 iterations with the same history and tolerance.
    assert_eq!(outcome, Outcome::Gradient, "{}", lbfgs.gradient_norm());
    assert!(distance(lbfgs.x(), &[1.])? < 1e-6, "{}", lbfgs.x());
    // The control: as many steps of gradient descent with the best constant rate.
    let mut x = x;
    for _ in 0..lbfgs.evaluations() {
        x = (&x - (objective(&x)?.1 * (2. / (1e6 + 1.)))?)?;
    }
    assert!(distance(&x, &[1.])? > 0.9, "the control converges: {x}");
    Ok(())
}

#[test]
fn the_outcome_says_why_a_run_ended() -> Result<()> {
    let x = start(&[-1.2, 1.], 2, DType::F64)?;
    let config = LbfgsConfig::default();
    let outcome = |config, objective: &dyn Fn(&Tensor) -> Result<(Tensor, Tensor)>| {
        Descent::new(&x, config)?.minimize(objective)
    };
    let good = on_host(rosenbrock);
    assert_eq!(outcome(LbfgsConfig { iterations: 3, ..config }, &good)?, Outcome::Iterations);
    assert_eq!(outcome(LbfgsConfig { decrease_tolerance: 0.5, ..config }, &good)?, Outcome::Decrease);
    let at_once = LbfgsConfig { gradient_tolerance: 1e9, ..config };
    assert_eq!(outcome(at_once, &good)?, Outcome::Gradient);
    let uphill = on_host(|x| (rosenbrock(x).0, rosenbrock(x).1.iter().map(|g| -g).collect()));
    assert_eq!(outcome(config, &uphill)?, Outcome::LineSearch);
    let nan = on_host(|x| (f64::NAN, x.to_vec()));
    assert_eq!(outcome(config, &nan)?, Outcome::NonFinite { evaluation: 1 });
    // Finite where it begins, and nowhere else.
    let island = on_host(|x| (if x[0] == -1.2 { 1. } else { f64::NAN }, vec![1., 0.]));
    assert_eq!(outcome(config, &island)?, Outcome::NonFinite { evaluation: 2 });
    let mut stopped = Descent::new(&x, config)?;
    let look = |run: &Descent, _: &Iteration| {
        Ok(if run.iterations() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    assert_eq!((stopped.minimize_with(&good, look)?, stopped.iterations()), (Outcome::Stopped, 2));
    Ok(())
}

#[test]
fn x_stays_at_the_last_accepted_step_when_the_function_stops_being_finite() -> Result<()> {
    let calls = std::cell::Cell::new(0);
    let objective = on_host(|x| {
        calls.set(calls.get() + 1);
        let (value, gradient) = rosenbrock(x);
        if calls.get() > 8 { (f64::NAN, gradient) } else { (value, gradient) }
    });
    let mut lbfgs = Descent::new(&start(&[-1.2, 1.], 4, DType::F64)?, LbfgsConfig::default())?;
    assert_eq!(lbfgs.minimize(&objective)?, Outcome::NonFinite { evaluation: 9 });
    let (value, _) = rosenbrock(&lbfgs.x().to_vec1::<f64>()?);
    assert_eq!(Some(value), lbfgs.value());
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let x = start(&[1.], 3, DType::F64)?;
    let line = |e: candle::Error| e.to_string().lines().next().unwrap_or_default().to_owned();
    let refused = |config| Descent::new(&x, config).map(drop).map_err(line);
    let config = LbfgsConfig::default();
    let cases = [
        (refused(LbfgsConfig { history: 0, ..config }), "LbfgsConfig: history must be at least 1, got 0"),
        (
            refused(LbfgsConfig { curvature: 1e-5, ..config }),
            "LbfgsConfig: curvature must be above sufficient_decrease and below 1, got 0.00001",
        ),
        (
            refused(LbfgsConfig { gradient_tolerance: f64::NAN, ..config }),
            "LbfgsConfig: gradient_tolerance must be at least 0, got NaN",
        ),
        (
            Descent::new(&x.unsqueeze(0)?, config).map(drop).map_err(line),
            "Lbfgs: x must have shape [n], got [1, 3]; call .flatten_all() first",
        ),
        (
            Descent::new(&x.to_dtype(DType::BF16)?, config).map(drop).map_err(line),
            "Lbfgs: x must be f32 or f64, got BF16",
        ),
        (
            Descent::new(&x, config)?
                .minimize(|x| Ok((x.sum_all()?, x.to_dtype(DType::F32)?)))
                .map(drop)
                .map_err(line),
            "Lbfgs: the objective must give a gradient of the shape and type of x, [3] F64, got [3] F32",
        ),
        (
            Descent::new(&x, config)?.minimize(|x| Ok((x.clone(), x.clone()))).map(drop).map_err(line),
            "Lbfgs: the objective must give one value, got shape [3]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(result, Err(want.to_owned()));
    }
    Ok(())
}
