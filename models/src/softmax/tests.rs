#![allow(clippy::unwrap_used)]
use super::*;
use candle::Device::Cpu;
use chandlery_ops::Philox;

/// `n` points around the corners (0, 0), (6, 0) and (0, 6), spread 1: class i % 3.
fn blobs(n: usize) -> (Tensor, Tensor) {
    let corner = |i: usize| [[0f32, 0.], [6., 0.], [0., 6.]][i % 3];
    let corners = Tensor::from_vec((0..n).flat_map(corner).collect(), (n, 2), &Cpu).unwrap();
    let noise = chandlery_ops::normal((n, 2), &Cpu, Philox::new(3, 0)).unwrap();
    let labels: Vec<u32> = (0..n as u32).map(|i| i % 3).collect();
    ((noise.clamp(-2., 2.).unwrap() + corners).unwrap(), Tensor::new(labels, &Cpu).unwrap())
}

#[test]
fn separable_blobs_are_told_apart_without_a_fault() -> Result<()> {
    let (x, y) = blobs(300);
    for standardise in [false, true] {
        let config = FitConfig { learning_rate: 0.05, standardise, ..FitConfig::default() };
        let (softmax, fit) = Softmax::fit(&x, &y, 3, &config, Philox::new(0, 0))?;
        assert_eq!(softmax.accuracy(&x, &y)?, 1., "standardise: {standardise}");
        assert!(fit.objective < 0.1, "standardise: {standardise}, {fit:?}");
    }
    Ok(())
}

#[test]
fn shuffled_labels_stay_near_chance_on_new_samples() -> Result<()> {
    // 600 samples of 5 classes that have nothing to do with the features; half for the fit.
    let x = chandlery_ops::normal((600, 4), &Cpu, Philox::new(1, 0))?;
    let labels: Vec<u32> = Philox::new(2, 0).permutation(600).iter().map(|i| i % 5).collect();
    let y = Tensor::new(labels, &Cpu)?;
    let half = |t: &Tensor, i: usize| t.narrow(0, 300 * i, 300);
    let (softmax, _) =
        Softmax::fit(&half(&x, 0)?, &half(&y, 0)?, 5, &FitConfig::default(), Philox::new(0, 0))?;
    let accuracy = softmax.accuracy(&half(&x, 1)?, &half(&y, 1)?)?;
    // Chance is 0.2 with a standard deviation of √(0.2 · 0.8 / 300) = 0.023; four of them.
    assert!((accuracy - 0.2).abs() < 0.093, "{accuracy}");
    Ok(())
}

#[test]
fn the_fit_ends_where_the_gradient_of_the_objective_vanishes() -> Result<()> {
    let (x, y) = blobs(60);
    // Whole batches, so that the objective has no noise; a strong decay, so that it has a curvature.
    let config = FitConfig {
        l2: 0.1,
        batch: 60,
        learning_rate: 0.05,
        max_epochs: 3000,
        tolerance: 0.,
        halvings: 30,
        ..FitConfig::default()
    };
    let by_lbfgs = FitConfig { minimiser: Minimiser::Lbfgs, ..config.clone() };
    for config in [config, by_lbfgs] {
        ends_at_the_minimum(&x, &y, &config)?;
    }
    Ok(())
}

fn ends_at_the_minimum(x: &Tensor, y: &Tensor, config: &FitConfig) -> Result<()> {
    let (softmax, _) = Softmax::fit(x, y, 3, config, Philox::new(0, 0))?;
    // dJ/dW = (p - onehot)ᵀ x / n + l2 · W and dJ/db = Σ (p - onehot) / n, from the definition.
    let p = softmax.log_probabilities(x)?.exp()?.to_vec2::<f32>()?;
    let (xs, ys) = (x.to_vec2::<f32>()?, y.to_vec1::<u32>()?);
    let (weight, n) = (softmax.weight().to_vec2::<f32>()?, xs.len() as f64);
    for c in 0..3 {
        let excess = |i: usize| f64::from(p[i][c]) - f64::from(u8::from(ys[i] as usize == c));
        let bias_gradient = (0..xs.len()).map(excess).sum::<f64>() / n;
        // Adam's last steps are about 1e-5 long; the curvature is near 1.
        assert!(bias_gradient.abs() < 1e-3, "{:?}, bias of class {c}: {bias_gradient}", config.minimiser);
        for f in 0..2 {
            let data = (0..xs.len()).map(|i| excess(i) * f64::from(xs[i][f])).sum::<f64>() / n;
            let gradient = data + 0.1 * f64::from(weight[c][f]);
            assert!(gradient.abs() < 1e-3, "{:?}, weight {c}, {f}: {gradient}", config.minimiser);
        }
    }
    Ok(())
}

