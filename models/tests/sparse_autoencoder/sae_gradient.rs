//! The loss of every kind and its gradient against autograd over dense latents, in f64. Where an
//! estimator is meant, the dense form has the same one, written with detached factors.
#![allow(clippy::expect_used)]
use super::{CPU, relative_difference};
use candle::{DType, Result, Tensor, Var};
use candle_nn::VarBuilder;
use chandlery::sparse_autoencoder::sae::{Gradients, Kind, LossConfig, Moment, Penalty, Sae, SaeConfig};
use chandlery::{Model, Philox};
use chandlery_ops::core::normal;
use std::collections::HashMap;

const ROWS: usize = 13;

/// A model whose parameters are all drawn, in f64, and the same parameters as variables.
fn drawn(config: &SaeConfig, unit: bool) -> Result<(Sae, HashMap<String, Var>)> {
    let first = Sae::init(config.clone(), Philox::new(1, 0), &CPU)?;
    let mut variables = HashMap::new();
    for (i, (name, t)) in first.tensors().into_iter().enumerate() {
        let mut drawn = (normal(t.shape(), &CPU, Philox::new(2, i as u64))? * 0.4)?.to_dtype(DType::F64)?;
        match &name[..] {
            // The thresholds of JumpReLU are above 0, some latents far and some near.
            "threshold" => drawn = drawn.abs()?,
            "W_dec" if unit => drawn = drawn.broadcast_div(&drawn.sqr()?.sum_keepdim(1)?.sqrt()?)?,
            _ => {}
        }
        variables.insert(name, Var::from_tensor(&drawn)?);
    }
    let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_tensor().detach())).collect();
    let vb = VarBuilder::from_tensors(tensors, DType::F64, &CPU);
    Ok((Sae::new(config.clone(), vb)?, variables))
}

/// What of a matrix `chosen` names, as a matrix of ones.
fn mask(values: &Tensor, chosen: impl Fn(&[Vec<f64>]) -> Vec<Vec<usize>>) -> Result<Tensor> {
    let rows = values.to_vec2::<f64>()?;
    let mut ones = vec![vec![0f64; values.dim(1)?]; rows.len()];
    for (row, chosen) in ones.iter_mut().zip(chosen(&rows)) {
        chosen.into_iter().for_each(|j| row[j] = 1.);
    }
    Tensor::new(ones, &CPU)
}

/// The `k` largest of each row, above 0.
fn largest(values: &Tensor, k: usize, among: Option<&[u32]>) -> Result<Tensor> {
    mask(values, |rows| {
        let of = |row: &Vec<f64>| {
            let mut order: Vec<usize> = (0..row.len()).filter(|&j| row[j] > 0.).collect();
            order.retain(|&j| among.is_none_or(|among| among.contains(&(j as u32))));
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            order.truncate(k);
            order
        };
        rows.iter().map(of).collect()
    })
}

/// The `k · batch` largest of all rows, above 0.
fn largest_of_all(values: &Tensor, k: usize) -> Result<Tensor> {
    let (m, n) = values.dims2()?;
    largest(&values.reshape((1, m * n))?, k * m, None)?.reshape((m, n))
}

/// Mean over rows of the squared length.
fn mean_square(t: &Tensor) -> Result<Tensor> {
    t.sqr()?.sum_all()? / t.dim(0)? as f64
}

