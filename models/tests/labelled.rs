//! A machine with labels small enough to enumerate, and networks whose updates can be worked out by
//! hand.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use candle_nn::Linear;
use chandlery::labelled::{
    LabelledDbn, LabelledDbnConfig, LabelledDbnTrainConfig, LabelledDbnTrainer, LabelledRbm, Stage,
};
use chandlery::schedule::Schedule;
use chandlery::{Encode, MinibatchTrainer, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;

const CPU: Device = Device::Cpu;
/// Three features, two classes, three hidden units: 8 · 2 · 8 states.
const FEATURES: usize = 3;
const CLASSES: usize = 2;
const HIDDEN: usize = 3;

/// All rows of `n` bits, `[2^n, n]`, f64.
fn all_bits(n: usize) -> Vec<Vec<f64>> {
    (0..1usize << n).map(|i| (0..n).map(|j| (i >> j & 1) as f64).collect()).collect()
}

fn one_hot(class: usize) -> Vec<f64> {
    (0..CLASSES).map(|c| f64::from(u8::from(c == class))).collect()
}

/// A machine with weights and biases of order 1.
fn machine(dtype: DType) -> Result<LabelledRbm> {
    let draw = |n: (usize, usize), stream| {
        normal(n, &CPU, Philox::new(6, stream))?.to_dtype(DType::F64)?.to_dtype(dtype)
    };
    let flat = |n, stream| draw((1, n), stream)?.squeeze(0);
    LabelledRbm::from_tensors(
        (draw((HIDDEN, FEATURES), 0)? * 2.)?,
        flat(HIDDEN, 1)?,
        flat(FEATURES, 2)?,
        (draw((HIDDEN, CLASSES), 3)? * 1.5)?,
        (flat(CLASSES, 4)? * 0.2)?,
    )
}

/// One state of the machine and its probability.
struct State {
    x: Vec<f64>,
    class: usize,
    h: Vec<f64>,
    p: f64,
}

/// Every state with its probability, straight from the energy.
fn enumerated(top: &LabelledRbm) -> Result<Vec<State>> {
    let [w, c, b, u, d] = top.tensors().map(|(_, t)| t.to_dtype(DType::F64).expect("a float"));
    let (w, u) = (w.to_vec2::<f64>()?, u.to_vec2::<f64>()?);
    let (c, b, d) = (c.to_vec1::<f64>()?, b.to_vec1::<f64>()?, d.to_vec1::<f64>()?);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut states = Vec::new();
    for x in all_bits(FEATURES) {
        for class in 0..CLASSES {
            for h in all_bits(HIDDEN) {
                let inputs: Vec<f64> = (0..HIDDEN).map(|j| c[j] + dot(&w[j], &x) + u[j][class]).collect();
                let p = (dot(&b, &x) + d[class] + dot(&inputs, &h)).exp();
                states.push(State { x: x.clone(), class, h, p });
            }
        }
    }
    let z: f64 = states.iter().map(|state| state.p).sum();
    states.iter_mut().for_each(|state| state.p /= z);
    Ok(states)
}

/// `E[value | given]`
fn expected(states: &[State], given: impl Fn(&State) -> bool, value: impl Fn(&State) -> f64) -> f64 {
    let all: f64 = states.iter().filter(|s| given(s)).map(|s| s.p).sum();
    states.iter().filter(|s| given(s)).map(|s| s.p * value(s)).sum::<f64>() / all
}

#[track_caller]
fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance, "{what}: entry {i} is {g}, want {w} ± {tolerance:e}");
    }
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

fn rows(rows: &[Vec<f64>]) -> Result<Tensor> {
    Tensor::from_vec(rows.concat(), (rows.len(), rows[0].len()), &CPU)
}

