//! The cost and its gradient against numerical differences, autograd, an independent program and
//! plain loops.
use super::{CPU, SIZES, cost, model, relative_difference, rows, theta};
use candle::{DType, Result, Tensor, Var};
use chandlery::sparse_autoencoder::{
    Cost, CostConfig, Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderTrainConfig,
    SparseAutoencoderTrainer, serial::serial_cost,
};
use chandlery::{MinibatchTrainer, Philox, Trainer};

const DECODERS: [Decoder; 2] = [Decoder::Sigmoid, Decoder::Linear];

fn f64s(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.to_vec1()
}

#[test]
fn the_gradient_is_that_of_numerical_differences_to_nine_digits() -> Result<()> {
    for decoder in DECODERS {
        for (v, h, m) in [(4, 3, 5), (7, 11, 30)] {
            let config = model(v, h, decoder);
            let cost = cost(&config, &rows(m, v, DType::F64)?, None)?;
            let at = f64s(&theta(&config, DType::F64)?)?;
            let value = |i: usize, step: f64| -> Result<f64> {
                let mut at = at.clone();
                at[i] += step;
                Ok(cost.parts(&Tensor::new(at, &CPU)?)?.cost)
            };
            // Differences of fourth order: with steps of 1e-3 the formula and rounding are off by
            // some 1e-12.
            const STEP: f64 = 1e-3;
            let difference = |i: usize| -> Result<f64> {
                let near = value(i, STEP)? - value(i, -STEP)?;
                let far = value(i, 2. * STEP)? - value(i, -2. * STEP)?;
                Ok((8. * near - far) / (12. * STEP))
            };
            let numeric = (0..at.len()).map(difference).collect::<Result<Vec<_>>>()?;
            let gradient = f64s(&cost.evaluate(&Tensor::new(at, &CPU)?)?.1)?;
            let apart = relative_difference(&gradient, &numeric);
            assert!(apart < 1e-9, "{decoder:?} {v}-{h}-{v}: {apart}");
        }
    }
    Ok(())
}

/// The cost written down with candle's differentiable ops.
fn plain(
    config: &SparseAutoencoderConfig,
    settings: &CostConfig,
    theta: &Tensor,
    x: &Tensor,
) -> Result<Tensor> {
    let (v, h, n) = (config.n_visible, config.n_hidden, config.n_visible * config.n_hidden);
    let sigmoid = |z: Tensor| (z.neg()?.exp()? + 1.)?.recip();
    let weight = theta.narrow(0, 0, n)?.reshape((h, v))?;
    let decoder = theta.narrow(0, n, n)?.reshape((v, h))?;
    let a = sigmoid(x.matmul(&weight.t()?)?.broadcast_add(&theta.narrow(0, 2 * n, h)?)?)?;
    let z = a.matmul(&decoder.t()?)?.broadcast_add(&theta.narrow(0, 2 * n + h, v)?)?;
    let out = if config.decoder == Decoder::Sigmoid { sigmoid(z)? } else { z };
    let squares = ((out - x)?.sqr()?.sum_all()? * (0.5 / x.dim(0)? as f64))?;
    let decay = (theta.narrow(0, 0, 2 * n)?.sqr()?.sum_all()? * (0.5 * settings.weight_decay))?;
    let (mean, rho) = (a.mean(0)?, settings.sparsity_target);
    let low = (mean.recip()? * rho)?.log()? * rho;
    let high = ((mean.affine(-1., 1.)?.recip()? * (1. - rho))?.log()? * (1. - rho))?;
    (squares + decay)? + ((low? + high)?.sum_all()? * settings.sparsity_weight)?
}

#[test]
fn cost_and_gradient_are_those_of_autograd() -> Result<()> {
    for decoder in DECODERS {
        for (v, h, m) in SIZES {
            let config = model(v, h, decoder);
            let x = rows(m, v, DType::F64)?;
            let cost = cost(&config, &x, None)?;
            let var = Var::from_tensor(&theta(&config, DType::F64)?)?;
            let want = plain(&config, cost.config(), &var, &x)?;
            let grads = want.backward()?;
            let Some(want_gradient) = grads.get(&var) else { panic!("no gradient") };
            let (value, gradient) = cost.evaluate(&var.as_detached_tensor())?;
            let (value, want) = (value.to_scalar::<f64>()?, want.to_scalar::<f64>()?);
            assert!((value - want).abs() < 1e-12 * want, "{value}, want {want}");
            let apart = relative_difference(&f64s(&gradient)?, &f64s(want_gradient)?);
            assert!(apart < 1e-12, "{decoder:?} {v}-{h}-{v}: {apart}");
        }
    }
    Ok(())
}

