//! A machine small enough to enumerate keeps every formula honest.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor, Var};
use chandlery::rbm::{HiddenUnit, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, SparsityConfig, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery::{Decode, MinibatchTrainer, Model, Preparation, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;

/// All rows of `n` bits, `[2^n, n]`, f64.
fn all_bits(n: usize) -> Result<Tensor> {
    let bits = (0..1usize << n).flat_map(|i| (0..n).map(move |j| (i >> j & 1) as f64));
    Tensor::from_vec(bits.collect(), (1 << n, n), &CPU)
}

/// A machine with weights and biases of order 1, f64.
fn machine(config: RbmConfig, seed: u64) -> Result<Rbm> {
    let (v, h) = (config.n_visible, config.n_hidden);
    let draw = |n: (usize, usize), stream| normal(n, &CPU, Philox::new(seed, stream))?.to_dtype(DType::F64);
    let flat = |n, stream| draw((1, n), stream)?.squeeze(0);
    let log_variance = (config.visible == VisibleUnit::GaussianLearned)
        .then(|| flat(v, 3).and_then(|t| t * 0.5))
        .transpose()?;
    Rbm::from_tensors(config, draw((h, v), 0)?, flat(h, 1)?, flat(v, 2)?, log_variance)
}

/// −E(v, h) for each pair of rows, `[n_v, n_h]`, straight from the definition.
fn negative_energy(rbm: &Rbm, v: &Tensor, h: &Tensor) -> Result<Tensor> {
    let scale = match rbm.log_variance() {
        Some(z) => z.neg()?.exp()?,
        None => rbm.visible_bias().ones_like()?,
    };
    let own = if rbm.config().visible.is_gaussian() {
        (v.broadcast_sub(rbm.visible_bias())?.sqr()?.broadcast_mul(&scale)?.sum_keepdim(1)? * -0.5)?
    } else {
        v.broadcast_mul(rbm.visible_bias())?.sum_keepdim(1)?
    };
    let hidden = h.broadcast_mul(rbm.bias())?.sum(1)?.unsqueeze(0)?;
    let pairs = v.broadcast_mul(&scale)?.matmul(&rbm.weight().t()?)?.matmul(&h.t()?)?;
    pairs.broadcast_add(&own)?.broadcast_add(&hidden)
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

#[track_caller]
fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (g - w).abs();
        assert!(
            error <= tolerance * w.abs().max(1.),
            "{what}: entry {i} is {g}, want {w}: {:.1} times the tolerance {tolerance:e}",
            error / (tolerance * w.abs().max(1.))
        );
    }
}

#[test]
fn free_energy_is_the_hidden_units_summed_out() -> Result<()> {
    for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
        let rbm = machine(RbmConfig { visible, ..RbmConfig::new(3, 5) }, 1)?;
        let v = normal((7, 3), &CPU, Philox::new(2, 0))?.to_dtype(DType::F64)?;
        let joint = negative_energy(&rbm, &v, &all_bits(5)?)?.to_vec2::<f64>()?;
        let summed: Vec<f64> =
            joint.iter().map(|row| -row.iter().map(|e| e.exp()).sum::<f64>().ln()).collect();
        let energies = values(&rbm.free_energy(&v)?)?;
        assert_close(&format!("{visible:?}"), &energies, &summed, 1e-12);
        let [error, mean] = rbm.error_and_free_energy(&v)?;
        assert_eq!(error, rbm.reconstruction_error_prepared(&v)?, "{visible:?}");
        assert!((mean - energies.iter().sum::<f64>() / energies.len() as f64).abs() < 1e-12, "{visible:?}");
    }
    Ok(())
}