#[test]
fn lbfgs_reaches_a_lower_objective_than_adam_and_folds_the_scaling_in() -> Result<()> {
    let (x, y) = blobs(90);
    let objective = |softmax: &Softmax, l2: f64| -> Result<f64> {
        let log_p = softmax.log_probabilities(&x)?.gather(&y.unsqueeze(1)?, 1)?.mean_all()?;
        let decay = f64::from(softmax.weight().sqr()?.sum_all()?.to_scalar::<f32>()?);
        Ok(0.5 * l2 * decay - f64::from(log_p.to_scalar::<f32>()?))
    };
    let adam = FitConfig { learning_rate: 0.05, ..FitConfig::default() };
    let lbfgs = FitConfig { minimiser: Minimiser::Lbfgs, max_epochs: 300, ..FitConfig::default() };
    let (by_adam, _) = Softmax::fit(&x, &y, 3, &adam, Philox::new(0, 0))?;
    let (by_lbfgs, fit) = Softmax::fit(&x, &y, 3, &lbfgs, Philox::new(0, 0))?;
    let (a, b) = (objective(&by_adam, adam.l2)?, objective(&by_lbfgs, lbfgs.l2)?);
    assert!(b < a, "{b} by L-BFGS, {a} by Adam");
    assert!((b - fit.objective).abs() < 1e-5, "{b}, said {fit:?}");
    // Scaled features are the same in units of their standard deviations.
    let units = Tensor::new(&[1000f32, 0.001], &Cpu)?;
    let standard = FitConfig { standardise: true, l2: 0.01, ..lbfgs };
    let fit = |x: &Tensor| Softmax::fit(x, &y, 3, &standard, Philox::new(0, 0));
    let scaled = x.broadcast_mul(&units)?;
    let (a, b) = (fit(&x)?.0.forward(&x)?, fit(&scaled)?.0.forward(&scaled)?);
    let worst = (&a - &b)?.abs()?.max_all()?.to_scalar::<f32>()?;
    // Rounding of the scaled features changes where a gradient of 1e-4 is reached, on a curvature of 0.01.
    assert!(worst < 0.1, "{worst}");
    Ok(())
}

#[test]
fn standardising_makes_the_units_of_a_feature_not_matter() -> Result<()> {
    let (x, y) = blobs(90);
    let units = Tensor::new(&[1000f32, 0.001], &Cpu)?;
    let config = FitConfig { standardise: true, max_epochs: 5, ..FitConfig::default() };
    let fit = |x: &Tensor| Softmax::fit(x, &y, 3, &config, Philox::new(0, 0));
    let scaled = x.broadcast_mul(&units)?;
    let (a, b) = (fit(&x)?.0.forward(&x)?, fit(&scaled)?.0.forward(&scaled)?);
    let worst = (&a - &b)?.abs()?.max_all()?.to_scalar::<f32>()?;
    // Rounding of the scaled features, 2⁻²⁴ relative, through 15 short steps and logits below 1.
    assert!(worst < 1e-4, "{worst}");
    Ok(())
}

#[test]
fn a_feature_that_never_varies_gets_no_weight_when_standardising() -> Result<()> {
    let (x, y) = blobs(30);
    let x = Tensor::cat(&[&x, &Tensor::full(5f32, (30, 1), &Cpu)?], 1)?;
    let config = FitConfig { standardise: true, max_epochs: 3, ..FitConfig::default() };
    let (softmax, _) = Softmax::fit(&x, &y, 3, &config, Philox::new(0, 0))?;
    assert_eq!(softmax.weight().narrow(1, 2, 1)?.flatten_all()?.to_vec1::<f32>()?, [0.; 3]);
    assert!(softmax.bias().to_vec1::<f32>()?.iter().all(|b| b.is_finite()));
    Ok(())
}

