//! Machines small enough to enumerate say what every estimate of a likelihood must come to.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::rbm::likelihood::{Ais, AisConfig, AisRun, Estimate, Stage};
use chandlery::rbm::{HiddenUnit, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer, VisibleUnit};
use chandlery::schedule::Schedule;
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;
const KINDS: [VisibleUnit; 3] = [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned];

fn quiet(_done: usize, _total: usize) {}

/// All rows of `n` bits, `[2^n, n]`, f64.
fn all_bits(n: usize) -> Result<Tensor> {
    let bits = (0..1usize << n).flat_map(|i| (0..n).map(move |j| (i >> j & 1) as f64));
    Tensor::from_vec(bits.collect(), (1 << n, n), &CPU)
}

fn draws(shape: (usize, usize), seed: u64, stream: u64) -> Result<Tensor> {
    normal(shape, &CPU, Philox::new(seed, stream))?.to_dtype(DType::F64)
}

/// A machine with weights of standard deviation `stdev` and biases of order 1.
fn machine(visible: VisibleUnit, (v, h): (usize, usize), stdev: f64, seed: u64) -> Result<Rbm> {
    let flat = |n, stream| draws((1, n), seed, stream)?.squeeze(0);
    let log_variance = (visible == VisibleUnit::GaussianLearned).then(|| flat(v, 3)? * 0.5).transpose()?;
    let config = RbmConfig { visible, ..RbmConfig::new(v, h) };
    Rbm::from_tensors(config, (draws((h, v), seed, 0)? * stdev)?, flat(h, 1)?, flat(v, 2)?, log_variance)
}

fn numbers(t: &Tensor) -> Result<Vec<f64>> {
    t.flatten_all()?.to_vec1()
}

/// `ln Σ exp`, in the plainest way.
fn log_sum_exp(logs: &[f64]) -> f64 {
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + logs.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
}

fn annealed(n_chains: usize, temperatures: usize) -> AisConfig {
    AisConfig { n_chains, stages: AisConfig::stages(temperatures), burn_in: 200 }
}

/// Both runs of a machine from independent units with biases 0; the way back begins at rows of
/// zeros.
fn both_ways(rbm: &Rbm, config: AisConfig, seed: u64) -> Result<(AisRun, AisRun)> {
    let n = rbm.config().n_visible;
    let zeros = Tensor::zeros(n, DType::F64, &CPU)?;
    let ais = Ais::new(rbm, &zeros, config)?;
    let forward = ais.forward(Philox::new(seed, 10), &mut quiet)?;
    let reverse = ais.reverse(&zeros.unsqueeze(0)?, Philox::new(seed, 11), &mut quiet)?;
    Ok((forward, reverse))
}

#[track_caller]
fn assert_near(what: &str, got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{what}: got {got}, want {want}, tolerance {tolerance:e}");
}

#[test]
fn exact_probabilities_sum_to_one() -> Result<()> {
    let rbm = machine(VisibleUnit::Bernoulli, (2, 3), 1., 1)?;
    let log_z = Estimate::exact(rbm.exact_log_z(&mut quiet)?);
    let total: f64 = (0..4)
        .map(|state| Ok(rbm.log_likelihood(&all_bits(2)?.narrow(0, state, 1)?, &log_z)?.value.exp()))
        .sum::<Result<f64>>()?;
    assert_near("Σ p(v)", total, 1., 1e-14);
    Ok(())
}

#[test]
fn exact_densities_of_real_rows_integrate_to_one() -> Result<()> {
    // Two units on a grid wide enough for every mode: the rectangle rule is exact to rounding for
    // such smooth functions.
    const STEP: f64 = 0.1;
    const HALF: i32 = 150;
    let axis: Vec<f64> = (-HALF..=HALF).map(|i| f64::from(i) * STEP).collect();
    let grid: Vec<f64> = axis.iter().flat_map(|&a| axis.iter().flat_map(move |&b| [a, b])).collect();
    let grid = Tensor::from_vec(grid, (axis.len() * axis.len(), 2), &CPU)?;
    for visible in [VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
        let rbm = machine(visible, (2, 4), 1., 2)?;
        let total = log_sum_exp(&numbers(&rbm.free_energy(&grid)?.neg()?)?) + 2. * STEP.ln();
        assert_near(&format!("{visible:?}"), rbm.exact_log_z(&mut quiet)?, total, 1e-9);
    }
    Ok(())
}