#[test]
fn gaussian_hidden_units_are_integrated_out_and_drawn_about_their_mean() -> Result<()> {
    // The definition: F(v) = −ln ∫ exp(−E(v, h)) dh, here with two hidden units on a grid of ±12 in
    // steps of .05, beyond which and between which the integrand is smooth to 1e-16; the constant ½
    // ln 2π a unit is left out.
    let rbm = machine(RbmConfig { hidden: HiddenUnit::Gaussian, ..RbmConfig::new(3, 2) }, 4)?;
    let v = all_bits(3)?;
    let (step, half) = (0.05, 240i32);
    let points: Vec<f64> = (-half..=half).map(|i| f64::from(i) * step).collect();
    let grid: Vec<f64> = points.iter().flat_map(|&a| points.iter().flat_map(move |&b| [a, b])).collect();
    let h = Tensor::from_vec(grid, (points.len() * points.len(), 2), &CPU)?;
    let own = (h.sqr()?.sum(1)?.unsqueeze(0)? * -0.5)?;
    let joint = negative_energy(&rbm, &v, &h)?.broadcast_add(&own)?.exp()?;
    let integral = values(&joint.sum(1)?)?;
    let want: Vec<f64> =
        integral.iter().map(|sum| -(sum * step * step / (2. * std::f64::consts::PI)).ln()).collect();
    assert_close("free energy", &values(&rbm.free_energy(&v)?)?, &want, 1e-9);
    let mean = joint.matmul(&h)?.broadcast_div(&joint.sum_keepdim(1)?)?;
    assert_close("hidden mean", &values(&rbm.hidden_mean(&v)?)?, &values(&mean)?, 1e-9);

    // 40,000 draws of each: five standard errors of a mean are .025, of a variance .035.
    let many = v.repeat((40_000, 1))?;
    let noise = (rbm.sample_hidden(&many, Philox::new(4, 9))? - rbm.hidden_mean(&many)?)?;
    let noise = noise.reshape((40_000, 16))?;
    assert_close("mean of the noise", &values(&noise.mean(0)?)?, &[0.; 16], 0.025);
    assert_close("variance of the noise", &values(&noise.sqr()?.mean(0)?)?, &[1.; 16], 0.035);
    Ok(())
}

#[test]
fn conditionals_are_those_of_the_joint_distribution() -> Result<()> {
    let (rbm, v, h) = (machine(RbmConfig::new(2, 3), 3)?, all_bits(2)?, all_bits(3)?);
    let joint = negative_energy(&rbm, &v, &h)?.exp()?;
    let total = joint.sum_all()?.to_scalar::<f64>()?;
    let probabilities = (joint / total)?;
    assert_close("total", &[probabilities.sum_all()?.to_scalar::<f64>()?], &[1.], 1e-14);
    // p(h_j = 1 | v) = Σ_h p(v, h) h_j / p(v)
    let of_v = probabilities.sum_keepdim(1)?;
    let want = probabilities.matmul(&h)?.broadcast_div(&of_v)?;
    assert_close("p(h | v)", &values(&rbm.hidden_mean(&v)?)?, &values(&want)?, 1e-12);
    let of_h = probabilities.t()?.sum_keepdim(1)?;
    let want = probabilities.t()?.matmul(&v)?.broadcast_div(&of_h)?;
    assert_close("p(v | h)", &values(&rbm.visible_mean(&h)?)?, &values(&want)?, 1e-12);
    Ok(())
}

#[test]
fn gibbs_sampling_reaches_the_distribution_of_the_model() -> Result<()> {
    // 60,000 chains: the standard error of a frequency is at most .002; five of them are allowed.
    const CHAINS: usize = 60_000;
    let rbm = machine(RbmConfig::new(3, 2), 5)?;
    let v = all_bits(3)?;
    let weights = rbm.free_energy(&v)?.neg()?.exp()?;
    let want = values(&(&weights / weights.sum_all()?.to_scalar::<f64>()?)?)?;
    let start = uniform((CHAINS, 3), &CPU, Philox::new(6, 0))?.round()?.to_dtype(DType::F64)?;
    let means = rbm.gibbs(&start, 40, Philox::new(6, 1))?;
    // The means of the last step, averaged, give each state's probability as a product over units.
    let mut got = vec![0.; want.len()];
    for row in means.to_vec2::<f64>()? {
        for (state, got) in got.iter_mut().enumerate() {
            let p = |(i, p): (usize, &f64)| if state >> i & 1 == 1 { *p } else { 1. - p };
            *got += row.iter().enumerate().map(p).product::<f64>() / CHAINS as f64;
        }
    }
    assert_close("state frequencies", &got, &want, 0.01);
    Ok(())
}