#[test]
fn f32_and_f64_follow_the_serial_loops_at_awkward_sizes() -> Result<()> {
    for decoder in DECODERS {
        for (v, h, m) in SIZES {
            let config = model(v, h, decoder);
            for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
                let x = rows(m, v, dtype)?;
                let (cost, at) = (cost(&config, &x, None)?, theta(&config, dtype)?);
                let (value, gradient) = cost.evaluate(&at)?;
                let (x, at) = (f64s(&x.flatten_all()?)?, f64s(&at)?);
                let Some((want, want_gradient)) = serial_cost(&config, cost.config(), &at, &x) else {
                    panic!("the lengths fit")
                };
                let value = value.to_scalar::<f64>()?;
                assert!((value - want).abs() <= tolerance * want, "{value}, want {want}");
                let apart = relative_difference(&f64s(&gradient)?, &want_gradient);
                assert!(apart <= tolerance, "{decoder:?} {v}-{h}-{v} {dtype:?}: {apart}");
                // The loops themselves in f32.
                let narrow = |x: &[f64]| -> Vec<f32> { x.iter().map(|&x| x as f32).collect() };
                let Some((_, in_f32)) = serial_cost(&config, cost.config(), &narrow(&at), &narrow(&x)) else {
                    panic!("the lengths fit")
                };
                let in_f32: Vec<f64> = in_f32.into_iter().map(f64::from).collect();
                assert!(relative_difference(&in_f32, &want_gradient) < 1e-5);
            }
        }
    }
    Ok(())
}

/// A network that one op does not take on any processor.
const LARGE: (usize, usize) = (260, 131);