/// The loss by dense latents.
fn plain(
    config: &SaeConfig,
    loss: &LossConfig,
    moment: Moment,
    of: &HashMap<String, Var>,
    [x, y]: [&Tensor; 2],
    dead: Option<&[u32]>,
) -> Result<Tensor> {
    let get = |name: &str| of[name].as_tensor();
    let (decoder, bias) = (get("W_dec"), get("b_dec"));
    let read = if config.subtract_bias { x.broadcast_sub(bias)? } else { x.clone() };
    let product = read.matmul(&get("encoder.weight").t()?)?;
    let pi = product.broadcast_add(get("encoder.bias"))?;
    let skipped = |detached: bool| -> Result<Tensor> {
        let (bias, skip) = (bias.clone(), of.get("W_skip").map(|skip| skip.as_tensor().clone()));
        let (bias, skip) =
            if detached { (bias.detach(), skip.map(|skip| skip.detach())) } else { (bias, skip) };
        match skip {
            Some(skip) => x.matmul(&skip.t()?)?.broadcast_add(&bias),
            None => bias.broadcast_as(y.shape()),
        }
    };
    let error = |z: &Tensor| (z.matmul(decoder)? + skipped(false)?)? - y;
    let lengths = match loss.unit_atoms {
        true => Tensor::ones(config.n_latents, DType::F64, &CPU)?,
        false => decoder.sqr()?.sum(1)?.sqrt()?,
    };
    let penalty = |t: Tensor| (t.sum_all()? / x.dim(0)? as f64)? * moment.sparsity;
    let (z, mut value) = match &config.kind {
        Kind::Relu => {
            let z = (&pi * pi.gt(0f64)?.to_dtype(DType::F64)?)?;
            let value = (mean_square(&error(&z)?)? + penalty(z.broadcast_mul(&lengths)?)?)?;
            (z, value)
        }
        Kind::TopK { .. } => {
            let z = (&pi * largest(&pi, moment.k, None)?)?;
            let mut value = mean_square(&error(&z)?)?;
            if loss.multi_top_k {
                let more = (&pi * largest(&pi, 4 * moment.k, None)?)?;
                value = (value + (mean_square(&error(&more)?)? / 8.)?)?;
            }
            (z, value)
        }
        Kind::BatchTopK { .. } => {
            let z = (&pi * largest_of_all(&pi, moment.k)?)?;
            let value = mean_square(&error(&z)?)?;
            (z, value)
        }
        Kind::Matryoshka { prefixes, .. } => {
            let z = (&pi * largest_of_all(&pi, moment.k)?)?;
            let mut value = Tensor::new(0f64, &CPU)?;
            for &end in prefixes {
                let z = z.narrow(1, 0, end)?;
                let error = ((z.matmul(&decoder.narrow(0, 0, end)?)? + skipped(false)?)? - y)?;
                value = (value + (mean_square(&error)? / prefixes.len() as f64)?)?;
            }
            (z, value)
        }
        Kind::JumpRelu => {
            let (theta, width) = (get("threshold"), loss.bandwidth);
            let on = pi.broadcast_gt(theta)?.to_dtype(DType::F64)?;
            let window = (pi.broadcast_sub(theta)?.abs()?.lt(width / 2.)?.to_dtype(DType::F64)? / width)?;
            let moves = theta.broadcast_sub(&theta.detach())?;
            // z with the gradient −θ/ε K at θ, and H with −1/ε K.
            let jump = window.broadcast_mul(theta)?.detach();
            let z = ((&pi * &on)? - jump.broadcast_mul(&moves)?)?;
            let step = (on - window.detach().broadcast_mul(&moves)?)?;
            let term = match loss.penalty {
                Penalty::Step => step,
                Penalty::Tanh { scale } => (z.broadcast_mul(&lengths)? * scale)?.tanh()?,
            };
            let value = (mean_square(&error(&z)?)? + penalty(term)?)?;
            (z, value)
        }
        Kind::Gated => {
            let open = pi.gt(0f64)?.to_dtype(DType::F64)?;
            let magnitude = product.broadcast_mul(&get("r_mag").exp()?)?.broadcast_add(get("b_mag"))?;
            let z = (&open * (&magnitude * magnitude.gt(0f64)?.to_dtype(DType::F64)?)?)?;
            let gate = (&pi * open)?;
            let frozen = ((gate.matmul(&decoder.detach())? + skipped(true)?)? - y)?;
            let value = (mean_square(&error(&z)?)? + mean_square(&frozen)?)?;
            let value = (value + penalty(gate.broadcast_mul(&lengths)?)?)?;
            (z, value)
        }
    };
    if let Some(dead) = dead {
        let left = error(&z)?.neg()?.detach();
        let weight = loss.aux_weight * (dead.len() as f64 / loss.aux_k as f64).min(1.);
        let z = (&pi * largest(&pi, loss.aux_k, Some(dead))?)?;
        value = (value + (mean_square(&(left - z.matmul(decoder)?)?)? * weight)?)?;
    }
    Ok(value)
}