#[test]
fn conditionals_are_those_of_the_joint_distribution() -> Result<()> {
    let top = machine(DType::F64)?;
    let states = enumerated(&top)?;
    for h in all_bits(HIDDEN) {
        let given = |s: &State| s.h == h;
        let row = rows(std::slice::from_ref(&h))?;
        let labels: Vec<f64> =
            (0..CLASSES).map(|c| expected(&states, given, |s| f64::from(u8::from(s.class == c)))).collect();
        assert_close(&format!("p(y | {h:?})"), &values(&top.label_mean(&row)?)?, &labels, 1e-12);
        let features: Vec<f64> = (0..FEATURES).map(|i| expected(&states, given, |s| s.x[i])).collect();
        assert_close(&format!("p(x | {h:?})"), &values(&top.visible_mean(&row)?)?, &features, 1e-12);
    }
    for x in all_bits(FEATURES) {
        for class in 0..CLASSES {
            let given = |s: &State| s.x == x && s.class == class;
            let hidden: Vec<f64> = (0..HIDDEN).map(|j| expected(&states, given, |s| s.h[j])).collect();
            let got = top.hidden_mean(&rows(std::slice::from_ref(&x))?, &rows(&[one_hot(class)])?)?;
            assert_close(&format!("p(h | {x:?}, {class})"), &values(&got)?, &hidden, 1e-12);
        }
    }
    Ok(())
}

#[test]
fn free_energies_classify_by_the_enumerated_posterior() -> Result<()> {
    let top = machine(DType::F64)?;
    let states = enumerated(&top)?;
    let dbn =
        LabelledDbn::from_parts(LabelledDbnConfig::new(&[FEATURES, HIDDEN], CLASSES), vec![], vec![], top)?;
    let v = rows(&all_bits(FEATURES))?;
    let mut want = Vec::new();
    for x in all_bits(FEATURES) {
        for c in 0..CLASSES {
            want.push(expected(&states, |s| s.x == x, |s| f64::from(u8::from(s.class == c))));
        }
    }
    assert_close("p(c | x)", &values(&dbn.label_log_probabilities(&v)?.exp()?)?, &want, 1e-12);
    let classes: Vec<u32> = want.chunks(2).map(|p| u32::from(p[1] > p[0])).collect();
    assert!(classes.contains(&0) && classes.contains(&1), "the machine should tell rows apart: {want:?}");
    assert_eq!(dbn.predict(&v)?.to_vec1::<u32>()?, classes);
    let labels = Tensor::new(classes, &CPU)?;
    assert_eq!(dbn.accuracy(&v, &labels)?, 1.);
    // exp(−F) is the unnormalised p(x, c): differences of free energies are logarithms of ratios
    // over all pairs.
    let f = values(&dbn.free_energies(&v)?)?;
    let joint: Vec<f64> = all_bits(FEATURES)
        .iter()
        .flat_map(|x| (0..CLASSES).map(|c| (x.clone(), c)).collect::<Vec<_>>())
        .map(|(x, c)| states.iter().filter(|s| s.x == x && s.class == c).map(|s| s.p).sum::<f64>())
        .collect();
    let ratios = |logs: Vec<f64>| logs.iter().map(|l| l - logs[0]).collect::<Vec<_>>();
    assert_close(
        "−F",
        &ratios(f.iter().map(|f| -f).collect()),
        &ratios(joint.iter().map(|p| p.ln()).collect()),
        1e-11,
    );
    Ok(())
}

#[test]
fn chains_with_the_label_held_reach_the_conditional_distribution() -> Result<()> {
    let top = machine(DType::F32)?;
    let states = enumerated(&top)?;
    let n = 20_000;
    for class in 0..CLASSES {
        let y = rows(&[one_hot(class)])?.to_dtype(DType::F32)?.repeat((n, 1))?;
        let start = Tensor::zeros((n, FEATURES), DType::F32, &CPU)?;
        let means = top.gibbs(&start, &y, 60, Philox::new(9, class as u64))?.to_vec2::<f32>()?;
        // p(x | h) is a product, so that each chain gives a share of its weight to every state of
        // the features.
        for x in all_bits(FEATURES) {
            let share = |row: &Vec<f32>| -> f64 {
                row.iter().zip(&x).map(|(m, x)| f64::from(*m) * x + (1. - f64::from(*m)) * (1. - x)).product()
            };
            let got = means.iter().map(share).sum::<f64>() / n as f64;
            let want = expected(&states, |s| s.class == class, |s| f64::from(u8::from(s.x == x)));
            // A share of at most 1 and variance at most ¼: 5 standard deviations of the mean of n.
            assert!(
                (got - want).abs() < 5. * 0.5 / (n as f64).sqrt(),
                "p({x:?} | {class}): {got}, want {want}"
            );
        }
    }
    Ok(())
}

