//! The updates against candle's automatic differentiation and against differences of the loss.
use super::{awake, grey, off, values};
use candle::{DType, Result, Tensor, Var};
use chandlery::dae::reference::Serial;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::feedforward::{Activation, ReconstructionLoss};
use chandlery::{MinibatchTrainer, Model, Philox, Trainer};
use chandlery_ops::layers::{Corruption, corrupt};

/// `J` of the module's equations by candle's ops in f64, with the parameters in the order of
/// [`Dae::tensors`].
fn loss(config: &DaeConfig, parameters: &[Tensor], corrupted: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (weight, bias, visible_bias) = (&parameters[0], &parameters[1], &parameters[2]);
    let apply = |f: Activation, x: &Tensor| chandlery_ops::layers::Activation::from(f).apply(x);
    let y = apply(config.hidden, &corrupted.matmul(&weight.t()?)?.broadcast_add(bias)?)?;
    let decoder = match parameters.get(3) {
        Some(decoder) => decoder.t()?,
        None => weight.clone(),
    };
    let z = apply(config.output, &y.matmul(&decoder)?.broadcast_add(visible_bias)?)?;
    let sum = match config.loss {
        ReconstructionLoss::SquaredError => ((&z - x)?.sqr()? * 0.5)?.sum_all()?,
        ReconstructionLoss::CrossEntropy => {
            let (not_x, not_z) = (x.affine(-1., 1.)?, z.affine(-1., 1.)?);
            ((x * z.log()?)? + (not_x * not_z.log()?)?)?.sum_all()?.neg()?
        }
    };
    sum / x.dim(0)? as f64
}

/// `−∂J/∂θ` of each parameter by automatic differentiation.
fn descent(dae: &Dae, corrupted: &Tensor, x: &Tensor) -> Result<Vec<Vec<f64>>> {
    let vars: Vec<Var> = dae
        .tensors()
        .into_iter()
        .map(|(_, t)| Var::from_tensor(&t.to_dtype(DType::F64)?))
        .collect::<Result<_>>()?;
    let parameters: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let wide = |t: &Tensor| t.to_dtype(DType::F64);
    let gradients = loss(dae.config(), &parameters, &wide(corrupted)?, &wide(x)?)?.backward()?;
    let of = |v: &Var| values(&gradients.get(v).expect("every parameter counts").neg()?);
    vars.iter().map(of).collect()
}

fn noisy(x: &Tensor) -> Result<Tensor> {
    corrupt(x, Corruption::SaltAndPepper(0.3), Philox::new(5, 0))
}

#[test]
fn the_serial_update_is_the_gradient_of_the_cross_entropy() -> Result<()> {
    for (n_visible, n_hidden, batch) in [(1, 1, 1), (7, 4, 1), (7, 4, 5), (3, 9, 16)] {
        let dae = awake(DaeConfig::new(n_visible, n_hidden), 1)?;
        let x = grey(batch, n_visible)?;
        let corrupted = noisy(&x)?;
        let before = Serial::<f64>::of(&dae)?;
        let mut after = before.clone();
        after.step(&values(&x)?, &values(&corrupted)?, 1.);
        let moved = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
        let want = descent(&dae, &corrupted, &x)?;
        let got = [
            moved(&after.weight, &before.weight),
            moved(&after.bias, &before.bias),
            moved(&after.visible_bias, &before.visible_bias),
        ];
        for (got, want) in got.iter().zip(&want) {
            // Sums of at most 16 · 7 products in f64.
            let off = off(got, want);
            assert!(off < 1e-13, "{n_visible}-{n_hidden}, {batch} rows: {off:e}");
        }
    }
    Ok(())
}

#[test]
fn the_serial_update_is_the_difference_of_the_loss() -> Result<()> {
    let (n_visible, n_hidden, batch) = (6, 4, 3);
    let dae = awake(DaeConfig::new(n_visible, n_hidden), 2)?;
    let x = values(&grey(batch, n_visible)?)?;
    let corrupted = values(&noisy(&grey(batch, n_visible)?)?)?;
    let start = Serial::<f64>::of(&dae)?;
    let loss = |of: &mut Serial<f64>| -> f64 {
        let z = of.denoise(&corrupted);
        let row = |(x, z): (&f64, &f64)| -x * z.ln() - (1. - x) * (1. - z).ln();
        x.iter().zip(z).map(row).sum::<f64>() / batch as f64
    };
    let mut stepped = start.clone();
    stepped.step(&x, &corrupted, 1.);
    // Central differences are off by about h² and ε/h.
    const H: f64 = 1e-5;
    let compare = |pick: fn(&mut Serial<f64>) -> &mut Vec<f64>| {
        let n = pick(&mut start.clone()).len();
        let (mut got, mut want) = (vec![], vec![]);
        for i in 0..n {
            let [up, down] = [H, -H].map(|h| {
                let mut moved = start.clone();
                pick(&mut moved)[i] += h;
                loss(&mut moved)
            });
            want.push((down - up) / (2. * H));
            got.push(pick(&mut stepped.clone())[i] - pick(&mut start.clone())[i]);
        }
        let off = off(&got, &want);
        assert!(off < 1e-9, "{off:e}");
    };
    compare(|s| &mut s.weight);
    compare(|s| &mut s.bias);
    compare(|s| &mut s.visible_bias);
    Ok(())
}

