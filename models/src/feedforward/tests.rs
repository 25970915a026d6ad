#![allow(clippy::unwrap_used)]
use super::*;
use crate::dbn::{Dbn, DbnConfig};
use crate::rbm::{HiddenUnit, RbmConfig, VisibleUnit};
use crate::trainer::Trainer;
use candle::Device::Cpu;
use candle::Var;
use chandlery_ops::{Precision, normal, uniform};

/// The loss of a network in f64 with the given parameters, from candle's ops alone.
fn loss(
    config: &FeedforwardConfig,
    training: &BackpropConfig,
    vars: &[(Var, Var)],
    x: &Tensor,
    y: &Tensor,
) -> Result<Tensor> {
    let layers = vars.iter().map(|(w, b)| (w.as_tensor().clone(), b.as_tensor().clone())).collect();
    let mut config = config.clone();
    // Of logits and outputs both losses want what comes before the last activation.
    let last = config.layers.last_mut().unwrap();
    let output = std::mem::replace(&mut last.activation, Activation::Identity);
    let pre = Feedforward::from_tensors(config.clone(), layers)?.forward(x)?;
    match (config.task, training.loss) {
        (Task::Classify, _) => {
            let log_p = candle_nn::ops::log_softmax(&pre, D::Minus1)?;
            log_p.gather(&y.unsqueeze(1)?, 1)?.mean_all()?.neg()
        }
        (_, ReconstructionLoss::SquaredError) => {
            let out = chandlery_ops::Activation::from(output).apply(&pre)?;
            (out - x)?.sqr()?.sum(1)?.mean_all()? * 0.5
        }
        (_, ReconstructionLoss::CrossEntropy) => {
            let softplus = (pre.exp()? + 1.)?.log()?;
            (softplus - (x * &pre)?)?.sum(1)?.mean_all()
        }
    }
}

fn worst(got: &Tensor, want: &Tensor) -> f64 {
    let difference = (got.to_dtype(DType::F64).unwrap() - want.to_dtype(DType::F64).unwrap()).unwrap();
    difference.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
}

#[test]
fn gradients_are_those_of_automatic_differentiation_in_f64() -> Result<()> {
    use Activation::{Identity, Relu, Sigmoid, Tanh};
    let batch = 6;
    let deep = |activations: [Activation; 3], task| {
        let sizes = [7, 5, 4, if task == Task::Classify { 3 } else { 7 }];
        let layers = activations.into_iter().zip(sizes.windows(2));
        let layers =
            layers.map(|(activation, n)| LayerConfig { n_inputs: n[0], n_outputs: n[1], activation });
        FeedforwardConfig { task, layers: layers.collect(), ..FeedforwardConfig::classifier(&[1, 2]) }
    };
    let autoencode = Task::Autoencode { encoder_layers: 2 };
    let (squares, bits) = (ReconstructionLoss::SquaredError, ReconstructionLoss::CrossEntropy);
    for (config, loss_kind) in [
        (deep([Sigmoid, Tanh, Identity], Task::Classify), squares),
        (deep([Relu, Sigmoid, Identity], Task::Classify), squares),
        (deep([Sigmoid, Identity, Sigmoid], autoencode), squares),
        (deep([Tanh, Relu, Sigmoid], autoencode), bits),
        (deep([Sigmoid, Sigmoid, Identity], autoencode), squares),
        (deep([Relu, Tanh, Relu], autoencode), squares),
        (deep([Relu, Tanh, Tanh], autoencode), squares),
    ] {
        let network = Feedforward::init(config.clone(), Philox::new(1, 0), &Cpu)?;
        // Biases of 0 would hide their part.
        let layers = network.layers().iter().enumerate().map(|(i, (w, b))| {
            Ok((w.clone(), (normal(b.shape(), &Cpu, Philox::new(1, 1 + i as u64))? * 0.3)?))
        });
        let network = Feedforward::from_tensors(config.clone(), layers.collect::<Result<_>>()?)?;
        let x = uniform((batch, 7), &Cpu, Philox::new(2, 0))?;
        let y = Tensor::new(&[0u32, 1, 2, 2, 0, 1], &Cpu)?;
        let training = BackpropConfig { batch, loss: loss_kind, ..BackpropConfig::default() };
        let mut trainer = FeedforwardTrainer::new(&network, training.clone(), Philox::new(3, 0))?;
        trainer.step(&x, Some(&y))?;

        let wide = network.to(DType::F64, &Cpu)?;
        let vars: Vec<(Var, Var)> = wide
            .layers()
            .iter()
            .map(|(w, b)| Ok((Var::from_tensor(w)?, Var::from_tensor(b)?)))
            .collect::<Result<_>>()?;
        let value = loss(&config, &training, &vars, &x.to_dtype(DType::F64)?, &y)?;
        let want = value.backward()?;
        for (i, ((w, b), (got_w, got_b))) in vars.iter().zip(trainer.buffers().gradients()).enumerate() {
            for (name, got, var) in [("weight", got_w, w), ("bias", got_b, b)] {
                // Sums of a few dozen f32 products of numbers below 1.
                let off = worst(&got, want.get(var).unwrap());
                assert!(off < 1e-6, "{config:?}, layer {i}, {name}: off by {off:e}");
            }
        }
        let metrics = trainer.metrics()?;
        assert!((metrics.loss - value.to_scalar::<f64>()?).abs() < 1e-6, "{metrics:?}, want {value}");
    }
    Ok(())
}