#[test]
fn the_same_draws_give_the_same_bits_and_others_do_not() -> Result<()> {
    let (x, y) = blobs(50);
    let config = FitConfig { batch: 7, max_epochs: 3, ..FitConfig::default() };
    let fit = |seed| -> Result<Vec<Vec<f32>>> {
        Softmax::fit(&x, &y, 3, &config, Philox::new(seed, 0))?.0.weight().to_vec2()
    };
    assert_eq!(fit(5)?, fit(5)?);
    assert_ne!(fit(5)?, fit(6)?);
    Ok(())
}

#[test]
fn it_is_a_linear_layer() -> Result<()> {
    let (x, y) = blobs(30);
    let (softmax, _) = Softmax::fit(&x, &y, 3, &FitConfig::default(), Philox::new(0, 0))?;
    let tensors = [("weight", softmax.weight()), ("bias", softmax.bias())]
        .map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    let vb = VarBuilder::from_tensors(tensors.into_iter().collect(), DType::F32, &Cpu);
    let linear = candle_nn::linear(2, 3, vb.clone())?;
    let loaded = Softmax::new(2, 3, vb)?;
    let want = softmax.forward(&x)?.to_vec2::<f32>()?;
    assert_eq!(linear.forward(&x)?.to_vec2::<f32>()?, want);
    assert_eq!(loaded.forward(&x)?.to_vec2::<f32>()?, want);
    assert_eq!(softmax.linear().forward(&x)?.to_vec2::<f32>()?, want);
    Ok(())
}

#[test]
fn it_says_what_is_wrong() -> Result<()> {
    let (x, y) = blobs(6);
    let fit = |x: &Tensor, y: &Tensor, config: &FitConfig| {
        let err = Softmax::fit(x, y, 3, config, Philox::new(0, 0)).unwrap_err().to_string();
        err.lines().next().unwrap_or_default().to_owned()
    };
    let config = FitConfig::default();
    assert_eq!(
        fit(&x, &Tensor::new(&[0u32, 1, 2, 3, 0, 1], &Cpu)?, &config),
        "softmax.fit: labels must be below n_classes = 3, got 3"
    );
    assert_eq!(
        fit(&x, &y.narrow(0, 0, 5)?, &config),
        "softmax.fit: labels must have shape [6] and type u32, got [5] U32"
    );
    assert_eq!(fit(&x.to_dtype(DType::F64)?, &y, &config), "softmax.fit: x must be f32, got F64");
    let nan = Tensor::new(&[[0f32, 0.], [f32::NAN, 1.]], &Cpu)?;
    assert_eq!(
        fit(&nan, &y.narrow(0, 0, 2)?, &config),
        "softmax.fit: the objective must be finite, got NaN at step 1; check the features for NaN or lower learning_rate"
    );
    let by_lbfgs = FitConfig { minimiser: Minimiser::Lbfgs, ..config.clone() };
    assert_eq!(
        fit(&nan, &y.narrow(0, 0, 2)?, &by_lbfgs),
        "softmax.fit: the objective must be finite, got NaN or infinity at evaluation 1; check the features for NaN"
    );
    assert_eq!(
        fit(&x, &y, &FitConfig { l2: f64::NAN, ..config.clone() }),
        "FitConfig: l2 must be a finite number of at least 0, got NaN"
    );
    assert_eq!(
        fit(&x, &y, &FitConfig { batch: 0, ..config }),
        "FitConfig: batch and max_epochs must be at least 1, got batch = 0, max_epochs = 100"
    );
    let softmax = Softmax::from_tensors(Tensor::zeros((3, 2), DType::F32, &Cpu)?, y.zeros_like()?);
    assert!(softmax.is_err(), "a bias of 6 for 3 classes");
    Ok(())
}