/// Every form of network of this size that has a gradient everywhere in reach.
fn forms(n_visible: usize, n_hidden: usize) -> Vec<DaeConfig> {
    let mut forms = vec![];
    for tied in [true, false] {
        for hidden in [Activation::Sigmoid, Activation::Tanh, Activation::Relu, Activation::Identity] {
            for (output, loss) in [
                (Activation::Sigmoid, ReconstructionLoss::CrossEntropy),
                (Activation::Sigmoid, ReconstructionLoss::SquaredError),
                (Activation::Identity, ReconstructionLoss::SquaredError),
            ] {
                forms.push(DaeConfig { tied, hidden, output, loss, ..DaeConfig::new(n_visible, n_hidden) });
            }
        }
    }
    forms
}

#[test]
fn a_step_goes_down_the_gradient_in_every_form_of_the_network() -> Result<()> {
    // Steps add units to layers of 64 and more, where they are not one op.
    for config in [(37, 19), (67, 77)].into_iter().flat_map(|(v, h)| forms(v, h)) {
        for (batch, momentum) in [(1, 0.), (3, 0.5), (8, 0.)] {
            let dae = awake(config.clone(), 3)?;
            let x = grey(batch, config.n_visible)?;
            let training = DaeTrainConfig {
                batch,
                learning_rate: 0.25.into(),
                momentum: momentum.into(),
                ..DaeTrainConfig::default()
            };
            let draws = Philox { offset: 40, ..Philox::new(8, 1) };
            let corrupted = corrupt(&x, training.corruption, draws)?;
            let want = descent(&dae, &corrupted, &x)?;
            let mut trainer = DaeTrainer::new(&dae, training, draws)?;
            trainer.step(&x, None)?;
            let after = trainer.model()?;
            for (((name, before), (_, after)), want) in
                dae.tensors().into_iter().zip(after.tensors()).zip(&want)
            {
                let got = values(&((after - before)? / 0.25)?)?;
                // Parameters are of the order of the step, so that f32 leaves 6 digits of it.
                let off = off(&got, want);
                assert!(off < 2e-5, "{config:?}, batch {batch}: {name} is {off:e} off");
            }
        }
    }
    Ok(())
}

#[test]
fn momentum_and_decay_are_those_of_the_equations() -> Result<()> {
    let (rate, momentum, decay, batch) = (0.2, 0.7, 0.05, 4);
    for (tied, (v, h)) in [true, false].into_iter().flat_map(|tied| [(11, 6), (69, 66)].map(|n| (tied, n))) {
        let dae = awake(DaeConfig { tied, ..DaeConfig::new(v, h) }, 4)?;
        let training = DaeTrainConfig {
            batch,
            learning_rate: rate.into(),
            momentum: momentum.into(),
            weight_decay: decay,
            ..DaeTrainConfig::default()
        };
        let x = grey(batch, v)?;
        let mut trainer = DaeTrainer::new(&dae, training.clone(), Philox::new(6, 0))?;
        let mut velocity: Option<Vec<Vec<f64>>> = None;
        for step in 0..4u64 {
            let before = trainer.model()?;
            // Four rows use as many blocks as a row has values.
            let draws = Philox { offset: v as u64 * step, ..Philox::new(6, 0) };
            let descent = descent(&before, &corrupt(&x, training.corruption, draws)?, &x)?;
            trainer.step(&x, None)?;
            let after = trainer.model()?;
            let old = velocity.unwrap_or_else(|| descent.iter().map(|d| vec![0.; d.len()]).collect());
            let mut now = vec![];
            for (i, ((name, was), (_, is))) in before.tensors().into_iter().zip(after.tensors()).enumerate() {
                let (was, is) = (values(&was)?, values(&is)?);
                let decay = if name.ends_with("weight") { decay } else { 0. };
                let mut v = vec![];
                for j in 0..was.len() {
                    v.push(momentum * old[i][j] + rate * (descent[i][j] - decay * was[j]));
                }
                let got: Vec<f64> = is.iter().zip(&was).map(|(is, was)| is - was).collect();
                let off = off(&got, &v);
                assert!(off < 5e-5, "step {step}: {name} is {off:e} off");
                now.push(v);
            }
            velocity = Some(now);
        }
    }
    Ok(())
}