#[test]
fn dropout_gradients_are_those_of_the_network_that_was_left() -> Result<()> {
    // The first step's masks, by hand: those of the input come first, then those of the hidden layer.
    let (batch, sizes, rates) = (5, [8, 12, 3], [0.25, 0.5]);
    let config = FeedforwardConfig::classifier(&sizes);
    let network = Feedforward::init(config, Philox::new(4, 0), &Cpu)?;
    let (x, y) = (uniform((batch, 8), &Cpu, Philox::new(4, 1))?, Tensor::new(&[0u32, 1, 2, 1, 0], &Cpu)?);
    let philox = Philox::new(4, 2);
    let training = BackpropConfig { batch, dropout: rates.to_vec(), ..BackpropConfig::default() };
    let mut trainer = FeedforwardTrainer::new(&network, training, philox)?;
    trainer.step(&x, Some(&y))?;
    let mask = |n: usize, rate: f64, at: Philox| -> Result<Tensor> {
        let kept = uniform((batch, n), &Cpu, at)?.ge(rate as f32)?.to_dtype(DType::F64)?;
        kept * (1. / (1. - rate))
    };
    let masks = [mask(8, rates[0], philox)?, mask(12, rates[1], philox.advanced(batch * 8))?];
    let wide = network.to(DType::F64, &Cpu)?;
    let weight = |i: usize| Var::from_tensor(&wide.layers()[i].0);
    let (lower, upper) = (weight(0)?, weight(1)?);
    let x = (x.to_dtype(DType::F64)? * &masks[0])?;
    let h = (candle_nn::ops::sigmoid(&x.matmul(&lower.t()?)?)? * &masks[1])?;
    let log_p = candle_nn::ops::log_softmax(&h.matmul(&upper.t()?)?, D::Minus1)?;
    let want = log_p.gather(&y.unsqueeze(1)?, 1)?.mean_all()?.neg()?.backward()?;
    for (var, (got, _)) in [lower, upper].iter().zip(trainer.buffers().gradients()) {
        let off = worst(&got, want.get(var).unwrap());
        assert!(off < 1e-6, "off by {off:e}");
    }
    Ok(())
}

#[test]
fn a_recorded_step_is_an_unrecorded_one() -> Result<()> {
    // On the CPU nothing is recorded; on a GPU tests/parity asks the same.
    let config = FeedforwardConfig::classifier(&[6, 9, 3]);
    let network = Feedforward::init(config, Philox::new(5, 0), &Cpu)?;
    let training = BackpropConfig { batch: 4, dropout: vec![0.2, 0.5], ..BackpropConfig::default() };
    let (x, y) = (uniform((4, 6), &Cpu, Philox::new(5, 1))?, Tensor::new(&[0u32, 1, 2, 1], &Cpu)?);
    let run = |record| -> Result<Vec<Vec<f32>>> {
        let mut trainer = FeedforwardTrainer::with(&network, training.clone(), Philox::new(5, 2), record)?;
        for _ in 0..7 {
            trainer.step(&x, Some(&y))?;
        }
        trainer.buffers().params.to_vec2()
    };
    assert!(run(true)? == run(false)?);
    Ok(())
}

