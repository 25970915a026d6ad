#![allow(clippy::unwrap_used)]
use super::*;
use candle::Device::Cpu;
use chandlery_ops::Philox;

/// `n` points around the corners (0, 0), (6, 0) and (0, 6), spread 1: class i % 3.
fn blobs(n: usize) -> (Tensor, Tensor) {
    let corner = |i: usize| [[0f32, 0.], [6., 0.], [0., 6.]][i % 3];
    let corners = Tensor::from_vec((0..n).flat_map(corner).collect(), (n, 2), &Cpu).unwrap();
    let noise = chandlery_ops::core::normal((n, 2), &Cpu, Philox::new(3, 0)).unwrap();
    let labels: Vec<u32> = (0..n as u32).map(|i| i % 3).collect();
    ((noise.clamp(-2., 2.).unwrap() + corners).unwrap(), Tensor::new(labels, &Cpu).unwrap())
}

#[test]
fn separable_blobs_are_told_apart_without_a_fault() -> Result<()> {
    let (x, y) = blobs(300);
    for standardise in [false, true] {
        let (softmax, fit) =
            Softmax::fit(&x, &y, 3, &SoftmaxTrainConfig { standardise, ..SoftmaxTrainConfig::default() })?;
        assert_eq!(softmax.accuracy(&x, &y)?, 1., "standardise: {standardise}");
        assert!(fit.objective < 0.1, "standardise: {standardise}, {fit:?}");
        assert_eq!(fit.l2, 1. / 300.);
    }
    Ok(())
}

#[test]
fn shuffled_labels_stay_near_chance_on_new_samples() -> Result<()> {
    // 600 samples of 5 classes that have nothing to do with the features; half for the fit.
    let x = chandlery_ops::core::normal((600, 4), &Cpu, Philox::new(1, 0))?;
    let labels: Vec<u32> = Philox::new(2, 0).permutation(600).iter().map(|i| i % 5).collect();
    let y = Tensor::new(labels, &Cpu)?;
    let half = |t: &Tensor, i: usize| t.narrow(0, 300 * i, 300);
    let (softmax, _) = Softmax::fit(&half(&x, 0)?, &half(&y, 0)?, 5, &SoftmaxTrainConfig::default())?;
    let accuracy = softmax.accuracy(&half(&x, 1)?, &half(&y, 1)?)?;
    // Chance is 0.2 with a standard deviation of √(0.2 · 0.8 / 300) = 0.023; four of them.
    assert!((accuracy - 0.2).abs() < 0.093, "{accuracy}");
    Ok(())
}

#[test]
fn the_fit_ends_where_the_gradient_of_the_objective_vanishes() -> Result<()> {
    let (x, y) = blobs(60);
    let config = SoftmaxTrainConfig { l2: Some(0.1), standardise: false, ..SoftmaxTrainConfig::default() };
    let (softmax, _) = Softmax::fit(&x, &y, 3, &config)?;
    // dJ/dW = (p - onehot)ᵀ x / n + l2 · W and dJ/db = Σ (p - onehot) / n, from the definition.
    let p = softmax.log_probabilities(&x)?.exp()?.to_vec2::<f32>()?;
    let (xs, ys) = (x.to_vec2::<f32>()?, y.to_vec1::<u32>()?);
    let (weight, n) = (softmax.weight().to_vec2::<f32>()?, xs.len() as f64);
    for c in 0..3 {
        let excess = |i: usize| f64::from(p[i][c]) - f64::from(u8::from(ys[i] as usize == c));
        let bias_gradient = (0..xs.len()).map(excess).sum::<f64>() / n;
        // The decrease of the last step, 1e-10, is about g²/2 over a curvature below 10; weights
        // and features are f32.
        assert!(bias_gradient.abs() < 1e-4, "bias of class {c}: {bias_gradient}");
        for f in 0..2 {
            let data = (0..xs.len()).map(|i| excess(i) * f64::from(xs[i][f])).sum::<f64>() / n;
            let gradient = data + 0.1 * f64::from(weight[c][f]);
            assert!(gradient.abs() < 1e-4, "weight {c}, {f}: {gradient}");
        }
    }
    Ok(())
}

