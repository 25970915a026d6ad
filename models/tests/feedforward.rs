//! Fine-tuning pays: with few labels, and against principal components. Files and checkpoints come
//! back.
#![allow(clippy::unwrap_used)]
use crate::common;
use candle::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::VarBuilder;
use candle_nn::optim::{AdamW, Optimizer as _, ParamsAdamW};
use chandlery::conv_rbm::{ConvGrid, Padding};
use chandlery::datasets::ImageShape;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::feedforward::{
    Activation, Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer, Optimizer,
    ReconstructionLoss,
};
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::RbmConfig;
use chandlery::schedule::Schedule;
use chandlery::{Decode, Encode, LoadOptions, MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;
use chandlery_ops::core::{normal, uniform};

const CPU: Device = Device::Cpu;

fn rows(n: usize, width: usize, seed: u64) -> Result<Tensor> {
    uniform((n, width), &CPU, Philox::new(seed, 0))
}

fn labels(n: u32, classes: u32) -> Result<Tensor> {
    Tensor::from_vec((0..n).map(|i| i * 7 / 3 % classes).collect(), n as usize, &CPU)
}

#[test]
fn it_learns_random_labels_by_heart_with_every_optimiser() -> Result<()> {
    let (x, y) = (rows(20, 10, 1)?, labels(20, 4)?);
    for (optimizer, rate) in [(Optimizer::Adam, 0.01), (Optimizer::Sgd, 0.5)] {
        let network =
            Feedforward::init(FeedforwardConfig::classifier(&[10, 30, 4]), Philox::new(1, 1), &CPU)?;
        let training =
            FeedforwardTrainConfig { batch: 20, optimizer, learning_rate: rate.into(), ..Default::default() };
        let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(1, 2))?;
        assert!(network.errors(&x, &y)? > 10, "before");
        for _ in 0..400 {
            trainer.step(&x, Some(&y))?;
        }
        assert_eq!(trainer.model()?.errors(&x, &y)?, 0, "{optimizer:?}");
        let first = trainer.metrics()?;
        trainer.step(&x, Some(&y))?;
        let last = trainer.metrics()?;
        assert_eq!((first.steps, last.steps, last.error), (400, 1, Some(0.)));
        assert!(last.loss < 0.1 && last.loss < first.loss, "{optimizer:?}: {first:?}, {last:?}");
    }
    Ok(())
}

#[test]
fn a_run_follows_candles_adamw() -> Result<()> {
    let (x, y) = (rows(12, 6, 2)?, labels(12, 3)?);
    let network = Feedforward::init(FeedforwardConfig::classifier(&[6, 8, 3]), Philox::new(2, 1), &CPU)?;
    let (rate, weight_decay) = (0.01, 0.1);
    let training = FeedforwardTrainConfig {
        batch: 12,
        learning_rate: rate.into(),
        weight_decay,
        ..FeedforwardTrainConfig::default()
    };
    let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(2, 2))?;

    let var = |t: &Tensor| Var::from_tensor(t);
    let layers = network.layers();
    let (w0, b0, w1, b1) = (var(&layers[0].0)?, var(&layers[0].1)?, var(&layers[1].0)?, var(&layers[1].1)?);
    // Weights decay, biases do not.
    let with = |weight_decay| ParamsAdamW { lr: rate, weight_decay, ..ParamsAdamW::default() };
    let mut of_weights = AdamW::new(vec![w0.clone(), w1.clone()], with(weight_decay))?;
    let mut of_biases = AdamW::new(vec![b0.clone(), b1.clone()], with(0.))?;
    for _ in 0..30 {
        trainer.step(&x, Some(&y))?;
        let h = candle_nn::ops::sigmoid(&x.matmul(&w0.t()?)?.broadcast_add(&b0)?)?;
        let logits = h.matmul(&w1.t()?)?.broadcast_add(&b1)?;
        let gradients = candle_nn::loss::cross_entropy(&logits, &y)?.backward()?;
        of_weights.step(&gradients)?;
        of_biases.step(&gradients)?;
    }
    for (i, (weight, bias)) in trainer.model()?.layers().iter().enumerate() {
        for (name, got, want) in [("weight", weight, [&w0, &w1][i]), ("bias", bias, [&b0, &b1][i])] {
            let off = (got - want.as_tensor())?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            // Thirty steps of .01; where a gradient is near 0, Adam divides its rounding by its
            // size.
            assert!(off < 1e-4, "layer {i}, {name}: off by {off:e}");
        }
    }
    Ok(())
}