fn flat(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

fn agrees(config: &SaeConfig, loss: &LossConfig, dead: Option<&[u32]>) -> Result<()> {
    let what = format!("{config:?} {loss:?} {dead:?}");
    let moment = Moment { sparsity: 0.3, k: config.kind.k().unwrap_or(0) };
    let (sae, variables) = drawn(config, loss.unit_atoms)?;
    let x = normal((ROWS, config.n_visible), &CPU, Philox::new(4, 0))?.to_dtype(DType::F64)?;
    let y = match config.n_targets {
        Some(n) => normal((ROWS, n), &CPU, Philox::new(4, 1))?.to_dtype(DType::F64)?,
        None => x.clone(),
    };
    let list = dead.map(|dead| Tensor::new(dead, &CPU)).transpose()?;
    let got = Gradients::of(&sae, loss, moment, [&x, &y], list.as_ref(), None)?;
    let want = plain(config, loss, moment, &variables, [&x, &y], dead)?;
    let (value, wanted) = (got.loss.to_scalar::<f64>()?, want.to_scalar::<f64>()?);
    assert!((value - wanted).abs() < 1e-12 * wanted.abs(), "{what}: {value} and {wanted}");

    let autograd = want.backward()?;
    let (encoder, mut all) = {
        let (encoder, decoder) = got.weights(&sae)?;
        (encoder, vec![("W_dec", decoder)])
    };
    all.push(("encoder.weight", encoder));
    all.extend(got.others.iter().map(|(name, t)| (*name, t.clone())));
    // The threshold of inference has no gradient.
    let trained = variables.keys().filter(|name| *name != "threshold" || config.kind == Kind::JumpRelu);
    assert_eq!(all.len(), trained.count(), "{what}: {all:?}");
    let mut n_moved = 0;
    for (name, gradient) in all {
        let variable = variables[name].as_tensor();
        let mut want = autograd.get(variable).cloned().unwrap_or(variable.zeros_like()?);
        if name == "W_dec" && loss.unit_atoms {
            let along = (&want * variable)?.sum_keepdim(1)?;
            want = (want - variable.broadcast_mul(&along)?)?;
        }
        let (got, want) = (flat(&gradient)?, flat(&want)?);
        n_moved += usize::from(want.iter().any(|g| *g != 0.));
        let apart = relative_difference(&got, &want);
        assert!(apart < 1e-11, "{name} of {what}: {apart}");
    }
    assert!(n_moved >= 4 || !config.subtract_bias, "{what}: {n_moved} gradients are not 0");
    // Where rows differ in what fires, counts are those of the dense codes.
    assert_eq!(got.fired.dims(), [config.n_latents]);
    Ok(())
}

/// Values, latents.
const SIZES: (usize, usize) = (7, 40);

#[test]
fn gradients_of_all_kinds_are_those_of_autograd() -> Result<()> {
    let (d, n) = SIZES;
    let kinds = [
        Kind::Relu,
        Kind::TopK { k: 5 },
        Kind::BatchTopK { k: 5 },
        Kind::JumpRelu,
        Kind::Gated,
        Kind::Matryoshka { k: 5, prefixes: vec![3, 10, 11, n] },
    ];
    // A window that some pre-activations are in, also below their threshold.
    let usual = LossConfig { bandwidth: 0.4, aux_k: 0, ..LossConfig::default() };
    let tanh = Penalty::Tanh { scale: 1.5 };
    let dead: Vec<u32> = (0..n as u32).filter(|j| j % 3 == 1).collect();
    for kind in kinds {
        for unit_atoms in [true, false] {
            let loss = LossConfig { unit_atoms, ..usual };
            let config = SaeConfig::new(d, n, kind.clone());
            agrees(&config, &loss, None)?;
            agrees(&config, &LossConfig { penalty: tanh, ..loss }, None)?;
            agrees(&SaeConfig { skip: true, ..config.clone() }, &loss, None)?;
            agrees(&SaeConfig { subtract_bias: false, ..config.clone() }, &loss, None)?;
            let transcoder = SaeConfig { skip: true, ..SaeConfig::transcoder(d, n, 9, kind.clone()) };
            agrees(&transcoder, &loss, None)?;
            // More and fewer dead latents than AuxK takes.
            agrees(&config, &LossConfig { aux_k: 4, aux_weight: 0.5, ..loss }, Some(&dead))?;
            agrees(&config, &LossConfig { aux_k: 20, aux_weight: 0.5, ..loss }, Some(&dead))?;
        }
    }
    let multi = LossConfig { multi_top_k: true, ..usual };
    agrees(&SaeConfig::new(d, n, Kind::TopK { k: 3 }), &multi, None)?;
    agrees(&SaeConfig::new(d, n, Kind::TopK { k: 3 }), &LossConfig { aux_k: 4, ..multi }, Some(&dead))
}

#[test]
fn the_least_that_was_chosen_of_a_batch_is_given_and_latents_that_fired_are_counted() -> Result<()> {
    let (d, n) = SIZES;
    let config = SaeConfig::new(d, n, Kind::BatchTopK { k: 5 });
    let (sae, _) = drawn(&config, true)?;
    let x = normal((ROWS, d), &CPU, Philox::new(4, 0))?.to_dtype(DType::F64)?;
    let loss = LossConfig { aux_k: 0, ..LossConfig::default() };
    let got = Gradients::of(&sae, &loss, Moment { sparsity: 0., k: 5 }, [&x, &x], None, None)?;
    let bias = |name| sae.parameter_named(name).expect("a parameter");
    let read = x.broadcast_sub(bias("b_dec"))?;
    let pi = read.matmul(&sae.encoder().t()?)?.broadcast_add(bias("encoder.bias"))?;
    let chosen = largest_of_all(&pi, 5)?;
    let mut values: Vec<f64> = flat(&(&pi * &chosen)?)?.into_iter().filter(|v| *v > 0.).collect();
    values.sort_by(f64::total_cmp);
    assert_eq!(flat(&got.cut.expect("a threshold"))?, values[..1]);
    assert_eq!(flat(&got.fired)?, flat(&chosen.sum(0)?)?);
    Ok(())
}