/// The parameters of the machine on top, in the order of `tensors`.
fn top_values(dbn: &LabelledDbn) -> Result<Vec<Vec<f64>>> {
    dbn.top().tensors().iter().map(|(_, t)| values(t)).collect()
}

#[test]
fn the_contrast_after_long_chains_is_the_exact_gradient_of_the_joint_likelihood() -> Result<()> {
    let top = machine(DType::F32)?;
    let states = enumerated(&top)?;
    let config = LabelledDbnConfig::new(&[FEATURES, HIDDEN], CLASSES);
    let dbn = LabelledDbn::from_parts(config, vec![], vec![], top.clone())?;
    // Data: every pair of three rows and their classes, in equal numbers.
    let data: [([f32; 3], u32); 3] = [([1., 0., 0.], 0), ([1., 1., 0.], 1), ([0., 1., 1.], 1)];
    let batch = 30_000;
    let x: Vec<f32> = (0..batch).flat_map(|r| data[r % 3].0).collect();
    let labels: Vec<u32> = (0..batch).map(|r| data[r % 3].1).collect();
    let (x, labels) = (Tensor::from_vec(x, (batch, 3), &CPU)?, Tensor::from_vec(labels, batch, &CPU)?);

    // E_data − E_model of h x, h, x, h y, y.
    let of = |given: &dyn Fn(&State) -> bool, value: &dyn Fn(&State) -> f64| expected(&states, given, value);
    let gradient = |value: &dyn Fn(&State) -> f64| {
        let data = data.iter().map(|(x, class)| {
            of(&|s| s.class == *class as usize && s.x.iter().zip(x).all(|(a, b)| *a == f64::from(*b)), value)
        });
        data.sum::<f64>() / 3. - of(&|_| true, value)
    };
    let on = |s: &State, c: usize| f64::from(u8::from(s.class == c));
    let mut want: Vec<Vec<f64>> = vec![vec![]; 5];
    for j in 0..HIDDEN {
        want[0].extend((0..FEATURES).map(|i| gradient(&|s| s.h[j] * s.x[i])));
        want[1].push(gradient(&|s| s.h[j]));
        want[3].extend((0..CLASSES).map(|c| gradient(&|s| s.h[j] * on(s, c))));
    }
    want[2].extend((0..FEATURES).map(|i| gradient(&|s| s.x[i])));
    want[4].extend((0..CLASSES).map(|c| gradient(&|s| on(s, c))));

    // With rate 1 the first step moves each parameter by its gradient.
    let training = LabelledDbnTrainConfig {
        batch,
        k: Schedule::constant(60.),
        learning_rate: Schedule::constant(1.),
        label_rate: 1.,
        ..LabelledDbnTrainConfig::default()
    };
    let after_one_step = |training: LabelledDbnTrainConfig| -> Result<Vec<Vec<f64>>> {
        let mut trainer = LabelledDbnTrainer::new(&dbn, training, Philox::new(3, 0))?;
        trainer.step(&x, Some(&labels))?;
        top_values(&trainer.model()?)
    };
    let (before, after) = (top_values(&dbn)?, after_one_step(training.clone())?);
    for (t, (name, _)) in top.tensors().iter().enumerate() {
        let moved: Vec<f64> = after[t].iter().zip(&before[t]).map(|(a, b)| a - b).collect();
        // Each is a mean of numbers in [0, 1] over the chains, and the data's part is exact: 5
        // standard deviations.
        assert_close(name, &moved, &want[t], 5. * 0.5 / (batch as f64).sqrt());
        let largest = want[t].iter().fold(0f64, |m, g| m.max(g.abs()));
        assert!(largest > 0.05, "{name}: gradients of at most {largest} would not be told from 0");
    }
    // The same draws with the labels' rate three times as large: their weights and biases move
    // three times as far.
    let faster = after_one_step(LabelledDbnTrainConfig { label_rate: 3., ..training })?;
    for (t, (name, _)) in top.tensors().iter().enumerate() {
        let factor = if name.starts_with("label") { 3. } else { 1. };
        let want: Vec<f64> = before[t]
            .iter()
            .zip(&after[t])
            .map(|(before, after)| before + factor * (after - before))
            .collect();
        assert_close(&format!("{name} at three times the rate of labels"), &faster[t], &want, 1e-5);
    }
    Ok(())
}