/// Digits that a few strokes make: `n` rows of 36 grey levels in `classes` shapes, each bent,
/// blurred and noisy.
fn shapes(n: usize, classes: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let hidden = (normal((classes, 5), &CPU, Philox::new(70, 0))? * 1.2)?;
    let out = (normal((5, 36), &CPU, Philox::new(70, 1))? * 1.5)?;
    let noise = normal((n, 5), &CPU, Philox::new(seed, 2))?;
    let class: Vec<u32> = (0..n).map(|i| (i % classes) as u32).collect();
    let class = Tensor::from_vec(class, n, &CPU)?;
    let latent = (hidden.index_select(&class, 0)? + noise)?;
    // Not linear in what lies behind: principal components cannot follow.
    let x = candle_nn::ops::sigmoid(&(latent.sin()?.matmul(&out)? * 2.)?)?;
    Ok((x, class))
}

#[test]
fn a_deep_autoencoder_beats_as_many_principal_components() -> Result<()> {
    let ((x, _), (test, _)) = (shapes(600, 6, 3)?, shapes(300, 6, 4)?);
    let principal = principal_error(&x, &test, 3)?;
    let network = Feedforward::init(FeedforwardConfig::autoencoder(&[36, 40, 3]), Philox::new(5, 0), &CPU)?;
    let training = FeedforwardTrainConfig {
        batch: 50,
        learning_rate: Schedule::linear(0.01, 0., 120),
        loss: ReconstructionLoss::CrossEntropy,
        ..FeedforwardTrainConfig::default()
    };
    let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(5, 1))?;
    let untrained = trainer.model()?.reconstruction_error(&test)?;
    for epoch in 0..120 {
        trainer.begin_epoch(epoch)?;
        for i in 0..12 {
            trainer.step(&x.narrow(0, 50 * i, 50)?, None)?;
        }
    }
    let error = trainer.model()?.reconstruction_error(&test)?;
    assert!(
        untrained > principal,
        "an untrained network ({untrained}) beats principal components ({principal})"
    );
    assert!(error < 0.8 * principal, "autoencoder {error}, principal components {principal}");
    Ok(())
}

/// Mean squared error of test rows within the span of the `n` strongest principal components, by
/// subspace iteration in f64.
fn principal_error(x: &Tensor, test: &Tensor, n: usize) -> Result<f64> {
    let x = x.to_dtype(DType::F64)?;
    let mean = x.mean_keepdim(0)?;
    let centred = x.broadcast_sub(&mean)?;
    let covariance = centred.t()?.matmul(&centred)?;
    let mut basis = normal((n, x.dim(1)?), &CPU, Philox::new(9, 0))?.to_dtype(DType::F64)?;
    for _ in 0..300 {
        basis = orthonormal(&basis.matmul(&covariance)?)?;
    }
    let test = test.to_dtype(DType::F64)?.broadcast_sub(&mean)?;
    let within = test.matmul(&basis.t()?)?.matmul(&basis)?;
    (test - within)?.sqr()?.sum(1)?.mean_all()?.to_scalar()
}