/// Made by scikit-learn 1.9:
///
/// ```python
/// i = np.arange(24)
/// x = np.stack([np.sin(i), 100 * np.cos(0.7 * i * i) + 1000, 0.01 * (i % 5)], 1).astype('float32').astype(float)
/// scaler = StandardScaler().fit(x)
/// model = LogisticRegression(C=1, tol=1e-12, max_iter=10000).fit(scaler.transform(x), (7 * i % 10 // 3) % 3)
/// model.predict_log_proba(scaler.transform(x))[:4]
/// ```
#[test]
fn the_default_is_the_logistic_regression_of_standardised_features_with_c_1() -> Result<()> {
    let row = |i: u8| {
        let i = f64::from(i);
        [i.sin() as f32, (100. * (i * i * 0.7).cos() + 1000.) as f32, ((i % 5.) * 0.01) as f32]
    };
    let x = Tensor::from_vec((0..24).flat_map(row).collect(), (24, 3), &Cpu)?;
    let y = Tensor::new((0..24u32).map(|i| i * 7 % 10 / 3 % 3).collect::<Vec<_>>(), &Cpu)?;
    let (softmax, fit) = Softmax::fit(&x, &y, 3, &SoftmaxTrainConfig::default())?;
    let want = [
        [-0.645_923, -1.180_088, -1.780_406],
        [-0.949_802, -1.067_381, -1.312_024],
        [-0.925_952, -1.371_017, -1.049_83],
        [-1.238_057, -1.065_61, -1.006_392],
    ];
    let got = softmax.log_probabilities(&x)?.narrow(0, 0, 4)?.to_vec2::<f32>()?;
    for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
        // Weights are f32, on features of 1000.
        assert!((got - want).abs() < 1e-3, "{got}, not {want}");
    }
    assert!((fit.objective - 1.033_553_364_7).abs() < 1e-8, "{fit:?}");
    Ok(())
}

#[test]
fn the_units_of_a_feature_do_not_matter() -> Result<()> {
    let (x, y) = blobs(90);
    let units = Tensor::new(&[1000f32, 0.001], &Cpu)?;
    let shift = Tensor::new(&[-5000f32, 0.], &Cpu)?;
    let fit = |x: &Tensor| Softmax::fit(x, &y, 3, &SoftmaxTrainConfig::default());
    let scaled = x.broadcast_mul(&units)?.broadcast_add(&shift)?;
    let (a, b) = (fit(&x)?.0.log_probabilities(&x)?, fit(&scaled)?.0.log_probabilities(&scaled)?);
    let worst = (&a - &b)?.abs()?.max_all()?.to_scalar::<f32>()?;
    // Rounding of the scaled features, and of logits that are differences of thousands.
    assert!(worst < 1e-2, "{worst}");
    Ok(())
}

#[test]
fn a_feature_that_never_varies_gets_no_weight_when_standardising() -> Result<()> {
    let (x, y) = blobs(30);
    let x = Tensor::cat(&[&x, &Tensor::full(5f32, (30, 1), &Cpu)?], 1)?;
    let (softmax, _) = Softmax::fit(&x, &y, 3, &SoftmaxTrainConfig::default())?;
    assert_eq!(softmax.weight().narrow(1, 2, 1)?.flatten_all()?.to_vec1::<f32>()?, [0.; 3]);
    assert!(softmax.bias().to_vec1::<f32>()?.iter().all(|b| b.is_finite()));
    Ok(())
}

#[test]
fn it_is_a_linear_layer() -> Result<()> {
    let (x, y) = blobs(30);
    let (softmax, _) = Softmax::fit(&x, &y, 3, &SoftmaxTrainConfig::default())?;
    let tensors = [("weight", softmax.weight()), ("bias", softmax.bias())]
        .map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    let vb = VarBuilder::from_tensors(tensors.into_iter().collect(), DType::F32, &Cpu);
    let linear = candle_nn::linear(2, 3, vb.clone())?;
    let loaded = Softmax::new(SoftmaxConfig::new(2, 3), vb)?;
    let want = softmax.forward(&x)?.to_vec2::<f32>()?;
    assert_eq!(linear.forward(&x)?.to_vec2::<f32>()?, want);
    assert_eq!(loaded.forward(&x)?.to_vec2::<f32>()?, want);
    assert_eq!(softmax.linear().forward(&x)?.to_vec2::<f32>()?, want);
    Ok(())
}

#[test]
fn it_says_what_is_wrong() -> Result<()> {
    let (x, y) = blobs(6);
    let fit = |x: &Tensor, y: &Tensor, config: &SoftmaxTrainConfig| {
        let err = Softmax::fit(x, y, 3, config).unwrap_err().to_string();
        err.lines().next().unwrap_or_default().to_owned()
    };
    let config = SoftmaxTrainConfig::default();
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
        "softmax.fit: the objective must be finite, got NaN or infinity at evaluation 1; check the features for NaN"
    );
    assert_eq!(
        fit(&x, &y, &SoftmaxTrainConfig { l2: Some(f64::NAN), ..config.clone() }),
        "SoftmaxTrainConfig: l2 must be a finite number of at least 0, got NaN"
    );
    assert_eq!(
        fit(&x, &y, &SoftmaxTrainConfig { iterations: 0, ..config }),
        "SoftmaxTrainConfig: iterations must be at least 1, got 0"
    );
    let softmax = Softmax::from_tensors(Tensor::zeros((3, 2), DType::F32, &Cpu)?, y.zeros_like()?);
    assert!(softmax.is_err(), "a bias of 6 for 3 classes");
    Ok(())
}