#[test]
fn evaluations_of_large_networks_in_turn_follow_f64_and_leave_earlier_results_as_they_are() -> Result<()> {
    let (v, h) = LARGE;
    for decoder in DECODERS {
        for m in [1, 45] {
            let config = model(v, h, decoder);
            let (x, x64) = (rows(m, v, DType::F32)?, rows(m, v, DType::F64)?);
            let (narrow, wide) = (cost(&config, &x, None)?, cost(&config, &x64, None)?);
            let mut made = vec![];
            for scale in [0.1, 0.3, -0.2, 0.] {
                let at = (theta(&config, DType::F64)? * scale)?;
                let (value, gradient) = narrow.evaluate(&at.to_dtype(DType::F32)?)?;
                let (want, want_gradient) = wide.evaluate(&at)?;
                let want = want.to_scalar::<f64>()?;
                let (value_now, gradient_now) = (value.to_scalar::<f64>()?, f64s(&gradient)?);
                assert!((value_now - want).abs() <= 1e-6 * want, "{value_now}, want {want}");
                let apart = relative_difference(&gradient_now, &f64s(&want_gradient)?);
                assert!(apart <= 1e-5, "{decoder:?}, {m} rows, scale {scale}: {apart}");
                made.push((value, gradient, value_now, gradient_now));
            }
            for (value, gradient, value_then, gradient_then) in made {
                assert_eq!((value.to_scalar::<f64>()?, f64s(&gradient)?), (value_then, gradient_then));
            }
            let at = theta(&config, DType::F32)?;
            let (got, want) = (narrow.parts(&at)?, wide.parts(&at.to_dtype(DType::F64)?)?);
            assert_eq!(got.cost, narrow.evaluate(&at)?.0.to_scalar::<f64>()?);
            let terms = [
                (got.squared_error, want.squared_error),
                (got.decay, want.decay),
                (got.divergence, want.divergence),
                (got.cost, want.cost),
            ];
            for (got, want) in terms {
                assert!((got - want).abs() <= 1e-5 * want, "{decoder:?}, {m} rows: {got}, want {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn minibatches_are_those_of_the_step_and_stay_as_they_are() -> Result<()> {
    const BATCH: usize = 9;
    for (v, h) in [(17, 33), LARGE] {
        let start = SparseAutoencoder::init(model(v, h, Decoder::Sigmoid), Philox::new(8, 0), &CPU)?;
        let all = rows(3 * BATCH + 4, v, DType::F32)?;
        let kept = all.copy()?;
        let config = SparseAutoencoderTrainConfig { batch: BATCH, ..SparseAutoencoderTrainConfig::default() };
        let mut trainer = SparseAutoencoderTrainer::new(&start, config.clone())?;
        // Fewer rows in between.
        for (at, n) in [(0, BATCH), (BATCH, BATCH), (3 * BATCH, 4), (2 * BATCH, BATCH), (0, BATCH)] {
            let minibatch = all.narrow(0, at, n)?;
            let of_step = Cost::new(start.config().clone(), config.cost, &minibatch, None, DType::F32, &CPU)?;
            let (want, _) = of_step.evaluate(&trainer.model()?.flat()?)?;
            trainer.step(&minibatch, None)?;
            assert_eq!(trainer.metrics()?.cost, want.to_scalar::<f64>()?, "{v}-{h}, rows from {at} on");
        }
        assert_eq!(all.to_vec2::<f32>()?, kept.to_vec2::<f32>()?);
    }
    Ok(())
}

#[test]
fn chunks_of_any_size_give_what_all_rows_at_once_give() -> Result<()> {
    for decoder in DECODERS {
        let config = model(17, 33, decoder);
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6)] {
            let (x, at) = (rows(101, 17, dtype)?, theta(&config, dtype)?);
            let (value, gradient) = cost(&config, &x, None)?.evaluate(&at)?;
            let (value, gradient) = (value.to_scalar::<f64>()?, f64s(&gradient)?);
            for chunk in [1, 10, 50, 100, 101, 5000] {
                let (got, got_gradient) = cost(&config, &x, Some(chunk))?.evaluate(&at)?;
                let got = got.to_scalar::<f64>()?;
                assert!((got - value).abs() <= tolerance * value, "{chunk}: {got}, want {value}");
                let apart = relative_difference(&f64s(&got_gradient)?, &gradient);
                assert!(apart <= tolerance, "{decoder:?} {dtype:?} in chunks of {chunk}: {apart}");
            }
        }
    }
    Ok(())
}

/// A case of an independent fp64 evaluation.
struct Golden {
    sizes: (usize, usize, usize),
    /// `λ` and `β`; `ρ` is 0.01.
    settings: (f64, f64),
    cost: f64,
    squared: f64,
    decay: f64,
    divergence: f64,
    norm: f64,
    first: [f64; 4],
    last: [f64; 4],
}

/// Made by an independent program in fp64, with matrices column by column:
///
/// ```python
/// theta = np.sin(.7 * (np.arange(n) + 1)) * np.sqrt(6 / (h + v + 1))   # W, W', b, c, each matrix column by column
/// X = .1 + .8 * (.5 + .5 * np.cos(.37 * np.arange(v * m)))             # a row of v values after the other
/// ```
#[test]
fn cost_and_gradient_are_those_of_an_independent_program() -> Result<()> {
    for golden in GOLDEN {
        let ((v, h, m), n) = (golden.sizes, golden.sizes.0 * golden.sizes.1);
        let config = SparseAutoencoderConfig::new(v, h);
        let (weight_decay, sparsity_weight) = golden.settings;
        let settings = CostConfig { weight_decay, sparsity_weight, ..CostConfig::default() };
        let scale = (6. / (h + v + 1) as f64).sqrt();
        let theirs: Vec<f64> =
            (0..config.n_parameters()).map(|i| (0.7 * (i + 1) as f64).sin() * scale).collect();
        let x: Vec<f64> = (0..v * m).map(|k| 0.1 + 0.8 * (0.5 + 0.5 * (0.37 * k as f64).cos())).collect();
        // Where the entries of theirs are in ours.
        let place = |i: usize| match i {
            i if i < n => (i % h) * v + i / h,
            i if i < 2 * n => n + (i - n) % v * h + (i - n) / v,
            i => i,
        };
        let mut ours = vec![0.; theirs.len()];
        theirs.iter().enumerate().for_each(|(i, &t)| ours[place(i)] = t);
        let cost = Cost::new(config, settings, &Tensor::from_vec(x, (m, v), &CPU)?, None, DType::F64, &CPU)?;
        let at = Tensor::new(ours, &CPU)?;
        let parts = cost.parts(&at)?;
        let gradient = f64s(&cost.evaluate(&at)?.1)?;
        let close = |what: &str, got: f64, want: f64| {
            assert!((got - want).abs() <= 1e-13 * want.abs().max(1e-3), "{what}: {got}, want {want}");
        };
        close("cost", parts.cost, golden.cost);
        close("squared error", parts.squared_error, golden.squared);
        close("decay", parts.decay, golden.decay);
        close("divergence", parts.divergence, golden.divergence);
        close("norm", gradient.iter().map(|g| g * g).sum::<f64>().sqrt(), golden.norm);
        for i in 0..4 {
            close("first entries", gradient[place(i)], golden.first[i]);
            close("last entries", gradient[place(theirs.len() - 4 + i)], golden.last[i]);
        }
    }
    Ok(())
}

const GOLDEN: [Golden; 6] = [
    Golden {
        sizes: (4, 3, 5),
        settings: (0.0, 0.0),
        cost: 0.19651001011605265,
        squared: 0.19651001011605265,
        decay: 0.0,
        divergence: 1.9001132492441604,
        norm: 0.06744546997208913,
        first: [0.005422657091963759, -0.005141256936802301, 0.0038211221645217167, 0.007008876174554489],
        last: [0.030199752742159254, 0.03114681596349116, 0.017274318861722964, -0.016599713645599094],
    },
    Golden {
        sizes: (4, 3, 5),
        settings: (0.0001, 0.0),
        cost: 0.19696567884266447,
        squared: 0.19651001011605265,
        decay: 0.00045566872661180615,
        divergence: 1.9001132492441604,
        norm: 0.06746966386739844,
        first: [0.005478447980235269, -0.005055914486770049, 0.0038958782885519768, 0.007037886999354666],
        last: [0.030199752742159254, 0.03114681596349116, 0.017274318861722964, -0.016599713645599094],
    },
    Golden {
        sizes: (4, 3, 5),
        settings: (0.0001, 3.0),
        cost: 5.897305426575145,
        squared: 0.19651001011605265,
        decay: 0.00045566872661180615,
        divergence: 1.9001132492441604,
        norm: 3.76044912355637,
        first: [0.621792294294313, 0.7929314404784819, 0.9938240893595538, 0.6229534049701168],
        last: [0.030199752742159254, 0.03114681596349116, 0.017274318861722964, -0.016599713645599094],
    },
    Golden {
        sizes: (64, 25, 10),
        settings: (0.0, 0.0),
        cost: 2.810754966822493,
        squared: 2.810754966822493,
        decay: 0.0,
        divergence: 16.150330565629034,
        norm: 1.0293420509790596,
        first: [0.032798377502041946, 0.024865677729173124, 0.00112202815551735, -0.023744038515682027],
        last: [0.02087034265999018, 0.03565537744920787, 0.03753796077185243, 0.02655118821763334],
    },
    Golden {
        sizes: (64, 25, 10),
        settings: (0.0001, 0.0),
        cost: 2.8160882156295313,
        squared: 2.810754966822493,
        decay: 0.005333248807038413,
        divergence: 16.150330565629034,
        norm: 1.02935972952263,
        first: [0.03281501113120197, 0.02489112193179159, 0.001144316125526159, -0.023735389158837154],
        last: [0.02087034265999018, 0.03565537744920787, 0.03753796077185243, 0.02655118821763334],
    },
    Golden {
        sizes: (64, 25, 10),
        settings: (0.0001, 3.0),
        cost: 51.267079912516635,
        squared: 2.810754966822493,
        decay: 0.005333248807038413,
        divergence: 16.150330565629034,
        norm: 30.687252363868595,
        first: [0.7174946108876057, 0.7137773033358772, 0.7478099663959313, 0.8077775065383],
        last: [0.02087034265999018, 0.03565537744920787, 0.03753796077185243, 0.02655118821763334],
    },
];

#[test]
fn features_that_are_always_off_or_on_leave_cost_and_gradient_finite() -> Result<()> {
    for decoder in DECODERS {
        for (v, h, m) in [(4, 3, 5), (64, 25, 101)] {
            let config = model(v, h, decoder);
            let mut at = f64s(&theta(&config, DType::F64)?)?;
            // Activations of 1e-87 and 1 − 1e-87; in f32 exactly 0 and 1.
            (at[2 * v * h], at[2 * v * h + 1]) = (200., -200.);
            let x64 = rows(m, v, DType::F64)?;
            let settings = *cost(&config, &x64, None)?.config();
            let x = f64s(&x64.flatten_all()?)?;
            let Some((want, want_gradient)) = serial_cost(&config, &settings, &at, &x) else {
                panic!("the lengths fit")
            };
            assert!(want.is_finite() && want_gradient.iter().all(|g| g.is_finite()));
            for (dtype, chunk, tolerance) in
                [(DType::F64, None, 1e-13), (DType::F32, None, 1e-5), (DType::F32, Some(2), 1e-5)]
            {
                let cost = cost(&config, &x64.to_dtype(dtype)?, chunk)?;
                let (value, gradient) = cost.evaluate(&Tensor::new(at.as_slice(), &CPU)?.to_dtype(dtype)?)?;
                let value = value.to_scalar::<f64>()?;
                assert!((value - want).abs() <= tolerance * want, "{value}, want {want}");
                let apart = relative_difference(&f64s(&gradient)?, &want_gradient);
                assert!(apart <= tolerance, "{decoder:?} {v}-{h}-{v} {dtype:?}: {apart}");
            }
        }
    }
    Ok(())
}