#[test]
fn the_exact_sum_is_that_over_all_rows_whatever_the_blocks() -> Result<()> {
    // 16 hidden units read by 9: the sum is cut into blocks and groups. Progress ends where it
    // said.
    let rbm = machine(VisibleUnit::Bernoulli, (9, 16), 0.8, 3)?;
    let want = log_sum_exp(&numbers(&rbm.free_energy(&all_bits(9)?)?.neg()?)?);
    assert_near("over visible units", rbm.exact_log_z(&mut quiet)?, want, 1e-11);
    let turned = RbmConfig::new(16, 9);
    let turned = Rbm::from_tensors(
        turned,
        rbm.weight().t()?.contiguous()?,
        rbm.visible_bias().clone(),
        rbm.bias().clone(),
        None,
    )?;
    let mut last = (0, 0);
    assert_near("over hidden units", turned.exact_log_z(&mut |i, n| last = (i, n))?, want, 1e-11);
    assert!(last.0 == last.1 && last.1 > 0, "{last:?}");
    // In f32 parameters, the sum is still that of the machine in f64.
    let narrow = turned.to(DType::F32, &CPU)?;
    let want = narrow.to(DType::F64, &CPU)?.exact_log_z(&mut quiet)?;
    assert_eq!(narrow.exact_log_z(&mut quiet)?, want);
    Ok(())
}

#[test]
fn annealing_from_below_and_from_above_meets_at_the_exact_value() -> Result<()> {
    for (i, visible) in KINDS.into_iter().enumerate() {
        let rbm = machine(visible, (8, 6), 0.6, 20 + i as u64)?;
        let exact = rbm.exact_log_z(&mut quiet)?;
        let (forward, reverse) = both_ways(&rbm, annealed(1000, 400), i as u64)?;
        for (way, run) in [("forward", &forward), ("reverse", &reverse)] {
            let AisRun { log_z, effective_chains, .. } = run;
            assert!(
                log_z.lower <= exact && exact <= log_z.upper,
                "{visible:?} {way}: {exact} is outside of {log_z:?}"
            );
            // Bounds that hold because they are wide would say nothing.
            assert!(log_z.upper - log_z.lower < 0.2, "{visible:?} {way}: {log_z:?}");
            assert!((100. ..=1000.).contains(effective_chains), "{visible:?} {way}: {effective_chains}");
        }
        assert!(forward.log_z.agrees_with(&reverse.log_z));
        assert_eq!(forward.states.dims(), [1000, 8]);
    }
    Ok(())
}

#[test]
fn bounds_hold_in_nearly_every_run() -> Result<()> {
    // 40 runs; three standard errors miss one of 370, where the spread is known. Without them
    // nearly every run would.
    let rbm = machine(VisibleUnit::Bernoulli, (6, 5), 1., 30)?;
    let exact = rbm.exact_log_z(&mut quiet)?;
    let (mut missed, mut narrow) = (0, 0);
    for seed in 0..20 {
        let (forward, reverse) = both_ways(&rbm, annealed(300, 150), 100 + seed)?;
        for run in [forward, reverse] {
            let Estimate { value, lower, upper } = run.log_z;
            missed += usize::from(!(lower..=upper).contains(&exact));
            narrow += usize::from((value - exact).abs() > (upper - lower) / 60.);
        }
    }
    assert!(missed <= 1, "{missed} of 40 intervals miss the exact value");
    assert!(narrow >= 20, "intervals a tenth as wide would do for {} of 40", 40 - narrow);
    Ok(())
}

#[test]
fn a_path_without_steps_is_the_worse_one() -> Result<()> {
    // One jump from β = 0 to 1 is plain importance sampling: it must err by more than annealing's
    // bounds are wide.
    let rbm = machine(VisibleUnit::Bernoulli, (30, 20), 1., 31)?;
    let exact = rbm.exact_log_z(&mut quiet)?;
    let jump = AisConfig { stages: vec![Stage { n: 1, to: 1. }], ..annealed(500, 3) };
    let (jumped, _) = both_ways(&rbm, jump, 5)?;
    let (forward, _) = both_ways(&rbm, annealed(500, 1000), 5)?;
    let width = forward.log_z.upper - forward.log_z.lower;
    assert!((forward.log_z.value - exact).abs() < width, "{:?}, exact {exact}", forward.log_z);
    assert!((jumped.log_z.value - exact).abs() > 2. * width, "{:?}, exact {exact}", jumped.log_z);
    assert!(jumped.effective_chains < forward.effective_chains / 4.);
    Ok(())
}