/// Units that are on or off for certain: biases of ±60 leave the draws nothing to decide.
const SURE: f64 = 60.;

fn linear(weight: &[&[f64]], bias: &[f64]) -> Result<Linear> {
    let weight = rows(&weight.iter().map(|row| row.to_vec()).collect::<Vec<_>>())?;
    Ok(Linear::new(weight.to_dtype(DType::F32)?, Some(Tensor::new(bias, &CPU)?.to_dtype(DType::F32)?)))
}

fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

#[test]
fn recognition_and_generation_follow_the_delta_rule_worked_by_hand() -> Result<()> {
    // Two inputs, two hidden units, a machine of one hidden unit on top. Recognition turns the
    // hidden units on and off for certain in the wake phase; the machine on top turns them off and
    // on for certain in the sleep phase.
    let (v, label) = ([0.75, 0.25], 1u32);
    let up = linear(&[&[0.5, -1.], &[2., 1.]], &[SURE, -SURE])?;
    let down = linear(&[&[1., -0.5], &[-2., 0.25]], &[0.1, -0.3])?;
    let flat = |x: &[f64]| Tensor::new(x, &CPU)?.to_dtype(DType::F32);
    let top = LabelledRbm::from_tensors(
        Tensor::zeros((1, 2), DType::F32, &CPU)?,
        flat(&[0.])?,
        flat(&[-SURE, SURE])?,
        Tensor::zeros((1, 2), DType::F32, &CPU)?,
        flat(&[0., 0.])?,
    )?;
    let config = LabelledDbnConfig::new(&[2, 2, 1], 2);
    let dbn = LabelledDbn::from_parts(config, vec![up], vec![down], top)?;
    let (rate, momentum) = (0.5, 0.25);
    let training = LabelledDbnTrainConfig {
        batch: 1,
        learning_rate: Schedule::constant(rate),
        momentum: Schedule::constant(momentum),
        k: Schedule::constant(2.),
        ..LabelledDbnTrainConfig::default()
    };
    let mut trainer = LabelledDbnTrainer::new(&dbn, training, Philox::new(1, 0))?;
    let row = Tensor::new(&[v], &CPU)?.to_dtype(DType::F32)?;
    trainer.step(&row, Some(&Tensor::new(&[label], &CPU)?))?;

    // Wake: ĥ = (1, 0), and generation predicts of the row
    let p = [sigmoid(1. + 0.1), sigmoid(-2. - 0.3)];
    let delta_g = [v[0] - p[0], v[1] - p[1]];
    // Sleep: s¹ = (0, 1), the fantasy is the mean, and recognition predicts (1, 0) of it.
    let s0 = [sigmoid(-0.5 + 0.1), sigmoid(0.25 - 0.3)];
    let delta_r = [0. - 1., 1. - 0.];

    let after = trainer.model()?;
    let (up, down) = (&after.recognition()[0], &after.generative()[0]);
    let bias = |layer: &Linear| values(layer.bias().expect("given above"));
    // Only ĥ₁ was on, so that only its column of G learns.
    let want = [1. + rate * delta_g[0], -0.5, -2. + rate * delta_g[1], 0.25];
    assert_close("G", &values(down.weight())?, &want, 1e-6);
    assert_close("g", &bias(down)?, &[0.1 + rate * delta_g[0], -0.3 + rate * delta_g[1]], 1e-6);
    let want = [
        0.5 + rate * delta_r[0] * s0[0],
        -1. + rate * delta_r[0] * s0[1],
        2. + rate * delta_r[1] * s0[0],
        1. + rate * delta_r[1] * s0[1],
    ];
    assert_close("R", &values(up.weight())?, &want, 1e-6);
    assert_close("r", &bias(up)?, &[SURE - rate, -SURE + rate], 1e-5);
    // On top h₀ = h_k = ½: W follows (x₀ − x_k)/2 = (½, −½), its bias nothing.
    assert_close("W", &values(after.top().weight())?, &[rate * 0.5, -rate * 0.5], 1e-6);
    assert_close("c", &values(after.top().tensors()[1].1)?, &[0.], 1e-6);

    let metrics = trainer.metrics()?;
    let squared = |delta: &[f64; 2]| delta.iter().map(|d| d * d).sum::<f64>();
    assert_close(
        "generation error",
        &[metrics.generation_error.expect("all learn")],
        &[squared(&delta_g)],
        1e-6,
    );
    assert_close("recognition error", &[metrics.recognition_error.expect("all learn")], &[2.], 1e-6);
    assert_close("top error", &[metrics.top_error], &[2.], 1e-6);

    // A second step with rate 0 moves by what momentum keeps of the first.
    let still = LabelledDbnTrainConfig {
        learning_rate: Schedule::steps([(0, rate), (1, 0.)]),
        ..trainer.config().clone()
    };
    let mut trainer = LabelledDbnTrainer::new(&dbn, still, Philox::new(1, 0))?;
    trainer.step(&row, Some(&Tensor::new(&[label], &CPU)?))?;
    trainer.begin_epoch(1)?;
    trainer.step(&row, Some(&Tensor::new(&[label], &CPU)?))?;
    let moved = 1. + (1. + momentum) * rate * delta_g[0];
    let got = values(trainer.model()?.generative()[0].weight())?[0];
    assert!((got - moved).abs() < 1e-6, "momentum: {got}, want {moved}");
    Ok(())
}

