//! Gradient descent makes the steps of its formula, and its line search lowers the value.
use super::{distance, on_host, quadratic, run, start};
use candle::{DType, Result};
use chandlery::optim::{Descent, GradientDescentConfig, Outcome};

#[test]
fn a_fixed_rate_makes_the_steps_of_the_closed_form() -> Result<()> {
    // xᵢ − 1 shrinks by 1 − α dᵢ in every step.
    let (n, rate, steps) = (7, 0.03, 25);
    let x = start(&[3., -2.], n, DType::F64)?;
    let config = GradientDescentConfig {
        rate: Some(rate),
        iterations: steps,
        gradient_tolerance: 0.,
        ..GradientDescentConfig::default()
    };
    let mut gd = Descent::new(&x, config)?;
    assert_eq!(gd.minimize(on_host(quadratic(50.)))?, Outcome::Iterations);
    assert_eq!(gd.evaluations(), steps as u64 + 1, "one for a step, and one where it begins");
    for (i, (got, from)) in gd.x().to_vec1::<f64>()?.iter().zip(x.to_vec1::<f64>()?).enumerate() {
        let d = 50f64.powf(i as f64 / (n as f64 - 1.));
        let want = 1. + (from - 1.) * (1. - rate * d).powi(steps as i32);
        assert!((got - want).abs() < 1e-12, "{i}: {got}, want {want}");
    }
    Ok(())
}

#[test]
fn backtracking_lowers_the_value_in_every_step_and_reaches_the_minimum() -> Result<()> {
    let x = start(&[0.], 20, DType::F64)?;
    let config = GradientDescentConfig { gradient_tolerance: 1e-8, ..GradientDescentConfig::default() };
    let (gd, outcome) = run("quadratic", &x, config.into(), on_host(quadratic(20.)))?;
    assert_eq!(outcome, Outcome::Gradient);
    assert!(distance(gd.x(), &[1.])? < 1e-7, "{}", gd.x());
    Ok(())
}

#[test]
fn a_rate_that_is_too_large_ends_the_run_at_the_last_finite_point() -> Result<()> {
    let x = start(&[0.], 3, DType::F64)?;
    let config =
        GradientDescentConfig { rate: Some(1.), iterations: 100_000, ..GradientDescentConfig::default() };
    let mut gd = Descent::new(&x, config)?;
    let outcome = gd.minimize(on_host(quadratic(50.)))?;
    assert!(matches!(outcome, Outcome::NonFinite { .. }), "{outcome:?}");
    assert!(gd.x().to_vec1::<f64>()?.iter().all(|x| x.is_finite()), "{}", gd.x());
    Ok(())
}

#[test]
fn what_is_out_of_range_is_refused() -> Result<()> {
    let (x, config) = (start(&[0.], 3, DType::F64)?, GradientDescentConfig::default());
    for (config, text) in [
        (GradientDescentConfig { rate: Some(0.), ..config }, "rate must be above 0, got 0"),
        (GradientDescentConfig { rate: Some(f64::INFINITY), ..config }, "rate must be above 0, got inf"),
        (GradientDescentConfig { evaluations: 0, ..config }, "evaluations must be at least 1, got 0"),
        (
            GradientDescentConfig { sufficient_decrease: 0.5, ..config },
            "sufficient_decrease must be in (0, 0.5), got 0.5",
        ),
    ] {
        let err = Descent::new(&x, config).map(drop).map_err(|e| e.to_string()).err().unwrap_or_default();
        assert!(err.starts_with(&format!("GradientDescentConfig: {text}")), "{err}");
    }
    Ok(())
}