#[test]
fn the_bounds_of_a_likelihood_are_those_of_ln_z_turned_over() -> Result<()> {
    let rbm = machine(VisibleUnit::Bernoulli, (3, 4), 1., 32)?;
    let v = all_bits(3)?;
    let free = -numbers(&rbm.free_energy(&v)?)?.iter().sum::<f64>() / 8.;
    let got = rbm.log_likelihood(&v, &Estimate { value: 2., lower: 1.5, upper: f64::INFINITY })?;
    assert_near("value", got.value, free - 2., 1e-12);
    assert_near("upper", got.upper, free - 1.5, 1e-12);
    assert_eq!(got.lower, f64::NEG_INFINITY);
    // The same of f32 rows and parameters, summed in f64.
    let narrow = rbm.to(DType::F32, &CPU)?;
    let same = narrow.log_likelihood(&v.to_dtype(DType::F32)?, &Estimate::exact(2.))?;
    assert_near("f32", same.value, free - 2., 1e-6);
    Ok(())
}

#[test]
fn the_bound_of_two_layers_is_what_it_says_and_below_their_likelihood() -> Result<()> {
    for (i, visible) in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian].into_iter().enumerate() {
        let seed = 40 + i as u64;
        let lower = machine(visible, (5, 4), 0.5, seed)?;
        let upper = machine(VisibleUnit::Bernoulli, (4, 3), 0.7, seed + 10)?;
        let layers = vec![lower.config().clone(), upper.config().clone()];
        let config = DbnConfig { layers, ..DbnConfig::new(&[5, 4, 3]) };
        let dbn = Dbn::from_layers(config, vec![lower.clone(), upper.clone()])?;
        let v = if visible.is_gaussian() { draws((32, 5), seed, 7)? } else { all_bits(5)? };
        let log_z = upper.exact_log_z(&mut quiet)?;

        // ln p(v) = ln Σ_h p(v | h) e^−F(h) − ln Z; ⟨·⟩_Q enumerated, too. From the definitions, by
        // plain loops.
        let h = all_bits(4)?;
        let (free, means) = (numbers(&upper.free_energy(&h)?)?, lower.visible_mean(&h)?.to_vec2::<f64>()?);
        let (rows, q) = (v.to_vec2::<f64>()?, lower.hidden_mean(&v)?.to_vec2::<f64>()?);
        let states = h.to_vec2::<f64>()?;
        let log_p = |x: f64, mean: f64| match visible.is_gaussian() {
            true => -0.5 * ((x - mean).powi(2) + (2. * std::f64::consts::PI).ln()),
            false => (x * mean + (1. - x) * (1. - mean)).ln(),
        };
        let (mut exact, mut bound) = (0., 0.);
        for (row, q) in rows.iter().zip(&q) {
            let joint: Vec<f64> = (0..16)
                .map(|s| row.iter().zip(&means[s]).map(|(x, m)| log_p(*x, *m)).sum::<f64>() - free[s] - log_z)
                .collect();
            let log_q: Vec<f64> = states
                .iter()
                .map(|s| s.iter().zip(q).map(|(h, q)| (h * q + (1. - h) * (1. - q)).ln()).sum())
                .collect();
            exact += log_sum_exp(&joint) / 32.;
            bound += joint.iter().zip(&log_q).map(|(j, q)| q.exp() * (j - q)).sum::<f64>() / 32.;
        }
        let got = dbn.log_likelihood_bound(&v, &Estimate::exact(log_z), 400, Philox::new(seed, 8))?;
        let error = got.standard_error;
        assert!(error > 1e-4 && error < 0.02, "{visible:?}: {got:?}");
        assert_near(&format!("{visible:?}, enumerated"), got.estimate.value, bound, 4. * error);
        assert!(bound < exact - 0.01, "{visible:?}: bound {bound}, exact {exact}");
        assert!(got.estimate.value < exact, "{visible:?}: {got:?}, exact {exact}");
    }
    Ok(())
}