#[test]
fn pseudo_likelihood_is_its_average_over_units() -> Result<()> {
    let rbm = machine(RbmConfig::new(4, 3), 7)?;
    let v = all_bits(4)?;
    let free = values(&rbm.free_energy(&v)?)?;
    let exact = (0..16).flat_map(|s| (0..4).map(move |i| (s, s ^ (1 << i))));
    let exact: f64 =
        exact.map(|(s, t): (usize, usize)| -(1. + (free[s] - free[t]).exp()).ln()).sum::<f64>() / 16.;
    // Each row many times, so that the units drawn average out.
    let many = v.repeat((4000, 1))?;
    let got = rbm.pseudo_likelihood(&many, Philox::new(8, 0))?;
    assert!((got - exact).abs() < 0.05, "pseudo-likelihood {got}, exact {exact}");
    Ok(())
}

#[test]
fn one_step_follows_the_gradient_of_the_free_energy() -> Result<()> {
    // With momentum 0 and rate 1 the update is −∂F/∂θ at the data plus ∂F/∂θ at the reconstruction:
    // exactly what automatic differentiation of the free energies gives. The reconstruction is the
    // end of a Gibbs chain, of which the last visible states alone may be means.
    let units = [
        (VisibleUnit::Bernoulli, HiddenUnit::Bernoulli),
        (VisibleUnit::Gaussian, HiddenUnit::Bernoulli),
        (VisibleUnit::Bernoulli, HiddenUnit::Gaussian),
    ];
    let chains = [(1, false), (1, true), (2, false), (4, false), (3, true)];
    for ((visible, hidden), (k, sample_visible)) in
        units.into_iter().flat_map(|units| chains.map(|chain| (units, chain)))
    {
        let (n_visible, n_hidden, batch) = (6, 5, 4);
        let config = RbmConfig { visible, hidden, weight_stdev: 0.5, ..RbmConfig::new(n_visible, n_hidden) };
        let before = Rbm::init(config.clone(), Philox::new(9, 0), &CPU)?;
        let v = uniform((batch, n_visible), &CPU, Philox::new(9, 1))?;
        let training = RbmTrainConfig {
            batch,
            learning_rate: Schedule::constant(1.),
            momentum: Schedule::constant(0.),
            l2: 0.,
            k,
            sample_visible,
            ..RbmTrainConfig::default()
        };
        let philox = Philox::new(9, 2);
        let mut trainer = RbmTrainer::new(&before, training, philox)?;
        trainer.step(&v, None)?;
        // The reconstruction, from the same draws.
        let (mut states, mut at) = (v.clone(), philox);
        for j in 1..=k {
            let hidden = before.sample_hidden(&states, at)?;
            at = at.advanced(batch * n_hidden);
            states = match j < k || sample_visible {
                true => before.sample_visible(&hidden, at)?,
                false => before.visible_mean(&hidden)?,
            };
            at = at.advanced(batch * n_visible);
        }
        let negative = states;
        let vars = [before.weight(), before.bias(), before.visible_bias()].map(Var::from_tensor);
        let [weight, bias, visible_bias] = vars;
        let (weight, bias, visible_bias) = (weight?, bias?, visible_bias?);
        let parts = [&weight, &bias, &visible_bias].map(|v| v.as_tensor().clone());
        let [w, c, b] = parts;
        let model = Rbm::from_tensors(config, w, c, b, None)?;
        let loss = (model.free_energy(&v)?.mean_all()? - model.free_energy(&negative)?.mean_all()?)?;
        let gradients = loss.backward()?;
        let after = trainer.model()?;
        for (name, var, after) in [
            ("weight", &weight, after.weight()),
            ("bias", &bias, after.bias()),
            ("visible_bias", &visible_bias, after.visible_bias()),
        ] {
            let gradient = gradients.get(var).expect("the loss depends on every parameter");
            let want = (var.as_tensor() - gradient)?;
            // f32 sums of a few terms of order 1.
            let what = format!("CD-{k} {visible:?} {hidden:?} drawn {sample_visible}: {name}");
            assert_close(&what, &values(after)?, &values(&want)?, 2e-6);
        }
    }
    Ok(())
}

