//! Conjugate gradient is that of the textbook, reaches known minima and restarts.
use super::{distance, on_host, quadratic, rosenbrock, run, start};
use candle::{DType, Result, Tensor};
use chandlery::optim::{ConjugateGradientConfig, Descent, Outcome};

#[test]
fn rosenbrocks_valley_is_followed_to_its_end_in_two_and_in_a_hundred_dimensions() -> Result<()> {
    for n in [2, 100] {
        let x = start(&[-1.2, 1.], n, DType::F64)?;
        let config =
            ConjugateGradientConfig { gradient_tolerance: 1e-8, ..ConjugateGradientConfig::default() };
        let (cg, outcome) = run("Rosenbrock", &x, config.into(), on_host(rosenbrock))?;
        assert_eq!(outcome, Outcome::Gradient);
        assert!(distance(cg.x(), &[1.])? < 1e-7, "{n}: {}", cg.x());
        assert!(cg.iterations() < 100, "{n}: {} and {}", cg.iterations(), cg.evaluations());
    }
    Ok(())
}

/// The same method in plain loops, with the step to the minimum along each line of
/// `½ Σ dᵢ (xᵢ − 1)²`; gives all points.
fn exact(d: &[f64], x: &[f64], iterations: usize) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let slope = |x: &[f64]| -> Vec<f64> { x.iter().zip(d).map(|(x, d)| d * (x - 1.)).collect() };
    let (mut x, mut points) = (x.to_vec(), vec![]);
    let mut g = slope(&x);
    let mut p: Vec<f64> = g.iter().map(|g| -g).collect();
    for _ in 0..iterations {
        let curved: Vec<f64> = p.iter().zip(d).map(|(p, d)| p * d).collect();
        let t = -dot(&g, &p) / dot(&p, &curved);
        x.iter_mut().zip(&p).for_each(|(x, p)| *x += t * p);
        points.push(x.clone());
        let new = slope(&x);
        let apart: Vec<f64> = new.iter().zip(&g).map(|(new, old)| new - old).collect();
        let beta = (dot(&new, &apart) / dot(&g, &g)).max(0.);
        p.iter_mut().zip(&new).for_each(|(p, g)| *p = beta * *p - g);
        g = new;
    }
    points
}

#[test]
fn with_exact_steps_it_is_the_linear_method_and_ends_after_as_many_steps_as_curvatures() -> Result<()> {
    // Four curvatures, each of five coordinates.
    let d: Vec<f64> = (0..20).map(|i| [1., 3., 10., 40.][i % 4]).collect();
    let from: Vec<f64> = (0..20).map(|i| (i as f64).sin() * 3.).collect();
    let objective = on_host(|x| {
        let gradient: Vec<f64> = x.iter().zip(&d).map(|(x, d)| d * (x - 1.)).collect();
        (gradient.iter().zip(x).map(|(g, x)| 0.5 * g * (x - 1.)).sum(), gradient)
    });
    let config = ConjugateGradientConfig {
        curvature: 1e-10,
        sufficient_decrease: 1e-11,
        gradient_tolerance: 0.,
        ..ConjugateGradientConfig::default()
    };
    let mut cg = Descent::new(&Tensor::new(from.as_slice(), &candle::Device::Cpu)?, config)?;
    let points = exact(&d, &from, 4);
    for (i, point) in points.iter().enumerate() {
        let made = cg.step(&mut &objective)?;
        assert!(made.is_ok(), "{i}: {made:?}");
        let x = cg.x().to_vec1::<f64>()?;
        let apart = x.iter().zip(point).map(|(a, b)| (a - b).abs()).fold(0., f64::max);
        // Steps are exact to 1e-10 of the first slope, and errors grow with the condition of 40.
        assert!(apart < 1e-7, "{i}: {apart}");
    }
    assert!(distance(cg.x(), &[1.])? < 1e-7, "{}", cg.x());
    assert!(points[2].iter().any(|x| (x - 1.).abs() > 1e-3), "three steps are not enough");
    Ok(())
}

#[test]
fn a_quadratic_of_condition_a_thousand_is_solved_where_gradient_descent_has_hardly_begun() -> Result<()> {
    let x = start(&[0.], 50, DType::F64)?;
    let config = ConjugateGradientConfig { gradient_tolerance: 1e-7, ..ConjugateGradientConfig::default() };
    let objective = on_host(quadratic(1e3));
    let (cg, outcome) = run("quadratic", &x, config.into(), &objective)?;
    assert_eq!(outcome, Outcome::Gradient, "{}", cg.gradient_norm());
    assert!(distance(cg.x(), &[1.])? < 1e-6, "{}", cg.x());
    let mut x = x;
    for _ in 0..cg.evaluations() {
        x = (&x - (objective(&x)?.1 * (2. / (1e3 + 1.)))?)?;
    }
    assert!(distance(&x, &[1.])? > 0.1, "the control converges after {}: {x}", cg.evaluations());
    Ok(())
}

#[test]
fn f32_parameters_reach_the_end_to_their_rounding() -> Result<()> {
    // Rounding of x, 6e-8 of each entry, moves the gradient of curvatures up to a thousand by 6e-4.
    let config = ConjugateGradientConfig { gradient_tolerance: 2e-3, ..ConjugateGradientConfig::default() };
    let x = start(&[-1.2, 1.], 100, DType::F32)?;
    let (cg, outcome) = run("Rosenbrock in f32", &x, config.into(), on_host(rosenbrock))?;
    assert_eq!((outcome, cg.x().dtype()), (Outcome::Gradient, DType::F32));
    // The least curvature is 0.4.
    assert!(distance(cg.x(), &[1.])? < 2e-3 / 0.4);
    Ok(())
}

#[test]
fn it_says_why_it_ended_and_what_is_out_of_range() -> Result<()> {
    let x = start(&[-1.2, 1.], 2, DType::F64)?;
    let config = ConjugateGradientConfig::default();
    let uphill = on_host(|x| (rosenbrock(x).0, rosenbrock(x).1.iter().map(|g| -g).collect()));
    assert_eq!(Descent::new(&x, config)?.minimize(uphill)?, Outcome::LineSearch);
    let calls = std::cell::Cell::new(0);
    let ends = on_host(|x| {
        calls.set(calls.get() + 1);
        let (value, gradient) = rosenbrock(x);
        if calls.get() > 8 { (f64::NAN, gradient) } else { (value, gradient) }
    });
    let mut run = Descent::new(&x, config)?;
    assert_eq!(run.minimize(ends)?, Outcome::NonFinite { evaluation: 9 });
    assert_eq!(run.value(), Some(rosenbrock(&run.x().to_vec1::<f64>()?).0));
    for (config, text) in [
        (ConjugateGradientConfig { restart: 0., ..config }, "restart must be above 0, got 0"),
        (ConjugateGradientConfig { iterations: 0, ..config }, "iterations must be at least 1, got 0"),
        (
            ConjugateGradientConfig { curvature: 1., ..config },
            "curvature must be above sufficient_decrease and below 1, got 1",
        ),
    ] {
        let err = Descent::new(&x, config).map(drop).map_err(|e| e.to_string()).err().unwrap_or_default();
        assert!(err.starts_with(&format!("ConjugateGradientConfig: {text}")), "{err}");
    }
    Ok(())
}