/// 512 rows of 16 bits, the left half repeated: independent units give at best 16 ln ½ = −11.1
/// nats, their entropy is 8 ln 2 = 5.5.
fn doubled() -> Result<Tensor> {
    let half = uniform((512, 8), &CPU, Philox::new(11, 0))?.round()?;
    Tensor::cat(&[&half, &half], 1)
}

/// The exact average log-likelihood of `rows` after training on them.
fn learned(training: RbmTrainConfig, rows: &Tensor) -> Result<f64> {
    let rbm = Rbm::init(RbmConfig::new(16, 12), Philox::new(10, 0), &CPU)?;
    let batch = training.batch;
    let mut trainer = RbmTrainer::new(&rbm, training, Philox::new(10, 1))?;
    for epoch in 0..150 {
        trainer.begin_epoch(epoch)?;
        for start in (0..512).step_by(batch) {
            trainer.step(&rows.narrow(0, start, batch)?, None)?;
        }
    }
    trainer.metrics()?;
    let log_z = Estimate::exact(trainer.model()?.exact_log_z(&mut quiet)?);
    Ok(trainer.model()?.log_likelihood(rows, &log_z)?.value)
}

#[test]
fn persistent_chains_raise_the_likelihood_towards_the_entropy() -> Result<()> {
    let rows = doubled()?;
    let training = RbmTrainConfig {
        batch: 32,
        persistent: true,
        k: 3,
        learning_rate: Schedule::linear(0.1, 0.005, 150),
        momentum: 0.5.into(),
        ..RbmTrainConfig::default()
    };
    let independent = 16. * 0.5f64.ln();
    let trained = learned(training.clone(), &rows)?;
    assert!(trained > -8., "{trained} nats a row, independent units have {independent}");
    // The baseline that must fail: a machine that does not learn.
    let untrained = learned(RbmTrainConfig { learning_rate: 0.0.into(), ..training }, &rows)?;
    assert!(untrained < independent + 0.1, "without learning {untrained} nats a row");
    Ok(())
}