#[test]
fn a_step_with_sampled_reconstructions_is_that_of_plain_loops() -> Result<()> {
    const STEP: f64 = 0.5;
    let (n_visible, n_hidden, batch) = (5, 4, 3);
    for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian] {
        let config = RbmConfig { visible, weight_stdev: 0.7, ..RbmConfig::new(n_visible, n_hidden) };
        let before = Rbm::init(config, Philox::new(19, 0), &CPU)?;
        let data = uniform((batch, n_visible), &CPU, Philox::new(19, 1))?;
        let training = RbmTrainConfig {
            batch,
            learning_rate: STEP.into(),
            momentum: 0.0.into(),
            l2: 0.,
            sample_visible: true,
            ..RbmTrainConfig::default()
        };
        let philox = Philox::new(19, 2);
        let step = |training: &RbmTrainConfig| -> Result<Rbm> {
            let mut trainer = RbmTrainer::new(&before, training.clone(), philox)?;
            trainer.step(&data, None)?;
            trainer.model()
        };
        let after = step(&training)?;

        // The draws: a uniform number for each hidden unit, then one draw for each visible unit.
        let coins = uniform((batch, n_hidden), &CPU, philox)?.to_vec2::<f32>()?;
        let then = philox.advanced(batch * n_hidden);
        let noise = match visible {
            VisibleUnit::Bernoulli => uniform((batch, n_visible), &CPU, then)?,
            _ => normal((batch, n_visible), &CPU, then)?,
        };
        let noise = noise.to_vec2::<f32>()?;
        let wide = |t: &Tensor| t.to_dtype(DType::F64)?.to_vec2::<f64>();
        let (mut w, data) = (wide(before.weight())?, wide(&data)?);
        let (start, sigmoid) = (w.clone(), |x: f64| 1. / (1. + (-x).exp()));
        let hidden_of = |v: &[f64], j: usize| sigmoid((0..n_visible).map(|i| start[j][i] * v[i]).sum());
        for row in 0..batch {
            let pos: Vec<f64> = (0..n_hidden).map(|j| hidden_of(&data[row], j)).collect();
            let state: Vec<bool> = (0..n_hidden).map(|j| f64::from(coins[row][j]) < pos[j]).collect();
            let negative: Vec<f64> = (0..n_visible)
                .map(|i| {
                    let x: f64 = (0..n_hidden).filter(|&j| state[j]).map(|j| start[j][i]).sum();
                    let draw = f64::from(noise[row][i]);
                    match visible {
                        VisibleUnit::Bernoulli => f64::from(u8::from(draw < sigmoid(x))),
                        _ => x + draw,
                    }
                })
                .collect();
            let neg: Vec<f64> = (0..n_hidden).map(|j| hidden_of(&negative, j)).collect();
            for j in 0..n_hidden {
                for i in 0..n_visible {
                    w[j][i] += STEP / batch as f64 * (pos[j] * data[row][i] - neg[j] * negative[i]);
                }
            }
        }
        let want: Vec<f64> = w.concat();
        assert_close(&format!("{visible:?}"), &values(after.weight())?, &want, 2e-6);
        // With means the step is another one.
        let means = step(&RbmTrainConfig { sample_visible: false, ..training })?;
        let apart = (means.weight() - after.weight())?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart > 1e-2, "{visible:?}: {apart}");
    }
    Ok(())
}