#[test]
fn the_stage_of_the_top_leaves_the_layers_below_alone_and_reads_their_means() -> Result<()> {
    let up = linear(&[&[0.5, -1.], &[2., 1.]], &[0.2, -0.1])?;
    let down = linear(&[&[1., -0.5], &[-2., 0.25]], &[0.1, -0.3])?;
    let top = LabelledRbm::from_tensors(
        Tensor::zeros((1, 2), DType::F32, &CPU)?,
        Tensor::zeros(1, DType::F32, &CPU)?,
        Tensor::new(&[-SURE as f32, -SURE as f32], &CPU)?,
        Tensor::zeros((1, 2), DType::F32, &CPU)?,
        Tensor::zeros(2, DType::F32, &CPU)?,
    )?;
    let config = LabelledDbnConfig::new(&[2, 2, 1], 2);
    let dbn = LabelledDbn::from_parts(config, vec![up], vec![down], top)?;
    let training = LabelledDbnTrainConfig {
        stage: Stage::Top,
        batch: 1,
        learning_rate: Schedule::constant(1.),
        ..LabelledDbnTrainConfig::default()
    };
    let mut trainer = LabelledDbnTrainer::new(&dbn, training, Philox::new(1, 0))?;
    let row = Tensor::new(&[[0.75f32, 0.25]], &CPU)?;
    trainer.step(&row, Some(&Tensor::new(&[0u32], &CPU)?))?;
    let after = trainer.model()?;
    for (a, b) in after
        .recognition()
        .iter()
        .chain(after.generative())
        .zip(dbn.recognition().iter().chain(dbn.generative()))
    {
        assert_eq!(values(a.weight())?, values(b.weight())?);
    }
    // The features of the fantasy are off for certain, so that W = h₀ᵀ x₀ = ½ of the recognition
    // means.
    let x = values(&dbn.encode(&row)?)?;
    assert_close("W", &values(after.top().weight())?, &[0.5 * x[0], 0.5 * x[1]], 1e-6);
    let metrics = trainer.metrics()?;
    assert!(metrics.generation_error.is_none() && metrics.recognition_error.is_none());
    Ok(())
}