#[test]
fn what_cannot_be_summed_or_annealed_is_refused_in_words() -> Result<()> {
    fn text<T>(refused: Result<T>) -> String {
        let error = refused.err().expect("accepted").to_string();
        error.lines().next().unwrap_or_default().to_owned()
    }
    let init = |config: RbmConfig| Rbm::init(config, Philox::new(0, 0), &CPU);
    let large = init(RbmConfig::new(30, 26))?;
    assert!(!large.has_exact_log_z() && init(RbmConfig::new(25, 26))?.has_exact_log_z());
    assert_eq!(
        text(large.exact_log_z(&mut quiet)),
        "Rbm::exact_log_z: the hidden or the binary visible units must be at most 25, got 26; estimate it with Ais"
    );
    let gaussian = init(RbmConfig { visible: VisibleUnit::Gaussian, ..RbmConfig::new(3, 26) })?;
    assert!(!gaussian.has_exact_log_z(), "real-valued units cannot be summed over");
    let rectified = init(RbmConfig { hidden: HiddenUnit::Rectified, ..RbmConfig::new(3, 2) })?;
    let rows = |n| Tensor::zeros((n, 3), DType::F32, &CPU);
    let base = Tensor::zeros(3, DType::F32, &CPU)?;
    let want = "hidden units must be bernoulli, got rectified";
    assert_eq!(text(rectified.exact_log_z(&mut quiet)), format!("Rbm::exact_log_z: {want}"));
    assert_eq!(
        text(rectified.log_likelihood(&rows(1)?, &Estimate::exact(0.))),
        format!("Rbm::log_likelihood: {want}")
    );
    assert_eq!(text(Ais::new(&rectified, &base, AisConfig::default())), format!("Ais: {want}"));

    let small = init(RbmConfig::new(3, 2))?;
    let ais = |config| text(Ais::new(&small, &base, config));
    assert_eq!(ais(annealed(1, 3)), "AisConfig: n_chains must be at least 2, for bounds, got 1");
    let stage = |n, to| Stage { n, to };
    for (stages, ends) in [
        (vec![], "[]"),
        (vec![stage(3, 0.5)], "[0.5]"),
        (vec![stage(3, 0.5), stage(1, 0.5), stage(1, 1.)], "[0.5, 0.5, 1.0]"),
        (vec![stage(3, f64::NAN), stage(1, 1.)], "[NaN, 1.0]"),
        (vec![stage(3, 1.), stage(1, 1.5)], "[1.0, 1.5]"),
    ] {
        let want = format!("AisConfig: stages must rise from above 0 to exactly 1, got ends at {ends}");
        assert_eq!(ais(AisConfig { stages, ..annealed(2, 3) }), want);
    }
    assert_eq!(
        ais(AisConfig { stages: vec![stage(0, 1.)], ..annealed(2, 3) }),
        "AisConfig: n of a stage must be at least 1, got 0"
    );
    assert_eq!(
        text(Ais::new(&small, &base.narrow(0, 0, 2)?, AisConfig::default())),
        "Ais: base must have shape [3], got [2]"
    );
    let ais = Ais::new(&small, &base, annealed(2, 3))?;
    assert_eq!(
        text(ais.reverse(&rows(0)?, Philox::new(0, 0), &mut quiet)),
        "Ais::reverse: rows of start must be at least 1, got 0"
    );
    let broken = Rbm::from_tensors(
        RbmConfig::new(3, 1),
        Tensor::new(&[[1f32, f32::NAN, 0.]], &CPU)?,
        Tensor::zeros(1, DType::F32, &CPU)?,
        base.clone(),
        None,
    )?;
    assert_eq!(
        text(broken.exact_log_z(&mut quiet)),
        "Rbm::exact_log_z: the parameters must be finite, got ln Z = NaN"
    );
    assert!(
        text(Ais::new(&broken, &base, annealed(2, 3))?.forward(Philox::new(0, 0), &mut quiet))
            .starts_with("Ais: the weights of all chains must be finite, got ln w = NaN")
    );

    let dbn = Dbn::init(DbnConfig::new(&[3, 2]), Philox::new(0, 0), &CPU)?;
    let bound = |dbn: &Dbn, n| {
        text(dbn.log_likelihood_bound(&rows(1).expect("room"), &Estimate::exact(0.), n, Philox::new(0, 0)))
    };
    assert_eq!(bound(&dbn, 2), "Dbn::log_likelihood_bound: the network must have 2 layers, got 1");
    let dbn = Dbn::init(DbnConfig::new(&[3, 2, 2]), Philox::new(0, 0), &CPU)?;
    assert_eq!(
        bound(&dbn, 1),
        "Dbn::log_likelihood_bound: n_draws must be at least 2, for a standard error, got 1"
    );
    Ok(())
}

#[test]
fn the_states_of_a_forward_run_are_samples_of_the_machine() -> Result<()> {
    // One jump, so that the weights differ and the ends as they are have another distribution.
    const CHAINS: usize = 20_000;
    let rbm = machine(VisibleUnit::Bernoulli, (3, 4), 3., 33)?;
    let v = all_bits(3)?;
    let log_z = rbm.exact_log_z(&mut quiet)?;
    let want: Vec<f64> = numbers(&rbm.free_energy(&v)?)?.iter().map(|f| (-f - log_z).exp()).collect();
    let config = AisConfig { n_chains: CHAINS, stages: vec![Stage { n: 1, to: 1. }], burn_in: 0 };
    let run = Ais::new(&rbm, &Tensor::zeros(3, DType::F64, &CPU)?, config)?
        .forward(Philox::new(34, 0), &mut quiet)?;
    assert!(run.effective_chains < 0.7 * CHAINS as f64, "{}", run.effective_chains);
    let mut got = [0.; 8];
    for row in run.states.to_vec2::<f64>()? {
        got[(row[0] + 2. * row[1] + 4. * row[2]) as usize] += 1. / CHAINS as f64;
    }
    for (state, (got, want)) in got.iter().zip(&want).enumerate() {
        // Five standard errors of a frequency among as many independent states as the weights are
        // worth.
        let error = (want * (1. - want) / run.effective_chains).sqrt();
        assert_near(&format!("state {state}"), *got, *want, 5. * error + 1e-4);
    }
    Ok(())
}