#[test]
fn made_from_machines_it_begins_as_they_are() -> Result<()> {
    let x = uniform((9, 6), &Cpu, Philox::new(6, 0))?;
    let layer =
        |v, h, visible, hidden| RbmConfig { visible, hidden, weight_stdev: 0.5, ..RbmConfig::new(v, h) };
    use HiddenUnit::{Bernoulli, Gaussian, Rectified};
    for (visible, lower, upper) in [
        (VisibleUnit::Bernoulli, Bernoulli, Bernoulli),
        (VisibleUnit::Bernoulli, Bernoulli, Gaussian),
        (VisibleUnit::Gaussian, Rectified, Rectified),
        (VisibleUnit::Gaussian, Rectified, Gaussian),
        (VisibleUnit::Gaussian, Gaussian, Bernoulli),
    ] {
        let layers = vec![layer(6, 5, visible, lower), layer(5, 3, lower.as_visible(), upper)];
        let config = DbnConfig { layers, ..DbnConfig::new(&[1, 1]) };
        let dbn = Dbn::init(config, Philox::new(6, 1), &Cpu)?;
        let autoencoder = Feedforward::unroll(&dbn)?;
        let what = format!("{visible:?}, {lower:?}, {upper:?}");
        assert!(worst(&autoencoder.encode(&x)?, &dbn.forward(&x)?) < 1e-6, "code of {what}");
        let down = autoencoder.decode(&dbn.forward(&x)?)?;
        // A rectified layer's mean is cut at 0 on the way down too; the RBMs have no such bound.
        if lower != Rectified {
            assert!(worst(&down, &dbn.decode(&dbn.forward(&x)?)?) < 1e-6, "reconstruction of {what}");
        }
        let classifier = Feedforward::from_dbn(&dbn, 4)?;
        assert_eq!(classifier.forward(&x)?.to_vec2::<f32>()?, vec![vec![0.; 4]; 9], "{what}");
        assert!(worst(&classifier.features(&x, 2)?, &dbn.forward(&x)?) < 1e-6, "features of {what}");
    }
    Ok(())
}

#[test]
fn learned_deviations_go_into_the_weights() -> Result<()> {
    let config = RbmConfig { visible: VisibleUnit::GaussianLearned, ..RbmConfig::new(4, 3) };
    let draw = |shape: &[usize], stream| normal(shape, &Cpu, Philox::new(7, stream));
    let rbm = crate::rbm::Rbm::from_tensors(
        config.clone(),
        draw(&[3, 4], 0)?,
        draw(&[3], 1)?,
        draw(&[4], 2)?,
        Some(draw(&[4], 3)?),
    )?;
    let dbn = Dbn::from_layers(DbnConfig { layers: vec![config], ..DbnConfig::new(&[1, 1]) }, vec![rbm])?;
    let x = draw(&[5, 4], 4)?;
    let difference = worst(&Feedforward::unroll(&dbn)?.forward(&x)?, &dbn.reconstruct(&x)?);
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}

#[test]
fn faster_precisions_stay_near_the_exact_gradient() -> Result<()> {
    let network = Feedforward::init(FeedforwardConfig::autoencoder(&[20, 12, 3]), Philox::new(8, 0), &Cpu)?;
    let x = uniform((10, 20), &Cpu, Philox::new(8, 1))?;
    let gradient = |precision| -> Result<Tensor> {
        let training = BackpropConfig { batch: 10, precision, ..BackpropConfig::default() };
        let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(8, 2))?;
        trainer.step(&x, None)?;
        trainer.buffers().params.get(1)
    };
    let exact = gradient(Precision::F32)?;
    let size = exact.abs()?.max_all()?.to_scalar::<f32>()?;
    let off = worst(&gradient(Precision::Bf16)?, &exact) / f64::from(size);
    assert!(off > 1e-5 && off < 0.05, "bf16 gradient off by {off} of the largest entry");
    Ok(())
}
