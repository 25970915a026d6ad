#![allow(clippy::unwrap_used)]
use super::*;
use crate::dbn::{Dbn, DbnConfig};
use crate::model::{Decode, Encode, Layered, Model};
use crate::rbm::{HiddenUnit, RbmConfig, VisibleUnit};
use crate::trainer::{MinibatchTrainer, Trainer};
use candle::Device::Cpu;
use candle::Var;
use chandlery_datasets::ImageShape;
use chandlery_ops::Precision;
use chandlery_ops::core::{normal, uniform};

/// The loss of a network in f64 with the given parameters, from candle's ops alone.
fn loss(
    config: &FeedforwardConfig,
    training: &FeedforwardTrainConfig,
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
            let out = chandlery_ops::layers::Activation::from(output).apply(&pre)?;
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
    let deep = |sizes: [usize; 3], activations: [Activation; 3], task| {
        let sizes = [sizes[0], sizes[1], sizes[2], if task == Task::Classify { 3 } else { sizes[0] }];
        let layers = activations.into_iter().zip(sizes.windows(2));
        let layers = layers.map(|(activation, n)| LayerConfig {
            n_inputs: n[0],
            n_outputs: n[1],
            activation,
            connections: Connections::Dense,
        });
        FeedforwardConfig { task, layers: layers.collect(), ..FeedforwardConfig::classifier(&[1, 2]) }
    };
    let autoencode = Task::Autoencode { encoder_layers: 2 };
    let (squares, bits) = (ReconstructionLoss::SquaredError, ReconstructionLoss::CrossEntropy);
    for (activations, task, loss_kind) in [
        ([Sigmoid, Tanh, Identity], Task::Classify, squares),
        ([Relu, Sigmoid, Identity], Task::Classify, squares),
        ([Sigmoid, Identity, Sigmoid], autoencode, squares),
        ([Tanh, Relu, Sigmoid], autoencode, bits),
        ([Sigmoid, Sigmoid, Identity], autoencode, squares),
        ([Relu, Tanh, Relu], autoencode, squares),
        ([Relu, Tanh, Tanh], autoencode, squares),
    ] {
        // Steps add units to layers of 64 and more.
        for sizes in [[7, 5, 4], [70, 67, 77]] {
            assert_gradients(&deep(sizes, activations, task), loss_kind)?;
        }
    }
    Ok(())
}

/// Layers of patches and of filters on images of 6 x 8 pixels with two channels, and on the hidden
/// units of each other.
fn layers_of_windows() -> Vec<Vec<RbmConfig>> {
    use crate::conv_rbm::{ConvGrid, Padding};
    use crate::patch_rbm::PatchGrid;
    let image = ImageShape { height: 6, width: 8, channels: 2 };
    let patches = RbmConfig::patches(PatchGrid::of_image(image, 4, 2), 3).unwrap();
    let filters = |padding, pool| {
        let grid = ConvGrid { padding, pool, ..ConvGrid::of_image(image, 3, 4) };
        RbmConfig::convolution(grid).unwrap()
    };
    let (pooled, same, single) =
        (filters(Padding::Valid, 2), filters(Padding::Same, 2), filters(Padding::Valid, 1));
    let on = |below: &RbmConfig, pool| {
        let grid = below.hidden_conv_grid(2, 3).unwrap();
        RbmConfig::convolution(ConvGrid { padding: Padding::Same, pool, ..grid }).unwrap()
    };
    let patches_on = |below: &RbmConfig| RbmConfig::patches(below.hidden_grid(2, 1).unwrap(), 2).unwrap();
    let dense_on = |below: &RbmConfig| RbmConfig::new(below.n_hidden, 3);
    vec![
        vec![patches.clone(), dense_on(&patches)],
        vec![patches.clone(), patches_on(&patches)],
        vec![single.clone(), on(&single, 2)],
        vec![pooled.clone(), on(&pooled, 1), dense_on(&on(&pooled, 1))],
        vec![same.clone(), patches_on(&same)],
        vec![patches.clone(), on(&patches, 1)],
    ]
}

fn of_windows(layers: Vec<RbmConfig>) -> Result<Dbn> {
    let layers: Vec<_> = layers.into_iter().map(|layer| RbmConfig { weight_stdev: 0.4, ..layer }).collect();
    Dbn::init(DbnConfig { layers, ..DbnConfig::new(&[1, 1]) }, Philox::new(14, 0), &Cpu)
}