/// Trains on `rows` and returns the machine and the last reconstruction error.
fn train(config: RbmConfig, training: RbmTrainConfig, rows: &Tensor, steps: usize) -> Result<(Rbm, f64)> {
    let rbm = Rbm::init(config, Philox::new(10, 0), &CPU)?;
    let batch = training.batch;
    let mut trainer = RbmTrainer::new(&rbm, training, Philox::new(10, 1))?;
    let n = rows.dim(0)? / batch;
    for step in 0..steps {
        trainer.step(&rows.narrow(0, step % n * batch, batch)?, None)?;
        if step + 2 * n == steps {
            trainer.metrics()?;
        }
    }
    let error = trainer.metrics()?.reconstruction_error;
    Ok((trainer.model()?.to(DType::F32, &CPU)?, error))
}

/// Rows of 16 bits that are the left half repeated: the right half is known from the left. 512
/// rows.
fn doubled() -> Result<Tensor> {
    let half = uniform((512, 8), &CPU, Philox::new(11, 0))?.round()?;
    Tensor::cat(&[&half, &half], 1)
}

#[test]
fn contrastive_divergence_learns_what_biases_alone_cannot() -> Result<()> {
    let rows = doubled()?;
    for persistent in [false, true] {
        let training = RbmTrainConfig { batch: 32, persistent, ..RbmTrainConfig::default() };
        let (rbm, _) = train(RbmConfig::new(16, 24), training.clone(), &rows, 3000)?;
        // Hide the right half and let the machine fill it in.
        let masked = Tensor::cat(&[&rows.narrow(1, 0, 8)?, &Tensor::full(0.5f32, (512, 8), &CPU)?], 1)?;
        let guess = rbm.reconstruct(&masked)?.narrow(1, 8, 8)?.round()?;
        let right = guess.eq(&rows.narrow(1, 8, 8)?)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
        assert!(right > 0.9, "persistent {persistent}: {right} of the hidden half filled in");
        // The baseline that must fail: the same with a rate of 0 keeps its random weights.
        let (untrained, _) = train(
            RbmConfig::new(16, 24),
            RbmTrainConfig { learning_rate: 0.0.into(), ..training },
            &rows,
            3000,
        )?;
        let guess = untrained.reconstruct(&masked)?.narrow(1, 8, 8)?.round()?;
        let right = guess.eq(&rows.narrow(1, 8, 8)?)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
        assert!(right < 0.7, "without learning {right} of the hidden half filled in");
    }
    Ok(())
}

#[test]
fn rectified_units_learn_real_numbers() -> Result<()> {
    // Rank 2 in 12 dimensions, standardised: two directions explain everything.
    let basis = normal((2, 12), &CPU, Philox::new(12, 0))?;
    let rows = normal((640, 2), &CPU, Philox::new(12, 1))?.matmul(&basis)?;
    let total = rows.sqr()?.sum(1)?.mean(0)?.to_scalar::<f32>()?;
    let config =
        RbmConfig { visible: VisibleUnit::Gaussian, hidden: HiddenUnit::Rectified, ..RbmConfig::new(12, 32) };
    let training = RbmTrainConfig {
        batch: 32,
        learning_rate: 0.005.into(),
        momentum: 0.5.into(),
        l2: 0.,
        ..RbmTrainConfig::default()
    };
    let (_, error) = train(config, training, &rows, 2000)?;
    assert!(error < 0.25 * f64::from(total), "squared error {error} of {total}");
    Ok(())
}