/// Gram and Schmidt.
fn orthonormal(rows: &Tensor) -> Result<Tensor> {
    let mut done: Vec<Vec<f64>> = Vec::new();
    for mut row in rows.to_vec2::<f64>()? {
        for other in &done {
            let along: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let norm = row.iter().map(|a| a * a).sum::<f64>().sqrt();
        row.iter_mut().for_each(|a| *a /= norm);
        done.push(row);
    }
    Tensor::new(done, rows.device())
}

fn trained(optimizer: Optimizer) -> FeedforwardTrainConfig {
    FeedforwardTrainConfig {
        batch: 10,
        optimizer,
        dropout: vec![0.2, 0.5],
        max_norm: Some(2.),
        weight_decay: 1e-3,
        learning_rate: Schedule::linear(0.05, 0., 6),
        ..FeedforwardTrainConfig::default()
    }
}

/// Trains from step `from` to step `to`, five steps an epoch.
fn run(trainer: &mut FeedforwardTrainer, x: &Tensor, y: &Tensor, from: usize, to: usize) -> Result<()> {
    for step in from..to {
        trainer.begin_epoch(step / 5)?;
        let at = step % 5 * 10;
        trainer.step(&x.narrow(0, at, 10)?, Some(&y.narrow(0, at, 10)?))?;
    }
    Ok(())
}

fn bits(network: &Feedforward) -> Result<Vec<u32>> {
    common::bits(network.tensors())
}

#[test]
fn a_resumed_run_is_bit_for_bit_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let (x, y) = (rows(50, 8, 6)?, labels(50, 3)?);
    let network = Feedforward::init(FeedforwardConfig::classifier(&[8, 12, 3]), Philox::new(6, 1), &CPU)?;
    for optimizer in [Optimizer::Adam, Optimizer::Sgd] {
        let new = || FeedforwardTrainer::new(&network, trained(optimizer), Philox::new(6, 2));
        let mut whole = new()?;
        run(&mut whole, &x, &y, 0, 30)?;
        let metrics = whole.metrics()?;
        for stop in [0, 1, 5, 17] {
            let mut first = new()?.stop_early(3);
            run(&mut first, &x, &y, 0, stop)?;
            assert!(!first.observe(4, 0.25)?);
            first.save(&path, &serde_json::json!(stop))?;
            let best = bits(&first.model()?)?;
            drop(first);
            let (mut second, at) = FeedforwardTrainer::load(&path, &CPU)?;
            let stopping = second.stopping();
            assert_eq!((stopping.best_epoch(), stopping.best_figure()), (Some(4), Some(0.25)));
            assert!(bits(stopping.best().unwrap())? == best);
            assert_eq!(at, stop);
            run(&mut second, &x, &y, stop, 30)?;
            assert!(bits(&second.model()?)? == bits(&whole.model()?)?, "{optimizer:?}, stopped at {stop}");
            let resumed = second.metrics()?;
            assert_eq!((resumed.steps, resumed.error), (metrics.steps, metrics.error));
            assert!((resumed.loss - metrics.loss).abs() < 1e-12);
        }
    }
    Ok(())
}

#[test]
fn a_saved_network_comes_back_and_its_layers_load_as_linear() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let x = rows(7, 8, 7)?;
    let network = Feedforward::init(FeedforwardConfig::autoencoder(&[8, 5, 2]), Philox::new(7, 1), &CPU)?;
    network.save_pretrained(folder.path())?;
    let back = Feedforward::from_pretrained(folder.path(), &LoadOptions::default())?;
    assert_eq!(back.config(), network.config());
    assert!(bits(&back)? == bits(&network)?);

    let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &CPU).pp("layers");
    let h = candle_nn::ops::sigmoid(&candle_nn::linear(8, 5, vb.pp(0))?.forward(&x)?)?;
    let code = candle_nn::linear(5, 2, vb.pp(1))?.forward(&h)?;
    assert_eq!(code.to_vec2::<f32>()?, network.encode(&x)?.to_vec2::<f32>()?);
    assert_eq!(network.linears()?[0].weight().dims(), [5, 8]);
    Ok(())
}

/// Windows on 6 x 8 pixels of two channels, and pooled filters on their hidden units.
fn of_windows(pool: usize) -> Result<Dbn> {
    let image = ImageShape { height: 6, width: 8, channels: 2 };
    let patches = RbmConfig::patches(PatchGrid::of_image(image, 3, 1), 4)?;
    let grid = patches.hidden_conv_grid(2, 5).unwrap();
    let maps = RbmConfig::convolution(ConvGrid { padding: Padding::Same, pool, ..grid })?;
    let layers = vec![patches, RbmConfig { weight_stdev: 0.3, ..maps }];
    Dbn::init(DbnConfig { layers, ..DbnConfig::new(&[1, 1]) }, Philox::new(10, 0), &CPU)
}