#[test]
fn gradients_of_patches_and_filters_are_those_of_automatic_differentiation_in_f64() -> Result<()> {
    for layers in layers_of_windows() {
        let dbn = of_windows(layers)?;
        for loss_kind in [ReconstructionLoss::SquaredError, ReconstructionLoss::CrossEntropy] {
            assert_gradients(Feedforward::unroll(&dbn)?.config(), loss_kind)?;
        }
        assert_gradients(Feedforward::from_dbn(&dbn, 3)?.config(), ReconstructionLoss::default())?;
    }
    Ok(())
}

/// The gradient of each weight of patches is that of the weight of a dense network with the same
/// matrix, and that of a weight of filters the sum over its places.
#[test]
fn gradients_are_those_of_a_dense_network_with_the_same_matrix() -> Result<()> {
    let (x, y) = (uniform((6, 96), &Cpu, Philox::new(15, 0))?, Tensor::new(&[0u32, 1, 2, 2, 0, 1], &Cpu)?);
    let logits = (normal((3, 1000), &Cpu, Philox::new(15, 1))? * 0.3)?;
    for layers in layers_of_windows() {
        let Some(lowest) =
            layers.first().filter(|layer| layer.filter_grid().is_none_or(|grid| grid.pool == 1))
        else {
            continue;
        };
        let dbn = of_windows(vec![lowest.clone()])?;
        let dense = dbn.layers()[0].dense()?;
        let of_dense = DbnConfig { layers: vec![dense.config().clone()], ..dbn.config().clone() };
        let dense = Dbn::from_layers(of_dense, vec![dense])?;
        let gradient = |dbn: &Dbn| -> Result<(Tensor, Tensor)> {
            let network = Feedforward::from_dbn(dbn, 3)?;
            let mut layers = network.layers().to_vec();
            layers[1].0 = logits.narrow(1, 0, layers[1].0.dim(1)?)?.contiguous()?;
            let network = Feedforward::from_tensors(network.config().clone(), layers)?;
            let training = FeedforwardTrainConfig { batch: 6, ..FeedforwardTrainConfig::default() };
            let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(15, 2))?;
            trainer.step(&x, Some(&y))?;
            Ok(trainer.buffers().gradients()?[0].clone())
        };
        let ((got, got_bias), (want, want_bias)) = (gradient(&dbn)?, gradient(&dense)?);
        // A matrix in which weight i is 1 and all others are 0 says where the weight stands.
        let n = got.elem_count();
        let of_weights = (0..n).map(|i| {
            let mut one = vec![0f32; n];
            one[i] = 1.;
            let weight = Tensor::from_vec(one, got.shape(), &Cpu)?;
            let rbm = &dbn.layers()[0];
            let (bias, visible_bias) = (rbm.bias().clone(), rbm.visible_bias().clone());
            let rbm = crate::rbm::Rbm::from_tensors(lowest.clone(), weight, bias, visible_bias, None)?;
            (rbm.dense()?.weight() * &want)?.sum_all()?.to_scalar::<f32>()
        });
        let of_weights = Tensor::from_vec(of_weights.collect::<Result<Vec<_>>>()?, got.shape(), &Cpu)?;
        // Sums of at most six rows and 24 places of f32 products below 1.
        assert!(worst(&got, &of_weights) < 1e-6, "{lowest:?}: off by {}", worst(&got, &of_weights));
        let want_bias = want_bias.reshape(((), got_bias.elem_count()))?.sum(0)?;
        assert!(worst(&got_bias, &want_bias) < 1e-6, "biases of {lowest:?}");
    }
    Ok(())
}

#[test]
fn a_network_of_windows_begins_as_the_one_it_was_made_from() -> Result<()> {
    let x = uniform((9, 96), &Cpu, Philox::new(16, 0))?;
    for layers in layers_of_windows() {
        let (dbn, n) = (of_windows(layers.clone())?, layers.len());
        let autoencoder = Feedforward::unroll(&dbn)?;
        assert!(worst(&autoencoder.encode(&x)?, &dbn.forward(&x)?) < 1e-6, "code of {layers:?}");
        assert!(worst(&autoencoder.forward(&x)?, &dbn.reconstruct(&x)?) < 1e-6, "{layers:?}");
        let classifier = Feedforward::from_dbn(&dbn, 4)?;
        assert!(worst(&classifier.features(&x, n)?, &dbn.forward(&x)?) < 1e-6, "features of {layers:?}");
        let training = FeedforwardTrainConfig { batch: 9, ..FeedforwardTrainConfig::default() };
        // What a step computes is what the network computes.
        let mut trainer = FeedforwardTrainer::new(&autoencoder, training, Philox::new(16, 1))?;
        trainer.step(&x, None)?;
        let (got, want) = (trainer.metrics()?.squared_error.unwrap(), autoencoder.reconstruction_error(&x)?);
        assert!((got / want - 1.).abs() < 1e-5, "{got}, want {want}");
    }
    Ok(())
}