#[test]
fn learned_deviations_find_those_of_the_data() -> Result<()> {
    // Independent units: the biases take the means and the variances what is left.
    let stdev = [0.5f32, 1., 2., 0.7];
    let noise = normal((4096, 4), &CPU, Philox::new(13, 0))?;
    let rows = noise.broadcast_mul(&Tensor::new(&stdev, &CPU)?)?;
    let config = RbmConfig { visible: VisibleUnit::GaussianLearned, ..RbmConfig::new(4, 2) };
    let training = RbmTrainConfig {
        batch: 256,
        learning_rate: 0.05.into(),
        momentum: 0.5.into(),
        sample_visible: true,
        l2: 0.05,
        ..RbmTrainConfig::default()
    };
    let (rbm, _) = train(config, training, &rows, 3000)?;
    let log_variance = rbm.log_variance().expect("variances are learned").to_vec1::<f32>()?;
    for (log_variance, stdev) in log_variance.iter().zip(stdev) {
        let got = (0.5 * log_variance).exp();
        assert!((got / stdev - 1.).abs() < 0.15, "deviation {got}, want {stdev}");
    }
    Ok(())
}

#[test]
fn sparsity_brings_the_mean_activation_to_its_target() -> Result<()> {
    let rows = doubled()?;
    let mean_activation = |sparsity| -> Result<f64> {
        let training = RbmTrainConfig { batch: 32, sparsity, ..RbmTrainConfig::default() };
        let (rbm, _) = train(RbmConfig::new(16, 24), training, &rows, 1500)?;
        rbm.hidden_mean(&rows)?.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()
    };
    let sparse = mean_activation(Some(SparsityConfig { target: 0.1, cost: 3., decay: 0.9 }))?;
    let plain = mean_activation(None)?;
    assert!((sparse - 0.1).abs() < 0.03, "mean activation {sparse}, want 0.1");
    assert!(plain > 0.2, "without a target the mean activation is {plain}");
    Ok(())
}

#[test]
fn max_norm_and_decay_bound_the_weights() -> Result<()> {
    let rows = doubled()?;
    let norms = |training: RbmTrainConfig| -> Result<f32> {
        let (rbm, _) = train(RbmConfig::new(16, 8), RbmTrainConfig { batch: 32, ..training }, &rows, 600)?;
        rbm.weight().sqr()?.sum(1)?.sqrt()?.max(0)?.to_scalar::<f32>()
    };
    let plain = norms(RbmTrainConfig { l2: 0., ..RbmTrainConfig::default() })?;
    let limited = norms(RbmTrainConfig { l2: 0., max_norm: Some(1.), ..RbmTrainConfig::default() })?;
    assert!(
        plain > 1.5 && limited < 1. + 1e-5,
        "longest row {plain} without a limit, {limited} with limit 1"
    );
    for decayed in [
        RbmTrainConfig { l2: 0.1, ..RbmTrainConfig::default() },
        RbmTrainConfig { l2: 0., l1: 0.05, ..RbmTrainConfig::default() },
    ] {
        let norm = norms(decayed.clone())?;
        assert!(norm < 0.8 * plain, "longest row {norm} with {decayed:?}, {plain} without decay");
    }
    Ok(())
}

#[test]
fn a_configuration_out_of_range_says_what_must_hold() {
    let first = |r: Result<RbmTrainer>| r.map(|_| ()).expect_err("accepted").to_string();
    let rbm = || Rbm::init(RbmConfig::new(3, 2), Philox::new(0, 0), &CPU);
    let train = |c: RbmTrainConfig| first(rbm().and_then(|rbm| RbmTrainer::new(&rbm, c, Philox::new(0, 1))));
    let d = RbmTrainConfig::default;
    for (config, want) in [
        (RbmTrainConfig { batch: 0, ..d() }, "RbmTrainConfig: batch must be at least 1, got 0"),
        (RbmTrainConfig { k: 0, ..d() }, "RbmTrainConfig: k must be at least 1, got 0"),
        (RbmTrainConfig { momentum: 1.0.into(), ..d() }, "RbmTrainConfig: momentum must be in [0, 1), got 1"),
        (
            RbmTrainConfig { learning_rate: f64::NAN.into(), ..d() },
            "RbmTrainConfig: learning_rate must be at least 0, got NaN",
        ),
        (RbmTrainConfig { l2: -1., ..d() }, "RbmTrainConfig: l2 must be at least 0, got -1"),
        (RbmTrainConfig { max_norm: Some(0.), ..d() }, "RbmTrainConfig: max_norm must be above 0, got 0"),
        (
            RbmTrainConfig { learning_rate: Schedule::Steps(vec![]), ..d() },
            "RbmTrainConfig: learning_rate must have at least one step, in ascending epochs, got []",
        ),
    ] {
        assert_eq!(train(config).lines().next(), Some(want));
    }
    let rejected = RbmConfig::new(0, 2).validate().expect_err("accepted").to_string();
    assert_eq!(rejected.lines().next(), Some("RbmConfig: n_visible must be at least 1, got 0"));
}