#[test]
fn windows_and_filters_learn_labels_by_heart_and_a_resumed_run_is_the_uninterrupted_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let (x, y) = (rows(50, 96, 11)?, labels(50, 3)?);
    let network = Feedforward::from_dbn(&of_windows(2)?, 3)?;
    let training = FeedforwardTrainConfig { dropout: vec![0., 0.1, 0.2], ..trained(Optimizer::Adam) };
    let new = || FeedforwardTrainer::new(&network, training.clone(), Philox::new(11, 1));
    let mut whole = new()?;
    run(&mut whole, &x, &y, 0, 30)?;
    let mut first = new()?;
    run(&mut first, &x, &y, 0, 13)?;
    first.save(&path, &serde_json::json!(13))?;
    let (mut second, at) = FeedforwardTrainer::load(&path, &CPU)?;
    assert_eq!(at, 13);
    run(&mut second, &x, &y, 13, 30)?;
    assert!(bits(&second.model()?)? == bits(&whole.model()?)?);

    let training =
        FeedforwardTrainConfig { batch: 50, learning_rate: 0.01.into(), ..FeedforwardTrainConfig::default() };
    let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(11, 2))?;
    assert!(network.errors(&x, &y)? > 20, "before");
    for _ in 0..300 {
        trainer.step(&x, Some(&y))?;
    }
    let model = trainer.model()?;
    assert_eq!(model.errors(&x, &y)?, 0);
    model.save_pretrained(folder.path())?;
    let back = Feedforward::from_pretrained(folder.path(), &LoadOptions::default())?;
    assert_eq!(back.config(), model.config());
    assert_eq!(back.forward(&x)?.to_vec2::<f32>()?, model.forward(&x)?.to_vec2::<f32>()?);
    Ok(())
}

/// The loss of a classifier moves by what the gradient of `Module::forward` says.
#[test]
fn the_gradient_through_windows_and_filters_is_that_of_finite_differences() -> Result<()> {
    let (x, y) = (rows(5, 96, 12)?.to_dtype(DType::F64)?, labels(5, 3)?);
    for pool in [1, 2] {
        let network = Feedforward::from_dbn(&of_windows(pool)?, 3)?;
        let mut layers = network.layers().to_vec();
        layers[2].0 = normal(layers[2].0.shape(), &CPU, Philox::new(12, 1))?;
        let network = Feedforward::from_tensors(network.config().clone(), layers)?.to(DType::F64, &CPU)?;
        let loss = |layers: Vec<(Tensor, Tensor)>| {
            let network = Feedforward::from_tensors(network.config().clone(), layers)?;
            candle_nn::loss::cross_entropy(&network.forward(&x)?, &y)
        };
        for at in 0..2 {
            let var = Var::from_tensor(&network.layers()[at].0)?;
            let with = |weight: Tensor| {
                let mut layers = network.layers().to_vec();
                layers[at].0 = weight;
                loss(layers)
            };
            let gradient = with(var.as_tensor().clone())?.backward()?;
            let gradient = gradient.get(&var).unwrap();
            let towards = normal(var.shape(), &CPU, Philox::new(12, 2))?.to_dtype(DType::F64)?;
            let step = |h: f64| with((var.as_detached_tensor() + (&towards * h)?)?)?.to_scalar::<f64>();
            let want = (step(1e-5)? - step(-1e-5)?) / 2e-5;
            let got = (gradient * &towards)?.sum_all()?.to_scalar::<f64>()?;
            assert!((got - want).abs() < 1e-7 * want.abs().max(1.), "pool {pool}, layer {at}: {got}, {want}");
        }
    }
    Ok(())
}

#[test]
fn layers_of_windows_that_do_not_fit_are_refused() -> Result<()> {
    let refused = |change: &dyn Fn(&mut FeedforwardConfig)| {
        let mut config = Feedforward::unroll(&of_windows(2).unwrap()).unwrap().config().clone();
        change(&mut config);
        let text = config.validate().unwrap_err().to_string();
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(
        refused(&|config| config.layers[1].activation = Activation::Tanh),
        "FeedforwardConfig: layers[1].activation must be sigmoid where maps are pooled, got Tanh"
    );
    assert_eq!(
        refused(&|config| {
            config.layers[0].n_outputs = 97;
            config.layers[1].n_inputs = 97;
        }),
        "FeedforwardConfig: layers[0].n_outputs must be a multiple of the 24 patches, got 97"
    );
    assert_eq!(
        refused(&|config| {
            config.layers[1].n_outputs = 8;
            config.layers[2].n_inputs = 8;
        }),
        "FeedforwardConfig: layers[1].n_outputs must be the 30 of its grid, got 8"
    );
    let autoencoder = Feedforward::unroll(&of_windows(2)?)?;
    let bounded = FeedforwardTrainConfig { max_norm: Some(3.), ..FeedforwardTrainConfig::default() };
    let text = bounded.validate(autoencoder.config()).unwrap_err().to_string();
    assert!(
        text.starts_with(
            "FeedforwardTrainConfig: max_norm must be none where hidden units see patches or maps backwards, as those of \
             layers[2] do, got 3"
        ),
        "{text}"
    );
    assert!(autoencoder.linears().unwrap_err().to_string().contains("layers[0] must be dense"));
    Ok(())
}

#[test]
fn max_norm_and_decay_bound_the_weights() -> Result<()> {
    let (x, y) = (rows(50, 8, 8)?, labels(50, 3)?);
    let network = Feedforward::init(FeedforwardConfig::classifier(&[8, 12, 3]), Philox::new(8, 1), &CPU)?;
    let norm = |training: FeedforwardTrainConfig| -> Result<f32> {
        let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(8, 2))?;
        run(&mut trainer, &x, &y, 0, 60)?;
        let norms = trainer.model()?.layers()[0].0.sqr()?.sum(1)?.sqrt()?;
        norms.max(0)?.to_scalar()
    };
    let free =
        FeedforwardTrainConfig { batch: 10, learning_rate: 0.05.into(), ..FeedforwardTrainConfig::default() };
    let bounded = FeedforwardTrainConfig { max_norm: Some(1.5), ..free.clone() };
    let decayed = FeedforwardTrainConfig { weight_decay: 2., ..free.clone() };
    let (free, bounded, decayed) = (norm(free)?, norm(bounded)?, norm(decayed)?);
    assert!(free > 3. && decayed < 2., "free {free}, decayed {decayed}");
    assert!((1.4..1.5001).contains(&bounded), "{bounded}");
    Ok(())
}