/// Holds the gradients of a first step, of six rows, to those of automatic differentiation in f64.
fn assert_gradients(config: &FeedforwardConfig, loss_kind: ReconstructionLoss) -> Result<()> {
    let batch = 6;
    let network = Feedforward::init(config.clone(), Philox::new(1, 0), &Cpu)?;
    // Biases of 0 would hide their part.
    let layers =
        network.layers().iter().enumerate().map(|(i, (w, b))| {
            Ok((w.clone(), (normal(b.shape(), &Cpu, Philox::new(1, 1 + i as u64))? * 0.3)?))
        });
    let network = Feedforward::from_tensors(config.clone(), layers.collect::<Result<_>>()?)?;
    let x = uniform((batch, config.n_inputs()), &Cpu, Philox::new(2, 0))?;
    let y = Tensor::new(&[0u32, 1, 2, 2, 0, 1], &Cpu)?;
    let training = FeedforwardTrainConfig { batch, loss: loss_kind, ..FeedforwardTrainConfig::default() };
    let mut trainer = FeedforwardTrainer::new(&network, training.clone(), Philox::new(3, 0))?;
    trainer.step(&x, Some(&y))?;

    let wide = network.to(DType::F64, &Cpu)?;
    let vars: Vec<(Var, Var)> = wide
        .layers()
        .iter()
        .map(|(w, b)| Ok((Var::from_tensor(w)?, Var::from_tensor(b)?)))
        .collect::<Result<_>>()?;
    let value = loss(config, &training, &vars, &x.to_dtype(DType::F64)?, &y)?;
    let want = value.backward()?;
    for (i, ((w, b), (got_w, got_b))) in vars.iter().zip(trainer.buffers().gradients()?).enumerate() {
        for (name, got, var) in [("weight", got_w, w), ("bias", got_b, b)] {
            // Sums of a few dozen f32 products of numbers below 1, or of some hundreds.
            let off = worst(&got, want.get(var).unwrap());
            let tolerance = if config.n_inputs() < 64 { 1e-6 } else { 1e-5 };
            assert!(off < tolerance, "{config:?}, layer {i}, {name}: off by {off:e}");
        }
    }
    let metrics = trainer.metrics()?;
    let value = value.to_scalar::<f64>()?;
    assert!((metrics.loss - value).abs() < 1e-6 * value.max(1.), "{metrics:?}, want {value}");
    Ok(())
}