#[test]
fn training_that_diverges_says_between_which_steps() -> Result<()> {
    let config = RbmConfig { visible: VisibleUnit::Gaussian, ..RbmConfig::new(4, 3) };
    let rbm = Rbm::init(config, Philox::new(0, 0), &CPU)?;
    let training = RbmTrainConfig { batch: 2, ..RbmTrainConfig::default() };
    let mut trainer = RbmTrainer::new(&rbm, training, Philox::new(0, 1))?;
    let rows = Tensor::ones((2, 4), DType::F32, &CPU)?;
    trainer.step(&rows, None)?;
    trainer.metrics()?;
    trainer.step(&(rows * f64::NAN)?, None)?;
    let error = trainer.metrics().expect_err("NaN passed").to_string();
    let want = "RbmTrainer: the reconstruction error became NaN between steps 2 and 2; lower the learning rate, or scale the input";
    assert_eq!(error.lines().next(), Some(want));
    Ok(())
}

#[test]
fn binarised_training_is_training_on_drawn_rows() -> Result<()> {
    let (batch, n_visible, n_hidden) = (6, 7, 5);
    let grey = uniform((batch, n_visible), &CPU, Philox::new(20, 0))?;
    let config = RbmConfig { weight_stdev: 0.5, ..RbmConfig::new(n_visible, n_hidden) };
    let below = Rbm::init(config, Philox::new(20, 1), &CPU)?;
    let above = Rbm::init(RbmConfig::new(n_hidden, 3), Philox::new(20, 2), &CPU)?;
    let training = RbmTrainConfig { batch, momentum: 0.0.into(), ..RbmTrainConfig::default() };
    let drawing = RbmTrainConfig { binarize: true, ..training.clone() };
    for (lower, rbm) in [(vec![], below.clone()), (vec![below], above)] {
        let mut at = Philox::new(20, 3);
        let mut trainer = RbmTrainer::above(&lower, &rbm, &Preparation::default(), drawing.clone(), at)?;
        for step in 0..3 {
            // Each step draws rows, then hidden units, and goes on in the sequence: never the same
            // rows twice.
            let before = trainer.model()?.to(DType::F32, &CPU)?;
            trainer.step(&grey, None)?;
            let rows = chandlery_ops::core::bernoulli(&grey, at)?;
            at = at.advanced(batch * n_visible);
            let mut plain =
                RbmTrainer::above(&lower, &before, &Preparation::default(), training.clone(), at)?;
            plain.step(&rows, None)?;
            at = at.advanced(batch * rbm.config().n_hidden);
            for ((name, got), (_, want)) in
                trainer.model()?.tensors().into_iter().zip(plain.model()?.tensors())
            {
                assert_eq!(values(&got)?, values(&want)?, "step {step}: {name}");
            }
        }
    }
    let gaussian = RbmConfig { visible: VisibleUnit::Gaussian, ..RbmConfig::new(3, 2) };
    let gaussian = Rbm::init(gaussian, Philox::new(0, 0), &CPU)?;
    let refused = RbmTrainer::new(&gaussian, drawing, Philox::new(0, 1)).map(|_| ());
    assert_eq!(
        refused.expect_err("accepted").to_string().lines().next(),
        Some("RbmTrainConfig: binarize must be false for real-valued rows, got true for gaussian")
    );
    Ok(())
}