#[test]
fn what_is_wrong_is_said() -> Result<()> {
    let first = |e: candle::Error| e.to_string().lines().next().unwrap_or_default().to_owned();
    let network = Feedforward::init(FeedforwardConfig::classifier(&[4, 3, 2]), Philox::new(0, 0), &CPU)?;
    let refused = |training: FeedforwardTrainConfig| {
        first(FeedforwardTrainer::new(&network, training, Philox::new(0, 1)).map(|_| ()).unwrap_err())
    };
    let default = FeedforwardTrainConfig::default;
    assert_eq!(
        refused(FeedforwardTrainConfig { dropout: vec![0.5], ..default() }),
        "FeedforwardTrainConfig: dropout must have one entry for each of 2 layers, or none, got 1"
    );
    assert_eq!(
        refused(FeedforwardTrainConfig { dropout: vec![0., 1.], ..default() }),
        "FeedforwardTrainConfig: dropout[1] must be in [0, 1), got 1"
    );
    assert_eq!(
        refused(FeedforwardTrainConfig { batch: 0, ..default() }),
        "FeedforwardTrainConfig: batch must be at least 1, got 0"
    );

    let training = FeedforwardTrainConfig { batch: 2, ..default() };
    let mut trainer = FeedforwardTrainer::new(&network, training, Philox::new(0, 1))?;
    let (x, y) = (rows(2, 4, 0)?, Tensor::new(&[0u32, 1], &CPU)?);
    let error = first(trainer.step(&x, None).unwrap_err());
    assert_eq!(error, "FeedforwardTrainer::step: a classifier must be given labels, got none");
    let error = first(trainer.step(&rows(3, 4, 0)?, Some(&y)).unwrap_err());
    assert_eq!(
        error,
        "FeedforwardTrainer::step: rows must have shape [2, 4], or fewer rows, at least 1, got [3, 4]"
    );
    let error = first(trainer.metrics().unwrap_err());
    assert_eq!(error, "FeedforwardTrainer::metrics: steps since the last call must be at least 1, got 0");
    let error = first(trainer.step(&x, Some(&Tensor::new(&[0u32, 2], &CPU)?)).unwrap_err());
    assert_eq!(error, "FeedforwardTrainer::step: labels must be below n_classes = 2, got 2");

    let mut config = FeedforwardConfig::autoencoder(&[4, 3]);
    config.layers[1].n_outputs = 5;
    let error = first(config.validate().unwrap_err());
    assert_eq!(error, "FeedforwardConfig: an autoencoder must give back its 4 inputs, got 5 outputs");
    let dbn = Dbn::init(DbnConfig::new(&[4, 3]), Philox::new(0, 0), &CPU)?;
    let error = first(Feedforward::from_dbn(&dbn, 1).unwrap_err());
    assert_eq!(
        error,
        "FeedforwardConfig: a classifier must end in at least 2 logits (identity), got 1 of Identity"
    );
    let error = first(network.decode(&x).unwrap_err());
    assert_eq!(error, "Feedforward::decode: the network must be an autoencoder, got a classifier");
    Ok(())
}