#[test]
fn dropout_gradients_are_those_of_the_network_that_was_left() -> Result<()> {
    // The first step's masks, by hand: those of the input come first, then those of the hidden
    // layer.
    let (batch, sizes, rates) = (5, [8, 12, 3], [0.25, 0.5]);
    let config = FeedforwardConfig::classifier(&sizes);
    let network = Feedforward::init(config, Philox::new(4, 0), &Cpu)?;
    let (x, y) = (uniform((batch, 8), &Cpu, Philox::new(4, 1))?, Tensor::new(&[0u32, 1, 2, 1, 0], &Cpu)?);
    let philox = Philox::new(4, 2);
    let training =
        FeedforwardTrainConfig { batch, dropout: rates.to_vec(), ..FeedforwardTrainConfig::default() };
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
    for (var, (got, _)) in [lower, upper].iter().zip(trainer.buffers().gradients()?) {
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
    let training =
        FeedforwardTrainConfig { batch: 4, dropout: vec![0.2, 0.5], ..FeedforwardTrainConfig::default() };
    let (x, y) = (uniform((4, 6), &Cpu, Philox::new(5, 1))?, Tensor::new(&[0u32, 1, 2, 1], &Cpu)?);
    let run = |record| -> Result<Vec<Vec<f32>>> {
        let mut trainer = FeedforwardTrainer::with(&network, training.clone(), Philox::new(5, 2), record)?;
        for _ in 0..7 {
            trainer.step(&x, Some(&y))?;
        }
        trainer.buffers().all_params.to_vec2()
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
    use crate::patch_rbm::PatchGrid;
    let patches = RbmConfig::patches(PatchGrid::of_image([4, 6, 1], 4, 2), 3)?;
    for config in [RbmConfig::new(24, 3), patches] {
        let config = RbmConfig { visible: VisibleUnit::GaussianLearned, ..config };
        let draw = |shape: &[usize], stream| normal(shape, &Cpu, Philox::new(7, stream));
        let rbm = crate::rbm::Rbm::from_tensors(
            config.clone(),
            draw(&config.weight_shape(), 0)?,
            draw(&[config.n_hidden], 1)?,
            draw(&[24], 2)?,
            Some(draw(&[24], 3)?),
        )?;
        let dbn = Dbn::from_layers(DbnConfig { layers: vec![config], ..DbnConfig::new(&[1, 1]) }, vec![rbm])?;
        let x = draw(&[5, 24], 4)?;
        let difference = worst(&Feedforward::unroll(&dbn)?.forward(&x)?, &dbn.reconstruct(&x)?);
        assert!(difference < 1e-4, "{difference}");
    }
    Ok(())
}

#[test]
fn faster_precisions_stay_near_the_exact_gradient() -> Result<()> {
    let network = Feedforward::init(FeedforwardConfig::autoencoder(&[20, 12, 3]), Philox::new(8, 0), &Cpu)?;
    let x = uniform((10, 20), &Cpu, Philox::new(8, 1))?;
    let gradient = |precision| -> Result<Tensor> {
        let training = FeedforwardTrainConfig { batch: 10, precision, ..FeedforwardTrainConfig::default() };
        let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(8, 2))?;
        trainer.step(&x, None)?;
        trainer.buffers().all_params.get(1)
    };
    let exact = gradient(Precision::F32)?;
    let size = exact.abs()?.max_all()?.to_scalar::<f32>()?;
    let off = worst(&gradient(Precision::Bf16)?, &exact) / f64::from(size);
    assert!(off > 1e-5 && off < 0.05, "bf16 gradient off by {off} of the largest entry");
    Ok(())
}

/// A network of these widths to which steps add units, and rows and labels for it.
fn odd(task: Task, activations: [Activation; 3]) -> Result<(Feedforward, Tensor, Tensor)> {
    let sizes = [70, 67, 77, if task == Task::Classify { 3 } else { 70 }];
    let layers = activations.into_iter().zip(sizes.windows(2)).map(|(activation, n)| LayerConfig {
        n_inputs: n[0],
        n_outputs: n[1],
        activation,
        connections: Connections::Dense,
    });
    let config =
        FeedforwardConfig { task, layers: layers.collect(), ..FeedforwardConfig::classifier(&[1, 2]) };
    let rows = uniform((6, 70), &Cpu, Philox::new(17, 1))?;
    let labels = Tensor::new(&[0u32, 1, 2, 2, 0, 1], &Cpu)?;
    Ok((Feedforward::init(config, Philox::new(17, 0), &Cpu)?, rows, labels))
}

fn largest(tensors: &[Tensor]) -> Result<f32> {
    let numbers = tensors.iter().map(|t| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>());
    let numbers = numbers.collect::<Result<Vec<_>>>()?.concat();
    assert!(!numbers.is_empty() && numbers.iter().all(|x| x.is_finite()));
    Ok(numbers.iter().fold(0f32, |a, b| a.max(b.abs())))
}

#[test]
fn no_gradient_reaches_units_beside_those_of_the_network() -> Result<()> {
    use Activation::{Identity, Relu, Sigmoid, Tanh};
    let autoencode = Task::Autoencode { encoder_layers: 2 };
    let (squares, bits) = (ReconstructionLoss::SquaredError, ReconstructionLoss::CrossEntropy);
    for (task, activations, loss) in [
        (Task::Classify, [Sigmoid, Tanh, Identity], squares),
        (Task::Classify, [Relu, Identity, Identity], squares),
        (autoencode, [Sigmoid, Relu, Sigmoid], bits),
        (autoencode, [Tanh, Sigmoid, Sigmoid], squares),
        (autoencode, [Relu, Identity, Tanh], squares),
        (autoencode, [Identity, Sigmoid, Relu], squares),
        (autoencode, [Sigmoid, Tanh, Identity], squares),
    ] {
        let base = FeedforwardTrainConfig {
            batch: 6,
            loss,
            dropout: vec![0.2, 0.5, 0.5],
            weight_decay: 0.1,
            max_norm: Some(0.9),
            learning_rate: 0.01.into(),
            ..FeedforwardTrainConfig::default()
        };
        let sgd = FeedforwardTrainConfig { optimizer: Optimizer::Sgd, momentum: 0.5.into(), ..base.clone() };
        let bf16 = FeedforwardTrainConfig { precision: Precision::Bf16, ..base.clone() };
        for training in [base, sgd, bf16] {
            let (network, rows, labels) = odd(task, activations)?;
            let mut trainer = FeedforwardTrainer::new(&network, training.clone(), Philox::new(17, 2))?;
            for n in [6, 6, 5, 6] {
                trainer.step(&rows.narrow(0, 0, n)?, Some(&labels.narrow(0, 0, n)?))?;
            }
            trainer.check()?;
            assert_eq!(largest(&trainer.buffers().of_nothing()?)?, 0., "{activations:?} {training:?}");
            let learned = trainer.model()?;
            assert_eq!(learned.config(), network.config());
            for ((name, learned), (_, first)) in learned.tensors().iter().zip(network.tensors()) {
                let moved = largest(&[(learned - first)?])?;
                assert!(moved > 1e-6, "{activations:?} {training:?} {name}: {moved}");
            }
        }
    }
    Ok(())
}

#[test]
fn checkpoints_hold_the_units_of_the_network_and_go_on_with_others_beside_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for (optimizer, planes) in [(Optimizer::Adam, 4), (Optimizer::Sgd, 3)] {
        let (network, rows, labels) =
            odd(Task::Classify, [Activation::Sigmoid, Activation::Tanh, Activation::Identity])?;
        let training = FeedforwardTrainConfig {
            batch: 6,
            optimizer,
            momentum: 0.9.into(),
            dropout: vec![0.2, 0.5, 0.5],
            ..FeedforwardTrainConfig::default()
        };
        let mut first = FeedforwardTrainer::new(&network, training, Philox::new(17, 2))?;
        first.step(&rows, Some(&labels))?;
        first.save(&path, &serde_json::Value::Null)?;
        // Weights of 67 x 70, 77 x 67 and 3 x 77 numbers and the biases, each from a multiple of 64 on.
        let stored = candle::safetensors::load(&path, &Cpu)?;
        assert_eq!(stored["trainer.params"].dims(), [planes, 4736 + 5184 + 256 + 128 + 128 + 64]);
        let (mut second, _) = FeedforwardTrainer::load(&path, &Cpu)?;
        for trainer in [&mut first, &mut second] {
            trainer.step(&rows, Some(&labels))?;
        }
        for ((name, a), (_, b)) in first.model()?.tensors().into_iter().zip(second.model()?.tensors()) {
            assert_eq!(a.flatten_all()?.to_vec1::<f32>()?, b.flatten_all()?.to_vec1::<f32>()?, "{name}");
        }
        assert_eq!(largest(&second.buffers().of_nothing()?)?, 0.);
    }
    Ok(())
}

#[test]
fn units_stand_beside_those_between_dense_layers_alone() -> Result<()> {
    let widths = |config: &FeedforwardConfig| -> Vec<(usize, usize)> {
        super::places::with_units(config).iter().map(|layer| (layer.n_inputs, layer.n_outputs)).collect()
    };
    // Neither classes nor small layers.
    let classifier = FeedforwardConfig::classifier(&[785, 501, 63, 66, 101]);
    assert_eq!(widths(&classifier), [(800, 512), (512, 63), (63, 72), (72, 101)]);
    let autoencoder = FeedforwardConfig::autoencoder(&[785, 501, 30]);
    assert_eq!(widths(&autoencoder), [(800, 512), (512, 30), (30, 512), (512, 800)]);
    // Nor what patches read or make.
    let grid = crate::patch_rbm::PatchGrid::of_image([9, 9, 1], 3, 3);
    let patches = RbmConfig::patches(grid, 9)?;
    let dense = RbmConfig::new(patches.n_hidden, 70);
    let dbn = of_windows(vec![patches, dense])?;
    assert_eq!(widths(Feedforward::from_dbn(&dbn, 3)?.config()), [(81, 81), (81, 72), (72, 3)]);
    let down = [(81, 81), (81, 72), (72, 81), (81, 81)];
    assert_eq!(widths(Feedforward::unroll(&dbn)?.config()), down);
    Ok(())
}
